# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of Ubuntu and Debian, NVIDIA's repository for Ubuntu, mirrors: with the real apt, by the role alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab

UBUNTU, DEBIAN = "gpu-u1", "gpu-d1"
OLD, NEW = "580.105.08", "580.126.20"
HOLD = "/etc/apt/preferences.d/gpuops-driver.pref"
KEYRING = "/usr/share/keyrings/lab-archive.gpg"


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own with a host of each distribution, which know their archives as such hosts do."""
    with own_lab("archive", f"{UBUNTU}=a100-80:8@ubuntu2404,{DEBIAN}=a100-80:1") as hosts:
        write_source(hosts, UBUNTU, "ubuntu", "noble noble-updates", "main restricted multiverse")
        write_source(hosts, DEBIAN, "debian", "bookworm", "main")
        yield hosts


@pytest.fixture(scope="module", autouse=True)
def clean(lab: LabHosts) -> dict[str, list[str]]:
    """The snapshot of each host as it is at first."""
    return {host: lab.snapshot(host) for host in (UBUNTU, DEBIAN)}


def server(lab: LabHosts) -> str:
    """The lab's own address of all repositories."""
    found = re.search(r'http://[0-9.]+/', lab.hosts[0].read_text())
    assert found
    return found.group()


def fetch(lab: LabHosts, host: str, name: str, path: str) -> None:
    """Gets a file of the lab's server to a path on a host."""
    lab.sh(host, f"python3 -c \"import urllib.request as u; u.urlretrieve('{server(lab)}{name}', '{path}')\"")


def write_source(lab: LabHosts, host: str, name: str, suites: str, components: str) -> None:
    fetch(lab, host, "archive.gpg", KEYRING)
    lab.sh(host, f"""cat > /etc/apt/sources.list.d/{name}.sources <<'END'
Types: deb
URIs: {server(lab)}{name}/
Suites: {suites}
Components: {components}
Signed-By: {KEYRING}
END""")


def tasks(lab: LabHosts, host: str, name: str, *words: str, **variables: object) -> user.Run:
    """One task file of the role driver on a host."""
    return user.playbook(user.role("driver", name), lab.hosts, "--limit", host, *words,
                         driver_disruption="idle", **variables)


def role(lab: LabHosts, host: str, source: str, *words: str, **variables: object) -> user.Run:
    """The driver of a source on a host."""
    return tasks(lab, host, "host", *words, **{**variables, "driver_source": source})


def steps(run: user.Run, host: str) -> list[str]:
    """The ids of the plan of a run that ended well."""
    assert run.rc == 0, run.output
    return [step["id"] for step in run.result(host, "nvidia_driver")["plan"]]


def bring(lab: LabHosts, host: str, source: str, foreseen: bool = False, **variables: str) -> list[str]:
    """Brings a driver; foreseen: sees that check mode named the same steps, and that a second run does nothing."""
    named = steps(role(lab, host, source, "--check", **variables), host) if foreseen else []
    done = steps(role(lab, host, source, **variables), host)
    if foreseen:
        assert done == named
        again = role(lab, host, source, **variables)
        assert steps(again, host) == [] and again.changed(host) == [], again.output
    return done


def refused(run: user.Run, *parts: str) -> None:
    assert run.rc != 0 and len(run.errors()) == 1, run.output
    assert all(part in run.errors()[0] for part in parts), run.errors()


def installed(lab: LabHosts, host: str) -> dict[str, str]:
    text = lab.sh(host, "dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n'")
    rows = (line.split(" ") for line in text.splitlines())
    return {name: version for name, version, status in rows if status == "installed"}


def dist_upgrade(lab: LabHosts) -> list[str]:
    """What an upgrade of the whole host would change, on fresh lists."""
    text = lab.sh(UBUNTU, "apt-get update -qq && apt-get -s dist-upgrade")
    return [line for line in text.splitlines() if line.startswith(("Inst", "Remv"))]


def test_ubuntus_own_driver(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    done = bring(lab, UBUNTU, "distribution", True, driver_version=OLD)
    assert f"hold versions: {HOLD}" in done and not [step for step in done if step.startswith("add repository")]
    there = installed(lab, UBUNTU)
    assert there["nvidia-dkms-580-server-open"] == there["nvidia-fabricmanager-580"] == f"{OLD}-0ubuntu0.24.04.1"
    assert f"nvidia-srv/{OLD}" in lab.sh(UBUNTU, "dkms status")


def test_an_upgrade_of_the_host_does_not_split_it(lab: LabHosts) -> None:
    assert dist_upgrade(lab) == []
    lab.sh(UBUNTU, f"mv {HOLD} /srv/")
    try:
        assert any("nvidia-dkms-580-server-open" in line for line in dist_upgrade(lab))
    finally:
        lab.sh(UBUNTU, f"mv /srv/{HOLD.rsplit('/', 1)[-1]} {HOLD}")
    kept = role(lab, UBUNTU, "distribution", driver_branch="580")
    assert kept.rc == 0 and kept.changed(UBUNTU) == [], kept.output


def test_what_is_refused_changes_nothing(lab: LabHosts) -> None:
    before = lab.snapshot(UBUNTU)
    refused(role(lab, UBUNTU, "distribution", driver_branch="590"), "590 has ended", "branch to 595")
    refused(role(lab, UBUNTU, "distribution", driver_version="580.95.05"), "no driver 580.95.05", NEW)
    secret = role(lab, UBUNTU, "cuda_repository", driver_branch="580",
                  driver_repository_url="https://someone:hunter2@mirror.example.com/cuda/")
    refused(secret, "repository.url", "auth.conf.d")
    assert "hunter2" not in secret.errors()[0]
    lab.sh(UBUNTU, "echo 'Acquire::http::Proxy \"http://127.0.0.1:9\";' > /etc/apt/apt.conf.d/99proxy")
    refused(role(lab, UBUNTU, "distribution", driver_branch="595"), "cannot be read", "127.0.0.1", "proxy")
    lab.sh(UBUNTU, "rm /etc/apt/apt.conf.d/99proxy")
    assert lab.snapshot(UBUNTU) == before


def test_modules_that_ubuntu_has_built(lab: LabHosts) -> None:
    lab.sh(UBUNTU, "apt-get install -qq linux-image-generic")
    lab("fault", UBUNTU, "secure-boot", "on")
    done = bring(lab, UBUNTU, "precompiled", True, driver_branch="580")
    lab("fault", UBUNTU, "secure-boot", "off")
    assert any(step.startswith(f"check modules: {NEW} for kernel") for step in done)
    assert lab.sh(UBUNTU, "dkms status").strip() == ""
    assert "/kernel/nvidia-580srv-open/nvidia.ko" in lab.sh(UBUNTU, "modinfo -n nvidia")
    assert "linux-modules-nvidia-580-server-open-generic" in installed(lab, UBUNTU)
    lab.sh(UBUNTU, "apt-get remove -qq \"linux-modules-nvidia-580-server-open-$(uname -r)\"")
    assert any("linux-modules" in step for step in bring(lab, UBUNTU, "precompiled", driver_branch="580"))


def test_proprietary_ones_are_linked_on_the_host(lab: LabHosts) -> None:
    bring(lab, UBUNTU, "precompiled", driver_branch="580", driver_kernel_module_type="proprietary")
    assert "/kernel/nvidia-580srv/nvidia.ko" in lab.sh(UBUNTU, "modinfo -n nvidia")
    there = installed(lab, UBUNTU)
    assert not [name for name in there if name.startswith("linux-modules-nvidia") and "open" in name]


def test_from_the_archive_to_the_vendor_and_back(lab: LabHosts) -> None:
    bring(lab, UBUNTU, "cuda_repository", True, driver_version=NEW)
    there = installed(lab, UBUNTU)
    assert there["nvidia-open-580"] == f"{NEW}-1ubuntu1" and f"nvidia-driver-pinning-{NEW}" in there
    assert not [name for name in there if "nvidia" in name and ("-server" in name or name.startswith("linux-"))]
    assert HOLD not in lab.sh(UBUNTU, "ls /etc/apt/preferences.d/*")
    bring(lab, UBUNTU, "cuda_repository", driver_version="595.80.01")
    there = installed(lab, UBUNTU)
    assert there["nvidia-dkms-open"] == "595.80.01-1ubuntu1" and "nvidia-open-580" not in there
    assert dist_upgrade(lab) == []
    assert "remove repository: cuda" in bring(lab, UBUNTU, "distribution", True, driver_branch="595")
    there = installed(lab, UBUNTU)
    assert there["nvidia-dkms-595-server-open"] == "595.80.01-0ubuntu0.24.04.1"
    assert not {"nvidia-open", "nvidia-dkms-open", "nvidia-fabricmanager"} & set(there)


def test_a_local_repository_without_pinning_packages(lab: LabHosts) -> None:
    name = "nvidia-driver-local-repo-ubuntu2404-595.91.07"
    fetch(lab, UBUNTU, f"{name}_1.0-1_amd64.deb", "/srv/local.deb")
    lab.sh(UBUNTU, f"cd /srv && dpkg-deb -x local.deb local && mv local/var/{name} /var/ && rm -r local local.deb")
    variables = {"driver_version": "595.91.07", "driver_repository_url": f"file:///var/{name}",
                 "driver_repository_key": f"/var/{name}/nvidia-driver-local-keyring.gpg"}
    done = bring(lab, UBUNTU, "cuda_repository", True, **variables)
    assert f"hold versions: {HOLD}" in done
    assert installed(lab, UBUNTU)["nvidia-dkms-open"] == "595.91.07-1ubuntu1"
    lab.sh(UBUNTU, f"rm -r /var/{name}")


def test_removal_leaves_nothing(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    run = tasks(lab, UBUNTU, "remove")
    assert run.rc == 0, run.output
    lab.sh(UBUNTU, "apt-get purge -qq linux-image-generic")
    assert lab.snapshot(UBUNTU) == clean[UBUNTU]


def test_debians_own_driver(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    refused(role(lab, DEBIAN, "distribution"), "lack contrib, non-free, non-free-firmware", "Components")
    lab.sh(DEBIAN, "sed -i '/^Components/s/$/ contrib non-free non-free-firmware/' "
                   "/etc/apt/sources.list.d/debian.sources")
    bring(lab, DEBIAN, "distribution", True)
    assert "nvidia-current-open/535.309.01" in lab.sh(DEBIAN, "dkms status")
    assert installed(lab, DEBIAN)["nvidia-open-kernel-dkms"] == "535.309.01-1~deb12u1"
    bring(lab, DEBIAN, "cuda_repository", driver_branch="580")
    there = installed(lab, DEBIAN)
    assert there["libcuda1"] == f"{NEW}-1" and "nvidia-open-kernel-dkms" not in there
    bring(lab, DEBIAN, "distribution", driver_kernel_module_type="proprietary")
    assert "nvidia-kernel-dkms" in installed(lab, DEBIAN)
    run = tasks(lab, DEBIAN, "remove")
    assert run.rc == 0, run.output
    lab.sh(DEBIAN, "sed -i '/^Components/s/ contrib.*//' /etc/apt/sources.list.d/debian.sources")
    assert lab.snapshot(DEBIAN) == clean[DEBIAN]

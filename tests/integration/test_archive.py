# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The archives of Ubuntu and Debian, the repository of NVIDIA for Ubuntu, and mirrors, with real apt and only this
role."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from lab.host import lab as labs
from lab.packages.driver_debs import KEY_FILE
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.driver import DriverHost, Refused
from tests.integration.series import Play

OLD, NEW = "580.105.08", "580.126.20"
HOLD = "/etc/apt/preferences.d/gpuops-driver.pref"
KEYRING = "/usr/share/keyrings/lab-archive.gpg"
AUTHORITY = "/usr/local/share/ca-certificates/lab.crt"
PROXY = "/etc/apt/apt.conf.d/99proxy"
# What is refused on a host with Ubuntu's own driver: the run, and what its error says.
REFUSED = {
    "branch that has ended": (Play({"driver_source": "distribution", "driver_branch": "590"}),
                              ("590 has ended", "branch to 595")),
    "no such version": (Play({"driver_source": "distribution", "driver_version": "580.95.05"}),
                        ("no driver 580.95.05", NEW)),
    "password": (Play({"driver_source": "cuda_repository", "driver_branch": "580",
                       "driver_repository_url": "https://someone:hunter2@mirror.example.com/cuda/"}),
                 ("repository.url", "auth.conf.d")),
    "proxy": (Play({"driver_source": "distribution", "driver_branch": "595"},
                   first=f"echo 'Acquire::http::Proxy \"http://127.0.0.1:9\";' > {PROXY}", then=f"rm {PROXY}"),
              ("cannot be read", "127.0.0.1", "proxy")),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own with a host of each distribution."""
    with own_lab("archive", "gpu-u1=a100-80:8@ubuntu2404,gpu-d1=a100-80:1") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def ubuntu(lab: LabHosts) -> DriverHost:
    """A host that has the usual source of the archive of Ubuntu."""
    return with_source(lab, "gpu-u1", "ubuntu", "noble noble-updates", "main restricted multiverse")


@pytest.fixture(scope="module")
def debian(lab: LabHosts) -> DriverHost:
    """A host that has the usual source of the archive of Debian."""
    return with_source(lab, "gpu-d1", "debian", "bookworm", "main")


@pytest.fixture(scope="module")
def clean(ubuntu: DriverHost) -> list[str]:
    """The initial state of the Ubuntu host."""
    return ubuntu.fresh_state()


@pytest.fixture(scope="module")
def own(ubuntu: DriverHost, clean: list[str]) -> list[str]:
    """The state C(own) of the Ubuntu host, which has the old driver of the archive; the steps of check mode and of the
    run."""
    ubuntu.start()
    variables = {"driver_source": "distribution", "driver_version": OLD}
    steps = ubuntu.steps(ubuntu.role("--check", **variables))
    assert ubuntu.state() == clean
    run, again = ubuntu.run(Play(variables), Play(variables))
    assert ubuntu.steps(run) == steps
    ubuntu.untouched(again)
    ubuntu.save("own")
    return steps


@pytest.fixture(scope="module")
def refused(ubuntu: DriverHost, own: list[str]) -> Refused:
    """All refused cases, on one host that has Ubuntu's own driver."""
    ubuntu.start("own")
    before = ubuntu.state()
    runs = ubuntu.run_each({case: play for case, (play, _said) in REFUSED.items()})
    return Refused(runs, before, ubuntu.state())


def server(lab: LabHosts) -> str:
    """The address of all repositories of the lab."""
    found = re.search(r'http://[0-9.]+/', lab.hosts[0].read_text())
    assert found
    return found.group()


def fetch(host: DriverHost, name: str, path: str) -> None:
    """Downloads a file from the server of the lab to a path on a host."""
    host.sh(f"python3 -c \"import urllib.request as u; u.urlretrieve('{server(host.lab)}{name}', '{path}')\"")


def with_source(lab: LabHosts, machine: str, name: str, suites: str, components: str) -> DriverHost:
    """A host with a source of this archive of the lab, saved as a state of this name."""
    host = DriverHost(lab, machine)
    fetch(host, "archive.gpg", KEYRING)
    host.sh(f"""cat > /etc/apt/sources.list.d/{name}.sources <<'END'
Types: deb
URIs: {server(host.lab)}{name}/
Suites: {suites}
Components: {components}
Signed-By: {KEYRING}
END""")
    host.save()
    return host


def bring(host: DriverHost, source: str, **variables: str) -> list[str]:
    """Installs a driver with one run; returns its steps."""
    run, = host.run(Play({"driver_source": source, **variables}))
    return host.steps(run)


def installed(host: DriverHost) -> dict[str, str]:
    text = host.sh("dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n'")
    rows = (line.split(" ") for line in text.splitlines())
    return {name: version for name, version, status in rows if status == "installed"}


def dist_upgrade(host: DriverHost) -> list[str]:
    """What an upgrade of all packages of the host would change, with updated package lists."""
    text = host.sh("apt-get update -qq && apt-get -s dist-upgrade")
    return [line for line in text.splitlines() if line.startswith(("Inst", "Remv"))]


def test_ubuntus_own_driver(ubuntu: DriverHost, own: list[str]) -> None:
    ubuntu.start("own")
    assert f"hold versions: {HOLD}" in own and not [step for step in own if step.startswith("add repository")]
    there = installed(ubuntu)
    assert there["nvidia-dkms-580-server-open"] == there["nvidia-fabricmanager-580"] == f"{OLD}-0ubuntu0.24.04.1"
    assert f"nvidia-srv/{OLD}" in ubuntu.sh("dkms status")
    ubuntu.left("own")


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named(ubuntu: DriverHost, refused: Refused, case: str) -> None:
    error = ubuntu.refused(refused.runs[case])
    assert all(part in error for part in REFUSED[case][1]) and "hunter2" not in error, error


def test_what_is_refused_changes_nothing(refused: Refused) -> None:
    assert refused.after == refused.before


def test_an_upgrade_of_the_host_does_not_split_it(ubuntu: DriverHost, own: list[str]) -> None:
    ubuntu.start("own")
    assert dist_upgrade(ubuntu) == []
    ubuntu.sh(f"mv {HOLD} /srv/held.pref")
    assert any("nvidia-dkms-580-server-open" in line for line in dist_upgrade(ubuntu))
    ubuntu.sh(f"mv /srv/held.pref {HOLD}")
    ubuntu.untouched(ubuntu.run(Play({"driver_source": "distribution", "driver_branch": "580"}))[0])
    ubuntu.left("own")


def test_modules_that_ubuntu_has_built_then_the_vendors_and_back(ubuntu: DriverHost, clean: list[str],
                                                                 own: list[str]) -> None:
    ubuntu.start("own")
    ubuntu.sh("apt-get install -qq linux-image-generic")
    with ubuntu.fault("secure-boot", ubuntu.name):
        done = ubuntu.switch(driver_source="precompiled", driver_branch="580", twice=True)
    assert any(step.startswith(f"check modules: {NEW} for kernel") for step in done)
    assert ubuntu.sh("dkms status").strip() == ""
    assert "/kernel/nvidia-580srv-open/nvidia.ko" in ubuntu.sh("modinfo -n nvidia")
    assert "linux-modules-nvidia-580-server-open-generic" in installed(ubuntu)
    ubuntu.sh("apt-get remove -qq \"linux-modules-nvidia-580-server-open-$(uname -r)\"")
    assert any("linux-modules" in step for step in bring(ubuntu, "precompiled", driver_branch="580"))
    # Proprietary ones are linked on the host.
    bring(ubuntu, "precompiled", driver_branch="580", driver_kernel_module_type="proprietary")
    assert "/kernel/nvidia-580srv/nvidia.ko" in ubuntu.sh("modinfo -n nvidia")
    there = installed(ubuntu)
    assert not [name for name in there if name.startswith("linux-modules-nvidia") and "open" in name]
    ubuntu.switch(driver_source="cuda_repository", driver_version=NEW, twice=True)
    there = installed(ubuntu)
    assert there["nvidia-open-580"] == f"{NEW}-1ubuntu1" and f"nvidia-driver-pinning-{NEW}" in there
    assert not [name for name in there if "nvidia" in name and ("-server" in name or name.startswith("linux-"))]
    assert HOLD not in ubuntu.sh("ls /etc/apt/preferences.d/*")
    bring(ubuntu, "cuda_repository", driver_version="595.80.01")
    there = installed(ubuntu)
    assert there["nvidia-dkms-open"] == "595.80.01-1ubuntu1" and "nvidia-open-580" not in there
    # Without the libraries for desktops, and with them again.
    compute = ubuntu.switch(driver_source="cuda_repository", driver_installation="compute-only", twice=True)
    assert "purge packages: nvidia-driver-open nvidia-open" in compute
    there = installed(ubuntu)
    assert there["nvidia-headless-no-dkms-open"] == there["nvidia-utils"] == "595.80.01-1ubuntu1"
    assert dist_upgrade(ubuntu) == []
    ubuntu.switch(driver_source="cuda_repository", driver_installation="full")
    assert dist_upgrade(ubuntu) == []
    assert "remove repository: cuda" in ubuntu.switch(driver_source="distribution", driver_branch="595", twice=True)
    there = installed(ubuntu)
    assert there["nvidia-dkms-595-server-open"] == "595.80.01-0ubuntu0.24.04.1"
    assert not {"nvidia-open", "nvidia-dkms-open", "nvidia-fabricmanager"} & set(there)
    run, = ubuntu.run(Play(tasks="remove", then=f"apt-get purge -qq linux-image-generic >&2\n{ubuntu.state_script}"))
    assert ubuntu.steps(run) and run.said.splitlines() == clean


def test_a_local_repository_without_pinning_packages_and_removal(ubuntu: DriverHost, clean: list[str],
                                                                 own: list[str]) -> None:
    ubuntu.start("own")
    name = "nvidia-driver-local-repo-ubuntu2404-595.91.07"
    fetch(ubuntu, f"{name}_1.0-1_amd64.deb", "/srv/local.deb")
    ubuntu.sh(f"cd /srv && dpkg-deb -x local.deb local && mv local/var/{name} /var/ && rm -r local local.deb")
    done = ubuntu.switch(driver_source="cuda_repository", driver_version="595.91.07", twice=True,
                         driver_repository_url=f"file:///var/{name}",
                         driver_repository_key=f"/var/{name}/nvidia-driver-local-keyring.gpg")
    assert f"hold versions: {HOLD}" in done
    assert installed(ubuntu)["nvidia-dkms-open"] == "595.91.07-1ubuntu1"
    ubuntu.sh(f"rm -r /var/{name}")
    run, = ubuntu.run(Play(tasks="remove", then=ubuntu.state_script))
    assert ubuntu.steps(run) and run.said.splitlines() == clean


def test_mirrors_behind_tls_that_redirect(ubuntu: DriverHost, clean: list[str]) -> None:
    """A mirror of the archive and one of the vendor's repository; the host must be told to trust their certificate
    authority."""
    ubuntu.start()
    log = labs.load(ubuntu.lab.name).folder / "www" / "requests.log"
    before = log.stat().st_size
    authority = labs.serve_by_tls(labs.load(ubuntu.lab.name)).read_text()
    mirror = f"{server(ubuntu.lab).replace('http:', 'https:')}moved/"
    ubuntu.sh(f"sed -i 's,^URIs:.*,URIs: {mirror}ubuntu/,' /etc/apt/sources.list.d/ubuntu.sources")
    archive = {"driver_source": "distribution", "driver_version": NEW}
    cuda = f"{mirror}compute/cuda/repos/ubuntu2404/x86_64/"
    vendor = {"driver_source": "cuda_repository", "driver_version": NEW, "driver_repository_url": cuda,
              "driver_repository_key": f"{cuda}{KEY_FILE}"}
    trust = f"printf '%s' '{authority}' > {AUTHORITY} && update-ca-certificates"
    unknown, unknown_too, first, second, again = ubuntu.run(
        Play(archive), Play(vendor), Play(archive, first=trust), Play(vendor), Play(vendor))
    for run in (unknown, unknown_too):
        error = ubuntu.refused(run)
        assert mirror in error and "certificate" in error and "update-ca-certificates" in error, error
    assert ubuntu.steps(first) and ubuntu.steps(second)
    assert installed(ubuntu)["nvidia-open-580"] == f"{NEW}-1ubuntu1"
    ubuntu.untouched(again)
    requests = log.read_text()[before:]
    assert re.search(r"GET /moved/\S+Release \S+ 302", requests)
    assert re.search(r"GET /\S+/by-hash/SHA256/\S+ \S+ 200", requests)


def test_debians_own_driver(debian: DriverHost) -> None:
    clean = debian.fresh_state()
    debian.start()
    run, = debian.run(Play({"driver_source": "distribution"}))
    error = debian.refused(run)
    assert "do not have the components contrib, non-free, non-free-firmware" in error and "Components" in error
    debian.sh("sed -i '/^Components/s/$/ contrib non-free non-free-firmware/' "
              "/etc/apt/sources.list.d/debian.sources")
    debian.switch(driver_source="distribution", twice=True)
    assert "nvidia-current-open/535.309.01" in debian.sh("dkms status")
    assert installed(debian)["nvidia-open-kernel-dkms"] == "535.309.01-1~deb12u1"
    bring(debian, "cuda_repository", driver_branch="580")
    there = installed(debian)
    assert there["libcuda1"] == f"{NEW}-1" and "nvidia-open-kernel-dkms" not in there
    bring(debian, "distribution", driver_kernel_module_type="proprietary")
    assert "nvidia-kernel-dkms" in installed(debian)
    run, = debian.run(Play(tasks="remove"))
    assert debian.steps(run)
    debian.sh("sed -i '/^Components/s/ contrib.*//' /etc/apt/sources.list.d/debian.sources")
    assert debian.state() == clean

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver from .run files: installed, kept, switched, exchanged for packages, refused, cut off, adopted, removed."""

from __future__ import annotations

import hashlib
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.packages import RUNFILE_PATH
from lab.packages.runfile import runfile_name
from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab

HOST = "gpu-f1"
NEW, OLD, OLDEST = "595.91.07", "580.126.20", "535.309.01"
UNIT = "/etc/systemd/system/nvidia-persistenced.service"
# What the snapshot of a lab host leaves out, and the installer and we could leave behind.
MORE = ("find /usr/bin /usr/lib/x86_64-linux-gnu /usr/lib/systemd /usr/lib/modprobe.d /usr/lib/firmware /usr/share/doc "
        "/var/lib/gpuops /var/lib/nvidia -newermt @0 2>/dev/null | grep -i -e nvidia -e cuda -e gpuops | sort")
# A server with a certificate of its own, for the archive and the digest beside it.
SECURE = """
mkdir -p /srv/tls && cd /srv/tls
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \\
    -keyout key.pem -out cert.pem 2>/dev/null
python3 -c "
import urllib.request
for name in ('{name}', '{name}.sha256sum'):
    urllib.request.urlretrieve('{url}' + name, name)"
cat > serve.py <<'END'
import http.server, ssl
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8443), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
END
systemd-run --quiet --unit=tls --working-directory=/srv/tls python3 serve.py
until python3 -c "import socket; socket.create_connection(('127.0.0.1', 8443))" 2>/dev/null; do sleep 0.2; done
"""
# An archive of packages on the host itself that has what the installer asks for.
OWN_SOURCE = """
mkdir -p /srv/own/libc6-dev/DEBIAN /srv/own/libc6-dev/usr/include && cd /srv/own
printf '%s\\n' 'Package: libc6-dev' 'Version: 9' 'Architecture: amd64' 'Maintainer: lab <lab@example.com>' \\
    'Description: stub' > libc6-dev/DEBIAN/control
mv /usr/include/stdio.h libc6-dev/usr/include/
dpkg-deb --root-owner-group --build libc6-dev . >/dev/null && dpkg-scanpackages . > Packages 2>/dev/null
echo 'deb [trusted=yes] file:/srv/own ./' > /etc/apt/sources.list.d/own.list
apt-get -qq update
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own, with one host of two L40S, whose GPUs need no fabric manager."""
    with own_lab("runfile", f"{HOST}=l40s:2") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> list[str]:
    """What a fresh host looks like."""
    return state(lab)


@pytest.fixture(scope="module")
def repository(lab: LabHosts) -> str:
    """The address of the lab's repositories, with a slash."""
    address = re.search(r'driver_repository_url: "(http://[^/]+/)', lab.hosts[0].read_text())
    assert address
    return address.group(1)


def state(lab: LabHosts) -> list[str]:
    return [*lab.snapshot(HOST), *lab.sh(HOST, MORE).splitlines()]


def url_of(repository: str, version: str) -> str:
    return f"{repository}{RUNFILE_PATH}{version}/{runfile_name(version)}"


def fetched(url: str, path: str) -> str:
    """The command that puts a file to a path of the host."""
    return f"python3 -c \"import urllib.request as u; u.urlretrieve('{url}', '{path}')\""


def wanted(repository: str, version: str, **others: Any) -> dict[str, Any]:
    """The variables for a version from the lab's server."""
    url = url_of(repository, version)
    with urllib.request.urlopen(url) as answer:
        digest = hashlib.sha256(answer.read()).hexdigest()
    return {"driver_source": "runfile", "driver_version": version, "driver_disruption": "idle",
            "driver_runfile_src": url, "driver_runfile_checksum": f"sha256:{digest}", **others}


def role(lab: LabHosts, *words: str, tasks: str = "host", environment: str = "{}", **variables: Any) -> user.Run:
    """Runs one task file of the role."""
    play = user.HOME / f"runfile-{tasks}.yml"
    play.write_text(f"- hosts: all\n  gather_facts: false\n  environment: {environment}\n  tasks:\n"
                    "    - ansible.builtin.import_role:\n        name: gpuops.nvidia.driver\n"
                    f"        tasks_from: {tasks}\n")
    return user.playbook(str(play), lab.hosts, *words, **variables)


def converge(lab: LabHosts, twice: bool = False, **variables: Any) -> list[str]:
    """A run that has to end well, and if told a second that has to find nothing to do; the steps of the first."""
    run = role(lab, **variables)
    assert run.rc == 0, run.output
    result = run.result(HOST, "nvidia_driver")
    assert result["pending"] == [] and result["reasons"] == [], result
    if twice:
        again = role(lab, **variables)
        assert again.rc == 0 and again.changed(HOST) == [], again.output
    return [step["id"] for step in result["plan"]]


def refused(lab: LabHosts, **variables: Any) -> str:
    """A run that has to end with one error; the error."""
    run = role(lab, **variables)
    assert run.rc != 0 and len(run.errors()) == 1, run.output
    assert "Traceback" not in run.output and "MODULE FAILURE" not in run.output
    return run.errors()[0]


def remove(lab: LabHosts) -> None:
    run = role(lab, tasks="remove", driver_disruption="idle")
    assert run.rc == 0 and run.result(HOST, "nvidia_driver")["pending"] == [], run.output


def driver(lab: LabHosts) -> tuple[str, str]:
    """The version that nvidia-smi reports, and the licence of the module on the disk."""
    version = lab.sh(HOST, "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u").strip()
    return version, lab.sh(HOST, "modinfo -F license nvidia").strip()


def test_check_names_the_steps_that_the_run_takes(lab: LabHosts, clean: list[str], repository: str) -> None:
    variables = wanted(repository, NEW)
    check = role(lab, "--check", **variables)
    assert check.rc == 0, check.output
    assert state(lab) == clean
    steps = converge(lab, **variables)
    assert steps == [step["id"] for step in check.result(HOST, "nvidia_driver")["plan"]]
    assert steps[:2] == [f"fetch driver archive: {variables['driver_runfile_src']}",
                         f"run driver installer: {NEW} open"]
    assert driver(lab) == (NEW, "Dual MIT/GPL")
    assert lab.sh(HOST, "nvidia-installer --sanity --silent && dkms status").count(f"{NEW}, ") == 1
    assert lab.sh(HOST, "systemctl is-enabled nvidia-persistenced; systemctl is-active nvidia-persistenced"
                  ).split() == ["enabled", "active"]
    assert not lab.sh(HOST, "ls -d /var/lib/gpuops/runfile 2>/dev/null || true")
    verify = role(lab, tasks="verify", **variables)
    assert verify.rc == 0, verify.output


def test_a_second_run_needs_neither_network_nor_installer(lab: LabHosts, repository: str) -> None:
    variables = wanted(repository, NEW)
    marks = "stat -c '%Y %i' /var/log/nvidia-*.log /var/lib/nvidia/log; systemctl show -p MainPID nvidia-persistenced"
    before = lab.sh(HOST, marks)
    lab.sh(HOST, "mv /usr/bin/nvidia-installer /srv/; ln -s /bin/false /usr/bin/nvidia-installer")
    lab("fault", "repo", "down", "on")
    try:
        # Whoever lets auto choose keeps what is there.
        for others in ({}, {"driver_source": "auto"}, {"driver_source": "auto", "driver_version": ""}):
            again = role(lab, **{**variables, **others})
            assert again.rc == 0 and again.changed(HOST) == [], again.output
    finally:
        lab("fault", "repo", "down", "off")
        lab.sh(HOST, "mv /srv/nvidia-installer /usr/bin/nvidia-installer")
    assert lab.sh(HOST, marks) == before


def test_another_version_waits_for_leave_to_unload(lab: LabHosts, repository: str) -> None:
    run = role(lab, **wanted(repository, OLD, driver_disruption="never"))
    assert run.rc == 0, run.output
    result = run.result(HOST, "nvidia_driver")
    assert result["pending"][0]["id"].startswith("unload modules: ") and driver(lab)[0] == NEW
    assert [step["action"] for step in result["plan"]] == ["fetch driver archive"]


def test_another_version_another_flavour_and_an_old_branch(lab: LabHosts, repository: str) -> None:
    steps = converge(lab, **wanted(repository, OLD))
    assert steps[0].startswith("unload modules: ") and f"run driver installer: {OLD} open" in steps
    assert driver(lab) == (OLD, "Dual MIT/GPL")
    assert lab.sh(HOST, "ls /usr/src; dkms status").count(NEW) == 0
    steps = converge(lab, **wanted(repository, OLD, driver_kernel_module_type="proprietary"))
    assert f"run driver installer: {OLD} proprietary" in steps and driver(lab) == (OLD, "NVIDIA")
    # Its installer knows neither --kernel-module-type nor --skip-module-load.
    converge(lab, True, **wanted(repository, OLDEST))
    assert driver(lab) == (OLDEST, "Dual MIT/GPL")


def test_what_is_lost_comes_back(lab: LabHosts, repository: str) -> None:
    variables = wanted(repository, NEW)
    converge(lab, **variables)
    lab.sh(HOST, "rm /usr/bin/nvidia-smi")
    assert f"run driver installer: {NEW} open" in converge(lab, **variables)
    lab.sh(HOST, f"dkms remove nvidia/{NEW} --all")
    steps = converge(lab, **variables)
    assert any(step.startswith(f"add kernel modules: {NEW} open for kernel ") for step in steps)
    assert not any(step.startswith(("unload", "run driver installer")) for step in steps)
    lab.sh(HOST, f"rm {UNIT}")
    assert f"install unit: {UNIT}" in converge(lab, True, **variables)
    assert driver(lab) == (NEW, "Dual MIT/GPL")


def test_packages_and_a_file_give_way_to_each_other(lab: LabHosts, clean: list[str], repository: str) -> None:
    converge(lab, **wanted(repository, NEW))
    packages = {"driver_source": "cuda_repository", "driver_version": NEW, "driver_disruption": "idle"}
    steps = converge(lab, True, **packages)
    assert steps.index(f"run driver uninstaller: {NEW}") > 0 and f"remove unit: {UNIT}" in steps
    assert not lab.sh(HOST, f"ls /usr/bin/nvidia-uninstall /var/lib/nvidia {UNIT} 2>/dev/null || true")
    assert driver(lab) == (NEW, "Dual MIT/GPL")
    steps = converge(lab, True, **wanted(repository, NEW))
    assert any(step.startswith("purge packages: ") for step in steps)
    assert not lab.sh(HOST, "dpkg-query -W '*nvidia*' 'libcuda*' 2>/dev/null || true").strip()
    assert driver(lab) == (NEW, "Dual MIT/GPL")
    converge(lab, **{**packages, "driver_version": OLD})
    assert driver(lab)[0] == OLD
    converge(lab, **wanted(repository, OLD))
    remove(lab)
    assert state(lab) == clean


def test_a_reboot_loads_what_was_held(lab: LabHosts, clean: list[str], repository: str) -> None:
    converge(lab, **wanted(repository, NEW))
    lab.sh(HOST, "setsid sh -c 'exec 3</dev/nvidia0; exec sleep 1000' >/dev/null 2>&1 & "
                 "until grep -qsx sleep /proc/$!/comm; do sleep 0.1; done")
    run = role(lab, **wanted(repository, OLD, driver_disruption="reboot"))
    assert run.rc == 0 and "Reboot the host" in " ".join(run.changed(HOST)), run.output
    assert driver(lab) == (OLD, "Dual MIT/GPL")
    assert role(lab, **wanted(repository, OLD)).changed(HOST) == []
    remove(lab)
    assert state(lab) == clean


def test_a_build_that_fails_leaves_the_former_driver_installed(lab: LabHosts, clean: list[str],
                                                               repository: str) -> None:
    converge(lab, **wanted(repository, NEW))
    lab("fault", HOST, "build-fails", "on")
    try:
        error = refused(lab, **wanted(repository, OLD))
    finally:
        lab("fault", HOST, "build-fails", "off")
    assert "/var/log/nvidia-installer.log" in error and "Building kernel modules" in error
    assert f"The former driver {NEW} is back" in error and driver(lab)[0] == NEW
    assert role(lab, **wanted(repository, NEW)).changed(HOST) == []
    remove(lab)
    assert state(lab) == clean


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "wrong digest": ({"driver_runfile_checksum": f"sha256:{'0' * 64}"}, "0" * 64),
    "no digest": ({"driver_runfile_checksum": ""}, "runfile.checksum"),
    "no digest at all": ({"driver_runfile_checksum": "md5:1"}, "'md5:1' is no digest"),
    "another version": ({"driver_version": OLD}, f"is version {NEW}, not {OLD}"),
    "no version": ({"driver_version": "", "driver_runfile_src": ""}, "Give version"),
    "no such branch": ({"driver_version": "", "driver_branch": "580"}, "branch 580 is wanted"),
    "not there": ({"driver_runfile_src": "http://127.0.0.1:9/none.run"}, "cannot be fetched"),
    "no such file": ({"driver_runfile_src": "/srv/none.run"}, "no file /srv/none.run"),
    "a password": ({"driver_runfile_src": "http://me:secret@example.com/a.run"}, "must not hold a user or password"),
    "no modules for it": ({"driver_version": "470.256.02", "driver_kernel_module_type": "open",
                           "driver_runfile_src": ""}, "470"),
}


@pytest.mark.parametrize("case", BAD)
def test_one_clear_error_and_nothing_changed(lab: LabHosts, clean: list[str], repository: str, case: str) -> None:
    variables, expected = BAD[case]
    error = refused(lab, **{**wanted(repository, NEW), **variables})
    assert expected in error and "secret" not in error
    assert state(lab) == clean


def test_no_network_and_no_room(lab: LabHosts, clean: list[str], repository: str) -> None:
    variables = wanted(repository, NEW)
    lab("fault", "repo", "down", "on")
    try:
        assert "503" in refused(lab, **variables)
    finally:
        lab("fault", "repo", "down", "off")
    lab.sh(HOST, "mkdir /var/lib/gpuops && mount -t tmpfs -o size=1m tmpfs /var/lib/gpuops")
    try:
        assert "MiB free" in refused(lab, **variables)
    finally:
        lab.sh(HOST, "umount /var/lib/gpuops && rmdir /var/lib/gpuops")
    assert state(lab) == clean


def test_packages_of_others_are_not_touched(lab: LabHosts, clean: list[str], repository: str) -> None:
    lab.sh(HOST, "mkdir -p /usr/lib/nvidia && touch /usr/lib/nvidia/alternate-install-present")
    assert "alternate-install-present" in refused(lab, **wanted(repository, NEW))
    lab.sh(HOST, "rm -r /usr/lib/nvidia")
    assert state(lab) == clean


def cut_off(lab: LabHosts, repository: str, point: str) -> None:
    """A run that is killed with the installer in the middle of its work."""
    lab.sh(HOST, f"echo {point} > /run/kill-installer")
    run = role(lab, **wanted(repository, NEW))
    assert run.rc != 0 and not lab.sh(HOST, "ls /run/kill-installer 2>/dev/null || true"), run.output


def test_killed_in_the_middle(lab: LabHosts, clean: list[str], repository: str) -> None:
    """Each run goes on from what a killed one left."""
    for point in ("built", "cleared", "registered", "half"):
        cut_off(lab, repository, point)
    converge(lab, True, **wanted(repository, NEW))
    assert driver(lab) == (NEW, "Dual MIT/GPL")
    remove(lab)
    assert state(lab) == clean


@pytest.mark.parametrize("point", ["cleared", "registered", "half"])
def test_killed_in_the_middle_and_removed(lab: LabHosts, clean: list[str], repository: str, point: str) -> None:
    cut_off(lab, repository, point)
    remove(lab)
    assert state(lab) == clean


def test_killed_at_its_steps(lab: LabHosts, clean: list[str], repository: str) -> None:
    variables = wanted(repository, NEW)
    lab.put_killer(HOST)
    for step in (f"fetch driver archive: {variables['driver_runfile_src']}", f"run driver installer: {NEW} open",
                 f"install unit: {UNIT}"):
        for moment in ("before", "after"):
            lab.sh(HOST, f"printf '%s\\n' '{moment}' '{step}' > /run/kill-step")
            run = role(lab, ansible_python_interpreter="/opt/killer/python3", **variables)
            assert run.rc != 0 and run.of(HOST, ("failed",))[-1]["result"]["rc"] == 137, run.output
    lab.sh(HOST, "rm -r /run/kill-step /opt/killer")
    converge(lab, **variables)
    remove(lab)
    assert state(lab) == clean


def test_a_file_on_the_host(lab: LabHosts, clean: list[str], repository: str) -> None:
    variables = wanted(repository, NEW)
    path = f"/srv/{runfile_name(NEW)}"
    lab.sh(HOST, fetched(url_of(repository, NEW), path))
    # The version is that of its name.
    converge(lab, True, **{**variables, "driver_runfile_src": path, "driver_version": ""})
    assert driver(lab)[0] == NEW and lab.sh(HOST, f"stat -c %a {path}").strip() == "644"
    lab.sh(HOST, f"rm {path}")
    remove(lab)
    assert state(lab) == clean


def test_the_digest_beside_the_file_counts_by_https(lab: LabHosts, clean: list[str], repository: str) -> None:
    name = runfile_name(NEW)
    lab.sh(HOST, SECURE.format(name=name, url=url_of(repository, NEW)[:-len(name)]))
    variables = {**wanted(repository, NEW), "driver_runfile_checksum": "",
                 "driver_runfile_src": f"https://localhost:8443/{name}"}
    assert "CERTIFICATE_VERIFY_FAILED" in refused(lab, **variables)
    trusting = "{SSL_CERT_FILE: /srv/tls/cert.pem}"
    run = role(lab, environment=trusting, **variables)
    assert run.rc == 0 and driver(lab)[0] == NEW, run.output
    lab.sh(HOST, "systemctl stop tls; rm -r /srv/tls")
    remove(lab)
    assert state(lab) == clean


def test_what_the_installer_needs_comes_from_the_hosts_own_sources(lab: LabHosts, clean: list[str],
                                                                   repository: str) -> None:
    lab.sh(HOST, OWN_SOURCE)
    steps = converge(lab, True, **wanted(repository, NEW))
    assert steps[0] == "install packages: libc6-dev"
    remove(lab)
    lab.sh(HOST, "touch /usr/include/stdio.h; rm -r /srv/own /etc/apt/sources.list.d/own.list; apt-get -qq update")
    assert state(lab) == clean


def test_secure_boot(lab: LabHosts, clean: list[str], repository: str, tmp_path: Path) -> None:
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-days", "30", "-subj", "/CN=Site module key",
                    "-newkey", "rsa:2048", "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True,
                   capture_output=True)
    lab.sh(HOST, "ln -s /usr/lib/gpulab/mokutil /usr/bin/mokutil")
    lab("fault", HOST, "secure-boot", "on")
    assert "module_signing" in refused(lab, **wanted(repository, NEW))
    variables = wanted(repository, NEW, driver_signing_key=(tmp_path / "key.pem").read_text(),
                       driver_signing_certificate=(tmp_path / "cert.pem").read_text(), driver_signing_password="once")
    first = role(lab, **variables)
    assert first.rc == 0 and first.result(HOST, "nvidia_driver")["mok"] == {"enrolled": False, "pending": True}
    assert lab.sh(HOST, "modinfo -F signer nvidia").strip() == "Site module key"
    lab.sh(HOST, "/usr/lib/gpulab/mokmanager once")
    converge(lab, True, **variables)
    assert driver(lab)[0] == NEW
    lab("fault", HOST, "secure-boot", "off")
    lab.sh(HOST, "rm /usr/bin/mokutil")
    remove(lab)
    assert state(lab) == clean


def test_a_driver_of_somebody_else_is_kept_and_never_changed(lab: LabHosts, clean: list[str], repository: str) -> None:
    variables = wanted(repository, NEW)
    lab.sh(HOST, fetched(url_of(repository, NEW), "/srv/a.run"))
    lab.sh(HOST, "sh /srv/a.run --silent --dkms --kernel-module-type=open --skip-module-load && modprobe nvidia")
    theirs = state(lab)
    adopted = role(lab, driver_state="adopted", driver_version=NEW)
    assert adopted.rc == 0 and adopted.changed(HOST) == [], adopted.output
    steps = converge(lab, True, **variables)
    assert not any("driver installer" in step or "driver archive" in step for step in steps)
    for others in ({**wanted(repository, OLD)}, {**variables, "driver_kernel_module_type": "proprietary"},
                   {"driver_source": "cuda_repository", "driver_version": NEW, "driver_disruption": "idle"}):
        assert "nvidia-uninstall" in refused(lab, **others)
    remove(lab)
    now = lab.sh(HOST, "cat /proc/driver/nvidia/version; nvidia-installer --sanity --silent")
    assert NEW in now
    assert set(theirs) - set(state(lab)) == set()
    lab.sh(HOST, "rmmod nvidia_uvm nvidia_modeset nvidia; nvidia-uninstall --silent")
    lab.sh(HOST, "rm -r /srv/a.run /usr/src/nvidia-*")
    assert state(lab) == clean

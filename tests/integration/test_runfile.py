# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver from .run files: installed, kept, switched, replaced by packages, refused, interrupted, adopted,
removed."""

from __future__ import annotations

import hashlib
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from lab.packages import RUNFILE_PATH
from lab.packages.runfile import runfile_name
from tests.integration.conftest import own_lab
from tests.integration.driver import DriverHost, Refused
from tests.integration.series import Done, Play

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
timeout 60 python3 -c "
import socket, time
while socket.socket().connect_ex(('127.0.0.1', 8443)):
    time.sleep(0.1)"
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
# What nvidia-smi reports, the licence of the module on the disk, and what DKMS has.
DRIVER = "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u; modinfo -F license nvidia"
DKMS = "ls /usr/src; dkms status"
LICENCES = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}
# A process that has a GPU open.
HOLD = """setsid sh -c 'exec 3</dev/nvidia0; exec sleep 1000' >/dev/null 2>&1 </dev/null &
timeout 60 sh -c "until grep -qsx sleep /proc/$!/comm; do sleep 0.1; done"
"""


@dataclass(frozen=True)
class Installed:
    """How the new version was installed on a fresh host. The state of the host is saved under this name and has these
    lines."""

    steps: list[str]
    verify: Done
    lines: list[str]


@pytest.fixture(scope="module")
def host() -> Iterator[DriverHost]:
    """A separate lab with one host with two L40S, whose GPUs need no fabric manager."""
    with own_lab("runfile", "gpu-f1=l40s:2") as lab:
        yield DriverHost(lab, "gpu-f1", MORE)


@pytest.fixture(scope="module")
def clean(host: DriverHost) -> list[str]:
    """The state of a fresh host."""
    return host.fresh_state()


@pytest.fixture(scope="module")
def repository(host: DriverHost) -> str:
    """The URL of the repositories of the lab, with a trailing slash."""
    address = re.search(r'driver_repository_url: "(http://[^/]+/)', host.lab.hosts[0].read_text())
    assert address
    return address.group(1)


@pytest.fixture(scope="module")
def installed(host: DriverHost, clean: list[str], repository: str) -> Installed:
    """The state C(installed) of the host, which has the new version; check mode named the steps."""
    host.start()
    variables = wanted(repository, NEW)
    steps = host.steps(host.role("--check", **variables))
    assert host.state() == clean
    run, verify = host.run(Play(variables), Play(variables, tasks="verify"))
    assert converged(host, run) == steps
    host.save("installed")
    return Installed(steps, verify, same_driver(host.state()))


def url_of(repository: str, version: str) -> str:
    return f"{repository}{RUNFILE_PATH}{version}/{runfile_name(version)}"


def fetched(url: str, path: str) -> str:
    """The command that downloads a file to a path on the host."""
    return f"python3 -c \"import urllib.request as u; u.urlretrieve('{url}', '{path}')\""


@lru_cache
def digest(url: str) -> str:
    """The expected digest of a file."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return f"sha256:{hashlib.sha256(answer.read()).hexdigest()}"


def wanted(repository: str, version: str, **others: Any) -> dict[str, Any]:
    """The variables for a version from the server of the lab."""
    url = url_of(repository, version)
    return {"driver_source": "runfile", "driver_version": version, "driver_runfile_src": url,
            "driver_runfile_checksum": digest(url), **others}


def converged(host: DriverHost, run: Done) -> list[str]:
    """The steps of a run that succeeded and left nothing to do."""
    steps = host.steps(run)
    result = run.result(host.name, "nvidia_driver")
    assert result["pending"] == [] and result.get("reasons", []) == [], result
    return steps


def removal(host: DriverHost, after: str = "") -> Play:
    """A removal, and the state of the host after it."""
    return Play(tasks="remove", then=f"{after}\n{host.state_script}")


def gone(host: DriverHost, run: Done, clean: list[str]) -> None:
    """Checks that the removal has left nothing."""
    converged(host, run)
    assert run.said.splitlines() == clean


def same_driver(state: list[str]) -> list[str]:
    """The state without the files that Python can write at any time beside the pynvml of the driver, and which are
    removed with the driver."""
    return [line for line in state if "gpuops/python/__pycache__" not in line]


def is_driver(run: Done, version: str, kind: str = "open") -> bool:
    """Whether the output of DRIVER shows this version and kind."""
    return run.said.splitlines()[:2] == [version, LICENCES[kind]]


def test_check_names_the_steps_that_the_run_takes(host: DriverHost, installed: Installed, repository: str) -> None:
    host.start("installed")
    assert installed.steps[:2] == [f"fetch driver archive: {url_of(repository, NEW)}",
                                   f"run driver installer: {NEW} open"]
    assert host.sh(DRIVER).splitlines() == [NEW, LICENCES["open"]]
    assert host.sh("nvidia-installer --sanity --silent && dkms status").count(f"{NEW}, ") == 1
    assert host.sh("systemctl is-enabled nvidia-persistenced; systemctl is-active nvidia-persistenced"
                   ).split() == ["enabled", "active"]
    assert not host.sh("ls -d /var/lib/gpuops/runfile 2>/dev/null || true")
    assert installed.verify.rc == 0, installed.verify.output
    host.left("installed")


def test_a_second_run_needs_neither_network_nor_installer(host: DriverHost, installed: Installed,
                                                          repository: str) -> None:
    host.start("installed")
    variables = wanted(repository, NEW)
    marks = "stat -c '%Y %i' /var/log/nvidia-*.log /var/lib/nvidia/log; systemctl show -p MainPID nvidia-persistenced"
    before = host.sh(marks)
    host.sh("mv /usr/bin/nvidia-installer /srv/; ln -s /bin/false /usr/bin/nvidia-installer")
    with host.fault("down"):
        # Whoever lets auto choose keeps what is there.
        for again in host.run(*[Play({**variables, **others}) for others in (
                {}, {"driver_source": "auto"}, {"driver_source": "auto", "driver_version": ""})]):
            assert again.rc == 0 and again.changed(host.name) == [], again.output
    assert host.sh(marks) == before
    host.sh("mv /srv/nvidia-installer /usr/bin/nvidia-installer")
    host.left("installed")


def test_another_version_another_flavour_and_an_old_branch(host: DriverHost, installed: Installed,
                                                           repository: str) -> None:
    host.start("installed")
    proprietary = wanted(repository, OLD, driver_kernel_module_type="proprietary")
    # The installer of the oldest knows neither --kernel-module-type nor --skip-module-load.
    oldest = Play(wanted(repository, OLDEST), then=DRIVER)
    waits, version, flavour, old, again = host.run(
        Play(wanted(repository, OLD, driver_disruption="never"), then=DRIVER),
        Play(wanted(repository, OLD), then=f"{DRIVER}; {DKMS}"), Play(proprietary, then=DRIVER), oldest, oldest)
    # Another version waits for leave to unload the modules.
    assert [step.split(": ")[0] for step in host.steps(waits)] == ["fetch driver archive"]
    assert waits.result(host.name, "nvidia_driver")["pending"][0]["id"].startswith("unload modules: ")
    assert waits.said.splitlines()[0] == NEW
    steps = converged(host, version)
    assert steps[0].startswith("unload modules: ") and f"run driver installer: {OLD} open" in steps
    assert is_driver(version, OLD) and NEW not in version.said
    assert f"run driver installer: {OLD} proprietary" in converged(host, flavour)
    assert is_driver(flavour, OLD, "proprietary")
    assert converged(host, old) and is_driver(old, OLDEST, "proprietary"), "as the vendor's installer below 560"
    host.untouched(again)


def test_what_is_lost_comes_back(host: DriverHost, installed: Installed, repository: str) -> None:
    host.start("installed")
    play = Play(wanted(repository, NEW))
    program, modules, unit, again = host.run(
        replace(play, first="rm /usr/bin/nvidia-smi"), replace(play, first=f"dkms remove nvidia/{NEW} --all"),
        replace(play, first=f"rm {UNIT}", then=DRIVER), play)
    assert f"run driver installer: {NEW} open" in converged(host, program)
    steps = converged(host, modules)
    assert any(step.startswith(f"add kernel modules: {NEW} open for kernel ") for step in steps)
    assert not any(step.startswith(("unload", "run driver installer")) for step in steps)
    assert f"install unit: {UNIT}" in converged(host, unit)
    assert is_driver(unit, NEW)
    host.untouched(again)


def test_packages_and_a_file_give_way_to_each_other(host: DriverHost, clean: list[str], installed: Installed,
                                                    repository: str) -> None:
    host.start("installed")
    packages = {"driver_source": "cuda_repository", "driver_version": NEW}
    to_packages = Play(packages, then=f"{DRIVER}; ls /usr/bin/nvidia-uninstall /var/lib/nvidia {UNIT} 2>/dev/null; :")
    to_file = Play(wanted(repository, NEW), then=f"{DRIVER}; dpkg-query -W '*nvidia*' 'libcuda*' 2>/dev/null; :")
    there, still_there, back, still_back, old, old_file, removed = host.run(
        to_packages, to_packages, to_file, to_file, Play({**packages, "driver_version": OLD}, then=DRIVER),
        Play(wanted(repository, OLD)), removal(host))
    steps = converged(host, there)
    assert steps.index(f"run driver uninstaller: {NEW}") > 0 and f"remove unit: {UNIT}" in steps
    assert there.said.splitlines() == [NEW, LICENCES["open"]]
    host.untouched(still_there)
    assert any(step.startswith("purge packages: ") for step in converged(host, back))
    assert back.said.splitlines() == [NEW, LICENCES["open"]]
    host.untouched(still_back)
    assert converged(host, old) and is_driver(old, OLD)
    assert converged(host, old_file)
    gone(host, removed, clean)


def test_a_reboot_loads_what_was_held(host: DriverHost, clean: list[str], installed: Installed,
                                      repository: str) -> None:
    host.start("installed")
    run, again, removed = host.run(
        Play(wanted(repository, OLD, driver_disruption="reboot"), first=HOLD, then=DRIVER),
        Play(wanted(repository, OLD)), removal(host))
    assert run.rc == 0 and "Reboot the host" in " ".join(run.changed(host.name)), run.output
    assert is_driver(run, OLD)
    host.untouched(again)
    gone(host, removed, clean)


def test_a_build_that_fails_leaves_the_former_driver_installed(host: DriverHost, clean: list[str],
                                                               installed: Installed, repository: str) -> None:
    host.start("installed")
    fault = "/usr/lib/gpulab/fault build-fails"
    run, again, removed = host.run(
        Play(wanted(repository, OLD), first=f"{fault} on", then=f"{fault} off; {DRIVER}"),
        Play(wanted(repository, NEW)), removal(host))
    error = host.refused(run)
    assert "/var/log/nvidia-installer.log" in error and "Building kernel modules" in error
    assert f"The former driver {NEW} is restored" in error and is_driver(run, NEW)
    host.untouched(again)
    gone(host, removed, clean)


# What needs a host: the other wrong options are refused by what tests/unit/driver/test_runfile.py runs.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "wrong digest": ({"driver_runfile_checksum": f"sha256:{'0' * 64}"}, "0" * 64),
    "no digest": ({"driver_runfile_checksum": ""}, "runfile.checksum"),
    "no version": ({"driver_version": "", "driver_runfile_src": ""}, "Set version"),
    "not there": ({"driver_runfile_src": "http://127.0.0.1:9/none.run"}, "cannot be fetched"),
    "no such file": ({"driver_runfile_src": "/srv/none.run"}, "no file /srv/none.run"),
    "a password": ({"driver_runfile_src": "http://me:secret@example.com/a.run"}, "must not contain a user or password"),
    "no modules for it": ({"driver_version": "470.256.02", "driver_kernel_module_type": "open",
                           "driver_runfile_src": ""}, "470"),
}
# Hosts on which it is refused: what makes them so and what makes it good again, and what is said.
UNFIT = {
    "no room": ("mkdir /var/lib/gpuops && mount -t tmpfs -o size=1m tmpfs /var/lib/gpuops",
                "umount /var/lib/gpuops && rmdir /var/lib/gpuops", "MiB left"),
    "packages of others": ("mkdir -p /usr/lib/nvidia && touch /usr/lib/nvidia/alternate-install-present",
                           "rm -r /usr/lib/nvidia", "alternate-install-present"),
}
SAID = {**{case: said for case, (_variables, said) in BAD.items()},
        **{case: said for case, (_first, _then, said) in UNFIT.items()}, "no network": "503"}


@pytest.fixture(scope="module")
def refused(host: DriverHost, clean: list[str], repository: str) -> Refused:
    """All refused cases, on one fresh host."""
    host.start()
    variables = wanted(repository, NEW)
    runs = host.run_each({
        **{case: Play({**variables, **own}) for case, (own, _said) in BAD.items()},
        **{case: Play(variables, first=first, then=then) for case, (first, then, _said) in UNFIT.items()}})
    with host.fault("down"):
        runs.update(host.run_each({"no network": Play(variables)}))
    return Refused(runs, clean, host.state())


@pytest.mark.parametrize("case", SAID)
def test_one_clear_error(host: DriverHost, refused: Refused, case: str) -> None:
    error = host.refused(refused.runs[case])
    assert SAID[case] in error and "secret" not in error


def test_what_is_refused_changes_nothing(refused: Refused) -> None:
    assert refused.after == refused.before


def cut_off(repository: str, point: str) -> Play:
    """A run that is killed while the installer is working."""
    return Play(wanted(repository, NEW), first=f"echo {point} > /run/kill-installer",
                then="ls /run/kill-installer 2>/dev/null; :")


def was_cut_off(run: Done) -> None:
    assert run.rc != 0 and run.said == "", run.output


def test_killed_in_the_middle(host: DriverHost, clean: list[str], repository: str) -> None:
    """Each run continues from the state that a killed run has left."""
    host.start()
    play = Play(wanted(repository, NEW))
    *cut, run, again, removed = host.run(
        *[cut_off(repository, point) for point in ("built", "cleared", "registered", "half")],
        replace(play, then=DRIVER), play, removal(host))
    for each in cut:
        was_cut_off(each)
    assert converged(host, run) and is_driver(run, NEW)
    host.untouched(again)
    gone(host, removed, clean)


def test_killed_in_the_middle_and_removed(host: DriverHost, clean: list[str], repository: str) -> None:
    host.start()
    points = ("cleared", "registered", "half")
    runs = host.run(*[play for point in points for play in (cut_off(repository, point), removal(host))])
    for point, cut, removed in zip(points, runs[::2], runs[1::2], strict=True):
        was_cut_off(cut)
        converged(host, removed)
        assert removed.said.splitlines() == clean, point


def test_killed_at_its_steps(host: DriverHost, clean: list[str], repository: str) -> None:
    host.start()
    variables = wanted(repository, NEW)
    host.lab.put_killer(host.name)
    cuts = [Play({"ansible_python_interpreter": "/opt/killer/python3", **variables},
                 first=f"printf '%s\\n' '{moment}' '{step}' > /run/kill-step")
            for step in (f"fetch driver archive: {variables['driver_runfile_src']}",
                         f"run driver installer: {NEW} open", f"install unit: {UNIT}")
            for moment in ("before", "after")]
    *cut, run, removed = host.run(*cuts, Play(variables, first="rm -r /run/kill-step /opt/killer"), removal(host))
    for each in cut:
        assert each.rc != 0 and each.of(host.name, ("failed",))[-1]["result"]["rc"] == 137, each.output
    assert converged(host, run)
    gone(host, removed, clean)


def test_a_file_on_the_host(host: DriverHost, installed: Installed, repository: str) -> None:
    host.start()
    path = f"/srv/{runfile_name(NEW)}"
    # The version is that of its name.
    play = Play({**wanted(repository, NEW), "driver_runfile_src": path, "driver_version": ""})
    run, again = host.run(replace(play, first=fetched(url_of(repository, NEW), path), then=f"stat -c %a {path}"),
                          replace(play, then=host.state_script))
    assert converged(host, run) and run.said.strip() == "644"
    host.untouched(again)
    assert same_driver(again.said.splitlines()) == installed.lines


def test_the_digest_beside_the_file_counts_by_https(host: DriverHost, installed: Installed, repository: str) -> None:
    host.start()
    name = runfile_name(NEW)
    host.sh(SECURE.format(name=name, url=url_of(repository, NEW)[:-len(name)]))
    play = Play({**wanted(repository, NEW), "driver_runfile_checksum": "",
                 "driver_runfile_src": f"https://localhost:8443/{name}"})
    strange, run = host.run(play, replace(play, environment={"SSL_CERT_FILE": "/srv/tls/cert.pem"},
                                          then=f"systemctl stop tls; {host.state_script}"))
    assert "CERTIFICATE_VERIFY_FAILED" in host.refused(strange)
    assert converged(host, run)
    assert same_driver(run.said.splitlines()) == installed.lines


def test_what_the_installer_needs_comes_from_the_hosts_own_sources(host: DriverHost, clean: list[str],
                                                                   repository: str) -> None:
    host.start()
    play = Play(wanted(repository, NEW))
    run, again, removed = host.run(
        replace(play, first=OWN_SOURCE), play,
        removal(host, "touch /usr/include/stdio.h; rm -r /srv/own /etc/apt/sources.list.d/own.list; "
                      "apt-get -qq update"))
    assert converged(host, run)[0] == "install packages: libc6-dev"
    host.untouched(again)
    gone(host, removed, clean)


def test_secure_boot(host: DriverHost, clean: list[str], repository: str, tmp_path: Path) -> None:
    host.start()
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-days", "30", "-subj", "/CN=Site module key",
                    "-newkey", "rsa:2048", "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True,
                   capture_output=True)
    play = Play(wanted(repository, NEW, driver_signing_key=(tmp_path / "key.pem").read_text(),
                       driver_signing_certificate=(tmp_path / "cert.pem").read_text(), driver_signing_password="once"))
    unsigned, first, enrolled, again, removed = host.run(
        Play(wanted(repository, NEW), first="ln -s /usr/lib/gpulab/mokutil /usr/bin/mokutil; "
                                            "/usr/lib/gpulab/fault secure-boot on"),
        replace(play, then="modinfo -F signer nvidia"),
        replace(play, first="/usr/lib/gpulab/mokmanager once", then=DRIVER), play,
        removal(host, "/usr/lib/gpulab/fault secure-boot off; rm /usr/bin/mokutil"))
    assert "module_signing" in host.refused(unsigned)
    assert host.steps(first)
    assert first.result(host.name, "nvidia_driver")["mok"] == {"enrolled": False, "pending": True}
    assert first.said.strip() == "Site module key"
    assert converged(host, enrolled) and enrolled.said.splitlines()[0] == NEW
    host.untouched(again)
    gone(host, removed, clean)


def test_a_driver_of_somebody_else_is_kept_and_never_changed(host: DriverHost, clean: list[str],
                                                             repository: str) -> None:
    host.start()
    host.sh(fetched(url_of(repository, NEW), "/srv/a.run"))
    host.sh("sh /srv/a.run --silent --dkms --kernel-module-type=open --skip-module-load && modprobe nvidia")
    theirs = host.state()
    ours = wanted(repository, NEW)
    others = [{**wanted(repository, OLD)}, {**ours, "driver_kernel_module_type": "proprietary"},
              {"driver_source": "cuda_repository", "driver_version": NEW}]
    adopted, run, again, *refused_runs, removed = host.run(
        Play({"driver_state": "adopted", "driver_version": NEW}), Play(ours), Play(ours), *map(Play, others),
        removal(host, "cat /proc/driver/nvidia/version; nvidia-installer --sanity --silent"))
    assert adopted.rc == 0 and adopted.changed(host.name) == [], adopted.output
    assert not any("driver installer" in step or "driver archive" in step for step in converged(host, run))
    host.untouched(again)
    for each in refused_runs:
        assert "nvidia-uninstall" in host.refused(each)
    assert host.steps(removed) and removed.result(host.name, "nvidia_driver")["pending"] == [], removed.output
    assert NEW in removed.said
    assert set(theirs) - set(removed.said.splitlines()) == set()
    host.sh("rmmod nvidia_uvm nvidia_modeset nvidia; nvidia-uninstall --silent")
    host.sh("rm -r /srv/a.run /usr/src/nvidia-*")
    assert host.state() == clean

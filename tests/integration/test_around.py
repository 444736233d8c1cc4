# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of the driver: NVSwitches, services, parameters, boot, Secure Boot, GPUDirect, the next kernel."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.driver import DriverHost
from tests.integration.series import Done, Play

NEW, OLD = "595.91.07", "580.126.20"
PASSWORD, TOKEN = "Enrol-me-42", "eyJhbGciOiJSUzI1NiJ9.a-licence-of-nobody"
MANAGER, PERSISTENCED, IMEX, DCGM, GRIDD = (
    f"nvidia-{name}.service" for name in ("fabricmanager", "persistenced", "imex", "dcgm", "gridd"))
SLEEPER = ("[Unit]\nDescription=stand-in\n[Service]\nExecStart=/bin/sleep infinity\n"
           "[Install]\nWantedBy=multi-user.target\n")
NEXT = "99.1.0-1-amd64"
KERNEL = """
root=/opt/kernels
mkdir -p $root/deb/DEBIAN $root/deb/lib/modules/@NEXT@
mkdir -p $root/deb/usr/src/headers/scripts $root/deb/usr/src/headers/include
ln -s /usr/src/headers $root/deb/lib/modules/@NEXT@/build
: > $root/deb/usr/src/headers/Makefile
cp /lib/modules/$(uname -r)/build/scripts/sign-file $root/deb/usr/src/headers/scripts/
cat > $root/deb/DEBIAN/control << END
Package: linux-headers-@NEXT@
Version: 99.1
Architecture: amd64
Maintainer: somebody <somebody@example.com>
Description: headers of a kernel
END
dpkg-deb --root-owner-group --build $root/deb $root/headers.deb > /dev/null
{ cat $root/deb/DEBIAN/control; echo Filename: ./headers.deb; echo Size: $(stat -c %s $root/headers.deb)
  echo SHA256: $(sha256sum $root/headers.deb | cut -d ' ' -f 1); } > $root/Packages
echo "deb [trusted=yes] file:$root ./" > /etc/apt/sources.list.d/kernels.list
apt-get -q update > /dev/null
mkdir -p /lib/modules/@NEXT@
touch /boot/vmlinuz-@NEXT@ /lib/modules/@NEXT@/modules.order /lib/modules/@NEXT@/modules.builtin
"""

# Kernel packages as in Debian and Ubuntu, installed, and newer ones in a repository on the host. The package other is
# upgraded in any case.
KERNELS = r"""
root=/opt/kernels
# make NAME VERSION [LINE...]: makes a package; LINEs are of its control file.
make() {
    name=$1 version=$2
    shift 2
    mkdir -p $root/$name-$version/DEBIAN
    { printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nDescription: a kernel\n' "$name" "$version"
      printf 'Maintainer: somebody <somebody@example.com>\n'
      for line in "$@"; do echo "$line"; done; } > $root/$name-$version/DEBIAN/control
    dpkg-deb --root-owner-group --build $root/$name-$version $root/$name-$version.deb > /dev/null
}
for version in 1 2; do
    make linux-image-9$version.1.0-1-amd64 $version
    make linux-headers-9$version.1.0-1-amd64 $version
    make linux-image-amd64 $version "Depends: linux-image-9$version.1.0-1-amd64"
    make linux-generic $version 'Source: linux-meta' "Depends: linux-image-amd64 (= $version)"
    make other $version
done
dpkg --install $root/linux-image-91*.deb $root/linux-image-amd64-1.deb $root/linux-generic-1.deb $root/other-1.deb
cd $root
for deb in *.deb; do
    dpkg-deb --field $deb
    echo "Filename: ./$deb"
    echo "Size: $(stat -c %s $deb)"
    echo "SHA256: $(sha256sum $deb | cut -d ' ' -f 1)"
    echo
done > Packages
echo "deb [trusted=yes] file:$root ./" > /etc/apt/sources.list.d/kernels.list
apt-get -q update
"""
UPGRADE = r"""apt-get -q -y dist-upgrade > /dev/null
dpkg-query -W -f '${Package}=${Version} ' 'linux-image-9*' linux-image-amd64 linux-generic other
apt-get -s install linux-headers-91.1.0-1-amd64 | grep -c '^Inst linux-headers-91'"""


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab with a host with NVSwitches, one without, and one with NVLink 5."""
    with own_lab("around", "gpu-e1=a100-80:8,gpu-e2=l40s:4,gpu-e3=b200:8") as hosts:
        yield hosts


@dataclass
class Around(DriverHost):
    """A host of this lab."""

    def state(self) -> list[str]:
        """The state without the kernel's own modules for RDMA, which stay loaded because others may use them."""
        return [line for line in super().state() if "/sys/module/ib_" not in line]

    def new(self) -> None:
        """Starts with the new driver loaded; installs it if no test has done so yet."""
        if "new" not in self.saved:
            self.start()
            self.install()
        self.start("new")

    def install(self) -> list[Done]:
        """Installs the new driver on a fresh host and saves the state C(new); returns the run and the result of a
        second one."""
        runs = self.run(Play({"driver_version": NEW}), Play({"driver_version": NEW}))
        self.steps(runs[0])
        self.save("new")
        return runs

    def one(self, level: str = "idle", **variables: object) -> Done:
        """Runs the role once."""
        return self.run(Play({"driver_disruption": level, **variables}))[0]

    def active(self, *units: str) -> list[str]:
        """The states of units according to systemd."""
        return self.sh(f"systemctl is-active {' '.join(units)}; true").split()

    def removed(self, clean: list[str]) -> None:
        """Removes everything, and checks that nothing is left."""
        self.steps(self.run(Play(tasks="remove"))[0])
        assert self.state() == clean
        assert self.sh("ls -A /var/lib/gpuops 2>/dev/null; true") == ""


@pytest.fixture(scope="module")
def switches(lab: LabHosts) -> Around:
    """The host with NVSwitches."""
    return Around(lab, "gpu-e1")


@pytest.fixture(scope="module")
def plain(lab: LabHosts) -> Around:
    """The host without NVSwitches."""
    return Around(lab, "gpu-e2")


@pytest.fixture(scope="module")
def clean_switches(switches: Around) -> list[str]:
    """Its initial state."""
    return switches.fresh_state()


@pytest.fixture(scope="module")
def clean_plain(plain: Around) -> list[str]:
    """Its initial state."""
    return plain.fresh_state()


def pending(run: user.Run, host: Around) -> list[str]:
    """The ids of the pending steps."""
    return [step["id"] for step in run.result(host.name, "nvidia_driver")["pending"]]


def test_nvswitches(switches: Around, clean_switches: list[str]) -> None:
    switches.start()
    preview = switches.role("--check", driver_version=NEW)
    assert switches.state() == clean_switches
    run, again = switches.install()
    assert switches.steps(preview) == switches.steps(run)
    assert switches.steps(run)[-2:] == [f"enable and start service: {unit}" for unit in (PERSISTENCED, MANAGER)]
    assert switches.sh("nv-fabricmanager --version").split()[-1] == NEW and switches.active(MANAGER) == ["active"]
    switches.untouched(again)


def test_services_stop_for_a_switch_and_come_back(switches: Around, clean_switches: list[str]) -> None:
    switches.new()
    switches.sh(f"printf '{SLEEPER}' > /run/systemd/system/{DCGM}; systemctl daemon-reload; systemctl start {DCGM}")
    before = switches.sh(f"systemctl show -p MainPID --value {DCGM}")
    run, again = switches.run(*[Play({"driver_version": OLD})] * 2)
    assert switches.steps(run)[0].startswith("unload modules: ")
    assert f"start service again: {DCGM}" in switches.steps(run)
    assert switches.active(PERSISTENCED, MANAGER, DCGM) == ["active"] * 3
    assert switches.sh(f"systemctl show -p MainPID --value {DCGM}") != before
    assert switches.sh("nv-fabricmanager --version").split()[-1] == OLD
    switches.untouched(again)


def test_a_stopped_manager_is_started(switches: Around, clean_switches: list[str]) -> None:
    switches.new()
    switches.sh(f"systemctl stop {MANAGER}")
    assert switches.steps(switches.one("never")) == [f"enable and start service: {MANAGER}"]
    assert switches.active(MANAGER) == ["active"]
    switches.left("new")


def test_settings_of_the_manager(switches: Around, clean_switches: list[str]) -> None:
    switches.new()
    path = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
    shown = f"cat {path}; systemctl show -p MainPID --value {MANAGER}"
    wish = {"driver_fabric_manager_settings": {"FABRIC_MODE": 1, "FM_STAY_RESIDENT_ON_FAILURES": True}}
    edit, restart = f"set options of the fabric manager: {path}", f"restart service: {MANAGER}"
    preview, waits, run, again, switch, without = switches.run(
        Play({**wish, "driver_disruption": "never"}, check=True, then=shown),
        Play({**wish, "driver_disruption": "never"}, then=shown), Play(wish, then=shown), Play(wish),
        Play({**wish, "driver_version": OLD}, then=shown), Play({"driver_version": OLD}, then=shown))
    original = preview.said.splitlines()[:-1]
    assert switches.steps(preview) == switches.steps(waits) == [edit]
    assert pending(preview, switches) == pending(waits, switches) == [restart]
    edited = [line.replace("FABRIC_MODE=0", "FABRIC_MODE=1") for line in original]
    assert waits.said.splitlines()[:-1] == [*edited, "FM_STAY_RESIDENT_ON_FAILURES=1"] and edited != original
    assert waits.said.splitlines()[-1] == preview.said.splitlines()[-1] != run.said.splitlines()[-1]
    assert switches.steps(run) == [restart]
    switches.untouched(again)
    assert switch.said.splitlines()[:-1] == [*edited, "FM_STAY_RESIDENT_ON_FAILURES=1"]
    assert switches.steps(without) == [edit, restart] and without.said.splitlines()[:-1] == original
    switches.removed(clean_switches)


def test_settings_with_which_the_manager_does_not_start(switches: Around, clean_switches: list[str]) -> None:
    """The former ones come back, also those that an earlier run has set, and also after a failed change of the
    driver."""
    switches.new()
    path, folder = "/usr/share/nvidia/nvswitch/fabricmanager.cfg", f"/etc/systemd/system/{MANAGER}.d"
    shown = f"systemctl is-active {MANAGER} {PERSISTENCED}; cat {path} /sys/module/nvidia/version"
    picky = (f"mkdir {folder}; printf '[Service]\\nExecStartPre=/bin/sh -c \"! grep -q FABRIC_MODE=9 {path}\"\\n' "
             f"> {folder}/picky.conf; systemctl daemon-reload")
    good = {"driver_fabric_manager_settings": {"LOG_LEVEL": 5}}
    bad = {"driver_fabric_manager_settings": {"LOG_LEVEL": 5, "FABRIC_MODE": 9}}
    first, fails, fails_too, again = switches.run(
        Play(good, first=picky, then=shown), Play(bad, then=shown), Play({**bad, "driver_version": OLD}, then=shown),
        Play(good))
    assert switches.steps(first) and first.said.split()[:2] == ["active", "active"] and "LOG_LEVEL=5" in first.said
    assert "The fabric manager had new settings (FABRIC_MODE=9). It runs with the former ones again." in (
        switches.refused(fails))
    error = switches.refused(fails_too)
    assert "new settings: FABRIC_MODE=9, LOG_LEVEL=5" in error and f"The former driver {NEW} is restored." in error
    assert fails.said == fails_too.said == first.said
    switches.untouched(again)
    switches.sh(f"rm -r {folder}; systemctl daemon-reload")
    switches.removed(clean_switches)


def test_parameters_are_in_force_at_once_and_after_a_boot(switches: Around, clean_switches: list[str]) -> None:
    switches.new()
    shown = "grep RmProfilingAdminOnly /proc/driver/nvidia/params"
    wish = {"driver_module_parameters": {"nvidia": {"NVreg_RestrictProfilingToAdminUsers": 0}}}
    waits, run, again, no_parameter, no_module = switches.run(
        Play({**wish, "driver_disruption": "never"}, then=shown), Play(wish, then=shown), Play(wish),
        Play({"driver_module_parameters": {"nvidia": {"NVreg_Nonsense": 1}}}),
        Play({"driver_module_parameters": {"zfs": {"a": 1}}}))
    assert (switches.steps(waits), waits.said.split()[-1]) == ([], "1")
    assert switches.steps(run)[:2] == [
        "unload modules: nvidia_uvm nvidia_modeset nvidia",
        "write module parameters: /etc/modprobe.d/zz-gpuops-nvidia.conf"]
    assert run.said.split()[-1] == "0"
    switches.untouched(again)
    assert "has no parameter NVreg_Nonsense" in switches.refused(no_parameter)
    assert "is not a module of the driver" in switches.refused(no_module)
    # What a boot does with the files that are on the host: modules, their nodes and parameters.
    switches.sh("rm /usr/lib/modules-load.d/nvidia.conf")
    switches.save("with parameters")
    switches.lab.reset(switches.name, switches.saved["with parameters"])
    switches.current = ""
    assert len(switches.sh("ls /dev/nvidia-uvm /dev/nvidia-modeset /dev/nvidia0").split()) == 3
    assert switches.sh(shown).split()[-1] == "0"
    switches.removed(clean_switches)


def test_gpudirect(switches: Around, clean_switches: list[str]) -> None:
    switches.new()
    wish = {"driver_gds": True, "driver_gdrcopy": True, "driver_peermem": True}
    shown = "lsmod; ls /dev/gdrdrv"
    refused, run, again, switch = switches.run(
        Play({**wish, "driver_kernel_module_type": "proprietary", "driver_version": OLD}),
        Play({**wish, "driver_version": NEW}, then=shown), Play({**wish, "driver_version": NEW}),
        Play({**wish, "driver_version": OLD}, then=shown))
    assert "GPUDirect Storage needs open kernel modules" in switches.refused(refused)
    loads = [name for name in switches.steps(run) if name.startswith("load module")]
    assert loads[-1] == "load module: nvidia-peermem"
    switches.untouched(again)
    assert sum(name.startswith("build module of GPUDirect: ") for name in switches.steps(switch)) == 2
    for said in (run.said, switch.said):
        assert all(name in said for name in ("nvidia_fs", "gdrdrv", "nvidia_peermem", "/dev/gdrdrv")), said
    switches.removed(clean_switches)


def test_no_switches_no_manager(plain: Around, clean_plain: list[str]) -> None:
    plain.new()
    before = plain.state()
    assert "nvidia-fabricmanager" not in "".join(before)
    assert "imex_nodes" in plain.refused(plain.one(driver_imex_nodes=["10.0.0.1"]))
    assert plain.state() == before
    plain.left("new")


def test_next_kernel(plain: Around, clean_plain: list[str]) -> None:
    """A kernel that somebody installs, whose headers are in a repository on the host."""
    plain.new()
    plain.sh(KERNEL.replace("@NEXT@", NEXT))
    unwanted, run, again = plain.run(
        Play({"driver_next_kernel": False}),
        Play({"driver_disruption": "never"}, then=f"modinfo -k {NEXT} -F version nvidia"), Play())
    plain.untouched(unwanted)
    assert [name for name in plain.steps(run) if not name.startswith("refresh")] == [
        f"install packages: linux-headers-{NEXT}", f"build modules for the next kernel: {NEW} for kernel {NEXT}"]
    assert run.said.strip() == NEW
    plain.untouched(again)
    plain.run(Play(tasks="remove"))
    plain.sh(f"""
        rm -rf /opt/kernels /etc/apt/sources.list.d/kernels.list /boot/vmlinuz-{NEXT} /lib/modules/{NEXT}
        rm -rf /var/lib/apt/lists/*kernels*""")
    plain.removed(clean_plain)


def test_upgrades_bring_no_kernel_while_kernels_are_held(plain: Around, clean_plain: list[str]) -> None:
    """Headers can be installed meanwhile."""
    plain.new()
    plain.sh(KERNELS)
    before = plain.state()
    wish = {"driver_hold_kernel": True, "driver_disruption": "never"}
    check, run, again, release = plain.run(Play(wish, check=True), Play(wish, then=UPGRADE), Play(wish),
                                           Play(then=plain.state_script))
    path = "/etc/apt/preferences.d/gpuops-kernel.pref"
    assert plain.steps(check) == plain.steps(run) == [f"hold kernels: {path}"]
    assert run.said.split() == ["linux-generic=1", "linux-image-91.1.0-1-amd64=1", "linux-image-amd64=1", "other=2",
                                "1"]
    plain.untouched(again)
    assert plain.steps(release) == [f"release kernels: {path}"]
    assert [line for line in release.said.splitlines() if line not in before and "other" not in line] == []
    assert "linux-image-92.1.0-1-amd64=2 linux-image-amd64=2" in plain.sh(UPGRADE)


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A signing key of a site, as variables of the role."""
    folder: Path = tmp_path_factory.mktemp("key")
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-days", "30", "-subj", "/CN=Site module key",
                    "-newkey", "rsa:2048", "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True,
                   capture_output=True)
    return {"driver_signing_key": (folder / "key.pem").read_text(), "driver_signing_password": PASSWORD,
            "driver_signing_certificate": (folder / "cert.pem").read_text()}


def discreet(run: user.Run, *secrets: str) -> None:
    """Checks that a run prints and returns no secret."""
    text = run.output + json.dumps(run.results)
    assert not any(secret in text for secret in secrets)


@dataclass
class Enrolment:
    """The runs on a host with Secure Boot: first and asked before somebody has enrolled the key, then after that. said:
    the output of the host after the first run: the signer of the modules, the mode of the key, the journal.
    """

    first: user.Run
    said: str
    asked: Done
    loads: Done
    last: Done


@pytest.fixture(scope="module")
def enrolled(plain: Around, clean_plain: list[str], signing: dict[str, object]) -> Enrolment:
    """The state C(enrolled) of the host: the old driver, signed with the key of the site, with Secure Boot."""
    plain.start()
    plain.sh("ln -s /usr/lib/gpulab/mokutil /usr/bin/mokutil; /usr/lib/gpulab/fault secure-boot on")
    wish = {"driver_version": OLD, **signing}
    first = plain.role("-vvv", **wish)
    said = plain.sh("modinfo -F signer nvidia; stat -c %a /var/lib/gpuops/mok/mok.key; "
                    "cat /var/lib/gpuops/journal/driver.json")
    enrol = f"/usr/lib/gpulab/mokmanager {PASSWORD}"
    asked, loads, last = plain.run(Play(wish, then=enrol), Play(wish), Play(wish))
    plain.save("enrolled")
    return Enrolment(first, said, asked, loads, last)


def test_secure_boot(plain: Around, enrolled: Enrolment, signing: dict[str, object]) -> None:
    first = enrolled.first.result(plain.name, "nvidia_driver")
    assert (first["mok"], first["reboot_required"]) == ({"enrolled": False, "pending": True}, True)
    assert pending(enrolled.first, plain)[:2] == [
        "enrol key at the next boot: /var/lib/gpuops/mok/mok.der", "load module: nvidia"]
    signer, mode, *journal = enrolled.said.splitlines()
    assert (signer, mode) == ("Site module key", "600")
    secret = str(signing["driver_signing_key"]).splitlines()[2]
    discreet(enrolled.first, secret, PASSWORD)
    assert journal and secret not in "".join(journal)
    assert plain.steps(enrolled.asked) == []  # asked for already
    assert "load module: nvidia" in plain.steps(enrolled.loads)
    assert plain.steps(enrolled.last) == []
    assert enrolled.last.result(plain.name, "nvidia_driver")["mok"] == {"enrolled": True, "pending": False}


def test_secure_boot_leaves_a_driver_that_runs(plain: Around, enrolled: Enrolment, clean_plain: list[str],
                                               signing: dict[str, object]) -> None:
    """Without the key in the firmware, another version would not load, so nothing is unloaded."""
    plain.start("enrolled")
    plain.sh("rm /var/lib/gpulab/mok/*.der; /usr/lib/gpulab/fault secure-boot on")
    run, = plain.run(Play({"driver_version": NEW, **signing}, then="cat /sys/module/nvidia/version"))
    assert plain.steps(run) == ["request enrolment of key: /var/lib/gpuops/mok/mok.der"]
    assert run.said.strip() == OLD
    assert "type module_signing.password" in run.result(plain.name, "nvidia_driver")["reasons"][-1]
    plain.sh("/usr/lib/gpulab/fault secure-boot off; rm /usr/bin/mokutil")
    plain.removed(clean_plain)


def test_licence(plain: Around, clean_plain: list[str]) -> None:
    plain.new()
    wish = {"driver_licence_token": TOKEN, "driver_licence_feature_type": 1,
            "driver_licence_settings": {"LogLevel": "7"}}
    assert "not a vGPU guest driver" in plain.refused(plain.one(**wish))
    plain.sh(f"printf '{SLEEPER}' > /etc/systemd/system/{GRIDD}; systemctl daemon-reload; mkdir -p /etc/nvidia; "
             "printf '# Ours\\nServerAddress=a\\nFeatureType=0\\n' > /etc/nvidia/gridd.conf")
    before = plain.state()
    run = plain.role("-vvv", **wish)
    plain.steps(run)
    discreet(run, TOKEN)
    assert plain.sh("cat /etc/nvidia/gridd.conf") == "# Ours\nServerAddress=a\nFeatureType=1\nLogLevel=7\n"
    path = "/etc/nvidia/ClientConfigToken/client_configuration_token_gpuops.tok"
    assert plain.sh(f"stat -c %a {path}; cat {path}").split() == ["744", TOKEN]
    assert TOKEN not in plain.sh("cat /var/lib/gpuops/journal/driver.json")
    again, changed, _removal = plain.run(Play(wish), Play({**wish, "driver_licence_feature_type": 2}),
                                         Play(tasks="remove"))
    plain.untouched(again)
    assert plain.steps(changed) == ["write licence settings: /etc/nvidia/gridd.conf", f"restart service: {GRIDD}"]
    kept = [line for line in before if "gridd" in line]
    assert [line for line in plain.state() if "gridd" in line] == kept
    plain.sh(f"rm -rf /etc/systemd/system/{GRIDD} /etc/nvidia; systemctl daemon-reload")
    assert plain.state() == clean_plain


def test_nvlink5(lab: LabHosts) -> None:
    host = Around(lab, "gpu-e3")
    clean = host.fresh_state()
    file = "/etc/nvidia-imex/nodes_config.cfg"
    installed, two, one, none = host.run(
        Play({"driver_version": NEW}, then=f"systemctl is-active {MANAGER} {IMEX}; dpkg-query -W nvlsm"),
        Play({"driver_imex_nodes": ["10.0.0.1", "10.0.0.2"]}, then=f"cat {file}"),
        Play({"driver_imex_nodes": ["10.0.0.1"]}), Play(then=f"systemctl is-active {PERSISTENCED} {MANAGER}"))
    host.steps(installed)
    assert installed.said.split()[:3] == ["active", "inactive", "nvlsm"]
    nodes = f"write IMEX nodes: {file}"
    assert host.steps(two) == [nodes, f"enable and start service: {IMEX}"]
    assert two.said.split() == ["10.0.0.1", "10.0.0.2"]
    assert host.steps(one) == [nodes, f"restart service: {IMEX}"]
    assert host.steps(none) == [f"restore file: {file}", f"disable and stop service: {IMEX}"]
    assert none.said.split() == ["active", "active"]
    host.removed(clean)

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands around the driver: NVSwitches, services, parameters, boot, Secure Boot, GPUDirect, the next kernel."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab

SWITCHES, PLAIN, NVLINK5 = "gpu-e1", "gpu-e2", "gpu-e3"
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


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A host with NVSwitches, one without, one with NVLink 5."""
    with own_lab("around", f"{SWITCHES}=a100-80:8,{PLAIN}=l40s:4,{NVLINK5}=b200:8") as hosts:
        yield hosts


def role(lab: LabHosts, host: str, tasks: str = "host", *words: str, level: str = "idle", rc: int = 0,
         **variables: object) -> user.Run:
    """Runs a task file of the driver's role on one host."""
    run = user.playbook(user.role("driver", tasks), lab.hosts, "--limit", host, *words,
                        driver_disruption=level, **variables)
    assert run.rc == rc, run.output
    return run


def steps(run: user.Run, host: str) -> list[str]:
    """The ids of the steps that a run took."""
    return [step["id"] for step in run.result(host, "nvidia_driver")["plan"]]


def pending(run: user.Run, host: str) -> list[str]:
    """The ids of the steps that wait."""
    return [step["id"] for step in run.result(host, "nvidia_driver")["pending"]]


def active(lab: LabHosts, host: str, *units: str) -> list[str]:
    """What systemd says of units."""
    return lab.sh(host, f"systemctl is-active {' '.join(units)}; true").split()


def manager_version(lab: LabHosts, host: str) -> str:
    """Of the fabric manager that is installed."""
    return lab.sh(host, "nv-fabricmanager --version").split()[-1]


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> dict[str, list[str]]:
    """The snapshots of fresh hosts."""
    return {host: lab.snapshot(host) for host in (SWITCHES, PLAIN, NVLINK5)}


def snapshot(lab: LabHosts, host: str) -> list[str]:
    """Of a host; the kernel's own modules for RDMA, which others may have come to use, stay loaded."""
    return [line for line in lab.snapshot(host) if "/sys/module/ib_" not in line]


def removed(lab: LabHosts, host: str, clean: dict[str, list[str]]) -> None:
    """Takes all away again, and nothing is left of it."""
    role(lab, host, "remove")
    assert snapshot(lab, host) == clean[host]
    assert lab.sh(host, "ls -A /var/lib/gpuops 2>/dev/null; true") == ""


def test_nvswitches(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    preview = role(lab, SWITCHES, "host", "--check", driver_version=NEW)
    run = role(lab, SWITCHES, driver_version=NEW)
    assert steps(preview, SWITCHES) == steps(run, SWITCHES)
    assert steps(run, SWITCHES)[-2:] == [f"enable and start service: {unit}" for unit in (PERSISTENCED, MANAGER)]
    assert (manager_version(lab, SWITCHES), active(lab, SWITCHES, MANAGER)) == (NEW, ["active"])
    assert steps(role(lab, SWITCHES, driver_version=NEW), SWITCHES) == []


def test_services_stop_for_a_switch_and_come_back(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    unit = f"/run/systemd/system/{DCGM}"
    lab.sh(SWITCHES, f"printf '{SLEEPER}' > {unit}; systemctl daemon-reload; systemctl start {DCGM}")
    before = lab.sh(SWITCHES, f"systemctl show -p MainPID --value {DCGM}")
    run = role(lab, SWITCHES, driver_version=OLD)
    assert steps(run, SWITCHES)[0].startswith("unload modules: ")
    assert f"start service again: {DCGM}" in steps(run, SWITCHES)
    assert active(lab, SWITCHES, PERSISTENCED, MANAGER, DCGM) == ["active"] * 3
    assert lab.sh(SWITCHES, f"systemctl show -p MainPID --value {DCGM}") != before
    assert manager_version(lab, SWITCHES) == OLD
    assert steps(role(lab, SWITCHES, driver_version=OLD), SWITCHES) == []
    lab.sh(SWITCHES, f"systemctl stop {DCGM}; rm {unit}; systemctl daemon-reload")


def test_a_stopped_manager_is_started(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    lab.sh(SWITCHES, f"systemctl stop {MANAGER}")
    assert steps(role(lab, SWITCHES, level="never"), SWITCHES) == [f"enable and start service: {MANAGER}"]


def test_parameters(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    def shown() -> str:
        return lab.sh(SWITCHES, "grep RmProfilingAdminOnly /proc/driver/nvidia/params").split()[-1]

    wish = {"driver_module_parameters": {"nvidia": {"NVreg_RestrictProfilingToAdminUsers": 0}}}
    waits = role(lab, SWITCHES, level="never", **wish)
    assert (steps(waits, SWITCHES), shown()) == ([], "1")
    run = role(lab, SWITCHES, **wish)
    assert steps(run, SWITCHES)[:2] == [
        "unload modules: nvidia_uvm nvidia_modeset nvidia",
        "write module parameters: /etc/modprobe.d/zz-gpuops-nvidia.conf"]
    assert shown() == "0"
    assert steps(role(lab, SWITCHES, **wish), SWITCHES) == []
    bad = role(lab, SWITCHES, rc=2, driver_module_parameters={"nvidia": {"NVreg_Nonsense": 1}})
    assert "has no parameter NVreg_Nonsense" in bad.errors()[0]
    bad = role(lab, SWITCHES, rc=2, driver_module_parameters={"zfs": {"a": 1}})
    assert "is no module of the driver" in bad.errors()[0]


def test_boot(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    """What a boot does, with the files that are on the host: modules, their nodes and parameters."""
    lab.sh(SWITCHES, f"systemctl stop {MANAGER} {PERSISTENCED}; rmmod nvidia_uvm nvidia_modeset nvidia")
    assert lab.sh(SWITCHES, "ls /dev/nvidia-uvm 2>/dev/null; true") == ""
    lab.sh(SWITCHES, "rm /usr/lib/modules-load.d/nvidia.conf; /usr/lib/gpulab/autoload")
    assert lab.sh(SWITCHES, "ls /dev/nvidia-uvm /dev/nvidia-modeset /dev/nvidia0").split()
    assert lab.sh(SWITCHES, "grep RmProfilingAdminOnly /proc/driver/nvidia/params").split()[-1] == "0"


def test_gpudirect(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    removed(lab, SWITCHES, clean)
    wish = {"driver_gds": True, "driver_gdrcopy": True, "driver_peermem": True}
    refused = role(lab, SWITCHES, rc=2, driver_kernel_module_type="proprietary", driver_version=OLD, **wish)
    assert "GPUDirect Storage needs open kernel modules" in refused.errors()[0]
    run = role(lab, SWITCHES, driver_version=OLD, **wish)
    loads = [name for name in steps(run, SWITCHES) if name.startswith("load module")]
    assert loads[-1] == "load module: nvidia-peermem"
    loaded = lab.sh(SWITCHES, "lsmod; ls /dev/gdrdrv")
    assert all(name in loaded for name in ("nvidia_fs", "gdrdrv", "nvidia_peermem", "/dev/gdrdrv"))
    assert steps(role(lab, SWITCHES, driver_version=OLD, **wish), SWITCHES) == []
    run = role(lab, SWITCHES, driver_version=NEW, **wish)
    assert sum(name.startswith("build module of GPUDirect: ") for name in steps(run, SWITCHES)) == 2
    assert "nvidia_peermem" in lab.sh(SWITCHES, "lsmod")
    removed(lab, SWITCHES, clean)


def test_no_switches_no_manager(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    role(lab, PLAIN, driver_version=NEW)
    assert "nvidia-fabricmanager" not in "".join(lab.snapshot(PLAIN))
    refused = role(lab, PLAIN, rc=2, driver_imex_nodes=["10.0.0.1"])
    assert "imex_nodes" in refused.errors()[0]


def test_next_kernel(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    """A kernel that somebody installs, whose headers are in a repository of the host's own."""
    lab.sh(PLAIN, KERNEL.replace("@NEXT@", NEXT))
    assert steps(role(lab, PLAIN, driver_next_kernel=False), PLAIN) == []
    run = role(lab, PLAIN, level="never")
    assert [name for name in steps(run, PLAIN) if not name.startswith("refresh")] == [
        f"install packages: linux-headers-{NEXT}", f"build modules for the next kernel: {NEW} for kernel {NEXT}"]
    assert lab.sh(PLAIN, f"modinfo -k {NEXT} -F version nvidia").strip() == NEW
    assert steps(role(lab, PLAIN), PLAIN) == []
    role(lab, PLAIN, "remove")
    lab.sh(PLAIN, f"""
        rm -rf /opt/kernels /etc/apt/sources.list.d/kernels.list /boot/vmlinuz-{NEXT} /lib/modules/{NEXT}
        rm -rf /var/lib/apt/lists/*kernels*""")
    removed(lab, PLAIN, clean)


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A site's key for modules, as variables of the role."""
    folder: Path = tmp_path_factory.mktemp("key")
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-days", "30", "-subj", "/CN=Site module key",
                    "-newkey", "rsa:2048", "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True,
                   capture_output=True)
    return {"driver_signing_key": (folder / "key.pem").read_text(), "driver_signing_password": PASSWORD,
            "driver_signing_certificate": (folder / "cert.pem").read_text()}


def discreet(run: user.Run, *secrets: str) -> None:
    """No secret in what a run prints and returns."""
    text = run.output + json.dumps(run.results)
    assert not any(secret in text for secret in secrets)


def test_secure_boot(lab: LabHosts, clean: dict[str, list[str]], signing: dict[str, object]) -> None:
    lab.sh(PLAIN, "ln -s /usr/lib/gpulab/mokutil /usr/bin/mokutil")
    lab("fault", PLAIN, "secure-boot", "on")
    secret = str(signing["driver_signing_key"]).splitlines()[2]
    first = role(lab, PLAIN, "host", "-vvv", driver_version=OLD, **signing)
    result = first.result(PLAIN, "nvidia_driver")
    assert (result["mok"], result["reboot_required"]) == ({"enrolled": False, "pending": True}, True)
    assert pending(first, PLAIN)[:2] == [
        "enrol key at the next boot: /var/lib/gpuops/mok/mok.der", "load module: nvidia"]
    assert lab.sh(PLAIN, "modinfo -F signer nvidia").strip() == "Site module key"
    discreet(first, secret, PASSWORD)
    assert secret not in lab.sh(PLAIN, "cat /var/lib/gpuops/journal/driver.json")
    assert lab.sh(PLAIN, "stat -c %a /var/lib/gpuops/mok/mok.key").strip() == "600"
    again = role(lab, PLAIN, driver_version=OLD, **signing)
    assert steps(again, PLAIN) == []  # asked for already
    lab.sh(PLAIN, f"/usr/lib/gpulab/mokmanager {PASSWORD}")
    assert "load module: nvidia" in steps(role(lab, PLAIN, driver_version=OLD, **signing), PLAIN)
    last = role(lab, PLAIN, driver_version=OLD, **signing)
    assert steps(last, PLAIN) == []
    assert last.result(PLAIN, "nvidia_driver")["mok"] == {"enrolled": True, "pending": False}


def test_secure_boot_leaves_a_driver_that_runs(lab: LabHosts, clean: dict[str, list[str]],
                                               signing: dict[str, object]) -> None:
    """With the key taken from the firmware, another version would not load: nothing is unloaded."""
    lab.sh(PLAIN, "rm /var/lib/gpulab/mok/*.der")
    lab("fault", PLAIN, "secure-boot", "on")
    run = role(lab, PLAIN, driver_version=NEW, **signing)
    assert steps(run, PLAIN) == ["ask for enrolment of key: /var/lib/gpuops/mok/mok.der"]
    assert lab.sh(PLAIN, "cat /sys/module/nvidia/version").strip() == OLD
    assert "type the password of module_signing" in run.result(PLAIN, "nvidia_driver")["reasons"][-1]
    lab("fault", PLAIN, "secure-boot", "off")
    lab.sh(PLAIN, "rm /usr/bin/mokutil")
    removed(lab, PLAIN, clean)


def test_licence(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    role(lab, PLAIN, driver_version=NEW)
    wish = {"driver_licence_token": TOKEN, "driver_licence_feature_type": 1,
            "driver_licence_settings": {"LogLevel": "7"}}
    assert "no vGPU guest driver" in role(lab, PLAIN, rc=2, **wish).errors()[0]
    lab.sh(PLAIN, f"printf '{SLEEPER}' > /etc/systemd/system/{GRIDD}; systemctl daemon-reload; mkdir -p /etc/nvidia; "
                  "printf '# Ours\\nServerAddress=a\\nFeatureType=0\\n' > /etc/nvidia/gridd.conf")
    before = lab.snapshot(PLAIN)
    run = role(lab, PLAIN, "host", "-vvv", **wish)
    discreet(run, TOKEN)
    assert lab.sh(PLAIN, "cat /etc/nvidia/gridd.conf") == "# Ours\nServerAddress=a\nFeatureType=1\nLogLevel=7\n"
    path = "/etc/nvidia/ClientConfigToken/client_configuration_token_gpuops.tok"
    assert lab.sh(PLAIN, f"stat -c %a {path}; cat {path}").split() == ["744", TOKEN]
    assert TOKEN not in lab.sh(PLAIN, "cat /var/lib/gpuops/journal/driver.json")
    assert steps(role(lab, PLAIN, **wish), PLAIN) == []
    changed = role(lab, PLAIN, **{**wish, "driver_licence_feature_type": 2})
    assert steps(changed, PLAIN) == ["write licence settings: /etc/nvidia/gridd.conf", f"restart service: {GRIDD}"]
    role(lab, PLAIN, "remove")
    kept = [line for line in before if "gridd" in line]
    assert [line for line in lab.snapshot(PLAIN) if "gridd" in line] == kept
    lab.sh(PLAIN, f"rm -rf /etc/systemd/system/{GRIDD} /etc/nvidia; systemctl daemon-reload")
    assert lab.snapshot(PLAIN) == clean[PLAIN]


def test_nvlink5(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    role(lab, NVLINK5, driver_version=NEW)
    assert active(lab, NVLINK5, MANAGER, IMEX) == ["active", "inactive"]
    assert "nvlsm" in "".join(lab.snapshot(NVLINK5))
    run = role(lab, NVLINK5, driver_imex_nodes=["10.0.0.1", "10.0.0.2"])
    nodes = "write IMEX nodes: /etc/nvidia-imex/nodes_config.cfg"
    assert steps(run, NVLINK5) == [nodes, f"enable and start service: {IMEX}"]
    assert lab.sh(NVLINK5, "cat /etc/nvidia-imex/nodes_config.cfg").split() == ["10.0.0.1", "10.0.0.2"]
    run = role(lab, NVLINK5, driver_imex_nodes=["10.0.0.1"])
    assert steps(run, NVLINK5) == [nodes, f"restart service: {IMEX}"]
    assert steps(role(lab, NVLINK5), NVLINK5) == [
        "restore file: /etc/nvidia-imex/nodes_config.cfg", f"disable and stop service: {IMEX}"]
    assert active(lab, NVLINK5, PERSISTENCED, MANAGER) == ["active", "active"]
    removed(lab, NVLINK5, clean)

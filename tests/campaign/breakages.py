# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Damage that an administrator, an upgrade or a failing disk can do to a converged host of the lab, and the expected
results."""

from __future__ import annotations

from dataclasses import dataclass

# The host with a MIG layout, whose boards forget their MIG mode when the driver is loaded anew, and one that has
# NVSwitches and no MIG. The third has neither.
LAB = "gpu-a1=h100-80:8,gpu-a2=a100-80:8,gpu-l1=l40s:4"
MIG, SWITCHES = "gpu-a1", "gpu-a2"


@dataclass(frozen=True)
class Breakage:
    """A shell script that runs as root on a host, and the expected result: exactly one of repairs, refused, stays and
    unseen.

    host: the host for which it makes sense, empty for any host.
    repairs: a part of a step. Verify reports a fault, check plans the step, one run carries out what check planned, and
    a second run does nothing.
    refused: a part of the error of verify, check and run.
    stays: a part of what verify, check and run report, though no run repairs it and none fails before its comparison.
    unseen: why the breakage need not be reported. Verify, check and run then find nothing.
    undo: if no run repairs it, the script after which a run succeeds and verify finds nothing.
    variables: variables of the host in the inventory, in INI format; if no run repairs the breakage, undo removes them.
    """

    name: str
    script: str
    host: str = ""
    repairs: str = ""
    refused: str = ""
    stays: str = ""
    unseen: str = ""
    undo: str = ""
    variables: str = ""

    def __post_init__(self) -> None:
        """Checks that exactly one result is expected, and that undo is set only if no run repairs the breakage."""
        stated = [word for word in (self.repairs, self.refused, self.stays, self.unseen) if word]
        assert len(stated) == 1, f"{self.name}: state one of repairs, refused, stays, unseen"
        assert bool(self.undo) == bool(self.refused or self.stays), f"{self.name}: undo is for what no run repairs"

# A driver of the lab's repositories beside that of the policy.
OTHER = "580.126.20"
# The vendor's driver library, of any version.
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so"


def _services() -> list[Breakage]:
    found = []
    for unit, host in (("nvidia-persistenced", ""), ("nvidia-fabricmanager", SWITCHES), ("nvidia-dcgm", ""),
                       ("nvidia-dcgm-exporter", ""), ("gpuops-cdi-refresh.path", "")):
        name = "refresh unit" if unit.startswith("gpuops") else f"service: {unit}"
        found.append(Breakage(f"{unit} is stopped and disabled", f"systemctl disable --now {unit}", host, repairs=name))
        if unit.startswith("gpuops"):
            found.append(Breakage(f"{unit} is stopped", f"systemctl stop {unit}", host,
                                  unseen="what changes MIG or the driver starts the service; a boot starts both"))
        else:
            found += [Breakage(f"{unit} is stopped", f"systemctl stop {unit}", host, repairs=name),
                      Breakage(f"{unit} is masked", f"systemctl mask --now {unit}", host, refused="is masked",
                               undo=f"systemctl unmask {unit}")]
    return found


def _idle_runtime() -> list[Breakage]:
    """Breakages of a container runtime that somebody has stopped or disabled; a run does not start it."""
    back = "systemctl enable --now containerd"
    return [Breakage("containerd is stopped", "systemctl stop containerd", stays="containerd does not run", undo=back),
            Breakage("containerd is disabled", "systemctl disable containerd",
                     stays="containerd does not start at boot", undo=back),
            Breakage("containerd is stopped and disabled", "systemctl disable --now containerd",
                     stays="containerd does not run", undo=back),
            Breakage("containerd is masked", "systemctl mask --now containerd", stays="containerd is masked",
                     undo=f"systemctl unmask containerd; {back}")]


def _software() -> list[Breakage]:
    """Breakages of packages, their files and their repository."""
    again = "install packages again"
    return [
        Breakage("persistenced is purged", "dpkg --purge --force-all nvidia-persistenced", repairs="install packages"),
        Breakage("fabric manager is purged",
                 "dpkg --purge --force-all $(dpkg-query -W -f '${Package}\\n' 'nvidia-fabricmanager*')", SWITCHES,
                 repairs="install packages"),
        Breakage("a library's package is purged", "dpkg --purge --force-all libcuda1", repairs="install packages"),
        Breakage("libnvidia-ml is deleted", f"rm -f {LIBRARY}*", repairs=again),
        Breakage("libnvidia-ml is cut", f"for f in $(readlink -f {LIBRARY}.1); do truncate -s 4000 $f; done",
                 repairs=again),
        Breakage("libcuda is damaged and keeps its size",
                 "f=$(readlink -f /usr/lib/x86_64-linux-gnu/libcuda.so.1); "
                 "printf damaged | dd of=$f bs=1 seek=$(($(stat -c %s $f) / 2)) conv=notrunc status=none",
                 repairs=again),
        Breakage("nvidia-smi is deleted", "rm -f /usr/bin/nvidia-smi", repairs=again),
        Breakage("nvidia-ctk is deleted", "rm -f /usr/bin/nvidia-ctk", repairs=again),
        Breakage("the runtime is deleted", "rm -f /usr/bin/nvidia-container-runtime", repairs=again),
        Breakage("the exporter is deleted", "rm -f /usr/bin/dcgm-exporter; systemctl stop nvidia-dcgm-exporter",
                 repairs=again),
        Breakage("DCGM's engine is deleted", "rm /usr/bin/nv-hostengine", repairs=again),
        Breakage("DCGM's package is purged",
                 "dpkg --purge --force-all $(dpkg-query -W -f '${Package}\\n' 'datacenter-gpu-manager-4-core')",
                 repairs="install packages"),
        Breakage("the toolkit's package is purged", "dpkg --purge --force-all nvidia-container-toolkit-base",
                 repairs="install packages"),
        Breakage("packages of driver, toolkit and DCGM are purged",
                 "dpkg --purge --force-all libcuda1 nvidia-container-toolkit-base datacenter-gpu-manager-4-core",
                 repairs="install packages"),
        Breakage("a toolkit package is purged, and a file of the driver deleted",
                 "dpkg --purge --force-all nvidia-container-toolkit-base; rm /usr/bin/nvidia-smi", repairs=again),
        Breakage("the library is of another version",
                 f"cd /tmp && apt-get -qq download libnvidia-ml1={OTHER}-1 && dpkg -i --force-all libnvidia-ml1_*.deb",
                 repairs="install packages"),
        Breakage("the keyring is cut", "for f in /usr/share/keyrings/*cuda*; do : > $f; done",
                 repairs="add repository"),
        Breakage("the repository's file is edited",
                 "sed -i 's/^/# /' $(grep -rlE 'cuda|nvidia' /etc/apt/sources.list.d | head -n 1)",
                 repairs="add repository"),
        Breakage("the repository's file is deleted",
                 "rm $(grep -rlE 'cuda|nvidia' /etc/apt/sources.list.d | head -n 1)", repairs="add repository"),
        Breakage("somebody's source is damaged",
                 "echo 'deb [' > /etc/apt/sources.list.d/bad.list; rm /usr/bin/nvidia-smi",
                 refused="/etc/apt/sources.list.d/bad.list", undo="rm /etc/apt/sources.list.d/bad.list"),
        Breakage("the driver is pinned no more",
                 "dpkg --purge --force-all $(dpkg-query -W -f '${Package}\\n' 'nvidia-driver-pinning*' 2>/dev/null); "
                 "rm -f /etc/apt/preferences.d/gpuops-driver.pref", repairs="pinning"),
        Breakage("the toolkit is pinned no more", "rm -f /etc/apt/preferences.d/gpuops-container-toolkit.pref",
                 repairs="hold versions"),
        Breakage("somebody else decides how the exporter runs",
                 "d=/etc/systemd/system/nvidia-dcgm-exporter.service.d; mkdir -p $d; "
                 "printf '[Service]\\nExecStart=\\nExecStart=/bin/sleep infinity\\n' > $d/zz.conf; "
                 "systemctl daemon-reload; systemctl restart nvidia-dcgm-exporter; :",
                 unseen="a file that systemd reads after ours is a decision of whoever wrote it"),
        Breakage("pynvml is broken",
                 "d=$(python3 -c 'import sysconfig as s; print(s.get_path(\"purelib\"))'); mkdir -p $d; "
                 "echo 'raise SystemError(1)' > $d/pynvml.py", unseen="the modules bring a pynvml of their own"),
        # The unit for MIG at boot needs it, too.
        Breakage("our pynvml is deleted", "rm -rf /usr/local/lib/gpuops/python", MIG, repairs="pynvml"),
    ]


def _runtime() -> list[Breakage]:
    """Breakages of the container toolkit, of files of containerd and of CDI."""
    lines = "find /etc/containerd -name '*.toml' -exec sed -i '/nvidia/d' {} +"
    spec = "for f in /var/run/cdi/nvidia.yaml /etc/cdi/nvidia.yaml; do [ ! -f $f ] ||"
    variables = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
    restart = "systemctl restart containerd"
    return [
        Breakage("the runtime's settings are deleted", "rm -f /etc/nvidia-container-runtime/config.toml",
                 repairs="/etc/nvidia-container-runtime/config.toml"),
        Breakage("containerd's file is empty", f": > /etc/containerd/config.toml; {restart}",
                 repairs="/etc/containerd/config.toml"),
        Breakage("containerd's file lacks our runtime", f"{lines}; {restart}", repairs="/etc/containerd"),
        Breakage("containerd runs with a file of before",
                 f"k=$(mktemp -d); cp -a /etc/containerd/. $k/ && {lines} && {restart} && "
                 "cp -a $k/. /etc/containerd/ && touch /etc/containerd/*.toml && rm -r $k",
                 repairs="restart service: containerd"),
        Breakage("containerd's file is no TOML", "printf '[[[' >> /etc/containerd/config.toml", refused="config.toml",
                 undo="sed -i 's/\\[\\[\\[//' /etc/containerd/config.toml"),
        Breakage("containerd's file crashes its parser",
                 "cp -p /etc/containerd/config.toml /var/tmp/ && sed -i '1i x = [1,, 2]' /etc/containerd/config.toml; "
                 f"{restart}; :", refused="config.toml",
                 undo=f"cp -p /var/tmp/config.toml /etc/containerd/; systemctl reset-failed containerd; {restart}"),
        Breakage("the CDI specification is deleted", "rm -f /var/run/cdi/nvidia.yaml /etc/cdi/nvidia.yaml",
                 repairs="generate CDI specification"),
        Breakage("the CDI specification is cut", f"{spec} : > $f; done", repairs="generate CDI specification"),
        Breakage("CDI is not refreshed", "rm /etc/systemd/system/gpuops-cdi-refresh.*; systemctl daemon-reload",
                 repairs="install refresh unit"),
        Breakage("the folder of CDI is full",
                 "rm -rf /var/run/cdi/*; mount -t tmpfs -o size=4k tmpfs /var/run/cdi; "
                 "dd if=/dev/zero of=/var/run/cdi/fill bs=4k count=9 status=none; :",
                 refused="no space is left", undo="umount /var/run/cdi"),
        Breakage("the folder of CDI is read-only",
                 "rm -rf /var/run/cdi/*; mount -t tmpfs -o ro tmpfs /var/run/cdi", refused="/var/run/cdi",
                 undo="umount /var/run/cdi"),
        Breakage("CDI is to be written below a file", f"mkdir -p $(dirname {variables}); "
                 f"echo NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/passwd/nvidia.yaml > {variables}",
                 refused="/etc/passwd is not a folder", undo=f"rm {variables}"),
    ]


def _driver() -> list[Breakage]:
    """Breakages of modules, device nodes and GPUs."""
    return [
        Breakage("modules are unloaded",
                 "systemctl stop nvidia-persistenced nvidia-dcgm nvidia-dcgm-exporter nvidia-fabricmanager; "
                 "for m in nvidia_uvm nvidia_modeset nvidia; do rmmod $m; done", repairs="load module"),
        Breakage("nouveau is denied no more", "rm /etc/modprobe.d/gpuops-nouveau.conf", repairs="nouveau"),
        Breakage("the deny list is edited", "echo '#' > /etc/modprobe.d/gpuops-nouveau.conf", repairs="nouveau"),
        Breakage("modules are not loaded at boot", "rm /etc/modules-load.d/gpuops-nvidia.conf",
                 repairs="gpuops-nvidia.conf"),
        Breakage("a device node is deleted", "rm /dev/nvidia0", repairs="make device nodes"),
        Breakage("the control node is deleted", "rm /dev/nvidiactl", repairs="make device nodes"),
        Breakage("a device node is closed", "chmod 000 /dev/nvidia0", repairs="make device nodes"),
        Breakage("DKMS has no module", "dkms remove --all nvidia/$(cat /sys/module/nvidia/version) >/dev/null 2>&1; :",
                 repairs="build"),
        Breakage("the module's file is deleted", "rm -f $(modinfo -n nvidia)", repairs="build"),
        Breakage("a GPU is lost", "gpusim fault set gpu-lost 1", refused="is lost", undo="gpusim fault clear"),
        Breakage("a GPU needs a reset", "gpusim fault set reset-required 1", refused="needs a reset",
                 undo="gpusim fault clear"),
        Breakage("a GPU is off the bus", "gpusim fault set off-bus 1", refused="has fallen off the bus",
                 undo="gpusim fault clear"),
        # Else it might be the host with MIG, too; there the fabric manager has to follow.
        Breakage("another driver is asked for", ":", SWITCHES, repairs="install packages",
                 variables=f"driver_version={OTHER}"),
        Breakage("another driver is asked for, with MIG", ":", MIG, repairs="install packages",
                 variables=f"driver_version={OTHER}"),
        Breakage("a host is not reached", ":", refused="unreachable: ", undo=":", variables="ansible_port=2"),
    ]


def _mig() -> list[Breakage]:
    unit = "/etc/systemd/system/gpuops-mig.service"
    return [
        Breakage("gpuops-mig is disabled", "systemctl disable gpuops-mig.service", MIG, repairs="gpuops-mig.service"),
        Breakage("gpuops-mig is masked", f"mv {unit} {unit}.old; systemctl mask gpuops-mig.service", MIG,
                 stays="is masked",
                 undo=f"systemctl unmask gpuops-mig; mv {unit}.old {unit}; systemctl enable gpuops-mig"),
        Breakage("MIG instances are gone", "nvidia-smi mig -dci; nvidia-smi mig -dgi", MIG, repairs="create"),
        Breakage("MIG is off on one GPU",
                 "nvidia-smi mig -i 0 -dci; nvidia-smi mig -i 0 -dgi; nvidia-smi -i 0 -mig 0", MIG, repairs="MIG"),
        Breakage("MIG is off with the next reset",
                 "gpusim fault set mode-pending 0; nvidia-smi mig -i 0 -dci; nvidia-smi mig -i 0 -dgi; "
                 "nvidia-smi -i 0 -mig 0; gpusim fault clear; :", MIG, repairs="MIG"),
        Breakage("MIG is on with the next reset",
                 "gpusim fault set mode-pending 0; nvidia-smi -i 0 -mig 1; gpusim fault clear; :", SWITCHES,
                 stays="changes with the next reset", undo="nvidia-smi -i 0 -mig 0"),
        Breakage("mig.json is deleted", "rm /etc/gpuops/mig.json", MIG, repairs="mig.json"),
        Breakage("mig.json is damaged", "echo '{' > /etc/gpuops/mig.json", MIG, repairs="mig.json"),
        Breakage("the program for the boot is deleted", "rm /usr/local/lib/gpuops/mig-boot.pyz", MIG,
                 repairs="install boot unit"),
    ]


def _journals() -> list[Breakage]:
    folder = "/var/lib/gpuops/journal"
    return [
        Breakage("the journals are open", f"chmod 777 {folder}; chmod 666 {folder}/*.json", refused="other than root",
                 undo=f"chmod 700 {folder}; chmod 600 {folder}/*.json"),
        Breakage("a journal is damaged", f"cp -p {folder}/driver.json /var/tmp/; echo '{{' > {folder}/driver.json",
                 refused="driver.json", undo=f"cp -p /var/tmp/driver.json {folder}/"),
        Breakage("a lock is a folder", f"rm -f {folder}/driver.lock; mkdir {folder}/driver.lock", refused="driver.lock",
                 undo=f"rmdir {folder}/driver.lock"),
    ]


BREAKAGES: tuple[Breakage, ...] = (*_services(), *_idle_runtime(), *_software(), *_runtime(), *_driver(), *_mig(),
                                   *_journals())

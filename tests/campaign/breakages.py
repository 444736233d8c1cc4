# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an administrator, an upgrade or a failing disk does to a converged host of the lab."""

from __future__ import annotations

from dataclasses import dataclass

# The host with a MIG layout, the one with NVSwitches and without MIG, and one of neither.
MIG, SWITCHES, PLAIN = "gpu-a1", "gpu-a2", "gpu-l1"


@dataclass(frozen=True)
class Breakage:
    """A shell script as root of a host.

    host: where it makes sense, empty for anywhere. refused: a part of the error of a run that does not mend it, empty
    where a run does. undo: for what is refused, the script after which a run goes on.
    """

    name: str
    script: str
    host: str = ""
    refused: str = ""
    undo: str = ""


def _services() -> list[Breakage]:
    found = []
    for unit, host in (("containerd", ""), ("nvidia-persistenced", ""), ("nvidia-fabricmanager", SWITCHES),
                       ("nvidia-dcgm", ""), ("nvidia-dcgm-exporter", ""), ("gpuops-cdi-refresh.path", "")):
        found += [Breakage(f"{unit} is stopped", f"systemctl stop {unit}", host),
                  Breakage(f"{unit} is stopped and disabled", f"systemctl disable --now {unit}", host)]
    return found


BREAKAGES: tuple[Breakage, ...] = (
    *_services(),
    Breakage("gpuops-mig is disabled", "systemctl disable gpuops-mig.service", MIG),
    Breakage("persistenced is purged", "dpkg --purge --force-all nvidia-persistenced"),
    Breakage("fabric manager is purged",
             "dpkg --purge --force-all $(dpkg-query -W -f '${Package}\\n' 'nvidia-fabricmanager*')", SWITCHES),
    Breakage("a library's package is purged", "dpkg --purge --force-all libcuda1"),
    Breakage("libnvidia-ml is deleted", "rm -f /usr/lib/x86_64-linux-gnu/libnvidia-ml.so*"),
    Breakage("nvidia-smi is deleted", "rm -f /usr/bin/nvidia-smi"),
    Breakage("nvidia-ctk is deleted", "rm -f /usr/bin/nvidia-ctk"),
    Breakage("the runtime is deleted", "rm -f /usr/bin/nvidia-container-runtime"),
    Breakage("the runtime's settings are deleted", "rm -f /etc/nvidia-container-runtime/config.toml"),
    Breakage("containerd's file is empty", ": > /etc/containerd/config.toml; systemctl restart containerd"),
    Breakage("containerd's file lacks our runtime",
             "find /etc/containerd -name '*.toml' -exec sed -i '/nvidia/d' {} +; systemctl restart containerd"),
    Breakage("containerd runs with a file of before",
             "k=$(mktemp -d); cp -a /etc/containerd/. $k/ && find /etc/containerd -name '*.toml' "
             "-exec sed -i '/nvidia/d' {} + && systemctl restart containerd && cp -a $k/. /etc/containerd/ && "
             "rm -r $k"),
    Breakage("containerd's file is no TOML", "printf '[[[' >> /etc/containerd/config.toml", refused="config.toml",
             undo="sed -i 's/\\[\\[\\[//' /etc/containerd/config.toml"),
    Breakage("the keyring is cut", "for f in /usr/share/keyrings/*cuda*; do : > $f; done"),
    Breakage("the repository's file is edited",
             "sed -i 's/^/# /' $(grep -rlE 'cuda|nvidia' /etc/apt/sources.list.d | head -n 1)"),
    Breakage("the repository's file is deleted",
             "rm $(grep -rlE 'cuda|nvidia' /etc/apt/sources.list.d | head -n 1)"),
    Breakage("somebody's source is damaged", "echo 'deb [' > /etc/apt/sources.list.d/bad.list; rm /usr/bin/nvidia-smi",
             refused="/etc/apt/sources.list.d/bad.list", undo="rm /etc/apt/sources.list.d/bad.list"),
    Breakage("modules are unloaded",
             "systemctl stop nvidia-persistenced nvidia-dcgm nvidia-dcgm-exporter nvidia-fabricmanager; "
             "rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia 2>/dev/null; :"),
    Breakage("nouveau is denied no more", "rm /etc/modprobe.d/gpuops-nouveau.conf"),
    Breakage("the deny list is edited", "echo '#' > /etc/modprobe.d/gpuops-nouveau.conf"),
    Breakage("modules are not loaded at boot", "rm /etc/modules-load.d/gpuops-nvidia.conf"),
    Breakage("a device node is deleted", "rm /dev/nvidia0"),
    Breakage("a device node is closed", "chmod 000 /dev/nvidia0"),
    Breakage("the CDI specification is deleted", "rm -f /var/run/cdi/nvidia.yaml /etc/cdi/nvidia.yaml"),
    Breakage("the CDI specification is cut",
             "for f in /var/run/cdi/nvidia.yaml /etc/cdi/nvidia.yaml; do [ -f $f ] && : > $f; done; :"),
    Breakage("CDI is not refreshed", "rm /etc/systemd/system/gpuops-cdi-refresh.*; systemctl daemon-reload"),
    Breakage("MIG instances are gone", "nvidia-smi mig -dci; nvidia-smi mig -dgi", MIG),
    Breakage("MIG is off on one GPU",
             "nvidia-smi mig -i 0 -dci; nvidia-smi mig -i 0 -dgi; nvidia-smi -i 0 -mig 0", MIG),
    Breakage("mig.json is deleted", "rm /etc/gpuops/mig.json", MIG),
    Breakage("mig.json is damaged", "echo '{' > /etc/gpuops/mig.json", MIG),
    Breakage("the program for the boot is deleted", "rm /usr/local/lib/gpuops/mig-boot.pyz", MIG),
    Breakage("the journals are open", "chmod 777 /var/lib/gpuops/journal; chmod 666 /var/lib/gpuops/journal/*.json"),
    Breakage("a journal is damaged", "for f in /var/lib/gpuops/journal/driver.json; do echo '{' > $f; done",
             refused="driver.json"),
    Breakage("pynvml is broken",
             "d=$(python3 -c 'import sysconfig as s; print(s.get_path(\"purelib\"))'); mkdir -p $d; "
             "echo 'raise SystemError(1)' > $d/pynvml.py"),
    Breakage("our pynvml is deleted", "rm -rf /usr/local/lib/gpuops/python"),
    Breakage("the driver is pinned no more",
             "dpkg --purge --force-all $(dpkg-query -W -f '${Package}\\n' 'nvidia-driver-pinning*' 2>/dev/null); "
             "rm -f /etc/apt/preferences.d/gpuops-driver.pref"),
    Breakage("the toolkit is pinned no more", "rm -f /etc/apt/preferences.d/gpuops-container-toolkit.pref"),
    Breakage("the toolkit's package is purged", "dpkg --purge --force-all nvidia-container-toolkit-base"),
    Breakage("the exporter listens elsewhere",
             "d=/etc/systemd/system/nvidia-dcgm-exporter.service.d; mkdir -p $d; "
             "printf '[Service]\\nExecStart=\\nExecStart=/bin/sleep infinity\\n' > $d/zz.conf; "
             "systemctl daemon-reload; systemctl restart nvidia-dcgm-exporter; :"),
    Breakage("DCGM's package is purged",
             "dpkg --purge --force-all $(dpkg-query -W -f '${Package}\\n' 'datacenter-gpu-manager-4-core')"),
    Breakage("DKMS has no module", "dkms remove --all nvidia/$(cat /sys/module/nvidia/version) >/dev/null 2>&1; :"),
    Breakage("the module's file is deleted", "rm -f $(modinfo -n nvidia)"),
)

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files on a host for CDI: units, a script and a udev rule; and the command lines of nvidia-ctk. PRIVATE.

Sources: NVIDIA's nvidia-cdi-refresh units (toolkit 1.18 to 1.20) for paths, variables and watched files; NVIDIA
Container Toolkit documentation, Troubleshooting, for the udev rule and the links of device nodes.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import UNIT, UNIT_FILE

# The settings of NVIDIA's unit: variables that override options of nvidia-ctk.
ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
OUTPUT = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
PATH_UNIT = "gpuops-cdi-refresh.path"
PATH_FILE = f"/etc/systemd/system/{PATH_UNIT}"
UNITS = (UNIT, PATH_UNIT)
# The unit of the toolkit's packages, which also writes the specification for containers.
VENDORS_UNIT = "nvidia-cdi-refresh.service"
ENABLED = tuple(f"/etc/systemd/system/multi-user.target.wants/{unit}" for unit in UNITS)
SCRIPT = "/usr/local/lib/gpuops/cdi-refresh"
RULE = "/etc/udev/rules.d/71-gpuops-nvidia-dev-char.rules"
# The folder of a rootless Docker. Up to 29.1, /var/run/cdi is a link in its namespace, which it does not read (moby
# issue 47676). It reads a folder in it.
ROOTLESS = "/var/run/cdi/rootless"
ROOTLESS_FILE = "/etc/tmpfiles.d/gpuops-rootless-cdi.conf"
# The kinds of specifications: for containers that use GPUs, and for containers that manage all GPUs.
KINDS = ("gpu", "management")
_ARGUMENTS = {"gpu": (), "management": ("--mode=management", "--vendor=management.nvidia.com")}
_PATHS = {"gpu": "/var/run/cdi/nvidia.yaml", "management": "/var/run/cdi/nvidia-management.yaml"}

RULE_TEXT = b"""\
# Written by gpuops.nvidia: systemd finds the device nodes of a container through these links. Without them, the
# container loses its GPUs at the next "systemctl daemon-reload".
ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", \\
  RUN+="/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"
"""
_SCRIPT_TEXT = """\
#!/bin/sh
# Written by gpuops.nvidia: updates the CDI specifications for the loaded driver and the MIG devices.
: "${@OUTPUT@:=@GPU@}"
if [ ! -e /proc/driver/nvidia/version ]; then
    # A specification without a driver version belongs to WSL or Jetson and is kept.
    ! grep -qsE 'libcuda[.]so[.][0-9]{3}' "$@OUTPUT@" || rm -f "$@OUTPUT@"
    @GONE@exit 0
fi
nodes() { stat -c '%n %i %y' /dev/nvidia* /dev/nvidia-caps/*; }
# Repeat if device nodes have changed meanwhile: systemd ignores events while this unit is running.
for _again in 1 2 3 4 5; do
    before=$(nodes)
    @MANAGEMENT@nvidia-ctk --quiet cdi generate --output="$@OUTPUT@"
    failed=$?
    for node in /dev/nvidia* /dev/nvidia-caps/*; do
        if [ -c "$node" ] && numbers=$(stat -c '0x%t 0x%T' "$node"); then
            # shellcheck disable=SC2086
            link=/dev/char/$(printf %d:%d $numbers)
            [ -e "$link" ] || { mkdir -p /dev/char && ln -sf "..${node#/dev}" "$link"; }
        fi
    done
    [ "$before" != "$(nodes)" ] || break
done
[ "$failed" -eq 0 ] && exit 0
# nvidia-ctk fails if all GPUs are in MIG mode and none has a MIG device. Then remove the specification.
if nvidia-smi -L | grep -q MIG- || nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader | grep -qv '^Enabled'
then
    exit 1
fi
rm -f "$@OUTPUT@"
"""
_SERVICE_TEXT = f"""\
# Written by gpuops.nvidia. Modules that change MIG or the driver start it, because files in /proc cannot be watched.
[Unit]
Description=Update the CDI specifications of NVIDIA devices
After=systemd-modules-load.service nvidia-persistenced.service nvidia-cdi-refresh.service
# No start limit: a unit that reaches the limit does not start again until it is reset.
StartLimitIntervalSec=0

[Service]
Type=oneshot
EnvironmentFile=-{ENVIRONMENT}
ExecStart={SCRIPT}

[Install]
WantedBy=multi-user.target
"""
_PATH_TEXT = """\
# Written by gpuops.nvidia: watches kernel modules, the toolkit and the nodes of MIG devices.
[Unit]
Description=Watch files that affect the CDI specifications of NVIDIA devices

[Path]
PathChanged=/lib/modules/%v/modules.dep
PathChanged=/usr/bin/nvidia-ctk
PathChanged=/dev/nvidia-caps

[Install]
WantedBy=multi-user.target
"""


def command(kind: str) -> list[str]:
    """The command line that prints a specification. kind: one of KINDS."""
    return ["nvidia-ctk", "--quiet", "cdi", "generate", *_ARGUMENTS[kind]]


def environment(text: str) -> dict[str, str]:
    """The variables of an environment file (systemd.exec(5))."""
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and line.lstrip()[0] not in "#;"]
    return {name.strip(): value.strip().strip("\"'") for name, _sign, value in pairs}


def path_of(kind: str, variables: t.Mapping[str, str]) -> str:
    """The path of a specification. variables: see environment."""
    return variables.get(OUTPUT, _PATHS[kind]) if kind == "gpu" else _PATHS[kind]


def paths(variables: t.Mapping[str, str], with_default: bool) -> list[str]:
    """The paths of all specifications. with_default: also NVIDIA's default path if the variables set another path."""
    return list(dict.fromkeys([path_of(kind, variables) for kind in KINDS] + ([_PATHS["gpu"]] if with_default else [])))


def rootless_text(variables: t.Mapping[str, str]) -> bytes:
    """The content of ROOTLESS_FILE. The folders must exist before the Docker of a user is started, also at boot."""
    (link, spec), = rootless_links(variables).items()
    return (f"# Written by gpuops.nvidia: a rootless Docker finds the CDI specification in this folder.\n"
            f"d /run/cdi 0755 root root -\nd {ROOTLESS[4:]} 0755 root root -\n"
            f"L+ {link[4:]} - - - - {spec}\n").encode()


def rootless_links(variables: t.Mapping[str, str]) -> dict[str, str]:
    """Maps the path of the link that ROOTLESS_FILE creates to its target."""
    spec = path_of("gpu", variables)
    return {f"{ROOTLESS}/nvidia{spec[spec.rindex('.'):]}": spec}


def unit_files(management: bool) -> dict[str, bytes]:
    """Maps the paths of the units and their script to their content. management: see the option cdi_management."""
    generate = f"{' '.join(command('management'))} --output={_PATHS['management']}\n    "
    script = _SCRIPT_TEXT
    for mark, value in (("OUTPUT", OUTPUT), ("GPU", _PATHS["gpu"]), ("MANAGEMENT", generate if management else ""),
                        ("GONE", f"rm -f {_PATHS['management']}\n    " if management else "")):
        script = script.replace(f"@{mark}@", value)
    return {SCRIPT: script.encode(), UNIT_FILE: _SERVICE_TEXT.encode(), PATH_FILE: _PATH_TEXT.encode()}

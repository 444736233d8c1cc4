# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DCGM 4 and its service, which replace DCGM 3.

Sources: NVIDIA/DCGM (cmake/packaging.cmake: the split packages and their relations; config-files/systemd: the unit;
hostengine/src/HostEngineCommandLine.cpp: its options), DCGM User Guide 4, NVIDIA/DCGM issue 254 (GPUs of Volta and
before on branch 580). nv-hostengine fails if an option occurs twice.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import unit_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import (
    Desired,
    Host,
    Options,
    check_version,
)

UNIT = "nvidia-dcgm.service"
ADDRESS = ("127.0.0.1", 5555)
# The package of DCGM 3.
DCGM_3 = "datacenter-gpu-manager"
_LAST_OF_VOLTA = 580
DROP_IN = f"/etc/systemd/system/{UNIT}.d/gpuops.conf"
# The command line in the unit of the package.
_COMMAND = "/usr/bin/nv-hostengine -n --service-account nvidia-dcgm"
# Why options of nv-hostengine cannot be set.
_UNIT_SETS, _PORT = "the unit of the package sets it", "the exporter of the host connects to 127.0.0.1:5555"
_ENDS = "the service would end at once, or systemd would no longer control it"
REFUSED: t.Dict[str, str] = {
    **dict.fromkeys(("-n", "--no-daemon", "--service-account"), _UNIT_SETS),
    **dict.fromkeys(("-p", "--port", "-d", "--domain-socket", "-c", "--vsock-cid"), _PORT),
    **dict.fromkeys(("-t", "--term", "-h", "--help", "--version", "--pid", "--"), _ENDS)}
BIND = ("-b", "--bind-interface")
# The long names of the other options with a short one.
_LONG = {BIND[0]: BIND[1], "-f": "--log-filename"}
_EVERYWHERE, _LOCAL = ("ALL", "all", "0.0.0.0"), ("127.0.0.1", "localhost")
_SEVERAL = re.compile(r"-[^-].")  # several short options, or one with its value
OPEN = ("DCGM accepts connections on all addresses of the host, and it has no authentication. Restrict access to port "
        f"{ADDRESS[1]} with a firewall.")


class Dcgm:
    """Implements C(base.Component)."""

    name = "dcgm"
    unit = UNIT

    @staticmethod
    def desired(options: Options, host: Host) -> Desired:
        """See L(base.Component). profiling: whether to install the proprietary packages that profiling metrics need;
        args, env: further arguments and variables of nv-hostengine."""
        version = options.get("version") or None
        check_version("dcgm", version)
        args = [str(one) for one in options.get("args") or ()]
        check_arguments(args)
        text = unit_text.environment(options.get("env") or {}, "dcgm.env")
        if args:
            text += f"ExecStart=\nExecStart={_COMMAND}{unit_text.arguments(args, 'dcgm.args')}\n"
        if host.cuda_major is None:
            raise HostError("The CUDA level for DCGM is unknown, because no driver is installed.",
                            "Install the driver first. In check mode, set driver_cuda.")
        levels = [host.cuda_major]
        if host.cuda_major > 12 and any(model is not None and model.last_branch is not None
                                        and model.last_branch <= _LAST_OF_VOLTA for model in host.models):
            levels.append(12)
        suffixes = ["core", *(f"cuda{level}" for level in levels)]
        if options.get("profiling"):
            suffixes += ["proprietary", *(f"proprietary-cuda{level}" for level in levels)]
        return Desired(packages={f"{DCGM_3}-4-{suffix}": version for suffix in suffixes}, replaced=[DCGM_3], unit=UNIT,
                       files={DROP_IN: f"# Written by gpuops.nvidia.\n[Service]\n{text}".encode()} if text else {},
                       address=ADDRESS, needs_driver=True, notes=[OPEN] if is_open(args) else [])


def options_of(args: t.Iterable[str]) -> list[tuple[str, list[str]]]:
    """Splits a command line: C([(option, [its text, its value])]), with an empty option for words before the first
    one. A single text can have an option and its value, separated by a space."""
    found: list[tuple[str, list[str]]] = []
    for text in args:
        if text.startswith("-") and text != "-":
            found.append((text.partition(" ")[0], [text]))
        elif found:
            found[-1][1].append(text)
        else:
            found.append(("", [text]))
    return found


def check_arguments(args: t.Iterable[str], path: str = "dcgm.args") -> None:
    """Raises InputError for arguments with which the service would not start, or could not be reached. path: the
    option or variable that contains them."""
    seen = set()
    for name, texts in options_of(args):
        given = " ".join(texts)
        why = REFUSED.get(name, "")
        if not name:
            why = "it is not an option of nv-hostengine"
        elif "=" in name or _SEVERAL.match(name):
            why = "nv-hostengine does not read it as one option"
        elif _LONG.get(name, name) in seen:
            why = "nv-hostengine takes it once"
        elif name in BIND and given[len(name) + 1:] not in (*_EVERYWHERE, *_LOCAL):
            why = f"{_PORT}; allowed: {', '.join((*_EVERYWHERE, *_LOCAL))}"
        if why:
            raise InputError(f"{given!r} cannot be set: {why}.",
                             "Remove it, or write one option and its value, such as [--log-level, DEBUG].",
                             path=path, value=given)
        seen.add(_LONG.get(name, name))


def is_open(args: t.Iterable[str]) -> bool:
    """Whether DCGM accepts connections from other machines with these arguments."""
    return any(name in BIND and " ".join(texts)[len(name) + 1:] in _EVERYWHERE for name, texts in options_of(args))

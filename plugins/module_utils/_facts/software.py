# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of CUDA, DCGM and the exporters. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.installed_packages import Package, upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import EXPORTER_ADDRESS
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.runtimes import active_units
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

_UNITS = "/etc/systemd/system"
_DCGM, _EXPORTER, _STATUS = "nvidia-dcgm.service", "nvidia-dcgm-exporter.service", "gpuops-node-status.timer"
_TOOLKIT = re.compile(r"cuda-toolkit-(\d+)-(\d+)\Z")
_ADDRESS = re.compile(r"^ExecStart=\S+.* --address (\S+)", re.M)
_OUTPUT = re.compile(r"^ExecStart=.* (/\S+)/[^/\s]+$", re.M)


def read_components(root: Root, run: Runner, packages: t.Mapping[str, Package]) -> Fact:
    """The fact C(software) of gpu_info. Runs a command only if one of the services is installed."""
    levels = {f"{found.group(1)}.{found.group(2)}": upstream(packages[name].version)
              for name, found in ((name, _TOOLKIT.match(name)) for name in packages) if found}
    dcgm = packages.get("datacenter-gpu-manager-4-core") or packages.get("datacenter-gpu-manager")
    exporter = packages.get("datacenter-gpu-manager-exporter")
    status = root.text(f"{_UNITS}/gpuops-node-status.service") or ""
    units = [unit for unit, found in ((_DCGM, dcgm), (_EXPORTER, exporter), (_STATUS, status)) if found]
    active = active_units(root, run, units)
    listen = _ADDRESS.findall(root.text(f"{_UNITS}/{_EXPORTER}.d/gpuops.conf") or "")
    folder = _OUTPUT.search(status)
    return {
        "cuda": levels,
        "dcgm": {"version": upstream(dcgm.version), "running": _DCGM in active} if dcgm else None,
        "dcgm_exporter": {"version": upstream(exporter.version), "running": _EXPORTER in active,
                          "listen": listen[-1] if listen else EXPORTER_ADDRESS} if exporter else None,
        "node_status_exporter": {"running": _STATUS in active, "folder": folder.group(1)} if folder else None,
    }

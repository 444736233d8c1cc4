# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collects all facts of a host. If something is missing on the host, its fact is None or empty. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import fabric_of, model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import (
    Client,
    by_pid,
    owner_of,
    read_clients,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.driver import read_driver, read_modules
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.gpus import Snapshot, merge_gpus, minors
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.host import knows_package, read_host
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.installed_packages import read_packages
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.journals import read_journals
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.label_facts import nvml_fact, vgpu_fact
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import read_mig_boot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_files import lost_files
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import TOOLKIT_SETTINGS
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import read_bus
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.rootless import read_rootless
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.runtimes import read_runtimes, read_toolkit
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.software import read_components
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.xids import read_xids
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

SCHEMA = 3


def collect(root: Root, run: Runner, snapshot: Snapshot) -> Fact:
    """The result C(facts) of gpu_info. run: runs a command; snapshot: from L(label_facts.nvml_snapshot)."""
    host = read_host(root)
    bus = read_bus(root)
    packages = read_packages(root, run, host["os"]["family"])
    gpus = merge_gpus(bus, snapshot)
    toolkit = read_toolkit(root, packages)
    driver = read_driver(root, run, packages, host["arch"])
    lost = lost_files(root, run, host["os"]["family"], [*driver["packages"], *toolkit["packages"]])
    driver["missing_files"] = _of_packages(lost, driver["packages"])
    toolkit["missing_files"] = _of_packages(lost, toolkit["packages"])
    if toolkit["version"] and not root.is_there(TOOLKIT_SETTINGS):
        # A script of the packages writes this file, so no package lists it.
        toolkit["missing_files"] = [*(toolkit["missing_files"] or ()), TOOLKIT_SETTINGS]
    kernel = host["kernel"]
    if gpus and not kernel["headers"] and driver["loaded"] is None:
        # Only without a loaded driver, because it takes up to a second.
        kernel["headers_available"] = knows_package(root, run, host["os"]["family"], kernel["headers_package"])
    clients = _clients(read_clients(root, minors(root, gpus)), snapshot["clients"])
    models = [model_of(gpu["device_id"], gpu["subsystem"]) for gpu in gpus]
    return {
        "schema": SCHEMA,
        "host": host,
        "gpus": gpus,
        "nvswitches": [{"pci": switch.address, "device_id": switch.device} for switch in bus.switches],
        "nvlink": {"switches": len(bus.switches), "fabric": fabric_of(models, len(bus.switches))},
        # Without a loaded driver, nothing of the log is about the GPUs as they are now.
        "xids": read_xids(root, run) if driver["loaded"] else [],
        "mellanox": bus.mellanox,
        "vgpu": vgpu_fact(bus),
        "driver": {**driver, "loaded": driver["loaded"] or snapshot["driver"],
                   "library": driver["library"] or snapshot["library"], "nvml": nvml_fact(snapshot)},
        "modules": read_modules(root),
        "runtimes": read_runtimes(root, run, packages, toolkit["cdi_specs"]),
        "rootless": read_rootless(root, run),
        "toolkit": toolkit,
        "software": read_components(root, run, packages),
        "mig_boot": read_mig_boot(root),
        "journals": read_journals(root),
        "clients": [{**client, **owner_of(root, client["pid"])} for client in clients],
    }


def _of_packages(lost: t.Mapping[str, list[str]] | None, names: t.Iterable[str]) -> list[str] | None:
    return None if lost is None else sorted(path for name in names for path in lost.get(name, ()))


def _clients(open_files: t.Sequence[Client], nvml: t.Sequence[Fact]) -> list[Fact]:
    """The GPU clients, sorted by pid. Open files show daemons, too; NVML shows processes of other PID namespaces."""
    known = {(client["pid"], client["gpu"]) for client in nvml}
    others = [dict(client) for client in open_files if (client["pid"], client["gpu"]) not in known]
    return sorted([*nvml, *others], key=by_pid)

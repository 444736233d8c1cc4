# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of container runtimes and of the container toolkit. PRIVATE to the collection."""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import parse
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.installed_packages import Package, upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import toolkit_packages
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.unit_files import (
    SHOWN,
    at_boot,
    is_active,
    is_stale,
    triggers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

_BINARIES = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin", "/opt/bin")
# Sockets that start a service on demand.
_SOCKETS = {"docker": "docker.socket"}
# Runtimes that read their files only at their start, and do not show the configuration that they use.
_READ_ONCE = ("containerd", "crio")
# Maps a runtime to its packages, its program, its service, and the files that may configure the NVIDIA runtime.
_RUNTIMES: t.Dict[str, t.Tuple[t.Tuple[str, ...], str, str, t.Tuple[str, ...]]] = {
    "containerd": (("containerd.io", "containerd"), "containerd", "containerd.service",
                   ("/etc/containerd/config.toml", "/etc/containerd/conf.d/")),
    "docker": (("docker-ce", "docker.io", "moby-engine"), "dockerd", "docker.service", ("/etc/docker/daemon.json",)),
    "crio": (("cri-o",), "crio", "crio.service", ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/")),
    "podman": (("podman",), "podman", "", ("/etc/containers/containers.conf", "/etc/containers/containers.conf.d/")),
}
# A TOML table of a runtime, or of a part of it, quoted or not. For podman a runtime is a key.
_TABLE = re.compile(r"""^[ \t]*\[[^\n]*\bruntimes\.["']?([\w-]+)["']?[ \t]*[.\]]""", re.M)
_KEY = re.compile(r"""^\s*["']?nvidia["']?\s*=""", re.M)
# The list of disabled plugins, and the ids in it of containerd's plugin for Kubernetes.
_DISABLED = re.compile(r"^[ \t]*disabled_plugins[ \t]*=[ \t]*\[([^]]*)", re.M)
_CRI = re.compile(r"""["'](?:cri|io\.containerd\.grpc\.v1\.cri|io\.containerd\.cri\.v1\.runtime)["']""")
_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+)")
_GPU_KIND = re.compile(r"""["']?kind["']?: ["']?nvidia\.com/gpu["']?,?\s*$""", re.M)
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")


def read_toolkit(root: Root, packages: t.Mapping[str, Package]) -> Fact:
    """The fact C(toolkit) of gpu_info without C(missing_files)."""
    own = toolkit_packages(packages)
    main = own.get("nvidia-container-toolkit") or own.get("nvidia-container-toolkit-base")
    return {"version": upstream(main.version) if main else None,
            "packages": {name: package.version for name, package in own.items()},
            "cdi_specs": cdi_specs(root), "cdi": _named_devices(root)}


def _named_devices(root: Root) -> Fact | None:
    """C({devices, driver}) of the CDI specifications of the kind C(nvidia.com/gpu), None if there are none."""
    texts = [root.text(path) or "" for path in cdi_specs(root)]
    known = [parse(text) for text in texts if _GPU_KIND.search(text)]
    if not known:
        return None
    # If both folders have a file of this name, runtimes use that in /var/run, which is the last.
    return {"devices": sorted({name for spec in known for name in spec["devices"]}), "driver": known[-1]["driver"]}


def cdi_specs(root: Root) -> list[str]:
    """The paths of the CDI specifications for NVIDIA devices."""
    specs = []
    for folder in _CDI_FOLDERS:
        for name in root.names(folder):
            path = f"{folder}/{name}"
            if name.endswith((".yaml", ".yml", ".json")) and "nvidia.com/" in (root.text(path) or ""):
                specs.append(path)
    return specs


def read_runtimes(root: Root, run: Runner, packages: t.Mapping[str, Package],
                  specs: t.Sequence[str]) -> Fact:
    """The fact C(runtimes) of gpu_info. Runs a command only if a runtime is installed. specs: from L(cdi_specs)."""
    found: Fact = dict.fromkeys(_RUNTIMES)
    for name, (owners, binary, _unit, _files) in _RUNTIMES.items():
        package = next((packages[owner] for owner in owners if owner in packages), None)
        if package:
            found[name] = {"version": upstream(package.version).partition("~")[0].partition("+")[0]}
        elif any(root.exists(f"{folder}/{binary}") for folder in _BINARIES):
            found[name] = {"version": _printed_version(run, binary)}
    installed = [name for name, state in found.items() if state is not None]
    units = [unit for name in installed for unit in (_RUNTIMES[name][2], _SOCKETS.get(name)) if unit]
    shown = shown_units(root, run, units)
    for name in installed:
        files = _config_files(root, _RUNTIMES[name][3])
        unit = shown.get(_RUNTIMES[name][2])
        sockets = triggers(unit or {}, shown)
        found[name].update(
            running=None if unit is None else is_active(unit) or any(map(is_active, sockets)),
            boot=None if unit is None else at_boot(unit, sockets),
            stale=is_stale([root.at(path) for path in files], unit) if unit and name in _READ_ONCE else None,
            cri=not any(_disables_cri(root.text(path) or "") for path in files) if name == "containerd" else None,
            classes=sorted({one for path in files for one in _classes(path, root.text(path) or "")}))
        found[name]["nvidia"] = "nvidia" in found[name]["classes"] or name == "podman" and bool(specs)
    return found


def _printed_version(run: Runner, binary: str) -> str | None:
    try:
        found = _VERSION.search(run([binary, "--version"], check=False, timeout=10).stdout)
    except CommandError:
        return None
    return found.group(1) if found else None


def active_units(root: Root, run: Runner, units: t.Sequence[str]) -> set[str]:
    """The active units; none if systemd does not answer."""
    return {name for name, unit in shown_units(root, run, units).items() if is_active(unit)}


def shown_units(root: Root, run: Runner, units: t.Sequence[str]) -> dict[str, dict[str, str]]:
    """Maps units to the properties in unit_files.SHOWN; empty if systemd does not answer."""
    if not units or not root.exists("/run/systemd/system"):
        return {}
    try:
        shown = run(["systemctl", "show", f"--property={','.join(SHOWN)}", *units], check=False, timeout=20).stdout
    except CommandError:
        return {}
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in shown.split("\n\n")]
    return {block["Id"]: block for block in blocks if "Id" in block and block.get("LoadState") != "not-found"}


def _config_files(root: Root, paths: t.Sequence[str]) -> list[str]:
    """The paths of files. A path that ends with a slash is a folder, and stands for all files in it."""
    return [file for path in paths for file in
            ([f"{path}{name}" for name in root.names(path)] if path.endswith("/") else [path])]


def _disables_cri(text: str) -> bool:
    return any(_CRI.search(plugins) for plugins in _DISABLED.findall(text))


def _classes(path: str, text: str) -> list[str]:
    """The runtime classes that a file declares; of Podman only C(nvidia)."""
    if path.endswith(".json"):
        try:
            runtimes = json.loads(text)["runtimes"]
            return list(runtimes) if isinstance(runtimes, dict) else []
        except (ValueError, KeyError, TypeError, RecursionError):
            return []
    if "/containers.conf" in path:
        return ["nvidia"] if _KEY.search(text) else []
    return _TABLE.findall(text)

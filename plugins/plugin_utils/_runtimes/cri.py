# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runtime classes in containerd's configuration, for all of its versions. PRIVATE to the collection.

Paths are relative to the table of the CRI plugin, whose id depends on the version of the configuration. A path that
starts with `plugins` is absolute.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import RUNTIME_CLASSES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    Configuration,
    Options,
    all_parts,
    is_nvidia,
    text_or_none,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Journal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Document, dotted, load
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import (
    Path,
    Table,
    Value,
    leaves,
    lookup,
    remove_empty,
    restore_value,
)

RUNC = "io.containerd.runc.v2"
# The id of the CRI plugin in version 1, in version 2, and from version 3 on.
V1, V2, V3 = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
DEFAULT: Path = ("containerd", "default_runtime_name")
RUNTIMES: Path = ("containerd", "runtimes")
CDI: Path = ("enable_cdi",)
# NRI is enabled from containerd 2.0 on. It is disabled in 1.7.
NRI: Path = ("plugins", "io.containerd.nri.v1.nri", "disable")


def plugin_path(plugin: str, path: Path) -> Path:
    """The absolute path of a path in the table of a plugin."""
    return path if path[0] == "plugins" else ("plugins", plugin, *path)


def read(text: str, name: str) -> Table:
    """The data of a configuration file. Checks the types of the values that this collection uses.

    name: the path of the file. Raises HostError for an unexpected type.
    """
    data = load(text, name)
    checks: list[tuple[Path, type]] = [(("version",), int), (("imports",), list), (("disabled_plugins",), list),
                                       (NRI[:1], dict), (NRI[:2], dict)]
    for plugin in (V1, V2, V3):
        tables = [("plugins", plugin, *RUNTIMES[:depth]) for depth in (0, 1, 2)]
        runtimes = lookup(data, tables[2])
        tables += [(*tables[2], runtime) for runtime in runtimes] if isinstance(runtimes, dict) else []
        checks += [(table, dict) for table in tables] + [((*table, "options"), dict) for table in tables[3:]]
    for path, kind in checks:
        value = lookup(data, path)
        strings = kind is not list or isinstance(value, list) and all(isinstance(item, str) for item in value)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or not strings):
            expected = {int: "a number", list: "a list of strings", dict: "a table"}[kind]
            raise HostError(f"{name}: {dotted(path)} must be {expected}.", "Correct it, then run again.", path=name)
    return data


def configuration(data: t.Mapping[str, Value], plugin: str, cdi: bool | None) -> Configuration:
    """The current configuration in data, the whole configuration. cdi: whether CDI is enabled without its key."""
    table = lookup(data, ("plugins", plugin))
    enabled, disabled = lookup(table, CDI), lookup(data, NRI)
    return Configuration(programs(table), text_or_none(lookup(table, DEFAULT)) or "runc",
                         enabled if isinstance(enabled, bool) else cdi,
                         not disabled if isinstance(disabled, bool) else None)


def programs(table: t.Mapping[str, Value]) -> dict[str, str | None]:
    """Maps each declared runtime class to its program, None if it is unknown. table: of the CRI plugin."""
    declared = lookup(table, RUNTIMES)
    return {name: text_or_none(lookup(runtime, ("options", "BinaryName")))
            for name, runtime in (declared.items() if isinstance(declared, dict) else ())}


def desired(cri: t.Mapping[str, Value], options: Options, former: str | None) -> dict[Path, Value]:
    """Maps the path of each setting to its desired value.

    cri: the effective table of the CRI plugin; former: the default runtime before the first run. A runtime class is a
    copy of the default runtime with NVIDIA's program, so that settings such as SystemdCgroup are kept. If the default
    runtime is not runc (kata, gVisor), it is a copy of runc.
    """
    runtimes = lookup(cri, RUNTIMES) or {}
    source: Table = {}
    for name in (former or "runc", "runc"):
        kind = str(lookup(runtimes, (name, "runtime_type")))
        # MicroK8s writes a placeholder: ${RUNTIME_TYPE}.
        is_ours = name in (*RUNTIME_CLASSES, *options.classes) or is_nvidia(programs(cri).get(name))
        if not is_ours and kind.startswith(("io.containerd.runc.", "${")):
            source = runtimes[name]
            break
    values: dict[Path, Value] = {}
    if options.nri:
        values[NRI] = False
    if options.cdi and "enable_cdi" in cri:
        values[CDI] = True
    if options.default:
        values[DEFAULT] = options.default
    for name, binary in options.classes.items():
        copied = {**nonzero_leaves(source), ("runtime_type",): RUNC, ("options", "BinaryName"): binary}
        # The keys of a table come before its subtables.
        for path in sorted(copied, key=lambda path: (len(path), path[:-1], path[-1] != "runtime_type", path)):
            values[RUNTIMES + (name,) + path] = copied[path]
    return values


def declare(document: Document, plugin: str, values: t.Mapping[Path, Value], cri: t.Mapping[str, Value], former: str
            ) -> None:
    """Sets values in a main file of containerd 1.x. cri, former: see desired."""
    runc = plugin_path(plugin, RUNTIMES) + ("runc",)
    if former == "runc" and not lookup(document.data, runc):
        # A declared runtime replaces the built-in runc. Without runc, the CRI plugin would not load.
        built_in = lookup(cri, RUNTIMES + ("runc",)) or {}
        for path, value in {("runtime_type",): RUNC, **nonzero_leaves(built_in)}.items():
            document.set(runc + path, value)
    for path, value in values.items():
        document.set(plugin_path(plugin, path), value)


def nonzero_leaves(table: t.Mapping[str, Value]) -> dict[Path, Value]:
    """Maps the path of each nonzero value of a runtime's table to this value. The dump also prints zero values."""
    found = {path: value for path, value in leaves(table).items() if value and path != ("sandboxer",)}
    if table.get("sandboxer") not in (None, "", "podsandbox"):
        found[("sandboxer",)] = table["sandboxer"]
    return found


def declares(data: t.Mapping[str, Value], classes: t.Iterable[str]) -> bool:
    """Whether a file declares one of these runtime classes."""
    return any(lookup(data, plugin_path(plugin, (*RUNTIMES, name))) for plugin in (V1, V2, V3) for name in classes)


def without_parts(text: str, name: str, journal: Journal, parts: t.Collection[str]) -> str:
    """The text with the former values of these parts; the unchanged text if it has none of these parts."""
    if name not in journal.files:
        return text
    document = without_ours(text, name, journal, parts)
    return text if leaves(load(document.text, name)) == leaves(load(text, name)) else document.text


def without_ours(text: str, name: str, journal: Journal, parts: t.Collection[str] | None = None) -> Document:
    """The text with the former values of these parts, by default of all parts of this collection."""
    parts = all_parts(journal) if parts is None else parts
    classes = sorted({*RUNTIME_CLASSES, *journal.classes})
    before = journal.before(name)
    former = read(before, name)
    document = Document(text, name)
    read(text, name)
    for plugin in (V1, V2, V3):
        root: Path = ("plugins", plugin)
        if lookup(document.data, root) is None:
            continue
        runtimes = root + RUNTIMES
        for runtime in classes:
            if runtime in parts and lookup(document.data, runtimes + (runtime,)) is not None:
                document.remove(runtimes + (runtime,))
                for path, value in leaves(lookup(former, runtimes + (runtime,)) or {}).items():
                    document.set(runtimes + (runtime,) + path, value)
        if "set_as_default" in parts and lookup(document.data, root + DEFAULT) in classes:
            restore_value(document, former, root + DEFAULT)
        if "cdi" in parts and lookup(document.data, root + CDI) is True:
            restore_value(document, former, root + CDI)
        if set(lookup(document.data, runtimes) or {}) == {"runc"} and not lookup(former, runtimes + ("runc",)):
            document.remove(runtimes + ("runc",))
        for table in (runtimes, runtimes[:3], root):
            remove_empty(document, former, table)
    if "nri" in parts and lookup(document.data, NRI) is False:
        restore_value(document, former, NRI)
    for table in (NRI[:2], NRI[:1]):
        remove_empty(document, former, table)
    document.remove_bare_headers(Document(before, name).headers)
    return document

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a runtime class is in containerd's configuration, in every version of it. PRIVATE to the collection.

Paths are relative to the table of the CRI plugin, whose name is another in each configuration version; a path that
starts with C(plugins) is absolute.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import NAMES, PARTS, Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Document, Path, dotted, load, lookup

RUNC = "io.containerd.runc.v2"
# The CRI plugin by configuration version: 1, 2, and from 3 on.
V1, V2, V3 = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
HEADER = "# Written by the Ansible collection gpuops.nvidia, which repairs what is changed here.\n"
DEFAULT: Path = ("containerd", "default_runtime_name")
RUNTIMES: Path = ("containerd", "runtimes")
CDI: Path = ("enable_cdi",)
# On from 2.0; containerd 1.7 has it switched off.
NRI: Path = ("plugins", "io.containerd.nri.v1.nri", "disable")


def place(plugin: str, path: Path) -> Path:
    """The absolute path of one that is relative to the table of C(plugin)."""
    return path if path[0] == "plugins" else ("plugins", plugin, *path)


def read(text: str, name: str) -> dict[str, t.Any]:
    """The data of a configuration file, all that is used here being of the type that containerd wants. name: a path."""
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
        strings = kind is not list or isinstance(value, list) and all(isinstance(one, str) for one in value)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or not strings):
            what = {int: "a number", list: "a list of texts", dict: "a table"}[kind]
            raise HostError(f"{name}: {dotted(path)} must be {what}.", "Correct it, then run again.", path=name)
    return data


def wanted(own: t.Mapping[str, t.Any], options: Options, former: str | None) -> dict[Path, t.Any]:
    """Path to value. own: the effective table of the CRI plugin. former: the default runtime before us.

    The runtime is a copy of the default one (so SystemdCgroup stays) with the vendor's program in front of it; where
    the default is no runc (kata, gVisor), of runc.
    """
    runtimes = lookup(own, RUNTIMES) or {}
    source: dict[str, t.Any] = {}
    for name in (former or "runc", "runc"):
        kind = str(lookup(runtimes, (name, "runtime_type")))
        # MicroK8s writes a placeholder: ${RUNTIME_TYPE}.
        if name not in NAMES and kind.startswith(("io.containerd.runc.", "${")):
            source = runtimes[name]
            break
    values: dict[Path, t.Any] = {}
    if options.nri:
        values[NRI] = False
    if options.cdi and "enable_cdi" in own:
        values[CDI] = True
    if options.set_as_default:
        values[DEFAULT] = "nvidia"
    for name, binary in options.classes.items():
        copied = set_leaves(source)
        copied.update({("runtime_type",): RUNC, ("options", "BinaryName"): binary})
        # Keys of the table before its subtables.
        for rel in sorted(copied, key=lambda rel: (len(rel), rel[:-1], rel[-1] != "runtime_type", rel)):
            values[RUNTIMES + (name,) + rel] = copied[rel]
    return values


def declare(document: Document, plugin: str, values: t.Mapping[Path, t.Any], own: t.Mapping[str, t.Any], former: str
            ) -> None:
    """Puts values into a main file of containerd 1.x."""
    runtimes = place(plugin, RUNTIMES)
    if former == "runc" and not lookup(document.data, runtimes + ("runc",)):
        # A declared runtime takes the place of the built-in runc: without it the CRI plugin would not load.
        built_in = lookup(own, RUNTIMES + ("runc",)) or {}
        for rel, value in {("runtime_type",): RUNC, **set_leaves(built_in)}.items():
            document.set(runtimes + ("runc",) + rel, value)
    for rel, value in values.items():
        document.set(place(plugin, rel), value)


def leaves(data: t.Mapping[str, t.Any], prefix: Path = ()) -> dict[Path, t.Any]:
    """Path to value of all that is no table."""
    found: dict[Path, t.Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found.update(leaves(value, (*prefix, key)))
        else:
            found[(*prefix, key)] = value
    return found


def set_leaves(table: t.Mapping[str, t.Any]) -> dict[Path, t.Any]:
    """What a runtime table really sets: the dump also prints everything that is zero."""
    found = {path: value for path, value in leaves(table).items() if value and path != ("sandboxer",)}
    if table.get("sandboxer") not in (None, "", "podsandbox"):
        found[("sandboxer",)] = table["sandboxer"]
    return found


def holds_ours(data: t.Mapping[str, t.Any]) -> bool:
    """Whether a file declares one of our runtime classes."""
    return any(lookup(data, place(plugin, RUNTIMES + ("nvidia",))) for plugin in (V1, V2, V3))


def take_back(text: str, name: str, before: str, parts: t.Collection[str]) -> str:
    """The text without some of C(PARTS), what stood there before us instead; the very same where it has none."""
    document = without_ours(text, name, before, parts)
    document.drop_bare_headers(Document(before, name).headers)
    return text if leaves(load(document.text, name)) == leaves(load(text, name)) else document.text


def without_ours(text: str, name: str, before: str, parts: t.Collection[str] = PARTS) -> Document:
    """The text without our runtime classes and settings; what stood there before us returns. name: for messages."""
    former = read(before, name)
    document = Document(text, name)
    read(text, name)
    for plugin in (V1, V2, V3):
        root: Path = ("plugins", plugin)
        if lookup(document.data, root) is None:
            continue
        runtimes = root + RUNTIMES
        for runtime in NAMES:
            if runtime in parts and lookup(document.data, runtimes + (runtime,)) is not None:
                document.remove(runtimes + (runtime,))
                for rel, value in leaves(lookup(former, runtimes + (runtime,)) or {}).items():
                    document.set(runtimes + (runtime,) + rel, value)
        if "set_as_default" in parts and lookup(document.data, root + DEFAULT) in NAMES:
            _put_back(document, former, root + DEFAULT)
        if "cdi" in parts and lookup(document.data, root + CDI) is True:
            _put_back(document, former, root + CDI)
        if set(lookup(document.data, runtimes) or {}) == {"runc"} and not lookup(former, runtimes + ("runc",)):
            document.remove(runtimes + ("runc",))
        for table in (runtimes, runtimes[:3], root):
            if lookup(document.data, table) == {} and lookup(former, table) is None:
                document.remove(table)
    if "nri" in parts and lookup(document.data, NRI) is False:
        _put_back(document, former, NRI)
    for table in (NRI[:2], NRI[:1]):
        if lookup(document.data, table) == {} and lookup(former, table) is None:
            document.remove(table)
    return document


def _put_back(document: Document, former: t.Mapping[str, t.Any], path: Path) -> None:
    value = lookup(former, path)
    if value is None:
        document.remove(path)
    elif value != lookup(document.data, path):
        document.set(path, value)

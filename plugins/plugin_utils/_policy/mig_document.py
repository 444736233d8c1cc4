# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads MIG configurations: mig-parted's file, or the ConfigMap of the MIG manager. PRIVATE.

Hosts have no YAML library. The controller converts the configuration to one document. If a module on a host reports an
error, the controller adds the name of the file to the path in the error.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import load_documents, parse
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file

_KEY = "config.yaml"
_NAMED = "mig-configs"


class MigDocument:
    """One or more MIG configurations. data: all of them, as one document in mig-parted's format."""

    def __init__(self) -> None:
        self.data: Data = {}
        self._origins: dict[str, str] = {}  # files or options by the names of layouts, and by an empty name

    def add(self, data: Section, origin: str) -> None:
        """Adds a document. Raises InputError for a layout that is already defined in another document."""
        self._origins.setdefault("", origin)
        named = data.get(_NAMED)
        if not isinstance(named, dict):
            self.data.update(data)
            return
        for name in named:
            if str(name) in self._origins:
                raise InputError(f"{name!r} is also in {self._origins[str(name)]}.", "Keep one of them.",
                                 path=f"{origin}: {_NAMED}.{name}", value=name)
            self._origins[str(name)] = origin
        self.data = {**self.data, **data, _NAMED: {**self.data.get(_NAMED, {}), **named}}

    def place(self, path: str) -> str:
        """A path in an error of the module (C(mig-configs.half[0].devices)), completed with its file."""
        if path != "config" and not path.startswith(("config.", f"{_NAMED}.")):
            return path
        name = max((known for known in self._origins if path.startswith(f"{_NAMED}.{known}")), key=len, default="")
        origin = self._origins[name]
        return f"{origin}: {path}" if origin else path


def from_options(task_vars: Section, name: object, data: object) -> MigDocument | None:
    """The configuration in a file on the controller (name), or in a mapping (data); None if both are unset. Raises
    InputError."""
    if name:
        return from_file(task_vars, str(name))
    return from_data(data) if isinstance(data, dict) and data else None


def from_file(task_vars: Section, name: str) -> MigDocument:
    """The configurations in a file on the controller. Other documents in the file are ignored. Raises InputError."""
    path = find_file(task_vars, name)
    documents = [document.data for document in load_documents(path, "config_file", name)]
    configuration, alone = MigDocument(), len(documents) == 1
    for number, data in enumerate(documents, 1):
        _add(configuration, data, path if alone else f"{path}, document {number}", alone)
    if not configuration.data:
        raise InputError(f"{path} is not a MIG configuration.",
                         f"Give a file in mig-parted's format, or a ConfigMap with it under data['{_KEY}'].",
                         path="config_file", value=name)
    return configuration


def from_data(data: Data) -> MigDocument:
    """The configuration in the option C(config): a document of mig-parted, or a ConfigMap. Raises InputError."""
    configuration = MigDocument()
    _add(configuration, data, "config" if data.get("kind") == "ConfigMap" else "", alone=True)
    return configuration


def _add(configuration: MigDocument, data: Value, origin: str, alone: bool) -> None:
    """Adds the configuration in data. alone: whether data is the only document. A document without a configuration is
    an error if it is the only one; otherwise it is skipped."""
    if isinstance(data, dict) and data.get("kind") == "ConfigMap":
        content = data.get("data")
        content = content if isinstance(content, dict) else {}
        text = content.get(_KEY)
        if isinstance(text, str):
            where = f"{origin}, data['{_KEY}']"
            inner = [document.data for document in parse(text, where)]
            if len(inner) == 1 and isinstance(inner[0], dict):
                configuration.add(inner[0], where)
                return
            raise InputError(f"{where}: one document in mig-parted's format is expected.", "Correct the ConfigMap.",
                             path=where)
        if alone:
            raise InputError(f"this ConfigMap has no text {_KEY!r}.",
                             f"It has {', '.join(map(str, content)) or 'no data'}; the MIG manager reads {_KEY!r}.",
                             path=f"{origin}, data", value=list(content), allowed=[_KEY])
        return
    if isinstance(data, dict) and (alone or _NAMED in data):
        configuration.add(data, origin)

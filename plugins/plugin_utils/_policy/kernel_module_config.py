# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the parameters of kernel modules from a ConfigMap in the values of the chart. Pure. PRIVATE.

Source: GPU Operator 26.7, "Customizing NVIDIA GPU driver parameters": one file for each module (C(nvidia-uvm.conf)),
one parameter on each line (C(uvm_disable_hmm=1)).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Value

Parameters = t.Dict[str, t.Dict[str, str]]


def find(objects: t.Sequence[Value], name: str | None) -> Parameters | None:
    """C({module: {parameter: value}}) from the ConfigMap with this name in objects, None if objects do not contain it.
    Raises InputError for a line that is not a parameter."""
    for item in objects:
        metadata = item.get("metadata") if isinstance(item, dict) and item.get("kind") == "ConfigMap" else None
        if name and isinstance(metadata, dict) and metadata.get("name") == name:
            data = item.get("data")
            return {str(file)[:-len(".conf")]: _parameters(name, str(file), str(text or ""))
                    for file, text in (data.items() if isinstance(data, dict) else ()) if str(file).endswith(".conf")}
    return None


def _parameters(name: str, file: str, text: str) -> dict[str, str]:
    parameters = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InputError(f"ConfigMap {name}, {file}: {word!r} is not a parameter.",
                             "Write one parameter per line, such as NVreg_RestrictProfilingToAdminUsers=0.",
                             path=f"extraObjects.{name}.data.{file}", value=word)
        parameters[key] = value
    return parameters

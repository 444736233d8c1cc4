# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MIG layouts of a cluster: those for all known GPU models, and the names in a ConfigMap. Pure. PRIVATE."""

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards, profile_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import parse


@functools.lru_cache(maxsize=None)
def default_config() -> dict[str, list[Data]]:
    """C({name: [{device-filter, devices, mig-enabled, mig-devices}]}) for all models in the tables of GPUs.

    The names are those that the MIG manager generates on a GPU: all-disabled, all-enabled, all-balanced, and one for
    each profile. C(device-filter) lists the models to which an entry applies.
    """
    configs: dict[str, list[Data]] = {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "all-enabled": [{"devices": "all", "mig-enabled": True, "mig-devices": {}}],
    }
    for device in boards.known():
        target = profile_names.Target("gpu", 0, device, "", device, boards.profiles_of(device))
        names = ["all-balanced", *(f"all-{profile.name.replace('+', '.')}" for profile in target.profiles or ())]
        for name in names:
            desired = profile_names.generate(name, [target])["gpu"]
            counts = {profile: count for (profile, _slices), count in (desired.devices or {}).items()}
            _add(configs.setdefault(name, []), f"0x{device.upper()}10DE", counts)
    return configs


def names_in(texts: t.Mapping[str, object]) -> list[str]:
    """The names below C(mig-configs) in the files of a ConfigMap (texts). A file that is not valid YAML is ignored."""
    found: dict[str, None] = {}
    for text in texts.values():
        try:
            documents = parse(str(text), "")
        except InputError:
            continue
        for document in documents if len(documents) == 1 else ():
            # Read from the text, because there the name "off" is not converted to a boolean.
            found.update(dict.fromkeys(str(path[1]) for path in document.lines
                                       if len(path) == 2 and path[0] == "mig-configs" and isinstance(path[1], str)))
    return list(found)


def _add(entries: list[Data], device: str, counts: dict[str, int]) -> None:
    for entry in entries:
        if entry["mig-devices"] == counts:
            entry["device-filter"].append(device)
            return
    entries.append({"device-filter": [device], "devices": "all", "mig-enabled": True, "mig-devices": counts})

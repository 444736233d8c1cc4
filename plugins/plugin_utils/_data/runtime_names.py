# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The option runtime of container_toolkit, and the variable with the same meaning: names of runtimes. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import CHOOSING, RUNTIMES


def names_in(value: object) -> list[str]:
    """The names in a list, or in a text that is split at commas as Ansible does it. Without a value, only `auto`."""
    if isinstance(value, (list, tuple)):
        return [str(name) for name in value]
    return str(value).split(",") if value else ["auto"]


def check(names: t.Sequence[str], path: str = "runtime", **paths: object) -> None:
    """Raises InputError for names that exclude each other.

    path: the option or variable with the names. paths: the values of options that belong to one runtime.
    """
    given, allowed = list(names), [*CHOOSING, *RUNTIMES]
    choosing = [name for name in given if name in CHOOSING]
    twice = next((name for name in given if given.count(name) > 1), None)
    if not given:
        raise InputError("no runtime is named.", "Name at least one runtime, or set auto or all.", path=path,
                         value=given, allowed=allowed)
    if twice:
        raise InputError(f"{twice} is named twice.", "Name each runtime once.", path=path, value=given, allowed=allowed)
    if choosing and len(given) > 1:
        raise InputError(f"{choosing[0]} excludes other names.",
                         f"Set only {choosing[0]}, or only names of runtimes.", path=path, value=given, allowed=allowed)
    if len(given) == 1 and given != ["all"]:
        return
    for option, value in paths.items():
        if value:
            raise InputError(f"it is the path of one runtime, but {path} is {', '.join(given)}.",
                             f"Omit {option}, or configure the runtime with this path in a task of its own.",
                             path=option, value=value, allowed=f"only if {path} is auto or one name")

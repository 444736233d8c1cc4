# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of systemd units: variables and arguments of services."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def environment(env: t.Mapping[str, object], path: str) -> str:
    """The lines of a unit that set variables. path: the option with env. Raises InputError for a name or value that a
    unit cannot contain."""
    env = {name: value for name, value in env.items() if value is not None}
    for name, value in env.items():
        if not _NAME.match(name) or not str(value).isprintable():
            raise InputError(f"{name!r} with the value {value!r} is not a variable.",
                             "Write a name of letters, digits and underscores, and a value without line breaks.",
                             path=path, value=name)
    return "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in sorted(env.items()))


def arguments(args: t.Iterable[object], path: str) -> str:
    """The arguments for the end of a command line. path: the option with args. Raises InputError for what a command
    line cannot contain."""
    texts = [str(one) for one in args]
    wrong = next((one for one in texts if not one.isprintable()), None)
    if wrong is not None:
        raise InputError(f"{wrong!r} is not an argument.", "Write it without line breaks.", path=path, value=wrong)
    # A command line, unlike a variable, expands dollar signs.
    return "".join(f" {_quoted(one).replace('$', '$$')}" for one in texts)


def _quoted(text: str) -> str:
    """The text in double quotes, with escapes for systemd ("Quoting" in systemd.syntax, "Specifiers" in systemd.unit).
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The argument specifications of the modules that run on hosts."""

from __future__ import annotations

import importlib
import typing as t
from pathlib import Path

from ansible.module_utils import basic

MODULES = sorted(path.stem for path in (Path(__file__).parents[3] / "plugins" / "modules").glob("[a-z]*.py")
                 if "def main" in path.read_text())  # the others are the documentation of an action
Spec = t.Dict[str, t.Any]


class _Called(Exception):
    """Raised instead of the start of a module."""


def load(name: str) -> t.Any:
    """A module by its name."""
    return importlib.import_module(f"ansible_collections.gpuops.nvidia.plugins.modules.{name}")


def spec(name: str) -> Spec:
    """The arguments with which a module creates its AnsibleModule, among them C(argument_spec)."""
    found: Spec = {}

    def record(_self: t.Any, **arguments: t.Any) -> None:
        found.update(arguments)
        raise _Called

    real = basic.AnsibleModule.__init__
    basic.AnsibleModule.__init__ = record
    try:
        load(name).main()
    except _Called:
        pass
    finally:
        basic.AnsibleModule.__init__ = real
    return found

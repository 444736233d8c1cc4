# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kills a module in the middle of its plan; copied to a lab host beside a wrapper of its Python.

C(/run/kill-step) holds C(before) or C(after) and, on a second line, the id of a step: the process gets SIGKILL right
before or right after that step is executed. It hooks the one function from which all modules execute steps, so the
product needs no switch for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys

ORDER = "/run/kill-step"


def arm(module):  # type: ignore[no-untyped-def]
    """Wraps run_step of the loaded module."""
    with open(ORDER, encoding="utf-8") as handle:
        moment, wanted = handle.read().rstrip("\n").split("\n")
    original = module.run_step

    def run_step(execute, step):  # type: ignore[no-untyped-def]
        if moment == "before" and step.id == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        original(execute, step)
        if moment == "after" and step.id == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    module.run_step = run_step


class Hook(importlib.abc.MetaPathFinder):
    """Lets the other finders load C(module_utils._result), then arms it."""

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        """Delegates, and wraps the loader of the one module that matters."""
        if not fullname.endswith("gpuops.nvidia.plugins.module_utils._result"):
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            execute(module)
            if module.__name__ == fullname:  # one loader serves all modules of a payload
                arm(module)

        spec.loader.exec_module = exec_module
        return spec


if os.path.exists(ORDER):
    sys.meta_path.insert(0, Hook())

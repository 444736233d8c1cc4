# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kills a module in the middle of its plan; the file is copied to a lab host together with a wrapper of its Python.

C(/run/kill-step) contains orders of two lines: a moment and the id of a step. The process is killed with SIGKILL right
before that step is executed (C(before)), right after it (C(after)), or as soon as the step has replaced a file that is
not a record of the collection (C(written); after the step if it replaces none).

If there are several orders, the process itself carries out the last one. For each earlier order, it forks when it has
just started, and the fork is killed: this is the same as several runs of the module, one after the other. An order is
removed from the file when it has been carried out, but for the last one. If a fork ends without being killed, the
process continues with its own order, and that order is the first in the file.

It patches the only function from which all modules execute steps, so the product needs no switch for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys

ORDERS = "/run/kill-step"
RECORDS = "/var/lib/gpuops/"


def die():  # type: ignore[no-untyped-def]
    """Kills this process immediately."""
    os.kill(os.getpid(), signal.SIGKILL)


def my_order():  # type: ignore[no-untyped-def]
    """The moment and the step of this process, which can be a fork."""
    with open(ORDERS, encoding="utf-8") as handle:
        lines = handle.read().splitlines()
    while len(lines) > 2:
        fork = os.fork()
        if not fork:
            from ansible.module_utils.basic import AnsibleModule

            # The files of the payload are the parent's; so is the answer.
            AnsibleModule.exit_json = AnsibleModule.fail_json = lambda *args, **named: os._exit(1)
            break
        if os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) != -signal.SIGKILL:
            break
        del lines[:2]
        with open(ORDERS, "w", encoding="utf-8") as handle:
            handle.write("\n".join(lines) + "\n")
    return lines[:2]


def arm(module):  # type: ignore[no-untyped-def]
    """Wraps run_step of the loaded module."""
    moment, wanted = my_order()
    original = module.run_step

    def replace(source, target, really=os.replace):  # type: ignore[no-untyped-def]
        really(source, target)
        if not str(target).startswith(RECORDS):
            die()

    def run_step(execute, step):  # type: ignore[no-untyped-def]
        mine = step.id == wanted
        if mine and moment == "before":
            die()
        if mine and moment == "written":
            os.replace = replace
        original(execute, step)
        if mine:
            die()

    module.run_step = run_step


class Hook(importlib.abc.MetaPathFinder):
    """An import hook that patches C(module_utils._result) after the other finders have loaded it."""

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        """Delegates to the other finders, and wraps the loader of this one module."""
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


if os.path.exists(ORDERS):
    sys.meta_path.insert(0, Hook())

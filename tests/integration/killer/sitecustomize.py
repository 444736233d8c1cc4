# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kills a module in the middle of its plan; copied to a lab host beside a wrapper of its Python.

C(/run/kill-step) holds orders of two lines, a moment and the id of a step. The process gets SIGKILL right before that
step is executed (C(before)), right after it (C(after)), or as soon as the step has put a file in its place that is not
the collection's own record (C(written); after the step where it puts none).

Of several orders the process itself carries out the last one. For each one before, it forks when it has just started,
and the fork is killed: as if the module had been run as often, one run after the other. An order is removed from the
file when it has been carried out, but for the last one. When a fork ends without being killed, the process itself goes
on with its order, and that order is the first in the file.

It hooks the one function from which all modules execute steps, so the product needs no switch for it.
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
    """Ends this process here and now."""
    os.kill(os.getpid(), signal.SIGKILL)


def my_order():  # type: ignore[no-untyped-def]
    """Moment and step of this process, which may be a fork."""
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


if os.path.exists(ORDERS):
    sys.meta_path.insert(0, Hook())

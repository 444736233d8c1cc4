# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports Ansible and the libraries, then forks a child that is ansible-playbook for each line of its input.

It runs in the Python of the user's environment and has nothing of the checkout on its path. A line is
C({argv, env, cwd, output}); the answers are the child's number and its exit code. Nothing was parsed, read or connected
before a fork: a run differs from one of the program in what is imported already, and in that the collection's code is
compiled once and not in each run.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from importlib.machinery import SourceFileLoader

# The libraries cost a third of a second in each task that asks a cluster.
IMPORTED = ("ansible.cli.playbook", "ansible.executor.playbook_executor", "ansible.executor.task_queue_manager",
            "ansible.plugins.action.normal", "ansible.plugins.connection.ssh", "ansible.plugins.strategy.linear",
            "kubernetes.client", "kubernetes.config")


def main() -> None:
    """Serves until its input ends."""
    sys.path.pop(0)  # the folder of this file
    for name in IMPORTED:
        importlib.import_module(name)
    keep_compiled()
    gc.freeze()
    gc.set_threshold(50_000)  # a run ends before its garbage matters
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            run(order)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def keep_compiled() -> None:
    """Ansible compiles the files of collections in each process; here byte code is kept beside them, as Python does."""
    from ansible.utils.collection_loader import _collection_finder

    loader = _collection_finder._AnsibleCollectionPkgLoaderBase
    compile_anew = loader.get_code

    def get_code(self, name):  # type: ignore[no-untyped-def]
        path = self.get_filename(name)
        if path and os.path.isfile(path):
            return SourceFileLoader(name, path).get_code(name)
        return compile_anew(self, name)

    loader.get_code = get_code


def run(order):  # type: ignore[no-untyped-def]
    """In the child: becomes ansible-playbook, and ends with it."""
    os.setsid()
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = order["argv"]
    from ansible.cli.playbook import main as playbook

    code = 1
    try:
        playbook(order["argv"])
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException:  # as the program would
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

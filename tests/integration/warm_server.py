# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports Ansible, the collection and libraries, then forks an ansible-playbook for each line of its input.

It runs in the Python of the user's environment and has nothing of the checkout on its path. A line is C({argv, env,
cwd, output}); the answers are the child's number and its exit code. Nothing is parsed, read or connected before a fork,
so a run differs from one of the program only in what is already imported and in when garbage is collected.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import sys

# The libraries cost a third of a second in each task that asks a cluster; the plugins are those that each run loads.
IMPORTED = ("ansible.cli.playbook", "ansible.executor.playbook_executor", "ansible.executor.task_queue_manager",
            "ansible.plugins.action.normal", "ansible.plugins.connection.ssh", "ansible.plugins.strategy.linear",
            "kubernetes.client", "kubernetes.config",
            *(f"ansible.plugins.{name}" for name in (
                "become.su", "become.sudo", "cache.memory", "callback.default", "callback.junit", "callback.minimal",
                "callback.oneline", "callback.tree", "connection.local", "connection.psrp", "connection.winrm",
                "inventory.auto", "inventory.host_list", "inventory.ini", "inventory.script", "inventory.toml",
                "inventory.yaml", "shell.cmd", "shell.sh", "vars.host_group_vars")),
            "multiprocessing.popen_fork", "multiprocessing.synchronize")


def main() -> None:
    """Serves until the end of its input."""
    sys.path.pop(0)  # the folder of this file
    for name in IMPORTED:
        importlib.import_module(name)
    if "GPUOPS_KEPT_CODE" in os.environ:  # not in a benchmark
        import_collection()
        gc.set_threshold(50_000)  # a run makes few cycles, and looking for them takes a twentieth of its time
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            run(order)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def import_collection():  # type: ignore[no-untyped-def]
    """Imports the action plugins of the collection and their imports, which Ansible would compile in each run, because
    it reads no compiled files."""
    import ansible.cli

    ansible.cli.init_plugin_loader()
    ansible.cli.init_plugin_loader = lambda _paths: None  # a run would warn that it has been called
    package = "ansible_collections.gpuops.nvidia.plugins.action"
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{found.name}")
    importlib.import_module("ansible_collections.ansible.builtin")  # reads its long list of names
    read_options()
    compile_templates()


def read_options():  # type: ignore[no-untyped-def]
    """Reads the options of Ansible plugins from their documentation; each run reads them for all plugins."""
    from ansible.plugins import loader

    for name in ("become", "cache", "callback", "connection", "inventory", "shell", "strategy", "vars"):
        for _plugin in getattr(loader, f"{name}_loader").all(class_only=True):
            pass
    for plugins, name in ((loader.filter_loader, "bool"), (loader.test_loader, "failed")):
        plugins.get(name)  # looks at all


def compile_templates():  # type: ignore[no-untyped-def]
    """Compiles the templates of the operands."""
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import render

    for component in render.ORDER:
        for name in render._templates(component):
            render._environment().get_template(name)


def run(order):  # type: ignore[no-untyped-def]
    """In the child process: becomes ansible-playbook, and ends with it."""
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

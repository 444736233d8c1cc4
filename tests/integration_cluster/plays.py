# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs ansible-playbook as a user of the installed collection does. The working directory is not the checkout."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from tests.integration import user

LOCAL = {"ansible_connection": "local", "ansible_become": False,
         "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
install = functools.cache(user.install)


def run(folder: Path, name: str, inventory: dict[str, Any], *words: str) -> user.Run:
    """Runs a playbook of the collection, with an inventory that is written to the folder."""
    install()
    path = folder / "inventory.json"
    path.write_text(json.dumps(inventory))
    done = user.playbook(name, [path], *words)
    # An inventory for a cluster alone has no gpu_hosts, and one of hosts no gpu_control.
    assert "Could not match supplied host pattern" not in done.output, done.output
    return done


def playbook(folder: Path, name: str, inventory: dict[str, Any], *words: str) -> str:
    """The output of a run that succeeds, or in which no host of gpu_hosts responds."""
    done = run(folder, name, inventory, *words)
    assert done.rc in (0, 4), done.output
    return done.output


def play(folder: Path, tasks: list[dict[str, Any]], *words: str, hosts: str = "localhost") -> user.Run:
    """Runs a playbook with these tasks."""
    install()
    path = folder / "play.yml"
    path.write_text(json.dumps([{"hosts": hosts, "gather_facts": False, "tasks": tasks}]))
    return user.ansible("ansible-playbook", str(path), *words)


def module(folder: Path, name: str, *words: str, **options: Any) -> dict[str, Any]:
    """The result of a module of the collection; C(shown) is the output of its task."""
    done = play(folder, [{"name": name, f"gpuops.nvidia.{name}": options}], *words)
    assert done.results, done.output
    return {**done.results[-1]["result"], "shown": done.output.partition("PLAY RECAP")[0]}

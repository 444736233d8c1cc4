# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated hosts of an inventory: for each of them, a program on the controller replaces Python.

No module of the collection runs, so nothing is read from the controller or changed on it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.integration.hostile import sound

Data = dict[str, Any]
ANSWERING = Path(__file__).parent / "python3"
# Runs what ssh would run on the host, which is its last word.
SSH = b"#!/bin/sh\nfor command; do :; done\nexec /bin/sh -c \"$command\"\n"


def prepare(folder: Path, facts: Data) -> None:
    """Stores the answers of a sound host; each host returns them for modules without another answer."""
    (folder / "recorded").mkdir(parents=True)
    for module, answer in sound.answers(facts).items():
        (folder / "recorded" / f"{module}.1").write_text(json.dumps(answer))


def host(folder: Path, name: str, answers: Mapping[str, bytes]) -> Data:
    """The variables of a host of the inventory. answers: maps modules to what the host prints instead of a sound
    answer."""
    own = folder / name
    own.mkdir()
    shutil.copy(ANSWERING, own / "python3")
    for module, output in answers.items():
        (own / module).write_bytes(output)
    return {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": str(own / "python3")}


def over_ssh(folder: Path, name: str, shell: bytes) -> Data:
    """The variables of a host to which a program on the controller connects in place of ssh. shell: of the host."""
    found, own = host(folder, name, {}), folder / name
    for program, text in {"shell": shell, "ssh": SSH}.items():
        (own / program).write_bytes(text)
        (own / program).chmod(0o755)
    return {**found, "ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_remote_tmp": str(own / "tmp"),
            "ansible_ssh_executable": str(own / "ssh"), "ansible_ssh_transfer_method": "piped",
            "ansible_shell_executable": str(own / "shell")}


def asked(folder: Path, name: str) -> set[str]:
    """The modules that were started on a host."""
    return {one.name.partition("call-")[2].rpartition(".")[0] for one in (folder / name).glob("call-*")}

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""status.yml: what it refuses before it reads a host."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.states import STATES

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize("value", [["NotReady", "Broken"], "NotReady"])
def test_states_that_do_not_exist_are_one_error(tmp_path: pathlib.Path, value: object) -> None:
    inventory = {"gpu_hosts": {"hosts": {"a": {"ansible_connection": "local", "ansible_become": False}},
                               "vars": {"gpu_status_fail_on": value}}}
    (tmp_path / "inventory.json").write_text(json.dumps(inventory))
    done = subprocess.run([str(pathlib.Path(sys.executable).with_name("ansible-playbook")), "-i", "inventory.json",
                           str(ROOT / "playbooks" / "status.yml")], capture_output=True, text=True, check=False,
                          timeout=300, env={**os.environ, "NO_COLOR": "1"}, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    message, = (json.loads(text)["msg"] for text in re.findall(r"^fatal: \[.\]: FAILED! => (.*)$", done.stdout, re.M))
    assert message.startswith(f"gpu_status_fail_on: {json.dumps(value)} is invalid (allowed: a list of "
                              f"{', '.join(STATES)}).")
    assert "Collect the facts" not in done.stdout

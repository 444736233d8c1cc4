# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of site.yml, verify.yml and remove.yml: the reasons for hosts and for the cluster, whatever has failed."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]
SKIPPED = "The driver and MPS pods of n2 have not been removed or replaced. n2: Node n2 is held by another run."


def play(folder: pathlib.Path, name: str, hosts: dict[str, dict[str, Any]], *words: str, **variables: Any
         ) -> subprocess.CompletedProcess[str]:
    """Runs the last play of a playbook on hosts with these variables. The one of site ends like that of verify."""
    plan: dict[str, Any] = {"release": "26.7.0", "policy": "defaults", "format": "chart", "disruption": "never",
                            "placement": "host", "notes": [], "explanations": {}, "hosts": {}, "rejected": {},
                            "cluster": None}
    given = {"ansible_connection": "local", "ansible_become": False, "preflight_plan": plan, **variables}
    inventory = {"gpu_hosts": {"hosts": hosts, "vars": given}}
    (folder / "inventory.json").write_text(json.dumps(inventory))
    last = yaml.safe_load((ROOT / "playbooks" / f"{name}.yml").read_text())[-1]
    (folder / "play.yml").write_text(yaml.safe_dump([{**last, "hosts": "gpu_hosts", "vars": {"gpu_plan": plan}}]))
    return subprocess.run([str(pathlib.Path(sys.executable).with_name("ansible-playbook")), "-i",
                           "inventory.json", "play.yml", *words], capture_output=True, text=True, check=False,
                          timeout=300, env={**os.environ, "NO_COLOR": "1"}, cwd=folder)


def fatal(output: str) -> list[str]:
    """The message of each task that failed on a host, in order."""
    return [json.loads(text)["msg"] for text in re.findall(r"^fatal: \[.\]: FAILED! => (.*)$", output, re.M)]


@pytest.mark.parametrize(("failing", "problems"), [("ab", [SKIPPED]), ("b", [SKIPPED]), ("", [])])
@pytest.mark.parametrize("name", ["site", "remove"])
def test_the_cluster_has_its_say_though_all_hosts_fail(tmp_path: pathlib.Path, name: str, failing: str,
                                                       problems: list[str]) -> None:
    """The cluster reports once, and each host reports its own failure. Some tags skip the comparison."""
    hosts = {host: {"maintenance_failure": f"{host} does not answer"} if host in failing else {} for host in "ab"}
    result = {"problems": problems} if name == "site" else {
        "msg": SKIPPED, "error": {"nodes": dict.fromkeys(["n2"][:len(problems)], "It is held.")}}
    done = play(tmp_path, name, hosts, "--tags", "driver", operands_result=result)
    assert done.returncode == (2 if failing or problems else 0), done.stdout + done.stderr
    found, count = fatal(done.stdout), len(failing)
    assert sorted(found[:count]) == [f"{host} does not answer" for host in failing], done.stdout
    assert found[count:] == problems, done.stdout


def test_the_report_and_the_cluster_come_though_no_host_can_be_read(tmp_path: pathlib.Path) -> None:
    """The last play collects the facts of the hosts, and this fails on all of them."""
    done = play(tmp_path, "site", {"a": {}, "b": {}}, operands_result={"problems": [SKIPPED]},
                ansible_python_interpreter="/nonexistent/python")
    assert done.returncode == 2 and "Print the components of the hosts" in done.stdout, done.stdout + done.stderr
    first, second, last = fatal(done.stdout)
    assert first == second and "The host did not run the module" in first and last == SKIPPED

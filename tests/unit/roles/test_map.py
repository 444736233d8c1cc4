# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where playbooks deliver each component: in which order, and with which task files of the roles."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components

ROOT = pathlib.Path(__file__).parents[3]
SOFTWARE = "roles/software/tasks/host.yml"
# Task files with which a user of a single role begins.
OWN = {f"roles/{role.name}/tasks/{name}.yml" for role in (ROOT / "roles").iterdir()
       for name in ("main", "verify", "remove")}


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def calls(part: Any, path: str) -> Iterator[str]:
    """The paths of the task files that plays or tasks of a file run."""
    for one in part if isinstance(part, list) else [part]:
        if not isinstance(one, dict):
            continue
        yield from (f"roles/{role['role'].rsplit('.', 1)[-1]}/tasks/main.yml" for role in one.get("roles") or [])
        for verb in ("import", "include"):
            role, tasks = one.get(f"ansible.builtin.{verb}_role"), one.get(f"ansible.builtin.{verb}_tasks")
            if role:
                yield f"roles/{role['name'].rsplit('.', 1)[-1]}/tasks/{role.get('tasks_from', 'main')}.yml"
            if tasks:
                names = tasks if isinstance(tasks, str) else tasks["file"]
                # A file that a template chooses: all of its folder that the template names.
                found = [name for name in (ROOT / path).parent.glob("*.yml") if name.stem in names]
                yield from (str(name.relative_to(ROOT)) for name in found)
        for key in ("tasks", "block", "rescue", "always"):
            yield from calls(one.get(key) or [], path)


def reached(*paths: str) -> set[str]:
    """All task files that these files run, directly or indirectly."""
    found: set[str] = set()
    todo = list(paths)
    while todo:
        path = todo.pop()
        new = set(calls(read(path), path)) - found
        found |= new
        todo += new
    return found


@pytest.mark.parametrize("name", ["site", "remove"])
def test_playbooks_list_the_components_of_a_cluster_in_their_order(name: str) -> None:
    plays = read(f"playbooks/{name}.yml")
    known, = [play["vars"]["gpu_all_components"] for play in plays if "gpu_all_components" in play.get("vars", {})]
    assert known == [entry.name for entry in components.IN_CLUSTERS]


def test_a_component_of_a_cluster_is_the_templates_of_its_role() -> None:
    for entry in components.COMPONENTS:
        templates = list((ROOT / "roles" / entry.name / "templates").glob("*.j2"))
        assert bool(templates) == ("cluster" in entry.places), entry.name


def test_a_component_of_a_host_has_one_task_file() -> None:
    """The validator has none there: site.yml runs its CUDA samples when it collects the facts."""
    used = reached("playbooks/site.yml")
    for entry in components.ON_HOSTS:
        own = f"roles/{entry.name}/tasks/host.yml"
        path = SOFTWARE if entry.name in components.SOFTWARE else own
        assert path in used or entry.name == "validator", entry.name
        assert path == own or not (ROOT / own).exists(), entry.name


def test_each_task_file_is_run_by_a_playbook() -> None:
    """Or by a task file with which a user of a single role starts."""
    playbooks = [str(path.relative_to(ROOT)) for path in (ROOT / "playbooks").glob("*.yml")]
    own = {path for path in OWN if (ROOT / path).exists()}
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("roles/*/tasks/*.yml")}
    assert files == reached(*playbooks) | own


def test_a_single_role_of_a_host_installs_as_the_playbooks_do() -> None:
    """All tasks with nvidia_software belong to the role software."""
    for name in components.SOFTWARE:
        install, verify = read(f"roles/{name}/tasks/main.yml")
        remove, = read(f"roles/{name}/tasks/remove.yml")
        assert {*calls(install, "")} == {SOFTWARE} and "ansible.builtin.import_tasks" in verify
        assert {*calls(remove, "")} == {SOFTWARE.replace("host", "remove")}
        assert name in install["vars"]["software_components"] and list(remove["vars"]["software_components"]) == [name]
    users = [path.parts[-3] for path in ROOT.glob("roles/*/tasks/*.yml") if "nvidia_software:" in path.read_text()]
    assert users == ["software", "software"]

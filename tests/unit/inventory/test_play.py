# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the play itself apply to every host, with lower precedence than those of the inventory."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions import play_vars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import inventory_vars, settings

HOSTS: dict[str, dict[str, Any]] = {
    "a": {"pick": "one", "gpu_disruption": "drain", "preflight_found": {"facts": {"schema": 2}}},
    "b": {"pick": "two", "gpu_release": "26.3.3"},
}


class HostVars(dict[str, Any]):
    """Ansible's hostvars."""

    def raw_get(self, host: str) -> Any:
        """Returns the variables without templating."""
        return self[host]


def seen(play: dict[str, Any]) -> dict[str, Any]:
    """The task_vars of the first host."""
    hostvars = play_vars.PlayHostVars(HostVars(HOSTS), play, lambda value, variables: value.format(**variables))
    return {"ansible_play_hosts_all": ["a", "b"], "inventory_hostname": "a", "hostvars": hostvars}


def test_the_play_wins_over_the_inventory_on_every_host() -> None:
    found = settings.option_values({}, inventory_vars.variables(seen({"gpu_disruption": "idle"})), {})
    assert (found["disruption"], found["release"], found["policy"]) == ("idle", "26.3.3", None)


def test_without_the_play_hosts_speak_for_themselves() -> None:
    assert settings.option_values({}, inventory_vars.variables(seen({})), {})["disruption"] == "drain"


def test_templates_of_the_play_are_each_hosts_own() -> None:
    task_vars = seen({"mig_manager_selected": "layout {pick} of {kind}", "kind": "A100"})
    assert inventory_vars.overrides(task_vars) == {"a": {"mig_manager_selected": "layout one of A100"},
                                                   "b": {"mig_manager_selected": "layout two of A100"}}


def test_what_was_registered_is_found_as_before() -> None:
    task_vars = seen({"other": "x"})
    assert inventory_vars.facts(task_vars) == {"a": {"schema": 2}, "b": None}
    mine = task_vars["hostvars"]["b"]
    assert (set(mine), len(mine)) == ({"pick", "gpu_release", "other"}, 3)
    with pytest.raises(KeyError):
        mine["nothing"]

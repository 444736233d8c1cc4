# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What no policy gets below its level: rendered objects, read as the vendor's managers read them."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import _deploy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.render import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.refusals import PolicyError
from ansible_collections.gpuops.nvidia.tests.unit.cluster.clusters import facts, node, plan

# True to Go's ParseBool, and what a shell script or another version may take for it.
TRUE = ("1", "t", "T", "TRUE", "true", "True", "yes", "on", "tRuE")
FALSE = ("", "0", "f", "F", "FALSE", "false", "False")
# By variable of the managers the lowest level that allows it.
FORBIDDEN = {"ENABLE_GPU_POD_EVICTION": "drain", "ENABLE_AUTO_DRAIN": "drain", "WITH_REBOOT": "reboot"}
LEVELS = ("never", "idle", "drain", "reboot")
ARGUMENTS: tuple[list[str], ...] = ([], ["nvidia-mig-manager --with-reboot"], ["nvidia-mig-manager -r=1"],
                                    ["export WITH_REBOOT=t; /bin/entrypoint.sh"])
UPGRADES: tuple[dict[str, Any], ...] = (
    {}, {"autoUpgrade": True, "drain": {"enable": True, "force": True}, "podDeletion": {"force": True}})
CAPABLE = {"feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/mig.capable": "true"}


def policy(value: str, args: list[str], upgrade: dict[str, Any]) -> dict[str, Any]:
    variables = [{"name": name, "value": value} for name in (
        *FORBIDDEN, "DRAIN_USE_FORCE", "DRAIN_DELETE_EMPTYDIR_DATA")]
    return {"driver": {"manager": {"env": variables}, "env": variables, "upgradePolicy": upgrade},
            "migManager": {"env": variables, "args": args, "config": {"default": "all-disabled"}},
            "devicePlugin": {"config": {"name": "c", "create": True, "data": {"a": "version: v1\n"}}}}


def allowed(made: dict[str, Any]) -> set[str]:
    """The variables that are not false where their managers read them, and what a shell would run for arguments."""
    found = set()
    for component, name, reads in (("driver", "k8s-driver-manager", ("ENABLE_GPU_POD_EVICTION", "ENABLE_AUTO_DRAIN")),
                                   ("mig_manager", "nvidia-mig-manager", ("WITH_REBOOT",))):
        pods = [one["spec"]["template"]["spec"] for one in render(component, made) if one["kind"] == "DaemonSet"]
        for container in (one for pod in pods for one in (*pod["containers"], *pod.get("initContainers", ()))):
            if container["name"] == name:
                assert "envFrom" not in container
                found |= {item["name"] for item in container["env"] if item["name"] in reads
                          and item.get("value", "?") not in FALSE}
                if component == "mig_manager" and re.search(r"(?i)reboot|-r\b", " ".join(container["args"])):
                    found.add("WITH_REBOOT")
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_no_policy_gets_what_its_level_forbids(level: str) -> None:
    cases = [(value, ARGUMENTS[0], UPGRADES[1]) for value in (*TRUE, *FALSE)]
    cases += [("true", args, upgrade) for args, upgrade in itertools.product(ARGUMENTS, UPGRADES)]
    for value, args, upgrade in cases:
        try:
            made = plan(policy(value, args, upgrade), facts(node(**CAPABLE)), disruption=level)
        except PolicyError as error:
            assert args and level != "reboot", error
            continue
        forbidden = {name for name, needs in FORBIDDEN.items() if LEVELS.index(level) < LEVELS.index(needs)}
        assert not allowed(made) & forbidden, (value, args)
        if value == "true" and not args:
            assert allowed(made) == set(FORBIDDEN) - forbidden


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("now", [{}, {"nvidia.com/mig.config": "all-1g.10gb"}, {"nvidia.com/mig.config": ""}])
def test_no_node_is_asked_for_another_layout_below_idle(level: str, now: dict[str, str]) -> None:
    made = plan(policy("true", [], {}), facts(node(**CAPABLE, **now)), disruption=level)
    change = _deploy.plan_present(_deploy.Node("n1", {**CAPABLE, **now}), _deploy.parse_deploy(made["deploy"]),
                                  _deploy.Terms(0))
    assert change is not None
    asked = change.labels.get("nvidia.com/mig.config")
    assert asked == (None if level == "never" or any(now.values()) else "all-disabled")

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_verify as a task on a host: what it compares, when it fails, and when it reads the host again.

The state at the beginning of the run is no reason for a failure.
"""

from __future__ import annotations

import copy
import json
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.action.gpu_verify import ActionModule
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act
from ansible_collections.gpuops.nvidia.tests.unit.simulated.samples import MIG_CONFIG
from ansible_collections.gpuops.nvidia.tests.unit.simulated.samples import facts as host

EXPECTED = {"driver": {"placement": "host", "state": "present", "version": "595.91.07", "branch": "595",
                       "kernel_module_type": "open"}}
BARE = facts_sample.facts()
GOOD = facts_sample.driven(copy.deepcopy(BARE), "595.91.07", "open")


def states(before: dict[str, Any] | None, now: dict[str, Any], given: dict[str, Any] | None = None,
           check: bool = False) -> tuple[list[str], int]:
    """(the states of the checks, how often the host was read)."""
    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(check_mode=check)
    looks: list[int] = []
    action._gather = lambda _vars: looks.append(1) or now  # type: ignore[method-assign]
    registered = {} if before is None else {"preflight_found": {"facts": before}}
    arguments = {"expected": EXPECTED, "facts": given, "pending": None, "components": None, "labels": None,
                 "samples": None, "previewed": False}
    return [one["state"] for one in action._host(arguments, task_vars(a=registered))], len(looks)


@pytest.mark.parametrize(("before", "now", "given", "check", "expected"), [
    (GOOD, BARE, None, False, (["ok"], 0)),
    (BARE, GOOD, None, False, (["ok"], 1)),
    (BARE, BARE, None, False, (["absent"], 1)),
    (None, GOOD, None, False, (["ok"], 1)),
    (GOOD, GOOD, BARE, False, (["absent"], 0)),
    (BARE, GOOD, None, True, (["pending"], 0)),
])
def test_it_looks_again_before_it_fails(before: Any, now: Any, given: Any, check: bool, expected: Any) -> None:
    assert states(before, now, given, check) == expected


def verified(registered: dict[str, Any] | None = None, check: bool = False, now: dict[str, Any] | None = None,
             **options: Any) -> dict[str, Any]:
    """The result of the task. now: what gpu_info would return, None if it must not be called."""
    def info(task: Any) -> Any:
        assert now is not None, "the host was looked at"
        assert (task.action, task.args) == ("gpuops.nvidia.gpu_info", {})
        return SimpleNamespace(run=lambda task_vars: now)

    return act(ActionModule, options, task_vars(a=registered or {}), check, {"gpuops.nvidia.gpu_info": info})


def test_a_check_that_fails_is_a_sentence_and_fails_the_task() -> None:
    good = verified(expected=EXPECTED, facts=GOOD)
    assert not good.get("failed") and good["problems"] == [] and "verified" not in good
    assert [(one["component"], one["ok"]) for one in good["checks"]] == [("driver", True)]
    bad = verified(expected=EXPECTED, facts=BARE)
    assert bad["failed"] and not bad["changed"] and bad["msg"] == "\n".join(bad["problems"])
    assert bad["problems"] == ["driver: no driver is installed. Run site.yml: its plan lists the steps."]
    told = verified(expected=EXPECTED, facts=BARE, enforce=False)
    assert not told.get("failed") and "msg" not in told and told["problems"] == bad["problems"]


WAITS = [{"id": "reboot: x", "pending_reason": "y", "needs": "reboot"}]


@pytest.mark.parametrize(("registered", "options", "state"), [
    ({}, {}, "absent"), ({"driver_result": {"pending": WAITS}}, {}, "pending"),
    ({}, {"pending": {"driver": WAITS}}, "pending"),
    ({"driver_result": {"pending": WAITS}}, {"pending": {}}, "absent")])
def test_what_waits_for_a_permission_has_not_failed(registered: dict[str, Any], options: dict[str, Any],
                                                    state: str) -> None:
    found = verified(registered, expected=EXPECTED, facts=BARE, **options)
    assert [one["state"] for one in found["checks"]] == [state] and bool(found.get("failed")) == (state == "absent")


@pytest.mark.parametrize(("asked", "state"), [(True, "failed"), (False, "ok")])
def test_what_the_modules_have_answered_counts_where_they_were_asked(asked: bool, state: str) -> None:
    registered = {"driver_result": {"plan": [{"id": "write file: /etc/modprobe.d/gpuops-nouveau.conf"}]}}
    found = verified(registered, expected=EXPECTED, facts=GOOD, previewed=asked, enforce=False)
    assert [one["state"] for one in found["checks"]] == [state]


def test_what_a_preview_that_ended_has_not_asked_is_not_ok() -> None:
    expected = {**EXPECTED, "delivered": ["driver"]}
    found = verified({"preflight_failure": "Preview: broke"}, expected=expected, facts=GOOD, previewed=True,
                     enforce=False)
    assert [one["state"] for one in found["checks"]] == ["failed"] and "Preview: broke" in found["problems"][0]


def test_what_is_registered_serves_and_nobody_is_asked() -> None:
    assert not verified({"preflight_found": {"facts": GOOD}}, expected=EXPECTED).get("failed")


def test_a_host_is_asked_through_gpu_info() -> None:
    assert not verified(now={"facts": GOOD}, expected=EXPECTED).get("failed")
    found = verified(now={"failed": True, "msg": "No interpreter."}, expected=EXPECTED)
    assert found["failed"] and found["msg"].startswith("No interpreter.") and found["error"]["kind"] == "host"


def test_only_what_is_asked_for_is_compared() -> None:
    expected = {**EXPECTED, "container_toolkit": {"placement": "host", "version": "1.20.0"}}
    found = verified(expected=expected, facts=GOOD, enforce=False)
    assert [one["component"] for one in found["checks"]] == ["driver", "container_toolkit"]
    found = verified(expected=expected, facts=GOOD, components=["driver"])
    assert [one["component"] for one in found["checks"]] == ["driver"]


@pytest.mark.parametrize(("options", "words"), [
    ({"expected": EXPECTED, "components": ["drivers"]}, "component 'drivers' is not known"),
    ({}, "exactly one of these options is required"),
    ({"expected": EXPECTED, "cluster": {"components": {}}}, "exactly one of these options is required"),
    ({"cluster": {"components": {}}}, "a cluster is never taken from the environment"),
])
def test_options_that_cannot_be(options: dict[str, Any], words: str) -> None:
    found = verified(**options)
    assert found["failed"] and words in found["msg"]


def test_a_layout_may_be_in_a_file(tmp_path: pathlib.Path) -> None:
    known = host("A100", driver="595.91.07", toolkit="1.20.0", containerd=True, mig={"1g.10gb": 7})
    path = tmp_path / "layouts.json"
    layouts = {"mine": MIG_CONFIG["mig-configs"]["all-1g.10gb"], "other": MIG_CONFIG["mig-configs"]["a100-only"]}
    path.write_text(json.dumps({"version": "v1", "mig-configs": layouts}))
    for selected in layouts:
        mig = {"placement": "host", "selected": selected, "config_file": str(path)}
        found = verified(expected={"mig_manager": mig}, facts=known)
        assert bool(found.get("failed")) == (selected == "other")
    found = verified(expected={"mig_manager": {**mig, "config_file": str(tmp_path / "none")}}, facts=known)
    assert found["failed"] and "does not exist or cannot be read" in found["msg"]


def test_samples_of_the_run_are_judged() -> None:
    expected = {**EXPECTED, "validator": {"placement": "host"}}
    sample = {"gpu": "0", "state": "failed", "reason": "no device"}
    assert len(verified(expected=expected, facts=GOOD)["checks"]) == 1
    for registered, options in (({}, {"samples": [sample]}), ({"validator_result": {"samples": [sample]}}, {})):
        found = verified(registered, expected=expected, facts=GOOD, **options)
        assert found["failed"] and "0: no device" in found["msg"]

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each act of mig_config at each level: runs on a host whose GPU a service, a container, a pod or nobody uses."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import _work
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.tests.unit.levels import NO, TABLE, YES, cases, on_page
from ansible_collections.gpuops.nvidia.tests.unit.mig.test_holders import (
    BOX,
    POD,
    SERVICE,
    A,
    Host,
    host,  # noqa: F401
)

RESET = f"nvidia-smi --gpu-reset -i {A}"


class Act(t.NamedTuple):
    """What is asked of GPU A, on which seven instances are; the step and the call that this takes.

    clients: those that NVML lists on an instance; opens: those that only have the GPU open. pending: whether a mode
    that is set waits for a reset.
    """

    selected: str
    step: str
    call: str
    clients: t.Sequence[int] = ()
    opens: t.Sequence[int] = ()
    pending: bool = False


CREATE, DESTROY, MODE = "create MIG instances", "destroy MIG instances", "disable MIG mode"
ACTS: dict[str, list[Act]] = {
    "create instances in free space, beside busy instances too": [
        Act("all-1g.10gb", CREATE, "create", clients=[SERVICE, BOX, POD])],
    "destroy an idle instance": [Act("all-7g.80gb", DESTROY, "destroy")],
    "destroy an instance that a service or another process of the host uses": [
        Act("all-7g.80gb", DESTROY, "destroy", clients=[client]) for client in (SERVICE, BOX)],
    "destroy an instance that a pod uses": [Act("all-7g.80gb", DESTROY, "destroy", clients=[POD])],
    "change the MIG mode of an idle GPU": [Act("all-disabled", MODE, "mode")],
    "change the MIG mode of a GPU that a process of the host has open": [
        Act("all-disabled", MODE, "mode", opens=[client]) for client in (SERVICE, BOX)],
    "change the MIG mode of a GPU that a pod has open": [Act("all-disabled", MODE, "mode", opens=[POD])],
    "reset an idle GPU": [Act("all-disabled", MODE, RESET, pending=True)],
    "reset a GPU that a process of the host has open": [
        Act("all-disabled", MODE, RESET, opens=[client], pending=True) for client in (SERVICE, BOX)],
    "reset a GPU that a pod has open": [Act("all-disabled", MODE, RESET, opens=[POD], pending=True)],
}


def carried_out(host: Host, act: Act, level: str) -> str:  # noqa: F811
    """Whether a run does the act. What is not done is pending, and then nothing at all has been done."""
    host.model.placed[A].pop(3)  # free space
    host.model.clients_of[A] = [(pid, number) for number, pid in enumerate(act.clients)]
    for pid in act.opens:
        host.opens(pid, A, 0)
    request = _work.Request("present", None, act.selected, [A], level, False)
    result = _work.Work(request, host.model).run()  # type: ignore[arg-type]
    calls = {*(str(write[0]) for write in host.model.writes), *host.calls}
    done = [step["action"] for step in result["plan"]]
    assert (act.step in done) == (act.call in calls)
    assert (act.step in done) != (act.step in [step["action"] for step in result["pending"]])
    if act.step not in done:
        assert not host.model.writes and not host.calls
    return YES if act.step in done else NO


@pytest.mark.parametrize(("act", "level", "said"), [
    pytest.param(one, level, said, id=f"{name}-{level}") for name, level, said in cases("mig") for one in ACTS[name]])
def test_an_act_needs_its_level(host: Host, monkeypatch: pytest.MonkeyPatch, act: Act, level: str,  # noqa: F811
                                said: str) -> None:
    modes, run = host.model.modes, host.run

    def set_mode(device: Device, enabled: bool) -> Device:
        host.model._write("pending mode", device.pci)
        modes[device.pci][1] = enabled
        return device

    def reset(argv: t.Sequence[str], **options: t.Any) -> Completed:
        if argv[0] == "nvidia-smi":
            assert not any((host.root / "proc").glob("*/fd/*")), "a GPU in use was reset"
            modes[A][0] = modes[A][1]
        return run(argv, **options)

    monkeypatch.setattr(_work, "run", reset)
    for name in ("open", "close"):
        monkeypatch.setattr(host.model, name, lambda: None, raising=False)
    if act.pending:
        monkeypatch.setattr(host.model, "set_mode", set_mode)
    assert carried_out(host, act, level) == said


def test_the_table_is_whole() -> None:
    assert ACTS.keys() == TABLE["mig"].keys()
    assert on_page("mig.md") == TABLE["mig"]

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each act of mig_config at each level: runs on a host whose GPU is used by a service, a container, a pod or nobody."""

from __future__ import annotations

import os
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import work
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.tests.unit.levels import NO, REBOOT, TABLE, YES, cases, on_page
from ansible_collections.gpuops.nvidia.tests.unit.mig.model import Model
from ansible_collections.gpuops.nvidia.tests.unit.mig.test_holders import (
    BOX,
    NEXT,
    POD,
    SERVICE,
    SESSION,
    A,
    B,
    Host,
    host,  # noqa: F401
    place,
)
from hypothesis import given, settings
from hypothesis import strategies as st

RESET = f"nvidia-smi --gpu-reset -i {A}"


class Act(t.NamedTuple):
    """The request for GPU A, which has seven instances, with the step and the call that it needs.

    clients: those that NVML lists on an instance; opens: those that have only opened the GPU. pending: whether a new
    mode waits for a reset. stuck: whether it waits for a reboot, because a reset does not apply it.
    """

    selected: str
    step: str
    call: str
    clients: t.Sequence[int] = ()
    opens: t.Sequence[int] = ()
    pending: bool = False
    stuck: bool = False


CREATE, DESTROY, MODE = "create MIG instances", "destroy MIG instances", "disable MIG mode"
ACTS: dict[str, list[Act]] = {
    "create instances in free space, also if other instances are busy": [
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
    "change a MIG mode that only a reboot applies": [Act("all-disabled", MODE, RESET, pending=True, stuck=True)],
}


def carried_out(host: Host, act: Act, level: str) -> str:  # noqa: F811
    """Whether a run does the act. Otherwise, the act is pending, and nothing has been done at all."""
    host.model.placed[A].pop(3)  # free space
    host.model.clients_of[A] = [(pid, number) for number, pid in enumerate(act.clients)]
    for pid in act.opens:
        host.opens(pid, A, 0)
    request = work.Request("present", None, act.selected, [A], level, False)
    try:
        result = work.MigRun(request, host.model).run()  # type: ignore[arg-type]
    except HostError as error:
        assert act.stuck and "set disruption to reboot" in error.hint and host.model.modes[A] == [True, True]
        return NO
    calls = {*(str(write[0]) for write in host.model.writes), *host.calls}
    done = [step["action"] for step in result["plan"]]
    assert (act.step in done) == (act.call in calls)
    assert (act.step in done) != (act.step in [step["action"] for step in result["pending"]])
    if act.step not in done:
        assert not host.model.writes and not host.calls
    if result["reboot_required"]:
        assert act.stuck and host.model.modes[A] == [True, False]
        return REBOOT
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
        if argv[0] == "nvidia-smi" and not act.stuck:
            assert not any((host.root / "proc").glob("*/fd/*")), "a GPU in use was reset"
            modes[A][0] = modes[A][1]
        return run(argv, **options)

    monkeypatch.setattr(work, "run", reset)
    for name in ("open", "close"):
        monkeypatch.setattr(host.model, name, lambda: None, raising=False)
    if act.pending:
        monkeypatch.setattr(host.model, "set_mode", set_mode)
    assert carried_out(host, act, level) == said


# -- hosts by chance

PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
# None: MIG off; else how many instances of which profile.
LAYOUTS = st.one_of(st.none(), st.dictionaries(st.sampled_from(PROFILES), st.integers(1, 2), max_size=2))


def reach(host: Host, layouts: t.Sequence[t.Any], level: str) -> dict[str, t.Any] | None:  # noqa: F811
    """The result of a run with these requested layouts of the GPUs, None if one does not fit."""
    entries = [{"devices": [number], "mig-enabled": layout is not None, "mig-devices": layout or {}}
               for number, layout in enumerate(layouts)]
    request = work.Request("present", {"version": "v1", "mig-configs": {"x": entries}}, "x", None, level, False)
    try:
        return work.MigRun(request, host.model).run()  # type: ignore[arg-type]
    except InputError:
        return None


@given(st.sampled_from(["never", "idle"]), st.tuples(LAYOUTS, LAYOUTS), st.tuples(LAYOUTS, LAYOUTS),
       st.lists(st.tuples(st.sampled_from([A, B]), st.sampled_from([SERVICE, BOX, POD, SESSION]),
                          st.sampled_from([None, *range(7)])), max_size=4, unique_by=lambda client: client[1]),
       st.sampled_from(["", A, B]))
@settings(max_examples=80)
def test_below_drain_no_run_disturbs_a_gpu_client(
        level: str, before: tuple[t.Any, ...], wanted: tuple[t.Any, ...],
        clients: list[tuple[str, int, int | None]], opened: str) -> None:
    """clients: GPU, process, and the instance that begins at this slice, None for the whole GPU. The model refuses to
    destroy an instance that is in use."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        host = Host(Path(folder), Model((A, "20b2"), (B, "20b2")))  # noqa: F811
        place(host, patch)
        patch.setattr(os, "fsync", lambda _number: None)
        if reach(host, before, "idle") is None:
            return
        for pci, pid, start in clients:
            if start is None or start in host.model.placed[pci]:
                host.model.clients_of.setdefault(pci, []).append((pid, start))
        if opened:
            host.opens(NEXT, opened, [A, B].index(opened))
        host.model.writes.clear()
        result = reach(host, wanted, level)
        busy = {opened, *(pci for pci, used in host.model.clients_of.items() if used)}
        assert not [write for write in host.model.writes if write[0] == "mode" and write[1] in busy]
        assert level == "idle" or {write[0] for write in host.model.writes} <= {"create", "create_compute"}
        assert host.calls == []
        assert result is None or all(allows(level, step["needs"]) for step in result["plan"])


def test_the_table_is_whole() -> None:
    assert ACTS.keys() == TABLE["mig"].keys()
    assert on_page("mig.md") == TABLE["mig"]

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that are not healthy are reset once, below the level drain only while no process uses them."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _gpu_reset
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._gpu_reset import HOST, Request, ResetRun
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import clients
from ansible_collections.gpuops.nvidia.tests.unit.mig.model import Model
from ansible_collections.gpuops.nvidia.tests.unit.mig.test_holders import POD, SERVICE, SESSION, UID, A, B, Host, place

WHY = "the driver recommends the action reset"
RESET = "nvidia-smi --gpu-reset -i "


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path, Model((A, "20b2"), (B, "20b2")))
    place(made, monkeypatch)
    monkeypatch.setattr(_gpu_reset, "Journal",
                        lambda concern, readonly: Journal(concern, str(tmp_path / "j"), readonly))
    return made


def go(host: Host, *gpus: str, level: str = "idle", **more: t.Any) -> dict[str, t.Any]:
    check, again, reboot = more.get("check", False), more.get("again", False), more.get("reboot", "")
    request = Request(dict.fromkeys(gpus, WHY), reboot, level, check, again)
    return ResetRun(request, host.model, Root(str(host.root)), host.run,  # type: ignore[arg-type]
                    str(host.root.parent / "state" / "remedies.json"), lambda: 1.8e9).run()


def ids(steps: t.Sequence[dict[str, t.Any]]) -> list[str]:
    return [str(step["id"]) for step in steps]


def test_an_idle_gpu_is_reset_once(host: Host) -> None:
    before = go(host, A, B, check=True)
    assert host.calls == [] and not (host.root.parent / "state").exists()
    done = go(host, A, B)
    assert ids(done["plan"]) == ids(before["plan"]) == [f"reset GPU: {A}", f"reset GPU: {B}"]
    assert host.calls == [f"{RESET}{A}", f"{RESET}{B}"] and done["changed"] and done["reset"] == [A, B]
    again = go(host, A, level="reboot")
    assert not again["changed"] and again["refused"] == [A] and len(host.calls) == 2
    assert again["pending"][0]["pending_reason"] == (
        "a run has done the same at 2027-01-15T08:00:00Z, so a person has to look at it")
    assert go(host, A, again=True)["reset"] == [A]


@pytest.mark.parametrize(("level", "done"), [("never", False), ("idle", False), ("drain", True), ("reboot", True)])
def test_processes_are_stopped_from_the_level_drain_on(host: Host, level: str, done: bool) -> None:
    host.model.clients_of[A] = [(SERVICE, None), (SESSION, None)]
    result = go(host, A, level=level)
    assert host.calls == (["systemctl stop train.service", f"kill {SESSION}", f"{RESET}{A}",
                           "systemctl start train.service"] if done else [])
    assert (len(result["pending"]), len(result["plan"])) == ((0, 3) if done else (2, 0))
    assert [one["pid"] for one in result["holders"]] == [SERVICE, SESSION]


def test_a_service_that_uses_several_gpus_is_stopped_and_started_once(host: Host) -> None:
    host.model.clients_of = {A: [(SERVICE, None)], B: [(SERVICE, None), (SESSION, None)]}
    before = go(host, A, B, level="drain", check=True)
    done = go(host, A, B, level="drain")
    assert ids(before["plan"]) == ids(done["plan"])
    assert host.calls == ["systemctl stop train.service", f"{RESET}{A}", f"kill {SESSION}", f"{RESET}{B}",
                          "systemctl start train.service"]


@pytest.mark.parametrize("unit", [False, True])
def test_settings_are_applied_again_after_a_reset(host: Host, monkeypatch: pytest.MonkeyPatch, unit: bool) -> None:
    path = host.root.parent / "gpuops-settings.service"
    monkeypatch.setattr(clients, "SETTINGS", str(path))
    if unit:
        path.write_text("")
    go(host, A, B, again=True)
    assert host.calls[2:] == ["systemctl try-restart gpuops-settings.service"] * unit
    go(host)
    assert len(host.calls) == 2 + unit


def test_a_process_in_a_pod_gets_no_signal(host: Host) -> None:
    (host.root / f"var/log/pods/ml_train-0_{UID}").mkdir(parents=True)
    host.model.clients_of[A] = [(POD, None), (SERVICE, None)]
    result = go(host, A, B, level="reboot")
    assert host.calls == [f"{RESET}{B}"] and result["reset"] == [B] and result["refused"] == []
    assert "in use by pod ml/train-0; evict these pods" in result["pending"][0]["pending_reason"]


def test_a_gpu_that_does_not_answer_is_reset(host: Host) -> None:
    host.model.silent = [(0, "RESET_REQUIRED")]
    assert go(host, A)["reset"] == [A]


def test_a_reset_that_fails_counts_and_services_start_again(host: Host) -> None:
    host.refused.add(f"{RESET}{A}")
    host.model.clients_of[A] = [(SERVICE, None)]
    with pytest.raises(HostError, match=f"GPU {A} could not be reset"):
        go(host, A, B, level="drain")
    assert host.calls[-1] == "systemctl start train.service"
    assert go(host, A)["refused"] == [A]


def test_a_reboot_is_recorded_and_no_gpu_is_reset(host: Host) -> None:
    assert go(host, A, reboot="it is lost", level="drain")["pending"][0]["needs"] == "reboot"
    found = go(host, A, reboot="it is lost", level="reboot", check=True)
    assert found["reboot_required"] and ids(found["plan"]) == [f"reboot: {HOST}"]
    assert go(host, A, reboot="it is lost", level="reboot")["reboot_required"] and host.calls == []
    after = go(host, A, reboot="it is lost", level="reboot")
    assert not after["reboot_required"] and after["refused"] == [HOST] and not after["changed"]
    assert go(host) == {**go(host), "changed": False, "plan": [], "pending": [], "refused": []}


def test_what_is_wrong_is_refused(host: Host) -> None:
    with pytest.raises(InputError, match="'0' is no PCI address"):
        go(host, "0")
    host.model.available, host.model.error = False, "NVML cannot be used (DRIVER_NOT_LOADED)."
    with pytest.raises(HostError, match="No GPU can be reset: NVML cannot be used"):
        go(host, A)
    record = host.root.parent / "state" / "remedies.json"
    record.parent.mkdir()
    record.write_text('{"0000:07:00.0": 5}')
    with pytest.raises(HostError, match="is damaged"):
        go(host, A)

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The return to the driver before the last change: state rolled_back."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.manage import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.rollback import Former
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

from tests.unit.driver.test_switching import MODULES, NEW, OLD, Delivery, Model, actions, fails, kept, place, present

MIDDLE = "595.80.01"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A host with a driver that nobody has changed yet."""
    made = Model(tmp_path)
    place(made, monkeypatch)
    made.begin(OLD)
    return made


def state(model: Model, name: str, level: str = "idle", check: bool = False) -> dict[str, t.Any]:
    """Runs the module with a state and without other options."""
    model.lines.clear()
    return t.cast("dict[str, t.Any]", getattr(Driver(Spec(), level, check, model.run, Root(str(model.folder))), name)())


def killed(model: Model, monkeypatch: pytest.MonkeyPatch, run: t.Callable[[], object]) -> None:
    """Runs the module and kills it after the packages have changed."""
    execute = Delivery.execute

    def die(self: Delivery, step: t.Any) -> bool:
        if execute(self, step):
            raise KeyboardInterrupt
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Delivery, "execute", die)
        with pytest.raises(KeyboardInterrupt):
            run()


FORMER = {"version": OLD, "kernel_module_type": "open", "source": "cuda_repository",
          "installation": "compute-only"}


def test_the_driver_before_the_last_change_comes_back_and_stays(model: Model) -> None:
    assert present(model, OLD)["former"] is None
    assert present(model, NEW, check=True)["former"] is None
    assert present(model, NEW)["former"] == present(model, NEW)["former"] == FORMER
    said = state(model, "rolled_back", check=True)
    result = state(model, "rolled_back")
    assert actions(said) == actions(result) == [
        "unload modules", "install packages", "build modules", *["load module"] * 3, "enable and start service"]
    assert (result["version"], result["former"], model.loaded) == (OLD, FORMER, dict.fromkeys(MODULES, OLD))
    before = kept(model)
    again = state(model, "rolled_back")
    assert (again["changed"], again["version"], kept(model)) == (False, OLD, before)
    assert present(model, NEW)["former"] == FORMER and state(model, "rolled_back")["version"] == OLD


def test_it_obeys_the_level(model: Model) -> None:
    present(model, NEW)
    waiting = state(model, "rolled_back", "never")
    assert not waiting["changed"] and waiting["pending"][0]["action"] == "unload modules"
    assert model.loaded["nvidia"] == NEW


@pytest.mark.parametrize("begin", [OLD, None])
def test_without_a_record_the_error_says_what_to_do(model: Model, begin: str | None) -> None:
    """The same applies if the last change has installed the first driver."""
    model.begin(begin)
    if begin is None:
        model.loaded, model.active, model.built, model.disk = {}, set(), None, None
        model.show()
        present(model, NEW)
    for check in (True, False):
        with pytest.raises(HostError, match="nothing to return to. Set state present and the version"):
            state(model, "rolled_back", check=check)


def test_a_change_that_failed_is_not_one(model: Model) -> None:
    model.begin(MIDDLE)
    present(model, OLD)
    model.fails = {f"dkms {NEW}"}
    assert fails(model, NEW).details["rolled_back"] == OLD
    assert state(model, "gathered")["former"]["version"] == MIDDLE


def test_a_return_that_fails_leaves_the_driver_that_worked(model: Model) -> None:
    present(model, NEW)
    model.fails = {f"dkms {OLD}"}
    with pytest.raises(GpuopsError) as caught:
        state(model, "rolled_back")
    assert caught.value.details["rolled_back"] == NEW and model.loaded["nvidia"] == NEW
    assert state(model, "gathered")["former"] == FORMER and ("former", "driver") not in kept(model)


def test_a_killed_return_continues(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    present(model, NEW)
    killed(model, monkeypatch, lambda: state(model, "rolled_back"))
    assert kept(model)["former", "driver"]["before"]["version"] == NEW
    assert state(model, "gathered")["former"] == FORMER
    result = state(model, "rolled_back")
    assert (result["version"], model.loaded["nvidia"], result["former"]) == (OLD, OLD, FORMER)
    assert not state(model, "rolled_back")["changed"]


def test_a_killed_change_is_undone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.begin(MIDDLE)
    present(model, OLD)
    killed(model, monkeypatch, lambda: present(model, NEW))
    assert state(model, "rolled_back")["version"] == OLD
    assert (model.loaded["nvidia"], model.disk) == (OLD, OLD)
    assert not state(model, "rolled_back")["changed"]  # and does not go on to the driver before


def test_a_driver_that_cannot_be_had_again_is_named(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    present(model, NEW)

    def gone(*_words: object) -> object:
        raise HostError("The repository of source cuda_repository has no driver 580.126.20.")

    monkeypatch.setattr(Delivery, "plan", gone)
    with pytest.raises(HostError, match=rf"Driver {OLD} \(cuda_repository\), to which this host would return, cannot "
                                        "be installed: The repository"):
        state(model, "rolled_back")
    assert model.loaded["nvidia"] == NEW


def test_a_removal_deletes_the_record(model: Model) -> None:
    present(model, NEW)
    state(model, "absent")
    assert kept(model) == {}


FILE = f"https://mirror.example/NVIDIA-Linux-x86_64-{OLD}.run"


@pytest.mark.parametrize(("given", "wanted"), [
    (None, {"src": FILE, "checksum": "sha256:00"}),
    ({"src": FILE.replace(OLD, NEW), "checksum": "sha256:11"}, {"src": FILE, "checksum": "sha256:00"}),
    ({"src": f"{FILE}?signature", "checksum": "sha256:00"}, {"src": f"{FILE}?signature", "checksum": "sha256:00"}),
])
def test_a_run_file_is_fetched_from_where_it_was(given: dict[str, str] | None, wanted: dict[str, str]) -> None:
    former = Former(OLD, "open", "runfile", True, {"src": FILE, "checksum": "sha256:00"})
    spec = former.spec(Spec(NEW, kernel_module_type="proprietary", source="auto", runfile=given))
    assert (spec.version, spec.kernel_module_type, spec.source, spec.runfile) == (OLD, "open", "runfile", wanted)

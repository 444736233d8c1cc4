# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The licence of a vGPU guest driver."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import licence as licence_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.assignments import merged
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import RESTORE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.licence import (
    SETTINGS_FILE,
    TEMPLATE,
    TOKEN_FILE,
    WRITE_SETTINGS,
    Licence,
    settings,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run

WISH = {"token": "secret-token\n", "feature_type": 0, "settings": {"LogLevel": 7}}


def test_merge_keeps_what_is_foreign() -> None:
    text = "# About FeatureType=1\nServerAddress=a\n FeatureType = 4\nFeatureType=2\n#EnableUI=FALSE\n"
    assert merged(text, {"FeatureType": "1", "EnableUI": "TRUE"}) == (
        "# About FeatureType=1\nServerAddress=a\nFeatureType=1\n#EnableUI=FALSE\nEnableUI=TRUE\n")
    assert merged("", {}) == ""


def test_a_fresh_guest_begins_with_the_template(made: t.Any) -> None:
    steps = [f"configure/write licence settings: {SETTINGS_FILE}", f"configure/write licence token: {TOKEN_FILE}"]
    assert made.ids(Licence, licence=WISH) == steps
    made.put(TEMPLATE, "# From the package\nFeatureType=9\n")
    made.do(Licence, licence=WISH)
    assert made.read(SETTINGS_FILE) == "# From the package\nFeatureType=0\nLogLevel=7\n"
    assert made.read(TOKEN_FILE) == "secret-token"
    assert (made.folder / TOKEN_FILE[1:]).stat().st_mode & 0o777 == 0o744
    assert made.ids(Licence, licence=WISH) == []
    assert made.journal.get("restart", "nvidia-gridd.service") is not None
    made.works(gridd="active")
    assert made.ids(Licence, licence={**WISH, "feature_type": 1}) == [
        steps[0], "serve/restart service: nvidia-gridd.service"]
    assert made.ids(Licence) == [f"configure/restore file: {path}" for path in (SETTINGS_FILE, TOKEN_FILE)]
    assert [step.target for _phase, step in made.part(Licence).absent(made.now)] == [SETTINGS_FILE, TOKEN_FILE]


def test_a_key_that_is_wanted_no_more_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gridd.conf"
    path.write_text("LogLevel=2\nServerAddress=a\n")
    monkeypatch.setattr(licence_module, "SETTINGS_FILE", str(path))
    monkeypatch.setattr(licence_module, "TEMPLATE", str(tmp_path / "none"))
    write = Step(WRITE_SETTINGS, str(path))
    with Journal("driver", root=str(tmp_path / "journal")) as journal:
        def run_with(**wanted: t.Any) -> str:
            Licence(Host(Spec(licence={"settings": wanted}), run, Root("/"), journal)).execute(write)
            return path.read_text()

        assert run_with(LogLevel=7, EnableUI="TRUE") == "LogLevel=7\nServerAddress=a\nEnableUI=TRUE\n"
        assert run_with(EnableUI="TRUE") == "LogLevel=2\nServerAddress=a\nEnableUI=TRUE\n"
        path.write_text("ServerAddress=a\nEnableUI=FALSE\n")  # by somebody else, who means it
        assert run_with() == "ServerAddress=a\nEnableUI=FALSE\n"
        assert journal.of_kind("licence") == {}


def test_the_plan_names_keys_that_are_wanted_no_more(made: t.Any) -> None:
    made.do(Licence, licence=WISH)
    made.works(gridd="active")
    less = {**WISH, "settings": {}}
    steps = [step for _phase, step in made.part(Licence, licence=less).plan(made.now, made.desired)]
    assert (steps[0].action, steps[0].reason) == (WRITE_SETTINGS, "FeatureType without LogLevel")


@pytest.mark.parametrize(("before", "after"), [
    ("ServerAddress=a\nFeatureType=4\n", "ServerAddress=b\nFeatureType=4\n# mine\n"),
    (None, "ServerAddress=b\n# mine\n"),
])
def test_of_settings_that_somebody_edits_since_only_ours_are_taken_out(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, after: str) -> None:
    path = tmp_path / "gridd.conf"
    monkeypatch.setattr(licence_module, "SETTINGS_FILE", str(path))
    monkeypatch.setattr(licence_module, "TEMPLATE", str(tmp_path / "none"))
    if before:
        path.write_text(before)
    with Journal("driver", root=str(tmp_path / "journal")) as journal:
        licence = Licence(Host(Spec(licence={"feature_type": 1, "settings": {"LogLevel": 7}}), run, Root("/"), journal))
        licence.execute(Step(WRITE_SETTINGS, str(path)))
        restore = Step(RESTORE, str(path))
        path.write_text(path.read_text().replace("ServerAddress=a\n", "") + "ServerAddress=b\n# mine\n")
        assert licence.execute(restore)
        assert sorted(path.read_text().splitlines()) == sorted(after.splitlines())
        assert journal.get("file", str(path)) is None


def test_settings_as_we_left_them_are_restored_like_any_other_file(made: t.Any) -> None:
    made.do(Licence, licence=WISH)
    assert not made.part(Licence).execute(Step(RESTORE, SETTINGS_FILE))
    assert made.journal.of_kind("licence") == {}


def test_the_token_is_in_no_step(made: t.Any) -> None:
    assert "secret-token" not in repr([(step.as_dict(), step.data) for _phase, step in
                                       made.part(Licence, licence=WISH).plan(made.now, made.desired)])


def test_no_guest_driver(made: t.Any) -> None:
    made.works()
    with pytest.raises(HostError, match="not a vGPU guest driver"):
        made.ids(Licence, licence=WISH)
    assert made.ids(Licence) == []


@pytest.mark.parametrize(("licence", "path"), [
    ({"settings": {"Feature Type": 1}}, "licence.settings.Feature Type"),
    ({"settings": {"A": "1\nB=2"}}, "licence.settings.A"),
    ({"feature_type": 1, "settings": {"FeatureType": 2}}, "licence.settings.FeatureType"),
])
def test_bad_settings(licence: dict[str, t.Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        settings(Spec(licence=licence))
    assert caught.value.details["path"] == path

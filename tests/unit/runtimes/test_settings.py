# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings file: the desired state is reached, everything else stays, and a removal removes only our part."""

from __future__ import annotations

import typing as t

import pytest
import tomllib
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import settings_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Setting, SettingsState
from hypothesis import given, settings
from hypothesis import strategies as st

# As the toolkit 1.20 writes it, with what a user has added.
TEXT = '''\
#accept-nvidia-visible-devices-as-volume-mounts = false
disable-require = false   # mine
supported-driver-capabilities = "compute,utility"

[nvidia-container-cli]
environment = []
#no-cgroups = false
ldconfig = "@/sbin/ldconfig"

# why crun: see ticket 12
[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"
'''
VALUES: dict[str, st.SearchStrategy[t.Any]] = {
    name: st.booleans() if kind == ("bool",) else st.lists(st.text(max_size=5), max_size=3) if kind == ("list",)
    else st.text(max_size=8).map(lambda text: f"@{text}") if kind == ("str",) else st.sampled_from(kind)
    for name, kind in settings_file.KNOWN.items()}
WISHES = st.fixed_dictionaries({}, optional=VALUES)


def seen(text: str | None, ours: t.Any = None, file: str | None = "ours", new: bool = False) -> SettingsState:
    return SettingsState(text, {name: Setting(**one) for name, one in (ours or {}).items()}, file, new)


def values(text: str) -> dict[str, t.Any]:
    """Maps the dotted names of a file to their values."""
    found: dict[str, t.Any] = {}

    def walk(table: t.Mapping[str, t.Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            else:
                found[f"{prefix}{key}"] = value

    walk(tomllib.loads(text), "")
    return found


@settings(max_examples=40, deadline=None)
@given(WISHES, WISHES)
def test_reached_changed_and_given_back(first: dict[str, t.Any], second: dict[str, t.Any]) -> None:
    text, ours = TEXT, {}
    for wish in (first, second):
        for step in settings_file.plan(wish, seen(text, ours), False):
            assert step.data["before"] == text
            text, ours = step.data["text"], step.data["ours"]
        assert values(text) == {**values(TEXT), **wish}
        assert "# why crun: see ticket 12" in text and "#no-cgroups = false" in text and "# mine" in text
        assert settings_file.plan(wish, seen(text, ours), False) == []
    text += "# edited since\n"
    for step in settings_file.plan_removal(seen(text, ours, "edited"), False):
        text = step.data["text"]
    assert values(text) == values(TEXT)
    assert set(TEXT.splitlines()) <= set(text.splitlines())


def test_only_the_value_changes() -> None:
    step, = settings_file.plan({"nvidia-container-runtime": {"mode": "cdi"}}, seen(TEXT), False)
    assert step.data["text"] == TEXT.replace('mode = "auto"', 'mode = "cdi"')
    assert step.id == f"edit settings: {settings_file.FILE}"
    assert step.data["ours"] == {"nvidia-container-runtime.mode": {"before": "auto", "after": "cdi"}}
    text = step.data["text"].replace('mode = "cdi"', 'mode = "legacy"')
    assert settings_file.plan_removal(seen(text, step.data["ours"], "edited"), False) == []


def test_what_a_package_upgrade_undid_comes_again() -> None:
    wish = {"nvidia-container-runtime.log-level": "debug"}
    ours = {"nvidia-container-runtime.log-level": {"before": "info", "after": "debug"}}
    again, = settings_file.plan(wish, seen(TEXT, ours), False)
    assert again.data["ours"] == ours


def test_the_last_setting_of_a_file_is_removed() -> None:
    ours = {"disable-require": {"before": None, "after": True}}
    step, = settings_file.plan({}, seen("disable-require = true\n", ours), False)
    assert (step.data["text"], step.data["ours"]) == ("", {})


def test_before_the_packages_and_without_a_file() -> None:
    step, = settings_file.plan({"disable-require": True}, seen(None), True)
    assert step.assumed and settings_file.plan({}, seen(None), True) == []
    step, = settings_file.plan({"disable-require": True}, seen(None), False)
    assert not step.assumed and step.data["text"] == "disable-require = true\n"
    assert settings_file.diffs([step])[0]["after"] == step.data["text"]


@pytest.mark.parametrize(("state", "purging", "action"), [
    (seen(TEXT, file=None), False, None), (seen(TEXT, file="before"), False, None),
    (seen(TEXT, file="ours"), False, settings_file.RESTORE), (seen(TEXT, file="edited"), True, settings_file.RESTORE),
    (seen(TEXT, file="edited", new=True), False, settings_file.RESTORE), (seen(None, file="edited"), False, None),
])
def test_removal(state: SettingsState, purging: bool, action: str | None) -> None:
    assert [step.action for step in settings_file.plan_removal(state, purging)] == ([action] if action else [])


@pytest.mark.parametrize(("settings", "words"), [
    ({"nvidia-container-runtime.mod": "cdi"}, "Did you mean nvidia-container-runtime.mode?"),
    ({"nvidia-container-runtime": {"mode": "nvml"}}, "one of auto, cdi"),
    ({"nvidia-container-runtime.runtimes": "crun"}, "a list of strings"),
    ({"disable-require": "yes"}, "true or false"),
    ({"nvidia-container-cli.ldconfig": "/sbin/ldconfig"}, "Set @/sbin/ldconfig"),
    ({"nvidia-container-cli": "x"}, "not a known setting"),
    ({"supported-driver-capabilities": ["all"]}, "a string"),
])
def test_refused(settings: dict[str, t.Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        settings_file.plan(settings, seen(TEXT), False)
    assert words in f"{caught.value} {caught.value.hint}"
    assert caught.value.as_result()["error"]["path"].startswith("settings.")


def test_warning() -> None:
    assert settings_file.warnings({}, TEXT) == settings_file.warnings({}, None) == []
    assert "no-cgroups" in settings_file.warnings({"nvidia-container-cli.no-cgroups": True}, TEXT)[0]
    standing = TEXT.replace("#no-cgroups = false", "no-cgroups = true")
    assert settings_file.warnings({}, standing)
    assert settings_file.warnings({"nvidia-container-cli": {"no-cgroups": False}}, standing) == []

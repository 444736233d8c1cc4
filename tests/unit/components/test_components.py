# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A component is one role, one file, and one entry of the one ordered list; nothing else has to name it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils import _components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import Component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components

ROOT = Path(__file__).parents[3]
# Roles that deliver no component of their own.
OTHER_ROLES = {"gpu_settings", "maintenance", "preflight", "software"}


def defined() -> dict[str, str]:
    """Maps the files of the package to the components that they define."""
    files = sorted(path.stem for path in (ROOT / "plugins" / "plugin_utils" / "_components").glob("*.py"))
    modules = {name: importlib.import_module(f"{_components.__name__}.{name}") for name in files if name != "__init__"}
    return {name: module.COMPONENT.name for name, module in modules.items() if hasattr(module, "COMPONENT")}


def test_no_component_is_missing_from_the_list() -> None:
    listed = [component.name for component in _components.COMPONENTS]
    assert listed == list(components.NAMES)
    assert {*listed} == {path.name for path in (ROOT / "roles").iterdir()} - OTHER_ROLES
    assert defined() == {name: name for name in listed}
    assert set(_components.BY_NAME) == {*listed}


@pytest.mark.parametrize("component", _components.COMPONENTS, ids=lambda component: component.name)
def test_a_component_has_what_its_places_need(component: Component) -> None:
    places = component.entry.places
    assert (component.host_plan is not None, component.check is not None) == ("host" in places, "host" in places)
    assert (component in _components.ON_HOSTS, component in _components.IN_CLUSTERS) == (
        "host" in places, "cluster" in places)
    assert bool(component.images) == ("cluster" in places) == any(
        (ROOT / "roles" / component.name / "templates").glob("*"))
    assert bool(component.options) == (component.name in components.SOFTWARE)

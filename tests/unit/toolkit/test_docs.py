# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runtimes, packages and variables in docs/container_toolkit.md agree with the code."""

from __future__ import annotations

import re
import typing as t

import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils import _cdi
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.managers import MANAGERS
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import cdi_files, packages
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import container_toolkit
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import registry, settings_file
from ansible_collections.gpuops.nvidia.tests.unit.pages import HOME, named_tests, rows

PAGE = (HOME / "docs" / "container_toolkit.md").read_text(encoding="utf-8")


def test_runtimes() -> None:
    found = rows(PAGE, "runtimes")
    assert {row[0].strip("`") for row in found} == set(registry.RUNTIMES)
    for _runtime, _distribution, _how, state in found:
        assert state == "published files only" or state.startswith("real (`"), state


def test_packages() -> None:
    found = {row[0].strip("`"): row for row in rows(PAGE, "packages")}
    assert set(MANAGERS) <= set(found) == set(packages._HOLDS)
    for family in ("debian", "suse"):
        for path in packages._HOLDS[family]("1.20.1"):
            assert path in found[family][2]


def test_real_names_its_test() -> None:
    cells = [row[-1] for name in ("runtimes", "packages") for row in rows(PAGE, name) if row[-1].startswith("real")]
    assert len(cells) > 4
    for path in named_tests(cells):
        assert path.is_file(), path


def test_examples_use_variables_of_the_role_and_known_settings() -> None:
    known = yaml.safe_load((HOME / "roles/container_toolkit/meta/argument_specs.yml").read_text(encoding="utf-8"))
    used: dict[str, t.Any] = {}
    for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S):
        for play in yaml.safe_load(block):
            for role in play["roles"]:
                assert role["role"] == "gpuops.nvidia.container_toolkit"
                used.update(role["vars"])
    options = known["argument_specs"]["main"]["options"]
    assert set(used) <= set(options)
    assert settings_file.by_name(used["container_toolkit_settings"])
    assert set(re.findall(r"`(container_toolkit_\w+)", PAGE)) <= set(options)


def test_names_of_files_and_variables() -> None:
    for name in (_cdi.UNIT, cdi_files.ENVIRONMENT, cdi_files._PATHS["gpu"], settings_file.FILE):
        assert name in PAGE
    for variable in (*container_toolkit._DEFAULT, *container_toolkit._NAMES, *container_toolkit._SETTINGS):
        stems = re.findall(r"`([A-Z_]+_)(?:\.\.\.)?`", PAGE)
        assert f"`{variable}`" in PAGE or variable.startswith(tuple(stems)), variable

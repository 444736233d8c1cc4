# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What docs/container_toolkit.md says of runtimes, packages and variables is what the code does."""

from __future__ import annotations

import pathlib
import re
import typing as t

import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils import _cdi
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._managers import MANAGERS
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import _cdi_files, _packages
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import host_toolkit
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._toolkit import _registry, _settings

HOME = pathlib.Path(__file__).parents[3]
PAGE = (HOME / "docs" / "container_toolkit.md").read_text(encoding="utf-8")


def table(name: str) -> list[list[str]]:
    """The cells of a marked table, without its head."""
    rows = PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_runtimes() -> None:
    rows = table("runtimes")
    assert {row[0].strip("`") for row in rows} == set(_registry.RUNTIMES)
    for _runtime, _distribution, _how, state in rows:
        assert state == "published shapes only" or state.startswith("real (`"), state


def test_packages() -> None:
    rows = {row[0].strip("`"): row for row in table("packages")}
    assert set(MANAGERS) <= set(rows) == set(_packages._HOLDS)
    for family in ("debian", "suse"):
        for path in _packages._HOLDS[family]("1.20.1"):
            assert path in rows[family][2]


def test_real_names_its_test() -> None:
    cells = [row[-1] for name in ("runtimes", "packages") for row in table(name) if row[-1].startswith("real")]
    assert len(cells) > 4
    for cell in cells:
        name, = re.findall(r"`(\w+\.py)`", cell)
        assert (HOME / "tests" / "integration" / name).is_file(), name


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
    assert _settings.wanted(used["container_toolkit_settings"])
    assert set(re.findall(r"`(container_toolkit_\w+)", PAGE)) <= set(options)


def test_names_of_files_and_variables() -> None:
    for name in (_cdi.UNIT, _cdi_files.ENVIRONMENT, _cdi_files._PATHS["gpu"], _settings.FILE):
        assert name in PAGE
    for variable in (*host_toolkit._DEFAULT, *host_toolkit._SETTINGS):
        stems = re.findall(r"`([A-Z_]+_)(?:\.\.\.)?`", PAGE)
        assert f"`{variable}`" in PAGE or variable.startswith(tuple(stems)), variable

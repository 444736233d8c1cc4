# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of the collection import only from packages below them, as docs/contributing.md shows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "plugins"
PREFIX = "ansible_collections.gpuops.nvidia.plugins."
# From the top; packages of one row do not import from each other.
ROWS = (
    ("action", "inventory", "modules"),
    ("_actions",),
    ("_reports", "_rollout"),
    ("_planning", "_operands"),
    ("_components", "_nodes"),
    ("_drivers",),
    ("_policy", "_kube", "_runtimes"),
    ("_inventory",),
    ("_data",),
    ("module_utils",),
)
HEIGHT = {package: -row for row, packages in enumerate(ROWS) for package in packages}
MOST = 20  # files of a package


def package_of(module: str) -> str:
    """The package of a module below plugins/, by its dotted name."""
    first, _dot, rest = module.partition(".")
    return rest.partition(".")[0] if first == "plugin_utils" else first


def packages() -> list[str]:
    """All that hold code of the controller."""
    return sorted(path.name for path in (PLUGINS / "plugin_utils").iterdir() if any(path.glob("*.py")))


def imported(path: Path) -> set[str]:
    """The packages that a file imports from."""
    tree = ast.parse(path.read_text())
    return {package_of(node.module[len(PREFIX):]) for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PREFIX)}


@pytest.mark.parametrize("path", sorted(PLUGINS.rglob("*.py")), ids=lambda path: str(path.relative_to(PLUGINS)))
def test_imports_go_down(path: Path) -> None:
    own = package_of(".".join(path.relative_to(PLUGINS).with_suffix("").parts))
    if own in HEIGHT:
        up = {other for other in imported(path) if other != own and HEIGHT[other] >= HEIGHT[own]}
        assert not up, f"{own} stands below or beside {', '.join(sorted(up))}"


def test_the_map_has_all_packages() -> None:
    drawn = re.findall(r"^\| `plugin_utils/(\w+)` \|", (ROOT / "docs" / "contributing.md").read_text(), re.MULTILINE)
    assert sorted(drawn) == packages() == sorted(name for name in HEIGHT if name.startswith("_"))


@pytest.mark.parametrize("name", packages())
def test_a_package_can_be_overseen(name: str) -> None:
    assert len([path for path in (PLUGINS / "plugin_utils" / name).glob("*.py")
                if path.name != "__init__.py"]) <= MOST

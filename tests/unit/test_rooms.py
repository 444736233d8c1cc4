# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of the collection import only from lower packages, as docs/contributing.md shows."""

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
    ("action", "filter", "inventory", "modules"),
    ("_actions",),
    ("_reports", "_rollout", "_upgrade"),
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


def packages(folder: str) -> list[str]:
    """All packages below plugin_utils or module_utils."""
    return sorted(path.name for path in (PLUGINS / folder).iterdir() if any(path.glob("*.py")))


def imports(path: Path) -> list[ast.ImportFrom]:
    """The imports of a file from the collection."""
    return [node for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PREFIX)]


def imported(path: Path) -> set[str]:
    """The packages that a file imports from."""
    return {package_of(str(node.module)[len(PREFIX):]) for node in imports(path)}


def files_of(path: Path) -> list[Path]:
    """The files that a file imports from."""
    modules = {name for node in imports(path)
               for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))}
    paths = [PLUGINS / f"{str(module)[len(PREFIX):].replace('.', '/')}.py" for module in modules]
    return [one for one in paths if one.is_file()]


@pytest.mark.parametrize("path", sorted(PLUGINS.rglob("*.py")), ids=lambda path: str(path.relative_to(PLUGINS)))
def test_imports_go_down(path: Path) -> None:
    own = package_of(".".join(path.relative_to(PLUGINS).with_suffix("").parts))
    if own in HEIGHT:
        up = {other for other in imported(path) if other != own and HEIGHT[other] >= HEIGHT[own]}
        assert not up, f"{own} stands below or beside {', '.join(sorted(up))}"


def drawn(pattern: str) -> list[str]:
    """The beginnings of the rows of the map, sorted."""
    text = (ROOT / "docs" / "contributing.md").read_text()
    return sorted(name for row in re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
                  for name in re.findall(pattern, row))


def test_the_map_has_all_packages() -> None:
    assert drawn(r"`plugin_utils/(\w+)`") == packages("plugin_utils")
    assert packages("plugin_utils") == sorted(name for name in HEIGHT if name.startswith("_"))
    assert drawn(r"`module_utils/(\w+)`") == packages("module_utils")


def test_the_map_has_all_folders() -> None:
    assert drawn(r"`plugins/(\w+)`") == sorted(path.name for path in PLUGINS.iterdir() if any(path.rglob("*.py")))
    assert drawn(r"`(roles|playbooks)`") == ["playbooks", "roles"]


def test_module_utils_has_what_modules_need() -> None:
    """Code that only the controller uses is in plugin_utils."""
    waiting, needed = [*(PLUGINS / "modules").glob("*.py")], set()
    while waiting:
        path = waiting.pop()
        if path not in needed:
            needed.add(path)
            waiting += files_of(path)
    assert [str(path) for path in (PLUGINS / "module_utils").rglob("*.py")
            if path not in needed and path.name != "__init__.py"] == []


@pytest.mark.parametrize("name", packages("plugin_utils"))
def test_a_package_can_be_overseen(name: str) -> None:
    assert len([path for path in (PLUGINS / "plugin_utils" / name).glob("*.py")
                if path.name != "__init__.py"]) <= MOST

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Code reads only paths of a policy that exist in a format: a path that is not in the schema is refused, or found
here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats

POLICY = formats.read(None, releases.release())
PLUGINS = Path(__file__).parents[3] / "plugins"


@pytest.mark.parametrize("path", ["driver.verison", "drivers", "driver.version.text", "nfd.args", "mig.strategy.name"])
def test_a_path_that_no_format_has_is_refused(path: str) -> None:
    with pytest.raises(KeyError, match=path):
        POLICY.get(path)


@pytest.mark.parametrize("path", [
    "driver.nodeSelector", "node-feature-discovery.worker.tolerations", "gpuCluster.deployCR", "driver.labels.any",
    "draDriver.featureGates.any", "cuda.version", "extraObjects", "driver.upgradePolicy.autoUpgrade"])
def test_a_path_of_any_format_is_known(path: str) -> None:
    POLICY.get(path)


def read_in(path: Path) -> Iterator[str]:
    """The paths that a file reads with Policy.get and Policy.enabled, if they are literals."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)) and node.args):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        first = node.args[0]
        if name in ("get", "enabled") and isinstance(first, ast.Constant) and isinstance(first.value, str):
            text = first.value
            # Keys of other mappings have no dot, except labels, which have a slash, and files.
            if name == "enabled" or ("." in text and "/" not in text and not text.endswith(".csv")):
                yield f"{text}.enabled" if name == "enabled" else text


def test_every_literal_path_is_known() -> None:
    paths = {(path.name, one) for room in ("_policy", "_planning", "_drivers", "_components")
             for path in (PLUGINS / "plugin_utils" / room).glob("*.py") for one in read_in(path)}
    assert len(paths) > 90
    unknown = []
    for name, path in sorted(paths):
        try:
            POLICY.get(path)
        except KeyError:
            unknown.append(f"{name}: {path}")
    assert unknown == []

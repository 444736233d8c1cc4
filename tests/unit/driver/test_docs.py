# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sources, variables and messages in docs/driver.md agree with the code."""

from __future__ import annotations

import re
import typing as t

import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_deb import CudaRepository
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import FOLDERS
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.failures import explain
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import SOURCES, source_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.packages import can_install
from ansible_collections.gpuops.nvidia.tests.unit.pages import HOME, named_tests, rows

PAGE = (HOME / "docs" / "driver.md").read_text(encoding="utf-8")
ARCHES = ("x86_64", "aarch64")


def sources() -> dict[tuple[str, str, str, str], str]:
    """Maps source, distribution, version and machine to the text of the page."""
    found = {}
    for source, systems, *cells in rows(PAGE, "sources"):
        for group in systems.split(";"):
            names, versions, distributions = [], [], group.replace(",", " ").split()
            for word in distributions:
                (versions if word[0].isdigit() else names).append(word)
            for name in names:
                for version in versions:
                    found.update({(source.strip("`"), name, version, arch): cell for arch, cell in zip(ARCHES, cells)})
    return found


def test_sources() -> None:
    said = sources()
    wrong = {key for key, cell in said.items() if can_install(key[1:3], key[3], key[0]) != (cell != "no")}
    assert not wrong
    systems = {*((name, major) for name, major in FOLDERS), ("debian", "12"), ("debian", "13"),
               *(("ubuntu", version) for version in ("22.04", "24.04", "26.04"))}
    served = {(source, *system, arch) for source in SOURCES for system in systems for arch in ARCHES
              if source_of(source, *system, arch)}
    assert served <= set(said), served - set(said)
    assert {(source, *system) for source, *system, _arch in said if source == "cuda_repository"} >= {
        ("cuda_repository", *system) for system in FOLDERS}
    assert CudaRepository.for_distribution("debian", "14", "x86_64") is None


def test_real_names_its_test() -> None:
    real = [cell for cell in sources().values() if cell.startswith("real")]
    assert len(real) > 5
    for path in named_tests(real):
        assert path.is_file(), path


def test_examples_use_variables_of_the_role() -> None:
    known = yaml.safe_load((HOME / "roles/driver/meta/argument_specs.yml").read_text(encoding="utf-8"))
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    used: set[str] = set()
    for play in (play for block in blocks for play in t.cast("list[t.Any]", yaml.safe_load(block))):
        for role in play["roles"]:
            assert role["role"] == "gpuops.nvidia.driver"
            used |= set(role["vars"])
    assert len(used) > 10
    assert used <= set(known["argument_specs"]["main"]["options"])


def test_messages_are_those_that_are_explained() -> None:
    rows = PAGE.partition("| message | meaning |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        for message in re.findall(r"`([^`]+)`", row.split("|")[1]):
            assert explain(message.replace("...", "6.1")), message

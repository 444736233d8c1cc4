# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman: nothing is written; a message names what would prevent access to GPUs."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import ProgramResult
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.podman import Podman
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.played import Played, shape

SHAPES = sorted((pathlib.Path(__file__).parent / "shapes" / "podman").glob("*.conf"))
CONF = "/etc/containers/containers.conf"


def host(version: str = "podman version 5.4.2", cdi: str = "", **files: t.Any) -> Played:
    return Played(Podman(), version, CONF, files, unit=None, running=False,
                  facts={"cdi": ProgramResult(0, cdi)})


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_shape(path: pathlib.Path) -> None:
    one = host(**{CONF: shape(path)})
    if ".refused" in path.name:
        with pytest.raises(HostError, match=f"{CONF}: cdi_spec_dirs is /opt/cdi. Podman would not find .*/var/run/cdi"):
            one.propose()
        return
    proposal = one.propose()
    assert (proposal.changes, proposal.trials, proposal.action, proposal.warnings) == ([], [], "none", [])
    assert one.remove().changes == []


def test_later_files_win() -> None:
    one = host(**{CONF: '[engine]\ncdi_spec_dirs = ["/opt/cdi"]\n'})
    one.files["/etc/containers/containers.conf.d/50.conf"] = '[engine]\ncdi_spec_dirs = ["/etc/cdi"]\n'
    assert one.propose().warnings == []
    one.files["/etc/containers/containers.conf.d/60.conf"] = "[engine]\ncdi_spec_dirs = []\n"
    with pytest.raises(HostError, match="60.conf: cdi_spec_dirs is empty"):
        one.propose()


def test_old_hook_is_told() -> None:
    hook = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
    assert host(**{hook: "{}"}).propose().warnings[0].startswith(f"{hook} of an old toolkit")


@pytest.mark.parametrize(("version", "cdi", "told"), [
    ("podman version 4.3.1", "cdiVersion: 0.7.0\n", True), ("podman version 4.3.1", 'cdiVersion: "0.5.0"\n', False),
    ("podman version 5.1.0", "cdiVersion: 0.7.0\n", False), ("podman version 4.9.3", "", False),
    ("podman version 5.0.3", '"cdiVersion": "1.0.0"\n', True),
])
def test_version_of_the_specification(version: str, cdi: str, told: bool) -> None:
    assert any("needs Podman 5.1" in one for one in host(version, cdi).propose().warnings) == told


def test_without_cdi_there_is_nothing_for_podman() -> None:
    assert "only through CDI" in host().propose(cdi=False).warnings[0]

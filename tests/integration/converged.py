# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Three hosts that site.yml has converged, once for all test files that start from there."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tests.integration import user
from tests.integration.conftest import LabHosts

HOSTS = ("gpu-a1", "gpu-a2", "gpu-l1")


@dataclass
class Converged:
    """The states and runs on the way. Each field maps hosts. before: snapshots; untouched, previewed: all files and the
    snapshots before and after --check; disks: arguments of lab.reset."""

    before: dict[str, list[str]]
    untouched: dict[str, list[str]]
    preview: user.Run
    previewed: dict[str, list[str]]
    first: user.Run
    disks: dict[str, str]


@functools.cache
def converge(lab: LabHosts) -> Converged:
    """Converges fresh hosts with the variables of the demo: C(--check), then the first run, both without the warm
    server."""
    for host in HOSTS:
        lab.reset(host)
    before = {host: lab.snapshot(host) for host in HOSTS}
    untouched = {host: [*lab.files(host), *before[host]] for host in HOSTS}
    preview = user.playbook("site", lab.wishes, "--check", "--diff")
    previewed = {host: [*lab.files(host), *lab.snapshot(host)] for host in HOSTS}
    first = user.playbook("site", lab.wishes, "--diff", cold=True)
    assert first.rc == 0, first.output
    return Converged(before, untouched, preview, previewed, first, {host: lab.save(host) for host in HOSTS})

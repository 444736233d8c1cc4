# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a preflight that need only the data of releases, for hosts and clusters. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import Finding, Result


def of_release(release: Release) -> t.Iterator[Finding]:
    """Findings about the support life cycle of the release."""
    if release.life == "ended":
        yield Finding("policy", "release", "warning", f"release {release.version} gets no more fixes",
                      "Set gpu_release to a newer release")
    elif release.life == "deprecated":
        yield Finding("policy", "release", "info", f"release {release.version} is of the previous series, which gets "
                      "only fixes", "Plan an upgrade to a newer release (gpu_release)")


def system(release: Release, os_id: str, os_version: str) -> t.Iterator[Result]:
    """A finding if the support table of the release does not contain a system (ID and VERSION_ID of os-release)."""
    if releases.os_supported(release, os_id, os_version) is False:
        yield ("warning", f"{os_id} {os_version} is not in the support table of release {release.version}",
               "Use a system that the table lists")


def toolkit(version: str) -> t.Iterator[Result]:
    """The known faults of a version of the container toolkit; none for an empty version."""
    for fault in releases.known_faults(version, "container_toolkit") if version else ():
        yield "warning", f"container toolkit {version}: {fault}", "Set a newer toolkit.version"

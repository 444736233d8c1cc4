# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The release data: what the vendor publishes, transcribed here a second time and compared."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import matrix


def test_every_release_is_there() -> None:
    assert matrix.available() == (
        "24.6.0", "24.6.1", "24.6.2", "24.9.0", "24.9.1", "24.9.2", "25.3.0", "25.3.1", "25.3.2", "25.3.3", "25.3.4",
        "25.10.0", "25.10.1", "26.3.0", "26.3.1", "26.3.2", "26.3.3", "26.7.0"), "sorted as versions"
    assert matrix.release("v26.3.3") == matrix.release("26.3.3")
    for version in matrix.available():
        found = matrix.release(version)
        assert found.version == version and set(found.defaults) == {"cdi"}
        assert found.components["driver"] in found.drivers
        assert all(matrix.branch(matrix.branch_of(driver)) for driver in found.drivers)

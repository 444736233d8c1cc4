# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Order and matching of versions."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._base import matches, upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._versions import debian_key, rpm_key

# Each list in the order that `dpkg --compare-versions` gives.
ORDERED = [
    ["1.0~rc1-1", "1.0-1", "1.0-1ubuntu1", "1.0-2", "1.0.1-1", "1.1-1", "1.10-1", "1:0.9-1"],
    ["570.211.01-1", "580.95.05-1", "580.105.08-1", "590.48.01-1", "595.91.07-1", "610.43.02-1ubuntu1"],
    ["1.0~~", "1.0~", "1.0", "1.0a", "1.0b", "1.0+x"],
    ["2-1~bpo12+1", "2-1", "2-1+deb12u1", "2-2"],
]


@pytest.mark.parametrize("versions", ORDERED)
def test_order(versions: list[str]) -> None:
    assert sorted(set(versions), key=debian_key) == versions


# Each list in the order that rpm's own comparison gives (`rpm --eval '%{lua:print(rpm.vercmp(...))}'`).
RPM_ORDERED = [
    ["1.0~rc1-1", "1.0-1", "1.0^git1-1", "1.0a-1", "1.0.1-1", "1.1-1", "1.10-1", "1:0.9-1"],
    ["570.211.01-1.el9", "580.95.05-1.el9", "580.105.08-1.el9", "3:580.95.05-1.el9", "3:580.105.08-1.el9"],
    ["5.14.0-70.el9", "5.14.0-427.el9", "5.14.0-427.13.1.el9", "5.14.0-570.el9"],
]


@pytest.mark.parametrize("versions", RPM_ORDERED)
def test_rpm_order(versions: list[str]) -> None:
    assert sorted(set(versions), key=rpm_key) == versions


@pytest.mark.parametrize(("version", "bare"), [
    ("595.91.07-1", "595.91.07"), ("3:580.105.08-1ubuntu1", "580.105.08"), ("2025.10.14-1", "2025.10.14"),
    ("1.2", "1.2"),
])
def test_upstream(version: str, bare: str) -> None:
    assert upstream(version) == bare


def test_matches() -> None:
    assert matches("595.91.07-1", "595.91.07")
    assert matches("595.91.07-1", "595.91.07-1")
    assert matches("595.91.07-1", None)
    assert not matches("595.91.07-1", "595.91.07-2")
    assert not matches("595.91.07-1", "595.91.0")
    assert not matches(None, None)

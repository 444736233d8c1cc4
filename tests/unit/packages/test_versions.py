# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Order and matching of versions."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import matches, upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import debian_key, rpm_key

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


@pytest.mark.parametrize("version", [
    "", ":", ":1.0-1", "x:1.0-1", "(none):1.0-1", "-1:1.0", "1:", "1:2:3", "\u0663:1.0", "1.\u00b2-1", "~", "^", "-",
    "9" * 5000, "9" * 5000 + ":1", "1." + "9" * 5000,
])
def test_every_text_has_its_place_in_the_order(version: str) -> None:
    """One odd version in the index of another repository must not end the run."""
    for key in (debian_key, rpm_key):
        assert sorted([version, "580.1-1"], key=key) == sorted(["580.1-1", version], key=key)


def test_numbers_of_any_length() -> None:
    long = ["1." + "8" * 5000, "1." + "9" * 5000, "1.1" + "0" * 5000, "2.0"]
    mixed = [long[2], long[0], long[3], long[1]]
    assert sorted(mixed, key=debian_key) == sorted(mixed, key=rpm_key) == long
    assert debian_key("01.002") == debian_key("1.2") and rpm_key("01.002") == rpm_key("1.2")
    assert debian_key(":1.0") == debian_key("1.0") and rpm_key(":1.0") == rpm_key("1.0")


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

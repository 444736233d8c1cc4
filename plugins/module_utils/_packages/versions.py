# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sort keys for package versions of Debian (Policy Manual, section 5.6.12) and RPM.

A malformed version also has a key, because the index of a repository may contain one, and package managers sort it too.
"""

from __future__ import annotations

import re
import typing as t

Key = t.Tuple[object, ...]
_PARTS = re.compile(r"([^0-9]*)([0-9]*)")


def _number(digits: str) -> t.Tuple[int, str]:
    """A sort key for a number of any length. A conversion to an int would take quadratic time."""
    shown = digits.lstrip("0")
    return (len(shown), shown)


def _part_key(text: str) -> Key:
    """A sort key for the upstream version or the revision.

    The text alternates between non-digits and digits. A tilde sorts before the end of the non-digits, and letters sort
    before other characters.
    """
    key: list[object] = []
    for letters, digits in _PARTS.findall(text):
        key.append(tuple(-1 if sign == "~" else ord(sign) if sign.isalpha() else ord(sign) + 256
                         for sign in letters) + (0,))
        key.append(_number(digits))
    return tuple(key)


def debian_key(version: str) -> Key:
    """The sort key of a Debian version. An epoch that is not a number is compared as apt does."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    main, dash, revision = rest.rpartition("-")
    if not dash:
        main, revision = rest, "0"
    return (_part_key(epoch or "0"), _part_key(main), _part_key(revision))


# The order of the parts of an RPM version.
_TILDE, _END, _CARET, _LETTERS, _DIGITS = range(5)
_RPM_PARTS = re.compile(r"~|\^|[a-zA-Z]+|[0-9]+")
# If the text before a colon is not a number, it is part of the version (parseEVR() of rpm).
_EPOCH = re.compile(r"([0-9]*):(.*)\Z", re.DOTALL)


def _rpm_part_key(text: str) -> Key:
    """A sort key for a version or a release. Characters other than letters, digits, ~ and ^ only separate parts."""
    key: list[object] = []
    for part in _RPM_PARTS.findall(text):
        if part in "~^":
            key.append((_TILDE if part == "~" else _CARET,))
        else:
            key.append((_DIGITS, _number(part)) if part.isdigit() else (_LETTERS, part))
    return (*key, (_END,))


def rpm_key(version: str) -> Key:
    """The sort key of an RPM version, C([epoch:]version-release) (rpm-version(7))."""
    found = _EPOCH.match(version)
    epoch, rest = found.groups() if found else ("", version)
    main, _ignored, release = rest.partition("-")
    return (_number(epoch), _rpm_part_key(main), _rpm_part_key(release))

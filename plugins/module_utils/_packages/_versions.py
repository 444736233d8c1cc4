# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Order of Debian package versions (Debian Policy Manual, section 5.6.12). PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

_PARTS = re.compile(r"(\D*)(\d*)")


def _part_key(text: str) -> t.Tuple[t.Any, ...]:
    """A sort key for the upstream part or the revision.

    Runs of non-digits and digits alternate; in the former a tilde sorts before the end, letters before other signs.
    """
    key: list[t.Any] = []
    for letters, digits in _PARTS.findall(text):
        key.append(tuple(-1 if sign == "~" else ord(sign) if sign.isalpha() else ord(sign) + 256
                         for sign in letters) + (0,))
        key.append(int(digits or "0"))
    return tuple(key)


def debian_key(version: str) -> t.Tuple[t.Any, ...]:
    """A key by which C(sorted) and C(max) order Debian versions."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    main, dash, revision = rest.rpartition("-")
    if not dash:
        main, revision = rest, "0"
    return (int(epoch), _part_key(main), _part_key(revision))

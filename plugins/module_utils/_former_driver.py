# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The former driver of a host, to which C(state: rolled_back) of nvidia_driver returns, in the journal of the driver.

A run that changes the driver records the driver of the host in the entry C(former, driver), in C(before), which is
deleted when the change is complete. Then the former driver is recorded in the entry C(previous, driver), in C(after).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal

# The kinds of the two entries, and their key.
FORMER, PREVIOUS, KEY = "former", "previous", "driver"


class Archive(t.TypedDict):
    """The .run file of a driver, as in the option C(runfile). src: without the query of a URL. checksum: can be empty.
    """

    src: str
    checksum: str


class FormerDriver(t.TypedDict, total=False):
    """A driver that was on a host.

    version: None if there was none. flavour: C(open), C(proprietary), or None if unknown. source: the name of its
    delivery. loaded: whether it was loaded. archive: its .run file, None if unknown. returns: whether the change is a
    return to the driver in the entry C(previous). installation: C(full), C(compute-only), or C(auto) if unknown.
    """

    version: t.Optional[str]
    flavour: t.Optional[str]
    source: str
    loaded: bool
    archive: t.Optional[Archive]
    returns: bool
    installation: str


def former_driver(journal: Journal) -> FormerDriver | None:
    """The driver before the last change, None if none is recorded.

    That is the driver before a change that is not complete yet, unless this change is itself a return to the former
    driver.
    """
    begun, complete = journal.get(FORMER, KEY), journal.get(PREVIOUS, KEY)
    found = begun and begun["before"]
    if not isinstance(found, dict) or found.get("returns"):
        found = complete and complete["after"]
    return t.cast(FormerDriver, found) if isinstance(found, dict) and found.get("version") else None

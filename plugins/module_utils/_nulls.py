# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes an option that is null as omitted. Ansible itself does this only for options without a default. Pure."""

from __future__ import annotations

import typing as t

Arguments = t.Dict[str, t.Any]


def without_nulls(given: Arguments, spec: t.Mapping[str, t.Any]) -> Arguments:
    """The arguments without options and suboptions that are null. spec: the specification of the options.

    Values of options without suboptions are not changed, and unknown options are kept for the error about them.
    """
    options = {name: option for key, option in spec.items() for name in (key, *option.get("aliases", ()))}
    found = {}
    for name, value in given.items():
        suboptions = options.get(name, {}).get("options")
        if value is None and name in options:
            continue
        if suboptions and isinstance(value, dict):
            value = without_nulls(value, suboptions)
        elif suboptions and isinstance(value, list):
            value = [without_nulls(one, suboptions) if isinstance(one, dict) else one for one in value]
        found[name] = value
    return found

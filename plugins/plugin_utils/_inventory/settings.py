# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables C(gpu_*) that a user sets for the whole fleet, and their defaults, which stand here alone. PRIVATE.

The tasks that need them run once for a play, on whichever host comes first; a user may set them on any group. So they
are looked up on every host of the play, and must agree. What none of these says is looked up on the hosts that --limit
leaves out: a run for the cluster alone must not go by another policy.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._proxy import masked
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown

Hosts = t.Mapping[str, t.Mapping[str, t.Any]]

# Option of gpu_policy: default of the variable gpu_OPTION.
DEFAULTS: t.Dict[str, t.Any] = {
    "policy": None,
    "release": None,
    "placement": "hosts",
    "disruption": "never",
    "kubeconfig": None,
    "context": None,
    "namespace": "gpu-operator",
    "image_registry": "nvcr.io",
    "pull_secrets": [],
    "proxy": None,
    "node_os": [],
    "render_to": None,
    "sharing": None,
    "monitoring": None,
    "max_unavailable": 1,
    "strict": False,
}

_LISTS = ("pull_secrets", "node_os")
# Their readers say what they may be.
_ANY = ("policy", "placement", "proxy", "sharing", "monitoring", "max_unavailable", "strict")

# What an API server or a registry would refuse, after other things have been written: (pattern, what is allowed).
_FORMS: t.Dict[str, t.Tuple[str, str]] = {
    "namespace": (r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "small letters, digits and dashes, at most 63 of them"),
    "image_registry": (r"[a-z0-9][-a-z0-9.]*(:\d+)?(/[-a-z0-9._/]+)?",
                       "a host, a port and a path such as mirror.example:5000/gpu, without https://"),
}


def settle(given: t.Mapping[str, t.Any], hosts: Hosts, others: Hosts) -> dict[str, t.Any]:
    """By option its value: what the task says, else the variable of the hosts, else of the others, else the default.

    given: options of the task, None where unset; hosts, others: by host of the play, and by host that is left out, its
    variables. A policy that is given and empty stays so, for its reader to name. Raises InputError where hosts differ,
    and for a value that cannot be.
    """
    def one(option: str, default: t.Any) -> t.Any:
        if given.get(option) not in (None, ""):
            return given[option]
        found = _of_hosts(option, hosts) or _of_hosts(option, others)
        if found:
            return found[0]
        empty = any(variables.get(f"gpu_{option}") == "" for variables in (*hosts.values(), *others.values()))
        if empty and option == "disruption":
            raise InputError("it is empty.", f"Set one of {', '.join(LEVELS)}, or leave the variable out.",
                             path="gpu_disruption", value="", allowed=list(LEVELS))
        return "" if option == "policy" and (empty or given.get(option) == "") else default

    return {option: _formed(option, one(option, default)) for option, default in DEFAULTS.items()}


def _formed(option: str, value: t.Any) -> t.Any:
    """The value. Raises InputError where it is of another type (variables have none of their own), and where no server
    would take it."""
    if option in _LISTS and not (isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)):
        raise InputError(f"a list of strings is expected, {shown(value)} is given.", "Write [one, other].",
                         path=f"gpu_{option}", value=value)
    if option not in (*_LISTS, *_ANY) and not isinstance(value, (str, type(None))):
        raise InputError(f"a string is expected, {shown(value)} is given.", "Write it in quotes.",
                         path=f"gpu_{option}", value=value)
    pattern, allowed = _FORMS.get(option, ("", ""))
    if pattern and not re.fullmatch(pattern, str(value)):
        raise InputError(f"{value!r} is not allowed.", f"Write {allowed}.", path=f"gpu_{option}", value=value,
                         allowed=allowed)
    return value


def _of_hosts(option: str, hosts: Hosts) -> list[t.Any]:
    """The one value that hosts have, empty where none has any."""
    name = f"gpu_{option}"
    found: list[tuple[t.Any, str]] = []
    for host, variables in hosts.items():
        value = variables.get(name)
        if value not in (None, "") and value not in [known for known, _first in found]:
            found.append((value, host))
    if len(found) > 1:
        (one, here), (other, there) = found[:2]
        raise InputError(f"it is {_short(one)} on {here} and {_short(other)} on {there}.",
                         "Set it once, for the group 'all' or on the command line.", path=name,
                         value=[_short(value) for value, _first in found])
    return [value for value, _host in found]


def _short(value: t.Any) -> str:
    """As a message has it, without the password of a proxy."""
    text = masked(repr(value))
    return text if len(text) <= 40 else f"{text[:37]}..."

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables C(gpu_*) of the whole fleet that the module gpu_policy reads, and their defaults. PRIVATE.

The tasks that need these variables run once for a play, on the first host, but a user may set them for any group.
Therefore, they are read from all hosts of the play, on which they must be equal. If none of these sets a variable, it
is read from the hosts that --limit omits, because a run for the cluster alone must use the same policy.

The default of gpu_max_unavailable is repeated where a task needs the variable itself: in the playbooks site and remove
and in the role mig_manager. Variables that this module does not read have their defaults where they are used, so
C(grep -rn gpu_NAME playbooks roles) finds them: gpu_check_metrics, gpu_check_pods, gpu_remove_timeout,
gpu_startup_taint and gpu_max_fail_percentage in playbooks (the last also in the roles maintenance and mig_manager),
gpu_report_html, gpu_report_json and gpu_take_over in the role preflight, gpu_status_fail_on and gpu_status_metrics_file
in the playbook status, gpu_mig_layout in the playbook mig and the role mig_manager.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._proxy import masked
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import WORDS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import Variables

Hosts = t.Mapping[str, Variables]

# The default of the variable gpu_OPTION, by the option of gpu_policy.
DEFAULTS: t.Dict[str, object] = {
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
    "maintenance_windows": [],
    "strict": False,
}

# Variables that playbooks read on the first host of a play, so all hosts must have the same value.
EVERYWHERE = ("gpu_startup_taint",)

_LISTS = ("pull_secrets", "node_os")
# The options whose values are checked where they are used.
_ANY = ("policy", "placement", "proxy", "sharing", "monitoring", "max_unavailable", "maintenance_windows", "strict")

# (pattern, allowed values as text). Without this check, an API server or a registry would refuse another value only
# after other changes.
_FORMS: t.Dict[str, t.Tuple[str, str]] = {
    "namespace": (r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "at most 63 lowercase letters, digits and dashes"),
    "image_registry": (r"[a-z0-9][-a-z0-9.]*(:\d+)?(/[-a-z0-9._/]+)?",
                       "a host, a port and a path such as mirror.example:5000/gpu, without https://"),
}

# (allowed values as text, remedy) for variables that must not be empty, because the default would apply although the
# user has set them. In other variables, an empty text means "not set"; an empty policy is handled where it is read.
NEVER_EMPTY: t.Dict[str, t.Tuple[t.Union[str, t.List[str]], str]] = {
    "disruption": ([*LEVELS], f"Set one of {', '.join(LEVELS)}"),
    "placement": ([*WORDS], f"Set one of {', '.join(WORDS)}, or a mapping of components to host, cluster or none"),
    **{option: (allowed, f"Write {allowed}") for option, (_pattern, allowed) in _FORMS.items()},
    "max_unavailable": ("1 or more, or a percentage such as 25%", "Write 1 or more, or a percentage such as 25%"),
    # An empty text that a template yields must not lift the windows.
    "maintenance_windows": ("a list of windows", "Write a list of windows, [] for none"),
    "strict": (["true", "false"], "Write true or false"),
    **dict.fromkeys(_LISTS, ("a list of strings", "Write a list such as [a, b]")),
    "sharing": ("a mapping, or the path of a file", "Write a mapping, or the path of a file"),
    "monitoring": ("a mapping", "Write a mapping"),
}

# Variables in whole seconds for maintenance, the cluster, and CUDA samples. L(components.SECONDS) contains those for
# the driver of a host.
SECONDS = ("gpu_remove_timeout", "maintenance_drain_timeout", "maintenance_slurm_timeout", "mig_manager_timeout",
           "preflight_cuda_timeout", "preflight_timeout", "validator_timeout")


def option_values(given: Variables, hosts: Hosts, others: Hosts) -> Data:
    """The value of each option: from the task, otherwise from hosts, otherwise from others, otherwise the default.

    given: the options of the task, None if not set; hosts: the variables of the hosts of the play, by host; others: the
    same for hosts that --limit omits. An empty policy stays empty and is refused where it is read. Raises InputError if
    hosts have different values, and for an invalid or empty value, also of a variable in SECONDS.
    """
    _check_seconds(hosts)
    _check_everywhere(hosts, others)

    def one(option: str, default: object) -> object:
        if given.get(option) not in (None, ""):
            return given[option]
        found = _of_hosts(f"gpu_{option}", hosts) or _of_hosts(f"gpu_{option}", others)
        if found:
            return found[0]
        empty = any(variables.get(f"gpu_{option}") == "" for variables in (*hosts.values(), *others.values()))
        if empty and option in NEVER_EMPTY:
            allowed, remedy = NEVER_EMPTY[option]
            raise InputError("it is empty.", f"{remedy}, or leave the variable out.", path=f"gpu_{option}", value="",
                             allowed=allowed)
        return "" if option == "policy" and (empty or given.get(option) == "") else default

    return {option: _checked(option, one(option, default)) for option, default in DEFAULTS.items()}


def _check_seconds(hosts: Hosts) -> None:
    """Raises InputError if a variable in SECONDS is not a number of seconds on any of the hosts."""
    for host, variables in hosts.items():
        for name in SECONDS:
            value = variables.get(name)
            if value is not None and not str(value).isdecimal():
                raise InputError(f"{value!r} of {host} is not a number of seconds.",
                                 "Write a whole number, 0 or more, or leave the variable out.", path=name, value=value,
                                 allowed="a whole number, 0 or more")


def _check_everywhere(hosts: Hosts, others: Hosts) -> None:
    """Raises InputError if hosts have different values of a variable in EVERYWHERE, or only some of them have one."""
    for name in EVERYWHERE:
        found = _of_hosts(name, hosts) or _of_hosts(name, others)
        without = [host for host, variables in hosts.items() if variables.get(name) in (None, "")]
        if found and without:
            raise InputError(f"it is {_short(found[0])}, but not set on {some_of(without)}.",
                             "Set it once, for the group 'all' or on the command line.", path=name,
                             value=_short(found[0]))


def _checked(option: str, value: object) -> object:
    """Returns the value of an option. Raises InputError if its type or format is invalid."""
    if option in _LISTS and not (isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)):
        raise InputError(f"a list of strings is expected, not {shown(value)}.", "Write a list such as [a, b].",
                         path=f"gpu_{option}", value=value)
    if option not in (*_LISTS, *_ANY) and not isinstance(value, (str, type(None))):
        raise InputError(f"a string is expected, not {shown(value)}.", "Write it in quotes.",
                         path=f"gpu_{option}", value=value)
    pattern, allowed = _FORMS.get(option, ("", ""))
    if pattern and not re.fullmatch(pattern, str(value)):
        raise InputError(f"{value!r} is not allowed.", f"Write {allowed}.", path=f"gpu_{option}", value=value,
                         allowed=allowed)
    return value


def _of_hosts(name: str, hosts: Hosts) -> list[object]:
    """A list with the one value of a variable that the hosts set, empty if no host sets one. Raises InputError if their
    values differ."""
    found: list[tuple[object, str]] = []
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


def _short(value: object) -> str:
    """A value as text for messages: shortened, and without the password of a proxy."""
    text = masked(repr(value))
    return text if len(text) <= 40 else f"{text[:37]}..."

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of a compromised host, derived from those that the modules of a sound host have printed."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

Data = dict[str, Any]
Path = tuple[Any, ...]

# What a terminal obeys or does not show: control characters, and those that change the direction or have no width.
OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
CANARY = "/tmp/gpuops-host-canary"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\r\u202egnp\u2066\x08\x7f"
TEMPLATE = f"{{{{ lookup('pipe', 'touch {CANARY}') }}}}"
SHELL, OPTION = f"$(touch {CANARY}); `touch {CANARY}`", f"-oProxyCommand=touch {CANARY}"
VALUES: tuple[Any, ...] = (None, True, -7, 10**40, 1.5, "", ESCAPE, TEMPLATE, SHELL, OPTION, "../../etc/passwd",
                           "x" * 20_000, [], [None], [{}], {}, {"": None},
                           {"__ansible_type": "TaggedStr", "value": TEMPLATE})
# What a host would like to say of everybody: variables of this collection, and those by which Ansible reaches hosts.
VARIABLES: Data = {
    "gpu_disruption": "reboot", "gpu_image_registry": "evil.example", "gpu_max_unavailable": "100%", "gpu_policy": {},
    "gpu_kubeconfig": "/etc/passwd", "gpu_node_name": "gpu-s1", "gpu_strict": True, "preflight_plan": {},
    "gpu_plan": {},
    "driver_version": "1.2.3", "driver_disruption": "reboot", "maintenance_result": {}, "ansible_connection": "local",
    "ansible_host": OPTION, "ansible_ssh_common_args": OPTION, "ansible_ssh_executable": CANARY,
    "ansible_python_interpreter": SHELL, "ansible_become_exe": SHELL, "ansible_become_method": TEMPLATE,
    "inventory_hostname": "gpu-s1", "groups": {"gpu_hosts": []}, "hostvars": {}, "ansible_play_hosts_all": ["gpu-s1"],
    "ansible_check_mode": False}
# Keys of results that mean something to Ansible, or to this collection.
KEYS: tuple[Data, ...] = (
    {"add_host": {"host_name": "hostile-new", "groups": ["gpu_hosts"], "host_vars": {"gpu_disruption": "reboot"}}},
    {"add_group": "gpu_control", "parent_groups": ["gpu_hosts"]}, {"_ansible_no_log": True},
    {"_ansible_delegated_vars": {"ansible_delegated_host": "gpu-s1", "ansible_host": OPTION}},
    {"_ansible_verbose_override": True, "_ansible_verbose_always": True, "_ansible_item_label": ESCAPE},
    {"_ansible_notify": [TEMPLATE]}, {"_ansible_parsed": False, "module_stdout": ESCAPE, "module_stderr": ESCAPE},
    {"warnings": [ESCAPE, TEMPLATE]}, {"warnings": {"a": ESCAPE}},
    {"deprecations": [{"msg": ESCAPE, "version": "1", "collection_name": TEMPLATE}]}, {"exception": ESCAPE},
    {"diff": {"before": ESCAPE, "after": TEMPLATE, "before_header": ESCAPE}}, {"diff": [[ESCAPE]]},
    {"msg": TEMPLATE}, {"msg": ESCAPE, "failed": True}, {"failed": "no"}, {"failed": 7},
    {"unreachable": True, "msg": ESCAPE}, {"skipped": True, "skip_reason": ESCAPE}, {"changed": ESCAPE},
    {"changed": [TEMPLATE]}, {"results": [{"failed": ESCAPE}]},
    {"ansible_job_id": "1", "started": 1, "finished": 0}, {"include": "/etc/passwd", "include_variables": {"a": 1}},
    {"stdout": ESCAPE * 500, "stdout_lines": TEMPLATE, "rc": ESCAPE}, {"invocation": {"module_args": ESCAPE}},
    {"error": {"kind": "missing_library", "library": "pynvml"}, "failed": True},
    {"error": {"kind": ESCAPE, "message": TEMPLATE, "hint": ESCAPE, "path": SHELL}, "failed": True},
    {"error": ESCAPE, "failed": True}, {"plan": [{"id": ESCAPE, "action": TEMPLATE}]}, {"plan": "x", "pending": 7},
    {"pending": [{"id": ESCAPE, "needs": "reboot", "pending_reason": TEMPLATE}]}, {"reboot_required": True},
    {"reboot_required": ESCAPE}, {"state": {"driver": ESCAPE}}, {"facts": ESCAPE})

# Keys that roles, playbooks and reports read of the answers of modules, or Ansible does.
READ = ("changed", "failed", "msg", "error", "plan", "pending", "diff", "components", "facts", "labels", "unread",
        "samples", "reboot_required", "mok", "holders", "touched", "unreachable", "skipped", "rc", "warnings",
        "exception", "state", "evidence", "explained", "dcgm")


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all values of a document; of a list, only those of its first element."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*path, key))


def put(document: Data, path: Path, value: Any) -> Data:
    """A copy of a document with another value at a path."""
    made = copy.deepcopy(document)
    holder: Any = made
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return made


def outputs(sound: str) -> list[bytes]:
    """Outputs that are no answer, or that have more than an answer. sound: the output of a module."""
    whole = sound.encode()
    noise = ESCAPE.encode("utf-8", "surrogatepass")
    return [b"", b"null", b"[]", b"{", b"\xff\xfe\x00", whole * 2, b'{"a":' * 100_000,
            b'{"changed": ' + b"9" * 5_000_000 + b"}", noise + b"\n" + whole, whole + b"\n" + noise, b'{"facts": NaN}',
            b"\0" * 1000 + whole, b'{"changed": false}',
            b" " * 20_000_000 + whole, b"sudo: " + noise, b"<html>" + noise, b'{"changed": false, "changed": true}',
            b'"' + noise + b'"', whole.replace(b'"changed"', b'"\\ud800"'), b"BECOME-SUCCESS-" + whole]


def of_facts(sound: str, many: int) -> list[bytes]:
    """This many answers of gpu_info, each with one replaced value, spread over all facts."""
    told = json.loads(sound)
    every = [("facts", *path) for path in places(told["facts"])]
    step = max(1, len(every) // many)
    return [json.dumps(put(told, path, VALUES[at % len(VALUES)])).encode()
            for at, path in enumerate(every[::step][:many])]


def of_variables(sound: str) -> list[bytes]:
    """Answers each of which sets a variable."""
    return [json.dumps({**json.loads(sound), "ansible_facts": {name: value}}).encode()
            for name, value in VARIABLES.items()]


def of_read(sound: str) -> list[bytes]:
    """Answers each of which has a value of any type and size for one of the keys that are read."""
    return [json.dumps({**json.loads(sound), key: value}).encode() for key in READ for value in VALUES]


def of_keys(sound: str) -> list[bytes]:
    """Answers each of which has an additional key."""
    return [json.dumps({**json.loads(sound), **more}).encode() for more in KEYS]


def shells() -> list[bytes]:
    """Shells of a host, each an executable file, which print in place of a command, beside it, or where it fails."""
    noise = "".join(f"\\{byte:03o}" for byte in ESCAPE.encode("utf-8", "surrogatepass"))
    return [f"#!/bin/sh\nnoise() {{ printf '{noise}'; }}\n{lines}\n".encode() for lines in (
        # ssh ends with 255 where it does not reach a host, and Ansible takes 5 for a wrong password.
        "noise >&2; exit 255", "noise; exit 1", "noise; noise >&2; exit 5", "noise",
        "noise >&2; echo 'No space left on device' >&2; exit 1",
        "noise >&2; exec /bin/sh \"$@\"",
        "case $2 in *'rm -f -r'*) noise >&2; exit 1;; esac; exec /bin/sh \"$@\"",
        "case $2 in *AnsiballZ*) noise >&2; exit 255;; esac; exec /bin/sh \"$@\"")]


def in_batch(sound: str) -> list[bytes]:
    """Answers from all over the tables. sound: the output of mig_config."""
    return [*of_keys(sound)[::5], *outputs(sound)[:4], *of_read(sound)[::60]]

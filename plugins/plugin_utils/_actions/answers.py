# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks what a module on a host has answered before anything uses it. PRIVATE to the collection.

A host, or its Python, may be compromised. Its answer may only affect this host: it is data of known shapes, sets no
variable, adds no host, and contains nothing that a terminal would execute.
"""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleError
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable, printable_data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.shapes import (
    Anything,
    Fault,
    Nullable,
    Shape,
    Table,
    Text,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes

Result = t.Dict[str, t.Any]

# Beyond any answer of ours, which is a few thousand values three to nine levels deep.
_VALUES, _CHARACTERS, _LEVELS = 1_000_000, 64 * 2**20, 50
# Keys to which Ansible gives a meaning of its own, besides those that begin with ansible_. Some versions take them out
# of modules' answers, some do not.
_MEANINGFUL = ("add_host", "add_group", "results", "include", "include_args")
# What Ansible works with before anybody sees the answer.
_READ_BY_ANSIBLE: t.Dict[str, Shape] = {"ansible_facts": Nullable(Table(Text(), Anything(), _VALUES)),
                                        **dict.fromkeys(("stdout", "stderr"), Nullable(Text(longest=_CHARACTERS)))}
# Set by Ansible itself once it has read an answer.
_KEPT = ("_ansible_parsed",)


class AnswerError(GpuopsError):
    """An answer that the modules of this collection never give. path, value, allowed: as in InputError."""

    kind = answer_shapes.KIND


def received(result: Result, interpreter: t.Mapping[str, str], facts: t.Collection[str] = (),
             needed: t.Sequence[str] = ()) -> Result:
    """The accepted part of an answer, or a failed result if the answer is invalid.

    interpreter: the fact with the Python that Ansible has discovered, which Ansible adds itself; facts: the facts of
    this collection that the module may set; needed: keys that a successful answer must have.
    """
    try:
        told = printable_data(limited(result))
        for name, shape in answer_shapes.ANSWER.items():
            if name in told:
                refuse(name, shape.fault(told[name]))
        if (told.get("error") or {}).get("kind") == answer_shapes.KIND:
            refuse("error.kind", Fault("", repr(answer_shapes.KIND), "what the module documents"))
        missing = [name for name in needed if name not in told]
        if missing and not told.get("failed") and "unreachable" not in told:
            refuse(missing[0], Fault("", "missing", "what the module documents"))
        own = _own_facts(told.get("ansible_facts"), facts)
    except AnswerError as error:
        return {"failed": True, **_facts(interpreter), **error.as_result()}
    return {**_plain(told), **_facts({**interpreter, **own})}


def _plain(told: Result, kept: t.Collection[str] = _KEPT) -> Result:
    return {key: value for key, value in told.items() if key in kept or not (
        key in _MEANINGFUL or key.startswith(("ansible_", "_ansible_")))}


def _facts(found: t.Mapping[str, t.Any]) -> Result:
    return {"ansible_facts": dict(found)} if found else {}


def _own_facts(told: t.Any, names: t.Collection[str]) -> Result:
    """The facts that the module may set. Raises AnswerError if one has another shape."""
    found = {name: told[name] for name in names if name in told} if isinstance(told, dict) else {}
    for name, value in found.items():
        refuse(f"ansible_facts.{name}", answer_shapes.OWN_FACTS[name].fault(value))
    return found


def refuse(name: str, fault: Fault | None) -> None:
    """Raises AnswerError if there is a fault. name: the name of the value with the fault."""
    if fault is not None:
        path = name + fault.path
        raise AnswerError(
            f"The answer of the host is invalid: {path} is {fault.value} (allowed: {fault.allowed}).",
            "The modules of this collection never return such an answer. Find out what runs on the host in their place "
            "(its Python, its libraries, who is root there). If nothing is wrong with the host, report this.",
            path=path, value=fault.value, allowed=fault.allowed)


def parsed(parse: t.Callable[[], Result]) -> Result:
    """The output of a module as Ansible parses it, without the keys for which Ansible would print a warning.

    Raises AnswerError for an output on which Ansible itself would fail.
    """
    try:
        told = parse()
    except (AnsibleError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError):
        told = {}
        refuse("it", Fault("", "what Ansible cannot read", f"JSON of at most {_LEVELS} levels"))
    for name, shape in _READ_BY_ANSIBLE.items():
        if name in told:
            refuse(name, shape.fault(told[name]))
    return _plain(told, (*_KEPT, "ansible_facts"))


def calm(stdout: str) -> str:
    """The output of a module, printable beside its JSON: Ansible shows such text unchanged in a warning."""
    lines = stdout.splitlines()
    first = next((at for at, line in enumerate(lines) if line.strip().startswith("{")), len(lines))
    last = max((at for at, line in enumerate(lines) if line.strip().endswith("}")), default=-1)
    return "\n".join(line if first <= at <= last else printable(line) for at, line in enumerate(lines))


def limited(result: Result) -> Result:
    """Returns the result unchanged. Raises AnswerError if it is too large or nested too deep."""
    values = characters = 0
    waiting: list[tuple[t.Any, int]] = [(result, 0)]
    while waiting:
        value, level = waiting.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict):
            characters += sum(len(key) for key in value if isinstance(key, str))
            waiting += [(one, level + 1) for one in value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += [(one, level + 1) for one in value]
        if level > _LEVELS:
            refuse("it", Fault("", f"nested {level} levels deep", f"at most {_LEVELS}"))
        if values > _VALUES or characters > _CHARACTERS:
            refuse("it", Fault("", "too large", f"at most {_VALUES} values and {_CHARACTERS} characters"))
    return result

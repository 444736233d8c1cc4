# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host side of container_toolkit answers, checked before anything is planned from it. Pure. PRIVATE.

The plan is made on the controller from what the host has read, so that a host in wrong hands would choose what the
controller computes with. Shapes: module_utils/_toolkit/read.py and work.py.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.shapes import (
    Anything,
    Fault,
    Fields,
    Flag,
    Nullable,
    Number,
    OneOf,
    Rows,
    Shape,
    Table,
    Text,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.registry import RUNTIMES

_MANY = 10_000
_FLAG, _TEXT, _PATH = Flag(), Text(), Text(longest=4096)
_MAYBE_TEXT = Nullable(_TEXT)
_FILE = Nullable(Text(longest=4 * 2**20))
_SAID = Text(longest=2**20)
_ANSWER: dict[str, Shape] = {"rc": Number(smallest=-1000, largest=1000), "stdout": _SAID, "stderr": _SAID}
_PROGRAM, _DUMP = Fields(_ANSWER), Fields(_ANSWER, {"journal": _SAID})


class _Setting:
    """A value of the settings file: a string, a number, true or false, or a list of strings; None for none."""

    def fault(self, value: t.Any) -> Fault | None:
        """See Shape."""
        if value is None or isinstance(value, (bool, str)) or isinstance(value, int) and abs(value) < 2**63:
            return None
        return Rows(_PATH, _MANY).fault(value)


_RUNTIME = Fields({
    "binary": _PATH, "unit": _MAYBE_TEXT, "running": _FLAG, "boot": Nullable(OneOf(("yes", "no", "masked"))),
    "on_demand": _FLAG, "stale": _FLAG, "command": Rows(_PATH, _MANY), "config": _PATH,
    "version": _SAID, "imports": Table(_PATH, Rows(_PATH, _MANY), _MANY), "files": Table(_PATH, _FILE, _MANY),
    "health": Rows(_PATH, 64), "dump": Nullable(_DUMP), "facts": Table(_TEXT, Nullable(_PROGRAM), 64)})
_JOURNAL = Fields({
    "present": _FLAG, "default_runtime": Table(_TEXT, _MAYBE_TEXT, 64),
    "restart": Table(_TEXT, OneOf(("restart", "reload")), 64),
    "config": Table(_PATH, Fields({"part": _TEXT, "is": _TEXT, "before": _FILE, "runtime": _TEXT,
                                   "parts": Rows(_TEXT, 64)}), 1000)})
_STEPS = Rows(Fields({**answer_shapes.STEP, "data": Table(_TEXT, Anything(), 64)}, whole=False), _MANY)
_SEEN = Fields({
    "runtimes": Table(OneOf(tuple(RUNTIMES)), Nullable(_RUNTIME), 64), "markers": Rows(_PATH, 1000),
    "journal": _JOURNAL,
    "settings": Fields({"text": _FILE, "ours": Table(_TEXT, Fields({"before": _Setting(), "after": _Setting()}), 1000),
                        "file": Nullable(OneOf(("before", "ours", "edited"))), "new": _FLAG}),
    "packages": Fields({"installed": Table(_TEXT, _TEXT, _MANY), "version": _MAYBE_TEXT, "steps": _STEPS}),
    "cdi": Fields({"specs": Rows(_PATH, _MANY), "driver": _MAYBE_TEXT, "steps": _STEPS,
                   "pending": answer_shapes.PENDING, "warnings": Rows(Text(longest=10_000), 1000)})})
_OPTIONS = Fields({
    "state": OneOf(("present", "absent")), "runtime": OneOf(("auto", *RUNTIMES)),
    "mode": OneOf(("auto", "cdi", "legacy")), "config_path": Nullable(_PATH), "drop_in_path": Nullable(_PATH),
    "set_as_default": _FLAG, "cdi": _FLAG, "nri": _FLAG, "settings": Table(_TEXT, Anything(), 1000),
    "disruption": OneOf(LEVELS)}, whole=False)
# By phase what an answer has.
_PHASES: dict[str, dict[str, Shape]] = {
    "read": {"seen": _SEEN, "options": _OPTIONS}, "apply": {"seen": _SEEN, "options": _OPTIONS},
    "try": {"trials": Rows(_PROGRAM, 1000)}}


def fault(phase: str, answer: t.Mapping[str, t.Any]) -> Fault | None:
    """What is wrong with an answer to a phase, None where nothing is."""
    for name, shape in _PHASES[phase].items():
        found = shape.fault(answer.get(name))
        if found is not None:
            return found.below(name)
    return _unasked(answer["seen"]["runtimes"]) if "seen" in _PHASES[phase] else None


def _unasked(runtimes: t.Mapping[str, t.Any]) -> Fault | None:
    """A runtime that is installed, without what its programs were asked for."""
    for name, view in runtimes.items():
        probe = RUNTIMES[name].probe
        if view and view["config"] not in view["files"]:
            return Fault(f"seen.runtimes.{name}.files", "without its configuration", "what was asked for")
        missing = [fact for fact in probe.get("facts", ()) if view and view["binary"] and not view["facts"].get(fact)]
        if missing or view and view["binary"] and probe.get("dump") and view["dump"] is None:
            return Fault(f"seen.runtimes.{name}", f"without {missing[0] if missing else 'dump'}", "what was asked for")
    return None

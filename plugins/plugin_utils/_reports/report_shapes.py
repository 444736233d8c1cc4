# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the documents that a report reads, which a user may write by hand. Pure. PRIVATE.

A report ignores other keys. A test compares these shapes with the documents of real runs.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import ON_HOSTS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.shapes import (
    Anything,
    Case,
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
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.answer_shapes import FACTS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import SEVERITIES

_MOST = 10**9  # no limit, because the size depends on the fleet
_TEXT, _COUNT = Text(longest=_MOST), Number()
_MAYBE_TEXT = Nullable(_TEXT)
_TEXTS = Rows(_TEXT, _MOST)
_COMPONENT = OneOf(tuple(component.name for component in ON_HOSTS))
_STATE = OneOf(("ok", "pending", "failed", "absent"))


def _part(needed: t.Mapping[str, Shape] | None = None, **optional: Shape) -> Fields:
    """A mapping that may have further keys."""
    return Fields(needed or {}, optional, closed=False)


def _listed(**needed: Shape) -> Rows:
    return Rows(_part(needed), _MOST)


def _by_name(shape: Shape) -> Table:
    return Table(_TEXT, shape, _MOST)


_STEPS = Table(_COMPONENT, Rows(_part({"id": _TEXT}, reason=_MAYBE_TEXT, pending_reason=_MAYBE_TEXT), _MOST), _MOST)
HOSTS = _by_name(_part({"facts": Nullable(FACTS), "steps": _STEPS, "pending": _STEPS, "checks": Nullable(_listed(
    component=_COMPONENT, state=_STATE, detail=_TEXT, hint=_MAYBE_TEXT))}))

_DRIVER: dict[str, Shape] = {"placement": _TEXT, "version": _MAYBE_TEXT, "branch": Anything(),
                             "kernel_module_type": _TEXT}
_ON_HOST = _part({
    "driver": Case("placement", {"none": _part({"placement": _TEXT})}, _part(_DRIVER)),
    "container_toolkit": Case("placement", {"host": _part({"placement": _TEXT, "version": _TEXT})},
                              _part({"placement": _TEXT})),
    "mig_manager": _part({"selected": _MAYBE_TEXT}), "preview": _TEXTS},
    delivered=_TEXTS, node=_part(name=_TEXT))
_POOL: dict[str, Shape] = {"count": _COUNT, "nodes": _TEXTS, "gpu": _MAYBE_TEXT, "os": _MAYBE_TEXT,
                           "kernel": _MAYBE_TEXT, "runtime": _MAYBE_TEXT}
_PRESENT = {"state": OneOf(("present", "absent"))}
_COMPONENTS = Fields({}, {"driver": Case("state", {"present": _part({
    **_PRESENT, "pools": _listed(images=_part({"driver": _TEXT}))})}, _part(_PRESENT, because=Nullable(_TEXTS)))},
    other=_part(_PRESENT, because=Nullable(_TEXTS), images=Nullable(_by_name(_TEXT))), closed=False)
_REJECTED = Nullable(_by_name(_part({"message": _TEXT})))
_CLUSTER_PLAN = _part(
    {"server": _MAYBE_TEXT, "namespace": _TEXT, "components": _COMPONENTS,
     "nodes": _part({"gpu": _TEXTS, "cpu": _COUNT, "pools": _listed(**_POOL)}, by_host=Nullable(_by_name(_TEXT)))},
    deploy=_part(on_host=Nullable(_by_name(_TEXTS)), without_driver=Nullable(_TEXTS)), render_to=_MAYBE_TEXT,
    rejected=_REJECTED, pools=Nullable(_listed(nodes=_TEXTS, driver=_part({"image": _TEXT}, version=_MAYBE_TEXT))))
_PLACE = dict.fromkeys(("node", "container", "state", "reason", "message", "waits_for", "cause", "hint"), _MAYBE_TEXT)
_CAUSE: dict[str, Shape] = {
    **dict.fromkeys(("where", "cause", "text", "hint"), _TEXT), "level": _STATE,
    **dict.fromkeys(("waits_for", "pod", "container", "node", "since", "log_problem"), _MAYBE_TEXT),
    "nodes": _TEXTS, "restarts": _COUNT, "log": _TEXTS, "do": _TEXTS, "holds_up": _by_name(_COUNT)}
_CHECKS = Rows(_part({"component": _TEXT, "ok": Flag(), "state": _STATE, "detail": _TEXT, "hint": _TEXT,
                      "desired": _COUNT, "ready": _COUNT, "nodes": _listed(**_PLACE)},
                     causes=Nullable(_listed(**_CAUSE))), _MOST)
_STATUS: dict[str, Shape] = {
    **dict.fromkeys(("ready", "cordoned", "operands"), Flag()), **dict.fromkeys(("capacity", "offered"), _COUNT),
    **dict.fromkeys(("ready_since", "upgrade", "upgrade_since", "held", "held_since", "left", "workload", "mig",
                     "driver", "gone_since", "valid_since"), _TEXT), "labels": _by_name(_TEXT)}
CLUSTER = _part(
    plan=Nullable(_CLUSTER_PLAN), checks=Nullable(_CHECKS),
    labels=Nullable(_part(nodes=Nullable(_by_name(Anything())))),
    observed=Nullable(_by_name(_part({}, **_STATUS))),
    operands=Nullable(_part(server=_MAYBE_TEXT, objects=Nullable(_listed(
        action=_TEXT, component=_TEXT, object=_TEXT, reasons=_TEXTS)))))

_FINDINGS = _listed(host=_TEXT, check=_TEXT, severity=OneOf(SEVERITIES), text=_TEXT, fix=_TEXT)
_REFUSALS = Rows(_part({"hosts": _TEXTS, "reason": _TEXT, "remedy": _TEXT},
                       constraints=Nullable(_listed(id=_TEXT))), _MOST)
_ERROR = _part({"message": _TEXT, "hint": _TEXT}, kind=_MAYBE_TEXT, checks=Nullable(_FINDINGS),
               refusals=Nullable(_REFUSALS), faults=Nullable(_TEXTS))
# The result of gpu_policy: a plan, or the reason why there is none.
_PLAN: dict[str, Shape] = {
    **dict.fromkeys(("release", "policy", "format", "disruption"), _TEXT), "placement": Anything(), "notes": _TEXTS,
    "explanations": _by_name(_TEXTS), "hosts": _by_name(_ON_HOST)}
_REFUSED = _part(error=Nullable(_ERROR), msg=_MAYBE_TEXT, checks=Nullable(_FINDINGS))


def check(plan: Document, ahead: bool, **given: Document | None) -> None:
    """Raises InputError, with path and value, for an invalid document.

    plan: that of gpu_policy, empty without a plan; ahead: whether the report shows the findings of the plan; given:
    hosts and cluster, None if the user has not given them.
    """
    whole = _part({**_PLAN, **({"checks": _FINDINGS} if ahead else {})}, cluster=Nullable(_CLUSTER_PLAN),
                  rejected=_REJECTED)
    shapes: dict[str, tuple[Shape, str]] = {
        "plan": (whole if "hosts" in plan else _REFUSED, "Set it to the complete result of gpu_policy."),
        "hosts": (HOSTS, "Give facts, checks, steps and pending of each host."),
        "cluster": (CLUSTER, "Set the keys that the documentation of the option cluster lists.")}
    for option, value in {"plan": plan, **given}.items():
        shape, hint = shapes[option]
        fault = None if value is None else shape.fault(value)
        if fault is not None:
            raise InputError(f"{fault.value} is invalid (allowed: {fault.allowed}).", hint,
                             path=f"{option}{fault.path}", value=fault.value, allowed=fault.allowed)

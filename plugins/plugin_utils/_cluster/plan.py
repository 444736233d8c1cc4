# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to be done so that the live objects are as wanted. Reads, never writes. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import compare, fields, kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.objects import Key, Object, Wanted

Live = t.Mapping[Key, Object]


@dataclass(frozen=True)
class Change:
    """One object and what is to be done with it.

    action: create, update (what we want has changed), repair (a foreign hand changed it), delete, release (a foreign
    object that carries marks of ours loses them), or, without any write: keep (it is as wanted), reuse (a foreign
    object that does what we want). reasons: the fields that differ.
    """

    action: str
    kind: kinds.Kind
    component: str
    manifest: Object | None
    live: Object | None
    reasons: t.Sequence[str] = field(default=())

    @property
    def writes(self) -> bool:
        """Whether it changes the cluster."""
        return self.action not in ("keep", "reuse")

    @property
    def label(self) -> str:
        """C(DaemonSet gpu-operator/nvidia-dcgm)."""
        return objects.label_of(t.cast(Object, self.manifest if self.live is None else self.live))

    @property
    def namespace(self) -> str:
        """Empty for a cluster-wide object."""
        return str(t.cast(Object, self.manifest if self.live is None else self.live)["metadata"].get("namespace", ""))

    @property
    def id(self) -> str:
        """What check mode names and the run then does."""
        return f"{self.action}: {self.label}"


def plan(client: Client, wanted: t.Sequence[Wanted], live: Live, components: t.Collection[str] | None) -> list[Change]:
    """All changes in the order in which they are made, objects that need none among them.

    components: those whose objects go when they are not wanted; None: all objects of ours, the Namespace apart.
    Raises ClusterError that names each foreign object which stands in the way.
    """
    changes, problems = [], []
    for one in wanted:
        have = live.get(one.key)
        foreign = have is not None and not objects.is_ours(have)
        if one.kind.kind == "Namespace":
            one = objects.for_namespace(one, have)
            problem = _label_conflict(one, have) if have else ""
        else:
            problem = _in_the_way(client, one, t.cast(Object, have)) if foreign else ""
        if problem:
            problems.append(problem)
        elif foreign and one.kind.kind != "Namespace":
            changes.append(Change("reuse", one.kind, one.component, one.manifest, have))
        else:
            changes.append(_change(client, one, have))
    if problems:
        raise ClusterError(" ".join(problems), "Remove or rename these objects, or leave the component out that wants "
                           "them; nothing has been changed.", verb="plan", reason="Foreign")
    return changes + prune(client, live, {one.key for one in wanted}, components)


def prune(client: Client, live: Live, wanted: t.Collection[Key], components: t.Collection[str] | None) -> list[Change]:
    """The removal of our objects that are not wanted, in reverse order. Namespaces stay: see L(removal)."""
    gone = []
    for key, have in live.items():
        component = objects.component_of(have)
        if (key in wanted or key[1] == "Namespace" or not objects.is_ours(have) or _is_going(have)
                or not (components is None or component in components)
                or any(owner.get("controller") for owner in have["metadata"].get("ownerReferences") or [])):
            continue
        row = kinds.find(key[0], key[1])
        action = "delete"
        if key[1] == "CustomResourceDefinition":
            have = _whole(client, have)
            if _used_by_others(client, have):
                action = "release"
        gone.append(Change(action, row, component, None, have))
    return sorted(gone, key=lambda one: (-one.kind.rank, one.label))


def _change(client: Client, one: Wanted, have: Object | None) -> Change:
    if have is None or _is_going(have):
        return Change("create", one.kind, one.component, one.manifest, have)
    marks = have["metadata"].get("annotations") or {}
    renewed = marks.get(objects.APPLIED) != one.manifest["metadata"]["annotations"][objects.APPLIED]
    if renewed:
        have = _whole(client, have)
    differs = compare.changed(one.manifest, have) if renewed else compare.drifted(one.manifest, have)
    added = [path for tree in fields.foreign(have).values() for path in fields.paths(tree)]
    if fields.ours(have) is None:
        # Without a record of what we applied nobody can tell what others added.
        differs.append("metadata.managedFields")
    if not differs and not added:
        return Change("keep", one.kind, one.component, one.manifest, have)
    return Change("update" if renewed else "repair", one.kind, one.component, one.manifest, _whole(client, have),
                  sorted({*differs, *added}))


def _is_going(have: Object) -> bool:
    return "deletionTimestamp" in have["metadata"]


def _whole(client: Client, have: Object) -> Object:
    """A CustomResourceDefinition is listed without its spec; what differs or goes is read once more."""
    if have["kind"] != "CustomResourceDefinition" or "spec" in have:
        return have
    return client.get(have["apiVersion"], have["kind"], have["metadata"]["name"]) or have


def _used_by_others(client: Client, crd: Object) -> bool:
    """Whether objects of this kind are there that neither we nor, by ownership, others' controllers brought."""
    if "spec" not in crd:
        return False
    return any(not objects.is_ours(one) and not one["metadata"].get("ownerReferences")
               for one in client.list_row(kinds.of_crd(crd), metadata_only=True))


def _in_the_way(client: Client, one: Wanted, have: Object) -> str:
    """Why a foreign object of that name cannot serve; empty where it can."""
    unlike = compare.unlike(one.manifest, _whole(client, have))
    if not unlike:
        return ""
    return (f"{one.label} is there and is not ours (managed by {_managers(have)}), and it differs from what "
            f"{one.component} wants in {', '.join(unlike[:5])}{' and more' if len(unlike) > 5 else ''}.")


def _label_conflict(one: Wanted, have: Object) -> str:
    """Why a Namespace of others cannot be used: a label that we need has another value there."""
    if objects.CREATED in (have["metadata"].get("annotations") or {}):
        return ""
    mine = ((fields.ours(have) or {}).get("f:metadata") or {}).get("f:labels") or {}
    labels = have["metadata"].get("labels") or {}
    wrong = [f"{name} is '{labels[name]}' and must be '{value}'"
             for name, value in one.manifest["metadata"]["labels"].items()
             if name in labels and labels[name] != value and f"f:{name}" not in mine]
    return f"The labels of {one.label}, which is not ours, forbid it: {', '.join(wrong)}." if wrong else ""


def _managers(have: Object) -> str:
    names = {str(entry.get("manager")) for entry in have["metadata"].get("managedFields") or []}
    return ", ".join(sorted(names)) or "nobody who says so"

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans the changes that turn the live objects into the wanted objects. Reads only. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Key, Object, Wanted
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import compare, field_owners, spelling

Live = t.Mapping[Key, Object]

WORKLOADS = ("DaemonSet", "Deployment", "Job")
_MARK = f"metadata.annotations[{objects.APPLIED}]"
# Fields that cannot be changed after the object was created, and their defaults. Workloads have a fixed selector, too.
_FIXED: t.Mapping[str, t.Tuple[str, t.Any]] = {
    "RuntimeClass": ("handler", None), "RoleBinding": ("roleRef", None), "ClusterRoleBinding": ("roleRef", None),
    "Secret": ("type", "Opaque")}
_TEMPLATE = "spec.template"
_LEVEL = "pod-security.kubernetes.io/enforce"
_MAKE_ROOM = "Remove or rename these objects, or leave out the component that needs them."
_ADOPT = "Run adopt.yml: it adopts what a stopped operator has left."
_MAKE_ANEW = "Delete it and its pods when its Nodes are idle (kubectl delete daemonset). The next run creates it again."
_RELABEL = ("Correct the labels with kubectl label --overwrite namespace, or name another namespace (gpu_namespace) "
            "for the operands.")


def plan(client: Client, wanted: t.Sequence[Wanted], live: Live, components: t.Collection[str] | None,
         adopts: t.Callable[[Object], bool] = lambda have: False, kept: t.Collection[str] = ()) -> list[Change]:
    """All changes in the order of their execution, including C(keep) for objects that need no change.

    components: the components whose objects are deleted if they are not wanted, None for all our objects except the
    Namespace; adopts: returns whether to adopt a foreign object; kept: names of DaemonSets that stay even if they are
    not wanted. Raises ClusterError that names all objects that prevent the plan, such as foreign objects.
    """
    changes: list[Change] = []
    problems: list[tuple[str, str]] = []
    for one in wanted:
        have = live.get(one.key)
        if have is not None and one.kind.kind != "Namespace" and adopts(have):
            manifest = spelling.like(one.manifest, have)
            reasons = [path for path in compare.changed(manifest, have) if path != _MARK]
            changes.append(Change("adopt", one.kind, one.component, manifest, have, reasons))
            continue
        foreign = have is not None and not objects.is_ours(have)
        if one.kind.kind == "Namespace":
            one = objects.for_namespace(one, have)
            problem, hint = _label_conflict(one, have) if have else "", _RELABEL
        else:
            problem = _in_the_way(client, one, t.cast(Object, have)) if foreign else ""
            hint = _ADOPT if have and _of_operator(have) else _MAKE_ROOM
        if problem:
            problems.append((problem, hint))
        elif foreign and one.kind.kind != "Namespace":
            changes.append(Change("reuse", one.kind, one.component, one.manifest, have))
        else:
            changes.append(_change(client, one, have))
    problems += [(problem, _RELABEL) for problem in _refused_pods(changes)]
    problems += [(problem, _MAKE_ANEW) for problem in _left_behind(changes)]
    if problems:
        hints = dict.fromkeys(hint for _problem, hint in problems)
        raise ClusterError(" ".join(problem for problem, _hint in problems), f"{' '.join(hints)} Nothing has been "
                           "changed.", verb="plan", reason="Foreign")
    stay = [key for key in live if key[1] == "DaemonSet" and live[key]["metadata"]["name"] in kept]
    gone = prune(client, live, {*(one.key for one in wanted), *stay}, components)
    read = {key for one in wanted for key in _config_maps(one.manifest)}
    # The policy named the content of such a ConfigMap before, and now only its name: from now on it is the user's.
    return changes + [replace(one, action="release") if one.live and objects.key_of(one.live) in read else one
                      for one in gone]


def _config_maps(manifest: Object) -> t.Iterator[Key]:
    """The ConfigMaps that the pods of a workload mount."""
    spec = (manifest.get("spec") or {}).get("template", {}).get("spec") or {}
    names = [(volume.get("configMap") or {}).get("name") for volume in spec.get("volumes") or ()]
    yield from (("v1", "ConfigMap", manifest["metadata"].get("namespace", ""), name) for name in names if name)


def prune(client: Client, live: Live, wanted: t.Collection[Key], components: t.Collection[str] | None) -> list[Change]:
    """The deletions of our objects that are not wanted, in reverse order, after those of L(ends_first). Namespaces
    stay: see L(removal).

    If others have objects of a kind, the CustomResourceDefinitions of the whole API group stay, because the server
    deletes all objects of a kind together with its CustomResourceDefinition.
    """
    gone: list[Change] = []
    for key, have in live.items():
        component = objects.component_of(have)
        if (key in wanted or key[1] == "Namespace" or not objects.is_ours(have) or _is_going(have)
                or not (components is None or component in components)
                or objects.controller_of(have)):
            continue
        gone.append(Change("delete", kinds.find(key[0], key[1]), component, None, _whole(client, have)))
    shared = _shared_groups(client, live, [one.live for one in gone if _is_definition(one.live)])
    gone = [replace(one, action="release") if _is_definition(one.live) and _group(one.live) in shared else one
            for one in gone]
    return sorted(gone, key=lambda one: (not ends_first(one), -one.kind.rank, one.label))


def ends_first(change: Change) -> bool:
    """Whether the pods of an object that is deleted must end before other objects are deleted: when the rules and
    features of Node Feature Discovery are deleted, its master removes labels from Nodes, and driver pods that need
    these labels would end."""
    return change.component == "nfd" and change.kind.kind == "Deployment"


def _change(client: Client, one: Wanted, have: Object | None) -> Change:
    if have is None or _is_going(have):
        return Change("create", one.kind, one.component, one.manifest, have)
    marks = have["metadata"].get("annotations") or {}
    renewed = marks.get(objects.APPLIED) != one.manifest["metadata"]["annotations"][objects.APPLIED]
    if renewed:
        have = _whole(client, have)
    differs = compare.changed(one.manifest, have) if renewed else compare.drifted(one.manifest, have)
    added = [path for tree in field_owners.foreign(have).values() for path in field_owners.paths(tree)]
    if field_owners.ours(have) is None:
        # If managedFields has no entry of ours, it cannot be known what others have added.
        differs.append("metadata.managedFields")
    if one.kind.kind == "Service" and _turned_headless(one.manifest, have):
        # managedFields does not show this drift if the field no longer has an owner.
        differs.append("spec.clusterIP")
    if not differs and not added:
        differs = _rewritten(client, one.manifest, have)
    if not differs and not added:
        return Change("keep", one.kind, one.component, one.manifest, have)
    reasons = {*differs, *added}
    if (renewed and not added) or not any(path.startswith(_TEMPLATE) for path in reasons):
        # An adopted object keeps the spelling of its former owner, so that a change outside the pod template restarts
        # no pod, and a change that does not concern the driver does not reinstall it.
        one = Wanted(one.component, one.kind, spelling.like(one.manifest, have))
    # The mark is left out of the reasons if there are others: it only says that the manifest has changed.
    action = "replace" if _is_fixed(one.manifest, have) else "update" if renewed else "repair"
    return Change(action, one.kind, one.component, one.manifest, _whole(client, have),
                  sorted(reasons - {_MARK} or reasons))


def _rewritten(client: Client, manifest: Object, have: Object) -> list[str]:
    """The paths of the fields that we own according to managedFields, although an apply would change their values.

    Any client can write under the name of our field manager. If a value differs, a dry run on the server shows whether
    a client has done so, or whether admission changes our value. CustomResourceDefinitions are left out, because they
    are listed without their spec. Objects are also left out if the user may not make the dry run, or if a webhook
    refuses it or fails: otherwise one such object would prevent the plan of all others.
    """
    if _is_definition(have):
        return []
    manifest = spelling.like(manifest, have)
    differs = compare.changed(manifest, have)
    if not differs:
        return []
    try:
        after = client.apply(manifest, dry_run=True)
    except ClusterError as error:
        if error.status not in (400, 403, 422) and error.status < 500:
            raise
        return []
    kept = compare.changed(manifest, after)
    return [path for path in differs if path not in kept]


def _is_fixed(manifest: Object, have: Object) -> bool:
    """Whether a field that cannot be changed in place differs, so that the object must be replaced."""
    if have.get("immutable"):  # of a ConfigMap or a Secret
        return True
    kind = manifest["kind"]
    if kind in WORKLOADS:
        want, there = (one["spec"].get("selector") for one in (manifest, have))
        # A Job without a selector gets one from the server.
        return want is not None and bool(compare.differences(want, there, "") or compare.differences(there, want, ""))
    if kind == "Service":
        return _turned_headless(manifest, have)
    name, usual = _FIXED.get(kind, ("", None))
    return bool(compare.differences(manifest.get(name, usual), have.get(name, usual), name))


def _turned_headless(manifest: Object, have: Object) -> bool:
    """Whether only one of the two Services is headless. The server does not change this in place."""
    return len({one["spec"].get("clusterIP") == "None" for one in (manifest, have)}) > 1


def keeps_pods(change: Change) -> bool:
    """Whether the pods of a DaemonSet stay when it is deleted: because it is replaced and has the update strategy
    OnDelete, or because its pods end later, Node by Node."""
    spec = (change.manifest or {}).get("spec") or {}
    return change.orphans or change.action == "replace" and (spec.get("updateStrategy") or {}).get("type") == "OnDelete"


def _left_behind(changes: t.Sequence[Change]) -> list[str]:
    """A sentence for each DaemonSet whose successor would not select the pods that stay."""
    found = []
    for one in changes:
        if keeps_pods(one):
            selector = t.cast(Object, one.manifest)["spec"]["selector"].get("matchLabels") or {}
            labels = t.cast(Object, one.live)["spec"]["template"]["metadata"].get("labels") or {}
            if not selector.items() <= labels.items():
                found.append(f"{one.label} has another selector than planned, which cannot be changed in place, and "
                             "its pods, which only a user may restart, lack the labels by which a new one would know "
                             "them.")
    return found


def _is_going(have: Object) -> bool:
    return "deletionTimestamp" in have["metadata"]


def _whole(client: Client, have: Object) -> Object:
    """The whole object: a CustomResourceDefinition is listed without its spec, so it is read again."""
    if have["kind"] != "CustomResourceDefinition" or "spec" in have:
        return have
    return client.get(have["apiVersion"], have["kind"], have["metadata"]["name"]) or have


def _is_definition(have: Object | None) -> bool:
    return have is not None and have["kind"] == "CustomResourceDefinition"


def _group(crd: Object | None) -> str:
    """The API group of a definition, such as C(nfd.k8s-sigs.io) for nodefeatures.nfd.k8s-sigs.io."""
    return str((crd or {})["metadata"]["name"]).partition(".")[2]


def _shared_groups(client: Client, live: Live, definitions: t.Sequence[Object | None]) -> set[str]:
    """The API groups with objects that neither we nor our pods have created."""
    ours = [one["metadata"] for one in live.values() if objects.is_ours(one)]
    owners = {metadata["uid"] for metadata in ours if "uid" in metadata}
    spaces = {str(metadata["namespace"]) for metadata in ours if "namespace" in metadata}
    pods: set[str] | None = None
    found = set()
    for crd in definitions:
        for one in client.list_row(kinds.of_crd(crd), metadata_only=True) if crd and "spec" in crd else ():
            if objects.is_ours(one) or _owned_by(one, owners):
                continue
            if pods is None and one["metadata"].get("ownerReferences"):
                pods = {pod["metadata"]["uid"] for space in sorted(spaces)
                        for pod in client.list("v1", "Pod", space, metadata_only=True) if _owned_by(pod, owners)}
            if not _owned_by(one, pods or set()):
                found.add(_group(crd))
                break
    return found


def _owned_by(have: Object, uids: t.Container[str]) -> bool:
    return any(owner["uid"] in uids for owner in have["metadata"].get("ownerReferences") or ())


def _in_the_way(client: Client, one: Wanted, have: Object) -> str:
    """Why a foreign object cannot be used instead of the wanted object with this name; empty if it can be used."""
    unlike = compare.unlike(one.manifest, _whole(client, have))
    if not unlike:
        return ""
    return (f"{one.label} exists and is not managed by this collection (managed by {_managers(have)}). It differs from "
            f"the one that {one.component} needs in {', '.join(unlike[:5])}{' and more' if len(unlike) > 5 else ''}.")


def _of_operator(have: Object) -> bool:
    return any(objects.is_operators(owner) for owner in have["metadata"].get("ownerReferences") or [])


def _label_conflict(one: Wanted, have: Object) -> str:
    """Why a foreign Namespace cannot be used: a label that we need has another value. Empty if it can be used."""
    if objects.CREATED in (have["metadata"].get("annotations") or {}):
        return ""
    mine = ((field_owners.ours(have) or {}).get("f:metadata") or {}).get("f:labels") or {}
    labels = have["metadata"].get("labels") or {}
    wrong = [f"{name} is '{labels[name]}' and must be '{value}'"
             for name, value in one.manifest["metadata"]["labels"].items()
             if name in labels and labels[name] != value and f"f:{name}" not in mine]
    return f"The labels of {one.label}, which is foreign, forbid it: {', '.join(wrong)}." if wrong else ""


def _refused_pods(changes: t.Sequence[Change]) -> list[str]:
    """A sentence for each Namespace whose Pod Security level would refuse pods of the workloads that are written there.

    Only the mode enforce counts, not warn and audit. Pods that already run are not affected.
    """
    found = []
    for home in changes:
        if home.kind.kind != "Namespace":
            continue
        space, live = t.cast(Object, home.manifest)["metadata"], t.cast(Object, home.live or {"metadata": {}})
        level = {**(live["metadata"].get("labels") or {}), **space["labels"]}.get(_LEVEL, "privileged")
        pods = [one.label for one in changes if one.writes and one.namespace == space["name"]
                and _needs_privileges(t.cast(Object, one.manifest))]
        if pods and level != "privileged":
            found.append(f"{home.label} has the label {_LEVEL}={level}, by which the API server refuses the pods of "
                         f"{', '.join(pods[:3])}{f' and {len(pods) - 3} more' if len(pods) > 3 else ''}.")
    return found


def _needs_privileges(manifest: Object) -> bool:
    """Whether the Pod Security level baseline refuses the pods of a workload. Checks only the fields that operands use.
    """
    spec = (((manifest.get("spec") or {}).get("template") or {}).get("spec") or {}) if manifest["kind"] in WORKLOADS \
        else {}
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    return (any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
            or any("hostPath" in volume for volume in spec.get("volumes") or [])
            or any((one.get("securityContext") or {}).get("privileged") for one in containers))


def _managers(have: Object) -> str:
    """Who manages an object: from its labels, otherwise the field managers that have written more than its status."""
    metadata = have["metadata"]
    label = (metadata.get("labels") or {}).get(objects.MANAGED_BY)
    release = (metadata.get("annotations") or {}).get("meta.helm.sh/release-name")
    if label:
        return f"{label}, release {release}" if release else str(label)
    names = {str(entry.get("manager")) for entry in metadata.get("managedFields") or [] if not entry.get("subresource")}
    return ", ".join(sorted(names)) or "an unknown manager"

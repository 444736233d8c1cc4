# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Executes the plan for the objects of a cluster. PRIVATE to the collection.

Objects of the same rank are written concurrently, then the objects of the next rank. If a run fails, the objects that
it has written stay, and the next run plans from this state.
"""

from __future__ import annotations

import itertools
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects, operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MANAGER_NAME, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import field_owners
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.plan import WORKLOADS, ends_first, keeps_pods

# How often the run takes over the fields of an object again if another client writes the object at the same time.
_ROUNDS = 6
# Seconds: the wait until a new kind is served or a deleted object is gone; the pause between two requests.
_PATIENCE, _PAUSE = 120.0, 0.2


def execute(client: Client, changes: t.Sequence[Change]) -> None:
    """Executes all changes of a plan. Raises ClusterError with the objects that failed and the changes made before."""
    todo = [one for one in changes if one.writes]
    done: list[str] = []
    for _rank, group in itertools.groupby(todo, key=lambda one: (one.action in ("delete", "release"), one.kind.rank)):
        members = list(group)
        answers = client.many(lambda one: _execute(client, one), members)
        failed = [answer for answer in answers if isinstance(answer, GpuopsError)]
        done += [one.id for one, answer in zip(members, answers) if not isinstance(answer, GpuopsError)]
        if failed:
            raise _all_of(failed, done)


def rehearse(client: Client, changes: t.Sequence[Change], live: t.Container[objects.Key]) -> None:
    """Sends the changes to the server as dry runs, which show whether admission and RBAC allow the changes.

    Objects whose namespace or kind does not exist yet are left out. Raises ClusterError, as a run would.
    """
    def possible(one: Change) -> bool:
        home = ("v1", "Namespace", "", one.namespace)
        return (one.action in ("create", "update", "repair", "adopt") and (not one.namespace or home in live)
                and not _is_going(one) and client.knows(one.kind.api_version, one.kind.kind))

    answers = client.many(lambda one: _rehearse(client, one),
                          [one for one in changes if one.writes and possible(one)])
    failed = [answer for answer in answers if isinstance(answer, GpuopsError)]
    if failed:
        raise _all_of(failed, [])


def _rehearse(client: Client, change: Change) -> None:
    """Sends the dry run of one change. The same request also removes the fields that others have added: a dry run
    stores nothing on which a second request could build."""
    manifest, live = t.cast(Object, change.manifest), change.live
    if live is None or not field_owners.foreign(live):
        client.apply(manifest, dry_run=True)
        return
    metadata, wanted = live["metadata"], manifest["metadata"]
    after = field_owners.repaired(manifest, live)
    operations: list[Object] = [
        *({"op": "add", "path": f"/metadata/{part}", "value": {**(metadata.get(part) or {}), **wanted[part]}}
          for part in ("labels", "annotations") if part in wanted),
        *({"op": "remove", "path": f"/{name}"} for name in live if name != "metadata" and name not in after),
        *({"op": "add", "path": f"/{name}", "value": value} for name, value in after.items()
          if value != live.get(name))]
    client.json_patch(change.kind.api_version, change.kind.kind, metadata["name"], metadata.get("namespace"),
                      operations, dry_run=True)


def wait_until(ready: t.Callable[[], bool], timeout: float, pause: float = _PAUSE) -> bool:
    """Calls ready every pause seconds until it returns true. Returns False if it does not within timeout seconds."""
    end = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def _execute(client: Client, change: Change) -> None:
    if change.action == "delete":
        _delete(client, change)
        if ends_first(change):
            _wait_ended(client, change)
    elif change.action == "release":
        _release(client, t.cast(Object, change.live))
    elif change.action in ("stop", "start"):
        operator.scale(client, change)
    else:
        _apply(client, change)


def _apply(client: Client, change: Change) -> None:
    manifest = t.cast(Object, change.manifest)
    live = change.live
    if change.action == "replace":
        _delete(client, change)
    if _is_going(change) or change.action == "replace":
        _wait_gone(client, change)
        live = None
    for _ignored in range(_ROUNDS):
        if live is not None and (field_owners.foreign(live) or (
                change.action == "adopt" and operator.owns(live))):
            live, ready = _own_fields(client, change, live)
            if not ready:
                continue
        live = client.apply(manifest)
        if not field_owners.foreign(live):
            break
    else:
        raise ClusterError(f"{change.label}: others write it faster than it can be repaired: "
                           f"{', '.join(field_owners.foreign(live) if live else ())}.",
                           "Stop what writes it, then run again.", verb="apply", object=change.label, status=409)
    if change.kind.kind == "CustomResourceDefinition":
        _wait_established(client, change)


def _own_fields(client: Client, change: Change, live: Object) -> tuple[Object | None, bool]:
    """Makes us the owner of the fields that others have added. Returns (the object, whether it was written). It is not
    written if another client has changed or deleted it meanwhile.

    An object of a GPU Operator gets our marks in the same request, so that it always has an owner, even if the run is
    killed here.
    """
    row, metadata = change.kind, live["metadata"]
    version = {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    owners = {"op": "replace", "path": "/metadata/managedFields", "value": field_owners.with_our_fields(live)}
    adopted: list[Object] = [] if change.action != "adopt" else [
        {"op": "add", "path": "/metadata/ownerReferences", "value": operator.other_owners(live)},
        {"op": "add", "path": "/metadata/labels", "value": {
            **(metadata.get("labels") or {}), **objects.marks(change.component)}}]
    name, namespace = metadata["name"], metadata.get("namespace")
    try:
        return client.json_patch(row.api_version, row.kind, name, namespace, [version, owners, *adopted]), True
    except ClusterError as error:
        if error.status not in (404, 409):
            raise
        return client.get(row.api_version, row.kind, name, namespace), False


def _delete(client: Client, change: Change) -> None:
    metadata = t.cast(Object, change.live)["metadata"]
    # Foreground deletes the pods before their DaemonSet: once the DaemonSet is gone, its pods are gone, too.
    propagation = "Foreground" if change.kind.kind in WORKLOADS else "Background"
    if keeps_pods(change):
        propagation = "Orphan"
    client.delete(change.kind.api_version, change.kind.kind, metadata["name"], metadata.get("namespace"),
                  metadata["uid"], propagation)


def _release(client: Client, live: Object) -> None:
    """Removes our marks from an object that stays, and our ownership of its other fields."""
    metadata = live["metadata"]
    if live["kind"] == "Namespace":
        # A server-side apply without fields removes exactly the fields that only we own.
        client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": metadata["name"]}})
        return
    client.json_patch(live["apiVersion"], live["kind"], metadata["name"], metadata.get("namespace"), unmarked(live))


def unmarked(live: Object, *annotations: str) -> list[Object]:
    """A JSON patch that removes our marks and the given annotations from an object. The patch fails if the object was
    changed since it was read."""
    metadata = live["metadata"]
    own = {"labels": (objects.MANAGED_BY, objects.COMPONENT), "annotations": (objects.APPLIED, *annotations)}
    marks = {part: {name: value for name, value in (metadata.get(part) or {}).items() if name not in names}
             for part, names in own.items()}
    others = [entry for entry in metadata["managedFields"] if entry.get("manager") != MANAGER_NAME]
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            *({"op": "add", "path": f"/metadata/{part}", "value": left} for part, left in marks.items()),
            # If the list were empty, the server would compute a new one.
            {"op": "replace", "path": "/metadata/managedFields", "value": others or [{}]}]


def _is_going(change: Change) -> bool:
    return change.live is not None and "deletionTimestamp" in change.live["metadata"]


def _wait_gone(client: Client, change: Change) -> None:
    metadata = t.cast(Object, change.live)["metadata"]

    def gone() -> bool:
        now = client.get(change.kind.api_version, change.kind.kind, metadata["name"], metadata.get("namespace"))
        return now is None or now["metadata"]["uid"] != metadata["uid"]

    if not wait_until(gone, _PATIENCE):
        raise ClusterError(f"{change.label} is being removed and is not gone after {_PATIENCE:.0f} s.",
                           "Check its finalizers (metadata.finalizers) and their controllers.",
                           verb="delete", object=change.label)


def _wait_ended(client: Client, change: Change) -> None:
    """Waits until the pods of a Deployment have ended. Pods on a Node that does not answer are not Ready any more."""
    live = t.cast(Object, change.live)
    selector = objects.label_selector(live["spec"]["selector"]["matchLabels"])

    def ended() -> bool:
        pods = client.list("v1", "Pod", live["metadata"]["namespace"], label_selector=selector)
        return not any(one["type"] == "Ready" and one["status"] == "True" for pod in pods
                       for one in (pod.get("status") or {}).get("conditions") or ())

    if not wait_until(ended, _PATIENCE):
        raise ClusterError(f"The pods of {change.label} have not ended after {_PATIENCE:.0f} s.",
                           "Check them (kubectl describe pod).", verb="delete", object=change.label)


def _wait_established(client: Client, change: Change) -> None:
    manifest = t.cast(Object, change.manifest)
    row = kinds.of_crd(manifest)

    def served() -> bool:
        crd = client.get(change.kind.api_version, change.kind.kind, manifest["metadata"]["name"]) or {}
        conditions = {one["type"]: one["status"] for one in (crd.get("status") or {}).get("conditions") or []}
        return conditions.get("Established") == "True" and client.serves(row)

    if not wait_until(served, _PATIENCE):
        raise ClusterError(f"{change.label} is not served after {_PATIENCE:.0f} s.",
                           "Check its conditions (kubectl describe crd).", verb="apply", object=change.label)


def _all_of(failed: t.Sequence[GpuopsError], done: t.Sequence[str]) -> ClusterError:
    """One error for all objects of a rank that failed, with the hint and the fields of the first error."""
    first = failed[0]
    rest = "".join(f" {error.message}" for error in failed[1:4])
    more = f" And {len(failed) - 4} more." if len(failed) > 4 else ""
    details = {name: value for name, value in first.details.items() if name != "done"}
    return ClusterError(f"{first.message}{rest}{more}", first.hint, **details, done=list(done),
                        failures=[error.message for error in failed])

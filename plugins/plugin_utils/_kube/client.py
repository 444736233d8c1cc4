# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be asked of a cluster. PRIVATE to the collection.

Plain mappings go in and come out; kinds are those of L(kinds.KINDS). Nothing here knows what the objects are for.
"""

from __future__ import annotations

import re
import typing as t
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.wire import Answer, Wire

MANAGER = "gpuops.nvidia"
PAGE = 500
LOG_BYTES = 65536
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_METADATA_OF_ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

Object = t.Dict[str, t.Any]
Item = t.TypeVar("Item")
Result = t.TypeVar("Result")


_UNABLE = "The API server stayed unable to answer: look at its log and at etcd's, then run again."
# How the API server words what admission webhooks and policies refuse.
_DENIED = re.compile(r"admission webhook .* denied the request|AdmissionPolicy .* denied request")


class Later(t.NamedTuple):
    """Why a pod is not evicted yet. after: seconds, as the server asks, 0 where it does not; why: its words."""

    after: float
    why: str


class Client:
    """One API server, by a kubeconfig that is named. Safe to use from several threads.

    kubeconfig: path of a file; context: a context in it, default its current one; workers: concurrent requests.
    server: its address. Raises InputError for a kubeconfig that is not named, not there or not usable; every method
    raises ClusterError. Requests ride through a busy server and broken connections, about 6 s long.
    """

    def __init__(self, kubeconfig: str, context: str | None = None, workers: int = 16) -> None:
        self.workers = workers
        self._wire = Wire(kubeconfig, context, workers)
        self.server = self._wire.server
        self._known: dict[tuple[str, str], bool] = {}

    def list(self, api_version: str, kind: str, namespace: str | None = None, label_selector: str | None = None,
             field_selector: str | None = None, metadata_only: bool = False) -> t.List[Object]:
        """All objects of a kind (in a namespace), by pages. Empty where the server has no such kind."""
        return self.list_row(kinds.find(api_version, kind), namespace, label_selector, field_selector, metadata_only)

    def list_row(self, row: kinds.Kind, namespace: str | None = None, label_selector: str | None = None,
                 field_selector: str | None = None, metadata_only: bool = False) -> t.List[Object]:
        """The same for a kind that need not be in the table."""
        query: dict[str, t.Any] = {"labelSelector": label_selector, "fieldSelector": field_selector, "limit": PAGE}
        accept = _METADATA if metadata_only else "application/json"
        found: t.List[Object] = []
        more: str | None = None
        while True:
            answer = self._wire.send("list", row.plural, "GET", row.path(None, namespace),
                                     {**query, "continue": more}, accept=accept)
            if answer.status == 410 and more and query["limit"]:
                # The state behind the pages has expired: all at once, as client-go does, where nothing can expire.
                found, more, query["limit"] = [], None, None
                continue
            if not self._has_kind(row, answer):
                return []
            items, metadata = _page(answer, row.plural)
            found += items
            more = metadata.get("continue")
            if not more:
                break
        for item in found:
            item["apiVersion"], item["kind"] = row.api_version, row.kind
        return found

    def count(self, api_version: str, kind: str, namespace: str) -> int:
        """How many objects of a kind a namespace has, by reading one of them."""
        row = kinds.find(api_version, kind)
        answer = self._wire.send("list", row.plural, "GET", row.path(None, namespace), {"limit": 1}, accept=_METADATA)
        items, metadata = _page(answer, row.plural)
        return len(items) + int(metadata.get("remainingItemCount") or 0)

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None,
            metadata_only: bool = False) -> Object | None:
        """One object, None where it or its kind is not there."""
        row = kinds.find(api_version, kind)
        target = row.label(name, namespace)
        accept = _METADATA_OF_ONE if metadata_only else "application/json"
        answer = self._wire.send("get", target, "GET", row.path(name, namespace), {}, accept=accept)
        self._has_kind(row, answer)
        return None if answer.status == 404 else _checked(answer, "get", target)

    def knows(self, api_version: str, kind: str) -> bool:
        """Whether the server has this kind: from an earlier answer, else by asking for one object."""
        if (api_version, kind) not in self._known:
            return self.serves(kinds.find(api_version, kind))
        return self._known[api_version, kind]

    def serves(self, row: kinds.Kind) -> bool:
        """Whether the server has this kind now; it need not be in the table."""
        answer = self._wire.send("list", row.plural, "GET", row.path(), {"limit": 1}, accept=_METADATA)
        if not self._has_kind(row, answer):
            return False
        _checked(answer, "list", row.plural)
        return True

    def namespaced_kinds(self) -> t.List[kinds.Kind] | None:
        """All kinds that live in namespaces, by two requests; None where the server is too old to answer these."""
        found: t.List[kinds.Kind] = []
        for path in ("/api", "/apis"):
            answer = self._wire.send("list", "the server's kinds", "GET", path, {}, accept=_DISCOVERY)
            groups = _checked(answer, "list", "the server's kinds")
            if groups.get("kind") != "APIGroupDiscoveryList":
                return None
            found += [row for group in groups["items"] for row in _rows(group)]
        return found

    def may(self, verb: str, row: kinds.Kind, namespace: str = "", name: str = "") -> bool:
        """Whether the user may do this with objects of a kind, or (name) one of them, in a namespace or (empty)
        cluster-wide. The plural may name a subresource (C(pods/eviction)).

        Also true where the server does not say so: then it answers the request itself.
        """
        resource, _slash, subresource = row.plural.partition("/")
        asked = {"verb": verb, "group": row.group, "resource": resource, "namespace": namespace,
                 **({"subresource": subresource} if subresource else {}), **({"name": name} if name else {})}
        answer = self._wire.send("create", "a SelfSubjectAccessReview", "POST", _REVIEWS, {}, {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked}})
        return answer.status >= 300 or bool((answer.body.get("status") or {}).get("allowed"))

    def version(self) -> str:
        """The server's version, such as C(v1.36.3)."""
        target = "the server's version"
        return str(_checked(self._wire.send("get", target, "GET", "/version", {}), "get", target)["gitVersion"])

    def apply(self, manifest: t.Mapping[str, t.Any], dry_run: bool = False, force: bool = True) -> Object:
        """Server-side apply with our field manager. Returns the object as the server then has it."""
        row = kinds.find(manifest["apiVersion"], manifest["kind"])
        name, namespace = manifest["metadata"]["name"], manifest["metadata"].get("namespace")
        query = {"fieldManager": MANAGER, "force": "true" if force else None, "fieldValidation": "Strict"}
        # Without a resourceVersion a lost race is a matter of trying again, with one it is the caller's to read anew.
        retry = () if "resourceVersion" in manifest["metadata"] or not force else (409,)
        return self._patch("apply", row, name, namespace, manifest, "apply-patch+yaml", query, dry_run, retry)

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: str | None, body: t.Mapping[str, t.Any],
                    field_manager: str = MANAGER, dry_run: bool = False) -> Object:
        """JSON merge patch (RFC 7396): null removes a key, a list replaces a list.

        With a resourceVersion in it, a lost race is a ClusterError of status 409: the caller reads anew.
        """
        retry = () if "resourceVersion" in body.get("metadata", {}) else (409,)
        return self._patch("patch", kinds.find(api_version, kind), name, namespace, body, "merge-patch+json",
                           {"fieldManager": field_manager}, dry_run, retry)

    def json_patch(self, api_version: str, kind: str, name: str, namespace: str | None,
                   operations: t.Sequence[t.Mapping[str, t.Any]], field_manager: str = MANAGER,
                   dry_run: bool = False) -> Object:
        """JSON patch (RFC 6902). A test that does not hold is a ClusterError of status 422, a lost race of 409.

        dry_run: in place of an apply, so that fields that the server does not know are an error as there.
        """
        query = {"fieldManager": field_manager, "fieldValidation": "Strict" if dry_run else None}
        return self._patch("patch", kinds.find(api_version, kind), name, namespace, operations, "json-patch+json",
                           query, dry_run, ())

    def delete(self, api_version: str, kind: str, name: str, namespace: str | None = None, uid: str | None = None,
               propagation: str = "Background") -> bool:
        """Asks for the removal of an object (by uid: of that very one); False where it was gone already."""
        row = kinds.find(api_version, kind)
        target = row.label(name, namespace)
        body = {"propagationPolicy": propagation, **({"preconditions": {"uid": uid}} if uid else {})}
        answer = self._wire.send("delete", target, "DELETE", row.path(name, namespace), {}, body)
        if answer.status == 409 and uid:
            now = self.get(api_version, kind, name, namespace)
            if now is None or now["metadata"]["uid"] != uid:
                return False
        self._has_kind(row, answer)
        if answer.status == 404:
            return False
        _checked(answer, "delete", target)
        return True

    def log(self, name: str, namespace: str, container: str, previous: bool = False, lines: int = 40) -> str:
        """The last lines of a container's log, with previous those of the one before it.

        Asked once: where the kubelet does not answer the server, it has waited long enough. Raises ClusterError.
        """
        target = f"the log of Pod {namespace}/{name}"
        answer = self._wire.send("read", target, "GET", f"/api/v1/namespaces/{namespace}/pods/{name}/log", {
            "container": container, "previous": "true" if previous else None, "tailLines": lines,
            "limitBytes": LOG_BYTES}, accept="application/json, */*", tries=1)
        return str(_checked(answer, "read", target).get("message") or "")

    def pod_rows(self, namespace: str) -> Object:
        """The pods of a namespace as a Table, what kubectl prints: little to send, with ages by the server's clock."""
        target = f"Pods of {namespace}"
        return _checked(self._wire.send("list", target, "GET", f"/api/v1/namespaces/{namespace}/pods",
                                        {"includeObject": "None"}, accept=_TABLE), "list", target)

    def evict(self, name: str, namespace: str, uid: str, grace_period: int | None = None,
              dry_run: bool = False) -> Later | None:
        """Asks for a pod's eviction (policy/v1): of the very pod of this uid, with its own grace period by default.

        Returns None where the pod ends or is gone, L(Later) where a disruption budget or a busy server forbids it
        now. Raises ClusterError for every other refusal. dry_run: the server answers the same and ends nothing.
        """
        target = f"Pod {namespace}/{name}"
        grace = {} if grace_period is None else {"gracePeriodSeconds": grace_period}
        answer = self._wire.send("evict", target, "POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", {
            "dryRun": "All" if dry_run else None}, {
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}, **grace}}, final=(429,))
        if answer.status == 404:
            return None
        if answer.status in (409, 429) or answer.status >= 500:
            causes = answer.causes or [{}]
            return Later(answer.retry_after, str(causes[0].get("message") or answer.body.get("message") or ""))
        _checked(answer, "evict", target)
        return None

    def many(self, do: t.Callable[[Item], Result], items: t.Iterable[Item]) -> t.List[Result | GpuopsError]:
        """Does the same for all items, concurrently. Results in the order of the items, an expected error in place."""
        def one(item: Item) -> Result | GpuopsError:
            try:
                return do(item)
            except GpuopsError as error:
                return error

        todo = [*items]
        if len(todo) < 2:
            return [one(item) for item in todo]
        with ThreadPoolExecutor(min(self.workers, len(todo))) as threads:
            return [*threads.map(one, todo)]

    def _patch(self, verb: str, row: kinds.Kind, name: str, namespace: str | None, body: t.Any, form: str,
               query: t.Mapping[str, t.Any], dry_run: bool, retry: t.Sequence[int]) -> Object:
        target = row.label(name, namespace)
        answer = self._wire.send(verb, target, "PATCH", row.path(name, namespace),
                                 {**query, "dryRun": "All" if dry_run else None}, body, f"application/{form}",
                                 retry=retry)
        self._has_kind(row, answer)
        return _checked(answer, verb, target)

    def _has_kind(self, row: kinds.Kind, answer: Answer) -> bool:
        """Learns from an answer whether the server has the kind: a 404 that names no object means the kind."""
        if answer.status >= 300 and answer.status != 404:
            return True  # it says nothing about the kind
        known = answer.status < 300 or bool(answer.details.get("name"))
        self._known[row.api_version, row.kind] = known
        return known


def _rows(group: t.Mapping[str, t.Any]) -> t.List[kinds.Kind]:
    """The namespaced kinds of a group that can be listed, at the version that the server prefers."""
    if not group.get("versions"):
        return []
    name, version = (group.get("metadata") or {}).get("name", ""), group["versions"][0]
    api_version = f"{name}/{version['version']}" if name else version["version"]
    return [kinds.Kind(api_version, one["responseKind"]["kind"], one["resource"], True, kinds.CUSTOM)
            for one in version.get("resources") or [] if one["scope"] == "Namespaced" and "list" in one["verbs"]]


def _checked(answer: Answer, verb: str, target: str) -> Object:
    """The body of a good answer. Raises ClusterError for the others."""
    if answer.status < 300:
        return answer.body
    fields = [str(cause["field"]) for cause in answer.causes if cause.get("field")]
    reason = str(answer.body.get("reason") or answer.status)
    said = str(answer.body.get("message") or "it gave no reason").rstrip(".")
    failed = "could not" if answer.status >= 500 else "refused to"
    raise ClusterError(f"{target}: the API server {failed} {verb} it ({reason}): {said}.", _hint(answer),
                       verb=verb, object=target, status=answer.status, reason=reason, fields=fields)


def _page(answer: Answer, plural: str) -> t.Tuple[t.List[Object], t.Mapping[str, t.Any]]:
    """(items, metadata) of a page of a list. Raises ClusterError if the answer is not such a page."""
    page = _checked(answer, "list", plural)
    items, metadata = page.get("items") or [], page.get("metadata")  # null where there is nothing
    if not isinstance(items, list) or not isinstance(metadata, dict) or not all(isinstance(one, dict) for one in items):
        raise ClusterError(f"{plural}: the answer to the request to list them is not a list of objects.",
                           "Check that the server of this kubeconfig is an API server.", verb="list", object=plural,
                           reason="NoList")
    return items, metadata


def _hint(answer: Answer) -> str:
    if answer.status == 403 and '"system:anonymous"' in str(answer.body.get("message")):
        return "The user of this kubeconfig has no credentials: where it names a command (exec), try it by hand."
    if answer.status in (400, 403, 422) and _DENIED.search(str(answer.body.get("message"))):
        return ("A rule of this cluster refused it, the admission webhook or policy that the message names: change "
                "what it objects to, or ask who set the rule for an exception.")
    return {
        401: "The user of this kubeconfig is not accepted: renew its token or certificate.",
        403: "Give the user of this kubeconfig the right that the message names, or ask who set the rule.",
        404: "Create the namespace first." if answer.details.get("kind") == "namespaces" else
             "Install the CustomResourceDefinition of this kind first.",
        409: "Somebody else writes this object at the same time: run again when that has ended.",
        410: "The list expired while it was read, twice: run again when the API server is less busy.",
        422: "Correct the fields that the message names.",
        400: "Correct the fields that the message names.",
        429: "The server stayed busy: run again later.",
    }.get(answer.status, _UNABLE if answer.status >= 500 else "")

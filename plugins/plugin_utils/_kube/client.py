# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to a cluster by verb: list, get, apply, patch, delete, evict. PRIVATE to the collection.

Objects are documents of the API, of the kinds in L(kinds.KINDS).
"""

from __future__ import annotations

import re
import typing as t
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.wire import Answer, Body, Query, Wire

MANAGER = "gpuops.nvidia"
PAGE = 500
LOG_BYTES, PAGE_BYTES = 1 << 16, 1 << 23
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_METADATA_OF_ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

Item = t.TypeVar("Item")
Result = t.TypeVar("Result")

_UNABLE = "Repeated requests failed, too. Read the logs of the API server and of etcd, then run again."
# The messages of the API server if an admission webhook or an admission policy refuses a request.
_DENIED = re.compile(r"admission webhook .* denied the request|AdmissionPolicy .* denied request")


class Later(t.NamedTuple):
    """A refused eviction that can be tried again later.

    after: seconds to wait, from the header Retry-After, 0 without the header; why: the server's message.
    """

    after: float
    why: str


class Client:
    """A client of one API server. Several threads can use it at the same time.

    kubeconfig: the path of the file; context: the name of a context in the file, None for the current one; workers: the
    maximum number of concurrent requests; server: the URL of the API server. If the server is busy or a connection
    breaks, a request is repeated for about 6 s. The constructor raises InputError for a missing or invalid kubeconfig;
    each method raises ClusterError if a request fails.
    """

    def __init__(self, kubeconfig: str, context: str | None = None, workers: int = 16) -> None:
        self.workers = workers
        self._wire = Wire(kubeconfig, context, workers)
        self.server = self._wire.server
        self._known: dict[tuple[str, str], bool] = {}

    def list(self, api_version: str, kind: str, namespace: str | None = None, label_selector: str | None = None,
             field_selector: str | None = None, metadata_only: bool = False) -> t.List[Object]:
        """All objects of a kind, read in pages of C(PAGE); empty if the server does not have the kind."""
        return self.list_row(kinds.find(api_version, kind), namespace, label_selector, field_selector, metadata_only)

    def list_row(self, row: kinds.Kind, namespace: str | None = None, label_selector: str | None = None,
                 field_selector: str | None = None, metadata_only: bool = False) -> t.List[Object]:
        """The same as L(list), for any kind: it need not be in L(kinds.KINDS)."""
        query: dict[str, str | int | None] = {
            "labelSelector": label_selector, "fieldSelector": field_selector, "limit": PAGE}
        accept = _METADATA if metadata_only else "application/json"
        objects: t.List[Object] = []
        more: str | None = None
        while True:
            answer = self._wire.send("list", row.plural, "GET", row.path(None, namespace),
                                     {**query, "continue": more}, accept=accept)
            if answer.status == 410 and more and query["limit"]:
                # The continue token has expired: list all objects in one request, as client-go does.
                objects, more, query["limit"] = [], None, None
                continue
            if not self._has_kind(row, answer):
                return []
            items, metadata = _page(answer, row.plural)
            objects += items
            more = metadata.get("continue")
            if not more:
                break
        for item in objects:
            item["apiVersion"], item["kind"] = row.api_version, row.kind
        return objects

    def count(self, api_version: str, kind: str, namespace: str) -> int:
        """The number of objects of a kind in a namespace. The request returns only the first object and the count."""
        row = kinds.find(api_version, kind)
        answer = self._wire.send("list", row.plural, "GET", row.path(None, namespace), {"limit": 1}, accept=_METADATA)
        items, metadata = _page(answer, row.plural)
        return len(items) + int(metadata.get("remainingItemCount") or 0)

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None,
            metadata_only: bool = False) -> Object | None:
        """One object, or None if the object or its kind is missing."""
        row = kinds.find(api_version, kind)
        target = row.label(name, namespace)
        accept = _METADATA_OF_ONE if metadata_only else "application/json"
        answer = self._wire.send("get", target, "GET", row.path(name, namespace), {}, accept=accept)
        self._has_kind(row, answer)
        return None if answer.status == 404 else _checked(answer, "get", target)

    def knows(self, api_version: str, kind: str) -> bool:
        """Whether the server has this kind. Sends a request only if no earlier answer has shown it."""
        if (api_version, kind) not in self._known:
            return self.serves(kinds.find(api_version, kind))
        return self._known[api_version, kind]

    def serves(self, row: kinds.Kind) -> bool:
        """Whether the server has this kind now. The kind need not be in L(kinds.KINDS)."""
        answer = self._wire.send("list", row.plural, "GET", row.path(), {"limit": 1}, accept=_METADATA)
        if not self._has_kind(row, answer):
            return False
        _checked(answer, "list", row.plural)
        return True

    def namespaced_kinds(self) -> t.List[kinds.Kind] | None:
        """All namespaced kinds, from aggregated discovery; None if the server does not support it."""
        namespaced: t.List[kinds.Kind] = []
        for path in ("/api", "/apis"):
            answer = self._wire.send("list", "the server's kinds", "GET", path, {}, accept=_DISCOVERY)
            groups = _checked(answer, "list", "the server's kinds")
            if groups.get("kind") != "APIGroupDiscoveryList":
                return None
            namespaced += [row for group in groups["items"] for row in _rows(group)]
        return namespaced

    def may(self, verb: str, row: kinds.Kind, namespace: str = "", name: str = "") -> bool:
        """Whether the user has a permission, according to a SelfSubjectAccessReview.

        row: its plural may name a subresource (C(pods/eviction)); namespace: empty for the whole cluster; name: the
        name of one object, empty for all objects. True if the review fails: the request itself then shows the error.
        """
        resource, _slash, subresource = row.plural.partition("/")
        asked = {"verb": verb, "group": row.group, "resource": resource, "namespace": namespace,
                 **({"subresource": subresource} if subresource else {}), **({"name": name} if name else {})}
        answer = self._wire.send("create", "a SelfSubjectAccessReview", "POST", _REVIEWS, {}, {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked}})
        return answer.status >= 300 or bool((answer.body.get("status") or {}).get("allowed"))

    def version(self) -> str:
        """The version of the API server, such as C(v1.36.3)."""
        target = "the server's version"
        return str(_checked(self._wire.send("get", target, "GET", "/version", {}), "get", target)["gitVersion"])

    def apply(self, manifest: Live, dry_run: bool = False) -> Object:
        """Applies a manifest (server-side apply with the field manager MANAGER, forced). Returns the applied object."""
        row = kinds.find(manifest["apiVersion"], manifest["kind"])
        name, namespace = manifest["metadata"]["name"], manifest["metadata"].get("namespace")
        query = {"fieldManager": MANAGER, "force": "true", "fieldValidation": "Strict"}
        # A conflict is tried again, unless the manifest has a resourceVersion: then the caller must read again.
        retry = () if "resourceVersion" in manifest["metadata"] else (409,)
        return self._patch("apply", row, name, namespace, manifest, "apply-patch+yaml", query, dry_run, retry)

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: str | None, body: Live,
                    field_manager: str = MANAGER) -> Object:
        """Applies a JSON merge patch (RFC 7396): null removes a key, a list replaces a list. Returns the new object.

        Raises ClusterError with the status 409 for a conflict if the patch has a resourceVersion.
        """
        retry = () if "resourceVersion" in body.get("metadata", {}) else (409,)
        return self._patch("patch", kinds.find(api_version, kind), name, namespace, body, "merge-patch+json",
                           {"fieldManager": field_manager}, False, retry)

    def json_patch(self, api_version: str, kind: str, name: str, namespace: str | None,
                   operations: t.Sequence[Live], field_manager: str = MANAGER, dry_run: bool = False) -> Object:
        """Applies a JSON patch (RFC 6902). Returns the new object.

        dry_run: writes nothing, and validates the fields strictly, as L(apply) does. Raises ClusterError: with the
        status 422 if a test of the patch fails, with 409 for a conflict.
        """
        query = {"fieldManager": field_manager, "fieldValidation": "Strict" if dry_run else None}
        return self._patch("patch", kinds.find(api_version, kind), name, namespace, operations, "json-patch+json",
                           query, dry_run, ())

    def delete(self, api_version: str, kind: str, name: str, namespace: str | None = None, uid: str | None = None,
               propagation: str = "Background") -> bool:
        """Deletes an object. uid: delete only an object with this UID. Returns False if it was already deleted."""
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
        """The last lines of a container's log. previous: read the log of the previous instance of the container.

        The request is sent only once: the API server itself has a timeout for a kubelet that does not respond.
        """
        target = f"the log of Pod {namespace}/{name}"
        answer = self._wire.send("read", target, "GET", f"/api/v1/namespaces/{namespace}/pods/{name}/log", {
            "container": container, "previous": "true" if previous else None, "tailLines": lines,
            "limitBytes": LOG_BYTES}, accept="application/json, */*", tries=1)
        return str(_checked(answer, "read", target).get("message") or "")

    def pod_page(self, name: str, namespace: str, port: str, path: str) -> str:
        """A page that a pod serves by HTTP, at most PAGE_BYTES, fetched by the API server. The request is sent once."""
        target = f"the page {path} of Pod {namespace}/{name}"
        url = f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/{path}"
        answer = self._wire.send("read", target, "GET", url, {}, accept="text/plain, */*", tries=1, most=PAGE_BYTES)
        return str(_checked(answer, "read", target).get("message") or "")

    def pod_rows(self, namespace: str) -> Object:
        """The pods of a namespace as a Table, as kubectl reads them. It is small, and its ages use the server's clock.
        """
        target = f"Pods of {namespace}"
        return _checked(self._wire.send("list", target, "GET", f"/api/v1/namespaces/{namespace}/pods",
                                        {"includeObject": "None"}, accept=_TABLE), "list", target)

    def evict(self, name: str, namespace: str, uid: str, grace_period: int | None = None,
              dry_run: bool = False) -> Later | None:
        """Evicts the pod with this UID (policy/v1).

        grace_period: in seconds, None for the grace period of the pod; dry_run: return the same, but keep the pod
        running. Returns None if the pod terminates or is already deleted, L(Later) if a disruption budget does not
        allow the eviction now or the server is busy. Raises ClusterError for any other refusal.
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
        """Calls a function for all items concurrently. Returns its result or its GpuopsError for each, in their order.
        """
        def result(item: Item) -> Result | GpuopsError:
            try:
                return do(item)
            except GpuopsError as error:
                return error

        todo = [*items]
        if len(todo) < 2:
            return [result(item) for item in todo]
        with ThreadPoolExecutor(min(self.workers, len(todo))) as threads:
            return [*threads.map(result, todo)]

    def _patch(self, verb: str, row: kinds.Kind, name: str, namespace: str | None, body: Body, form: str, query: Query,
               dry_run: bool, retry: t.Sequence[int]) -> Object:
        target = row.label(name, namespace)
        answer = self._wire.send(verb, target, "PATCH", row.path(name, namespace),
                                 {**query, "dryRun": "All" if dry_run else None}, body, f"application/{form}",
                                 retry=retry)
        self._has_kind(row, answer)
        return _checked(answer, verb, target)

    def _has_kind(self, row: kinds.Kind, answer: Answer) -> bool:
        """Whether the server has the kind, from an answer: if a 404 names no object, the kind is missing."""
        if answer.status >= 300 and answer.status != 404:
            return True  # such an answer does not depend on the kind
        known = answer.status < 300 or bool(answer.details.get("name"))
        self._known[row.api_version, row.kind] = known
        return known


def _rows(group: Object) -> t.List[kinds.Kind]:
    """The namespaced kinds of an API group that can be listed, in the version that the server prefers."""
    if not group.get("versions"):
        return []
    name, version = (group.get("metadata") or {}).get("name", ""), group["versions"][0]
    api_version = f"{name}/{version['version']}" if name else version["version"]
    return [kinds.Kind(api_version, one["responseKind"]["kind"], one["resource"], True, kinds.CUSTOM)
            for one in version.get("resources") or [] if one["scope"] == "Namespaced" and "list" in one["verbs"]]


def _checked(answer: Answer, verb: str, target: str) -> Object:
    """The body of a successful answer. Raises ClusterError for any other answer."""
    if answer.status < 300:
        return answer.body
    fields = [str(cause["field"]) for cause in answer.causes if cause.get("field")]
    reason = str(answer.body.get("reason") or answer.status)
    message = str(answer.body.get("message") or "the answer has no message").rstrip(".")
    failed = "could not" if answer.status >= 500 else "refused to"
    raise ClusterError(f"{target}: the API server {failed} {verb} it ({reason}): {message}.", _hint(answer),
                       verb=verb, object=target, status=answer.status, reason=reason, fields=fields)


def _page(answer: Answer, plural: str) -> t.Tuple[t.List[Object], Object]:
    """(items, metadata) of a page of a list. Raises ClusterError if the answer is not such a page."""
    page = _checked(answer, "list", plural)
    items, metadata = page.get("items") or [], page.get("metadata")  # items of an empty list may be null
    if not isinstance(items, list) or not isinstance(metadata, dict) or not all(isinstance(one, dict) for one in items):
        raise ClusterError(f"{plural}: the server did not answer with a list of objects.",
                           "Check that the server of this kubeconfig is an API server.", verb="list", object=plural,
                           reason="NoList")
    return items, metadata


def _hint(answer: Answer) -> str:
    if answer.status == 403 and '"system:anonymous"' in str(answer.body.get("message")):
        return ("The kubeconfig gives no credentials for its user. If it names a command for them (exec), run this "
                "command by hand to see its error.")
    if answer.status in (400, 403, 422) and _DENIED.search(str(answer.body.get("message"))):
        return ("An admission webhook or an admission policy of this cluster refused the request. Change what the "
                "message names, or ask the owner of the webhook or policy for an exception.")
    return {
        401: "The API server rejects the credentials of this kubeconfig. Renew the token or certificate.",
        403: "Give the user of this kubeconfig the permission that the message names.",
        404: "Create the namespace first." if answer.details.get("kind") == "namespaces" else
             "Install the CustomResourceDefinition of this kind first.",
        409: "Another client writes this object at the same time. Run again when that client has finished.",
        410: "The list expired twice while it was being read. Run again when the API server is less busy.",
        422: "Correct the fields that the message names.",
        400: "Correct the fields that the message names.",
        429: "The API server is too busy. Run again later.",
    }.get(answer.status, _UNABLE if answer.status >= 500 else "")

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An API server in memory on a real HTTP port: the requests of a client, and their effect on the objects.

It keeps objects, uids, resourceVersions and the managedFields of applies; lists have pages and selectors. Lists in
manifests are atomic, there is no validation, no defaulting and no controller: tests say what those would do.
"""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Dict, NamedTuple, Optional
from urllib.parse import parse_qs, unquote, urlsplit

import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds
from ansible_collections.gpuops.nvidia.tests.unit.operands.merging import merged, pruned, tree_of, unlike

Object = Dict[str, Any]
_LEAN = ("apiVersion", "kind", "metadata")
_PLURALS = {(row.root, row.plural): row for row in kinds.KINDS.values()}


class Request(NamedTuple):
    """A received request. verb: C(get), C(list), C(apply), C(patch), C(delete), C(create); path: without the query;
    user: the header C(Authorization)."""

    verb: str
    path: str
    query: Dict[str, str]
    body: Any
    accept: str
    user: str


class Reply(NamedTuple):
    """status, body and headers. A body that is a text is sent as such, an iterator of bytes as its parts come."""

    status: int
    body: Any
    headers: Dict[str, str] = {}


def status(code: int, message: str = "", name: str = "", **more: Any) -> Reply:
    """A failure as the server words it; name: the name of the object."""
    reasons = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict",
               410: "Expired", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError",
               503: "ServiceUnavailable"}
    headers = {"Retry-After": str(more.pop("retry_after"))} if "retry_after" in more else {}
    return Reply(code, {"kind": "Status", "status": "Failure", "code": code, "message": message or reasons[code],
                        "reason": reasons[code], "details": {**({"name": name} if name else {}), **more}}, headers)


class ApiServer:
    """objects: the current objects by path. requests: all requests. without: plurals of kinds that it does not serve.

    before: called with each request before it is answered, so that a test can be another hand that is faster, or
    answer in the server's place by returning a Reply. admission: called with an object as it would become, which it
    may change; returns why it is refused, empty where it is not. allowed: the answer to reviews of rights. page: items
    in one.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.objects: dict[str, Object] = {}
        self.requests: list[Request] = []
        self.without: set[str] = set()
        self.before: Callable[[Request], Optional[Reply]] = lambda request: None
        self.admission: Callable[[Object], str] = lambda item: ""
        self.allowed: Callable[[Object], bool] = lambda asked: True
        self.page = 500
        self._version = 0
        self._lock = threading.Lock()
        handle = self._handle
        connections = self._connections = set[socket.socket]()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer is one packet

            def setup(self) -> None:
                super().setup()
                connections.add(self.connection)

            def finish(self) -> None:
                connections.discard(self.connection)
                super().finish()

            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                reply = handle(self.command, self.path, self.headers, self.rfile.read(size))
                text = isinstance(reply.body, str)
                parts = reply.body if isinstance(reply.body, Iterator) else [
                    (reply.body if text else json.dumps(reply.body)).encode()]
                self.send_response(reply.status)
                for name, value in {"Content-Type": "text/plain" if text else "application/json",
                                    **({"Content-Length": str(len(parts[0]))} if isinstance(parts, list) else {}),
                                    **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # the client has heard enough
                    for part in parts:
                        self.wfile.write(part)
                        self.wfile.flush()

            do_GET = do_PATCH = do_DELETE = do_POST = answer  # noqa: N815

            def log_message(self, *words: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump({
            "current-context": "x", "users": [{"name": "x", "user": {}}],
            "clusters": [{"name": "x", "cluster": {"server": self.address}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Also ends the connections: otherwise each keeps a thread, and with it this server and its clients."""
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def put(self, *items: Object) -> None:
        """Adds objects as another client would create them; missing identity fields are set."""
        for item in items:
            row, metadata = kinds.find(item["apiVersion"], item["kind"]), item["metadata"]
            self._store(row.path(metadata["name"], metadata.get("namespace")), copy.deepcopy(item))

    def sent(self, *verbs: str) -> list[str]:
        """C(VERB PATH) of the requests with these verbs, in their order; by default of the writes."""
        return [f"{one.verb} {one.path}" for one in self.requests
                if one.verb in (verbs or ("apply", "patch", "delete", "create")) and "reviews" not in one.path]

    def _handle(self, method: str, url: str, headers: Mapping[str, str], data: bytes) -> Reply:
        parts = urlsplit(url)
        path, query = unquote(parts.path), {name: values[-1] for name, values in parse_qs(parts.query).items()}
        body = json.loads(data) if data else None
        form = headers.get("Content-Type", "")
        name, row = _place(path)
        verb = {"GET": "get" if name else "list", "POST": "create", "DELETE": "delete"}.get(
            method, "apply" if "apply" in form else "patch")
        request = Request(verb, path, query, body, headers.get("Accept", ""), headers.get("Authorization", ""))
        with self._lock:
            self.requests.append(request)
            said = self.before(request)
            if said is not None:
                return said
            if path.endswith("selfsubjectaccessreviews"):
                asked = body["spec"]["resourceAttributes"]
                return Reply(201, {"status": {"allowed": self.allowed(asked)}})
            if path == "/version":
                return Reply(200, {"gitVersion": "v1.36.3"})
            if row is None or row.plural in self.without:
                return status(404, "the server could not find the requested resource")
            if verb == "list":
                return self._list(path, row, query, request.accept)
            live = self.objects.get(path)
            if verb == "apply":
                return self._apply(path, live, body, query)
            if live is None:
                return status(404, f'{row.plural} "{name}" not found', name)
            if verb == "get":
                return Reply(200, _lean(live) if "PartialObjectMetadata" in request.accept else live)
            if verb == "delete":
                return self._delete(path, live, body or {})
            return self._patch(path, live, body, form, bool(query.get("dryRun")))

    def _list(self, path: str, row: kinds.Kind, query: Mapping[str, str], accept: str) -> Reply:
        if "as=Table" in accept:
            return Reply(200, {"columnDefinitions": [], "rows": []})
        found = [_lean(item) if "PartialObjectMetadata" in accept else item
                 for place, item in sorted(self.objects.items()) if _place(place)[1] == row and _selected(item, query)
                 and (path == row.path() or place.startswith(f"{path}/"))]
        # The items of a list do not say what they are.
        items = [{key: value for key, value in item.items() if key not in ("apiVersion", "kind")} for item in found]
        begin = int(query.get("continue") or 0)
        end = begin + min(self.page, int(query.get("limit") or self.page))
        more = {"continue": str(end), "remainingItemCount": len(items) - end} if end < len(items) else {}
        return Reply(200, {"metadata": more,
                           "items": items[begin:end] or None})

    def _apply(self, path: str, live: Object | None, body: Object, query: dict[str, str]) -> Reply:
        """Server-side apply: the manager becomes the owner of the fields of the manifest; with force, also of those of
        others."""
        manager = query["fieldManager"]
        tree = {name: sub for name, sub in tree_of(body).items() if name not in ("f:apiVersion", "f:kind")}
        for name in ("f:name", "f:namespace"):
            tree["f:metadata"].pop(name, None)
        now = copy.deepcopy(live) if live else {"metadata": {}}
        entries = now["metadata"].pop("managedFields", None) or []
        own = next((one for one in entries if (one.get("manager"), one.get("operation")) == (manager, "Apply")), {})
        others = [one for one in entries if one is not own]
        for entry in others:
            left = unlike(entry.get("fieldsV1") or {}, tree, now, body)
            if left != entry.get("fieldsV1"):
                if query.get("force") != "true":
                    return status(409, f"conflict with {entry['manager']}", body["metadata"]["name"])
                entry["fieldsV1"] = left
        now = merged(pruned(now, own.get("fieldsV1") or {}, [tree, *(one.get("fieldsV1") or {} for one in others)]),
                      body)
        now["metadata"]["managedFields"] = [*(one for one in others if one.get("fieldsV1") or one.get("subresource")), {
            "manager": manager, "operation": "Apply", "apiVersion": body["apiVersion"], "fieldsType": "FieldsV1",
            "fieldsV1": tree}]
        return self._written(path, now, bool(query.get("dryRun")), 200 if live else 201)

    def _patch(self, path: str, live: Object, body: Any, form: str, dry_run: bool) -> Reply:
        now: Object = copy.deepcopy(live)
        if "json-patch" in form:
            for one in body:
                *parents, last = (part.replace("~1", "/") for part in one["path"][1:].split("/"))
                target = now
                for part in parents:
                    target = target[part]
                if one["op"] == "replace" and last not in target:
                    return status(422, f"{one['path']} is not there", live["metadata"]["name"])
                if one["op"] == "remove":
                    del target[last]
                else:
                    target[last] = one["value"]
        else:
            now = merged(now, body)
        if now["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            return status(409, "the object has been modified", live["metadata"]["name"])
        if now["metadata"].get("managedFields") == [{}]:
            del now["metadata"]["managedFields"]
        return self._written(path, now, dry_run, 200)

    def _written(self, path: str, now: Object, dry_run: bool, code: int) -> Reply:
        problem = self.admission(now)
        if problem:
            return status(422, problem, now["metadata"]["name"])
        return Reply(code, now if dry_run else self._store(path, now))

    def _delete(self, path: str, live: Object, body: Object) -> Reply:
        metadata = live["metadata"]
        if (body.get("preconditions") or {}).get("uid", metadata["uid"]) != metadata["uid"]:
            return status(409, "the uid in the precondition is another", metadata["name"])
        if metadata.get("finalizers"):
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return Reply(200, live)
        return Reply(200, self.objects.pop(path))

    def _store(self, path: str, item: Object) -> Object:
        self._version += 1
        former = self.objects.get(path)
        metadata = item["metadata"]
        metadata["resourceVersion"] = str(self._version)
        metadata.setdefault("uid", former["metadata"]["uid"] if former else f"uid-{self._version}")
        self.objects[path] = item
        return item


def _place(path: str) -> tuple[str, kinds.Kind | None]:
    """(the object's name, empty for a list; its kind) at C(/api/v1/namespaces/s/pods/p)."""
    parts = path.split("/")
    at = 3 if parts[1] == "api" else 4
    rest = parts[at + 2:] if parts[at:at + 1] == ["namespaces"] and len(parts) > at + 2 else parts[at:]
    plural, name = (*rest[:2], "", "")[:2]
    return name, _PLURALS.get(("/".join(parts[:at]), plural))


def _lean(item: Object) -> Object:
    return {name: item[name] for name in _LEAN if name in item}


def _selected(item: Object, query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels") or {}
    parts = query.get("labelSelector", "").split(",")
    wanted = dict(part.split("=") for part in parts if "=" in part and "!=" not in part)
    unwanted = [part.split("!=") for part in parts if "!=" in part]
    field, _equals, value = query.get("fieldSelector", "").partition("=")
    fields = {"metadata.name": item["metadata"]["name"], "spec.nodeName": (item.get("spec") or {}).get("nodeName", "")}
    return (wanted.items() <= labels.items() and fields.get(field, value) == value
            and all(labels.get(key) != other for key, other in unwanted))

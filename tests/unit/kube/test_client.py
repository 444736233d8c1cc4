# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requests of the client to an API server, and its results for successful and failed answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, wire
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client, Later
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Reply, Request, status

NODE = "/api/v1/nodes/n1"
POD = "/api/v1/namespaces/jobs/pods/p"


def node(name: str = "n1", **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"x": "y"}}


def always(api: ApiServer, reply: Any) -> None:
    """The answer to every request."""
    api.before = lambda request: reply


def first(api: ApiServer, *replies: Any) -> None:
    """The answers to the next requests; after that, the server itself answers."""
    left = list(replies)
    api.before = lambda request: left.pop(0) if left else None


def test_a_list_has_all_pages_and_says_what_its_items_are(api: ApiServer, client: Client) -> None:
    api.put(*(node(f"n{number}") for number in range(5)))
    api.page = 2
    found = client.list("v1", "Node")
    assert [one["metadata"]["name"] for one in found] == [f"n{number}" for number in range(5)]
    assert all((one["apiVersion"], one["kind"]) == ("v1", "Node") for one in found)
    assert [one.query.get("continue") for one in api.requests] == [None, "2", "4"]
    assert {one.query["limit"] for one in api.requests} == {"500"}


def test_a_server_that_never_answers_is_given_up_soon_and_said(
        api: ApiServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections, like a load balancer without a server behind it."""
    silent = threading.Event()
    api.before = lambda request: silent.wait(20) and None
    said = r"127.0.0.1:\d+ accepts connections, but did not answer the request to list nodes within 0.2 s, 2 times"
    with monkeypatch.context() as short, pytest.raises(ClusterError, match=said) as caught:
        short.setattr(wire, "FIRST_TIMEOUT", 0.2)
        client.list("v1", "Node")
    silent.set()
    assert caught.value.hint.startswith("Check that an API server runs behind this address") and not caught.value.status
    api.requests.clear()
    assert client.list("v1", "Node") == []
    silent.clear()
    with monkeypatch.context() as short, pytest.raises(ClusterError, match="within 0.4 s, 2 times"):
        short.setattr(wire, "READ_TIMEOUT", 0.4)
        client.list("v1", "Node")
    silent.set()


def test_a_list_whose_later_pages_have_expired_begins_anew(api: ApiServer, client: Client) -> None:
    api.put(*(node(f"n{number}") for number in range(3)))
    api.page, expired = 2, [status(410, "expired")]
    api.before = lambda request: expired.pop() if expired and "continue" in request.query else None
    assert [one["metadata"]["name"] for one in client.list("v1", "Node")] == ["n0", "n1", "n2"]
    assert [one.query.get("limit") for one in api.requests] == ["500", "500", None, None]
    always(api, status(410, "expired"))
    with pytest.raises(ClusterError, match="Expired"):
        client.list("v1", "Node")


def test_a_server_on_which_every_later_page_has_expired_is_asked_once_for_all(api: ApiServer, client: Client) -> None:
    """The request ends also if the server returns pages to a client that requests none."""
    asked: list[Request] = []

    def expiring(request: Request) -> Reply:
        asked.append(request)
        assert len(asked) < 9
        return status(410) if "continue" in request.query else Reply(200, {"metadata": {"continue": "x"}, "items": []})

    api.before = expiring
    with pytest.raises(ClusterError, match="Expired.*Run again"):
        client.list("v1", "Node")
    assert len(asked) == 4


def test_lists_are_narrowed_by_the_server(api: ApiServer, client: Client) -> None:
    api.put(node("n1", a="b"), node("n2"))
    assert [one["metadata"]["name"] for one in client.list("v1", "Node", label_selector="a=b")] == ["n1"]
    assert [one["metadata"]["name"] for one in client.list("v1", "Node", field_selector="metadata.name=n2")] == ["n2"]
    assert [sorted(one) for one in client.list("v1", "Node", metadata_only=True)] == [
        ["apiVersion", "kind", "metadata"]] * 2
    assert "spec" in client.list("v1", "Node")[0]
    client.list("v1", "Pod", "jobs")
    assert api.requests[-1].path == "/api/v1/namespaces/jobs/pods"


def test_a_kind_that_the_server_does_not_have_has_no_objects(api: ApiServer, client: Client) -> None:
    api.without.add("clusterpolicies")
    assert client.list("nvidia.com/v1", "ClusterPolicy") == []
    assert client.get("nvidia.com/v1", "ClusterPolicy", "x") is None
    assert not client.knows("nvidia.com/v1", "ClusterPolicy") and client.knows("v1", "Node")
    asked = len(api.requests)
    assert client.knows("v1", "Node") and not client.knows("nvidia.com/v1", "ClusterPolicy")
    assert len(api.requests) == asked, "it is known from earlier answers"
    api.without.clear()
    assert client.serves(kinds.find("nvidia.com/v1", "ClusterPolicy"))
    assert client.knows("nvidia.com/v1", "ClusterPolicy")


def test_an_object_that_is_not_there_says_that_its_kind_is(api: ApiServer, client: Client) -> None:
    assert client.get("nvidia.com/v1", "ClusterPolicy", "x") is None
    asked = len(api.requests)
    assert client.knows("nvidia.com/v1", "ClusterPolicy") and len(api.requests) == asked


def test_whether_a_kind_is_served_is_not_told_by_a_refusal(api: ApiServer, client: Client) -> None:
    always(api, status(403, "no"))
    for ask in (lambda: client.serves(kinds.find("v1", "Node")), lambda: client.list("v1", "Node"),
                lambda: client.get("v1", "Node", "n1")):
        with pytest.raises(ClusterError, match="Forbidden"):
            ask()


def test_of_an_object_the_metadata_alone(api: ApiServer, client: Client) -> None:
    api.put(node())
    assert "spec" in (client.get("v1", "Node", "n1") or {})
    assert "spec" not in (client.get("v1", "Node", "n1", metadata_only=True) or {})


MAP: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "s"}, "data": {"a": "b"}}


def test_an_apply_with_a_version_is_the_callers_to_try_again(api: ApiServer, client: Client) -> None:
    first(api, status(409, name="a"))
    with pytest.raises(ClusterError) as caught:
        client.apply({**MAP, "metadata": {**MAP["metadata"], "resourceVersion": "1"}})
    assert caught.value.status == 409 and len(api.requests) == 1
    api.requests.clear()
    first(api, status(409, name="a"))
    assert client.apply(MAP)["data"] == {"a": "b"} and len(api.requests) == 2
    assert api.requests[0].query == {"fieldManager": "gpuops.nvidia", "force": "true", "fieldValidation": "Strict"}


def test_patches_go_by_our_name_and_only_those_without_a_version_again(api: ApiServer, client: Client) -> None:
    api.put(node())
    first(api, status(409, name="n1"))
    client.merge_patch("v1", "Node", "n1", None, {"metadata": {"labels": {"a": "b"}}})
    assert len(api.requests) == 2 and api.objects[NODE]["metadata"]["labels"] == {"a": "b"}
    assert {one.query["fieldManager"] for one in api.requests} == {"gpuops.nvidia"}
    for patch in (lambda: client.merge_patch("v1", "Node", "n1", None, {"metadata": {"resourceVersion": "0"}}),
                  lambda: client.json_patch("v1", "Node", "n1", None, [
                      {"op": "replace", "path": "/metadata/resourceVersion", "value": "0"}])):
        api.requests.clear()
        with pytest.raises(ClusterError) as caught:
            patch()
        assert caught.value.status == 409 and len(api.requests) == 1
    client.merge_patch("v1", "Node", "n1", None, {"spec": {"x": None}}, field_manager="z")
    assert api.requests[-1].query == {"fieldManager": "z"}


def test_a_deletion_says_whether_that_very_object_was_there(api: ApiServer, client: Client) -> None:
    api.put(MAP)
    path = "/api/v1/namespaces/s/configmaps/a"
    uid = api.objects[path]["metadata"]["uid"]
    assert client.delete("v1", "ConfigMap", "a", "s", "another") is False and path in api.objects
    assert client.delete("v1", "ConfigMap", "a", "s", uid) is True and path not in api.objects
    assert client.delete("v1", "ConfigMap", "a", "s", uid) is False
    assert api.requests[0].body == {"propagationPolicy": "Background", "preconditions": {"uid": "another"}}
    api.put(MAP)
    always(api, status(403, "no"))
    with pytest.raises(ClusterError, match="refused to delete it"):
        client.delete("v1", "ConfigMap", "a", "s")


def test_a_deletion_that_the_server_refuses_for_another_reason_is_an_error(api: ApiServer, client: Client) -> None:
    api.put({**MAP, "metadata": {**MAP["metadata"], "uid": "u"}})
    api.before = lambda request: status(409, "it is in use", "a") if request.verb == "delete" else None
    with pytest.raises(ClusterError, match="it is in use"):
        client.delete("v1", "ConfigMap", "a", "s", "u")
    api.objects.clear()
    assert client.delete("v1", "ConfigMap", "a", "s", "u") is False


@pytest.mark.parametrize(("reply", "later"), [
    (Reply(201, {"kind": "Status", "status": "Success"}), None),
    (status(404, "not found", "p"), None),
    (status(429, "busy", causes=[{"message": "The disruption budget b needs 2"}], retry_after=10),
     Later(10, "The disruption budget b needs 2")),
    (status(429, "too many"), Later(0, "too many")),
    (status(409, "the uid is another", "p"), Later(0, "the uid is another")),
])
def test_an_eviction_is_done_or_later(api: ApiServer, client: Client, reply: Reply, later: Later | None) -> None:
    always(api, reply)
    assert client.evict("p", "jobs", "u") == later
    request, = api.requests
    assert (request.verb, request.path) == ("create", f"{POD}/eviction")
    assert request.body["deleteOptions"] == {"preconditions": {"uid": "u"}}
    assert client.evict("p", "jobs", "u", 0) == later
    assert api.requests[-1].body["deleteOptions"] == {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 0}
    assert client.evict("p", "jobs", "u", dry_run=True) == later
    assert [one.query.get("dryRun") for one in api.requests] == [None, None, "All"]


def test_an_eviction_rides_through_a_broken_server_and_raises_what_is_forbidden(
        api: ApiServer, client: Client, clock: Clock) -> None:
    always(api, status(503, "no etcd"))
    assert client.evict("p", "jobs", "u") == Later(0, "no etcd") and len(api.requests) == wire.TRIES
    always(api, status(403, "no"))
    with pytest.raises(ClusterError, match="Pod jobs/p: the API server refused to evict it"):
        client.evict("p", "jobs", "u")


def test_rights_are_asked_for_one_by_one(api: ApiServer, client: Client) -> None:
    """If a server does not support such reviews, the request itself is sent."""
    api.allowed = lambda asked: asked["verb"] == "patch"
    row = kinds.find("apps/v1", "DaemonSet")
    assert client.may("patch", row, "s") and not client.may("delete", row, "s")
    assert api.requests[0].body["spec"]["resourceAttributes"] == {
        "verb": "patch", "group": "apps", "resource": "daemonsets", "namespace": "s"}
    always(api, status(403, "no reviews"))
    assert client.may("delete", row)


def test_logs_are_texts_also_where_a_line_is_json(api: ApiServer, client: Client) -> None:
    always(api, Reply(200, '{"level": "error"}'))
    assert client.log("p", "jobs", "c", previous=True, lines=7) == '{"level": "error"}'
    request, = api.requests
    assert request.path == f"{POD}/log"
    assert request.query == {"container": "c", "previous": "true", "tailLines": "7", "limitBytes": "65536"}
    always(api, status(503, "the kubelet does not answer"))
    api.requests.clear()
    with pytest.raises(ClusterError, match="the log of Pod jobs/p: .*the kubelet does not answer"):
        client.log("p", "jobs", "c")
    assert len(api.requests) == 1 and "previous" not in api.requests[0].query


def test_pods_as_kubectl_prints_them(api: ApiServer, client: Client) -> None:
    always(api, Reply(200, {"kind": "Table", "rows": []}))
    assert client.pod_rows("jobs") == {"kind": "Table", "rows": []}
    request, = api.requests
    assert "as=Table" in request.accept and request.query == {"includeObject": "None"}
    assert request.path == "/api/v1/namespaces/jobs/pods"


def group(name: str, version: str, *resources: tuple[str, str, str, list[str]]) -> Object:
    return {"metadata": {"name": name} if name else {}, "versions": [{"version": version, "resources": [
        {"responseKind": {"kind": kind}, "resource": plural, "scope": scope, "verbs": verbs}
        for kind, plural, scope, verbs in resources]}, {"version": "old", "resources": []}]}


def test_all_namespaced_kinds_that_can_be_listed(api: ApiServer, client: Client) -> None:
    core = group("", "v1", ("Pod", "pods", "Namespaced", ["list"]), ("Node", "nodes", "Cluster", ["list"]))
    apps = group("apps", "v1", ("Deployment", "deployments", "Namespaced", ["get", "list"]),
                 ("Review", "reviews", "Namespaced", ["create"]))
    first(api, *(Reply(200, {"kind": "APIGroupDiscoveryList", "items": [one, *more]})
                 for one, more in ((core, []), (apps, [{"metadata": {"name": "empty"}, "versions": []}]))))
    assert [(one.api_version, one.kind, one.path(None, "s")) for one in client.namespaced_kinds() or []] == [
        ("v1", "Pod", "/api/v1/namespaces/s/pods"),
        ("apps/v1", "Deployment", "/apis/apps/v1/namespaces/s/deployments")]
    assert [one.path for one in api.requests] == ["/api", "/apis"]
    always(api, Reply(200, {"kind": "APIVersions", "versions": ["v1"]}))
    assert client.namespaced_kinds() is None


def test_the_version(api: ApiServer, client: Client) -> None:
    assert client.version() == "v1.36.3"


def test_many_come_at_once_in_their_order_with_errors_in_place(client: Client) -> None:
    """All of them wait for each other: one after the other, they would never end."""
    together = threading.Barrier(3, timeout=60)

    def one(item: int) -> int:
        together.wait()
        if item == 2:
            raise ClusterError("two")
        return item

    answers = client.many(one, [1, 2, 3])
    assert answers[::2] == [1, 3] and isinstance(answers[1], ClusterError)
    assert client.many(str, []) == [] and client.many(str, [7]) == ["7"]
    single = client.many(one, [])
    assert single == []
    with pytest.raises(ZeroDivisionError):
        client.many(lambda item: item // 0, [1, 2])


@pytest.mark.parametrize(("reply", "hint"), [
    (status(401), "Renew the token"),
    (status(403, 'User "system:anonymous" cannot list'), "no credentials"),
    (status(403, "cannot"), "the permission that the message names"),
    (status(404, "no", "s", kind="namespaces"), "Create the namespace first"),
    (status(404, "no"), "Install the CustomResourceDefinition"),
    (status(409, "no", "n1"), "Another client writes"),
    (status(422, "no", "n1", causes=[{"field": "spec.x"}, {"message": "?"}]), "Correct the fields"),
    (status(429), "Run again later"),
    (status(503), "Read the logs of the API server and of etcd, then run again"),
])
def test_refusals_say_what_was_asked_and_what_to_do(api: ApiServer, client: Client, reply: Reply, hint: str) -> None:
    always(api, reply)
    with pytest.raises(ClusterError) as caught:
        client.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "resourceVersion": "1"}})
    error = caught.value
    failed = "could not" if reply.status == 503 else "refused to"
    assert hint in error.hint and error.message.startswith(f"Node n1: the API server {failed} apply it (")
    assert error.status == reply.status and error.reason == reply.body["reason"]
    assert error.details["fields"] == (["spec.x"] if reply.status == 422 else [])


def test_an_answer_that_is_no_status_is_told_as_it_is(api: ApiServer, client: Client) -> None:
    always(api, Reply(403, "the proxy says no."))
    with pytest.raises(ClusterError, match=r"list it \(403\): the proxy says no\."):
        client.list("v1", "Node")
    always(api, Reply(403, {}))
    with pytest.raises(ClusterError, match="the answer has no message"):
        client.list("v1", "Node")


@pytest.mark.parametrize(("code", "tries"), [(429, 7), (500, 7), (502, 7), (503, 7), (504, 7), (403, 1), (422, 1)])
def test_a_busy_server_is_asked_again_with_growing_pauses(
        api: ApiServer, client: Client, clock: Clock, code: int, tries: int) -> None:
    always(api, Reply(code, {"reason": "X"}))
    begin = clock.now
    with pytest.raises(ClusterError):
        client.list("v1", "Node")
    assert len(api.requests) == tries and (4 < clock.now - begin < 9 if tries > 1 else clock.now == begin)


def test_a_server_that_names_a_pause_gets_it(api: ApiServer, client: Client, clock: Clock) -> None:
    api.put(node())
    begin = clock.now
    first(api, status(429, retry_after=3), status(503, retry_after=600))
    assert client.get("v1", "Node", "n1") and clock.now - begin == 3 + wire.LONGEST_PAUSE


def test_a_server_that_is_not_there_is_named(api: ApiServer, client: Client, clock: Clock) -> None:
    api.close()
    begin = clock.now
    with pytest.raises(ClusterError) as caught:
        client.list("v1", "Node")
    assert caught.value.status == 0 and caught.value.reason
    assert caught.value.message.startswith(f"{api.address}: the request to list nodes failed: ")
    assert "runs, and that the controller" in caught.value.hint and clock.now > begin


def test_a_connection_that_breaks_once_is_no_error(api: ApiServer, client: Client) -> None:
    api.put(node())
    left = [1]

    def broken(request: Any) -> None:
        if left:
            left.pop()
            raise ConnectionResetError("the server's process has ended")

    api.before = broken
    assert client.get("v1", "Node", "n1") and len(api.requests) == 2


LONG = {"Content-Type": "application/json", "Content-Length": "9999", "Connection": "close"}
JSON = {"Content-Type": "application/json"}
# By what goes wrong: the answer to everything; what is said of it; how many requests.
FAULTS: dict[str, tuple[Any, str, int]] = {
    "the token ends": (status(401), "Renew the token", 1),
    "busy for ever, with a pause": (status(429, retry_after=2), "Run again later", wire.TRIES),
    "a pause that is no number": (status(429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), "Run again later",
                                  wire.TRIES),
    "a pause in a digit that is none": (status(429, retry_after="\xb2"), "Run again later", wire.TRIES),
    "an endless pause": (status(429, retry_after="9" * 400), "Run again later", wire.TRIES),
    "internal error": (status(500, "boom"), "Repeated requests failed", wire.TRIES),
    "a gateway's page": (Reply(502, "<html>bad gateway</html>"), "bad gateway", wire.TRIES),
    "another shape of failure": (Reply(403, {"details": "text", "reason": {"a": 1}, "message": ["b"]}),
                                 "the permission that the message names", 1),
    "causes of another shape": (Reply(422, {"details": {"causes": ["text", {"field": 7}]}}), "the fields", 1),
    "reset": (ConnectionResetError(), "runs, and that the controller", wire.TRIES),
    "cut off": (Reply(200, '{"metadata": {}, "ite', LONG), "runs, and that the controller", wire.TRIES),
    "cut by a proxy": (Reply(200, '{"metadata": {}, "ite', JSON), "no proxy before it truncates", wire.TRIES),
    "a page to log in": (Reply(200, "<html>log in</html>", {"Content-Type": "text/html"}), "no proxy before it",
                         wire.TRIES),
    "a text of success": (Reply(200, "welcome"), "it begins with 'welcome'", wire.TRIES),
    "too deep": (Reply(200, "[" * 100_000, JSON), "not a JSON object", wire.TRIES),
    "moved": (Reply(302, "", {"Location": "http://elsewhere.example"}), "the answer has no message", 1),
}


@pytest.mark.parametrize("act", [
    lambda client: client.list("v1", "Node"), lambda client: client.get("v1", "Node", "n1"),
    lambda client: client.apply(MAP), lambda client: client.delete("v1", "ConfigMap", "a", "s"),
    lambda client: client.count("v1", "ConfigMap", "s"), lambda client: client.version()],
    ids=["list", "get", "apply", "delete", "count", "version"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_message_after_a_bounded_time(api: ApiServer, client: Client, clock: Clock, fault: str,
                                                     act: Any) -> None:
    """Also in the middle of a run, after a successful first request."""
    api.put(node(), MAP)
    client.version()
    api.requests.clear()
    begin, (reply, said, tries) = clock.now, FAULTS[fault]

    def answer(request: Request) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return reply

    api.before = answer
    with pytest.raises(ClusterError) as caught:
        act(client)
    assert said in f"{caught.value.message} {caught.value.hint}"
    assert len(api.requests) == tries and clock.now - begin <= wire.TRIES * wire.LONGEST_PAUSE


def test_an_answer_in_tiny_parts_is_given_up_after_its_time(api: ApiServer, client: Client, clock: Clock) -> None:
    api.put(node())
    client.version()

    def drip() -> Iterator[bytes]:
        for number in range(10_000):
            clock.sleep(1)
            yield b"\n" if number else b"{"

    always(api, Reply(200, drip(), {**JSON, "Connection": "close"}))
    with pytest.raises(ClusterError, match="list nodes was not complete after 120 s"):
        client.list("v1", "Node")
    assert len(api.requests) == 2
    api.before = lambda request: None
    assert client.get("v1", "Node", "n1"), "the connection is not used again"


@pytest.mark.parametrize("body", [{}, {"items": "text", "metadata": {}}, {"items": ["text"], "metadata": {}},
                                  {"items": [], "metadata": []}])
def test_a_list_that_is_none_is_said(api: ApiServer, client: Client, body: Any) -> None:
    always(api, Reply(200, body))
    with pytest.raises(ClusterError, match="nodes: the server did not answer with a list of objects"):
        client.list("v1", "Node")


def test_requests_carry_the_token_of_the_contexts_user(api: ApiServer) -> None:
    config = yaml.safe_load(api.kubeconfig.read_text())
    config["users"] = [{"name": name, "user": {"token": f"of-{name}"}} for name in "xy"]
    config["contexts"].append({"name": "y", "context": {"cluster": "x", "user": "y"}})
    api.kubeconfig.write_text(yaml.safe_dump(config))
    for context in (None, "y"):
        Client(str(api.kubeconfig), context).version()
    assert [one.user for one in api.requests] == ["Bearer of-x", "Bearer of-y"]


def test_a_context_that_is_not_there_is_answered_with_those_that_are(api: ApiServer) -> None:
    assert Client(str(api.kubeconfig), "x").server == api.address
    with pytest.raises(InputError, match="has no context 'y'. Set one of x, or no context"):
        Client(str(api.kubeconfig), "y")


def test_a_kind_that_is_not_handled(client: Client) -> None:
    with pytest.raises(InputError, match="Write apiVersion: apps/v1"):
        client.list("extensions/v1beta1", "DaemonSet")


@pytest.mark.parametrize(("code", "message"), [
    (403, 'admission webhook "x.example.org" denied the request: no privileged pods'),
    (422, "ValidatingAdmissionPolicy 'images' with binding 'all' denied request: registry not allowed")])
def test_a_denial_by_admission_is_no_wrong_field(api: ApiServer, client: Client, code: int, message: str) -> None:
    always(api, status(code, message))
    with pytest.raises(ClusterError) as caught:
        client.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"}})
    assert "of this cluster refused the request" in caught.value.hint and "Correct the fields" not in caught.value.hint

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import compare, diff, field_owners

TREE = {"f:spec": {"f:replicas": {}, "f:containers": {'k:{"name":"a"}': {
    ".": {}, "f:name": {}, "f:image": {}, "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {
        ".": {}, "f:containerPort": {}}}}}}}
SPEC = {"replicas": 2, "containers": [{"name": "a", "image": "x:1", "ports": [{"containerPort": 80}]}]}


def live(spec: dict[str, Any], *entries: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec, "metadata": {
        "name": "x", "namespace": "y", "managedFields": list(entries)}}


def entry(tree: field_owners.Tree, manager: str = "gpuops.nvidia", operation: str = "Apply",
          **more: str) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsV1": tree, **more}


MANIFEST = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "y"}, "spec": SPEC}


@pytest.mark.parametrize(("want", "have", "expected"), [
    ("1000m", "1", True), ("1024Mi", "1Gi", True), ("0.5", "500m", True), ("1e3", "1k", True), ("1", "2", False),
    (8080, "8080", True), ("http", "https", False), (None, "", True), ({}, None, True), ([], None, True),
    ({"a": None}, None, True), ({"a": 1}, None, False), (False, None, True), (0, None, True), (True, 1, True),
    (True, "true", False), ("", "x", False), ([1], None, False), ("1.2.3", "1.2", False)])
def test_same(want: Any, have: Any, expected: bool) -> None:
    assert compare.same(want, have) is expected


@pytest.mark.parametrize(("want", "have", "expected"), [
    ({"a": 1}, {"a": 1, "b": 2}, []),
    ({"a": {"b.c/d": "x"}}, {"a": {}}, ["x.a[b.c/d]"]),
    ([{"name": "a", "v": 1}, {"name": "b"}], [{"name": "b"}, {"name": "a", "v": 1, "default": True}], []),
    ([{"name": "a"}], [{"name": "a"}, {"name": "b"}], ["x"]),
    ([{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53}],
     [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}], []),
    (["a", "b"], ["b", "a"], ["x[0]", "x[1]"])])
def test_differences(want: Any, have: Any, expected: list[str]) -> None:
    assert compare.differences(want, have, "x") == expected


def test_what_is_in_our_tree_has_our_value_however_it_is_written() -> None:
    odd = {"replicas": "whatever", "containers": [{"name": "a", "image": "rewritten", "ports": []}]}
    assert compare.drifted(MANIFEST, live(odd, entry(TREE))) == []


def named(*names: str, **values: str) -> list[dict[str, Any]]:
    return [{"name": name, **({"value": values[name]} if name in values else {})} for name in names]


@pytest.mark.parametrize(("part", "want", "have", "drift"), [
    ("initContainers", named("a", "b", "c"), named("b", "a", "c"), True),
    ("initContainers", named("a", "b"), named("a", "injected", "b"), False),
    ("rules", named("a", "b"), named("b", "a"), True),
    ("containers", named("a", "b"), named("b", "a"), False),
    ("env", named("A", "B"), named("B", "A"), False),
    ("env", named("A", "B", B="x$(A)"), named("B", "A", B="x$(A)"), True),
    ("env", named("A", "B", "C", B="$(A)"), named("C", "A", "X", "B", B="$(A)", X="$(A)"), False),
    ("env", named("A", "B", A="$(B)"), named("B", "A", A="$(B)"), True),
    ("env", named("A", "B", B="$$(A) $(MISSING)"), named("B", "A", B="$$(A) $(MISSING)"), False),
    ("env", named("A", "B", B="$(A)"), named("B", B="$(A)"), False),
])
def test_order_counts_where_it_means_something(
        part: str, want: list[Any], have: list[Any], drift: bool) -> None:
    """Nobody owns the order: init containers run in this order, and so are values resolved that refer to others."""
    tree = {"f:spec": {f"f:{part}": {key(name=item["name"]): {".": {}, "f:name": {}, "f:value": {}} for item in want}}}
    manifest = {**MANIFEST, "spec": {part: want}}
    assert compare.drifted(manifest, live({part: have}, entry(tree))) == ([f"spec.{part}"] if drift else [])
    if len(want) == len(have):
        assert compare.differences(want, have, part) == ([part] if drift else [])


def test_what_has_left_our_tree_is_compared() -> None:
    left = {"f:spec": {"f:replicas": {}, "f:containers": {'k:{"name":"a"}': {".": {}, "f:name": {}}}}}
    other = {"replicas": 2, "containers": [{"name": "a", "image": "evil", "ports": [{"containerPort": 80}]}]}
    assert compare.drifted(MANIFEST, live(other, entry(left))) == ["spec.containers[0].image"]
    assert compare.drifted(MANIFEST, live(SPEC, entry(left))) == []


def test_without_any_record_all_is_compared() -> None:
    assert compare.drifted(MANIFEST, live({"replicas": 3})) == ["spec.replicas", "spec.containers"]


def test_foreign_fields_by_manager() -> None:
    added = {"f:metadata": {"f:labels": {"f:x": {}}}, "f:status": {"f:replicas": {}}, "f:spec": {
        "f:replicas": {}, "f:paused": {}, "f:containers": {
            'k:{"name":"a"}': {"f:image": {}, "f:env": {".": {}, 'k:{"name":"B"}': {".": {}, "f:name": {}}}}}}}
    seen = live(SPEC, entry(TREE), entry(added, "kubectl-edit", "Update"),
                entry({"f:spec": {"f:minReadySeconds": {}}}, "hpa", "Update", subresource="scale"))
    found = field_owners.foreign(seen)
    assert list(found) == ["kubectl-edit"]
    assert field_owners.paths(found["kubectl-edit"]) == ["spec.paused", "spec.containers[name=a].env[name=B]"]


def test_taking_over_moves_exactly_what_was_added() -> None:
    theirs = {"f:metadata": {"f:labels": {"f:x": {}}}, "f:spec": {"f:replicas": {}, "f:paused": {}}}
    scale = entry({"f:spec": {"f:minReadySeconds": {}}}, "hpa", "Update", subresource="scale")
    own, edited, kept = field_owners.with_our_fields(live(SPEC, entry(TREE), entry(theirs, "edit", "Update"), scale))
    assert own["fieldsV1"]["f:spec"]["f:paused"] == {} and own["manager"] == "gpuops.nvidia"
    assert edited["fieldsV1"] == {"f:metadata": {"f:labels": {"f:x": {}}}, "f:spec": {"f:replicas": {}}}
    assert kept == scale
    again = live(SPEC, own, edited, kept)
    assert field_owners.foreign(again) == {}


def key(**keys: Any) -> str:
    return "k:" + json.dumps(keys, separators=(",", ":"))


OWNED: field_owners.Tree = {"f:env": {key(name="A"): {".": {}, "f:name": {}}}, "f:probe": {"f:period": {}},
                            "f:tolerations": {}, "f:volumes": {key(name="v"): {".": {}, "f:name": {}}}, "f:data": {}}


@pytest.mark.parametrize(("want", "have", "theirs", "after"), [
    ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "valueFrom": {"fieldRef": {"path": "x"}}}]},
     {"f:env": {key(name="A"): {"f:valueFrom": {".": {}, "f:fieldRef": {}}}}}, {"env": [{"name": "A", "value": "1"}]}),
    ({"volumes": [{"name": "v", "hostPath": {"path": "/run"}}]},
     {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}, {"name": "w", "emptyDir": {}}]},
     {"f:volumes": {key(name="v"): {"f:emptyDir": {"f:medium": {}}}, key(name="w"): {".": {}, "f:name": {}}}},
     {"volumes": [{"name": "v", "hostPath": {"path": "/run"}}]}),
    ({"probe": {"period": 5, "exec": {"command": ["a", "b"]}}},
     {"probe": {"period": 5, "timeout": 1, "httpGet": {"port": 80, "scheme": "HTTP"}}},
     {"f:probe": {"f:httpGet": {".": {}, "f:port": {}}}},
     {"probe": {"period": 5, "timeout": 1, "exec": {"command": ["a", "b"]}}}),
    ({"tolerations": [{"key": "a", "operator": "Exists"}]},
     {"tolerations": [{"key": "a", "operator": "Equal", "value": "x"}]}, {"f:tolerations": {}},
     {"tolerations": [{"key": "a", "operator": "Exists"}]}),
    ({"data": {"a": "1"}}, {"binary": {"a": "eA=="}}, {"f:binary": {".": {}, "f:a": {}}}, {"data": {"a": "1"}}),
    ({"emptyDir": {}}, {"emptyDir": {"medium": "Memory"}}, {"f:emptyDir": {"f:medium": {}}}, {"emptyDir": {}}),
])
def test_what_a_repair_leaves_is_ours_and_what_nobody_owns(
        want: dict[str, Any], have: dict[str, Any], theirs: field_owners.Tree, after: dict[str, Any]) -> None:
    """A field that cannot exist together with ours is removed; defaults of the server stay."""
    entries = entry({"f:spec": OWNED}), entry({"f:spec": theirs}, "edit", "Update")
    after = {**after, "address": "10.1.2.3"}
    repaired = field_owners.repaired({**MANIFEST, "spec": want}, live({**have, "address": "10.1.2.3"}, *entries))
    assert repaired["spec"] == after


def test_an_entry_with_nothing_left_goes() -> None:
    entries = field_owners.with_our_fields(live(SPEC, entry({"f:spec": {"f:paused": {}}}, "edit", "Update")))
    assert [one["manager"] for one in entries] == ["gpuops.nvidia"]


def test_a_restart_by_kubectl_is_not_drift_but_what_comes_with_it_is() -> None:
    stamp = {"f:kubectl.kubernetes.io/restartedAt": {}}
    tree = {"f:spec": {"f:template": {"f:metadata": {"f:annotations": {".": {}, **stamp}}}}}
    assert field_owners.foreign(live(SPEC, entry(TREE), entry(tree, "kubectl-rollout", "Update"))) == {}
    tree["f:spec"]["f:template"]["f:metadata"]["f:annotations"]["f:x"] = {}
    found = field_owners.foreign(live(SPEC, entry(TREE), entry(tree, "kubectl-edit", "Update")))
    assert field_owners.paths(found["kubectl-edit"]) == ["spec.template.metadata.annotations.x"]


def test_before_shows_no_defaults_and_our_spelling() -> None:
    want = {**MANIFEST, "spec": {"replicas": 2, "cpu": "1000m"}}
    tree = {"f:spec": {"f:replicas": {}, "f:cpu": {}}}
    have = live({"replicas": 3, "cpu": "1", "paused": True, "default": "x"}, entry(tree),
                entry({"f:spec": {"f:paused": {}}}, "edit", "Update"))
    before, after = diff.pair(want, have)
    assert before["spec"] == {"replicas": 3, "cpu": "1000m", "paused": True}
    assert after["spec"] == {"replicas": 2, "cpu": "1000m"}
    assert before["metadata"] == after["metadata"] == {"name": "x", "namespace": "y"}
    assert diff.pair(None, have)[1] == {} and diff.pair(want, None)[0] == {}


def test_what_the_server_would_fill_in_again_is_no_difference() -> None:
    """A client that writes whole objects also owns defaults; a value that differs from the default counts."""
    want = {**MANIFEST, "spec": {"replicas": 2}}
    tree = {"f:spec": {"f:schedulerName": {}, "f:securityContext": {}, "f:restartPolicy": {}}}
    have = live({"replicas": 2, "schedulerName": "default-scheduler", "securityContext": {}, "restartPolicy": "Never"},
                entry(tree, "operator", "Update"))
    assert diff.pair(want, have)[0]["spec"] == {"replicas": 2, "restartPolicy": "Never"}


BLOCK = "-----BEGIN PRIVATE KEY-----\nk9\n-----END PRIVATE KEY-----"


def test_secrets_in_variables_and_addresses_are_hidden() -> None:
    """Only the fact that they differ is shown."""
    def item(**values: str) -> dict[str, Any]:
        return {**MANIFEST, "spec": {"env": [{"name": name, "value": value} for name, value in values.items()]}}

    def shown(side: dict[str, Any]) -> dict[str, str]:
        return {one["name"]: one["value"] for one in side["spec"]["env"]}

    plain = {"PORT": "80", "AT": "https://me@example.com"}
    more = {"JWT": "k6", "REGISTRY_AUTH": "k7", "SIGNED": "https://m/x?sig=k8", "PEM": BLOCK, "REQUIRE_AUTH": "true"}
    have = item(**plain, NGC_API_KEY="k1", PROXY="http://me:k2@proxy:3128", SAME_TOKEN="k3", SECRET_NAME="s", **more)
    want = item(**plain, NGC_API_KEY="k4", PROXY="http://me:k5@proxy:3128", SAME_TOKEN="k3", SECRET_NAME="s", **more)
    have["metadata"] = {**have["metadata"], "managedFields": [entry({"f:spec": {"f:env": {}}})]}
    common = {"PORT": "80", "AT": "https://(hidden)@example.com", "SAME_TOKEN": "(hidden)", "SECRET_NAME": "s",
              "JWT": "(hidden)", "REGISTRY_AUTH": "(hidden)", "SIGNED": "https://m/x?(hidden)",
              "PEM": "-----BEGIN PRIVATE KEY-----(hidden)-----END PRIVATE KEY-----", "REQUIRE_AUTH": "true"}
    expected = {**common, "NGC_API_KEY": "(hidden, it differs)", "PROXY": "http://(hidden, it differs)@proxy:3128"}
    assert [shown(side) for side in diff.pair(want, have)] == [expected, expected]
    assert shown(diff.pair(want, None)[1]) == {**common, "NGC_API_KEY": "(hidden)",
                                               "PROXY": "http://(hidden)@proxy:3128"}


@pytest.mark.parametrize(("kind", "copy", "secret"), [
    ("Deployment", {"env": [{"name": "JWT", "value": "S3CRET"}]}, True),
    ("Deployment", {"env": [{"name": "AT", "value": "https://me:S3CRET@m"}]}, True),
    ("Deployment", {"env": [{"name": "PORT", "value": "shown"}]}, False),
    ("Secret", {"data": {"a": "S3CRET"}}, True)])
def test_the_copy_that_kubectl_keeps_shows_no_secret(kind: str, copy: dict[str, Any], secret: bool) -> None:
    last = "kubectl.kubernetes.io/last-applied-configuration"
    have = live({"replicas": 2}, entry({"f:metadata": {"f:annotations": {".": {}, f"f:{last}": {}}}}, "kubectl"))
    have = {**have, "kind": kind, "metadata": {**have["metadata"], "annotations": {last: json.dumps(copy)}}}
    before, _after = diff.pair({**MANIFEST, "kind": kind}, have)
    assert before["metadata"]["annotations"] == {last: "(hidden, it differs)" if secret else json.dumps(copy)}


def test_scripts_are_blocks() -> None:
    assert diff.text({"data": {"run.sh": "#!/bin/sh\nset -e\n"}}) == "data:\n  run.sh: |\n    #!/bin/sh\n    set -e\n"
    assert diff.text({}) == ""


def test_a_manifest_that_changed_is_compared_by_value() -> None:
    want = {**MANIFEST, "spec": {**SPEC, "replicas": 3}}
    assert compare.changed(want, live(SPEC, entry(TREE))) == ["spec.replicas"]


def test_a_mapping_that_has_lost_its_fields_is_no_leaf() -> None:
    """In a resource without a schema, a client that changes the only field of spec leaves us C(f:spec) without
    content."""
    rules = {"apiVersion": "m/v1", "kind": "PrometheusRule", "metadata": {"name": "x"},
             "spec": {"groups": [{"name": "a", "rules": [{"alert": "A"}]}]}}
    theirs = entry({"f:spec": {"f:groups": {}}}, "kubectl-edit", "Update")
    have = {**live({"groups": [{"name": "a", "rules": []}]}, entry({"f:spec": {}}), theirs), "kind": "PrometheusRule"}
    assert compare.drifted(rules, have) == ["spec.groups[0].rules"]
    assert field_owners.foreign(have) == {"kubectl-edit": {"f:spec": {"f:groups": {}}}}


def test_what_is_added_inside_an_empty_mapping_is_foreign() -> None:
    ours = {"f:spec": {"f:emptyDir": {}}}
    have = live({"emptyDir": {"medium": "Memory"}}, entry(ours), entry(
        {"f:spec": {"f:emptyDir": {"f:medium": {}}}}, "kubectl-patch", "Update"))
    assert field_owners.foreign(have) == {"kubectl-patch": {"f:spec": {"f:emptyDir": {"f:medium": {}}}}}
    assert field_owners.foreign(live({"emptyDir": {}}, entry(ours), entry(ours, "kubectl-patch", "Update"))) == {}


@pytest.mark.parametrize("value", [
    "1e30000000", "1e-30000000", "1e1000", "9" * 5000, "1" + "0" * 200 + "k", ".", "", "\u0663", "1Gi\n", "NaN",
    float("nan"), float("inf"), True, None, [], {}, b"1"])
def test_what_is_no_quantity_or_beyond_all(value: Any) -> None:
    """A quantity in the object of another owner must not take unlimited time."""
    assert compare.quantity(value) is None


@pytest.mark.parametrize(("value", "number"), [
    (3, 3), (0.5, Fraction(1, 2)), ("+1.5", Fraction(3, 2)), ("-2Ki", -2048), (".5k", 500), ("2E", 2 * 10**18),
    ("2E3", 2000), ("1e-3", Fraction(1, 1000)), (2**70, 2**70), (1e300, 10**300)])
def test_quantities(value: Any, number: Any) -> None:
    assert compare.quantity(value) == number

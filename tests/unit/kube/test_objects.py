# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import base64
import datetime
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import files


def item(kind: str = "ConfigMap", name: str = "x", namespace: str = "ns", **more: Any) -> dict[str, Any]:
    version = {"DaemonSet": "apps/v1", "RuntimeClass": "node.k8s.io/v1"}.get(kind, "v1")
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **place}, **more}


def test_marks_and_order() -> None:
    found = objects.wanted({"demo": [item("DaemonSet"), item(), item("Namespace", "ns", "")]})
    assert [one.kind.kind for one in found] == ["Namespace", "ConfigMap", "DaemonSet"]
    metadata = found[1].manifest["metadata"]
    assert metadata["labels"] == {"app.kubernetes.io/managed-by": "gpuops.nvidia", "gpuops.nvidia/component": "demo"}
    assert len(metadata["annotations"]["gpuops.nvidia/applied"]) == 64
    assert found[0].component == objects.SHARED


def test_the_mark_follows_what_is_wanted() -> None:
    def mark(one: dict[str, Any]) -> str:
        annotations = objects.wanted({"demo": [one]})[0].manifest["metadata"]["annotations"]
        return str(annotations["gpuops.nvidia/applied"])

    assert mark(item(data={"a": "1", "b": "2"})) == mark(item(data={"b": "2", "a": "1"}))
    assert mark(item(data={"a": "1"})) != mark(item(data={}))


def test_plain_text_of_secrets_is_encoded() -> None:
    secret = objects.wanted({"demo": [item("Secret", stringData={"a": "b"}, data={"c": "ZA=="})]})[0].manifest
    assert secret["data"] == {"a": base64.b64encode(b"b").decode(), "c": "ZA=="} and "stringData" not in secret


def test_two_components_may_want_the_same() -> None:
    assert len(objects.wanted({"a": [item()], "b": [item()]})) == 1
    with pytest.raises(InputError, match="a and b have different manifests of ConfigMap ns/x"):
        objects.wanted({"a": [item()], "b": [item(data={"a": "1"})]})


@pytest.mark.parametrize(("manifest", "message"), [
    ({}, "is not a manifest"),
    ({"metadata": {"name": "x"}, "kind": "ConfigMap"}, "has no apiVersion"),
    ({**item(), "kind": "Widget"}, "support the kind Widget of v1"),
    ({**item(), "kind": "DaemonSet"}, "apiVersion: apps/v1"),
    ({**item(), "metadata": {"namespace": "x"}}, "has no name"),
    (item(namespace=""), "needs a namespace"),
    (item(data={"day": datetime.date(2026, 1, 1)}), "only strings, numbers, booleans, lists and mappings"),
    (item("RuntimeClass"), "cannot have a namespace"),
    *((item(name=name), "is not a valid name") for name in ("x/../../y", "..", "a%2fb", "a b", "a\n")),
    (item(namespace="../x"), "is not a valid namespace")])
def test_wrong_manifests_are_named(manifest: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        objects.wanted({"demo": [item(), manifest]})
    assert caught.value.details["path"]


@pytest.mark.parametrize("component", ["../x", "..", "/etc", "a/b", "", "a" * 64])
def test_a_component_is_the_value_of_a_label(component: str) -> None:
    with pytest.raises(InputError, match="is not a valid name of a component"):
        objects.wanted({component: [item()]})


def test_paths_of_kinds() -> None:
    assert kinds.find("v1", "Node").path("gpu01") == "/api/v1/nodes/gpu01"
    assert kinds.find("apps/v1", "DaemonSet").path("x", "ns") == "/apis/apps/v1/namespaces/ns/daemonsets/x"
    assert kinds.find("apps/v1", "DaemonSet").path() == "/apis/apps/v1/daemonsets"
    for name, namespace in (("x/../y", "ns"), ("..", "ns"), ("x", "../kube-system"), ("", "ns")):
        with pytest.raises(InputError, match="is not a valid name of a DaemonSet or of its namespace"):
            kinds.find("apps/v1", "DaemonSet").path(name, namespace)


def test_files(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    wanted = objects.wanted({"demo": [item("Secret", stringData={"a": "hush"}), item("Namespace", "ns", ""),
                                      item(data={"a": "1"})]})
    preview = files.write(str(folder), wanted, check=True)
    assert preview["changed"] and not folder.exists()
    done = files.write(str(folder), wanted, check=False)
    assert done["plan"] == preview["plan"] and done["diff"] == preview["diff"]
    assert "hush" not in str(done) and base64.b64encode(b"hush").decode() not in str(done)
    index = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert index["resources"] == ["cluster/01-namespace-ns.yaml", "demo/01-secret-x.yaml", "demo/02-configmap-x.yaml"]
    read = [yaml.safe_load((folder / name).read_text()) for name in index["resources"]]
    assert read == [one.manifest for one in wanted]
    assert stat.S_IMODE((folder / "demo/01-secret-x.yaml").stat().st_mode) == 0o600
    assert not files.write(str(folder), wanted, check=False)["changed"]
    (folder / "demo" / "mine.txt").write_text("mine")
    fewer = files.write(str(folder), wanted[:1], check=False)
    assert {step["action"] for step in fewer["plan"]} == {"remove file", "write file"}
    left = sorted(path.name for path in folder.rglob("*.*"))
    assert left == ["01-namespace-ns.yaml", "kustomization.yaml", "mine.txt"]
    files.write(str(folder), [], check=False)
    assert [path.name for path in folder.rglob("*.*")] == ["mine.txt"]
    assert not files.write(str(folder), [], check=False)["changed"]


def test_a_run_for_one_component_leaves_the_files_of_others(tmp_path: Path) -> None:
    both = objects.wanted({"nfd": [item(name="first")], "dcgm": [item(name="second")]})
    files.write(str(tmp_path), both, check=False)
    before = (tmp_path / files.INDEX).read_text()
    assert not files.write(str(tmp_path), both[:1], check=False, components=["nfd"])["changed"]
    assert (tmp_path / files.INDEX).read_text() == before
    files.write(str(tmp_path), [], check=False, components=["nfd"])
    assert [path.parent.name for path in tmp_path.glob("*/*")] == ["dcgm"]
    assert "nfd" not in (tmp_path / files.INDEX).read_text()
    files.write(str(tmp_path), both[:1], check=False, components=["nfd"])
    assert (tmp_path / files.INDEX).read_text() == before


def test_a_diff_shows_no_secret(tmp_path: Path) -> None:
    """The file has the variables of the pod as the pod needs them. Without a secret, the texts are shown unchanged."""
    def pod(**variables: str) -> dict[str, Any]:
        return item(env=[{"name": name, "value": value} for name, value in variables.items()])

    def shown(made: dict[str, Any]) -> list[dict[str, str]]:
        found = files.write(str(folder), objects.wanted({"demo": [made]}), check=False)["diff"]
        return [one for one in found if one["before_header"].endswith("x.yaml")]

    folder, path = tmp_path / "out", tmp_path / "out/demo/01-configmap-x.yaml"
    assert shown(pod(PORT="80"))[0]["after"] == path.read_text()
    text = path.read_text()
    change, = shown(pod(PORT="81", NGC_API_KEY="hush1", PROXY="http://me:hush2@p.example"))
    assert "hush" not in str(change) and (change["before"], "hush1" in path.read_text()) == (text, True)
    assert "'81'" in change["after"] and "http://(hidden, it differs)@p.example" in change["after"]
    change, = shown(pod(PORT="81", NGC_API_KEY="hush3", PROXY="http://me:hush2@p.example"))
    assert "hush" not in str(change) and change["before"] != text and "value: (hidden, it differs)" in change["after"]
    path.write_text("a: [hush")
    assert "hush" not in str(shown(pod(PORT="80")))


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [a.yaml]\n")
    with pytest.raises(InputError, match="is not ours"):
        files.write(str(tmp_path), objects.wanted({"demo": [item()]}), check=False)


@pytest.mark.parametrize("check", [True, False])
def test_a_file_is_no_folder(tmp_path: Path, check: bool) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"file/kustomization.yaml cannot be read or written: Not a directory"):
        files.write(str(tmp_path / "file"), objects.wanted({"demo": [item()]}), check=check)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("inside", ["demo", "demo/01-configmap-x.yaml", "kustomization.yaml"])
def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path, inside: str) -> None:
    """Others may be able to write to the repository that contains the folder."""
    outside, link = tmp_path / "outside", tmp_path / "out" / inside
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(InputError, match="by a link, which is outside of"):
        files.write(str(tmp_path / "out"), objects.wanted({"demo": [item()]}), check=False)
    assert not outside.exists() and sorted(tmp_path.rglob("*.yaml")) == [link][:inside.endswith(".yaml")]


@pytest.mark.parametrize("name", ["../mine.yaml", "demo/../../mine.yaml", "{folder}/mine.yaml"])
def test_a_list_of_files_does_not_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    """The index of an earlier run decides which files are removed; others may have written to it."""
    folder, mine = tmp_path / "out", tmp_path / "mine.yaml"
    mine.write_text("a: 1")
    files.write(str(folder), objects.wanted({"demo": [item()]}), check=False)
    index = folder / "kustomization.yaml"
    index.write_text(index.read_text() + f"- {name.format(folder=tmp_path)}\n")
    assert "mine" in index.read_text() and yaml.safe_load(index.read_text())["resources"][1:]
    files.write(str(folder), objects.wanted({"demo": [item()]}), check=False)
    assert mine.exists() and "mine" not in index.read_text()


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    assert files.write(str(tmp_path / "out"), objects.wanted({"demo": [item()]}), check=False)["changed"]
    assert (tmp_path / "real" / "demo" / "01-configmap-x.yaml").exists()

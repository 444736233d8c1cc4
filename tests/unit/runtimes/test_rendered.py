# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that state rendered of container_toolkit returns for each runtime."""

from __future__ import annotations

import json
import typing as t
from types import SimpleNamespace

import pytest
import tomllib
from ansible_collections.gpuops.nvidia.plugins.action.container_toolkit import ActionModule
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import containerd, crio, registry, settings_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V3
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.rendered import rendered

PROGRAM = "/usr/bin/nvidia-container-runtime"
NAMES = ("containerd", "crio", "docker", "k0s", "k3s", "podman", "rke2")


def files(name: str, **options: t.Any) -> dict[str, str]:
    wish = Options(**{"set_as_default": True, "cdi": True, "mode": "auto", "runtime": [name], "state": "rendered",
                      **options})
    result = rendered(wish)
    assert result["runtime"] == name
    return {file["path"]: file["content"] for file in result["rendered"]}


def test_containerd() -> None:
    found = files("containerd", nri=True)
    assert list(found) == [containerd.DROP_IN, "/etc/containerd/config.toml"]
    data = tomllib.loads(found[containerd.DROP_IN])
    table = data["plugins"][V3]
    assert (data["version"], table["enable_cdi"], table["containerd"]["default_runtime_name"]) == (3, True, "nvidia")
    assert table["containerd"]["runtimes"] == {"nvidia": {"runtime_type": "io.containerd.runc.v2",
                                                          "options": {"BinaryName": PROGRAM}}}
    assert data["plugins"]["io.containerd.nri.v1.nri"] == {"disable": False}
    assert tomllib.loads(found["/etc/containerd/config.toml"]) == {
        "version": 3, "imports": ["/etc/containerd/conf.d/99-gpuops-nvidia*.toml"]}


def test_paths_of_files() -> None:
    found = files("containerd", config_path="/srv/c.toml", drop_in_path="/srv/d/ours.toml")
    assert list(found) == ["/srv/d/ours.toml", "/srv/c.toml"] and "/srv/d/ours*.toml" in found["/srv/c.toml"]
    with pytest.raises(InputError, match="the path is not absolute"):
        files("containerd", drop_in_path="ours.toml")
    with pytest.raises(HostError, match="not an absolute path"):
        files("containerd", config_path="c.toml")
    with pytest.raises(InputError, match="CRI-O does not read this file"):
        files("crio", drop_in_path="/srv/ours.conf")


def test_docker() -> None:
    found = files("docker", mode="cdi")
    program = {"path": f"{PROGRAM}.cdi"}
    assert json.loads(found["/etc/docker/daemon.json"]) == {
        "runtimes": {"nvidia": program, "nvidia-cdi": program}, "default-runtime": "nvidia"}


def test_crio() -> None:
    table = tomllib.loads(files("crio", set_as_default=False)[crio.DROP_IN])["crio"]["runtime"]
    assert table == {"runtimes": {"nvidia": {"runtime_path": PROGRAM, "runtime_type": "oci"}}}


def test_k3s_declares_the_runtime_itself() -> None:
    assert files("k3s", set_as_default=False) == {}
    assert list(files("rke2")) == ["/etc/rancher/rke2/config.yaml.d/99-gpuops-nvidia.yaml"]
    assert list(files("k3s", set_as_default=False, mode="legacy")) == [
        "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-gpuops-nvidia.toml"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["auto", "cdi", "legacy"])
def test_settings_are_one_more_file(name: str, mode: str) -> None:
    bare = files(name, mode=mode)
    found = files(name, mode=mode, settings={"nvidia-container-runtime": {"mode": "cdi"}, "features.gds": True})
    text = found.pop(settings_file.FILE)
    assert tomllib.loads(text) == {"nvidia-container-runtime": {"mode": "cdi"}, "features": {"gds": True}}
    assert found == bare and settings_file.FILE not in bare


@pytest.mark.parametrize(("name", "why"), [("auto", "the runtime must be named"), ("microk8s", "own template")])
def test_a_runtime_that_cannot_be_rendered_is_refused(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        files(name)
    assert caught.value.details["allowed"] == list(NAMES)
    assert set(NAMES) | {"microk8s"} == set(registry.RUNTIMES)


def run(**arguments: t.Any) -> dict[str, t.Any]:
    """The result of a task whose host cannot be reached."""
    action = object.__new__(ActionModule)
    action._task = SimpleNamespace(args={"state": "rendered", **arguments}, check_mode=True, diff=True, async_val=0,
                                   action="container_toolkit")
    action._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))
    action._remove_tmp_path = lambda _path: None
    return t.cast("dict[str, t.Any]", action.run(None, {"inventory_hostname": "h", "hostvars": {}}))


def test_a_task_reaches_no_host() -> None:
    result = run(runtime="docker", cdi="no", set_as_default="yes", disruption="idle", nri=None)
    assert result["changed"] is False and [file["path"] for file in result["rendered"]] == ["/etc/docker/daemon.json"]
    assert set(result) == {"changed", "rendered", "runtime", "config_path", "runtime_names", "config_paths"}
    assert "no-cgroups" in run(runtime="podman", settings={"nvidia-container-cli.no-cgroups": True})["warnings"][0]


@pytest.mark.parametrize(("arguments", "words"), [
    ({"runtime": "docker", "version": "1.20.1"}, "version cannot be set with state rendered"),
    ({"runtime": "docker", "colour": "red"}, "colour cannot be set with state rendered"),
    ({"runtime": "dokcer"}, "value of runtime must be one or more of"),
    ({"runtime": "docker", "cdi": "perhaps"}, "cdi"),
    ({"runtime": "docker", "settings": {"x": 1}}, "'x' is not a known setting"), ({}, "the runtime must be named")])
def test_a_task_with_a_wrong_option_is_refused(arguments: dict[str, t.Any], words: str) -> None:
    result = run(**arguments)
    assert result["failed"] and words in result["msg"]

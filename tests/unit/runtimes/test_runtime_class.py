# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runtime class has another name and another program, in the files of each runtime."""

from __future__ import annotations

import json
import os
import pathlib
import typing as t

import pytest
import tomllib
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import read
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import runtime_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.crio import DROP_IN as CRIO_FILE
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.crio import Crio
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import Docker
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.gathered import gathered
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState, ProgramResult
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.k0s import DROP_IN as K0S_FILE
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.k0s import K0s
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.microk8s import TEMPLATE, Microk8s
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.registry import RUNTIMES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.rendered import rendered
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.played import Played

PROGRAM = "/usr/bin/nvidia-container-runtime"
OWN = {"nvidia_runtime_name": "gpu", "nvidia_runtime_path": "/opt/site/wrapper"}
DOCKER_FILE = "/etc/docker/daemon.json"
SHAPES = pathlib.Path(__file__).parent / "shapes"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"


def docker(text: str | None) -> Played:
    return Played(Docker(), "Docker version 26.1.5", DOCKER_FILE, {} if text is None else {DOCKER_FILE: text},
                  unit="docker.service", facts={"info": ProgramResult(1)})


def k0s() -> Played:
    return Played(K0s(), "", "/etc/k0s/containerd.toml", {"/etc/k0s/containerd.toml": "# k0s_managed=true\n"},
                  facts={"version": ProgramResult(0, "v1.36.0+k0s.0")})


def crio() -> Played:
    return Played(Crio(), "crio version 1.34.2", "/etc/crio/crio.conf", facts={"low_level": ProgramResult(0)})


def k3s() -> Played:
    text = (SHAPES / "distributions" / "k3s-v3-imports.toml").read_text()
    return Played(RUNTIMES["k3s"], "", f"{K3S}/config.toml", {f"{K3S}/config.toml": text}, unit="k3s-agent.service",
                  facts={"settings": ProgramResult(1)})


def classes(data: t.Any, plugin: str) -> tuple[dict[str, str], str | None]:
    table = data["plugins"][plugin]["containerd"]
    programs = {name: one["options"]["BinaryName"] for name, one in table["runtimes"].items()
                if one.get("options", {}).get("BinaryName")}
    return programs, table.get("default_runtime_name")


@pytest.mark.parametrize("version", ["1.6", "1.7", "2.2"])
def test_containerd_renames_its_class_and_is_restored(host: t.Any, version: str) -> None:
    content = (SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_bytes()
    one = host(version, content)
    former = one.shape()
    one.converge()
    assert one.converge(**OWN)
    table = one.effective()["containerd"]
    assert table["default_runtime_name"] == "gpu" and "nvidia" not in table["runtimes"]
    assert table["runtimes"]["gpu"]["options"] == {"BinaryName": "/opt/site/wrapper", "SystemdCgroup": True}
    still = one.tree()
    assert one.converge(**OWN) == [] and one.tree() == still
    one.converge("absent")
    assert one.shape() == former and one.config.read_bytes() == content


def test_a_name_that_is_no_longer_ours_is_left_to_its_new_owner(host: t.Any) -> None:
    one = host("1.7", (SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_bytes())
    one.converge()
    one.converge(**OWN)
    with one.config.open("a") as stream:
        stream.write(f'\n[plugins."{V2}".containerd.runtimes.nvidia]\nruntime_type = "io.containerd.kata.v2"\n')
    one.converge(**OWN, cdi=False)
    assert one.effective()["containerd"]["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.kata.v2"


def test_a_killed_renaming_goes_on(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = host("1.7", (SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_bytes())
    former = one.shape()
    one.converge()
    with monkeypatch.context() as patch:
        patch.setattr("ansible_collections.gpuops.nvidia.plugins.module_utils._journal.Journal.write_file",
                      lambda *_args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            one.converge(**OWN)
    assert "nvidia" in one.effective()["containerd"]["runtimes"]
    one.converge(**OWN)
    table = one.effective()["containerd"]["runtimes"]
    assert "nvidia" not in table and "gpu" in table
    one.converge("absent")
    assert one.shape() == former


def test_a_renaming_with_which_containerd_does_not_start_is_rolled_back(host: t.Any) -> None:
    one = host("1.7", (SHAPES / "05-kubeadm.1.6+1.7+2.2.toml").read_bytes())
    one.converge()
    text = one.config.read_text()
    one.bad_restart = 2
    with pytest.raises(HostError, match="former files are restored"):
        one.converge(**OWN)
    assert one.config.read_text() == text
    one.converge(**OWN)
    assert set(one.effective()["containerd"]["runtimes"]) == {"runc", "gpu"}


@pytest.mark.parametrize("text", [None, "{}", '{\n  "runtimes": {"kata": {"path": "/usr/bin/kata"}}\n}\n'])
def test_docker_renames_its_class_and_is_restored(text: str | None) -> None:
    one = docker(text)
    one.converge()
    assert one.converge(**OWN).action == "reload"
    data = json.loads(one.files[DOCKER_FILE])
    assert data["default-runtime"] == "gpu" and "nvidia" not in data["runtimes"]
    assert data["runtimes"]["gpu"] == {"path": "/opt/site/wrapper"}
    assert one.propose(**OWN).changes == []
    one.converge(**OWN, set_as_default=False)
    assert json.loads(one.files[DOCKER_FILE])["default-runtime"] == "runc"
    one.remove()
    assert one.files.get(DOCKER_FILE) == text


def test_docker_keeps_a_class_that_somebody_else_has_made_the_default() -> None:
    one = docker("{}")
    one.converge(set_as_default=False)
    one.files[DOCKER_FILE] = one.files[DOCKER_FILE].replace("{", '{"default-runtime": "nvidia", ', 1)
    one.converge(set_as_default=False, nvidia_runtime_name="gpu")
    data = json.loads(one.files[DOCKER_FILE])
    assert data["default-runtime"] == "nvidia" and set(data["runtimes"]) == {"nvidia", "gpu"}


def test_docker_waits_for_the_name() -> None:
    info = {"Runtimes": {"runc": {}, "nvidia": {}}, "DefaultRuntime": "nvidia", "LiveRestoreEnabled": False,
            "ContainersRunning": 0, "ContainersPaused": 0, "CDISpecDirs": ["/etc/cdi"]}
    one = docker("{}")
    one.facts = {"info": ProgramResult(0, json.dumps(info))}
    assert one.propose(**OWN).confirm[-2:] == ["gpu", "default=gpu"]
    one.converge(**OWN)
    assert one.propose(**OWN).due_reason == "the daemon has not read its file since it was changed"


@pytest.mark.parametrize(("make", "path"), [(crio, CRIO_FILE), (k0s, K0S_FILE)])
def test_a_drop_in_has_only_the_new_name(make: t.Callable[[], Played], path: str) -> None:
    one = make()
    one.converge()
    one.converge(**OWN)
    data = tomllib.loads(one.files[path])
    if path == CRIO_FILE:
        table = data["crio"]["runtime"]
        assert table["default_runtime"] == "gpu"
        assert {name: entry["runtime_path"] for name, entry in table["runtimes"].items()} == {
            "gpu": "/opt/site/wrapper"}
    else:
        assert classes(data, V3) == ({"gpu": "/opt/site/wrapper"}, "gpu")
    assert one.propose(**OWN).changes == []
    one.remove()
    assert path not in one.files


def test_k3s_declares_another_name_in_a_drop_in() -> None:
    one = k3s()
    drop_in = f"{K3S}/config-v3.toml.d/99-gpuops-nvidia.toml"
    setting = "/etc/rancher/k3s/config.yaml.d/99-gpuops-nvidia.yaml"
    one.converge()
    assert setting in one.files and drop_in not in one.files
    one.converge(**OWN)
    assert setting not in one.files
    assert classes(tomllib.loads(one.files[drop_in]), V3) == ({"gpu": "/opt/site/wrapper"}, "gpu")
    assert one.propose(**OWN).changes == [] and not one.propose(**OWN).due_reason
    found = one.runtime.read(one.seen())
    assert (found.default, found.classes["gpu"]) == ("gpu", "/opt/site/wrapper")
    one.converge(nvidia_runtime_path="/opt/site/wrapper")  # the detected name: its default is an option of k3s
    assert setting in one.files
    assert classes(tomllib.loads(one.files[drop_in]), V3) == ({"nvidia": "/opt/site/wrapper"}, None)
    one.files[one.config] = (SHAPES / "distributions" / "k3s-v2.toml").read_text()
    with pytest.raises(HostError, match="imports no drop-ins.*omit nvidia_runtime_name"):
        one.propose(**OWN)


def test_k3s_that_was_never_started() -> None:
    one = k3s()
    del one.files[one.config]
    one.running = False
    with pytest.raises(HostError, match="k3s has not been started yet"):
        one.propose(**OWN)


def test_microk8s_renames_the_class_in_its_template() -> None:
    text = (SHAPES / "distributions" / "microk8s-v2.toml").read_text()
    one = Played(Microk8s(), "", TEMPLATE, {TEMPLATE: text}, facts={"version": ProgramResult(0, "containerd v2.1.3")})
    assert "nvidia-container-runtime" not in one.runtime.read(one.seen()).classes  # that of every MicroK8s
    one.converge()
    proposal = one.converge(**OWN)
    assert proposal.confirm[2] == "/opt/site/wrapper"
    programs, default = classes(tomllib.loads(one.files[TEMPLATE]), V2)
    assert (programs["gpu"], default, "nvidia" in programs) == ("/opt/site/wrapper", "gpu", False)
    one.remove()
    assert one.files[TEMPLATE] == text


def test_a_mode_keeps_the_name_of_its_own_class() -> None:
    one = docker("{}")
    one.converge(nvidia_runtime_name="gpu", mode="cdi")
    assert json.loads(one.files[DOCKER_FILE])["runtimes"] == {
        "gpu": {"path": f"{PROGRAM}.cdi"}, "nvidia-cdi": {"path": f"{PROGRAM}.cdi"}}


@pytest.mark.parametrize("make", [
    lambda: docker('{"runtimes": {"gpu": {"path": "/usr/bin/kata"}}}'),
    lambda: Played(Crio(), "crio version 1.34.2", "/etc/crio/crio.conf", {
        "/etc/crio/crio.conf": '[crio.runtime.runtimes.gpu]\nruntime_path = "/usr/bin/kata"\n'},
        facts={"low_level": ProgramResult(0)}),
], ids=["docker", "crio"])
def test_a_name_of_another_runtime_is_refused(make: t.Callable[[], Played]) -> None:
    with pytest.raises(InputError, match=r"nvidia_runtime_name: .* which runs /usr/bin/kata\. Choose another"):
        make().propose(**OWN)
    vendor = docker('{"runtimes": {"gpu": {"path": "nvidia-container-runtime"}}}')  # as nvidia-ctk writes it
    assert vendor.propose(nvidia_runtime_name="gpu", set_as_default=False, cdi=False).changes == []


def test_the_class_of_another_tool_is_not_copied(host: t.Any) -> None:
    text = (f'version = 2\n[plugins."{V2}".containerd]\ndefault_runtime_name = "gpu"\n'
            f'[plugins."{V2}".containerd.runtimes.gpu]\nruntime_type = "io.containerd.runc.v2"\n'
            f'privileged_without_host_devices = true\n[plugins."{V2}".containerd.runtimes.gpu.options]\n'
            f'BinaryName = "{PROGRAM}"\n[plugins."{V2}".containerd.runtimes.runc]\n'
            'runtime_type = "io.containerd.runc.v2"\n')
    one = host("1.7", text.encode())
    one.converge()
    assert not one.effective()["containerd"]["runtimes"]["nvidia"].get("privileged_without_host_devices")


@pytest.mark.parametrize(("name", "path", "mode", "error"), [
    ("Nvidia", None, "auto", "nvidia_runtime_name: it is not a name"), ("a_b", None, "auto", "not a name"),
    ("-a", None, "auto", "not a name"), ("a" * 64, None, "auto", "not a name"), ("", None, "auto", "not a name"),
    ("a\n", None, "auto", "not a name"), ("runc", None, "auto", "reserved"), ("nvidia-cdi", None, "cdi", "reserved"),
    ("gpu", "bin/x", "auto", "nvidia_runtime_path: the path is not absolute"),
    ("gpu", "/x", "legacy", "nvidia_runtime_path: mode legacy also sets the program"),
])
def test_invalid_names_and_paths(name: str, path: str | None, mode: str, error: str) -> None:
    with pytest.raises(InputError, match=error) as caught:
        runtime_names.check_nvidia_runtime(name, path, mode)
    details = caught.value.details
    assert details["value"] == (path or name) and details["allowed"] and caught.value.hint
    runtime_names.check_nvidia_runtime("nvidia", "/x", "auto")
    runtime_names.check_nvidia_runtime("a" * 63, None, "cdi")


def test_a_program_that_the_host_does_not_have(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "x"
    ask: dict[str, t.Any] = {"state": "present", "nvidia_runtime_path": str(program)}
    with pytest.raises(InputError, match="nvidia_runtime_path: the program does not exist"):
        read._check_program(ask)
    program.write_text("")
    with pytest.raises(InputError, match="is not an executable file"):
        read._check_program(ask)
    with pytest.raises(InputError, match="is not an executable file"):
        read._check_program({**ask, "nvidia_runtime_path": str(tmp_path)})
    os.chmod(program, 0o755)
    read._check_program(ask)
    for more in ({"state": "absent", "nvidia_runtime_path": "/none"}, {"nvidia_runtime_path": None},
                 {"nvidia_runtime_path": PROGRAM}):
        read._check_program({**ask, **more})


def test_gathered_and_rendered() -> None:
    result = rendered(Options(True, True, "auto", runtime=["docker"], **OWN))
    data = json.loads(result["rendered"][0]["content"])
    assert (data["default-runtime"], data["runtimes"]) == ("gpu", {"gpu": {"path": "/opt/site/wrapper"}})

    one = docker("{}")
    one.converge(**OWN)
    specification = {"path": None, "devices": [], "driver": None, "management": False, "unit": False}
    packages = HostState().packages._replace(version="1.20.1")

    def gather() -> dict[str, t.Any]:
        host = HostState({"docker": one.seen()}, packages=packages)
        object.__setattr__(host.journal, "files", one.journal().files)
        return gathered(host, Options(False, True, "auto"), specification, {})

    found = gather()
    assert {**found["gathered"], **OWN, "set_as_default": True} == found["gathered"]
    row = found["runtimes"][0]
    assert (row["configured"], row["is_default"], row["classes"]) == (True, True, {"gpu": "/opt/site/wrapper"})
    one.written, one.before, one.parts = {}, {}, set()
    one.files[DOCKER_FILE] = '{"runtimes": {"site": {"path": "nvidia-container-runtime"}, "kata": {"path": "/k"}}}'
    found = gather()
    assert found["gathered"]["nvidia_runtime_name"] == "site" and "nvidia_runtime_path" not in found["gathered"]
    assert found["runtimes"][0]["classes"] == {"site": "nvidia-container-runtime"}

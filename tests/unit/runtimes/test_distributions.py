# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Distributions that write the file of their containerd themselves, in the form that they publish."""

from __future__ import annotations

import pathlib
import re
import typing as t
from dataclasses import replace

import pytest
import tomllib
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import owners, registry, toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options, Proposal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    FileRecord,
    HostJournal,
    HostState,
    Journal,
    ProgramResult,
    RuntimeState,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.microk8s import TEMPLATE

SHAPES = pathlib.Path(__file__).parent / "shapes" / "distributions"
PROGRAM = "/usr/bin/nvidia-container-runtime"
EMPTY = Journal()


def shape(name: str) -> str:
    return (SHAPES / name).read_text(encoding="utf-8")


class Host:
    """The view of a host by a runtime; its files are a mapping. facts: maps names to the output of commands."""

    def __init__(self, runtime: str, files: dict[str, str | None], unit: str = "", **facts: str) -> None:
        self.runtime = registry.RUNTIMES[runtime]
        self.name = runtime
        self.probe = self.runtime.probe
        self.files = dict(files)
        self.first = dict(files)
        self.unit = unit or self.probe.units[0]
        self.command = [f"/usr/local/bin/{runtime}"]
        self.facts = {name: ProgramResult(0, text) for name, text in facts.items()}
        self.kept: dict[str, t.Any] = {}
        self.default: str | None = None
        self.parts: set[str] = set()

    @property
    def config(self) -> str:
        return self.probe.config

    def seen(self) -> RuntimeState:
        names = [self.config, self.probe.drop_in, *self.files]
        if "settings" in self.probe.facts:
            self.facts["settings"] = ProgramResult(0, self._grep(*self.probe.facts["settings"][3:]))
        return RuntimeState("/usr/bin/x", self.config, self.unit, running=True, boot="yes", command=self.command,
                            files={name: self.files.get(name) for name in names if name}, facts=self.facts)

    def _grep(self, pattern: str, folder: str) -> str:
        return "".join(f"{path}:{line}\n" for path, text in self.files.items() if path.startswith(f"{folder}/")
                       for line in (text or "").splitlines() if re.search(pattern, line))

    def journal(self) -> Journal:
        records = {}
        for path, (part, after) in self.kept.items():
            now = self.files.get(path)
            is_ = "before" if now == self.first.get(path) else "ours" if now == after else "edited"
            records[path] = FileRecord(part, is_, self.first.get(path), self.name, sorted(self.parts))
        return Journal(records, self.default)

    def plan(self, **options: t.Any) -> tuple[list[tuple[str, str, str]], Proposal]:
        wish = Options(**{"set_as_default": False, "cdi": True, "mode": "auto", **options})
        return self._steps(self.runtime.propose(self.seen(), self.journal(), wish))

    def _steps(self, proposal: Proposal) -> tuple[list[tuple[str, str, str]], Proposal]:
        seen = HostState({self.name: self.seen()}, journal=HostJournal(files=self.journal().files))
        steps = toolkit_steps.runtime_steps(seen, {self.name: proposal})
        return [(step.action, step.target, step.needs) for step in steps], proposal

    def converge(self, **options: t.Any) -> list[tuple[str, str, str]]:
        steps, proposal = self.plan(**options)
        for change in proposal.changes:
            assert self.files.get(change.path) == change.before
            self.files[change.path] = change.after
            self.kept[change.path] = (change.part, change.after)
            self.default = self.default or proposal.previous_default
            self.parts |= set(proposal.parts)
        return steps

    def remove(self) -> list[tuple[str, str, str]]:
        steps, proposal = self.removal()
        for change in proposal.changes:
            self.files[change.path] = change.after
        return steps

    def removal(self) -> tuple[list[tuple[str, str, str]], Proposal]:
        return self._steps(self.runtime.propose_removal(self.seen(), self.journal()))

    def bare(self) -> dict[str, str]:
        return {path: text for path, text in self.files.items() if text is not None}


# -- k3s and RKE2

K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
K3S_OURS = "/etc/rancher/k3s/config.yaml.d/99-gpuops-nvidia.yaml"


@pytest.mark.parametrize(("unit", "needs"), [("k3s.service", "idle"), ("k3s-agent.service", "never")])
def test_k3s_is_restarted_until_it_has_found_the_toolkit(unit: str, needs: str) -> None:
    host = Host("k3s", {K3S: shape("k3s-v3-bare.toml")}, unit)
    steps, proposal = host.plan()
    assert steps == [("restart service", unit, needs)]
    assert proposal.confirm == ["grep", "-qF", "nvidia-container-runtime", K3S]
    assert "nvidia" in proposal.due_reason
    confirm = host.plan(set_as_default=True)[1].confirm
    assert confirm == ["grep", "-qE", "default_runtime_name = [\"']nvidia[\"']", K3S]
    host.files[K3S] = shape("k3s-v3.toml")
    assert host.plan(set_as_default=True)[1].confirm == confirm
    assert host.plan()[0] == []
    assert host.remove() == []


@pytest.mark.parametrize("name", ["k3s-v3.toml", "k3s-v2.toml", "k3s-v3-imports.toml"])
def test_k3s_default_is_its_own_option(name: str) -> None:
    host = Host("k3s", {K3S: shape(name), "/etc/rancher/k3s/config.yaml": "node-name: a\n"}, "k3s-agent.service")
    assert host.plan()[0] == []
    assert host.converge(set_as_default=True) == [
        ("write file", K3S_OURS, "never"), ("restart service", "k3s-agent.service", "never")]
    assert yaml.safe_load(host.files[K3S_OURS] or "") == {"default-runtime": "nvidia"}
    # It runs on, for the default is not in the generated file: the restart has yet to come.
    assert host.plan(set_as_default=True)[0] == [("restart service", "k3s-agent.service", "never")]
    head = f'[plugins."{V2}".containerd]\n' if name == "k3s-v2.toml" else f"[plugins.'{V3}'.containerd]\n"
    assert head in (host.files[K3S] or "")
    host.files[K3S] = (host.files[K3S] or "").replace(head, f'{head}  default_runtime_name = "nvidia"\n')
    assert host.plan(set_as_default=True)[0] == []
    assert host.remove() == [("remove file", K3S_OURS, "never"), ("restart service", "k3s-agent.service", "never")]
    assert K3S_OURS not in host.bare()


def test_k3s_default_given_by_the_user_stays_theirs() -> None:
    generated = shape("k3s-v3.toml").replace(f"[plugins.'{V3}'.containerd]\n",
                                             f"[plugins.'{V3}'.containerd]\n  default_runtime_name = 'nvidia'\n")
    host = Host("k3s", {K3S: generated, "/etc/rancher/k3s/config.yaml": "default-runtime: nvidia # GPUs\n"})
    assert host.plan(set_as_default=True)[0] == []
    assert host.plan(set_as_default=False)[0] == []


def test_k3s_last_of_the_settings_wins_and_its_token_stays_there() -> None:
    host = Host("k3s", {K3S: shape("k3s-v3.toml"), "/etc/rancher/k3s/config.yaml": "default-runtime: nvidia\n",
                        "/etc/rancher/k3s/config.yaml.d/50-mine.yaml": "token: s3cret\ndefault-runtime: crun\n",
                        "/etc/rancher/k3s/registries.yaml": "default-runtime: nvidia\n"})
    assert host.converge(set_as_default=True)[0] == ("write file", K3S_OURS, "never")
    assert "s3cret" not in host.seen().facts["settings"].stdout
    assert not any(path.endswith("config.yaml") for path in host.probe.other_files)


def test_k3s_flag_wins_over_files() -> None:
    host = Host("k3s", {K3S: shape("k3s-v3.toml")}, "k3s.service")
    host.command += ["server", "--default-runtime=crun"]
    with pytest.raises(HostError, match="k3s.service is started with --default-runtime=crun"):
        host.plan(set_as_default=True)


@pytest.mark.parametrize(("command", "settings"), [
    (["--docker"], ""), (["--container-runtime-endpoint=unix:///run/containerd/containerd.sock"], ""),
    ([], "container-runtime-endpoint: /run/containerd/containerd.sock\n"), ([], "node-name: a\ndocker: true\n")])
def test_k3s_with_another_runtime(command: list[str], settings: str) -> None:
    host = Host("k3s", {K3S: None, "/etc/rancher/k3s/config.yaml": settings}, "k3s.service")
    host.command += ["server", *command]
    with pytest.raises(HostError, match="does not run its own containerd"):
        host.plan()


def test_k3s_template_without_base_is_named() -> None:
    template = f"{K3S.rpartition('/')[0]}/config-v3.toml.tmpl"
    host = Host("k3s", {K3S: shape("k3s-v3-bare.toml"), template: "version = 3\n"})
    with pytest.raises(HostError, match="config-v3.toml.tmpl replaces") as caught:
        host.plan()
    assert caught.value.details["path"] == template
    host.files[template] = '{{ template "base" . }}\n[debug]\n  level = "info"\n'
    assert host.plan()[0] == [("restart service", "k3s-agent.service", "never")]


def test_k3s_modes_need_drop_ins() -> None:
    host = Host("k3s", {K3S: shape("k3s-v3.toml")})
    with pytest.raises(HostError, match="imports no drop-ins"):
        host.plan(mode="cdi")
    host = Host("k3s", {K3S: shape("k3s-v3-imports.toml")})
    path = f"{K3S.rpartition('/')[0]}/config-v3.toml.d/99-gpuops-nvidia.toml"
    assert host.converge(mode="cdi") == [
        ("write file", path, "never"), ("restart service", "k3s-agent.service", "never")]
    data = tomllib.loads(host.files[path] or "")
    assert data["version"] == 3
    runtimes = data["plugins"][V3]["containerd"]["runtimes"]
    assert {name: one["options"] for name, one in runtimes.items()} == dict.fromkeys(
        ("nvidia", "nvidia-cdi"), {"BinaryName": f"{PROGRAM}.cdi", "SystemdCgroup": True})
    assert host.plan(mode="cdi")[0] == []
    assert host.converge(mode="auto")[0] == ("remove file", path, "never")
    assert path not in host.bare()


def test_k3s_never_started_or_elsewhere() -> None:
    host = Host("k3s", {})
    with pytest.raises(HostError, match="another data-dir, set config_path to its config.toml"):
        host.plan()
    seen = replace(host.seen(), running=False)
    proposal = host.runtime.propose(seen, EMPTY, Options(False, True, "auto"))
    assert proposal.changes == []
    later = host.runtime.propose(seen, EMPTY, Options(True, True, "auto"))
    assert [(change.path, later.action) for change in later.changes] == [(K3S_OURS, "none")]
    assert "has not been started yet" in proposal.warnings[0]


@pytest.mark.parametrize(("unit", "needs"), [("rke2-server.service", "idle"), ("rke2-agent.service", "never")])
def test_rke2(unit: str, needs: str) -> None:
    path = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"
    host = Host("rke2", {path: shape("rke2-v3-bare.toml")}, unit)
    assert host.plan()[0] == [("restart service", unit, needs)]
    ours = "/etc/rancher/rke2/config.yaml.d/99-gpuops-nvidia.yaml"
    assert host.converge(set_as_default=True) == [("write file", ours, "never"),
                                                  ("restart service", unit, needs)]
    host.files[path] = shape("rke2-v3.toml")
    assert host.plan(set_as_default=True)[0] == []
    assert host.remove()[0] == ("remove file", ours, "never")


# -- k0s

K0S = "/etc/k0s/containerd.toml"
K0S_OURS = "/etc/k0s/containerd.d/99-gpuops-nvidia.toml"


@pytest.mark.parametrize(("release", "plugin", "version"), [
    ("v1.30.4+k0s.0", V2, 2), ("v1.35.7+k0s.0", V2, 2), ("v1.36.0+k0s.0", V3, 3)])
def test_k0s_drop_in_by_generation(release: str, plugin: str, version: int) -> None:
    other = "/etc/k0s/containerd.d/cgroup.toml"
    runc = f'version = {version}\n[plugins."{plugin}".containerd.runtimes.runc.options]\nSystemdCgroup = true\n'
    host = Host("k0s", {K0S: shape("k0s-managed.toml"), other: runc}, version=release)
    before = host.bare()
    assert host.converge(set_as_default=True) == [("write file", K0S_OURS, "never")]
    data = tomllib.loads(host.files[K0S_OURS] or "")
    assert data["version"] == version
    assert set(data["plugins"]) == {plugin}
    cri = data["plugins"][plugin]
    assert cri["containerd"]["default_runtime_name"] == "nvidia"
    assert cri["containerd"]["runtimes"]["nvidia"] == {
        "runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": PROGRAM, "SystemdCgroup": True}}
    assert cri.get("enable_cdi") is (True if plugin == V2 else None)
    assert host.plan(set_as_default=True)[0] == []
    host.files[K0S_OURS] = "# somebody\n"
    assert host.converge(set_as_default=True) == [("write file", K0S_OURS, "never")]
    assert host.remove() == [("remove file", K0S_OURS, "never")]
    assert host.bare() == before


def test_k0s_drop_in_path() -> None:
    host = Host("k0s", {K0S: shape("k0s-managed.toml")}, version="v1.36.0+k0s.0")
    with pytest.raises(InputError, match="k0s does not read this file"):
        host.plan(drop_in_path="/etc/containerd/conf.d/99-gpuops-nvidia.toml")
    with pytest.raises(InputError, match="k0s does not read this file"):
        host.plan(drop_in_path="/etc/k0s/containerd.d/99.conf")
    host.converge()
    other = "/etc/k0s/containerd.d/50-gpu.toml"
    assert host.converge(drop_in_path=other) == [("remove file", K0S_OURS, "never"), ("write file", other, "never")]
    assert K0S_OURS not in host.bare()
    assert host.plan(drop_in_path=other)[0] == []


def test_k0s_own_merge_tells_the_defaults() -> None:
    merged = f'version = 2\n[plugins."{V2}".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n' \
             f'[plugins."{V2}".containerd.runtimes.runc.options]\nBinaryName = ""\nSystemdCgroup = true\n'
    host = Host("k0s", {K0S: None, "/run/k0s/containerd-cri.toml": merged}, version="v1.31.2+k0s.0")
    host.converge()
    assert "SystemdCgroup = true" in (host.files[K0S_OURS] or "")


@pytest.mark.parametrize(("files", "release", "message"), [
    ({K0S: shape("k0s-own.toml")}, "v1.34.1+k0s.0", "so k0s does not manage it and ignores"),
    ({}, "v1.26.9+k0s.0", "does not read drop-ins"),
    ({"/etc/k0s/containerd.d/old.toml": f'[plugins."{V2}"]\nenable_cdi = true\n'}, "v1.36.2+k0s.0", "old.toml"),
    ({}, "unknown", "printed no version"),
])
def test_k0s_refusals(files: dict[str, str | None], release: str, message: str) -> None:
    with pytest.raises(HostError, match=message):
        Host("k0s", files, version=release).plan()


def test_k0s_drop_in_of_somebody_elses_suffices() -> None:
    text = f'version = 3\n[plugins."{V3}".containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n' \
           f'[plugins."{V3}".containerd.runtimes.nvidia.options]\nBinaryName = "{PROGRAM}"\n'
    assert Host("k0s", {"/etc/k0s/containerd.d/gpu.toml": text}, version="v1.36.2").plan()[0] == []


# -- MicroK8s

MICROK8S = "snap.microk8s.daemon-containerd.service"


@pytest.mark.parametrize("name", ["microk8s-old.toml", "microk8s-v2.toml"])
@pytest.mark.parametrize("containerd", ["containerd x v1.6.28 y", "containerd x v1.7.27 y"])
def test_microk8s_template_keeps_its_placeholders(name: str, containerd: str) -> None:
    host = Host("microk8s", {TEMPLATE: shape(name)}, version=containerd)
    assert host.converge(set_as_default=False) == [
        ("edit file", TEMPLATE, "never"), ("restart service", MICROK8S, "never")]
    text = host.files[TEMPLATE] or ""
    former = shape(name)
    assert [line for line in text.splitlines() if "${" in line] == [
        line for line in former.splitlines() if "${" in line]
    assert [line for line in text.splitlines() if "#" in line] == [
        line for line in former.splitlines() if "#" in line]
    cri = tomllib.loads(text)["plugins"][V2]
    assert cri["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"] == PROGRAM
    assert cri["containerd"]["default_runtime_name"] == "${RUNTIME}"
    assert cri.get("enable_cdi") is (True if "1.7" in containerd else None)
    assert set(cri["containerd"]["runtimes"]) == {"runc", "nvidia-container-runtime", "nvidia"}
    assert host.plan()[0] == []
    host.remove()
    assert host.files[TEMPLATE] == former


def test_microk8s_default_and_back() -> None:
    host = Host("microk8s", {TEMPLATE: shape("microk8s-v2.toml")}, version="containerd x v1.7.27 y")
    host.converge(set_as_default=True)
    assert 'default_runtime_name = "nvidia"' in (host.files[TEMPLATE] or "")
    host.converge(set_as_default=False)
    assert 'default_runtime_name = "${RUNTIME}"' in (host.files[TEMPLATE] or "")
    host.converge(set_as_default=True)
    host.files[TEMPLATE] = (host.files[TEMPLATE] or "") + "# mine\n"
    _steps, proposal = host.removal()
    assert proposal.changes[0].baseline == proposal.changes[0].after  # a second removal leaves it so
    host.remove()
    assert host.files[TEMPLATE] == shape("microk8s-v2.toml") + "# mine\n"


def test_microk8s_options_switched_off_go() -> None:
    host = Host("microk8s", {TEMPLATE: shape("microk8s-v2.toml")}, version="containerd x v1.7.27 y")
    host.converge(set_as_default=False, cdi=False)
    plain = host.files[TEMPLATE]
    host.converge(mode="cdi")
    assert host.converge(cdi=False) != []
    assert host.files[TEMPLATE] == plain
    host.files[TEMPLATE] = (plain or "").replace('default_runtime_name = "${RUNTIME}"',
                                                 'default_runtime_name = "nvidia"')
    assert host.files[TEMPLATE] != plain
    assert host.plan(cdi=False)[0] == []


def test_microk8s_refusals() -> None:
    with pytest.raises(HostError, match="does not exist"):
        Host("microk8s", {}, version="").plan()
    host = Host("microk8s", {TEMPLATE: shape("microk8s-v2.toml")}, version="containerd x v1.7.27 y")
    _steps, proposal = host.plan()
    assert proposal.trials[0].files["main.toml"] == proposal.changes[0].after
    host.runtime.check_trials(host.seen(), [ProgramResult(0)], Options(False, True, "auto"), proposal)
    with pytest.raises(HostError, match="rejects the candidate"):
        host.runtime.check_trials(host.seen(), [ProgramResult(1, "", "bad")], Options(False, True, "auto"), proposal)


# -- those that are told or refused

CONFIG = "/etc/containerd/config.toml"
EFFECTIVE = f'''version = 3
[plugins."{V3}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "/etc/containerd/cri-base.json"
options = {{BinaryName = "/usr/local/bin/runc", Root = "", SystemdCgroup = true}}
'''


def _view(config: str) -> RuntimeState:
    return RuntimeState("containerd", config, dump=ProgramResult(0, EFFECTIVE))


@pytest.mark.parametrize("owner", owners.OWNERS, ids=lambda owner: owner.name)
def test_every_owner_names_the_right_place(owner: owners.Owner) -> None:
    config = CONFIG if owner.below == "/" else f"{owner.below}share/containerd/config.toml"
    wish = Options(True, True, "auto")
    for marker in owner.markers:
        assert marker in owners.markers()
        view = _view(config)
        if owner.text is None:
            with pytest.raises(HostError) as caught:
                owners.check_owner([marker], "docker", view, wish)
            message = str(caught.value)
        else:
            message = owners.check_owner([marker], "containerd", view, wish) or ""
            assert owners.check_owner([marker], "crio", view, wish) is None
        assert owner.name in message
        assert marker in message
        assert owner.advice in message
    assert owners.check_owner([], "containerd", _view(config), wish) is None


def _told(marker: str, **options: t.Any) -> str:
    wish = Options(**{"set_as_default": True, "cdi": True, "mode": "auto", **options})
    message = owners.check_owner([marker], "containerd", _view(CONFIG), wish)
    assert message is not None
    return message.partition("\n")[2]


def test_kubespray_is_told_its_variables() -> None:
    variables = yaml.safe_load(_told("/usr/local/bin/kubernetes-scripts"))
    assert variables["containerd_default_runtime"] == "nvidia"
    assert variables["enable_cdi"] is True
    assert variables["containerd_additional_runtimes"] == [{
        "name": "nvidia", "type": "io.containerd.runc.v2", "engine": "", "root": "",
        "base_runtime_spec": "cri-base.json",
        "options": {"BinaryName": PROGRAM, "SystemdCgroup": "true"}}]
    plain = yaml.safe_load(_told("/etc/kubernetes/kubeadm-client.conf", set_as_default=False, cdi=False, mode="cdi"))
    assert list(plain) == ["containerd_additional_runtimes"]
    assert [one["name"] for one in plain["containerd_additional_runtimes"]] == ["nvidia", "nvidia-cdi"]


def test_eks_is_told_its_node_config() -> None:
    document = yaml.safe_load(_told("/usr/bin/nodeadm"))
    assert document["kind"] == "NodeConfig"
    data = tomllib.loads(document["spec"]["containerd"]["config"])
    assert data["version"] == 3
    assert data["plugins"][V3]["containerd"] == {"default_runtime_name": "nvidia", "runtimes": {"nvidia": {
        "runtime_type": "io.containerd.runc.v2", "base_runtime_spec": "/etc/containerd/cri-base.json",
        "options": {"BinaryName": PROGRAM, "SystemdCgroup": True}}}}


def test_flatcar_with_a_file_of_its_own_is_ours() -> None:
    wish = Options(True, True, "auto")
    assert owners.check_owner(["/usr/share/flatcar"], "containerd", _view(CONFIG), wish) is None


@pytest.mark.parametrize(("there", "kubelet", "name"), [
    ({"containerd": True, "k3s": True}, False, "k3s"),
    ({"containerd": True, "k3s": False}, False, "containerd"),
    ({"containerd": False, "k0s": False}, False, "k0s"),
    ({"containerd": True, "docker": True}, True, "containerd"),
    ({}, True, None),
])
def test_the_runtime_of_auto(there: dict[str, bool], kubelet: bool, name: str | None) -> None:
    seen = {one: RuntimeState(one, "/c", running=running) for one, running in there.items()}
    assert registry.choose(["auto"], seen, kubelet) == ([name] if name else [])


@pytest.mark.parametrize("kubelet", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_dockers_own_containerd_is_none_to_configure(kubelet: bool, running: bool) -> None:
    own = RuntimeState("containerd", CONFIG, running=True, dump=ProgramResult(0, 'disabled_plugins = ["cri"]\n'))
    docker = RuntimeState("dockerd", "/etc/docker/daemon.json", running=running)
    assert registry.choose(["auto"], {"docker": docker, "containerd": own}, kubelet) == ["docker"]
    assert registry.choose(["auto"], {"containerd": own}, kubelet) == ["containerd"]
    assert registry.choose(["containerd"], {"docker": docker, "containerd": own}) == ["containerd"]


def test_paths_that_cannot_be_told() -> None:
    view = RuntimeState("containerd", "${CONTAINERD_CONFIG}", "containerd.service")
    with pytest.raises(HostError, match="configuration file of containerd is unknown.*CONTAINERD_CONFIG"):
        registry.check_paths("containerd", view, None)
    with pytest.raises(InputError, match="drop_in_path"):
        registry.check_paths("containerd", replace(view, config=CONFIG), "conf.d/x.toml")
    registry.check_paths("containerd", replace(view, config=CONFIG), "/etc/containerd/conf.d/x.toml")

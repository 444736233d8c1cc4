# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each act of container_toolkit at each level: the planned steps for the service of every runtime."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, gate
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.microk8s import TEMPLATE
from ansible_collections.gpuops.nvidia.tests.unit.levels import NO, TABLE, YES, cases, on_page
from ansible_collections.gpuops.nvidia.tests.unit.runtimes import test_crio, test_distributions, test_docker
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.conftest import played_host

Steps = t.Callable[[t.Any, pytest.MonkeyPatch], t.Sequence[Step]]
RUNS, LIVES = {"ContainersRunning": 2}, {"LiveRestoreEnabled": True}


def containerd(tmp_path: t.Any, monkeypatch: pytest.MonkeyPatch) -> t.Sequence[Step]:
    host = played_host(tmp_path, "2.2", monkeypatch)
    host.config.write_text("version = 3\n")
    return host.plan()[0]


def played(one: t.Any, **options: t.Any) -> Steps:
    """The steps for a runtime with a simulated view of the host."""
    wish = Options(**{"set_as_default": True, "cdi": True, "mode": "auto", **options})
    name = one.runtime.probe.name
    proposal = one.runtime.propose(one.seen(), one.journal(), wish)
    return lambda _path, _patch: toolkit_steps.runtime_steps(HostState({name: one.seen()}), {name: proposal})


def docker(text: str = "{}", **info: t.Any) -> Steps:
    """CDI is set up only at the start of the daemon. info: what the daemon reports about itself; nothing: it does not
    respond."""
    return played(test_docker.host(text, **{"facts": test_docker.says(**info)} if info else {}))


def distribution(name: str, path: str, shape: str, unit: str = "", **facts: str) -> Steps:
    return played(test_distributions.Host(name, {path: test_distributions.shape(shape)}, unit, **facts))


RANCHER = {name: (f"/var/lib/rancher/{name}/agent/etc/containerd/config.toml", f"{name}-v3-bare.toml")
           for name in ("k3s", "rke2")}
ACTS: dict[str, list[tuple[str, Steps]]] = {
    "restart containerd, also that of MicroK8s": [
        ("restart service: containerd.service", containerd),
        ("restart service: snap.microk8s.daemon-containerd.service", distribution(
            "microk8s", TEMPLATE, "microk8s-v2.toml", version="containerd v1.7.27"))],
    "restart or reload CRI-O": [
        ("restart service: crio.service", played(test_crio.host(version="Version:  1.24.1"))),
        ("reload service: crio.service", played(test_crio.host()))],
    "reload Docker": [
        ("reload service: docker.service", played(test_docker.host("{}", facts=test_docker.says(**RUNS)), cdi=False))],
    "restart Docker with live-restore": [
        ("restart service: docker.service", docker('{"live-restore": true}', **RUNS, **LIVES))],
    "restart Docker without live-restore and without containers": [
        ("restart service: docker.service", docker(ContainersRunning=0)),
        ("restart service: docker.service", docker('{"live-restore": false}', **LIVES)),
        ("restart service: docker.service", docker('{"live-restore": true}', ContainersRunning=0))],
    "restart Docker without live-restore and with containers": [
        ("restart service: docker.service", docker(**RUNS)),
        ("restart service: docker.service", docker(ContainersPaused=1)),
        ("restart service: docker.service", docker('{"live-restore": false}', **RUNS, **LIVES)),
        ("restart service: docker.service", docker("{}", **RUNS, **LIVES))],
    "restart Docker if it does not answer": [("restart service: docker.service", docker())],
    "restart an agent of k3s or RKE2": [
        (f"restart service: {name}-agent.service", distribution(name, *RANCHER[name], f"{name}-agent.service"))
        for name in RANCHER],
    "restart a server of k3s or RKE2": [
        (f"restart service: {unit}", distribution(name, *RANCHER[name], unit))
        for name, unit in (("k3s", "k3s.service"), ("rke2", "rke2-server.service"))],
}


@pytest.mark.parametrize(("act", "level", "said"), [
    pytest.param(one, level, said, id=f"{name}-{level}") for name, level, said in cases("toolkit")
    for one in ACTS[name]])
def test_an_act_needs_its_level(tmp_path: t.Any, monkeypatch: pytest.MonkeyPatch, act: tuple[str, Steps], level: str,
                                said: str) -> None:
    name, steps = act
    allowed, pending = gate(steps(tmp_path, monkeypatch), level)
    assert (name in [step.id for step in allowed]) != (name in [step.id for step in pending])
    assert (YES if name in [step.id for step in allowed] else NO) == said


def test_the_table_is_whole() -> None:
    assert ACTS.keys() == TABLE["toolkit"].keys()
    assert on_page("container_toolkit.md") == TABLE["toolkit"]

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several runtimes of one host: their names, their steps in one plan, and the states gathered and rendered."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import gate
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import runtime_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import (
    crio,
    registry,
    rendered,
    settings_file,
    toolkit_steps,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options, Proposal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    FileRecord,
    HostJournal,
    HostState,
    ProgramResult,
    RuntimeState,
)
from ansible_collections.gpuops.nvidia.tests.unit.runtimes import test_crio, test_docker, test_gathered

DAEMON, MAIN = "/etc/docker/daemon.json", "/etc/containerd/config.toml"
PODMAN = dataclasses.replace(test_gathered.TREES["podman"][1], running=False)
NVIDIA = {"path": "/usr/bin/nvidia-container-runtime"}
CDI = "enable_cdi = true"


def docker(text: str = "{}", **info: t.Any) -> RuntimeState:
    """A Docker that needs a restart for CDI. info: the information that the daemon reports."""
    return test_docker.host(text, facts=test_docker.says(**info)).seen()


def containerd(text: str = test_gathered.cri(V2, more="enable_cdi = false")) -> RuntimeState:
    return test_gathered.runtime("containerd", version="containerd y v1.7.34 abc", dump=ProgramResult(0, text))


def host(**more: t.Any) -> HostState:
    """A host with Docker, on which a container runs, containerd, CRI-O and Podman."""
    return HostState(**{"runtimes": {"docker": docker(ContainersRunning=1), "containerd": containerd(),
                                     "crio": test_crio.host().seen(), "podman": PODMAN}, **more})


def wish(*names: str, **more: t.Any) -> Options:
    return Options(**{"set_as_default": False, "cdi": True, "mode": "auto", "runtime": list(names), **more})


def ids(steps: t.Iterable[t.Any]) -> list[str]:
    return [step.id for step in steps]


@pytest.mark.parametrize(("value", "names"), [
    (None, ["auto"]), ("", ["auto"]), ("docker", ["docker"]), ("docker,podman", ["docker", "podman"]),
    (["all"], ["all"]), (("docker", "crio"), ["docker", "crio"])])
def test_names_are_one_text_or_a_list(value: t.Any, names: list[str]) -> None:
    assert runtime_names.names_in(value) == names
    runtime_names.check(names)


@pytest.mark.parametrize(("names", "paths", "path", "words"), [
    ([], {}, "runtime", "no runtime is named"), (["docker", "docker"], {}, "runtime", "docker is named twice"),
    (["auto", "docker"], {}, "runtime", "auto excludes other names"),
    (["docker", "all"], {}, "runtime", "all excludes other names"),
    (["auto", "all"], {}, "runtime", "auto excludes other names"),
    (["docker", "crio"], {"config_path": "/c", "drop_in_path": None}, "config_path", "runtime is docker, crio"),
    (["all"], {"config_path": None, "drop_in_path": "/d"}, "drop_in_path", "runtime is all")])
def test_names_that_exclude_each_other(names: list[str], paths: dict[str, t.Any], path: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        runtime_names.check(names, **paths)
    assert caught.value.details["path"] == path and caught.value.details["allowed"] and caught.value.hint


def test_a_path_of_one_runtime() -> None:
    for name in ("auto", "docker"):
        runtime_names.check([name], config_path="/c", drop_in_path="/d")


def test_all_are_the_installed_ones_and_the_first_is_that_of_auto() -> None:
    runtimes = host().runtimes
    assert registry.choose(["all"], runtimes) == ["docker", "containerd", "crio", "podman"]
    assert registry.choose(["all"], runtimes, kubelet=True) == ["containerd", "crio", "docker", "podman"]
    stopped = {**runtimes, "docker": dataclasses.replace(runtimes["docker"], running=False)}
    assert registry.choose(["all"], stopped) == ["containerd", "crio", "docker", "podman"]
    own = {**runtimes, "containerd": containerd('disabled_plugins = ["cri"]\n')}
    assert registry.choose(["all"], own) == ["docker", "crio", "podman"]
    assert registry.choose(["docker", "containerd"], own) == ["docker", "containerd"]
    del own["docker"]
    assert registry.choose(["all"], own) == ["crio", "podman", "containerd"]


def test_names_keep_their_order_and_must_be_installed() -> None:
    runtimes = host().runtimes
    assert registry.choose(["podman", "docker"], runtimes) == ["podman", "docker"]
    with pytest.raises(HostError, match="^k0s and k3s are not installed on this host") as caught:
        registry.choose(["docker", "k0s", "k3s"], runtimes)
    assert caught.value.details["runtime"] == "k0s"


def test_files_come_before_services_and_low_levels_before_high_ones() -> None:
    plan = toolkit_steps.plan(host(), wish("all"))
    assert ids(plan.steps) == [
        f"edit file: {DAEMON}", f"write file: {MAIN}", f"write file: {crio.DROP_IN}",
        "reload service: docker.service", "restart service: containerd.service", "reload service: crio.service",
        "restart service: docker.service"]
    assert list(plan.proposals) == ["docker", "containerd", "crio", "podman"] and plan.pending == []
    assert [change.path for change in plan.changes] == [DAEMON, MAIN, crio.DROP_IN]
    assert [name for name, _trial in plan.trials] == ["docker", "containerd", "crio"]
    allowed, forbidden = gate(plan.steps, "idle")
    assert ids(forbidden) == ["restart service: docker.service"] and len(allowed) == 6
    assert registry.named(list(plan.proposals), host().runtimes) == {
        "runtime": "docker", "config_path": DAEMON, "runtime_names": ["docker", "containerd", "crio", "podman"],
        "config_paths": {"docker": DAEMON, "containerd": MAIN, "crio": "/etc/crio/crio.conf",
                         "podman": "/etc/containers/containers.conf"}}


def test_a_restart_that_containers_can_prevent_is_the_last_of_its_level() -> None:
    idle = Proposal(due_reason="x", idle=["true"])
    runtimes = {name: RuntimeState(name, "/c", f"{name}.service", running=True) for name in ("docker", "crio")}
    steps = toolkit_steps.runtime_steps(HostState(runtimes), {"docker": idle, "crio": Proposal(due_reason="x")})
    assert ids(steps) == ["restart service: crio.service", "restart service: docker.service"]


def test_one_runtime_has_the_steps_that_it_has_alone() -> None:
    seen = host()
    for name in ("docker", "containerd", "crio"):
        alone = ids(toolkit_steps.plan(seen, wish(name)).steps)
        together = [step for step in toolkit_steps.plan(seen, wish("all")).steps if step.data["runtime"] == name]
        assert ids(together) == alone


def test_another_product_manages_one_of_them_and_the_others_are_configured() -> None:
    seen = host(markers=["/usr/local/bin/kubernetes-scripts"])
    plan = toolkit_steps.plan(seen, wish("docker", "containerd"))
    assert [change.path for change in plan.changes] == [DAEMON]
    configure, = [step for step in plan.pending if step.action == "configure"]
    assert configure.target == "containerd" and "Kubespray" in configure.pending_reason
    assert plan.warnings[0] == configure.pending_reason
    assert "restart service: containerd.service" not in ids(plan.steps)


def test_services_of_all_are_pending_if_they_do_not_run() -> None:
    runtimes = {name: dataclasses.replace(state, running=False) for name, state in host().runtimes.items()}
    plan = toolkit_steps.plan(HostState(runtimes), wish("docker", "crio"))
    assert ids(plan.pending) == ["start service: docker.service", "start service: crio.service"]


def test_settings_of_two_runtimes() -> None:
    name = "nvidia-container-runtime.runtimes"
    one, other = Proposal(settings={name: ["/a"]}), Proposal(settings={name: ["/b"]})
    assert toolkit_steps.merged_settings({"crio": one, "docker": Proposal()}, {}) == {name: ["/a"]}
    assert toolkit_steps.merged_settings({"crio": one, "docker": one}, {}) == {name: ["/a"]}
    with pytest.raises(InputError, match=f"settings.{name}: crio needs .'/a'., and docker needs .'/b'.") as caught:
        toolkit_steps.merged_settings({"crio": one, "docker": other}, {})
    assert caught.value.details["path"] == f"settings.{name}"
    for given in ({name: ["/c"]}, {"nvidia-container-runtime": {"runtimes": ["/c"]}}):
        merged = toolkit_steps.merged_settings({"crio": one, "docker": other}, given)
        assert settings_file.by_name(merged) == {name: ["/c"]}


def test_a_removal_is_of_all_no_matter_what_is_chosen() -> None:
    records = {DAEMON: FileRecord("main", "ours", "{}\n", "docker"),
               crio.DROP_IN: FileRecord("drop-in", "ours", None, "crio")}
    runtimes = host().runtimes
    runtimes["crio"].files[crio.DROP_IN] = "x"
    runtimes["docker"].files[DAEMON] = json.dumps({"runtimes": {"nvidia": NVIDIA}})
    seen = HostState(runtimes, journal=HostJournal(True, records, {"docker": "runc", "crio": "crun"}))
    plan = toolkit_steps.plan(seen, wish("podman", state="absent"))
    assert ids(plan.steps) == [f"restore file: {DAEMON}", f"remove file: {crio.DROP_IN}",
                               "reload service: crio.service", "restart service: docker.service"]
    assert (list(plan.proposals), plan.previous_default) == (["docker", "crio"], "runc")


def gather(runtimes: dict[str, RuntimeState], *names: str, **more: t.Any) -> dict[str, t.Any]:
    return test_gathered.gather(*runtimes.items(), options=wish(*names, state="gathered"), spec=test_gathered.SPEC,
                                **more)


def test_the_gathered_runtimes_are_those_that_the_options_do_not_change() -> None:
    configured = {"docker": docker(json.dumps({"runtimes": {"nvidia": NVIDIA}, "features": {"cdi": True}})),
                  "containerd": test_gathered.containerd(test_gathered.cri(V3, "nvidia", CDI, nvidia=NVIDIA["path"])),
                  "podman": PODMAN}
    result = gather(configured, "docker", "podman")
    assert (result["gathered"]["runtime"], result["runtime"]) == (["docker", "podman"], "docker")
    assert result["runtime_names"] == ["docker", "podman"] and "warnings" not in result
    assert toolkit_steps.plan(HostState(configured), wish("docker", "podman")).changes == []
    # Another default runtime is not changed, so the default of containerd does not matter.
    assert gather(configured, "all")["gathered"]["runtime"] == ["docker", "containerd", "podman"]
    # Docker does not have nvidia as its default.
    result = gather(configured, "containerd", "docker", "podman")
    assert (result["gathered"]["runtime"], result["gathered"]["set_as_default"]) == (["containerd", "podman"], True)
    assert result["warnings"][0].startswith("gathered omits docker, because")
    assert gather(configured, "auto")["gathered"]["runtime"] == "docker"
    assert gather({}, "all")["runtime_names"] == []


def test_the_first_configured_runtime_is_gathered() -> None:
    runtimes = {"docker": docker(), "crio": test_crio.host().seen(),
                "containerd": test_gathered.containerd(test_gathered.cri(V3, more=CDI, nvidia=NVIDIA["path"]))}
    result = gather(runtimes, "docker", "crio", "containerd")
    assert (result["gathered"]["runtime"], result["runtime"]) == ("containerd", "docker")
    assert "gathered omits crio and docker" in result["warnings"][0]


def test_the_files_of_all_are_rendered() -> None:
    options = wish("docker", "crio", "k3s", state="rendered", set_as_default=True, settings={"features.gds": True})
    result = rendered.rendered(options)
    alone = [rendered.rendered(dataclasses.replace(options, runtime=[name], settings={})) for name in options.runtime]
    assert result["rendered"][:-1] == [file for one in alone for file in one["rendered"]]
    assert result["rendered"][-1]["path"] == settings_file.FILE
    assert (result["runtime"], result["runtime_names"]) == ("docker", ["docker", "crio", "k3s"])
    with pytest.raises(InputError, match="edits of its own template"):
        rendered.rendered(wish("docker", "microk8s"))
    with pytest.raises(InputError, match="the runtime must be named"):
        rendered.rendered(wish("all"))

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The current configuration of each runtime, and the options that would produce it."""

from __future__ import annotations

import json
import typing as t

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.cdi import CdiPlan
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import PackagesPlan
from ansible_collections.gpuops.nvidia.plugins.modules import container_toolkit
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import registry, settings_file, toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Configuration, Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.gathered import gathered
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    FileRecord,
    HostJournal,
    HostState,
    ProgramResult,
    RuntimeState,
    SettingsState,
)

PROGRAM = "/usr/bin/nvidia-container-runtime"
NONE = {"path": None, "devices": [], "driver": None, "management": False, "unit": False}
SPEC = {"path": "/var/run/cdi/nvidia.yaml", "devices": ["0"], "driver": "595.91.07", "management": False,
        "unit": True}
DOCUMENTED = yaml.safe_load(container_toolkit.RETURN)
ASKED = Options(False, True, "auto", state="gathered")
TOOLKIT = PackagesPlan({"nvidia-container-toolkit": "1.20.1-1"}, "1.20.1", [])


def cri(plugin: str, default: str = "runc", more: str = "", **classes: str) -> str:
    tables = "".join(f"[plugins.'{plugin}'.containerd.runtimes.{name}]\nruntime_type = 'io.containerd.runc.v2'\n"
                     f"options = {{BinaryName = '{program}'}}\n" for name, program in classes.items())
    return (f"version = {3 if plugin == V3 else 2}\n[plugins.'{plugin}']\n{more}\n[plugins.'{plugin}'.containerd]\n"
            f"default_runtime_name = '{default}'\n{tables}")


def runtime(name: str, files: dict[str, str | None] | None = None, **more: t.Any) -> RuntimeState:
    probe = registry.RUNTIMES[name].probe
    return RuntimeState(f"/usr/bin/{name}", probe.config, probe.units[0] if probe.units else None, True,
                        files={probe.config: None, **(files or {})}, **more)


def containerd(text: str) -> RuntimeState:
    return runtime("containerd", dump=ProgramResult(0, text))


FOLDER = "/etc/crio/crio.conf.d"
TREES: dict[str, tuple[str, RuntimeState, Configuration]] = {
    "containerd 2": ("containerd", containerd(cri(V3, "nvidia", "enable_cdi = true", nvidia=PROGRAM)
                                              + "[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n"),
                     Configuration({"nvidia": PROGRAM}, "nvidia", True, True)),
    "containerd 1.6": ("containerd", containerd(cri(V2, more="sandbox_image = 'p'")), Configuration({}, "runc")),
    "containerd 2.4": ("containerd", containerd(cri(V3)), Configuration({}, "runc", True)),
    "docker": ("docker", runtime("docker", {"/etc/docker/daemon.json": json.dumps({
        "runtimes": {"nvidia": {"path": PROGRAM}}, "default-runtime": "nvidia", "features": {"cdi": True}})},
        version="Docker version 26.1.5", facts={"info": ProgramResult(1)}),
        Configuration({"nvidia": PROGRAM}, "nvidia", True)),
    "docker by flags": ("docker", runtime("docker", version="Docker version 26.1.5", command=[
        "/usr/sbin/dockerd", "--add-runtime=nvidia=/x", "--default-runtime", "nvidia"],
        facts={"info": ProgramResult(1)}), Configuration({"nvidia": None}, "nvidia", False)),
    "crio": ("crio", runtime("crio", {f"{FOLDER}/99.conf": f"[crio.runtime.runtimes.nvidia]\nruntime_path='{PROGRAM}'"},
                             version="crio version 1.34.2", facts={"low_level": ProgramResult(0)}),
             Configuration({"nvidia": PROGRAM}, "crun", True)),
    "k0s": ("k0s", runtime("k0s", {"/etc/k0s/containerd.d/a.toml": cri(V2, more="enable_cdi = true", nvidia=PROGRAM)},
                           facts={"version": ProgramResult(0, "v1.35.1+k0s.0")}),
            Configuration({"runc": None, "nvidia": PROGRAM}, "runc", True)),
    "k3s": ("k3s", runtime("k3s", {registry.RUNTIMES["k3s"].probe.config: cri(V3, nvidia=PROGRAM, **{
        "nvidia-cdi": f"{PROGRAM}.cdi"})}, facts={"settings": ProgramResult(1)}),
        Configuration({"nvidia": PROGRAM, "nvidia-cdi": f"{PROGRAM}.cdi"}, "runc")),
    "k3s that was never started": ("k3s", runtime("k3s", facts={"settings": ProgramResult(1)}),
                                   Configuration({}, "runc")),
    "microk8s": ("microk8s", runtime("microk8s", {registry.RUNTIMES["microk8s"].probe.config: cri(
        V2, "nvidia", nvidia=PROGRAM)}, facts={"version": ProgramResult(0, "containerd x v1.7.2")}),
        Configuration({"nvidia": PROGRAM}, "nvidia", False)),
    "podman": ("podman", runtime("podman", facts={"cdi": ProgramResult(0)}), Configuration({}, None, True)),
}


@pytest.mark.parametrize("name", TREES)
def test_the_current_configuration(name: str) -> None:
    kind, state, expected = TREES[name]
    assert registry.RUNTIMES[kind].read(state) == expected


def gather(*states: tuple[str, RuntimeState], options: Options = ASKED, spec: t.Mapping[str, t.Any] = NONE,
           repository: t.Mapping[str, t.Any] | None = None, **more: t.Any) -> dict[str, t.Any]:
    """The result, which is JSON and documented."""
    result = gathered(HostState(**{"runtimes": dict(states), "packages": TOOLKIT, **more}), options, spec,
                      repository or {})
    assert json.loads(json.dumps(result)) == result
    assert set(result) - {"warnings"} <= set(DOCUMENTED)
    fields = set(DOCUMENTED["runtimes"]["contains"])
    assert all(set(row) == fields for row in result["runtimes"])
    return result


def test_an_empty_host() -> None:
    result = gather(packages=PackagesPlan({}, None, []))
    assert result["gathered"] == {"state": "absent"}
    assert (result["runtime"], result["version"], result["packages"], result["runtimes"]) == (None, None, {}, [])
    assert result["cdi"] == {"path": None, "devices": [], "driver": None} and "warnings" not in result


def test_a_toolkit_without_a_runtime() -> None:
    assert gather(spec={**SPEC, "management": True})["gathered"] == {
        "state": "present", "version": "1.20.1", "settings": {}, "cdi_management": True, "set_as_default": False,
        "cdi": True, "mode": "auto", "nri": False}


def test_each_runtime_has_a_row_and_one_is_chosen() -> None:
    podman, docker = TREES["podman"][:2], TREES["docker"][:2]
    result = gather(docker, podman, spec=SPEC, cdi=CdiPlan([SPEC["path"]], None, [], [], []))
    assert [(row["name"], row["configured"], row["is_default"]) for row in result["runtimes"]] == [
        ("docker", True, True), ("podman", True, False)]
    wanted = result["gathered"]
    assert (wanted["runtime"], wanted["set_as_default"], wanted["cdi"]) == ("docker", True, True)
    other = gather(docker, podman, options=Options(False, True, "auto", runtime=["podman"]))
    assert (other["runtime"], other["gathered"]["set_as_default"]) == ("podman", False)
    assert gather(podman, options=Options(False, True, "auto", runtime=["crio"]))["runtime"] is None


@pytest.mark.parametrize("name", [name for name, (*_host, found) in TREES.items() if "nvidia" in found.classes])
def test_the_options_change_nothing_where_the_runtime_is_configured(name: str) -> None:
    kind, state, _configuration = TREES[name]
    host = HostState({kind: state}, packages=TOOLKIT)
    wanted = gather((kind, state), spec=SPEC)["gathered"]
    names = set(Options.__dataclass_fields__)
    options = Options(**{key: value for key, value in wanted.items() if key in names and key != "runtime"},
                      runtime=[wanted["runtime"]])
    assert toolkit_steps.plan(host, options).changes == []


def test_cdi_of_a_runtime_without_cdi_is_that_of_the_unit() -> None:
    old = TREES["containerd 1.6"][:2]
    assert [gather(old, spec={**NONE, **more})["gathered"]["cdi"] for more in (
        {}, {"unit": True}, {"path": "/etc/cdi/nvidia.yaml"})] == [False, True, True]
    docker = runtime("docker", version="Docker version 20.10.24", facts={"info": ProgramResult(1)})
    assert registry.RUNTIMES["docker"].read(docker) == Configuration({}, "runc")


def test_a_mode_is_that_of_the_program_of_the_class() -> None:
    both = containerd(cri(V3, nvidia=f"{PROGRAM}.cdi", **{"nvidia-cdi": f"{PROGRAM}.cdi"}))
    assert gather(("containerd", both))["gathered"]["mode"] == "cdi"
    assert gather(TREES["k3s"][:2])["gathered"]["mode"] == "auto"


def test_what_a_run_has_written() -> None:
    path = "/etc/containerd/conf.d/ours.toml"
    state = runtime("containerd", {path: "x"}, dump=ProgramResult(0, cri(V3)))
    journal = HostJournal(True, {path: FileRecord("drop-in", "ours", None, "containerd", ["nvidia", "nri"])},
                          {"containerd": "kata"}, {"containerd.service": "restart"})
    result = gather(("containerd", state), journal=journal,
                    options=Options(False, True, "auto", config_path="/etc/containerd/config.toml"))
    wanted = result["gathered"]
    assert (wanted["nri"], wanted["drop_in_path"], wanted["config_path"]) == (
        True, path, "/etc/containerd/config.toml")
    assert (result["previous_default_runtime"], result["restart_required"]) == ("kata", True)
    assert result["runtimes"][0]["drop_in_paths"] == [path]


def test_files_that_cannot_be_read_are_named_and_the_rest_is_returned() -> None:
    broken = runtime("containerd", dump=ProgramResult(1, stderr="containerd: toml: line 3"))
    result = gather(("containerd", broken), TREES["podman"][:2], settings=SettingsState("[x"))
    row = result["runtimes"][0]
    assert "toml: line 3" in row["problem"] and (row["configured"], row["is_default"], row["classes"]) == (
        None, None, {})
    assert result["runtimes"][1]["problem"] is None
    assert result["warnings"][0].startswith("The configuration of containerd could not be read. containerd rejects")
    assert result["warnings"][1].startswith(settings_file.FILE)


def test_known_settings_with_valid_values_are_options() -> None:
    text = ('disable-require = false\nother = 1\n[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\nload-kmods = 3\n'
            '[nvidia-container-runtime]\nruntimes = ["runc"]\n[nvidia-container-runtime.modes.csv]\n'
            'mount-spec-path = "/x"\n')
    found = gather(settings=SettingsState(text))["gathered"]["settings"]
    assert found == {"disable-require": False, "nvidia-container-runtime": {
        "runtimes": ["runc"], "modes": {"csv": {"mount-spec-path": "/x"}}}}
    assert settings_file.plan(found, SettingsState(text), False) == []


def test_the_repository_is_an_option() -> None:
    mirror = {"url": "https://x/", "key": "/k", "fingerprint": "A" * 40}
    assert gather(repository=mirror)["gathered"]["repository"] == mirror


def test_errors_of_types() -> None:
    with pytest.raises(HostError):
        settings_file.known("[x")
    with pytest.raises(InputError):
        settings_file.by_name({"other": 1})

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of CUDA toolkit, DCGM, exporters and the CUDA sample on hosts, and the checks of a host against them."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.verify import verify, with_pending
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Host, HostCheck, Report
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.report import columns, result_cell
from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample

Data = dict[str, t.Any]


def policy(**spec: t.Any) -> Data:
    required = dict.fromkeys(("daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver", "gfd",
                              "nodeStatusExporter", "operator", "toolkit"), {})
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"},
            "spec": {**required, **spec}}


def plan(given: t.Any = None, mine: Data | None = None, placement: t.Any = "hosts", release: str = "26.7.0",
         **host: t.Any) -> tuple[Data, list[str]]:
    """(the plan of the only host, notes)."""
    chosen = releases.release(release)
    told = resolve(formats.read(given, chosen), chosen, {"h": facts_sample.facts(["20b2"], **host)}, {"h": mine or {}},
                   placement)
    return told["hosts"]["h"], told["notes"]


def test_by_default_there_are_metrics() -> None:
    made, notes = plan(os="debian12", kernel="6.1.0-28-amd64")
    assert made["software"] == {"dcgm": {"version": "4.6.0", "profiling": True, "args": [], "env": {}},
                                "dcgm_exporter": {
                                    "version": "4.8.3", "listen": ":9400", "counters": None, "args": [], "env": {},
                                    "job_mapping": None, "web_config": None}}
    assert made["validator"]["placement"] == "host"
    assert {"dcgm", "dcgm_exporter"} <= set(made["preview"]) and "cuda" not in made["preview"]
    assert not [note for note in notes if "DCGM" in note]


def test_arguments_and_variables_of_dcgm() -> None:
    """Those of the policy that are for pods are left out: with them, the service would not start, or be open."""
    given = policy(dcgm={"enabled": True, "args": ["/usr/bin/nv-hostengine", "-n", "-b", "ALL", "--log-level", "DEBUG",
                                                   "-p", "5555", "--service-account", "nvidia-dcgm"],
                         "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A", "value": "1"},
                                 {"name": "B", "value": "2"}]})
    made, notes = plan(given, {"dcgm_env": {"B": "3"}})
    assert made["software"]["dcgm"]["args"] == ["--log-level", "DEBUG"]
    assert made["software"]["dcgm"]["env"] == {"A": "1", "B": "3"}
    assert "h: dcgm.args: -b ALL, -p 5555: no effect: hosts do not use them; set dcgm_args if needed." in notes
    assert "h: dcgm.env: NVIDIA_VISIBLE_DEVICES: no effect: hosts do not use it." in notes
    made, notes = plan(given, {"dcgm_args": ["-b", "ALL"]})
    assert made["software"]["dcgm"]["args"] == ["-b", "ALL"]
    assert [one for one in notes if "it has no authentication" in one] and "dcgm.args" not in "".join(notes)
    with pytest.raises(PolicyError, match="dcgm_args: '-p 5556' cannot be set: the exporter of the host connects"):
        plan(given, {"dcgm_args": ["-p", "5556"]})
    with pytest.raises(PolicyError, match="dcgm_args '-n' is not allowed"):
        plan(given, {"dcgm_args": "-n"})
    made, _notes = plan(given, {"dcgm_args": ["-n"]}, placement={"dcgm": "none", "dcgm_exporter": "none"})
    assert made["dcgm"]["placement"] == "none"


@pytest.mark.parametrize(("value", "placement"), [("false", "none"), ("0", "none"), ("true", "host"), ("x", "host")])
def test_the_policy_switches_the_cuda_sample_off(value: str, placement: str) -> None:
    given = policy(validator={"cuda": {"env": [{"name": "WITH_WORKLOAD", "value": value},
                                               {"name": "WITH_WAIT", "value": "true"}]},
                              "driver": {"env": [{"name": "DISABLE_DEV_CHAR_SYMLINK_CREATION", "value": "true"}]}})
    made, notes = plan(given)
    assert made["validator"]["placement"] == placement and ("validator" in made["delivered"]) == (placement == "host")
    assert "h: validator.cuda.env: WITH_WAIT: no effect: hosts do not use it." in notes
    assert any(one.startswith("validator.driver.env: no effect on hosts: ") and "/dev/char" in one for one in notes)


def test_a_release_of_dcgm_3_gets_the_newest_packages() -> None:
    made, _notes = plan(release="24.6.0")
    assert made["dcgm"]["version"] is None and made["dcgm_exporter"]["version"] is None


def test_a_version_of_dcgm_3_in_the_policy_is_noted() -> None:
    given = policy(dcgm={"version": "3.2.5-1-ubuntu20.04"}, dcgmExporter={"version": "3.2.5-3.1.8-ubuntu20.04"})
    noted = "\n".join(plan(given, release="24.6.0")[1])
    assert "dcgm.version 3.2.5-1-ubuntu20.04: no effect: hosts get the newest version" in noted
    assert "to choose one, set dcgm_version." in noted and "to choose one, set dcgm_exporter_version." in noted
    chosen = {"dcgm_version": "4.6.0", "dcgm_exporter_version": "4.8.3"}
    assert not [note for note in plan(given, chosen, release="24.6.0")[1] if "newest version" in note]


def test_dcgm_that_the_policy_disables_and_the_exporter_needs_is_noted() -> None:
    def said(**spec: t.Any) -> list[str]:
        return [note for note in plan(policy(**spec))[1] if "dcgm.enabled is false in the policy" in note]

    assert len(said(dcgm={"enabled": False})) == 1
    assert said() == said(dcgm={"enabled": False}, dcgmExporter={"enabled": False}) == []


def test_a_note_names_the_variables_of_hosts_that_have_the_effect() -> None:
    def said(**spec: t.Any) -> str:
        return "\n".join(note for note in plan(policy(**spec))[1] if "hosts do not use" in note)

    given = [{"name": "CONTAINERD_CONFIG", "value": "/x"}, {"name": "RUNTIME_RESTART_MODE", "value": "none"}]
    assert said(toolkit={"env": given}).endswith(
        "CONTAINERD_CONFIG, RUNTIME_RESTART_MODE: no effect: hosts do not use them; set "
        "container_toolkit_config_path if needed.")
    assert said(dcgmExporter={"env": [{"name": "DCGM_EXPORTER_COLLECTORS", "value": "/x.csv"}]}).endswith(
        "hosts do not use it; set dcgm_exporter_counters if needed.")


def test_configurations_of_the_device_plugin_that_no_host_uses_are_noted() -> None:
    def said(default: str, **mine: t.Any) -> list[str]:
        data = dict.fromkeys(("a", "b"), "version: v1\n")
        config = {"name": "n", "create": True, "default": default, "data": data}
        return [note for note in plan({"devicePlugin": {"config": config}}, mine)[1] if "config.data" in note]

    assert said("a") == ["h: devicePlugin.config.data: b: no effect on hosts: the labels of hosts are those of "
                         "devicePlugin.config.default (a); for others, set device_plugin_config."]
    assert "a, b: no effect on hosts" in said("")[0] and "which is not set" in said("")[0]
    assert said("a", feature_discovery_sharing={}) == []


def test_the_exporter_gets_arguments_variables_and_jobs_of_the_policy() -> None:
    env = [{"name": "DCGM_EXPORTER_INTERVAL", "value": "10000"}, {"name": "DCGM_EXPORTER_KUBERNETES", "value": "true"}]
    given = policy(dcgmExporter={"env": env, "args": ["-x"], "hpcJobMapping": {"enabled": True}})
    made, notes = plan(given)
    assert made["software"]["dcgm_exporter"] == {
        "version": "4.8.3", "listen": ":9400", "counters": None, "args": ["-x"], "env": {
            "DCGM_EXPORTER_INTERVAL": "10000"}, "job_mapping": "/var/lib/dcgm-exporter/job-mapping", "web_config": None}
    assert "h: dcgmExporter.env: DCGM_EXPORTER_KUBERNETES: no effect: hosts do not use it." in notes
    pods = ["-f", "/etc/dcgm-exporter/x.csv", "--address=:9500", "-c", "1000", "-k", "--collect-dcp"]
    part, notes = plan(policy(dcgmExporter={"args": pods}))
    assert part["dcgm_exporter"]["args"] == ["-c", "1000", "--collect-dcp"]
    assert ("h: dcgmExporter.args: -f /etc/dcgm-exporter/x.csv --address=:9500 -k: no effect: hosts do not use it."
            ) in notes
    mine = {"dcgm_exporter_args": [], "dcgm_exporter_env": {"DCGM_EXPORTER_INTERVAL": "1"},
            "dcgm_exporter_job_mapping": "/jobs", "dcgm_exporter_web_config": "/web.yml"}
    part = plan(given, mine)[0]["dcgm_exporter"]
    assert [part[name] for name in ("args", "env", "job_mapping", "web_config")] == [
        [], {"DCGM_EXPORTER_INTERVAL": "1"}, "/jobs", "/web.yml"]


def test_what_the_policy_says() -> None:
    exporter = {"env": [{"name": "DCGM_EXPORTER_LISTEN", "value": "127.0.0.1:9400"}], "config": {"name": "counters"}}
    made, notes = plan(policy(dcgmExporter=exporter, nodeStatusExporter={"enabled": True}))
    assert made["dcgm_exporter"]["listen"] == "127.0.0.1:9400"
    assert any("the counters of ConfigMap 'counters' are not known" in note for note in notes)
    assert made["software"]["node_status_exporter"] == {"folder": "/var/lib/prometheus/node-exporter", "interval": 60}
    off, _notes = plan(policy(dcgmExporter={"enabled": False}, dcgm={"enabled": False}))
    assert off["software"] == {} and off["dcgm"]["because"] == ["not delivered: dcgm.enabled is false"]
    engine, _notes = plan(policy(dcgmExporter={"enabled": False}, dcgm={"enabled": True}))
    assert list(engine["software"]) == ["dcgm"]
    asked, _notes = plan(policy(dcgm={"enabled": False}))
    assert asked["dcgm"]["because"] == ["the DCGM exporter needs it"]
    for elsewhere in ("none", "cluster"):
        off, _notes = plan(policy(dcgm={"enabled": False}), placement={"dcgm_exporter": elsewhere})
        assert off["dcgm"]["because"] == ["not delivered: dcgm.enabled is false"], elsewhere
    named, notes = plan(policy(dcgm={"enabled": False}), placement={"dcgm": "host", "dcgm_exporter": "none"})
    assert named["dcgm"]["placement"] == "host" and named["dcgm"]["because"] == []
    assert not [note for note in notes if "dcgm" in note]


def test_counters_that_values_carry() -> None:
    values = {"dcgmExporter": {"config": {"name": "c", "create": True, "data": "DCGM_FI_DEV_GPU_TEMP, gauge, t\n"}}}
    made, notes = plan(values)
    assert made["dcgm_exporter"]["counters"] == "DCGM_FI_DEV_GPU_TEMP, gauge, t\n"
    assert not any("ConfigMap" in note for note in notes)


def test_what_a_host_says() -> None:
    mine = {"cuda_version": "13.0", "dcgm_version": "4.5.0", "dcgm_exporter_listen": ":9500",
            "node_status_exporter_interval": 30}
    made, _notes = plan(mine=mine, placement={"node_status_exporter": "host"})
    assert made["software"]["cuda"] == {"version": "13.0", "profile": False}
    assert made["software"]["dcgm"]["version"] == "4.5.0"
    assert made["software"]["dcgm_exporter"]["listen"] == ":9500"
    assert made["software"]["node_status_exporter"]["interval"] == 30
    none, _notes = plan(placement={"dcgm": "none", "dcgm_exporter": "none", "validator": "none"})
    assert none["software"] == {} and none["validator"]["placement"] == "none"


def test_cuda_of_the_seeds_resource() -> None:
    seed = {"apiVersion": "gpu.nvidia.com/v1", "kind": "GPUClusterPolicy",
            "spec": {"driver": {"enabled": True}, "cuda": {"enabled": True, "version": "12.9"}}}
    made, notes = plan(seed)
    assert made["software"]["cuda"]["version"] == "12.9"
    assert not any("does not deliver" in note for note in notes)
    with pytest.raises(PolicyError, match="CUDA version 'latest' is not allowed"):
        plan(mine={"cuda_version": "latest"})


def test_the_driver_suits_the_toolkit_that_a_host_asks_for() -> None:
    made, _notes = plan(mine={"cuda_version": "13.0"})
    assert made["driver"]["branch"] >= 580
    with pytest.raises(PolicyError, match="CUDA 13.0 .cuda.version. needs driver 580"):
        plan(mine={"cuda_version": "13.0", "driver_branch": "535"})


def test_where_nothing_can_be_installed() -> None:
    made, notes = plan(os="sles15.7", kernel="6.4.0-150700.53-default")
    assert made["software"] == {} and made["driver"]["placement"] == "host"
    assert any("DCGM is not delivered: this version of the collection cannot install" in note for note in notes)
    frozen, notes = plan(host={"markers": {"immutable": True}})
    assert frozen["software"] == {} and any("/usr is read-only" in note for note in notes)
    made, notes = plan(os="debian13", kernel="6.12.0-1-amd64")
    assert made["software"] == {} and any("Set driver_repository_fingerprint, after" in note for note in notes)
    given, _notes = plan(os="debian13", kernel="6.12.0-1-amd64", mine={"driver_repository_fingerprint": "A" * 40})
    assert "dcgm" in given["software"]


NO_DRIVER = "no driver is installed on the host, and the plan does not deliver one"


@pytest.mark.parametrize(("placement", "mine", "reason"), [
    ({"driver": "none"}, {}, NO_DRIVER), ({"driver": "cluster"}, {}, NO_DRIVER),
    ({}, {"driver_state": "adopted"}, NO_DRIVER), ({}, {"driver_state": "absent"}, "driver_state is absent")])
def test_what_is_chosen_by_the_driver_is_left_out_without_one(placement: t.Any, mine: Data, reason: str) -> None:
    """Otherwise its module would fail, also in a preview, and with it components that need no driver."""
    given, placement = policy(nodeStatusExporter={"enabled": True}), {**placement, "cuda": "host"}
    made, notes = plan(given, mine, placement)
    assert list(made["software"]) == ["node_status_exporter"] and made["container_toolkit"]["placement"] == "host"
    assert not {"cuda", "dcgm", "dcgm_exporter"} & {*made["preview"], *made["delivered"]}
    assert {f"h: {title} is not delivered: {reason}." for title in ("CUDA", "DCGM", "DCGM exporter")} <= {*notes}
    assert made["dcgm"]["because"] == [f"not delivered: {reason}"]
    level, _notes = plan(given, {**mine, "cuda_version": "13.0"}, placement)
    assert list(level["software"]) == ["cuda", "node_status_exporter"]
    if reason == NO_DRIVER:
        there, notes = plan(given, mine, placement, driver={"loaded": "595.91.07", "library": "595.91.07"})
        assert list(there["software"]) == ["cuda", "dcgm", "dcgm_exporter", "node_status_exporter"] and notes == []
    with pytest.raises(PolicyError, match=f"MIG layout 'all-1g.10gb' is selected, but {reason}"):
        plan(given, {**mine, "mig_manager_selected": "all-1g.10gb"}, placement)


def test_what_the_cluster_brings_to_a_host_that_is_a_node() -> None:
    made, _notes = plan({"dcgm": {"enabled": True}}, placement="hybrid")
    assert made["software"] == {}
    assert made["dcgm"]["because"] == made["dcgm_exporter"]["because"] == ["delivered in the cluster"]
    # What the policy leaves off nobody brings.
    assert made["node_status_exporter"]["because"] == ["not delivered: nodeStatusExporter.enabled is false"]


def test_words_for_places() -> None:
    for word in ("cluster", "hybrid"):
        places = components.placements(word)
        assert {places[name] for name in ("dcgm", "dcgm_exporter", "node_status_exporter", "validator")} == {"cluster"}
        assert places["cuda"] == "none"
    assert components.placements("hosts")["dcgm"] == "host"


HOST = {"placement": "host", "state": "present"}
EXPORTER = {**HOST, "version": "4.8.3", "listen": ":9400"}


def judged(want: Data, samples: t.Any = None, **software: t.Any) -> dict[str, tuple[str, str]]:
    facts = facts_sample.driven(facts_sample.facts(["20b2"]), "595.91.07")
    facts["software"].update(software)
    return {check.component: (check.state, check.detail) for check in verify(want, facts, samples=samples)}


@pytest.mark.parametrize(("component", "want", "have", "state", "words"), [
    ("dcgm", {**HOST, "version": "4.6.0"}, None, "absent", "not installed"),
    ("dcgm", {**HOST, "version": "4.6.0"}, {"version": "4.6.0", "running": True}, "ok", "4.6.0"),
    ("dcgm", {**HOST, "version": None}, {"version": "4.5.0", "running": True}, "ok", "4.5.0"),
    ("dcgm", {**HOST, "version": "4.6.0"}, {"version": "3.3.9", "running": True}, "failed",
     "version is 3.3.9, desired is 4.6.0"),
    ("dcgm", {**HOST, "version": "4.6.0"}, {"version": "4.6.0", "running": False}, "failed", "does not run"),
    ("dcgm_exporter", EXPORTER, {"version": "4.8.3", "running": True, "listen": ":9400"}, "ok", "4.8.3 :9400"),
    ("dcgm_exporter", EXPORTER, {"version": "4.8.3", "running": True, "listen": ":1"}, "failed", "listen is :1"),
    ("node_status_exporter", {**HOST, "folder": "/a"}, {"running": True, "folder": "/a"}, "ok", "/a"),
    ("node_status_exporter", {**HOST, "folder": "/a"}, {"running": True, "folder": "/b"}, "failed",
     "/b, desired is /a"),
    ("cuda", {**HOST, "version": "13.0"}, {}, "absent", "no CUDA toolkit"),
    ("cuda", {**HOST, "version": "13.0"}, {"12.9": "12.9.1"}, "failed", "CUDA 12.9.1 is installed, desired is 13.0"),
    ("cuda", {**HOST, "version": "13.0"}, {"12.9": "12.9.1", "13.0": "13.0.2"}, "ok", "13.0.2"),
    ("cuda", {**HOST, "version": "13.0.2"}, {"13.0": "13.0.2"}, "ok", "13.0.2"),
    ("cuda", {**HOST, "version": "13"}, {"13.1": "13.1.0"}, "ok", "13.1.0"),
    ("cuda", {**HOST, "version": None}, {"13.1": "13.1.0"}, "ok", "13.1.0"),
    ("cuda", {**HOST, "version": "1"}, {"13.1": "13.1.0"}, "failed", "desired is 1")])
def test_a_component_is_judged(component: str, want: Data, have: t.Any, state: str, words: str) -> None:
    found = judged({component: want}, **{component: have})[component]
    assert found[0] == state and words in found[1]


def test_samples_are_judged() -> None:
    want = {"validator": {"placement": "host"}}
    good = {"gpu": "0000:07:00.0", "device": "GPU-1", "state": "ok", "reason": ""}
    bad = {**good, "gpu": "0000:08:00.0", "state": "failed", "reason": "cuInit: CUDA_ERROR_NO_DEVICE"}
    assert judged(want) == {}  # not run, not judged
    assert judged(want, [good, {**good, "state": "busy"}])["validator"] == ("ok", "CUDA works on 1 GPU, 1 in use")
    assert judged(want, [good, bad, bad])["validator"] == (
        "failed", "0000:08:00.0: cuInit: CUDA_ERROR_NO_DEVICE and 1 more GPU")
    facts = facts_sample.facts(["20b2"])
    waits = with_pending(verify(want, facts, samples=[{**bad, "gpu": None}]),
                         {"driver": [{"id": "load", "pending_reason": "x"}]})
    assert waits[0].state == "pending" and "waits for the driver: CUDA: cuInit" in waits[0].detail


def _check(component: str, state: str) -> HostCheck:
    return HostCheck(component, state, "fine")


def test_one_column_for_what_stands_beside_the_driver() -> None:
    checks = [_check("driver", "ok")]
    report = Report(None, "", {"a": Host(None, checks, {}, {}), "b": Host(None, None, {}, {})}, None, ())
    assert "software" not in columns(report)
    checks += [_check("dcgm", "ok"), _check("validator", "failed")]
    assert columns(report)["software"] == ["dcgm", "validator"] and columns(report)["toolkit"] == ["container_toolkit"]
    several = [_check("dcgm", "ok"), _check("cuda", "pending"), _check("validator", "failed")]
    assert result_cell(several) == result_cell(several[::-1]) and result_cell(several).text == "validator failed"
    assert result_cell(several[:2]).text == "CUDA pending" and result_cell(several[:1]).text == "fine"
    assert result_cell([several[0], _check("cuda", "ok")]).text == "2 parts"
    assert result_cell([_check("cuda", "absent"), _check("dcgm", "absent")]).text == "2 absent"

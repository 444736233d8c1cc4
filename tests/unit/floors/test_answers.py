# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A compromised host: no answer of it sets a variable or reaches a terminal, and each invalid answer is one named
failure."""

from __future__ import annotations

import copy
import datetime
import inspect
import json
import pathlib
import typing as t
from types import SimpleNamespace

import pytest
import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.action import container_toolkit as toolkit
from ansible_collections.gpuops.nvidia.plugins.action import gpu_policy, gpu_report
from ansible_collections.gpuops.nvidia.plugins.action.gpu_info import ActionModule as Info
from ansible_collections.gpuops.nvidia.plugins.action.gpu_labels import ActionModule as Labels
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.modules import gpu_info as documented
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.answers import AnswerError, parsed, received
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import Asking, HostAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import verify
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable, printable_data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.shapes import Fields, Nullable, Rows, Shape, Table
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report, terminal, webpage
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Report
from ansible_collections.gpuops.nvidia.tests.unit.facts import samples
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act

Data = t.Dict[str, t.Any]
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


class Host:
    """One task of a host action on a host with these answers."""

    def __init__(self, kind: type[HostAction], answer: t.Any) -> None:
        self.action = kind.__new__(kind)
        self.action._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))
        self.action._task = SimpleNamespace(environment=None, async_val=0, check_mode=False, action="x", args={})
        self.action._execute_module = lambda **_options: answer
        self.action._remove_tmp_path = lambda *_path: None

    def run(self, variables: Data | None = None) -> Data:
        """The result of the task."""
        result: Data = self.action.run(None, variables or {})
        return result


def full() -> Data:
    """Facts in which every key that can be null or empty has a value."""
    made = facts_sample.driven(facts_sample.facts(["20b2 10de:1463", "20b2 10de:1463"], secure_boot=True), "580.126.20")
    made["gpus"][0]["mig"] = {"enabled": True, "pending": True, "instances": [{
        "gi": 7, "profile": "1g.10gb", "profile_id": 19, "start": 0, "size": 1, "uuids": ["MIG-1"],
        "devices": [{"uuid": "MIG-1", "ci": 0, "profile": "1g.10gb", "gi_slices": 1, "ci_slices": 1, "memory_mib": 9856,
                     "multiprocessors": 14, "copy": 1, "decoder": 0, "encoder": 0, "jpeg": 0, "ofa": 0}]}]}
    made["gpus"][0]["health"] = {
        "ecc": {"volatile": 0, "aggregate": None}, "retired_pages_pending": False, "recovery": "none",
        "remapped_rows": {"correctable": 0, "uncorrectable": 2, "pending": True, "failed": False},
        "nvlink": {"links": 12, "down": [3]}, "idle": False, "slowdown": ["hw_thermal"],
        "fabric": {"state": "completed", "status": 0},
        "pcie": {"width": 8, "width_max": 16, "generation": 4, "generation_max": 4}}
    made["xids"] = [{"pci": "0000:07:00.0", "xid": 79, "count": 1, "first": "2026-11-27T20:00:00Z",
                     "last": "2026-11-27T20:01:02Z"}]
    made["gpus"][1].update(error="The GPU does not answer.", fabric={"cluster": "0-1", "clique": 7}, serial="165",
                           memory_mib=81920)
    made["host"].update(virtual="kvm", cloud="aws", lockdown="none")
    made["host"]["markers"].update(dgx={"name": "DGX", "version": "7"}, kubernetes="k3s")
    made["host"]["kernel"]["headers_available"] = True
    made.update(vgpu={"version": "580", "branch": "r580"}, nvswitches=[{"pci": "0000:c4:00.0", "device_id": "1af1"}],
                clients=[{"pid": 7, "name": "python3", "gpu": "0000:07:00.0", "instance": 7, "unit": None,
                          "container": "0123456789ab"}],
                mig_boot={"enabled": True, "masked": False, "vendor": "nvidia-mig-manager.service", "gpus": {"gpu-1": {
                    "pci": "0000:07:00.0", "enabled": True, "instances": [
                        {"profile": "7g.80gb", "start": 0, "compute": [[7, 0]]}]}}})
    made["driver"]["dkms"] = [{"name": "nvidia", "version": "580.126.20", "kernel": "6.8", "state": "installed"}]
    made["driver"]["nvml"].update(cuda="13.0", error="no")
    made["toolkit"].update(version="1.20.0", packages={"nvidia-container-toolkit": "1.20.0-1"},
                           cdi_specs=["/var/run/cdi/nvidia.yaml"], cdi={"devices": ["0"], "driver": "580.126.20"})
    made["software"] = {"cuda": {"13.0": "13.0.2"}, "dcgm": {"version": "4.6.0", "running": True},
                        "dcgm_exporter": {"version": "4.8.3", "running": True, "listen": ":9400"},
                        "node_status_exporter": {"running": True, "folder": "/x"}}
    return made


def places(value: t.Any, path: t.Tuple[t.Any, ...] = ()) -> t.Iterator[t.Tuple[t.Any, ...]]:
    """The paths of all values of a document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*path, key))


def put(document: Data, path: t.Tuple[t.Any, ...], value: t.Any) -> Data:
    """A copy of a document with another value at a path."""
    made = copy.deepcopy(document)
    holder: t.Any = made
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return made


def nested(levels: int) -> t.Any:
    """A list in a list in a list, with this many levels."""
    value: t.Any = []
    for _level in range(levels):
        value = [value]
    return value


FORGED_VALUES: list[t.Any] = [None, True, 7, -7, 1.5, 10**40, 2**63, "", "x", "-oProxyCommand=touch /tmp/x", "{{ 1 }}",
                              "nonsense.1", "x" * 5000, "٣٣٣.١", [], [None], [{}], {}, {"x": {}}, {"": None}]


def planned(facts: Data) -> None:
    """Everything that the controller computes from the facts of a host."""
    policy = formats.read(None, releases.release())
    plan: Data | None = None
    mine = {"mig_manager_selected": "all-balanced"}
    for chosen in ({}, mine):
        try:
            plan = {**resolve(policy, releases.release(), {"a": facts}, {"a": chosen}), "cluster": None}
            found = preflight.listed(preflight.checks(plan, {"a": facts}, None, datetime.date(2026, 11, 23)))
            checks = [check.as_dict() for check in verify.verify(plan["hosts"]["a"], facts)]
            problem = None
        except GpuopsError as error:
            found = preflight.listed(preflight.refused(error.as_result()["error"], {"a": facts}, None,
                                                       datetime.date(2026, 11, 23)))
            plan, checks, problem = None, None, error.message
        shown = Report.of({"plan": plan, "problem": problem, "findings": found, "cluster": None,
                 "hosts": {"a": {"facts": facts, "checks": checks, "steps": {}, "pending": {}}}})
        for render in (report.render_plan, report.render_preflight, report.render_result, report.render_state):
            if plan or render is not report.render_plan:
                assert "\x1b" not in render(shown, terminal.Style())
        webpage.page(shown)


def test_the_shape_is_that_of_real_facts_and_of_the_documentation() -> None:
    for make in (*samples.ALL.values(), full, facts_sample.facts):
        assert answer_shapes.FACTS.fault(make()) is None
    contains = yaml.safe_load(documented.RETURN)["facts"]["contains"]
    assert set(contains) == set(answer_shapes.FACTS.needed)
    for name, one in contains.items():
        shape = answer_shapes.FACTS.needed[name]
        # Of modules the documentation shows some.
        if "sample" in one and name not in ("modules", "host", "driver"):
            assert shape.fault(one["sample"]) is None, name
        elif "sample" in one:
            assert isinstance(shape, Fields) and set(one["sample"]) <= set(shape.needed), name


def test_every_value_of_full_facts_has_a_shape() -> None:
    """So no key is skipped because it is null in the sample."""
    def met(shape: Shape, value: t.Any) -> None:
        if isinstance(shape, Nullable):
            met(shape.shape, value)
        elif isinstance(shape, Fields):
            for key, one in {**shape.needed, **shape.optional}.items():
                if value.get(key) is not None:
                    met(one, value[key])
        elif isinstance(shape, Rows):
            for one in value:
                met(shape.shape, one)
        elif isinstance(shape, Table):
            for one in value.values():
                met(shape.shape, one)
        assert shape.fault(value) is None

    met(answer_shapes.FACTS, full())


def test_hundreds_of_forged_facts() -> None:
    """Each is a failure with a path, or facts that give a plan, findings and reports like any others."""
    whole, refused, believed = full(), 0, 0
    for path in places(whole):
        for value in FORGED_VALUES:
            forged = put(whole, path, value)
            result = Host(Info, {"changed": False, "facts": forged}).run()
            if result.get("failed"):
                refused += 1
                assert result["error"]["kind"] == answer_shapes.KIND, (path, value)
                assert result["error"]["path"].startswith("facts") and "facts" not in result
                assert len(result["msg"]) < 2000
            else:
                believed += 1
                try:
                    planned(result["facts"])
                except Exception as error:
                    raise AssertionError(f"{path} = {value!r:.80}") from error
    assert refused > 1500 and believed > 200, (refused, believed)


@pytest.mark.parametrize("change", [
    lambda facts: facts.pop("driver"), lambda facts: facts["gpus"][0].pop("uuid"), lambda facts: facts.update(more=1),
    lambda facts: facts["gpus"].extend(facts["gpus"][:1] * 300), lambda facts: facts.update(schema=4),
    lambda facts: facts["driver"].update(packages={str(number): "1" for number in range(20_000)}),
    lambda facts: facts["driver"].update(packages={"x" * 5000: "1"}),
    lambda facts: facts["gpus"][0].update(pci=ESCAPE), lambda facts: facts.update(gpus=nested(40)),
    lambda facts: facts.update(clients=nested(100_000)), lambda facts: facts.update(clients=[0] * 2_000_000),
], ids=range(11))
def test_forged_in_size_and_depth(change: t.Callable[[Data], t.Any]) -> None:
    facts = full()
    change(facts)
    result = Host(Info, {"changed": False, "facts": facts}).run()
    assert result["failed"] and result["error"]["kind"] == answer_shapes.KIND and len(result["msg"]) < 2000
    json.dumps(result)


def test_a_success_has_what_the_module_documents() -> None:
    assert Host(Info, {"changed": False}).run()["error"]["path"] == "facts"
    for answer in ({"failed": True, "msg": "no"}, {"unreachable": True, "msg": "gone"}):
        assert Host(Info, answer).run() == answer


def test_an_answer_sets_no_variable() -> None:
    """Facts take precedence over the inventory: one host could set the level of the whole fleet, or the registry of its
    images."""
    forged = {"ansible_facts": {"gpu_disruption": "reboot", "gpu_image_registry": "evil.example", "ansible_host": "x",
                                "gpu_labels": {"nvidia.com/gpu.count": "8"}},
              "ansible_stats": {"data": {"x": 1}}, "add_host": {"host_name": "x"}, "add_group": "x", "results": [1],
              "_ansible_facts_cacheable": True, "ansible_module_results": 1, "_ansible_parsed": True, "changed": False}
    assert Host(HostAction, forged).run() == {"_ansible_parsed": True, "changed": False}
    named = Host(Labels, {**forged, "labels": {}}).run({})
    assert named["ansible_facts"] == {"gpu_labels": {"nvidia.com/gpu.count": "8"}}
    assert "ansible_facts" not in Host(HostAction, {"failed": True, **forged}).run()


def test_the_python_that_ansible_has_found_stays_a_fact() -> None:
    """Otherwise, each task would search for Python; the host itself cannot set the variable."""
    host = Host(HostAction, {"ansible_facts": {"discovered_interpreter_python": "/x", "other": 1}})
    assert host.run() == {}
    host.action._discovered_interpreter_key = "discovered_interpreter_python"
    host.action._discovered_interpreter = "/usr/bin/python3"
    assert host.run() == {"ansible_facts": {"discovered_interpreter_python": "/usr/bin/python3"}}


@pytest.mark.parametrize("labels", [[], "x", {"a": 1}, {"a": {}}, {"a": "b" * 300}, {"a" * 400: "b"},
                                    {str(number): "x" for number in range(3000)}])
def test_labels_are_text_by_text(labels: t.Any) -> None:
    for answer in ({"labels": labels}, {"ansible_facts": {"gpu_labels": labels}}):
        assert Host(Labels, answer).run()["error"]["kind"] == answer_shapes.KIND


@pytest.mark.parametrize("answer", [
    {"error": "text", "failed": True}, {"error": {"kind": []}, "failed": True}, {"error": {"message": 1}},
    {"error": {"kind": "missing_library", "library": "pynvml"}, "failed": True}, {"error": {}},
    {"plan": {}}, {"plan": [1]}, {"plan": [{"id": "x"}]}, {"pending": [{}]}, {"failed": "yes"}, {"msg": {}},
    {"samples": [{}]}, {"components": {"cuda": []}}, {"components": {"cuda": {"plan": [7]}}}, {"diff": "x"},
    {"plan": [{"id": "a", "action": "a", "target": "a", "reason": "", "needs": "all", "assumed": False}]},
    {"unread": [1]}, {"anything": nested(60)}, {"reboot_required": "yes"}, {"mok": True}, {"mok": {"pending": 1}},
    {"touched": 7}, {"touched": [[]]}, {"holders": {}}, {"holders": [{"pid": "1"}]}, {"holders": [{"container": 7}]}])
def test_what_the_controller_reads_of_any_answer(answer: Data) -> None:
    """A report contains the answers of all hosts, so one invalid answer would end it for all."""
    assert Host(HostAction, answer).run()["error"]["kind"] == answer_shapes.KIND


def test_nothing_reaches_a_terminal() -> None:
    """A process can have any name, and a terminal of root executes control sequences."""
    step = {"id": f"stop: {ESCAPE}", "action": "stop", "target": ESCAPE, "reason": f"{ESCAPE}\n\tx", "needs": "drain",
            "assumed": False}
    told = Host(HostAction, {"msg": ESCAPE, "plan": [step], ESCAPE: [{"deep": (ESCAPE,)}], "stdout": "a\rb",
                             "diff": [{"before": ESCAPE, "after": "é ✔ → \U0001f600\n"}]}).run()
    text = json.dumps(told, ensure_ascii=False).encode().decode()
    assert not [sign for sign in text if not sign.isprintable()]
    assert told["plan"][0]["reason"] == r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e" + "\n\tx"
    assert told["diff"][0]["after"] == "é ✔ → \U0001f600\n" and told["stdout"] == r"a\rb"
    assert printable("\ud800") == r"\ud800" and printable_data({1: None, "a": 1.5}) == {1: None, "a": 1.5}


def test_warnings_of_a_module_are_objects_and_printable() -> None:
    """In ansible-core 2.18, warnings are texts."""
    messages = pytest.importorskip("ansible.module_utils._internal._messages")
    warning = messages.WarningSummary(event=messages.Event(msg=ESCAPE, help_text=f"{ESCAPE}x"))
    told, = Host(HostAction, {"warnings": [warning], "changed": False}).run()["warnings"]
    assert type(told) is type(warning) and told.event.msg.isprintable() and told.event.help_text.isprintable()


def test_a_table_shows_no_sequences() -> None:
    """Data from a cluster is not validated like an answer of a host."""
    style = terminal.Style(paint=lambda text, state: f"\x1b[31m{text}\x1b[0m" if state else text)
    table = style.table(["host"], [[terminal.Cell(ESCAPE), terminal.Cell("x", "failed")]])
    assert "\x9b" not in table and "\x1b]" not in table and "\x1b[31m" in table
    assert "\x1b" not in style.entry(ESCAPE, ESCAPE, 2) and "\x1b" not in style.text(ESCAPE)


def test_one_forged_host_is_left_out_and_the_others_have_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = received({"facts": {**full(), "gpus": 7}}, {}, (), ("facts",))
    variables = task_vars(a={"preflight_found": {"facts": full()}}, b={"preflight_found": bad})
    variables["groups"] = {"gpu_hosts": ["a", "b"]}
    plan = act(gpu_policy.ActionModule, {}, variables)
    assert not plan.get("failed") and list(plan["hosts"]) == ["a"] and plan["rejected"]["b"]["path"] == "facts.gpus"
    alone = act(gpu_policy.ActionModule, {}, task_vars(a={"preflight_found": {"facts": full()}}))
    assert plan["hosts"] == alone["hosts"] and alone["rejected"] == {}
    first = plan["checks"][0]
    assert (first["host"], first["severity"]) == ("b", "error")
    assert "facts.gpus is 7 (allowed: a list)" in first["text"]
    lines: list[str] = []
    monkeypatch.setattr(gpu_report, "display", SimpleNamespace(display=lines.append))
    found = act(gpu_report.ActionModule, {"show": "plan", "plan": plan}, variables)
    assert found["counts"]["error"] == 1 and "facts.gpus is 7" in " ".join(lines[0].split())


@pytest.mark.parametrize("name", ["gpu_node_name", "gpu_profile", "device_plugin_config", "gpu_disruption"])
def test_a_host_with_a_forged_fact_is_left_out_and_the_others_have_a_plan(name: str) -> None:
    """The same applies to the part of the cluster, which names Nodes by hosts. The fact can come from a cache."""
    options = {"placement": "hybrid", "render_to": "manifests", "node_os": ["ubuntu24.04"]}
    forged = {"preflight_found": {"facts": full()}, "ansible_facts": {name: "a"}, name: "a"}
    variables = task_vars(a={"preflight_found": {"facts": full()}}, b=forged)
    variables["groups"] = {"gpu_hosts": ["a", "b"]}
    plan = act(gpu_policy.ActionModule, options, variables)
    assert not plan.get("failed"), plan
    assert list(plan["hosts"]) == ["a"] and list(plan["rejected"]) == ["b"]
    assert plan["rejected"]["b"]["path"] == f"hostvars.b.{name}"
    assert plan["cluster"]["nodes"]["by_host"] == {"a": "a", "b": "b"}


def test_options_never_rest_on_a_hosts_own_facts() -> None:
    """Tasks for all hosts run on the first host, and a fact of setup or of a cache takes precedence over the
    inventory."""
    forged = {"inventory_hostname": "a", "ansible_facts": {"gpu_take_over": True}}
    for kind in (Info, Labels):
        assert Host(kind, {"facts": full()}).run(forged)["error"]["path"] == "hostvars.a.gpu_take_over"
    variables = {**task_vars(a={"preflight_found": {"facts": full()}, **forged}), **forged}
    told = act(gpu_policy.ActionModule, {}, variables)
    assert told["failed"] and told["error"]["path"] == "hostvars.a.gpu_take_over"


@pytest.mark.parametrize("options", [{"resolve": False}, {"resolve": False, "export": "cluster_policy"}])
def test_a_forged_first_host_does_not_end_what_concerns_no_host(options: Data, tmp_path: pathlib.Path) -> None:
    """remove.yml and hand_back.yml begin with such a task, once for all hosts; later, only the forged host fails."""
    folders = {name: tmp_path / name for name in ("inventory", "evil")}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "policy.yml").write_text(f"driver: {{version: {'580.126.20' if name == 'inventory' else '1.2.3'}}}")
    forged = {"gpu_disruption": "reboot", "gpu_policy": {"driver": {"version": "1.2.3"}}, "gpu_namespace": "evil",
              "gpu_kubeconfig": "/etc/passwd", "gpu_max_unavailable": "100%", "inventory_dir": str(folders["evil"])}
    said = {"gpu_policy": "policy.yml", "gpu_disruption": "idle", "inventory_dir": str(folders["inventory"])}
    variables = {**task_vars(a={"ansible_facts": forged, **forged}, b=said, c=said), "ansible_facts": forged, **forged}
    variables |= {"groups": {"gpu_hosts": ["a", "b", "c"]}, "ansible_inventory_sources": [str(folders["inventory"])]}
    told = act(gpu_policy.ActionModule, options, variables)
    sound = {**task_vars(b=said, c=said), "groups": {"gpu_hosts": ["b", "c"]}, **said}
    alone = act(gpu_policy.ActionModule, options, sound)
    assert not told.get("failed"), told
    # Also where it only stands for a cluster.
    control = {**variables, "groups": {"gpu_hosts": ["b", "c"], "gpu_control": ["a"]}}
    assert list(act(gpu_policy.ActionModule, options, control)["rejected"]) == ["a"]
    assert list(told.pop("rejected")) == ["a"] and alone.pop("rejected") == {}
    for result in (told, alone):
        for by_host in ("hosts", "host_nodes"):
            result.pop(by_host, None)
    assert {**told, "batch": 1} == {**alone, "batch": 1} and told.get("batch") == alone.get("batch")


@pytest.mark.parametrize("kind", [Info, HostAction, toolkit.ActionModule])
def test_what_is_printed_beside_an_answer(kind: type[Asking], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible prints it in a warning; deeper nesting than Python can parse would end the task with an error."""
    said: list[str] = []
    monkeypatch.setattr("ansible.plugins.action.display.warning", said.append)
    action = kind.__new__(kind)
    profile = () if len(inspect.signature(ActionBase._parse_returned_data).parameters) < 3 else ("legacy",)
    lines = f'{ESCAPE}\n{{"a": "\u202e",\n"b": 1}}\n{ESCAPE}\n'
    told = action._parse_returned_data({"stdout": lines, "rc": 0}, *profile)
    assert (told["a"], told["b"]) == ("\u202e", 1)
    assert len(said) == 1 and "owned" in said[0] and all(sign.isprintable() for sign in said[0])
    keys = {"_ansible_item_label": ESCAPE, "add_host": {}, "results": 7, "ansible_facts": {"a": 1}, "x": 1}
    plain = action._parse_returned_data({"stdout": json.dumps(keys)}, *profile)
    assert plain == {"ansible_facts": {"a": 1}, "x": 1, "_ansible_parsed": True}
    for text in ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"a": {"__ansible_type": "TrustedAsTemplate"}}'):
        with pytest.raises(AnswerError, match="what Ansible cannot read"):
            action._parse_returned_data({"stdout": text}, *profile)
    for text in ('{"ansible_facts": [1]}', '{"stdout": 7}', '{"stderr": {}}'):
        with pytest.raises(AnswerError, match="allowed: a"):
            action._parse_returned_data({"stdout": text}, *profile)


def test_a_task_on_an_answer_without_end_is_a_named_failure() -> None:
    host = Host(Info, {})
    host.action._execute_module = lambda **_options: parsed(lambda: json.loads("[" * 100_000))
    assert host.run()["error"]["kind"] == answer_shapes.KIND


def test_whether_a_host_is_believed_is_not_its_to_say() -> None:
    """The stored form of such an error has keys that an error of the host itself cannot have."""
    plain = {"kind": answer_shapes.KIND, "message": "y", "hint": "z"}
    for error in (plain, {**plain, "path": "x"}):
        told = Host(Info, {"failed": True, "msg": "x", "error": error}).run()
        assert told["error"]["path"] == "error.kind" and told["error"]["hint"] != "z"
        variables = task_vars(a={"preflight_found": {"facts": full()}}, b={"preflight_found": told})
        variables["groups"] = {"gpu_hosts": ["a", "b"]}
        plan = act(gpu_policy.ActionModule, {}, variables)
        assert list(plan["hosts"]) == ["a"] and plan["rejected"]["b"]["path"] == "error.kind"

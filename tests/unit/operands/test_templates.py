# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rendered templates as YAML: the same data with libyaml and without it, and errors that name template and line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import yamltext
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import monitoring
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, objects, pod

ROLES = Path(render.__file__).parents[3] / "roles"
SHARED = ROLES.parent / "plugins/plugin_utils/_operands/pod.j2"
ODD = "tab\there: \"quoted\" 'twice' # é\u2028 \\n {{ x }}\n- 0x10 \U0001f680"
EVERYTHING: dict[str, Any] = {
    "nfd": {"nodefeaturerules": True}, "dcgm": {"enabled": True},
    "gds": {"enabled": True}, "gdrcopy": {"enabled": True},
    "driver": {"rdma": {"enabled": True}, "env": [{"name": "ODD", "value": ODD}]},
    "daemonsets": {"labels": {"on": "yes", "octal": "0755"}, "annotations": {"odd": ODD}},
    "dcgmExporter": {"serviceMonitor": {"enabled": True}, "hostPID": True, "enablePodLabels": True,
                     "enablePodUID": True,
                     "config": {"name": "metrics", "create": True, "data": {"dcgm-metrics.csv": ODD}}},
    "devicePlugin": {"config": {"name": "plugin", "create": True, "data": {"a": "version: v1\nsharing: {}\n"}}},
    "nodeStatusExporter": {"enabled": True},
}
MONITORED = {"service_monitors": True, "prometheus_rules": True}
OPENSHIFT = node(("rhcos", "4.18"), runtime="cri-o")
CASES: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (EVERYTHING, {**facts(node()), **MONITORED}, {"monitoring": monitoring.read({"rules": True, "dashboards": True})}),
    (EVERYTHING, facts(node()), {"release": "24.6.2"}),
    ({"driver": {"enabled": False}, "nodeStatusExporter": {"enabled": True}}, {**facts(OPENSHIFT), **MONITORED}, {}),
]


def test_libyaml_reads_every_template_as_pyyaml_does(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()

    def parse(text: str, origin: str, **_own: bool) -> list[yamltext.Document]:
        found = yamltext.parse(text, origin)
        read.update([origin] if found else [])
        return found
    fast = [objects(policy, cluster, **more) for policy, cluster, more in CASES]
    monkeypatch.setattr(render, "parse", parse)
    slow = [objects(policy, cluster, **more) for policy, cluster, more in CASES]
    for ours, theirs in zip(fast, slow, strict=True):
        assert list(ours) == list(theirs)
        assert [(name, ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]] == []
    assert {str(path.relative_to(ROLES)) for path in ROLES.glob("*/templates/*.yaml.j2")} == read


# What is in a template's own text: loops over its own words, files beside it, and macros that say it themselves.
OWN = re.compile(r"check|feature|indent|module|name|program|entry\.devices"
                 r"|(script|alert|config_manager\.container|pod\.[a-z_]+|pull_secrets)\(.*"
                 r'|", subPath: " ~ \(key \| tojson\) if key|"        env:\\n" if loop\.first', re.DOTALL)


def test_every_value_is_quoted() -> None:
    """Without quotes, C(on) becomes a boolean and C(0123) a number, and a text with a colon breaks the template."""
    bare = []
    for path in sorted([*ROLES.glob("*/templates/*.j2"), SHARED]):
        inside: list[str] = []
        for line, kind, text in jinja2.Environment().lex(path.read_text(encoding="utf-8")):
            if kind == "variable_begin":
                inside = []
            elif kind == "variable_end":
                expression = "".join(inside).strip()
                if not expression.endswith("| tojson") and not OWN.fullmatch(expression):
                    bare.append(f"{path.parents[1].name}/{path.name}, line {line}: {expression}")
            else:
                inside.append(text)
    assert bare == []


@pytest.mark.parametrize("text", ["on", "0123", "1e3", "null", "a: b", "a #b", "[x", "'", '"', "~", "@x", "2026-01-01"])
def test_a_text_stays_a_text(text: str) -> None:
    """Wherever a policy or a user sets a name."""
    policy = {"operator": {"runtimeClass": text}, "toolkit": {"installDir": f"/{text}"}, "mig": {"strategy": "mixed"},
              "hostPaths": {"kubeletRootDir": f"/{text}", "driverInstallDir": f"/{text}", "rootFS": f"/{text}"},
              "devicePlugin": {"config": {"name": text}, "mps": {"root": f"/{text}"}},
              "migManager": {"config": {"name": text}, "gpuClientsConfig": {"name": text}},
              "dcgmExporter": {"config": {"name": text}, "hpcJobMapping": {"enabled": True, "directory": f"/{text}"},
                               "serviceMonitor": {"enabled": True, "additionalLabels": {text: text}}},
              "driver": {"secretEnv": text, "repository": f"reg/{text}"}}
    found = objects(policy, {**facts(node()), **MONITORED}, namespace=text)
    assert found[f"RuntimeClass/{text}"]["handler"] == text
    assert {one["metadata"].get("namespace", text) for one in found.values()} == {text}
    plugin, exporter = pod(found, "nvidia-device-plugin-daemonset"), pod(found, "nvidia-dcgm-exporter")
    assert plugin["runtimeClassName"] == text
    volumes = {one["name"]: one for one in (*plugin["volumes"], *exporter["volumes"])}
    assert volumes[text] == {"name": text, "configMap": {"name": text}}
    assert [volumes[name]["hostPath"]["path"] for name in ("mps-root", "mps-shm", "pod-gpu-resources")] == [
        f"/{text}", f"/{text}/shm", f"/{text}/pod-resources"]
    driver = pod(found, "nvidia-driver-daemonset")
    assert driver["containers"][0]["envFrom"] == [{"secretRef": {"name": text}}]
    assert found["ServiceMonitor/nvidia-dcgm-exporter"]["metadata"]["labels"][text] == text


@pytest.mark.parametrize(("text", "told"), [
    ("---\nkind: A\n---\nkind: B\nname: [a\ndata: b\n", "x.yaml.j2, line 6: not YAML"),
    ("kind: A\nname: \"a\n", "x.yaml.j2, line 3: not YAML"),
    ("kind: A\n\tname: a\n", "x.yaml.j2, line 2: not YAML"),
    ("kind: A\nname: *a\n", "x.yaml.j2, line 2: not YAML: found undefined alias"),
    ("kind: A\nname: !odd a\n", "x.yaml.j2, line 2: not YAML: could not determine a constructor"),
    ("kind: A\nname: a\nkind: B\n", "x.yaml.j2, line 3: kind is repeated, first on line 1"),
])
def test_errors_name_template_and_line(text: str, told: str) -> None:
    assert hasattr(yaml, "CSafeLoader")
    with pytest.raises(InputError) as seen:
        yamltext.parse(text, "x.yaml.j2", own=True)
    assert told in str(seen.value)

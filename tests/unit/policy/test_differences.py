# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares policies: differences of meaning count, differences of notation do not."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import differences, formats

NEWEST = releases.release("26.7.0")


def policy(source: Any) -> formats.Policy:
    return formats.read(source, NEWEST)


def resource(kind: str = "ClusterPolicy", api: str = "v1", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": f"nvidia.com/{api}", "kind": kind, "metadata": {"name": "one"}, "spec": spec}


def between(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    return [(found["path"], found["before"], found["after"])
            for found in differences.compare(policy(one), policy(other))]


@pytest.mark.parametrize(("one", "other", "expected"), [
    ({}, {}, []),
    ({}, None, []),
    ({"driver": {"version": "580.126.20"}}, {"driver": {"version": "595.91.07"}},
     [("driver.version", "580.126.20", "595.91.07")]),
    ({}, {"driver": {"kernelModuleType": "auto", "rdma": {"enabled": False}}}, []),
    ({}, {"mig": {"strategy": "mixed"}}, [("mig.strategy", "single", "mixed")]),
    ({"toolkit": {"env": [{"name": "A", "value": "1"}, {"name": "B"}]}},
     {"toolkit": {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}, {"name": "C", "value": "3"}]}},
     [("toolkit.env[B]", "", "2"), ("toolkit.env[C]", None, "3")]),
    ({"daemonsets": {"tolerations": [{"key": "a"}]}}, {}, [("daemonsets.tolerations", [{"key": "a"}], None)]),
    ({"driver": {"upgradePolicy": {"maxUnavailable": 1}}}, {"driver": {"upgradePolicy": {"maxUnavailable": "25%"}}},
     [("driver.upgradePolicy.maxUnavailable", 1, "25%")]),
    ({"migManager": {"config": {"default": ""}}}, {"migManager": {"config": {"default": "all-disabled"}}},
     [("migManager.config.default", "", "all-disabled")]),
    ({}, {"migManager": {"config": {"default": "all-disabled"}}, "toolkit": {"installDir": "/usr/local/nvidia"}}, []),
    ({}, {"toolkit": {"installDir": "/opt"}}, [("toolkit.installDir", "/usr/local/nvidia", "/opt")]),
    ({"nfd": {"enabled": False}}, {}, [("nfd.enabled", False, None)]),
    ({"nfd": {"enabled": False}}, {"dcgm": {"enabled": True}},
     [("dcgm.enabled", False, True), ("nfd.enabled", False, None)]),
    ({"psp": {"enabled": True}, "driver": {"useOpenKernelModules": True}}, {}, []),
])
def test_of_one_format(one: Any, other: Any, expected: list[Any]) -> None:
    assert between(one, other) == expected


def test_formats_that_mean_the_same_do_not_differ() -> None:
    values = {"driver": {"upgradePolicy": {"autoUpgrade": False, "gpuPodDeletion": {"force": True}}},
              "dcgm": {"enabled": True}, "mig": {"strategy": None}, "nfd": {"enabled": False},
              "vgpuDeviceManager": {"enabled": False}, "vfioManager": {"enabled": False},
              "sandboxDevicePlugin": {"enabled": False}, "kataSandboxDevicePlugin": {"enabled": False},
              "ccManager": {"enabled": False, "defaultMode": None}, "dcgmExporter": {"serviceMonitor": None},
              "operator": {"use_ocp_driver_toolkit": None, "image": "gpu-operator"}}
    values["driver"]["licensingConfig"] = {"nlsEnabled": None}  # type: ignore[index]
    spec = {"driver": {"upgradePolicy": {"podDeletion": {"force": True}}}}
    assert between(values, resource(**spec)) == []
    assert between(resource(**spec), resource(**spec, sandboxDevicePlugin={"enabled": True})) == [
        ("sandboxDevicePlugin.enabled", False, True)]


def test_the_type_that_is_meant_without_a_word_is_no_difference() -> None:
    whole = resource("NVIDIADriver", "v1alpha1", driverType="gpu", version="580.126.20")
    assert between(whole, resource("NVIDIADriver", "v1alpha1", version="580.126.20")) == []


def test_layouts_and_drivers_for_some_nodes() -> None:
    layout = "version: v1\nmig-configs: {one: [{devices: all, mig-enabled: %s}]}\n"
    one, other = ({"migManager": {"config": {"name": "m", "create": True, "data": {"config.yaml": layout % flag}}}}
                  for flag in ("true", "false"))
    assert [path for path, _before, _after in between(one, other)] == ["migManager layouts.mig-configs.one"]
    blue = resource("NVIDIADriver", "v1alpha1", nodeSelector={"pool": "blue"}, version="580.126.20")
    moved = resource("NVIDIADriver", "v1alpha1", nodeSelector={"pool": "blue"}, version="580.173.02")
    main = resource(driver={"useNvidiaDriverCRD": True})
    assert between([main, blue], [main, moved]) == [("NVIDIADriver one.driver.version", "580.126.20", "580.173.02")]
    assert ("NVIDIADriver one.driver.nodeSelector.pool", "blue", None) in between([main, blue], [main])


def test_told_for_people() -> None:
    found = differences.compare(policy({"driver": {"version": "580", "secretEnv": "a"}}),
                                policy({"driver": {"version": "595", "hostNetwork": True}}))
    assert [differences.described(one) for one in found] == [
        "driver.hostNetwork: true is added", "driver.secretEnv: 'a' is removed", "driver.version: '580' becomes '595'"]

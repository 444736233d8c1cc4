# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver, toolkit, validator and device plugin on a real kubelet: each fails once, and all become ready in the end.

All tests use one Node; each starts with all operands ready and leaves them ready.
"""

from __future__ import annotations

import json

import pytest

from tests.kubelet.conftest import NODE, World
from tests.waiting import until

pytestmark = pytest.mark.timeout(1800)  # the first test waits for the Node and a whole run of site.yml
DRIVER, TOOLKIT = "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset"
PLUGIN, VALIDATOR = "nvidia-device-plugin-daemonset", "nvidia-operator-validator"
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"}, "spec": {
    "restartPolicy": "Never", "runtimeClassName": "nvidia", "containers": [{
        "name": "cuda", "imagePullPolicy": "Never", "resources": {"limits": {"nvidia.com/gpu": 1}},
        "command": ["sh", "-c", "nvidia-smi > /dev/null && ls /dev | grep '^nvidia[0-9]'"]}]}}


def test_all_come_up(world: World) -> None:
    """The fixture waits for this, after a run that reports it."""
    assert "4 of 4 components are ready in the cluster." in world.first.output
    assert "runtimes.nvidia]" in world.drop_in()


def test_a_pod_gets_the_gpu_that_it_asks_for(world: World) -> None:
    pod = json.loads(json.dumps(POD))
    pod["spec"]["containers"][0]["image"] = world.pods(PLUGIN)[0]["spec"]["initContainers"][0]["image"]
    path = world.folder / "pod.json"
    path.write_text(json.dumps(pod))
    world.cluster.kubectl("create", "--filename", str(path))
    try:
        until(lambda: world.phase("user") in ("Succeeded", "Failed"), "the pod ends")
        said = world.cluster.kubectl("logs", "user")
    finally:
        world.cluster.kubectl("delete", "pod", "user")
    assert len(said.split()) == 1, said


def test_a_second_run_changes_nothing(world: World) -> None:
    run = world.run()
    assert (run.rc, run.changed("control")) == (0, []), run.output


def failed(world: World, app: str, component: str, container: str, said: str) -> str:
    """The cause that a run reports while a simulated program fails, once the right container is named with its last
    output."""
    until(lambda: world.crashes(app), f"{app} fails over and over")
    run = world.run(timeout=25)
    assert run.rc != 0, run.output
    checks = {one["component"]: one for one in run.result("control", "gpu_verify")["checks"]}
    wrong = [name for name, one in checks.items() if one["state"] == "failed"]
    assert wrong == [component], f"{run.output}\n{world.evidence()}"
    (cause,) = checks[component]["causes"]
    assert (cause["container"], cause["nodes"]) == (container, [NODE]), run.output
    assert said in "\n".join(cause["log"]) and said in run.output
    return str(cause["cause"])


def test_a_validator_that_fails_is_named_and_comes_back(world: World) -> None:
    said = "no CUDA-capable device is detected"
    with world.fault("nvidia-validator.cuda", said):
        world.delete_pod(VALIDATOR)
        assert "no GPU is visible in the container" in failed(world, VALIDATOR, "validator", "cuda-validation", said)
    until(world.up, "the validator passes")


def test_a_device_plugin_that_fails_is_named_and_comes_back(world: World) -> None:
    said = "failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND"
    with world.fault("nvidia-device-plugin", said):
        world.delete_pod(PLUGIN)
        until(lambda: world.allocatable == 0, "the kubelet takes the GPUs back")
        assert "the pod does not find the driver" in failed(
            world, PLUGIN, "device_plugin", "nvidia-device-plugin", said)
    until(world.up, "the kubelet offers the GPUs again")


def test_a_toolkit_that_fails_is_named_and_comes_back(world: World) -> None:
    said = "unable to load config: permission denied"
    with world.fault("nvidia-toolkit", said):
        world.delete_pod(TOOLKIT)
        assert "cannot read the configuration of the runtime" in failed(
            world, TOOLKIT, "container_toolkit", "nvidia-container-toolkit-ctr", said)
    until(world.up, "the toolkit does its work")
    assert "runtimes.nvidia]" in world.drop_in()


def test_a_driver_that_dies_takes_its_barrier_along_and_brings_it_back(world: World) -> None:
    said = "Could not unload NVIDIA driver kernel modules, driver is in use"
    with world.fault("nvidia-driver", said):
        world.delete_pod(DRIVER)
        assert ".driver-ctr-ready" not in world.barriers()
        assert "the old driver is in use" in failed(world, DRIVER, "driver", "nvidia-driver-ctr", said)
    until(world.up, "the driver is ready again")
    run = world.run()
    assert run.rc == 0, run.output

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which logs are read, how many, what is kept of them, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Progress
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import logs
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import not_ready_pod
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.rollout import Rollout
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import (
    NAMESPACE,
    Clock,
    FakeClient,
    daemon_set,
    node,
    plan,
    pod,
)

NOUVEAU_CAUSE = "the kernel module nouveau uses the GPU"
NOUVEAU = "failed to unload nouveau driver: rmmod: ERROR: Module nouveau is in use"
CHAIN = ["driver", "container_toolkit", "validator", "device_plugin"]


def names(count: int) -> list[str]:
    return [f"gpu-{number:03}" for number in range(count)]


def stuck_cluster(count: int, said: Any = NOUVEAU) -> FakeClient:
    """On every Node, the driver crashes repeatedly and all other operands wait in their init containers."""
    pods = [one for name in names(count) for one in (
        pod("driver", name, 0, "CrashLoopBackOff"), pod("container_toolkit", name, 0), pod("validator", name, 0),
        pod("device_plugin", name, 0))]
    client = FakeClient(DaemonSet=[daemon_set(name, count, 0) for name in CHAIN], Pod=pods,
                        Node=[node(name) for name in names(count)])
    client.logs = {f"driver-{name}": said for name in names(count)}
    return client


def follow(client: FakeClient, count: int, timeout: float = 20) -> tuple[dict[str, Any], list[dict[str, Any]], float]:
    clock, told = Clock(), list[Progress]()
    checks = Rollout(client, plan(*names(count)), CHAIN, told.append, clock, clock.sleep).follow(timeout)
    return {check.component: check.as_dict() for check in checks}, told, clock.now - 100


def test_the_root_is_named_with_its_log_and_the_others_wait() -> None:
    client = stuck_cluster(2)
    checks, told, _seconds = follow(client, 2)
    [cause] = checks["driver"]["causes"]
    assert cause["cause"] == NOUVEAU_CAUSE and cause["log"] == [NOUVEAU]
    assert cause["nodes"] == names(2) and cause["container"] == "k8s-driver-manager"
    assert cause["holds_up"] == {"container_toolkit": 2, "validator": 2, "device_plugin": 2}
    assert "2 nodes, gpu-[000-001]" in cause["text"] and "each of these nodes" in cause["hint"]
    assert cause["do"][0].startswith("kubectl --namespace gpu-operator logs driver-gpu-000 --container k8s-driver-man")
    assert [checks[name]["state"] for name in CHAIN] == ["failed", "pending", "pending", "pending"]
    assert told[0].open[0].failing == [(name, NOUVEAU_CAUSE) for name in names(2)]
    # Whoever waits is asked nothing.
    assert {one.split()[1].rsplit("-gpu")[0] for one in client.asked if one.startswith("log")} == {"driver"}


def test_a_thousand_nodes_cost_a_bounded_number_of_logs() -> None:
    client = stuck_cluster(300)
    checks, _told, _seconds = follow(client, 300)
    [cause] = checks["driver"]["causes"]
    assert len(cause["nodes"]) == 300 and cause["cause"] == NOUVEAU_CAUSE
    assert sum(one.startswith("log") for one in client.asked) <= 1 + logs.MOST
    assert sum(bool(entry["log"]) for entry in checks["driver"]["nodes"]) == logs.MOST


def test_alike_in_status_but_not_in_why() -> None:
    client = stuck_cluster(3)
    client.logs["driver-gpu-001"] = "Could not resolve Linux kernel version"
    causes = follow(client, 3)[0]["driver"]["causes"]
    assert [(cause["cause"].split()[-1], cause["nodes"]) for cause in causes] == [
        ("GPU", ["gpu-000", "gpu-002"]), ("kernel", ["gpu-001"])]


@pytest.mark.parametrize(("error", "words"), [
    (ClusterError("forbidden", status=403), "does not have the permission get pods/log"),
    (ClusterError('the log of Pod a/b: InternalError: Get "https://10.0.0.9:10250/containerLogs/a/b?c=d": dial tcp '
                  "10.0.0.9:10250: connection refused.", "Look.", status=500),
     "the kubelet of the node does not respond (tcp 10.0.0.9:10250: connection refused)"),
    (ClusterError("gone", status=404), "cannot be read"),
])
def test_a_log_that_cannot_be_read_is_said_in_one_line(error: ClusterError, words: str) -> None:
    [cause] = follow(stuck_cluster(2, error), 2)[0]["driver"]["causes"]
    assert words in cause["log_problem"] and "\n" not in cause["log_problem"] and cause["log"] == []
    assert cause["cause"] == "the driver manager cannot prepare the node for the new driver"


def test_a_program_of_the_validator_tells_by_its_own_pod() -> None:
    sample = pod("validator", "gpu-000", 0)
    sample["metadata"].update(name="nvidia-cuda-validator-x", labels={"app": "nvidia-cuda-validator"})
    sample["metadata"]["ownerReferences"] = []
    sample["spec"]["initContainers"] = [{"name": "cuda-validation", "image": "x"}]
    sample["status"]["initContainerStatuses"] = [{"name": "cuda-validation", "restartCount": 4, "state": {
        "waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}]
    client = FakeClient(DaemonSet=[daemon_set("validator", 1, 0)], Node=[node("gpu-000")],
                        Pod=[pod("validator", "gpu-000", 2, "CrashLoopBackOff"), sample])
    client.logs["nvidia-cuda-validator-x"] = "Failed to allocate device vector A (error code system not yet " \
                                             "initialized)!"
    clock = Clock()
    [check] = Rollout(client, plan("gpu-000"), ["validator"], clock=clock, sleep=clock.sleep).follow(3)
    assert "fabric manager" in check.causes[0].cause
    assert check.causes[0].log[0].startswith("nvidia-cuda-validator-x: Init:0/1 CrashLoopBackOff")


def test_a_label_that_keeps_the_driver_away_is_named() -> None:
    client = FakeClient(
        DaemonSet=[daemon_set("driver", 0, 0), daemon_set("validator", 1, 0)], Pod=[pod("validator", "n1", 0)],
        Node=[node("n1", **{"nvidia.com/gpu.deploy.driver": "pre-installed"})])
    clock = Clock()
    checks = Rollout(client, plan("n1"), ["driver", "validator"], clock=clock, sleep=clock.sleep).follow(5)
    [cause] = checks[1].causes
    assert "nvidia.com/gpu.deploy.driver=pre-installed" in cause.cause and "remove nvidia-smi" in cause.hint
    assert "kubectl label node n1 nvidia.com/gpu.deploy.driver-" in cause.do


def test_what_only_somebody_can_mend_ends_the_wait() -> None:
    missing = 'failed to pull and unpack image "nvcr.io/nvidia/driver:1-debian12": not found'
    pods = [pod("driver", "n1", reason="ImagePullBackOff", message=missing), pod("validator", "n1", 0)]
    client = FakeClient(DaemonSet=[daemon_set("driver", 1, 0), daemon_set("validator", 1, 0)], Node=[node("n1")],
                        Pod=pods)
    clock, told = Clock(), list[Progress]()
    checks = Rollout(client, plan("n1"), ["driver", "validator"], told.append, clock, clock.sleep).follow(1200)
    assert 45 <= clock.now - 100 < 70 and [check.state for check in checks] == ["failed", "pending"]
    assert told[-1].ends == "waiting cannot help" and not [one for one in client.asked if one.startswith("log")]


def test_the_wait_goes_on_for_others() -> None:
    pods = [pod("driver", "n1", reason="ImagePullBackOff", message="not found"), pod("driver", "n2", 0)]
    client = FakeClient(DaemonSet=[daemon_set("driver", 2, 0)], Node=[node("n1"), node("n2")], Pod=pods)
    clock = Clock()
    Rollout(client, plan("n1", "n2"), ["driver"], clock=clock, sleep=clock.sleep).follow(200)
    assert clock.now - 100 >= 200


def test_messages_are_without_secrets() -> None:
    said = "fetch https://user:hunter2@mirror.example failed"
    client = FakeClient(DaemonSet=[daemon_set("nfd", 1, 0)], Node=[node("n1")],
                        Pod=[pod("nfd", "n1", reason="CrashLoopBackOff", message=said)])
    clock = Clock()
    [check] = Rollout(client, plan("n1"), ["nfd"], clock=clock, sleep=clock.sleep).follow(1)
    assert "hunter2" not in str(check) and "********@mirror.example" in check.detail


def test_lines_are_fit_to_be_shown() -> None:
    text = ("\x1b[31mred\x1b[0m\n\nagain\nagain\nProgress 1%\rProgress 100%\n" + "x" * 500 +
            "\nfetch https://user:hunter2@mirror.example/x\nHTTP_PASSWORD=hunter2 TOKEN: 'a b' done\n"
            "Authorization: Bearer abcdef123456789\nsent Bearer abcdef123456789\n"
            "-----BEGIN PRIVATE KEY-----\nhunter2\nhunter2\n-----END PRIVATE KEY-----\n"
            "SIGNING_KEY=hunter2 from https://mirror.example/x?sig=hunter2\n")
    lines = logs.readable(text)
    assert lines[:3] == ["red", "again", "Progress 100%"] and len(lines[3]) == logs.WIDTH
    assert lines[4:] == ["fetch https://********@mirror.example/x", "HTTP_PASSWORD=******** TOKEN: ******** done",
                         "Authorization: ********", "sent Bearer ********",
                         "-----BEGIN PRIVATE KEY-----********-----END PRIVATE KEY-----",
                         "SIGNING_KEY=******** from https://mirror.example/x?********"]
    assert len(logs.readable("\n".join(map(str, range(100))))) == logs.LINES


def test_a_container_that_was_removed_meanwhile_is_told_by_the_next_one() -> None:
    """The kubelet keeps few ended containers; for a removed one, it returns a sentence of its own."""
    class Kubelet(FakeClient):
        def log(self, name: str, namespace: str, container: str, previous: bool = False, lines: int = 40) -> str:
            super().log(name, namespace, container, previous, lines)
            return "unable to retrieve container logs for containerd://e38943bb" if previous else "no NVML\n"

    client = Kubelet()
    stuck = not_ready_pod(pod("device_plugin", "n1", None, "CrashLoopBackOff"), "device_plugin")
    assert logs.read(client, NAMESPACE, [stuck])["device_plugin-n1"].lines == ["no NVML"]
    assert client.asked == ["log device_plugin-n1 device_plugin-ctr previous",
                            "log device_plugin-n1 device_plugin-ctr"]

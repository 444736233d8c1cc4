# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each step between releases changes on an API server. test_releases runs playbooks, with pods that follow the
changes."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render

from tests.unit.simulated.clusters import plan

RELEASES = ("24.6.2", "24.9.2", "25.3.4", "25.10.1", "26.3.3", "26.7.0")
# What came with 25.10: CDI as the default, and the rights of feature discovery to NFD's objects.
CAME = {"RuntimeClass nvidia-cdi", "RuntimeClass nvidia-legacy", "Role steps/nvidia-gpu-feature-discovery",
        "RoleBinding steps/nvidia-gpu-feature-discovery"}


def test_each_step_between_the_releases(client: Client) -> None:
    """Only objects, without Nodes. What was not introduced with 25.10 is changed in place."""
    there = ""
    try:
        for release in (*RELEASES, *reversed(RELEASES[:-1])):
            cluster = plan(release=release, namespace="steps", node_os=["ubuntu22.04"])
            wanted = objects.wanted({name: render(name, cluster) for name in ORDER})
            done = deliver.present(client, wanted, list(ORDER), False)["plan"]
            if there:
                by_action = {action: {step["target"] for step in done if step["action"] == action}
                             for action in ("create", "update", "delete")}
                assert sum(map(len, by_action.values())) == len(done)
                assert by_action["create"] == (CAME if (there, release) == ("25.3.4", "25.10.1") else set())
                assert by_action["delete"] == (CAME if (there, release) == ("25.10.1", "25.3.4") else set())
                assert "DaemonSet steps/nvidia-driver-daemonset" in by_action["update"]
            assert not deliver.present(client, wanted, list(ORDER), False)["changed"]
            there = release
    finally:
        deliver.absent(client, list(ORDER), 180, False)
        client.delete("v1", "Namespace", "steps")

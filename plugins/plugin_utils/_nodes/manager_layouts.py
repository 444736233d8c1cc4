# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that the MIG manager of the cluster has a layout, before the layout is requested for a Node. PRIVATE.

The manager reads its layouts from the ConfigMap that its DaemonSet mounts. From GPU Operator 26.3 on, if no
configuration of the user is mounted, it creates a ConfigMap C(NODE-mig-config) from the GPUs of each Node, and uses the
mounted ConfigMap only as a fallback. For an unknown layout, it sets the state C(failed) or removes the label.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import MIG_MANAGER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_mig import names_in

_VOLUME, _OWN, _OF_NODE = "mig-parted-config", "CONFIG_FILE", "-mig-config"


def refuse_unknown(client: Client, namespace: str, layout: str, nodes: t.Collection[str]) -> None:
    """Raises InputError if the manager does not have the layout on one of the Nodes.

    nodes: empty for all Nodes that the manager serves. If the user may not read the ConfigMaps, nothing is refused.
    """
    name, generates = _mounted(client.list("apps/v1", "DaemonSet", namespace, label_selector=mig_labels.MANAGER))
    try:
        maps = {one["metadata"]["name"]: names_in(one.get("data") or {})
                for one in client.list("v1", "ConfigMap", namespace)} if name else {}
    except ClusterError as error:
        if error.status != 403:
            raise
        return
    names = nodes or [one["metadata"]["name"] for one in client.list(
        "v1", "Node", label_selector=f"{MIG_MANAGER}=true", metadata_only=True)]
    missing: dict[str, list[str]] = {}
    for node in names:
        own = f"{node}{_OF_NODE}"
        source = own if generates and maps.get(own) else name
        if maps.get(source) and layout not in maps[source]:
            missing.setdefault(source, []).append(node)
    for source, without in missing.items():
        raise InputError(f"{layout!r} is not a layout in ConfigMap {namespace}/{source}, from which the MIG manager of "
                         f"{fold(without)} reads its layouts. No label was written.",
                         f"Choose from {', '.join(maps[source])}"
                         f"{'' if generates else ', or add it to the configuration (migManager.config)'}.",
                         path="layout", value=layout, allowed=list(maps[source]))


def _mounted(daemon_sets: t.Sequence[Live]) -> tuple[str, bool]:
    """(the ConfigMap that the manager mounts, empty if unknown; whether the manager generates one for each Node)."""
    for one in daemon_sets:
        pod = one["spec"]["template"]["spec"]
        own = any(env["name"] == _OWN for container in pod["containers"] for env in container.get("env") or ())
        for volume in pod.get("volumes") or ():
            if volume["name"] == _VOLUME and "configMap" in volume:
                return str(volume["configMap"].get("name", "")), not own
    return "", False

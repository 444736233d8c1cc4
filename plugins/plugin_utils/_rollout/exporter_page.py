# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that the page of the DCGM exporter has a fresh sample of each GPU of a Node. Reads only. PRIVATE.

The API server fetches the page from the pod (the subresource proxy). The samples have no timestamps, so they are fresh
if the energy counter of a GPU grows: it grows on an idle GPU, too. Source of the name and labels: NVIDIA/dcgm-exporter,
its default counters. An exporter that is not asked for this counter is checked for samples only.
"""

from __future__ import annotations

import re
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.check_pods import chosen
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.drift import Difference
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.logs import readable

_COMPONENT = "dcgm_exporter"
_PODS, _LISTEN, _PORT = "app=nvidia-dcgm-exporter", "DCGM_EXPORTER_LISTEN", "9400"
_ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_SAMPLE = re.compile(r'(DCGM_[A-Z0-9_]{1,100})\{([^\n]*)\} ([^ \n]{1,40})$', re.MULTILINE)
_UUID = re.compile(r'(?:^|,)UUID="(GPU-[0-9a-fA-F-]{1,60})"')
_NUMBER = re.compile(r"[0-9]{1,4}")
_NOT = "the metrics of the GPUs are not checked: "
# Seconds within which a counter must grow: two of the exporter's intervals (30 s) and some; between two reads.
_GROWS, _PAUSE = 75.0, 5.0

Clock = t.Callable[[], float]
# The values of the energy counter of each GPU, None if the page has other samples of it only.
Page = t.Dict[str, t.FrozenSet[str] | None]


class Fault(t.NamedTuple):
    """What is wrong with the page of a Node. level: see C(drift.Difference)."""

    cause: str
    hint: str
    level: str = "failed"


def differences(client: Client, namespace: str, ready: t.Collection[str], amount: int | list[str],
                uuids: t.Mapping[str, t.Collection[str]], check_mode: bool = False, clock: Clock = time.monotonic,
                sleep: t.Callable[[float], None] = time.sleep) -> list[Difference]:
    """One difference for all Nodes with the same fault.

    ready: the Nodes on which nothing is missing; amount: how many of them to check, from C(check_nodes.count); uuids:
    maps a Node to the UUIDs of its GPUs, for hosts whose facts show them. In check mode, the pages are read once, so
    their samples can be old. Nodes in amount that cannot be checked are pending; so are all Nodes, if amount is a
    number and none can be checked. Raises ClusterError if pods or Nodes cannot be listed.
    """
    if not amount:
        return []
    pods = {str(pod["spec"].get("nodeName")): pod for pod in client.list("v1", "Pod", namespace, _PODS)
            if (pod.get("status") or {}).get("phase") == "Running"}
    labelled = {str(node["metadata"]["name"]): node
                for node in client.list("v1", "Node", label_selector=f"{LABELS[_COMPONENT]}=true")}
    there = [node for name, node in labelled.items() if name in ready and name in pods]
    picked = chosen(there, amount) if isinstance(amount, int) else [
        node for node in there if node["metadata"]["name"] in amount]
    nodes = {str(node["metadata"]["name"]): node for node in picked}
    unchecked = [name for name in (ready if isinstance(amount, int) else amount) if name not in nodes]
    faults = {} if nodes and isinstance(amount, int) else {
        name: _unchecked(name in ready, name in labelled) for name in unchecked}
    first: dict[str, Page] = {}
    for name, page in _pages(client, namespace, sorted(nodes), pods):
        fault = page if isinstance(page, Fault) else missing(page, nodes[name], uuids.get(name))
        if isinstance(page, Fault) or fault:
            faults[name] = t.cast(Fault, fault)
        else:
            first[name] = page
    if not check_mode:
        faults.update(_stale(client, namespace, first, pods, clock, sleep))
    groups: dict[Fault, list[str]] = {}
    for name, found in sorted(faults.items()):
        groups.setdefault(found, []).append(name)
    return [Difference(_COMPONENT, fault.cause, fault.hint, fault.level, tuple(having))
            for fault, having in groups.items()]


def undelivered(ready: t.Sequence[str], amount: int | list[str]) -> list[Difference]:
    """The difference of Nodes that are to be checked in a cluster that does not deliver the exporter. ready, amount: as
    in L(differences)."""
    nodes = amount if isinstance(amount, list) else ready if amount else []
    return [Difference(_COMPONENT, f"{_NOT}the cluster does not deliver {_COMPONENT}", "The check reads only an "
                       "exporter in the cluster: deliver it there, or do not set gpu_check_metrics.", "pending",
                       tuple(nodes))] if nodes else []


def _unchecked(is_ready: bool, is_labelled: bool) -> Fault:
    """Why a Node cannot be checked. is_ready: whether nothing is missing on it; is_labelled: whether the exporter is to
    run there."""
    if not is_ready:
        return Fault(f"{_NOT}the Node has another problem", "Solve this problem first.", "pending")
    if not is_labelled:
        return Fault(f"{_NOT}the label {LABELS[_COMPONENT]} of the Node is not true",
                     "Let the exporter run there, or take the Node out of gpu_check_metrics.", "pending")
    return Fault(f"{_NOT}no pod of the exporter runs on the Node",
                 "Compare with kubectl get daemonset nvidia-dcgm-exporter, and run verify again.", "pending")


def parse(text: str) -> Page:
    """The GPUs of a page in the text format of Prometheus. Lines of other metrics are ignored."""
    page: Page = {}
    for name, labels, value in _SAMPLE.findall(text):
        uuid = _UUID.search(labels)
        if uuid is None:
            continue
        known = page.setdefault(uuid[1], None)
        if name == _ENERGY:
            page[uuid[1]] = (known or frozenset()) | {value}
    return page


def missing(page: Page, node: Object, uuids: t.Collection[str] | None) -> Fault | None:
    """The fault of a page without samples of some GPUs.

    uuids: the GPUs of the host, None if they are not known. Then the label C(nvidia.com/gpu.count) counts the GPUs of
    one model, so it is a minimum; with the MIG strategy C(single) it counts MIG devices, so one GPU is the minimum.
    """
    labels = node["metadata"].get("labels") or {}
    count = str(labels.get("nvidia.com/gpu.count", ""))
    if uuids is not None:
        expected, found = len(uuids), len({*page} & {*uuids})
    else:
        known = _NUMBER.fullmatch(count) and labels.get("nvidia.com/mig.strategy") != "single"
        expected, found = int(count) if known else 1, len(page)
    if found >= expected:
        return None
    return Fault(f"the page of the exporter has samples of {found} of {expected} GPUs",
                 "Read the log of the pod nvidia-dcgm-exporter on the Node, and compare with nvidia-smi -L there. If "
                 "all GPUs are listed, delete the pod: it searches for GPUs only at its start.")


def _stale(client: Client, namespace: str, first: t.Mapping[str, Page], pods: t.Mapping[str, Object], clock: Clock,
           sleep: t.Callable[[float], None]) -> dict[str, Fault]:
    """The Nodes on which an energy counter does not grow."""
    left = {name: {uuid for uuid, energy in page.items() if energy} for name, page in first.items()}
    end, faults = clock() + _GROWS, {}
    while left := {name: gpus for name, gpus in left.items() if gpus}:
        if clock() >= end:
            for name, gpus in left.items():
                faults[name] = Fault(
                    f"the energy counter of {len(gpus)} of {len(first[name])} GPUs did not grow within {_GROWS:.0f} s, "
                    "so the samples are old", "Read the logs of the pods nvidia-dcgm-exporter and nvidia-dcgm on the "
                    "Node, and search its kernel log (dmesg) for Xid. Then delete these pods.")
            return faults
        sleep(_PAUSE)
        for name, page in _pages(client, namespace, sorted(left), pods):
            lost = [] if isinstance(page, Fault) else [uuid for uuid in first[name] if uuid not in page]
            if isinstance(page, Fault) or lost:
                faults[name] = page if isinstance(page, Fault) else Fault(
                    f"the page of the exporter has lost the samples of {len(lost)} of {len(first[name])} GPUs",
                    "Compare with nvidia-smi -L on the Node, and search its kernel log (dmesg) for Xid. If all GPUs "
                    "are listed, read the log of the pod nvidia-dcgm-exporter.")
                del left[name]
            else:
                left[name] = {uuid for uuid in left[name] if page[uuid] in (None, first[name][uuid])}
    return faults


def _pages(client: Client, namespace: str, names: t.Sequence[str],
           pods: t.Mapping[str, Object]) -> list[tuple[str, Page | Fault]]:
    """The page of each Node, or why it could not be read."""
    answers = client.many(lambda name: client.pod_page(
        str(pods[name]["metadata"]["name"]), namespace, _port(pods[name]), "metrics"), names)
    return [(name, _unread(answer) if isinstance(answer, GpuopsError) else parse(answer))
            for name, answer in zip(names, answers)]


def _port(pod: Object) -> str:
    """The port of the exporter, the last part of its address."""
    listen = [str(one.get("value") or "") for container in pod["spec"].get("containers") or ()
              for one in container.get("env") or () if one.get("name") == _LISTEN]
    port = listen[-1].rpartition(":")[2] if listen else ""
    return port if port.isdecimal() else _PORT


def _unread(error: GpuopsError) -> Fault:
    if isinstance(error, ClusterError) and error.status == 403:
        return Fault("the page of the exporter cannot be read: the user of this kubeconfig does not have the "
                     "permission get pods/proxy",
                     "Give the user this permission, or do not set gpu_check_metrics.", "pending")
    # The message may contain an answer of the pod.
    return Fault(f"the page of the exporter cannot be read: {readable(error.message)[0]}".rstrip("."),
                 "Read the log of the pod nvidia-dcgm-exporter on the Node. If other Nodes have the same error, check "
                 "that the API server can reach pods (network policies, firewalls).")

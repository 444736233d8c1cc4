# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The taint with which Nodes come into a cluster, taken from those whose GPUs are ready. PRIVATE to the collection.

Kubelets or autoscalers put it there, so that no pod comes before the GPUs can be used. Taints are one list, so it is
written against the version that was read: a taint that somebody adds or takes meanwhile is not lost.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import diff_entry
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.deploy import fold

Object = t.Mapping[str, t.Any]
_RESOURCES = "nvidia.com/"


def release(arguments: t.Mapping[str, t.Any], check_mode: bool, unready: t.Collection[str]) -> dict[str, t.Any]:
    """The whole task. arguments: the options that go with target C(startup_taint); unready: Nodes whose hosts are not
    as planned, which keep it.

    Returns the result of the task. Raises InputError and ClusterError before anything is written; what then goes wrong
    with single Nodes is in the result.
    """
    state, key, names = arguments["state"], arguments["taint"], arguments["nodes"]
    _check(state, key, names)
    client = Client(arguments["kubeconfig"], arguments["context"])
    found = {one["metadata"]["name"]: offers_gpus(one) for one in client.list("v1", "Node") if without(one, key)}
    tainted = list(found)
    result: dict[str, t.Any] = {"changed": False, "notes": [], "warnings": [], "diff": [], "tainted": tainted,
                                "untainted": []}
    if state == "gathered":
        return result
    going = [name for name in tainted if name in names and name not in unready and found[name]]
    answers: t.Sequence[bool | GpuopsError] = [True] * len(going) if check_mode else client.many(
        lambda name: node.write(client, name, lambda one: without(one, key)), going)
    failures = {name: str(answer) for name, answer in zip(going, answers) if isinstance(answer, GpuopsError)}
    done = [name for name, answer in zip(going, answers) if answer is True]
    kept = [name for name in tainted if name not in going]
    result["notes"] = result["warnings"] = _notes(key, kept, [name for name in kept if not found[name]])
    result.update(changed=bool(done), untainted=done, tainted=[*kept, *failures], failures=failures)
    if done:
        result["diff"] = [diff_entry(f"Node{'s' if len(done) > 1 else ''} {fold(done)}", f"taint {key}\n", "")]
    if failures:
        result.update(failed=True, msg=f"{len(failures)} of {len(going)} Nodes keep the taint {key} "
                      f"({fold(failures)}). {next(iter(failures.values()))}")
    return result


def offers_gpus(one: Object) -> bool:
    """Whether the kubelet offers a GPU or a part of one, as the device plugin has told it.

    Where operands do not tolerate a Node's taint, their controllers do not even count the Node as theirs.
    """
    allocatable = (one.get("status") or {}).get("allocatable") or {}
    return any(name.startswith(_RESOURCES) and amount != "0" for name, amount in allocatable.items())


def _notes(key: str, kept: t.Sequence[str], without_gpus: t.Sequence[str]) -> list[str]:
    others = [name for name in kept if name not in without_gpus]
    said = [f"{fold(without_gpus)}: the kubelet offers no {_RESOURCES} resource, so that the taint {key} stays. The "
            "operands' pods have to tolerate it: daemonsets.tolerations of the policy."] if without_gpus else []
    return said + ([f"{fold(others)}: not verified, so that the taint {key} stays."] if others else [])


def without(one: Object, key: str) -> dict[str, t.Any] | None:
    """The patch that takes a taint, with whatever value and effect; None for a Node that does not have it."""
    taints = (one.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint["key"] != key]
    return None if len(left) == len(taints) else {"spec": {"taints": left or None}}


def _check(state: str, key: str | None, names: t.Sequence[str] | None) -> None:
    if not key:
        raise InputError("The key of the taint is needed.", "Name the taint with which your Nodes come, such as "
                         "startup-taint.cluster-autoscaler.kubernetes.io/gpu.", path="taint", value=key)
    if state == "present":
        raise InputError("A startup taint is put on a Node as it comes, by its kubelet or its autoscaler.",
                         "Set state absent to take it from Nodes that are verified.", path="state", value=state,
                         allowed=["gathered", "absent"])
    if state == "absent" and names is None:
        raise InputError("The Nodes that are ready are needed.", "Give what gpu_verify returned as verified.",
                         path="nodes", value=names)

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
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import offered_gpus, says_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold

Object = t.Mapping[str, t.Any]
_NOT_READY = "the Node is not Ready or is being removed, {}."
_NO_GPUS = ("the kubelet offers no GPU (nvidia.com/gpu, nvidia.com/mig-...), {}. The operands' pods have to tolerate "
            "it: daemonsets.tolerations of the policy.")
_UNVERIFIED = "not verified, {}."


def release(arguments: t.Mapping[str, t.Any], check_mode: bool, unready: t.Collection[str]) -> dict[str, t.Any]:
    """The whole task. arguments: the options that go with target C(startup_taint); unready: Nodes whose hosts are not
    as planned, which keep it.

    Returns the result of the task. Raises InputError and ClusterError before anything is written; what then goes wrong
    with single Nodes is in the result.
    """
    state, key, names = arguments["state"], arguments["taint"], arguments["nodes"]
    _check(state, key, names)
    client = Client(arguments["kubeconfig"], arguments["context"])
    found = _tainted(client, str(key))
    tainted = list(found)
    result: dict[str, t.Any] = {"changed": False, "notes": [], "warnings": [], "diff": [], "tainted": tainted,
                                "untainted": []}
    if state == "gathered":
        return result
    going = [name for name in tainted if name in names and name not in unready and not found[name]]
    answers: t.Sequence[bool | GpuopsError] = [True] * len(going) if check_mode else client.many(
        lambda name: node.write(client, name, lambda one: without(one, key)), going)
    failures = {name: str(answer) for name, answer in zip(going, answers) if isinstance(answer, GpuopsError)}
    done = [name for name, answer in zip(going, answers) if answer is True]
    kept = [name for name in tainted if name not in going]
    result["notes"] = result["warnings"] = _notes(key, {name: found[name] or _UNVERIFIED for name in kept})
    result.update(changed=bool(done), untainted=done, tainted=[*kept, *failures], failures=failures)
    if done:
        result["diff"] = [diff_entry(f"Node{'s' if len(done) > 1 else ''} {fold(done)}", f"taint {key}\n", "")]
    if failures:
        result.update(failed=True, msg=f"{len(failures)} of {len(going)} Nodes keep the taint {key} "
                      f"({fold(failures)}). {next(iter(failures.values()))}")
    return result


def ready_with(client: Client, key: str, verified: t.Collection[str]) -> list[str]:
    """The verified Nodes that are Ready, offer GPUs and have the taint still. Raises InputError for a wrong key."""
    _check("gathered", key, None)
    return sorted(name for name, lacks in _tainted(client, key).items() if name in verified and not lacks)


def _tainted(client: Client, key: str) -> dict[str, str]:
    """By Node with the taint what it lacks."""
    return {one["metadata"]["name"]: _lacks(one) for one in client.list("v1", "Node") if without(one, key)}


def _lacks(one: Object) -> str:
    """What the Node itself lacks, empty for nothing.

    Where operands do not tolerate a Node's taint, their controllers do not even count the Node as theirs.
    """
    if not says_ready(one):
        return _NOT_READY
    return "" if offered_gpus(one) else _NO_GPUS


def _notes(key: str, kept: t.Mapping[str, str]) -> list[str]:
    """kept: by Node why."""
    found = {why: [name for name in kept if kept[name] == why] for why in (_NOT_READY, _NO_GPUS, _UNVERIFIED)}
    return [f"{fold(names)}: {why.format(f'so that the taint {key} stays')}" for why, names in found.items() if names]


def without(one: Object, key: str) -> dict[str, t.Any] | None:
    """The patch that takes a taint, with whatever value and effect; None for a Node that does not have it."""
    taints = (one.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint["key"] != key]
    return None if len(left) == len(taints) else {"spec": {"taints": left or None}}


def _check(state: str, key: str | None, names: t.Sequence[str] | None) -> None:
    if not key:
        raise InputError("The key of the taint is needed.", "Name the taint with which your Nodes come, such as "
                         "startup-taint.cluster-autoscaler.kubernetes.io/gpu.", path="taint", value=key)
    if any(sign in key for sign in "=: "):
        raise InputError(f"{key!r} is no key of a taint.", "Leave out its value and its effect, such as =true and "
                         ":NoSchedule: whatever they are, taints of this key go.", path="taint", value=key)
    if state == "present":
        raise InputError("A startup taint is put on a Node as it comes, by its kubelet or its autoscaler.",
                         "Set state absent to take it from Nodes that are verified.", path="state", value=state,
                         allowed=["gathered", "absent"])
    if state == "absent" and names is None:
        raise InputError("The Nodes that are ready are needed.", "Give what gpu_verify returned as verified.",
                         path="nodes", value=names)

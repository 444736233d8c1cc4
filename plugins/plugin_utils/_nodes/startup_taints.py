# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes the startup taint from Nodes whose GPUs are ready. PRIVATE to the collection.

A kubelet or an autoscaler sets this taint on a new Node, so that no pod starts before the GPUs can be used. The taints
of a Node are one list, which is written only if the Node has not changed since it was read. So taints that others add
meanwhile are not lost, and taints that others remove do not come back.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result, diff_entry
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready, offered_gpus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodePatch, NodeState

_NOT_READY = "the Node is not Ready or is being removed, {}."
_NO_GPUS = ("the kubelet offers no GPU (nvidia.com/gpu, nvidia.com/mig-...), {}. The operands' pods must tolerate "
            "this taint: daemonsets.tolerations of the policy.")
_UNVERIFIED = "not verified, {}."


def release(arguments: t.Mapping[str, t.Any], check_mode: bool, unready: t.Collection[str]) -> Result:
    """Runs the task. arguments: the options for target C(startup_taint); unready: Nodes that keep the taint, because
    their hosts are not as planned.

    Returns the result of the task. Raises InputError and ClusterError before anything is written; later errors of
    single Nodes are in the result.
    """
    state, key, names = arguments["state"], arguments["taint"], arguments["nodes"]
    _check(state, key, names)
    client = Client(arguments["kubeconfig"], arguments["context"])
    missing = _tainted(client, key)
    result: Result = {"changed": False, "notes": [], "warnings": [], "diff": [], "tainted": [*missing], "untainted": []}
    if state == "gathered":
        return result
    going = [name for name, text in missing.items() if name in names and name not in unready and not text]
    answers: t.Sequence[bool | GpuopsError] = [True] * len(going) if check_mode else client.many(
        lambda name: node.write(client, name, lambda one: without(one, key)), going)
    failures = {name: str(answer) for name, answer in zip(going, answers) if isinstance(answer, GpuopsError)}
    done = [name for name, answer in zip(going, answers) if answer is True]
    kept = {name: text or _UNVERIFIED for name, text in missing.items() if name not in going}
    notes = _notes(key, kept)
    result.update(changed=bool(done), notes=notes, warnings=notes, untainted=done, tainted=[*kept, *failures],
                  failures=failures)
    if done:
        result["diff"] = [diff_entry(f"Node{'s' if len(done) > 1 else ''} {fold(done)}", f"taint {key}\n", "")]
    if failures:
        result.update(failed=True, msg=f"{len(failures)} of {len(going)} Nodes keep the taint {key} "
                      f"({fold(failures)}). {next(iter(failures.values()))}")
    return result


def ready_with(client: Client, key: str, verified: t.Collection[str]) -> list[str]:
    """The verified Nodes that are Ready, offer GPUs and still have the taint. Raises InputError for an invalid key."""
    _check("gathered", key, None)
    return sorted(name for name, text in _tainted(client, key).items() if name in verified and not text)


def _tainted(client: Client, key: str) -> dict[str, str]:
    """Maps each Node with the taint to the result of L(_missing)."""
    return {one["metadata"]["name"]: _missing(one) for one in client.list("v1", "Node")
            if without(NodeState.read(one), key)}


def _missing(one: Live) -> str:
    """The condition that a Node does not meet yet, so that its taint stays; empty if the taint can be removed.

    The GPUs are checked because a DaemonSet seems complete although its pods do not tolerate the taint: it does not
    count such a Node.
    """
    if not is_ready(one):
        return _NOT_READY
    return "" if offered_gpus(one) else _NO_GPUS


def _notes(key: str, kept: t.Mapping[str, str]) -> list[str]:
    """Sentences about the Nodes that keep the taint. kept: maps these Nodes to the reasons."""
    found = {why: [name for name in kept if kept[name] == why] for why in (_NOT_READY, _NO_GPUS, _UNVERIFIED)}
    return [f"{fold(names)}: {why.format(f'so the taint {key} stays')}" for why, names in found.items() if names]


def without(one: NodeState, key: str) -> NodePatch:
    """The patch that removes the taints with a key, whatever their value and effect; empty if the Node has none."""
    left = [taint for taint in one.taints if taint["key"] != key]
    return NodePatch() if len(left) == len(one.taints) else NodePatch(spec={"taints": left or None})


def _check(state: str, key: str | None, names: t.Sequence[str] | None) -> None:
    if not key:
        raise InputError("The key of the taint is required.", "Set the key of the taint that new Nodes have, such as "
                         "startup-taint.cluster-autoscaler.kubernetes.io/gpu.", path="taint", value=key)
    if any(sign in key for sign in "=: "):
        raise InputError(f"{key!r} is no key of a taint.", "Omit the value and the effect, such as =true and "
                         ":NoSchedule: all taints with this key are removed.", path="taint", value=key)
    if state == "present":
        raise InputError("The kubelet or the autoscaler sets a startup taint, not this module.",
                         "Set state absent to remove the taint from verified Nodes.", path="state", value=state,
                         allowed=["gathered", "absent"])
    if state == "absent" and names is None:
        raise InputError("It is required with state absent.", "Set it to the result verified of gpu_verify.",
                         path="nodes", value=names)

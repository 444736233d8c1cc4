# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validates a policy, and returns the plan of all hosts and of the cluster."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils import _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.controller import ControllerAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import driver_containers
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import hidden, releases, upgrades, yamltext
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import ClusterFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import (
    check_nodes,
    host_nodes,
    inventory_vars,
    settings,
    unused,
    variable_names,
    windows,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import find_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.cluster import namespace_of, resolve_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.plans import FleetPlan, Settings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import check_level, resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import (
    cluster_images,
    config_maps,
    differences,
    driver_references,
    export,
    formats,
    key_effects,
    mig_document,
    monitoring,
    sharing,
)

_EXPORTS: t.Dict[str, t.Callable[[formats.Policy], t.Any]] = {
    "cluster_policy": export.to_cluster_policy, "values": export.to_values, "nvidia_driver": export.to_nvidia_driver,
}


# The second sentence of a warning about a Node that an earlier run has left out of service.
_AGAIN = "The next run of site or remove that succeeds there puts it back into service."
_REMEDIATE = "The next run of remediate puts it back into service."
_UPGRADE = "The next run of the playbook upgrade finishes its driver upgrade."
_BY_HAND = ("Add the host of the Node to the inventory, and run again; or check the Node and put it back into service "
            "by hand, see docs/maintenance.md.")
_SHOWN = 20  # such Nodes


class ActionModule(ControllerAction):
    """See the documentation of the module gpu_policy."""

    HOST_INDEPENDENT = ("resolve", "export")
    ARGUMENTS = {
        "policy": {"type": "raw"},
        "release": {"type": "str"},
        "placement": {"type": "raw"},
        "disruption": {"type": "str", "choices": [*LEVELS, ""]},
        "kubeconfig": {"type": "str"},
        "context": {"type": "str"},
        "namespace": {"type": "str"},
        "image_registry": {"type": "str"},
        "pull_secrets": {"type": "list", "elements": "str"},
        "proxy": {"type": "dict"},
        "node_os": {"type": "list", "elements": "str"},
        "render_to": {"type": "str"},
        "sharing": {"type": "raw"},
        "monitoring": {"type": "dict"},
        "maintenance_windows": {"type": "raw"},
        "take_over": {"type": "bool", "default": False},
        "check_pods": {"type": "raw", "default": 0},
        "check_metrics": {"type": "raw", "default": 0},
        "facts": {"type": "dict"},
        "cluster_facts": {"type": "dict"},
        "overrides": {"type": "dict"},
        "resolve": {"type": "bool", "default": True},
        "compare_with": {"type": "raw"},
        "export": {"type": "str", "choices": sorted(_EXPORTS)},
    }

    def work(self, arguments: Data, task_vars: Data) -> Data:
        """Reads, compares, exports, resolves, returns the plan."""
        variables = inventory_vars.variables(task_vars)
        wanted = settings.option_values(arguments, variables, inventory_vars.left_out(task_vars))
        if isinstance(wanted["kubeconfig"], str):
            wanted["kubeconfig"] = find_file(task_vars, wanted["kubeconfig"])
        wanted["proxy"] = _proxy.read(wanted["proxy"], "gpu_proxy")
        wanted["sharing"] = _sharing(wanted["sharing"], task_vars)
        wanted["monitoring"] = monitoring.read(wanted["monitoring"])
        wanted["maintenance_windows"] = windows.parse(wanted["maintenance_windows"])
        wanted["take_over"] = arguments["take_over"]
        host_nodes.check(wanted)
        if wanted["take_over"] and not wanted["policy"]:
            raise InputError("it is not set, and later runs need the policy of the adopted GPU Operator, too.",
                             "Set gpu_policy: live in the inventory to use the operator's own ClusterPolicy in this "
                             "and later runs, or set it to a file that you have exported.", path="gpu_policy")
        asked = arguments["export"] or arguments["compare_with"]
        if not arguments["resolve"] and not asked:
            return {"changed": False, "cluster": _place(wanted, task_vars), "rejected": _rejected(task_vars),
                    **_hosts(wanted, task_vars)}
        release = releases.release(wanted["release"])
        policy = _read(wanted["policy"], wanted, task_vars, release)
        result = self._look_at(policy, arguments, wanted, task_vars, release)
        if arguments["resolve"]:
            plan = self._plan(policy, release, wanted, arguments, task_vars)
            plan["notes"] += result.pop("notes")
            plan["notes"] += filter(None, [windows.note(wanted["maintenance_windows"], time.time())])
            plan["windows"] = [one.as_dict() for one in wanted["maintenance_windows"]]
            plan["notes"] += unused.notes(variables, inventory_vars.hosts(task_vars), plan["placement"])
            plan["notes"] += variable_names.look_alikes(str(name) for values in variables.values() for name in values)
            return {"changed": False, **plan, **result}
        about = {"release": release.version, "policy": policy.origin, "format": policy.kind}
        result["notes"] = [*policy.warnings, *result["notes"]]
        return {"changed": False, "cluster": _place(wanted, task_vars), "rejected": _rejected(task_vars),
                **about, **result}

    def _look_at(self, policy: formats.Policy, arguments: Data, wanted: Data, task_vars: Data,
                 release: releases.Release) -> Data:
        """Returns C(differences) and C(exported) of the policy, if requested, and notes about the export.

        A result that may contain a secret is neither printed nor logged; tasks get it with all values.
        """
        result: Data = {"notes": []}
        policies = [policy]
        if arguments["compare_with"]:
            policies.append(_read(arguments["compare_with"], wanted, task_vars, release))
            found = differences.compare(*policies)
            result["differences"] = [{**one, "text": differences.described(one)} for one in found]
        if arguments["export"]:
            result["exported"] = _EXPORTS[arguments["export"]](policy)
            if arguments["export"] == "cluster_policy":
                export.complete(result["exported"], policy, wanted["image_registry"])
            result["notes"] += export.unexported(policy, arguments["export"])
        if any(hidden.holds_secret(source.spec) for one in policies for source in one.sources):
            result["_ansible_no_log"] = True
        return result

    def _plan(self, policy: formats.Policy, release: releases.Release, wanted: Data, arguments: Data,
              task_vars: Data) -> Data:
        by_hand = arguments["facts"] is not None
        rejected = {} if by_hand else inventory_vars.rejected(task_vars)
        known = inventory_vars.checked_facts(arguments["facts"]) if by_hand else inventory_vars.facts(task_vars)
        facts: Data = {host: told for host, told in known.items() if host not in rejected}
        overrides = inventory_vars.overrides(task_vars) if arguments["overrides"] is None else arguments["overrides"]
        for host, mine in overrides.items():
            inventory_vars.require_keys(mine, (), f"overrides.{host}", "variables of roles, such as driver_version")
        overrides = {host: _with_layouts(mine, task_vars) for host, mine in overrides.items()}
        seen = arguments["cluster_facts"]
        if seen is not None:
            inventory_vars.require_keys(seen, ("server", "version", "nodes", "nfd", "service_monitors"),
                                        "cluster_facts",
                                        "all keys that the documentation of cluster_facts requires")
            inventory_vars.require_keys(seen["nodes"], (), "cluster_facts.nodes", "a mapping of Nodes to their facts")
            for node, told in seen["nodes"].items():
                inventory_vars.require_keys(told, ("labels", "annotations", "ready", "gpu", "os"),
                                            f"cluster_facts.nodes.{node}", "all facts of the Node")
                if told["gpu"]:
                    inventory_vars.require_keys(told, ("os_image", "kernel", "arch", "runtime"),
                                                f"cluster_facts.nodes.{node}", "all facts of the Node")
        maps = _config_maps(seen, wanted, policy) if facts else config_maps.Seen()
        try:
            plan: Data = {**resolve(policy, release, facts, overrides, wanted["placement"], wanted["disruption"],
                                    wanted["strict"], maps)}
            rejected = {**rejected, **plan.pop("refused")}
            _check_hosts(policy, plan)
            plan["cluster"] = None
            if {"cluster", "hybrid"} & set(plan["placement"].values()):
                seen = _seen(seen, wanted, task_vars, policy, release, maps)
                self._cluster(plan, policy, release, wanted, seen, task_vars)
            # gpu_verify checks at the end of the run, and would refuse them only then.
            nodes = plan["cluster"]["nodes"]["gpu"] if plan["cluster"] and seen is not None else None
            for option in check_nodes.OPTIONS:
                check_nodes.count(arguments[option], nodes, option)  # raises
                if plan["cluster"]:
                    plan["notes"] += check_nodes.note(arguments[option], nodes, bool(wanted["render_to"]), option)
            plan["notes"] += _attach_nodes(plan, wanted, seen, facts, task_vars)
        except GpuopsError as error:
            found = preflight.refused(error.as_result()["error"], facts, seen)
            error.details["checks"] = preflight.listed([*preflight.of_rejected(rejected), *found])
            raise
        found = preflight.checks(t.cast(FleetPlan, plan), facts, t.cast(t.Optional[ClusterFacts], seen))
        nodes = (plan["cluster"] or {}).get("rejected") or {}
        plan["checks"] = preflight.listed([
            *preflight.of_rejected(rejected),
            *preflight.of_rejected(nodes), *found])
        plan["rejected"] = rejected
        return plan

    def _cluster(self, plan: Data, policy: formats.Policy, release: releases.Release, wanted: Data, seen: Data | None,
                 task_vars: Data) -> None:
        """Adds the cluster to the plan. seen: the current state of the cluster, None if it was not read."""
        if inventory_vars.cluster_is_left_out(task_vars):
            plan["notes"].append("the cluster is left out by --limit: no host of the group gpu_control is in this run.")
            return
        settled: Data = {**wanted, "profiles": inventory_vars.node_profiles(task_vars),
                         "plugin_configs": inventory_vars.plugin_configs(task_vars)}
        cluster: Data = {**resolve_cluster(
            policy, release, t.cast(t.Optional[ClusterFacts], seen), plan["placement"],
            inventory_vars.node_names(task_vars), t.cast(Settings, settled), wanted["disruption"])}
        plan["notes"] = key_effects.merged([*plan["notes"], *cluster.pop("notes")])
        theirs = (seen or {}).get("operator")
        if theirs and theirs != release.version:
            plan["notes"].append(f"the adopted operator has release {theirs}, and the plan is for release "
                                 f"{release.version}. To keep the versions that the policy does not set, set "
                                 f"gpu_release to {theirs}.")
        cluster["deploy"].update(_label_changes(seen, cluster["deploy"], wanted["take_over"]))
        plan["cluster"] = {**cluster, "kubeconfig": wanted["kubeconfig"], "context": wanted["context"],
                           "render_to": wanted["render_to"], "take_over": wanted["take_over"]}
        if seen is not None:
            from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import node_by_node

            plan["cluster"]["unfinished"] = node_by_node.unfinished_nodes(seen["nodes"])


def _attach_nodes(plan: Data, wanted: Data, seen: Data | None, facts: Data, task_vars: Data) -> list[str]:
    """Adds the Nodes to the plans of hosts, even if nothing is delivered in the cluster. Returns notes."""
    plan.update(_about_nodes(wanted, len(plan["hosts"])), strict=wanted["strict"])
    marks = _annotations(wanted, seen) if facts or seen else None
    names = inventory_vars.node_names(task_vars) if facts else {}
    notes = host_nodes.attach(plan, names, _left_behind(marks), facts, bool(wanted["render_to"]))
    plan["warnings"] = _left_by_runs(marks, plan["hosts"], plan["host_nodes"])
    return notes


def _rejected(task_vars: Data) -> Data:
    """Hosts with invalid facts. Includes hosts that stand for a cluster, because run_once can choose any host."""
    return inventory_vars.rejected(task_vars, inventory_vars.play_hosts(task_vars))


def _hosts(wanted: Data, task_vars: Data) -> Data:
    """Returns what a removal needs without a policy: the level, and the Node of each host."""
    check_level(wanted["disruption"])
    hosts, names = inventory_vars.hosts(task_vars), inventory_vars.node_names(task_vars)
    marks = _annotations(wanted, None)
    found = host_nodes.removal({host: names.get(host, host) for host in hosts}, _left_behind(marks),
                               wanted["disruption"], bool(wanted["render_to"]))
    return {"disruption": wanted["disruption"], **_about_nodes(wanted, len(hosts)), "hosts": found,
            "host_nodes": {host: one["node"] for host, one in found.items()},
            "warnings": [*_left_by_runs(marks, found, {}), *(
                ["gpu_render_to is set, so nothing is removed from the cluster."]
                if wanted["kubeconfig"] and wanted["render_to"] else [])]}


def _about_nodes(wanted: Data, hosts: int) -> Data:
    return {"kubeconfig": wanted["kubeconfig"], "context": wanted["context"],
            "batch": host_nodes.batch(wanted["max_unavailable"], hosts)}


def _annotations(wanted: Data, seen: Data | None) -> dict[str, dict[str, str]] | None:
    """Maps the Nodes to their annotations and the label with the state of a driver upgrade, None without a cluster.
    seen: the state, if it was read."""
    if not wanted["kubeconfig"] or wanted["render_to"]:
        return None
    if seen is not None:
        return {name: _marks(one["annotations"], one["labels"]) for name, one in seen["nodes"].items()}
    # Imported here, because the library takes half a second to load, which a run without a cluster does not need.
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import client

    found = client.Client(wanted["kubeconfig"], wanted["context"]).list("v1", "Node", metadata_only=True)
    return {meta["name"]: _marks(meta.get("annotations") or {}, meta.get("labels") or {})
            for meta in (one["metadata"] for one in found)}


def _marks(annotations: t.Mapping[str, str], labels: t.Mapping[str, str]) -> dict[str, str]:
    upgraded = upgrades.STATE in labels and deploy_labels.gets_driver_pod(labels)
    return {**annotations, **({upgrades.STATE: labels[upgrades.STATE]} if upgraded else {})}


def _left_behind(marks: dict[str, dict[str, str]] | None) -> dict[str, bool] | None:
    """Maps a Node to whether a killed or failed run has left it out of service. marks: the result of L(_annotations).
    """
    if marks is None:
        return None
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import maintenance

    return {name: maintenance.left_behind(one) for name, one in marks.items()}


def _left_by_runs(marks: dict[str, dict[str, str]] | None, hosts: Data, others: Data) -> list[str]:
    """A warning for each Node that a killed or failed run has left out of service. marks: the result of
    L(_annotations); hosts: those of the plan; others: the Nodes of all hosts with facts, by host."""
    if not marks:
        return []
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import maintenance, node_lock

    found = maintenance.left_by_runs(marks, node_lock.Holder.of_run())
    own = {one["node"]["name"] for one in hosts.values() if one["node"]}
    known = {one["name"] for one in others.values() if one}
    warnings = [f"{text} {_remedy(marks[name], name in own, name in known)}" for name, text in found.items()]
    more = [f"{len(warnings) - _SHOWN} more Nodes were left behind by earlier runs."] if len(warnings) > _SHOWN else []
    return [*warnings[:_SHOWN], *more]


def _remedy(marks: dict[str, str], is_planned: bool, is_host: bool) -> str:
    """What puts a Node back into service. is_planned: whether the plan has its host; is_host: whether the play has."""
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import maintenance

    if marks.get(upgrades.STATE) in upgrades.UNFINISHED:
        return _UPGRADE
    if is_planned or maintenance.REMOVING in marks:
        return _AGAIN
    return _REMEDIATE if is_host else _BY_HAND


def _config_maps(given: Data | None, wanted: Data, policy: formats.Policy) -> config_maps.Seen:
    """The ConfigMaps that the policy names, for hosts. given: the facts of a cluster, None to read from the cluster of
    gpu_kubeconfig. Nothing is read and known without it."""
    names, namespace = config_maps.named(policy), namespace_of(t.cast(Settings, wanted))
    if given is not None or not wanted["kubeconfig"] or not names:
        return config_maps.Seen(namespace, (given or {}).get("config_maps") or {}, wanted["sharing"])
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import client
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import read_cluster

    server = client.Client(wanted["kubeconfig"], wanted["context"])
    wants = {driver_references.CONFIG_MAP: names, driver_references.SECRET: []}
    told = read_cluster.read_named(server, namespace, wants)
    return config_maps.Seen(namespace, told["config_maps"], wanted["sharing"])


def _seen(given: Data | None, wanted: Data, task_vars: Data, policy: formats.Policy, release: releases.Release,
          maps: config_maps.Seen) -> Data | None:
    """Returns the state of the cluster. None if it is left out, or if manifests are only rendered. maps: the ConfigMaps
    that have been read."""
    if given is not None or inventory_vars.cluster_is_left_out(task_vars):
        return given
    if wanted["kubeconfig"]:
        return _look(wanted, policy, release, maps)
    if wanted["render_to"]:
        return None
    raise InputError("it is not set, and a cluster is never taken from the environment.",
                     "Set it to the kubeconfig of the cluster, or set gpu_render_to to write manifests.",
                     path="gpu_kubeconfig")


def _place(wanted: Data, task_vars: Data) -> Data | None:
    """Returns kubeconfig, context and namespace of the cluster, None if the run changes no cluster."""
    if not wanted["kubeconfig"] or wanted["render_to"] or inventory_vars.cluster_is_left_out(task_vars):
        return None
    return {name: wanted[name] for name in ("kubeconfig", "context", "namespace")}


def _read(source: t.Any, wanted: Data, task_vars: Data, release: releases.Release) -> formats.Policy:
    """Reads a policy from a file, from data, or from the cluster."""
    if source != formats.LIVE:
        return formats.read(find_file(task_vars, source) if isinstance(source, str) and source else source, release)
    if not wanted["kubeconfig"]:
        raise InputError("it is not set, but gpu_policy is live, so the policy must be read from a cluster.",
                         "Set it to the kubeconfig of the cluster.", path="gpu_kubeconfig")
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import client, read_policy

    server = client.Client(wanted["kubeconfig"], wanted["context"])
    return formats.read(read_policy.read_policy(server), release, f"the policy in {server.server}")


def _check_hosts(policy: formats.Policy, plan: Data) -> None:
    """Raises InputError if a driver is planned on a host and the policy cannot be followed on hosts."""
    said = formats.unsupported_on_hosts(policy)
    if said and any(host["driver"].get("placement") == "host" for host in plan["hosts"].values()):
        listed = "".join(f"\n  {one}" for one in said)
        raise InputError(f"{policy.origin} ({policy.kind}) cannot be followed on hosts:{listed}\nNothing was changed.",
                         faults=said)


def _look(wanted: Data, policy: formats.Policy, release: releases.Release, maps: config_maps.Seen) -> Data:
    """Reads the cluster and the objects that the policy names, except those in maps. Refuses a cluster that a GPU
    Operator still owns."""
    # Imported here, because the library takes half a second to load, which a run without a cluster does not need.
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import client, operator, refuse_operator
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import read_cluster

    server = client.Client(wanted["kubeconfig"], wanted["context"])
    if not wanted["take_over"]:
        refuse_operator.refuse_operator(server)
    namespace = namespace_of(t.cast(Settings, wanted))
    named = driver_references.named(policy)
    named[driver_references.CONFIG_MAP] = [name for name in dict.fromkeys([
        *named[driver_references.CONFIG_MAP], *config_maps.named(policy)]) if name not in maps.data]
    named[driver_references.SECRET] = list(dict.fromkeys([
        *named[driver_references.SECRET], *cluster_images.every_pull_secret(policy, wanted["pull_secrets"])]))
    found = read_cluster.read_cluster(server)
    systems = {(one["os"]["id"], one["os"]["version"]) for one in found["nodes"].values() if one["gpu"] and one["os"]}
    told = read_cluster.read_named(server, namespace, named)
    return {**found, **told, "config_maps": {**maps.data, **told["config_maps"]},
            **read_cluster.read_runtime(server, namespace),
            **read_cluster.read_drivers(server, namespace, driver_containers.existing_names(policy, systems, release)),
            **(read_cluster.read_kernels(server, namespace)
               if driver_containers.has_kernel_daemon_sets(policy) else {}),
            **(read_cluster.read_nvidia_drivers(server, namespace)
               if driver_containers.has_nvidia_drivers(policy) else {}),
            "operator": operator.version(server) if wanted["take_over"] else ""}


def _label_changes(seen: Data | None, deploy: Data, take_over: bool) -> Data:
    """Whether the labels of a Node differ, and which Nodes lose a label that their driver or MPS pods need. If none
    differ, no later task has to read the Nodes again."""
    adopt = deploy_labels.CONTAINER_SET if take_over else frozenset()
    nodes = [deploy_labels.Node.of_facts(name, node, adopt) for name, node in (seen or {"nodes": {}})["nodes"].items()]
    asked, now = deploy_labels.parse_deploy(deploy), time.time()
    return {"differs": deploy_labels.differs(nodes, asked, now),
            "leaving": deploy_labels.leaving(nodes, asked, deploy_labels.Terms(now))}


def _sharing(source: t.Any, task_vars: Data) -> sharing.Sharing | None:
    """Reads gpu_sharing, a file or data."""
    if isinstance(source, str) and source:
        path = find_file(task_vars, source)
        return sharing.read(yamltext.load_document(path, "gpu_sharing"), path)
    return sharing.read(yamltext.Document(source)) if source else None


def _with_layouts(mine: Data, task_vars: Data) -> Data:
    """Adds the content of the MIG file to the variables of a host, so that its layout is validated before the run."""
    document = mig_document.from_options(task_vars, mine.get("mig_manager_config_file"), mine.get("mig_manager_config"))
    return mine if document is None else {**mine, "mig_manager_config": document.data}

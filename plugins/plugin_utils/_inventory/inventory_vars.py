# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the variables and the registered results of hosts. Only this file contains their names. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, brief
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.collect import SCHEMA
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import (
    ON_HOSTS,
    SECRETS,
    SOFTWARE,
    SOFTWARE_RESULT,
    VARIABLES,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes, settings, unused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import Variables
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.variable_names import NAMES

# Registered results of the role preflight: of gpu_info, and of gpu_verify.
FACTS = "preflight_found"
CHECKS = "preflight_checked"
# Registered results with CUDA samples: of gpu_info, and of the role validator.
SAMPLES = (FACTS, "validator_result")

# Registered results for a cluster: of operands, gpu_labels and gpu_verify.
OPERANDS, DEPLOY_LABELS, CLUSTER_CHECKS = "operands_result", "deploy_labels_result", "preflight_cluster"

# The registered result of gpu_evidence.
EVIDENCE = "preflight_evidence"

# The name and the message of the task that failed in the preview of a host; the role preflight sets both.
FAILURE = "preflight_failure"
# The components whose modules run in check mode in a preview.
_PREVIEWED = ("driver", "container_toolkit", "mig_manager", *SOFTWARE)

# The registered result of node_maintenance when it took the host's Node out of service.
MAINTENANCE = "maintenance_result"
SLURM = "maintenance_slurm_result"
# Why a host waits for the next maintenance window; the playbook site sets it.
LATER = "maintenance_later"

# Variables of users: the name of a host's Node, its profile (L(profiles)), and the device plugin's configuration for
# its Node (L(device_plugin)).
NODE_NAME = "gpu_node_name"
PROFILE = "gpu_profile"
PLUGIN_CONFIG = "device_plugin_config"

# The variables that are read from each host.
READ = frozenset((*(f"gpu_{option}" for option in settings.DEFAULTS), *settings.SECONDS, *settings.EVERYWHERE,
                  *unused.OF_HOSTS, *unused.OF_CLUSTERS, NODE_NAME, PROFILE, *VARIABLES, *SECRETS))

# The result of a module, or a part of it, in JSON. L(answer_shapes) defines its structure.


class HostVars(t.Protocol):
    """The variables of all hosts, as Ansible passes them (hostvars)."""

    def __getitem__(self, host: str) -> Variables:
        """The variables of a host. Values are templated when they are read."""

    def raw_get(self, host: str) -> Variables:
        """The variables of a host without templating."""


def play_hosts(task_vars: Variables) -> list[str]:
    """All hosts of the play, including failed and unreachable ones, in the order of the inventory."""
    return [str(host) for host in task_vars.get("ansible_play_hosts_all") or [task_vars["inventory_hostname"]]]


def hosts(task_vars: Variables) -> list[str]:
    """The hosts of the play, except those that only represent a cluster."""
    control = set(_group(task_vars, "gpu_control")) - set(_group(task_vars, "gpu_hosts"))
    return [host for host in play_hosts(task_vars) if host not in control]


def variables(task_vars: Variables) -> dict[str, Variables]:
    """The variables of the hosts of the play, by host. Hosts that L(rejected) names are omitted.

    Raises InputError if a variable of all hosts, or of a host that represents a cluster, cannot be templated, because
    the default of the variable would be used otherwise.
    """
    hostvars = task_vars["hostvars"]
    valid = [host for host in play_hosts(task_vars) if not forged(hostvars.raw_get(host))]
    faults = {host: template_error(hostvars, host) for host in valid}
    found = {host: hostvars[host] for host, fault in faults.items() if fault is None}
    for host, fault in faults.items():
        if fault is not None and (not found or host not in hosts(task_vars)):
            raise fault
    return found


def template_error(hostvars: HostVars, host: str, names: frozenset[str] = READ) -> InputError | None:
    """The error for the first of these variables of a host that cannot be templated, None if all can be."""
    values = hostvars[host]
    for name in sorted(names.intersection(values)):
        try:
            values[name]
        except InputError as error:
            return error
    return None


def forged(host_vars: Variables) -> list[str]:
    """The variables of this collection that the facts of a host set, sorted. host_vars: its variables without
    templating."""
    # Facts take precedence over the inventory, so a compromised host could set the variables of all hosts.
    known = host_vars.get("ansible_facts")
    return sorted(NAMES.intersection(known)) if isinstance(known, t.Mapping) else []


def refuse_forged(task_vars: Variables) -> None:
    """Raises InputError if facts of the task's host set a variable of the collection, because options of the task may
    use it."""
    names = forged(task_vars)
    if names:
        raise forged_error(str(task_vars["inventory_hostname"]), names[0])


def forged_error(host: str, name: str) -> InputError:
    """The error for a host whose facts set a variable of this collection."""
    what = "only the inventory may set the Node of a host" if name == NODE_NAME else "only the inventory may set this"
    return InputError(f"{host} has a fact {name}: {what}.",
                      f"Set {name} in the inventory, and find out where the fact comes from (a module on the host, "
                      "set_fact with cacheable, or a fact cache).", path=f"hostvars.{host}.{name}")


def left_out(task_vars: Variables) -> dict[str, Variables]:
    """The variables of hosts in the groups gpu_hosts and gpu_control that are not in the play (--limit), by host.

    Hosts with L(forged) variables or with a L(template_error) are omitted.
    """
    known = [*_group(task_vars, "gpu_hosts"), *_group(task_vars, "gpu_control")]
    here, hostvars = set(play_hosts(task_vars)), task_vars["hostvars"]
    return {host: hostvars[host] for host in dict.fromkeys(known)
            if host not in here and not forged(hostvars.raw_get(host)) and template_error(hostvars, host) is None}


def node_names(task_vars: Variables) -> dict[str, str]:
    """The names of the Nodes of hosts in the group gpu_hosts, by host, including the hosts that --limit omits.

    If a fact of a host sets gpu_node_name, or if this variable cannot be templated, the name of the host is used,
    unless it is the name of another host's Node. So the cluster does not deliver again what is already on the host.
    """
    names = {host: node_name(task_vars["hostvars"], host) for host in _group(task_vars, "gpu_hosts")}
    known = {host: name for host, name in names.items() if name is not None}
    taken = {*known.values()}
    return {**known, **{host: host for host, name in names.items() if name is None and host not in taken}}


def node_name(hostvars: HostVars, host: str) -> str | None:
    """The name of a host's Node according to the inventory; None if a fact of the host sets the variable, or if it
    cannot be templated."""
    raw = hostvars.raw_get(host)
    if not _is_usable(hostvars, host, NODE_NAME):
        return None
    return str(hostvars[host][NODE_NAME]) if raw.get(NODE_NAME) else host


def _is_usable(hostvars: HostVars, host: str, name: str) -> bool:
    """Whether a variable of a host can be templated and is not set by a fact."""
    return name not in forged(hostvars.raw_get(host)) and template_error(hostvars, host, frozenset((name,))) is None


def plugin_configs(task_vars: Variables) -> dict[str, str]:
    """The device plugin's configurations of hosts, by Node of the host."""
    return {node: str(name) for node, name in _by_node(task_vars, PLUGIN_CONFIG).items() if name}


def node_profiles(task_vars: Variables) -> Data:
    """The gpu_profile of hosts, by Node. For all other Nodes: that of the group gpu_control, with the key ""."""
    found = _by_node(task_vars, PROFILE)
    hostvars = task_vars["hostvars"]
    for host in _group(task_vars, "gpu_control"):
        if _is_usable(hostvars, host, PROFILE):
            found.setdefault("", hostvars[host].get(PROFILE))
    return found


def _by_node(task_vars: Variables, name: str) -> Data:
    """The values of a variable of hosts, by Node; None if not set. Omits forged and unreadable variables."""
    hostvars = task_vars["hostvars"]
    return {node: hostvars[host].get(name) for host, node in node_names(task_vars).items()
            if _is_usable(hostvars, host, name)}


def cluster_is_left_out(task_vars: Variables) -> bool:
    """Whether --limit omits every host of the group gpu_control."""
    control = _group(task_vars, "gpu_control")
    return bool(control) and not set(control) & set(play_hosts(task_vars))


def _group(task_vars: Variables, name: str) -> list[str]:
    return [str(host) for host in (task_vars.get("groups") or {}).get(name) or []]


def facts(task_vars: Variables) -> Data:
    """The facts of gpu_info by host, None if the host has none or is L(rejected)."""
    refused = rejected(task_vars)
    return {host: None if host in refused else _registered(task_vars, host, FACTS).get("facts")
            for host in hosts(task_vars)}


def rejected(task_vars: Variables, names: t.Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """The rejected hosts, as C({host: {path, message, hint}}). names: the hosts to check, by default those of the play.

    A host is rejected if its facts do not have the structure that gpu_info documents, if they set variables of the
    collection, or if such a variable cannot be templated.
    """
    found = {}
    for host in hosts(task_vars) if names is None else names:
        error = _registered(task_vars, host, FACTS).get("error") or {}
        refused = error.get("kind") == answer_shapes.KIND
        variables_set = forged(task_vars["hostvars"].raw_get(host))
        fault = forged_error(host, variables_set[0]) if variables_set else template_error(task_vars["hostvars"], host)
        if fault is not None:
            error = fault.as_result()["error"]
        if refused or fault is not None:
            found[host] = {key: str(error[key]) for key in ("path", "message", "hint")}
    return found


def checked_facts(found: t.Mapping[str, Data | None]) -> dict[str, Data | None]:
    """The facts by host that a user has passed. Raises InputError if they do not have the structure of gpu_info's
    facts, for example because another version of the collection created them."""
    for host, known in found.items():
        schema = known.get("schema") if isinstance(known, dict) else None
        if known is not None and schema != SCHEMA:
            raise InputError(f"the schema is {schema!r}; this version of the collection needs {SCHEMA}.",
                             "Gather them again with gpuops.nvidia.gpu_info.", path=f"facts.{host}", value=schema,
                             allowed=[SCHEMA])
        fault = answer_shapes.FACTS.fault(known) if known is not None else None
        if fault is not None:
            raise InputError(f"it is {fault.value}; allowed: {fault.allowed}.",
                             "Give the complete facts of gpuops.nvidia.gpu_info.", path=f"facts.{host}{fault.path}",
                             value=fault.value, allowed=fault.allowed)
    return dict(found)


def require_keys(data: object, needed: t.Sequence[str], path: str, source: str) -> None:
    """Raises InputError if data from a user is not a mapping with the needed keys. source: the expression for the
    complete data, for the hint."""
    if not isinstance(data, t.Mapping):
        raise InputError(f"a mapping is expected, not {brief(data)}.", f"Give {source}.", path=path)
    missing = [name for name in needed if name not in data]
    if missing:
        raise InputError(f"these keys are missing: {', '.join(missing)}.", f"Give {source}.", path=path,
                         allowed=list(needed))


def overrides(task_vars: Variables) -> dict[str, Data]:
    """The role variables, and gpu_profile, that the inventory sets, by host. For a secret, only whether it is set."""
    found, refused = {}, rejected(task_vars)
    for host in hosts(task_vars):
        values = {} if host in refused else task_vars["hostvars"][host]
        found[host] = {name: values[name] for name in (*VARIABLES, PROFILE) if name in values}
        found[host].update({name: bool(values[name]) for name in SECRETS if name in values})
    return found


def checks(task_vars: Variables, host: str) -> list[Data] | None:
    """The checks of gpu_verify on a host, None if gpu_verify did not run; empty if nothing is delivered on the host."""
    result = _registered(task_vars, host, CHECKS)
    found = [] if result.get("skipped") else result.get("checks")
    return found if isinstance(found, list) else None


def unready_nodes(task_vars: Variables) -> set[str]:
    """The Nodes whose hosts differ from the plan, or on whose hosts gpu_verify did not run in this run."""
    found = {node: checks(task_vars, host) for host, node in node_names(task_vars).items()}
    return {node for node, of_host in found.items() if of_host is None or any(not check["ok"] for check in of_host)}


def steps_of(task_vars: Variables, host: str, what: str) -> dict[str, list[Data]]:
    """The steps in the last result of each module on a host, by component. what: C(plan) or C(pending). Components
    without such steps are omitted."""
    found = {}
    together = _registered(task_vars, host, SOFTWARE_RESULT).get("components") or {}
    for component in ON_HOSTS:
        result = _of_executed(task_vars, host, _registered(task_vars, host, component.result))
        items = together.get(component.name, result).get(what)
        if isinstance(items, list) and items:
            found[component.name] = items
    return found


def _of_executed(task_vars: Variables, host: str, result: Data) -> Data:
    """The result of a module. If the host's Node or its node of Slurm stayed in service, the module ran in check mode,
    so all steps are pending. If the host waits for a maintenance window, this is the reason of its pending steps."""
    later = task_vars["hostvars"].raw_get(host).get(LATER)
    if later:  # the level that they need is not what they wait for
        return {**result, "pending": [step if step.get("needs") == "never" else
                                      {**step, "needs": "never", "pending_reason": str(later)}
                                      for step in result.get("pending") or ()]}
    maintenance = _registered(task_vars, host, MAINTENANCE)
    obstacles = _registered(task_vars, host, SLURM).get("pending") or maintenance.get("pending")
    if not obstacles:
        return result
    reason = f"{obstacles[0]['id']}: {obstacles[0]['pending_reason']}"

    def waiting(key: str) -> list[Data]:
        return [{**step, "needs": obstacles[0]["needs"], "pending_reason": reason} for step in result.get(key) or ()]

    if maintenance.get("started"):  # only MIG instances in free space were created, at the level never
        return {**result, "pending": waiting("pending")}
    return {**result, "plan": [], "pending": [*waiting("plan"), *(result.get("pending") or ())]}


def driver_steps(task_vars: Variables, action: str) -> list[str]:
    """The targets of the steps with this action that the role driver planned in check mode on the task's host."""
    return [step["target"] for step in _planned_for_driver(task_vars) if step["action"] == action]


def driver_actions(task_vars: Variables) -> set[str]:
    """The actions of the steps that the role driver planned in check mode on the task's host."""
    return {step["action"] for step in _planned_for_driver(task_vars)}


def _planned_for_driver(task_vars: Variables) -> list[Data]:
    return steps_of(task_vars, str(task_vars["inventory_hostname"]), "plan").get("driver", [])


def errors(task_vars: Variables, host: str, asked: t.Collection[str] = ()) -> dict[str, Data]:
    """C({message, hint}) by component: why the component's module failed on a host, or why it did not run.

    asked: the components whose modules had to run in the preview of the role preflight.
    """
    found = {}
    for component in ON_HOSTS:
        result = _registered(task_vars, host, component.result)
        if _failed(result):
            found[component.name] = _error(result)
    together = _registered(task_vars, host, SOFTWARE_RESULT)
    if _failed(together):
        error = _error(together)
        found[error.get("component") or SOFTWARE[0]] = error
    why = task_vars["hostvars"].raw_get(host).get(FAILURE)
    for name in _PREVIEWED if why else ():
        answer = together if name in SOFTWARE else _registered(task_vars, host, f"{name}_result")
        if name in asked and name not in found and not answer:
            message = f"The preview of the host failed before this module ran: {printable(str(why))[:2000]}"
            found[name] = {"message": message, "hint": "Correct the error, then run again."}
    return found


def _failed(result: Data) -> bool:
    """Whether a module failed or its host was unreachable. A play can continue after either."""
    return bool(result.get("failed") or result.get("unreachable"))


def cluster_errors(task_vars: Variables) -> dict[str, Data]:
    """The failures in the cluster: C({message, hint}), with the keys C(operands) and C(labels)."""
    results = {"operands": _of_cluster(task_vars, OPERANDS), "labels": _of_cluster(task_vars, DEPLOY_LABELS)}
    failed = {what: [one for one in found if one.get("error") or one.get("failed")] for what, found in results.items()}
    return {what: _error(found[0]) for what, found in failed.items() if found}


def _of_cluster(task_vars: Variables, name: str) -> list[Data]:
    """The registered results with this name: first of the group gpu_control, then of the hosts of the play."""
    known = dict.fromkeys([*_group(task_vars, "gpu_control"), *play_hosts(task_vars)])
    return [_registered(task_vars, host, name) for host in known]


def _error(result: Data) -> Data:
    return result.get("error") or {"message": str(result.get("msg") or ""), "hint": ""}


def evidence(task_vars: Variables, host: str) -> Data | None:
    """The answer of gpu_evidence in this run on a host, None if there is none."""
    found = _registered(task_vars, host, EVIDENCE)
    return found if {"evidence", "explained", "dcgm"} <= found.keys() else None


def samples(task_vars: Variables, host: str) -> list[Data] | None:
    """The results of the CUDA samples of this run on a host, None if they did not run."""
    found = (_registered(task_vars, host, name).get("samples") for name in SAMPLES)
    return next((one for one in found if isinstance(one, list)), None)


def cluster(task_vars: Variables, plan: t.Mapping[str, t.Any] | None) -> Data | None:
    """C({plan, operands, labels, checks, observed}) of the cluster for a report, None if the run has no cluster.

    plan: C(gpu_plan.cluster). Results of skipped tasks are ignored.
    """
    found = {key: next((one for one in _of_cluster(task_vars, name) if one and not one.get("skipped")), None)
             for key, name in (("operands", OPERANDS), ("labels", DEPLOY_LABELS), ("checks", CLUSTER_CHECKS))}
    if not plan and not any(found.values()):
        return None
    checked = found["checks"] or {}
    return {"plan": plan or None, **found, "checks": checked.get("checks"), "observed": checked.get("observed")}


def unchanged_facts(task_vars: Variables, host: str) -> Data | None:
    """The facts of this run, None if there are none or if a role has changed the host since they were gathered."""
    results = [*(component.result for component in ON_HOSTS), SOFTWARE_RESULT]
    if any(_registered(task_vars, host, result).get("changed") for result in results):
        return None
    found = _registered(task_vars, host, FACTS).get("facts")
    return found if isinstance(found, dict) else None


def _registered(task_vars: Variables, host: str, name: str) -> Data:
    """A registered result, empty if there is none. It is not templated, because it is data, and templating is slow."""
    known = task_vars["hostvars"].raw_get(host)
    # A fact with the same name is not a registered result.
    value = None if name in (known.get("ansible_facts") or ()) else known.get(name)
    return value if isinstance(value, dict) else {}

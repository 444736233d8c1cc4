# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fleet's hosts have in their variables: the one place that knows the names. PRIVATE."""

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
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes, settings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.variable_names import NAMES

# Registered by the role preflight: what gpu_info and gpu_verify returned.
FACTS = "preflight_found"
CHECKS = "preflight_checked"
# Registered where CUDA samples ran: by the task that looks at the host, or by the role validator.
SAMPLES = (FACTS, "validator_result")

# Registered where a cluster is served: what operands, gpu_labels and gpu_verify returned for it.
OPERANDS, DEPLOY_LABELS, CLUSTER_CHECKS = "operands_result", "deploy_labels_result", "preflight_cluster"

# Set by the role preflight: the name and the message of the task that ended the preview of a host.
FAILURE = "preflight_failure"
# The components whose modules a preview runs in check mode.
_PREVIEWED = ("driver", "container_toolkit", "mig_manager", *SOFTWARE)

# Registered by the role maintenance: what node_maintenance returned when it took the host's Node out of service.
MAINTENANCE = "maintenance_result"

NODE_NAME = "gpu_node_name"
# What a user says a host is, see L(profiles).
PROFILE = "gpu_profile"

# The configuration of the device plugin for a host's Node, see L(device_plugin).
PLUGIN_CONFIG = "device_plugin_config"

# What is read here of the inventory, of every host.
READ = frozenset((*(f"gpu_{option}" for option in settings.DEFAULTS), NODE_NAME, PROFILE, *VARIABLES, *SECRETS))

TaskVars = t.Mapping[str, t.Any]


def play_hosts(task_vars: TaskVars) -> list[str]:
    """All hosts of the play, failed and unreachable ones included, in the inventory's order."""
    return [str(host) for host in task_vars.get("ansible_play_hosts_all") or [task_vars["inventory_hostname"]]]


def hosts(task_vars: TaskVars) -> list[str]:
    """The hosts of the play that have GPUs: those that only stand for a cluster are left out."""
    control = set(_group(task_vars, "gpu_control")) - set(_group(task_vars, "gpu_hosts"))
    return [host for host in play_hosts(task_vars) if host not in control]


def variables(task_vars: TaskVars) -> dict[str, t.Any]:
    """For each host of the play its variables, without the hosts that L(rejected) names.

    Raises InputError where that would leave a default in the place of what was meant for all: a host that only stands
    for a cluster has a variable that cannot be read, or all hosts have one.
    """
    hostvars = task_vars["hostvars"]
    believed = [host for host in play_hosts(task_vars) if not forged(hostvars.raw_get(host))]
    faults = {host: unreadable(hostvars, host) for host in believed}
    found = {host: hostvars[host] for host, fault in faults.items() if fault is None}
    for host, fault in faults.items():
        if fault is not None and (not found or host not in hosts(task_vars)):
            raise fault
    return found


def unreadable(hostvars: t.Any, host: str, names: frozenset[str] = READ) -> InputError | None:
    """The error of the first of these variables that the inventory sets for a host and that cannot be templated."""
    mine = hostvars[host]
    for name in sorted(names.intersection(mine)):
        try:
            mine[name]
        except InputError as error:
            return error
    return None


def forged(host_vars: t.Any) -> list[str]:
    """The variables of this collection that the facts of a host set, sorted. host_vars: its raw variables."""
    # Facts take precedence over the inventory, so a compromised host could decide for all others.
    known = host_vars.get("ansible_facts")
    return sorted(NAMES.intersection(known)) if isinstance(known, t.Mapping) else []


def refuse_forged(task_vars: TaskVars) -> None:
    """Raises InputError if facts of the task's own host set a variable of the collection, as options may use it."""
    names = forged(task_vars)
    if names:
        raise forged_error(str(task_vars["inventory_hostname"]), names[0])


def forged_error(host: str, name: str) -> InputError:
    """The error of a host whose facts set a variable of this collection."""
    what = "only the inventory may say which Node it is" if name == NODE_NAME else "only the inventory may set this"
    return InputError(f"{host} has a fact {name}: {what}.",
                      f"Set {name} in the inventory, and find out where the fact comes from (a module on the host, "
                      "set_fact with cacheable, or a fact cache).", path=f"hostvars.{host}.{name}")


def left_out(task_vars: TaskVars) -> dict[str, dict[str, t.Any]]:
    """By host of the groups gpu_hosts and gpu_control that is not in the play, as with --limit, its variables.

    A host whose facts set some of ours, or of which one of ours cannot be read, is left out.
    """
    known = [*_group(task_vars, "gpu_hosts"), *_group(task_vars, "gpu_control")]
    here, hostvars = set(play_hosts(task_vars)), task_vars["hostvars"]
    return {host: hostvars[host] for host in dict.fromkeys(known)
            if host not in here and not forged(hostvars.raw_get(host)) and unreadable(hostvars, host) is None}


def node_names(task_vars: TaskVars) -> dict[str, str]:
    """By host of the inventory's group gpu_hosts, also one left out by --limit, the name of its Node.

    A host with a fact of this name, which hides what the inventory says, or whose variable cannot be read, counts as a
    Node of its own name, unless another host is that Node: what is on the host is not delivered a second time by the
    cluster.
    """
    names = {host: node_name(task_vars["hostvars"], host) for host in _group(task_vars, "gpu_hosts")}
    known = {host: name for host, name in names.items() if name is not None}
    taken = {*known.values()}
    return {**known, **{host: host for host, name in names.items() if name is None and host not in taken}}


def node_name(hostvars: t.Any, host: str) -> str | None:
    """The name of a host's Node, as the inventory says; None if a fact of the host sets it, or it cannot be read."""
    # Raw: what a module returned is data, and templating the variables of the whole fleet would take its time.
    raw = hostvars.raw_get(host)
    if not _says(hostvars, host, NODE_NAME):
        return None
    return str(hostvars[host][NODE_NAME]) if raw.get(NODE_NAME) else host


def _says(hostvars: t.Any, host: str, name: str) -> bool:
    """Whether it is the inventory that sets a variable of a host, or leaves it out, and its value can be read."""
    return name not in forged(hostvars.raw_get(host)) and unreadable(hostvars, host, frozenset((name,))) is None


def plugin_configs(task_vars: TaskVars) -> dict[str, str]:
    """By Node of a host of the inventory the configuration of the device plugin that its group names."""
    return {node: str(name) for node, name in _by_node(task_vars, PLUGIN_CONFIG).items() if name}


def node_profiles(task_vars: TaskVars) -> dict[str, t.Any]:
    """By Node of a host of the inventory its gpu_profile; that of the group gpu_control is for all others, under ""."""
    found = _by_node(task_vars, PROFILE)
    hostvars = task_vars["hostvars"]
    for host in _group(task_vars, "gpu_control"):
        if _says(hostvars, host, PROFILE):
            found.setdefault("", hostvars[host].get(PROFILE))
    return found


def _by_node(task_vars: TaskVars, name: str) -> dict[str, t.Any]:
    """By Node of a host of the inventory a variable of the host, None if it is not set. A host whose facts set it, or
    of which it cannot be read, is left out."""
    hostvars = task_vars["hostvars"]
    return {node: hostvars[host].get(name) for host, node in node_names(task_vars).items()
            if _says(hostvars, host, name)}


def cluster_is_left_out(task_vars: TaskVars) -> bool:
    """Whether --limit leaves out every host of the group gpu_control."""
    control = _group(task_vars, "gpu_control")
    return bool(control) and not set(control) & set(play_hosts(task_vars))


def _group(task_vars: TaskVars, name: str) -> list[str]:
    return [str(host) for host in (task_vars.get("groups") or {}).get(name) or []]


def facts(task_vars: TaskVars) -> dict[str, t.Any]:
    """For each host what gpu_info returned, None if it returned nothing or the host is not believed."""
    refused = rejected(task_vars)
    return {host: None if host in refused else _registered(task_vars, host, FACTS).get("facts")
            for host in hosts(task_vars)}


def rejected(task_vars: TaskVars, names: t.Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """By host that is left out C({path, message, hint}). names: the hosts to look at, by default those of the play.

    Its answer to gpu_info has another shape than gpu_info documents, its facts set variables of ours, or one of ours
    cannot be templated.
    """
    found = {}
    for host in hosts(task_vars) if names is None else names:
        error = _registered(task_vars, host, FACTS).get("error") or {}
        refused = error.get("kind") == answer_shapes.KIND
        variables_set = forged(task_vars["hostvars"].raw_get(host))
        fault = forged_error(host, variables_set[0]) if variables_set else unreadable(task_vars["hostvars"], host)
        if fault is not None:
            error = fault.as_result()["error"]
        if refused or fault is not None:
            found[host] = {key: str(error[key]) for key in ("path", "message", "hint")}
    return found


def same_shape(found: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Facts given by hand. Raises InputError if they do not have the shape of gpu_info's facts, for example because
    another version of the collection left them in a cache."""
    for host, known in found.items():
        schema = known.get("schema") if isinstance(known, dict) else None
        if known is not None and schema != SCHEMA:
            raise InputError(f"they have the schema {schema!r}, this version of the collection needs {SCHEMA}.",
                             "Gather them again with gpuops.nvidia.gpu_info.", path=f"facts.{host}", value=schema,
                             allowed=[SCHEMA])
        fault = answer_shapes.FACTS.fault(known) if known is not None else None
        if fault is not None:
            raise InputError(f"it is {fault.value}, allowed is {fault.allowed}.",
                             "Give all of what gpuops.nvidia.gpu_info returned.", path=f"facts.{host}{fault.path}",
                             value=fault.value, allowed=fault.allowed)
    return dict(found)


def whole(data: t.Any, needed: t.Sequence[str], path: str, source: str) -> None:
    """Raises InputError if data given by hand lacks keys that their source always has."""
    if not isinstance(data, t.Mapping):
        raise InputError(f"a mapping is expected, {brief(data)} is given.", f"Give what {source}.", path=path)
    lacking = [name for name in needed if name not in data]
    if lacking:
        raise InputError(f"it lacks {', '.join(lacking)}.", f"Give all of what {source}.", path=path,
                         allowed=list(needed))


def overrides(task_vars: TaskVars) -> dict[str, dict[str, t.Any]]:
    """By host the variables of roles, and gpu_profile, that its inventory sets. Defaults of roles do not show up.

    Of a secret only whether it is set.
    """
    found, refused = {}, rejected(task_vars)
    for host in hosts(task_vars):
        # Of a host that is left out nothing is planned.
        mine = {} if host in refused else task_vars["hostvars"][host]
        found[host] = {name: mine[name] for name in (*VARIABLES, PROFILE) if name in mine}
        found[host].update({name: bool(mine[name]) for name in SECRETS if name in mine})
    return found


def checks(task_vars: TaskVars, host: str) -> list[dict[str, t.Any]] | None:
    """What gpu_verify found on a host, None if it did not run there; empty if nothing is delivered there."""
    result = _registered(task_vars, host, CHECKS)
    found = [] if result.get("skipped") else result.get("checks")
    return found if isinstance(found, list) else None


def unready_nodes(task_vars: TaskVars) -> set[str]:
    """The Nodes of the hosts that gpu_verify, in this run, found different from the plan or did not look at."""
    found = {node: checks(task_vars, host) for host, node in node_names(task_vars).items()}
    return {node for node, mine in found.items() if mine is None or any(not check["ok"] for check in mine)}


def listed(task_vars: TaskVars, host: str, what: str) -> dict[str, list[dict[str, t.Any]]]:
    """For each component the C(plan) or C(pending) that its module returned last on a host, without empty ones."""
    found = {}
    together = _registered(task_vars, host, SOFTWARE_RESULT).get("components") or {}
    for component in ON_HOSTS:
        result = _carried_out(task_vars, host, _registered(task_vars, host, component.result))
        items = together.get(component.name, result).get(what)
        if isinstance(items, list) and items:
            found[component.name] = items
    return found


def _carried_out(task_vars: TaskVars, host: str, result: dict[str, t.Any]) -> dict[str, t.Any]:
    """What a module returned. If the host's Node stayed in service, this was a preview, and all of it is pending."""
    maintenance = _registered(task_vars, host, MAINTENANCE)
    obstacles = maintenance.get("pending")
    if not obstacles:
        return result
    reason = f"{obstacles[0]['id']}: {obstacles[0]['pending_reason']}"
    if maintenance.get("started"):  # for MIG instances in free space alone: the rest was left at the level never
        waiting = [{**step, "needs": obstacles[0]["needs"], "pending_reason": reason}
                   for step in result.get("pending") or ()]
        return {**result, "pending": waiting}
    waiting = [{**step, "needs": obstacles[0]["needs"], "pending_reason": reason} for step in result.get("plan") or ()]
    return {**result, "plan": [], "pending": [*waiting, *(result.get("pending") or ())]}


def driver_steps(task_vars: TaskVars, action: str) -> list[str]:
    """The targets of what the role driver, asked in check mode, would do of a kind on the task's host."""
    return [step["target"] for step in _planned_for_driver(task_vars) if step["action"] == action]


def driver_actions(task_vars: TaskVars) -> set[str]:
    """The kinds of what the role driver, asked in check mode, would do on the task's host."""
    return {step["action"] for step in _planned_for_driver(task_vars)}


def _planned_for_driver(task_vars: TaskVars) -> list[dict[str, t.Any]]:
    return listed(task_vars, str(task_vars["inventory_hostname"]), "plan").get("driver", [])


def errors(task_vars: TaskVars, host: str, asked: t.Collection[str] = ()) -> dict[str, dict[str, t.Any]]:
    """By component the C({message, hint}) with which its module failed on a host, or why it has not answered.

    asked: the components that the preview of the role preflight had to ask.
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
            message = f"The preview of the host ended before this was asked: {printable(str(why))[:2000]}"
            found[name] = {"message": message, "hint": "Correct that, then run again."}
    return found


def _failed(result: t.Mapping[str, t.Any]) -> bool:
    """Whether a module failed or its host was unreachable; a play may continue after both."""
    return bool(result.get("failed") or result.get("unreachable"))


def cluster_errors(task_vars: TaskVars) -> dict[str, dict[str, t.Any]]:
    """By what was asked of the cluster (operands, labels) the C({message, hint}) with which it failed; also where the
    play went on."""
    known = dict.fromkeys([*_group(task_vars, "gpu_control"), *play_hosts(task_vars)])
    found = {}
    for what, name in (("operands", OPERANDS), ("labels", DEPLOY_LABELS)):
        failed = [_error(one) for one in (_registered(task_vars, host, name) for host in known)
                  if one.get("error") or one.get("failed")]
        if failed:
            found[what] = failed[0]
    return found


def _error(result: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return result.get("error") or {"message": str(result.get("msg") or ""), "hint": ""}


def samples(task_vars: TaskVars, host: str) -> list[dict[str, t.Any]] | None:
    """The results of the CUDA samples of this run on a host, None if they were not run."""
    found = (_registered(task_vars, host, name).get("samples") for name in SAMPLES)
    return next((one for one in found if isinstance(one, list)), None)


def cluster(task_vars: TaskVars, plan: t.Mapping[str, t.Any] | None) -> dict[str, t.Any] | None:
    """C({plan, operands, labels, checks}) of the cluster for a report, None where this run has none.

    plan: C(gpu_plan.cluster). What was skipped counts as not there.
    """
    found = {}
    for key, name in (("operands", OPERANDS), ("labels", DEPLOY_LABELS), ("checks", CLUSTER_CHECKS)):
        values = [_registered(task_vars, host, name) for host in
                  dict.fromkeys([*_group(task_vars, "gpu_control"), *play_hosts(task_vars)])]
        found[key] = next((value for value in values if value and not value.get("skipped")), None)
    if not plan and not any(found.values()):
        return None
    checked = found.pop("checks")
    return {"plan": plan or None, **found, "checks": checked.get("checks") if checked else None}


def unchanged_facts(task_vars: TaskVars, host: str) -> dict[str, t.Any] | None:
    """The facts that were gathered in this run, None if there are none or a role has changed the host since."""
    results = [*(component.result for component in ON_HOSTS), SOFTWARE_RESULT]
    if any(_registered(task_vars, host, result).get("changed") for result in results):
        return None
    found = _registered(task_vars, host, FACTS).get("facts")
    return found if isinstance(found, dict) else None


def _registered(task_vars: TaskVars, host: str, name: str) -> dict[str, t.Any]:
    # Raw: what modules returned is data, and templating the whole fleet's would take its time.
    known = task_vars["hostvars"].raw_get(host)
    # A fact of the name of a result is none.
    value = None if name in (known.get("ansible_facts") or ()) else known.get(name)
    return value if isinstance(value, dict) else {}

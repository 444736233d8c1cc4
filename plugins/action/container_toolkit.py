# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's part of container_toolkit: the host reads and writes, the controller computes.

If a host is as desired, it gets one request. Only if something differs, a second request lets the runtime validate the
new files (also in check mode), and a third one applies the steps.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import REFRESH
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.device_nodes import MAKE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import LOAD
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import RESTART, STARTS
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._nulls import without_nulls
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import AGAIN, INSTALL
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    Option,
    PendingStep,
    Step,
    follow,
    gate,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import OF_FILES
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.seal import encrypt
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.answers import (
    AnswerError,
    Result,
    limited,
    received,
    refuse,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import (
    Asking,
    explained,
    interpreter,
    refuse_options,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import runtime_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable_data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.shapes import Fault
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.inventory_vars import (
    driver_actions,
    refuse_forged,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import (
    host_answer,
    owners,
    registry,
    rendered,
    settings_file,
    toolkit_steps,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import FileChange, Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import ROOTLESS_INFO
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.gathered import gathered
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState

# Driver actions that change the output of nvidia-ctk: actions on modules, files, device nodes and sockets of services.
_DRIVER_ACTIONS = (INSTALL, AGAIN, LOAD, MAKE, RESTART, REFRESH, *STARTS)

# The options that name what is read, and those that module_defaults can set for all tasks.
_WITH_GATHERED = ("runtime", "config_path", "drop_in_path", "rootless_users", "disruption", "proxy")


class _HostFailed(Exception):
    """The module failed on the host. Its result is the result of the task."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.get("msg"))
        self.result = result


class ActionModule(Asking):
    """The controller's part of container_toolkit."""

    _supports_check_mode = True
    _supports_async = False

    # The options of state rendered. Those after OF_FILES have no effect, but module_defaults can set them.
    RENDERED: t.ClassVar[dict[str, Option]] = {
        "state": {"type": "str"}, **OF_FILES, "disruption": {"type": "str"}, "proxy": {"type": "dict"}}

    def work(self, task_vars: Result) -> Result:
        """See Asking."""
        self._variables = task_vars
        try:
            refuse_forged(self._variables)
            self._check_runtimes()
            result = self._work()
        except _HostFailed as failure:
            result = failure.result
        except AnswerError as error:
            return {"failed": True, **printable_data(error.as_result())}
        except GpuopsError as error:
            result = {"failed": True, **error.as_result()}
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return explained(received(result, interpreter(self)), result)

    def _work(self) -> Result:
        if self._task.args.get("state") == "gathered":
            return self._gather()
        if self._task.args.get("state") == "rendered":
            return self._render()
        answer = self._ask("read")
        state, options = host_answer.state_of(answer), host_answer.options_of(answer)
        plan = toolkit_steps.plan(state, options)
        steps, forbidden = gate(plan.steps, options.disruption)
        pending = [*forbidden, *plan.pending]
        self._try(state, options, plan)
        # A complete removal also clears the journal, even if an earlier run was killed directly before that.
        forget_restored = options.state == "absent" and not forbidden
        if not self._task.check_mode and (steps or forget_restored and state.journal.present):
            steps, state, pending = self._apply(steps, options, forget_restored, forbidden,
                                                plan.left_out)
        diff = [*settings_file.diffs(steps), *toolkit_steps.diffs(plan.changes),
                *plan_diff("container_toolkit", steps)]
        result = outcome(steps, pending, diff, **_facts(state, steps, plan))
        if not self._task.diff:
            del result["diff"]
        warnings = [*plan.warnings, *state.cdi.warnings]
        if options.state == "present":
            warnings += settings_file.warnings(options.settings, state.settings.text)
        if warnings:
            result["warnings"] = warnings
        return result

    def _check_runtimes(self) -> None:
        """Refuses names and paths of runtimes that are invalid or exclude each other, before the host reads
        anything."""
        of_runtimes = {name: OF_FILES[name] for name in (
            "runtime", "config_path", "drop_in_path", "mode", "cdi", "nvidia_runtime_name", "nvidia_runtime_path",
            "rootless_users")}
        given = _validated({name: self._task.args[name] for name in of_runtimes if name in self._task.args},
                           of_runtimes)
        mode = given.pop("mode")
        runtime_names.check_nvidia_runtime(given.pop("nvidia_runtime_name"), given.pop("nvidia_runtime_path"), mode)
        runtime_names.check_rootless(given.pop("rootless_users"), given.pop("cdi"), mode)
        runtime_names.check(given.pop("runtime"), **given)

    def _gather(self) -> Result:
        """The current state. One request, which changes nothing."""
        refuse_options(self._task.args, "gathered", _WITH_GATHERED)
        answer = self._ask("gather")
        return {**outcome([]), **gathered(host_answer.state_of(answer), host_answer.options_of(answer),
                                          host_answer.specification_of(answer), host_answer.repository_of(answer))}

    def _render(self) -> Result:
        """The files for a named runtime. The host is not contacted."""
        refuse_options(self._task.args, "rendered", [name for name in self.RENDERED if name not in (
            "state", "rootless_users")])
        options = rendered.options_of(_validated(self._task.args, self.RENDERED))
        return {"changed": False, **rendered.rendered(options)}

    def _apply(self, steps: t.Sequence[Step], options: Options, forget_restored: bool,
               forbidden: t.Sequence[PendingStep], left_out: t.Sequence[str]
               ) -> tuple[list[Step], HostState, list[PendingStep]]:
        """Applies the steps. Returns those that have run, the state of the host afterwards, and the pending steps.

        The scripts of packages can change the settings file, so its edits are planned again after the packages.
        """
        now = [step for step in steps if not step.assumed]
        answer = self._ask("apply", steps=toolkit_steps.as_request(now), forget_restored=forget_restored,
                           kept_users=list(left_out))
        done, postponed = _split_at(steps, host_answer.blocked_step_of(answer))
        state = host_answer.state_of(answer)
        plan = toolkit_steps.plan(state, options)
        again = [step for step in plan.steps if step.action == settings_file.EDIT]
        if again:
            answer = self._ask("apply", steps=toolkit_steps.as_request(again), forget_restored=forget_restored,
                               kept_users=list(left_out))
            state = host_answer.state_of(answer)
            plan = toolkit_steps.plan(state, options)
        if not (postponed or forbidden):
            toolkit_steps.check_no_steps_left(steps, plan.steps)
        return done, state, [*postponed, *forbidden, *plan.pending]

    def _try(self, state: HostState, options: Options, plan: toolkit_steps.Plan) -> None:
        """Checks the new files with their runtimes, and checks on the host whether they can be written."""
        trials = plan.trials
        if not (trials or plan.changes):
            return
        results = host_answer.trials_of(self._ask(
            "try", trials=[{"files": trial.files, "argv": trial.argv} for _name, trial in trials],
            paths=[change.path for name, proposal in plan.proposals.items() for change in proposal.changes
                   if state.runtimes[name].user is None],
            user_paths={user: [change.path for change in proposal.changes]
                        for name, proposal in plan.proposals.items() if (user := state.runtimes[name].user)}))
        for name, proposal in plan.proposals.items():
            own = [result for (runtime, _trial), result in zip(trials, results) if runtime == name]
            if own:
                registry.of(name).check_trials(state.runtimes[name], own, options, proposal)

    def _ask(self, phase: str, **more: object) -> Result:
        """Returns the answer of the host to a request, after a check of its structure."""
        request = {"phase": phase, "runtimes": [runtime.probe.as_request() for runtime in registry.RUNTIMES.values()],
                   "markers": [*owners.markers(), registry.KUBELET], "check": self._task.check_mode,
                   "driver": self._driver_actions(), "user_info": ROOTLESS_INFO, **more}
        # From -vvv on, Ansible prints the answers of hosts. The answer contains complete files of runtimes, which can
        # contain credentials of registries, so it is encrypted. The key is new for each request and appears in no log.
        key = secrets.token_hex(32)
        arguments = {**self._task.args, "request": base64.b64encode(json.dumps(request).encode()).decode(),
                     "seal": key}
        result: Result = self._execute_module(
            module_name="gpuops.nvidia.container_toolkit", module_args=arguments, task_vars=self._variables)
        if result.get("failed") or "unreachable" in result:
            raise _HostFailed(result)
        if "sealed" in result:
            result = {**result, **_opened(str(result.pop("sealed")), key)}
        refuse("", host_answer.fault(phase, limited(result)))
        return result

    def _driver_actions(self) -> list[str]:
        """Returns, for check mode, the steps that the role driver has planned but not executed."""
        planned = driver_actions(self._variables) if self._task.check_mode else set()
        return [action for action in _DRIVER_ACTIONS if action in planned]


def _validated(given: t.Mapping[str, object], spec: dict[str, Option]) -> Result:
    """The values of options, with defaults. Raises InputError."""
    checked = ArgumentSpecValidator(spec).validate(without_nulls(dict(given), spec))
    if checked.error_messages:
        raise InputError(" ".join(checked.error_messages))
    return t.cast(Result, checked.validated_parameters)


def _opened(text: str, key: str) -> Result:
    """Returns the decrypted answer of the host. Raises AnswerError for anything else."""
    answer = None
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(encrypt(base64.b64decode(text, validate=True), key))
    if not isinstance(answer, dict):
        refuse("sealed", Fault("", "what cannot be read", "an answer that is sealed by the key of its question"))
    return t.cast(Result, answer)


def _split_at(steps: t.Sequence[Step], blocked: str | None) -> tuple[list[Step], list[PendingStep]]:
    """Returns the steps that have run, and the pending ones. blocked: the id of the restart that containers prevent."""
    ids = [step.id for step in steps]
    if blocked not in ids:
        return list(steps), []
    done, postponed = steps[:ids.index(blocked)], steps[ids.index(blocked):]
    why = f"containers have started since the plan was made, or {postponed[0].target} does not say whether any run"
    return list(done), follow(postponed, why)


def _facts(state: HostState, steps: t.Sequence[Step], plan: toolkit_steps.Plan) -> dict[str, object]:
    """The keys of the result that describe the host."""
    names = list(plan.proposals)
    found = [state.runtimes[name] for name in names if name in state.runtimes]
    owed = any(runtime.stale or runtime.unit in state.journal.restart for runtime in found)
    restarts = any(step.action in ("restart service", "reload service") for step in steps)
    return {**registry.named(names, state.runtimes),
            "packages": state.packages.installed, "version": state.packages.version,
            "previous_default_runtime": plan.previous_default, "cdi_specs": state.cdi.specs,
            "restart_required": owed or (restarts and _differs(state, plan.changes))}


def _differs(state: HostState, changes: t.Sequence[FileChange]) -> bool:
    """Whether the files are not written yet, as in check mode."""
    files = {path: text for runtime in state.runtimes.values() for path, text in runtime.files.items()}
    return any(files.get(change.path) == change.before for change in changes)

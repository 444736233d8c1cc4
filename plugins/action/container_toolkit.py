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

from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import REFRESH
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import LOAD
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.nodes import MAKE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import RESTART, STARTS
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import AGAIN, INSTALL
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, gate, outcome, plan_diff
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.seal import mixed
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.answers import (
    AnswerError,
    limited,
    received,
    refuse,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import Asking, explained, interpreter
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import cleaned
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.shapes import Fault
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.inventory_vars import (
    driver_actions,
    refuse_forged,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import (
    host_answer,
    owners,
    planning,
    registry,
    settings_file,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options, Proposal

# Driver actions that change the output of nvidia-ctk: actions on modules, files, device nodes and sockets of services.
_DRIVER_ACTIONS = (INSTALL, AGAIN, LOAD, MAKE, RESTART, REFRESH, *STARTS)


class _HostFailed(Exception):
    """The module failed on the host. Its result is the result of the task."""

    def __init__(self, result: dict[str, t.Any]) -> None:
        super().__init__(result.get("msg"))
        self.result = result


class ActionModule(Asking):
    """The controller's part of container_toolkit."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Ansible's entry point."""
        super().run(tmp, task_vars)
        self._variables = task_vars or {}
        try:
            refuse_forged(self._variables)
            result = self._work()
        except _HostFailed as failure:
            result = failure.result
        except AnswerError as error:
            return {"failed": True, **cleaned(error.as_result())}
        except GpuopsError as error:
            result = {"failed": True, **error.as_result()}
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return explained(received(result, interpreter(self)), result)

    def _work(self) -> dict[str, t.Any]:
        answer = self._ask("read")
        options = answer["options"]
        steps, pending, proposal, runtime = self._plan(answer["seen"], options)
        steps, forbidden = gate(steps, options["disruption"])
        pending = [*forbidden, *pending]
        seen = answer["seen"]
        self._judge(seen, options, proposal, runtime)
        # A complete removal also clears the journal, even if an earlier run was killed directly before that.
        settle = options["state"] == "absent" and not forbidden
        if not self._task.check_mode and (steps or settle and seen["journal"]["present"]):
            steps, seen, pending = self._apply(steps, options, settle, forbidden)
        diff = [*settings_file.diffs(steps), *planning.diffs(proposal.changes), *plan_diff("container_toolkit", steps)]
        result = outcome(steps, pending, diff, **self._facts(seen, steps, proposal, runtime))
        if not self._task.diff:
            del result["diff"]
        warnings = [*filter(None, [proposal.told]), *proposal.warnings, *seen["cdi"]["warnings"]]
        if options["state"] == "present":
            warnings += settings_file.warnings(options["settings"], seen["settings"]["text"])
        if warnings:
            result["warnings"] = warnings
        return result

    def _apply(self, steps: t.Sequence[Step], options: dict[str, t.Any], settle: bool,
               forbidden: t.Sequence[dict[str, t.Any]]) -> tuple[list[Step], dict[str, t.Any], list[dict[str, t.Any]]]:
        """Applies the steps. Returns those that have run, what the host read afterwards, and the pending steps.

        The scripts of packages can change the settings file, so its edits are planned again after the packages.
        """
        now = [step for step in steps if not step.assumed]
        answer = self._ask("apply", steps=planning.as_request(now), settle=settle)
        seen: dict[str, t.Any] = answer["seen"]
        done, late = _held_up(steps, answer.get("held"))
        left, pending = self._plan(seen, options)[:2]
        again = [step for step in left if step.action == settings_file.EDIT]
        if again:
            seen = self._ask("apply", steps=planning.as_request(again), settle=settle)["seen"]
            left, pending = self._plan(seen, options)[:2]
        if not (late or forbidden):
            planning.prove(steps, left)
        return done, seen, [*late, *forbidden, *pending]

    def _plan(self, seen: dict[str, t.Any], options: dict[str, t.Any]
              ) -> tuple[list[Step], list[dict[str, t.Any]], Proposal, str | None]:
        """Returns the steps, the pending steps, the new files of the runtime, and the name of the runtime."""
        if options["state"] == "absent":
            names = {record["runtime"] for record in seen["journal"]["config"].values()}
            # A restart can still be pending after its files were restored.
            names |= {name for name, view in seen["runtimes"].items()
                      if view and view["unit"] in seen["journal"]["restart"]}
            names &= {name for name, view in seen["runtimes"].items() if view}
            proposals = {name: registry.RUNTIMES[name].withdraw(seen["runtimes"][name], planning.journal_of(seen, name))
                         for name in registry.RUNTIMES if name in names}
            whole = Proposal([change for one in proposals.values() for change in one.changes],
                             previous_default=next((one.previous_default for one in proposals.values()), None),
                             warnings=[warning for one in proposals.values() for warning in one.warnings])
            return planning.absent(seen, proposals), [], whole, next(iter(proposals), None)
        runtime = registry.choose(options["runtime"], seen["runtimes"], registry.KUBELET in seen["markers"])
        proposal = Proposal()
        if runtime:
            view = seen["runtimes"][runtime]
            registry.check_paths(runtime, view, options["drop_in_path"])
            kept = planning.journal_of(seen, runtime)
            proposal = registry.RUNTIMES[runtime].propose(view, kept, self._wish(options))
            if proposal.changes and not options["config_path"]:
                told = owners.refuse_foreign(seen["markers"], runtime, view, self._wish(options))
                if told:
                    proposal = Proposal(act="none", previous_default=proposal.previous_default, told=told)
        steps = planning.present(seen, runtime, proposal, {**proposal.settings, **options["settings"]})
        return steps, planning.waiting(seen, runtime, proposal.told), proposal, runtime

    @staticmethod
    def _wish(options: dict[str, t.Any]) -> Options:
        return Options(options["set_as_default"], options["cdi"], options["mode"], options["drop_in_path"],
                       options["nri"])

    def _judge(self, seen: dict[str, t.Any], options: dict[str, t.Any], proposal: Proposal, runtime: str | None
               ) -> None:
        if runtime is None or not (proposal.trials or proposal.changes):
            return
        results = self._ask("try", trials=[{"files": one.files, "argv": one.argv} for one in proposal.trials],
                            paths=[change.path for change in proposal.changes])["trials"]
        if results:
            registry.RUNTIMES[runtime].judge(seen["runtimes"][runtime], results, self._wish(options), proposal)

    @staticmethod
    def _facts(seen: dict[str, t.Any], steps: t.Sequence[Step], proposal: Proposal, runtime: str | None
               ) -> dict[str, t.Any]:
        view = seen["runtimes"].get(runtime) or {}
        owed = view.get("unit") in seen["journal"]["restart"]
        restarts = any(step.action in ("restart service", "reload service") for step in steps)
        return {"runtime": runtime, "config_path": view.get("config"), "packages": seen["packages"]["installed"],
                "version": seen["packages"]["version"],
                "previous_default_runtime": proposal.previous_default, "cdi_specs": seen["cdi"]["specs"],
                "restart_required": owed or bool(view.get("stale")) or (restarts and _differs(seen, proposal))}

    def _ask(self, phase: str, **more: t.Any) -> dict[str, t.Any]:
        request = {"phase": phase, "runtimes": [one.probe for one in registry.RUNTIMES.values()],
                   "markers": [*owners.markers(), registry.KUBELET], "check": self._task.check_mode,
                   "driver": self._driver_actions(), **more}
        # From -vvv on, Ansible prints the answers of hosts. The answer contains complete files of runtimes, which can
        # contain credentials of registries, so it is encrypted. The key is new for each request and appears in no log.
        key = secrets.token_hex(32)
        arguments = {**self._task.args, "request": base64.b64encode(json.dumps(request).encode()).decode(),
                     "seal": key}
        result: dict[str, t.Any] = self._execute_module(
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


def _opened(text: str, key: str) -> dict[str, t.Any]:
    """Returns the decrypted answer of the host. Raises AnswerError for anything else."""
    told = None
    with contextlib.suppress(ValueError, RecursionError):
        told = json.loads(mixed(base64.b64decode(text, validate=True), key))
    if not isinstance(told, dict):
        refuse("sealed", Fault("", "what cannot be read", "an answer that is sealed by the key of its question"))
    return t.cast("dict[str, t.Any]", told)


def _held_up(steps: t.Sequence[Step], held: t.Any) -> tuple[list[Step], list[dict[str, t.Any]]]:
    """Returns the steps that have run, and the pending ones. held: the id of the restart that containers hold up."""
    ids = [step.id for step in steps]
    if held not in ids:
        return list(steps), []
    done, late = steps[:ids.index(held)], steps[ids.index(held):]
    why = f"containers have started since the plan was made, or {late[0].target} does not say whether any run"
    return list(done), [{**step.as_dict(), "pending_reason": f"it follows '{held}'" if at else why}
                        for at, step in enumerate(late)]


def _differs(seen: t.Mapping[str, t.Any], proposal: Proposal) -> bool:
    """Whether the files are not written yet, as in check mode."""
    files = {path: text for view in seen["runtimes"].values() if view for path, text in view["files"].items()}
    return any(files.get(change.path) == change.before for change in proposal.changes)

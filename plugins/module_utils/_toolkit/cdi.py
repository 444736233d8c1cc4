# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CDI specifications, the unit that refreshes them, and links of device nodes. PRIVATE to the collection.

A specification has the desired content if nvidia-ctk prints the same. Journal entries: `cdi`, by path of a generated
specification, with `{state}` before the first run: `absent`, or `file` for a foreign file, which is not removed.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._cdi import REFRESH, UNIT, UNIT_FILE, parse
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import read_bus
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.versions import loaded_version
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable, read_bytes, read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import AGAIN
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import PendingStep, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, which
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import cdi_files as files
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import Json

GENERATE, REMOVE = "generate CDI specification", "remove CDI specification"
INSTALL_UNIT, REMOVE_UNIT = "install refresh unit", "remove refresh unit"
WRITE_RULE, RESTORE_RULE = "write udev rule", "remove udev rule"
LINK = "link device nodes"
LINK_ROOTLESS, UNLINK_ROOTLESS = "link CDI specification", "remove link to CDI specification"
_ETC_SPEC = "/etc/cdi/nvidia.yaml"
_SYSTEMD = "/run/systemd/system"
# Maximum seconds to wait for a unit that is writing specifications.
_REFRESH_LIMIT = 60
_LINK_FOLDER = "/dev/char"
_NODE_PATTERNS = ("/dev/nvidia*", "/dev/nvidia-caps/*")


def nodes_without_link() -> list[str]:
    """NVIDIA's device nodes without a link in /dev/char. systemd finds device nodes through these links."""
    return [node for node, link in _expected_links() if not os.path.exists(link)]


def _expected_links() -> t.Iterator[tuple[str, str]]:
    """(device node, its link in /dev/char)."""
    for node in sorted(path for pattern in _NODE_PATTERNS for path in glob.glob(pattern)):
        status = os.stat(node)
        if stat.S_ISCHR(status.st_mode):
            yield node, f"{_LINK_FOLDER}/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


class CdiPlan(t.NamedTuple):
    """specs: paths of existing specifications; driver: the loaded version; steps: to execute now; pending: not yet."""

    specs: t.List[str]
    driver: str | None
    steps: t.List[Step]
    pending: t.List[PendingStep]
    warnings: t.List[str]


class Cdi:
    """Plans and executes the steps for CDI.

    request: the options, and `check`: whether this is check mode. In check mode also `driver`: the actions of planned
    driver steps that change the output of nvidia-ctk. A run executes them before these steps.
    """

    def __init__(self, request: Json, journal: Journal, run: Runner) -> None:
        self.request = request
        self.journal = journal
        self.run = run
        self.driver_steps = request.get("driver") or ()
        self.environment = files.environment(read_text(files.ENVIRONMENT) or "")
        self.pending: list[PendingStep] = []
        self.warnings: list[str] = []

    # -- plans

    def plan(self, package_steps: t.Sequence[Step]) -> CdiPlan:
        """The plan. package_steps: the steps for packages, which are executed first."""
        driver = loaded_version(Root())
        absent = self.request["state"] == "absent"
        packages_change = any(step.data.get("packages") and (step.action != AGAIN or not which("nvidia-ctk"))
                              for step in package_steps)
        steps = self._absent(packages_change) if absent else self._present(driver, packages_change)
        return CdiPlan(self._specs(), driver, steps, self.pending, self.warnings)

    def _specs(self) -> list[str]:
        return [path for path in (*files.paths(self.environment, True), _ETC_SPEC) if os.path.isfile(path)]

    def read(self) -> CdiPlan:
        """The existing specifications, without steps."""
        return CdiPlan(self._specs(), loaded_version(Root()), [], [], [])

    def specification(self) -> t.Dict[str, t.Any]:
        """The specification for containers: C({path, devices, driver}), see L(_cdi.parse). path: None if there is none.

        Also C(management), whether there is one for management, and C(unit), whether there is a unit that refreshes
        them."""
        paths = [path for path in self._specs() if path != files.path_of("management", {})]
        found = parse(read_text(paths[0]) or "") if paths else {"devices": [], "driver": None}
        return {"path": paths[0] if paths else None, **found, "management": len(paths) < len(self._specs()),
                "unit": os.path.isfile(UNIT_FILE)}

    def _present(self, driver: str | None, packages_change: bool) -> list[Step]:
        steps = self._unit_steps()
        if read_bytes(files.RULE) != files.RULE_TEXT or self.journal.get("file", files.RULE) is None:
            check_writable(files.RULE)
            steps.append(Step(WRITE_RULE, files.RULE, "systemd finds device nodes through these links"))
        # Not in a run: another step of the same play loads the driver before or after this task.
        assumed = driver is None and self.request["check"] and packages_change and _has_gpu()
        spec_steps = self._all_spec_steps(driver, packages_change, assumed)
        if (spec_steps or self.pending or self.warnings) and not packages_change and self._wait_for_refresh():
            self.pending, self.warnings = [], []
            spec_steps = self._all_spec_steps(driver, packages_change, assumed)
        for step in spec_steps:
            if step.action == GENERATE:
                check_writable(step.target)
        # Read after the specifications were compared, because nvidia-ctk creates the nodes of MIG devices.
        steps += self._rootless_steps()
        missing = [] if REFRESH in self.driver_steps else nodes_without_link()
        if missing or assumed:
            reason = "once the driver is loaded" if assumed else f"{len(missing)} device nodes have no link"
            steps.append(Step(LINK, _LINK_FOLDER, reason, assumed=assumed))
        return steps + spec_steps

    def _rootless_steps(self) -> list[Step]:
        if not self.request.get("rootless_users"):
            return []
        path = files.ROOTLESS_FILE
        differs = read_bytes(path) != files.rootless_text(self.environment) or self.journal.get("file", path) is None
        if differs:
            check_writable(path)
        if not differs and self._links() == files.rootless_links(self.environment):
            return []
        return [Step(LINK_ROOTLESS, files.ROOTLESS, "a rootless Docker finds the specification there")]

    @staticmethod
    def _links() -> dict[str, str]:
        """Maps the links to specifications of a rootless Docker to their targets."""
        return {path: os.readlink(path) for path in glob.glob(f"{files.ROOTLESS}/nvidia.*") if os.path.islink(path)}

    def _link_rootless(self, step: Step) -> None:
        self.journal.write_file(files.ROOTLESS_FILE, files.rootless_text(self.environment))
        for link in self._links():  # that of a specification at another path would stay beside the new one
            os.unlink(link)
        self.run(["systemd-tmpfiles", "--create", files.ROOTLESS_FILE])

    def _unlink_rootless(self, step: Step) -> None:
        for link in self._links():
            os.unlink(link)
        with contextlib.suppress(OSError):  # it does not exist, or contains a file of somebody else
            os.rmdir(files.ROOTLESS)
        self.journal.restore_file(files.ROOTLESS_FILE)

    def _unit_steps(self) -> list[Step]:
        texts = files.unit_files(self.request["cdi_management"])
        owned = [path for path in texts if self.journal.get("file", path) is not None]
        if not self.request["cdi"] or not os.path.isdir(_SYSTEMD):
            return [Step(REMOVE_UNIT, UNIT, "it is not in the plan")] if owned else []
        if len(owned) < len(texts) or any(read_bytes(path) != text for path, text in texts.items()):
            for path in texts:
                check_writable(path)
            reason = ("its files differ from the desired content" if owned else
                      "NVIDIA's unit does not react to MIG changes and to the removal of the driver")
            return [Step(INSTALL_UNIT, UNIT, reason)]
        return [] if all(os.path.islink(path) for path in files.ENABLED) else [
            Step(INSTALL_UNIT, UNIT, "it is not enabled")]

    def _all_spec_steps(self, driver: str | None, packages_change: bool, assumed: bool) -> list[Step]:
        return [step for kind in files.KINDS for step in self._spec_steps(kind, driver, packages_change, assumed)]

    def _wait_for_refresh(self) -> bool:
        """Waits until no unit is writing specifications. Returns False if no unit was writing."""
        end = time.monotonic() + _REFRESH_LIMIT
        waited = False
        while time.monotonic() < end and self._is_refreshing():
            waited = True
            time.sleep(0.2)
        return waited

    def _is_refreshing(self) -> bool:
        output = self.run(["systemctl", "show", UNIT, files.VENDORS_UNIT, "-p", "SubState"], check=False).stdout
        # A unit that waits for a retry is not writing.
        return any(line.startswith("SubState=start") for line in output.splitlines())

    def _spec_steps(self, kind: str, driver: str | None, packages_change: bool, assumed: bool) -> list[Step]:
        path = files.path_of(kind, self.environment)
        current = read_text(path)
        owned = self._is_owned(path)
        if not self.request["cdi"] or kind == "management" and not self.request["cdi_management"]:
            return [Step(REMOVE, path, "it is not in the plan")] if owned and current is not None else []
        if assumed:
            return [Step(GENERATE, path, "once the driver is loaded", assumed=True)]
        if self.driver_steps and not packages_change:
            return self._after_driver_steps(kind, path)
        if driver is None:
            if current is None and _has_gpu():
                self._add_pending(path, "no NVIDIA driver is loaded")
            # Specifications of WSL and Jetson name no driver version. They are kept.
            stale = current is not None and (owned or parse(current)["driver"] is not None)
            return [Step(REMOVE, path, "no NVIDIA driver is loaded")] if stale else []
        if packages_change:
            return [Step(GENERATE, path, "the toolkit changes")]
        return self._compare(kind, path, current, driver)

    def _after_driver_steps(self, kind: str, path: str) -> list[Step]:
        """For check mode: nvidia-ctk describes the current driver, not the planned one."""
        exists = os.path.isfile(path) or kind == "gpu" and os.path.isfile(_ETC_SPEC)
        if exists or REFRESH in self.driver_steps:  # this step makes the unit write specifications and links
            return []
        return [Step(GENERATE, path, "once the driver works", assumed=True)]

    def _compare(self, kind: str, path: str, current: str | None, driver: str) -> list[Step]:
        argv = [*files.command(kind), *(["--format=json"] if path.endswith(".json") else [])]
        # If this variable is set, nvidia-ctk writes a file instead of printing the specification.
        completed = self.run(argv, env={**self.environment, files.OUTPUT: ""}, timeout=120, check=False)
        if completed.rc != 0 and self._has_no_devices():
            self._add_pending(path, "every GPU is in MIG mode and has no MIG device yet")
            return [] if current is None else [Step(REMOVE, path, "no device is left")]
        if completed.rc != 0:
            reason = (completed.stderr.strip().splitlines() or [f"it exited with {completed.rc}"])[-1]
            self.warnings.append(f"nvidia-ctk cannot describe the devices: {reason}")
            if current is None:
                self._add_pending(path, "nvidia-ctk cannot describe the devices")
            return []
        in_use = read_text(_ETC_SPEC) if current is None and kind == "gpu" else current
        if in_use is not None and _normalized_lines(in_use) == _normalized_lines(completed.stdout):
            return []
        return [Step(GENERATE, path, _change_reason(current, completed.stdout, driver))]

    def _has_no_devices(self) -> bool:
        """Whether all GPUs are in MIG mode and none has a MIG device. nvidia-ctk fails in this case."""
        try:
            modes = self.run(["nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"]).stdout.split()
            return set(modes) == {"Enabled"} and "MIG-" not in self.run(["nvidia-smi", "-L"]).stdout
        except CommandError:
            return False

    def _add_pending(self, path: str, reason: str) -> None:
        self.pending.append(Step(GENERATE, path, "there is no specification").pending(reason))

    def _absent(self, packages_removed: bool) -> list[Step]:
        paths = [path for path in files.unit_files(False) if self.journal.get("file", path) is not None]
        steps = [Step(REMOVE_UNIT, UNIT, "this collection has written it")] if paths else []
        if self.journal.get("file", files.RULE) is not None:
            steps.append(Step(RESTORE_RULE, files.RULE, "this collection has written it"))
        if self.journal.get("file", files.ROOTLESS_FILE) is not None:
            steps.append(Step(UNLINK_ROOTLESS, files.ROOTLESS, "this collection has written it"))
        specs = [path for path in files.paths(self.environment, False) if os.path.isfile(path)
                 and (packages_removed or self._is_owned(path))]
        return steps + [Step(REMOVE, path, "nothing updates it after the removal") for path in specs]

    def _is_owned(self, path: str) -> bool:
        entry = self.journal.get("cdi", path)
        return entry is not None and entry["before"]["state"] == "absent"

    # -- execution

    def journal_gpu_spec(self) -> None:
        """Records the specification in the journal before packages are installed: their scripts also write it."""
        if self.request["cdi"]:
            self._journal_spec(files.path_of("gpu", self.environment))

    def _journal_spec(self, path: str) -> None:
        self.journal.keep("cdi", path, {"state": "file" if os.path.isfile(path) else "absent"})

    @property
    def handlers(self) -> dict[str, t.Callable[[Step], None]]:
        """Maps an action to the method that executes its step. Each step can be repeated after a killed run."""
        return {GENERATE: self._generate, REMOVE: self._remove, INSTALL_UNIT: self._install_unit,
                REMOVE_UNIT: self._remove_unit, LINK_ROOTLESS: self._link_rootless,
                UNLINK_ROOTLESS: self._unlink_rootless, LINK: self._link_nodes,
                WRITE_RULE: lambda step: self.journal.write_file(files.RULE, files.RULE_TEXT),
                RESTORE_RULE: lambda step: self.journal.restore_file(files.RULE)}

    def _generate(self, step: Step) -> None:
        path = step.target
        self._journal_spec(path)
        kind = next(kind for kind in files.KINDS if files.path_of(kind, self.environment) == path)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        completed = self.run([*files.command(kind), f"--output={path}"], env=self.environment, timeout=120, check=False)
        if completed.rc != 0:
            # This step was planned before the toolkit was installed. The read after the run reports the reason.
            if self._has_no_devices():
                if os.path.lexists(path):
                    os.unlink(path)
            elif self.run(files.command(kind), env={**self.environment, files.OUTPUT: ""}, timeout=120,
                          check=False).rc == 0:
                reason = (completed.stderr.strip().splitlines() or [f"nvidia-ctk exited with {completed.rc}"])[-1]
                raise HostError(f"{path} cannot be written: {reason.rstrip('.')}.",
                                f"Check whether {os.path.dirname(path)} has space and is writable (df -h, df -i).",
                                path=path)
            return
        if not os.path.isfile(path):
            raise HostError(f"nvidia-ctk wrote no CDI specification to {path}.", "Run nvidia-ctk cdi generate by hand.")
        self._link_nodes(step)  # for nodes that nvidia-ctk has created

    def _remove(self, step: Step) -> None:
        if os.path.lexists(step.target):
            os.unlink(step.target)
        self.journal.forget("cdi", step.target)

    def _install_unit(self, step: Step) -> None:
        for path, text in files.unit_files(self.request["cdi_management"]).items():
            self.journal.write_file(path, text, 0o755 if path == files.SCRIPT else 0o644)
        # Only if needed: a reload takes the devices from containers that were started without links of device nodes.
        stale = self.run(["systemctl", "show", *files.UNITS, "-p", "NeedDaemonReload"], check=False).stdout
        if "yes" in stale:
            self.run(["systemctl", "daemon-reload"])
        self.run(["systemctl", "enable", "--no-reload", *files.UNITS])
        self.run(["systemctl", "restart", files.PATH_UNIT])

    def _remove_unit(self, step: Step) -> None:
        if os.path.exists(UNIT_FILE):
            self.run(["systemctl", "stop", *files.UNITS], check=False)
            self.run(["systemctl", "disable", "--no-reload", *files.UNITS])
        for path in files.unit_files(False):
            if self.journal.get("file", path) is not None:
                self.journal.restore_file(path)

    @staticmethod
    def _link_nodes(step: Step) -> None:
        for node, link in _expected_links():
            if not os.path.exists(link):
                os.makedirs(_LINK_FOLDER, mode=0o755, exist_ok=True)
                if os.path.lexists(link):
                    os.unlink(link)
                os.symlink(os.path.relpath(node, _LINK_FOLDER), link)


def _has_gpu() -> bool:
    return bool(read_bus(Root()).gpus)


def _normalized_lines(text: str) -> list[str]:
    return sorted(line.strip() for line in text.splitlines() if line.strip() not in ("", "---"))


def _change_reason(current: str | None, output: str, driver: str) -> str:
    """The reason to write a specification. output: that of nvidia-ctk."""
    if current is None:
        return "a driver is loaded and there is no specification"
    former, desired = parse(current), parse(output)
    if former["driver"] not in (None, driver):
        return f"it is for driver {former['driver']}, but {driver} is loaded"
    missing = len(set(desired["devices"]) - set(former["devices"]))
    obsolete = len(set(former["devices"]) - set(desired["devices"]))
    if missing or obsolete:
        return f"{missing} device names are missing and {obsolete} are obsolete"
    return "it differs from the output of nvidia-ctk"

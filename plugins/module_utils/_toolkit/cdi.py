# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CDI specifications, the unit that refreshes them, and links of device nodes. PRIVATE to the collection.

A specification is as desired if nvidia-ctk prints the same. Entries in the journal: `cdi`, a specification that a run
has generated, with `{state}` before the first run: `absent`, or `file` for one that is foreign and is not removed.
"""

from __future__ import annotations

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
_OTHER = "/etc/cdi/nvidia.yaml"
_SYSTEMD = "/run/systemd/system"
# Seconds to wait for a unit that is writing specifications.
_PATIENCE = 60
_LINKS = "/dev/char"
_NODES = ("/dev/nvidia*", "/dev/nvidia-caps/*")


def nodes_without_link() -> list[str]:
    """NVIDIA's device nodes without a link in /dev/char, by which systemd finds them."""
    return [node for node, link in _links() if not os.path.exists(link)]


def _links() -> t.Iterator[tuple[str, str]]:
    for node in sorted(path for pattern in _NODES for path in glob.glob(pattern)):
        shape = os.stat(node)
        if stat.S_ISCHR(shape.st_mode):
            yield node, f"{_LINKS}/{os.major(shape.st_rdev)}:{os.minor(shape.st_rdev)}"


class CdiPlan(t.NamedTuple):
    """specs: paths of the specifications; driver: the loaded version; steps: those to do; pending: those that wait."""

    specs: t.List[str]
    driver: str | None
    steps: t.List[Step]
    pending: t.List[PendingStep]
    warnings: t.List[str]


class Cdi:
    """Plans and executes the steps for CDI.

    request: besides the options, `check`, whether this is check mode, and in check mode `driver`: the actions of the
    driver's planned steps that change the output of nvidia-ctk. A run executes them before these steps.
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
        """The plan. package_steps: the steps for packages, which are executed before."""
        driver = loaded_version(Root())
        absent = self.request["state"] == "absent"
        changing = any(step.data.get("packages") and (step.action != AGAIN or not which("nvidia-ctk"))
                       for step in package_steps)
        steps = self._absent(changing) if absent else self._present(driver, changing)
        specs = [path for path in (*files.paths(self.environment, True), _OTHER) if os.path.isfile(path)]
        return CdiPlan(specs, driver, steps, self.pending, self.warnings)

    def _present(self, driver: str | None, changing: bool) -> list[Step]:
        steps = self._unit_steps()
        if read_bytes(files.RULE) != files.RULE_TEXT or self.journal.get("file", files.RULE) is None:
            check_writable(files.RULE)
            steps.append(Step(WRITE_RULE, files.RULE, "systemd finds device nodes by these links"))
        # In a run, another step of the same play has loaded the driver, or loads it later.
        assumed = driver is None and self.request["check"] and changing and _has_gpu()
        specs = self._all_spec_steps(driver, changing, assumed)
        if (specs or self.pending or self.warnings) and not changing and self._has_waited():
            self.pending, self.warnings = [], []
            specs = self._all_spec_steps(driver, changing, assumed)
        for step in specs:
            if step.action == GENERATE:
                check_writable(step.target)
        # After the specifications, because nvidia-ctk creates the nodes of MIG devices.
        missing = [] if REFRESH in self.driver_steps else nodes_without_link()
        if missing or assumed:
            steps.append(Step(LINK, _LINKS, "once the driver is loaded" if assumed else f"{len(missing)} have none",
                              assumed=assumed))
        return steps + specs

    def _unit_steps(self) -> list[Step]:
        texts = files.unit_files(self.request["cdi_management"])
        ours = [path for path in texts if self.journal.get("file", path) is not None]
        if not self.request["cdi"] or not os.path.isdir(_SYSTEMD):
            return [Step(REMOVE_UNIT, UNIT, "it is not desired")] if ours else []
        if len(ours) < len(texts) or any(read_bytes(path) != text for path, text in texts.items()):
            for path in texts:
                check_writable(path)
            reason = ("it is not as desired" if ours else
                      "NVIDIA's unit does not react to MIG and to the removal of the driver")
            return [Step(INSTALL_UNIT, UNIT, reason)]
        return [] if all(os.path.islink(path) for path in files.ENABLED) else [
            Step(INSTALL_UNIT, UNIT, "it is not enabled")]

    def _all_spec_steps(self, driver: str | None, changing: bool, assumed: bool) -> list[Step]:
        return [step for kind in files.KINDS for step in self._spec_steps(kind, driver, changing, assumed)]

    def _has_waited(self) -> bool:
        """Waits for units that are writing specifications. Whether there was one."""
        end = time.monotonic() + _PATIENCE
        waited = False
        while time.monotonic() < end and self._is_refreshing():
            waited = True
            time.sleep(0.2)
        return waited

    def _is_refreshing(self) -> bool:
        shown = self.run(["systemctl", "show", UNIT, files.VENDORS_UNIT, "-p", "SubState"], check=False).stdout
        # A unit that waits for a retry does not write.
        return any(line.startswith("SubState=start") for line in shown.splitlines())

    def _spec_steps(self, kind: str, driver: str | None, changing: bool, assumed: bool) -> list[Step]:
        path = files.path_of(kind, self.environment)
        there = read_text(path)
        ours = self._is_ours(path)
        if not self.request["cdi"] or kind == "management" and not self.request["cdi_management"]:
            return [Step(REMOVE, path, "it is not desired")] if ours and there is not None else []
        if assumed:
            return [Step(GENERATE, path, "once the driver is loaded", assumed=True)]
        if self.driver_steps and not changing:
            return self._after_driver_steps(kind, path)
        if driver is None:
            if there is None and _has_gpu():
                self._wait(path, "no NVIDIA driver is loaded")
            # WSL and Jetson have another driver, and their specifications do not name one.
            stale = there is not None and (ours or parse(there)["driver"] is not None)
            return [Step(REMOVE, path, "no NVIDIA driver is loaded")] if stale else []
        if changing:
            return [Step(GENERATE, path, "the toolkit changes")]
        return self._compare(kind, path, there, driver)

    def _after_driver_steps(self, kind: str, path: str) -> list[Step]:
        """For check mode, in which nvidia-ctk describes the current driver, not the planned one."""
        there = os.path.isfile(path) or kind == "gpu" and os.path.isfile(_OTHER)
        if there or REFRESH in self.driver_steps:  # by this step, the unit writes specifications and links
            return []
        return [Step(GENERATE, path, "once the driver works", assumed=True)]

    def _compare(self, kind: str, path: str, there: str | None, driver: str) -> list[Step]:
        words = [*files.command(kind), *(["--format=json"] if path.endswith(".json") else [])]
        # With this variable, nvidia-ctk writes the file instead of printing it.
        done = self.run(words, env={**self.environment, files.OUTPUT: ""}, timeout=120, check=False)
        if done.rc != 0 and self._has_no_devices():
            self._wait(path, "every GPU is in MIG mode and has no MIG device yet")
            return [] if there is None else [Step(REMOVE, path, "there is no device for it")]
        if done.rc != 0:
            reason = (done.stderr.strip().splitlines() or [f"it ended with {done.rc}"])[-1]
            self.warnings.append(f"nvidia-ctk cannot describe the devices: {reason}")
            if there is None:
                self._wait(path, "nvidia-ctk cannot describe the devices")
            return []
        current = read_text(_OTHER) if there is None and kind == "gpu" else there
        if current is not None and _lines(current) == _lines(done.stdout):
            return []
        return [Step(GENERATE, path, _difference(there, done.stdout, driver))]

    def _has_no_devices(self) -> bool:
        """Whether all GPUs are in MIG mode and have no MIG device. nvidia-ctk fails in this case."""
        try:
            modes = self.run(["nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"]).stdout.split()
            return set(modes) == {"Enabled"} and "MIG-" not in self.run(["nvidia-smi", "-L"]).stdout
        except CommandError:
            return False

    def _wait(self, path: str, reason: str) -> None:
        self.pending.append(Step(GENERATE, path, "there is no specification").pending(reason))

    def _absent(self, purging: bool) -> list[Step]:
        paths = [path for path in files.unit_files(False) if self.journal.get("file", path) is not None]
        steps = [Step(REMOVE_UNIT, UNIT, "this collection has written it")] if paths else []
        if self.journal.get("file", files.RULE) is not None:
            steps.append(Step(RESTORE_RULE, files.RULE, "this collection has written it"))
        specs = [path for path in files.paths(self.environment, False) if os.path.isfile(path)
                 and (purging or self._is_ours(path))]
        return steps + [Step(REMOVE, path, "nothing updates it any more") for path in specs]

    def _is_ours(self, path: str) -> bool:
        entry = self.journal.get("cdi", path)
        return entry is not None and entry["before"]["state"] == "absent"

    # -- execution

    def keep(self) -> None:
        """Journals the specification before packages are installed, because their scripts write it, too."""
        if self.request["cdi"]:
            self._keep(files.path_of("gpu", self.environment))

    def _keep(self, path: str) -> None:
        self.journal.keep("cdi", path, {"state": "file" if os.path.isfile(path) else "absent"})

    @property
    def acts(self) -> dict[str, t.Callable[[Step], None]]:
        """Action to the method that executes its step. A step that was killed can be executed again."""
        return {GENERATE: self._generate, REMOVE: self._remove, INSTALL_UNIT: self._install_unit,
                REMOVE_UNIT: self._remove_unit, LINK: self._link,
                WRITE_RULE: lambda step: self.journal.write_file(files.RULE, files.RULE_TEXT),
                RESTORE_RULE: lambda step: self.journal.restore_file(files.RULE)}

    def _generate(self, step: Step) -> None:
        path = step.target
        self._keep(path)
        kind = next(kind for kind in files.KINDS if files.path_of(kind, self.environment) == path)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        done = self.run([*files.command(kind), f"--output={path}"], env=self.environment, timeout=120, check=False)
        if done.rc != 0:
            # The toolkit was not installed when the plan was made. The read after the run reports the reason.
            if self._has_no_devices():
                if os.path.lexists(path):
                    os.unlink(path)
            elif self.run(files.command(kind), env={**self.environment, files.OUTPUT: ""}, timeout=120,
                          check=False).rc == 0:
                reason = (done.stderr.strip().splitlines() or [f"nvidia-ctk ended with {done.rc}"])[-1]
                raise HostError(f"{path} cannot be written: {reason.rstrip('.')}.",
                                f"Check whether {os.path.dirname(path)} has space and is writable (df -h, df -i).",
                                path=path)
            return
        if not os.path.isfile(path):
            raise HostError(f"nvidia-ctk wrote no CDI specification to {path}.", "Run nvidia-ctk cdi generate by hand.")
        self._link(step)  # of nodes that nvidia-ctk has created

    def _remove(self, step: Step) -> None:
        if os.path.lexists(step.target):
            os.unlink(step.target)
        self.journal.forget("cdi", step.target)

    def _install_unit(self, step: Step) -> None:
        for path, text in files.unit_files(self.request["cdi_management"]).items():
            self.journal.write_file(path, text, 0o755 if path == files.SCRIPT else 0o644)
        # Only if needed: containers that were started without links of device nodes lose their devices by a reload.
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
    def _link(step: Step) -> None:
        for node, link in _links():
            if not os.path.exists(link):
                os.makedirs(_LINKS, mode=0o755, exist_ok=True)
                if os.path.lexists(link):
                    os.unlink(link)
                os.symlink(os.path.relpath(node, _LINKS), link)


def _has_gpu() -> bool:
    return bool(read_bus(Root()).gpus)


def _lines(text: str) -> list[str]:
    return sorted(line.strip() for line in text.splitlines() if line.strip() not in ("", "---"))


def _difference(there: str | None, now: str, driver: str) -> str:
    """The reason for writing a specification."""
    if there is None:
        return "a driver is loaded and there is no specification"
    former, desired = parse(there), parse(now)
    if former["driver"] not in (None, driver):
        return f"it is for driver {former['driver']}, but {driver} is loaded"
    missing = len(set(desired["devices"]) - set(former["devices"]))
    gone = len(set(former["devices"]) - set(desired["devices"]))
    if missing or gone:
        return f"{missing} names of devices are missing, and {gone} do not exist any more"
    return "nvidia-ctk prints another one"

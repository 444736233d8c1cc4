# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host in a temporary folder: the real code that reads and writes, with simulated containerd and systemd.

The simulated containerd merges as the real one does: in 1.x, an imported file replaces the table of a plugin; 2.x
merges deeply and loses settings under another plugin id. If GPUOPS_CONTAINERD names a real program, that one is used.
"""

from __future__ import annotations

import base64
import copy
import glob
import json
import os
import pathlib
import typing as t

import pytest
import tomlkit
import tomllib
from ansible_collections.gpuops.nvidia.plugins.module_utils import _run
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import apply
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import read, step_executor
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import host_answer, toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options, Proposal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.containerd import Containerd
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V1, V2, V3
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState, ProgramResult

SHAPES = pathlib.Path(__file__).parent / "shapes"
RUNC = {"runtime_type": "io.containerd.runc.v2", "base_runtime_spec": "", "pod_annotations": [],
        "privileged_without_host_devices": False, "options": {"BinaryName": "", "SystemdCgroup": False}}
BASE = {
    "1.6": {"sandbox_image": "pause:3.6", "cni": {"bin_dir": "/opt/cni/bin"}},
    "1.7": {"sandbox_image": "pause:3.8", "enable_cdi": False, "cni": {"bin_dir": "/opt/cni/bin"}},
    "2.2": {"enable_cdi": True, "cni": {"bin_dir": ""}},
}
VERSIONS = {"1.6": "containerd x 1.6.20~ds1", "1.7": "containerd y v1.7.34 abc", "2.2": "containerd z 2.2.7+unknown"}


def _merge(into: dict[str, t.Any], more: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)
    return into


def effective(path: str, version: str) -> dict[str, t.Any]:
    """The output of C(config dump). Raises ValueError if containerd would refuse the file."""
    text = pathlib.Path(path).read_text(encoding="utf-8") if path != os.devnull else ""
    if text.startswith("\ufeff") and version.startswith("2"):
        raise ValueError("invalid character at start of key")
    documents = [tomllib.loads(text.removeprefix("\ufeff"))]
    for pattern in documents[0].get("imports", []):
        found = sorted(glob.glob(os.path.join(os.path.dirname(path), pattern)))
        if not found and "*" not in pattern:
            raise ValueError(f"{pattern} is missing")
        documents += [tomllib.loads(pathlib.Path(one).read_text(encoding="utf-8")) for one in found if one != path]
    plugin = V3 if version.startswith("2") else V2
    cri = {**copy.deepcopy(BASE[version]), "containerd": {"default_runtime_name": "runc",
                                                          "runtimes": {"runc": copy.deepcopy(RUNC)}}}
    result: dict[str, t.Any] = {"version": 3 if plugin == V3 else 2, "disabled_plugins": [], "plugins": {plugin: cri}}
    main = documents[0]
    used = V2 if main.get("version", 1) == 2 and V3 not in main.get("plugins", {}) else V3
    for document in documents:
        if plugin == V2 and document.get("version", 1) > 2:
            raise ValueError("unsupported config version")
        result["disabled_plugins"] += document.get("disabled_plugins", [])
        for name, table in document.get("plugins", {}).items():
            if plugin == V2 and name == (V1 if document.get("version", 1) == 1 else V2):
                fresh = _merge(copy.deepcopy(cri), table)
                declared = table.get("containerd", {}).get("runtimes")
                if declared:
                    zero = {key: value for key, value in RUNC.items() if key not in ("runtime_type", "options")}
                    fresh["containerd"]["runtimes"] = {one: {**zero, **raw} for one, raw in declared.items()}
                result["plugins"][V2] = fresh
            elif plugin == V3 and name == used and document.get("version", 1) > 1:
                _merge(cri, {key: value for key, value in table.items() if key != "sandbox_image"})
            elif name not in (V1, V2, V3):
                _merge(result["plugins"].setdefault(name, {}), table)
    return result


class Host:
    """A host. version: C(1.6), C(1.7) or C(2.2); root: the folder that plays its root."""

    def __init__(self, root: pathlib.Path, version: str) -> None:
        self.root = root
        self.version = version
        self.folder = root / "containerd"
        self.folder.mkdir()
        self.config = self.folder / "config.toml"
        self.drop_in = self.folder / "conf.d" / "99-gpuops-nvidia.toml"
        self.running = True
        self.unit: dict[str, str] = {}  # properties laid over those that systemd shows
        self.restarts = 0
        self.invocation = "a1"
        self.breaks = False  # whether the daemon refuses to start with our runtime
        self.bad_restart = 0  # the one that fails, counted from 1
        self.real = os.environ.get(f"GPUOPS_CONTAINERD_{version.replace('.', '_')}")
        self.runtime = Containerd()
        self.journal_root = str(root / "state" / "journal")

    def run(self, argv: t.Sequence[str], **options: t.Any) -> _run.Completed:
        words = tuple(argv)
        if "dump" in words:
            if self.real:
                return _run.run([self.real, *words[1:]], **options)
            try:
                return _run.Completed(words, 0, tomlkit.dumps(effective(words[2], self.version)), "")
            except ValueError as error:
                return _run.Completed(words, 1, "", f"containerd: {error}")
        if words[-1] == "--version":
            return _run.Completed(words, 0, VERSIONS[self.version], "")
        if words[:2] == ("systemctl", "show"):
            if "--value" in words:
                return _run.Completed(words, 0, f"{self.invocation}\n", "")
            state = f"{'active' if self.running else 'inactive'}\nInvocationID={self.invocation}"
            more = "".join(f"{key}={value}\n" for key, value in {"LoadState": "loaded", **self.unit}.items())
            return _run.Completed(words, 0, f"Id=containerd.service\nActiveState={state}\n{more}", "")
        if words[:2] == ("systemctl", "restart"):
            self.restarts += 1
            self.invocation = f"a{self.restarts + 1}"
            self.unit.pop("StateChangeTimestampMonotonic", None)
            data = effective(str(self.config), self.version) if self.config.exists() and not self.real else {}
            bad = self.breaks and "nvidia" in json.dumps(data) or self.restarts == self.bad_restart
            return _run.Completed(words, 1 if bad else 0, "", "Job for containerd.service failed." if bad else "")
        if words[:2] == ("systemctl", "is-active"):
            return _run.Completed(words, 0, "active\n", "")
        if words[0] == "journalctl":
            return _run.Completed(words, 0, "failed to load plugin\n", "")
        return _run.Completed(words, 0, "", "")

    def request(self, state: str) -> dict[str, t.Any]:
        repository = {"url": "http://x/", "key": "k", "fingerprint": "A" * 40}
        return {"runtimes": [self.runtime.probe.as_request()], "markers": [], "config_path": str(self.config),
                "state": state, "drop_in_path": str(self.drop_in), "repository": repository, "disruption": "idle"}

    def see(self, state: str = "present") -> HostState:
        with Journal("container_toolkit", root=self.journal_root, readonly=True) as journal:
            seen = read.read_state(self.request(state), journal, self.run)
        seen["packages"] = {"installed": {}, "version": None, "steps": []}
        seen["cdi"] = {"specs": [], "driver": None, "steps": [], "pending": [], "warnings": []}
        return host_answer.state_of({"host_state": json.loads(json.dumps(seen))})

    def plan(self, state: str = "present", **options: t.Any) -> tuple[list[t.Any], Proposal]:
        seen = self.see(state)
        view, journal = seen.runtimes["containerd"], seen.journal.of("containerd")
        if state == "absent":
            proposal = self.runtime.propose_removal(view, journal)
            return toolkit_steps.removal_steps(seen, {"containerd": proposal}), proposal
        wish = Options(**{"set_as_default": True, "cdi": True, "mode": "auto", "drop_in_path": str(self.drop_in),
                          **options})
        proposal = self.runtime.propose(view, journal, wish)
        if proposal.trials:
            trials = [{"files": one.files, "argv": one.argv} for one in proposal.trials]
            paths = [change.path for change in proposal.changes]
            results = [ProgramResult(**one) for one in read.run_trials({"trials": trials, "paths": paths}, self.run)]
            self.runtime.check_trials(view, results, wish, proposal)
        return toolkit_steps.installation_steps(seen, {"containerd": proposal}, {}), proposal

    def converge(self, state: str = "present", **options: t.Any) -> list[str]:
        """Plans and executes; returns the ids of the steps."""
        steps, _proposal = self.plan(state, **options)
        settling = state == "absent" and os.path.isdir(self.journal_root)
        if steps or settling:
            with Journal("container_toolkit", root=self.journal_root) as journal:
                work = step_executor.StepExecutor(self.request(state), journal, self.run)
                raws = json.loads(json.dumps(toolkit_steps.as_request(steps)))
                apply([step_executor.step_from_json(raw) for raw in raws], work.execute, journal)
                if state == "absent":
                    work.packages.settle = lambda *_args: None  # type: ignore[method-assign]
                    work.forget_restored()
        return [step.id for step in steps]

    def effective(self) -> dict[str, t.Any]:
        """The table of the CRI plugin as the daemon would read it."""
        done = self.run(["containerd", "-c", str(self.config), "config", "dump"])
        data = tomllib.loads(done.stdout)["plugins"]
        return t.cast("dict[str, t.Any]", data.get(V3) or data[V2])

    def tree(self) -> dict[str, t.Any]:
        """Every file with its content, mode, inode and change time."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            info = path.lstat()
            content = base64.b64encode(path.read_bytes()).decode() if path.is_file() else ""
            found[str(path.relative_to(self.root))] = (content, info.st_mode, info.st_ino, info.st_mtime_ns)
        return found

    def shape(self) -> dict[str, t.Any]:
        """The same as L(tree), without inode and time."""
        return {name: entry[:2] for name, entry in self.tree().items()}


def played_host(root: pathlib.Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host on which all programs are found."""
    monkeypatch.setattr(read, "which", lambda name: f"/usr/bin/{name}")
    return Host(root, version)


@pytest.fixture
def host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., Host]:
    """Creates a host from a version and the content of its main file (None for no file)."""

    def make(version: str, content: bytes | None) -> Host:
        one = played_host(tmp_path, version, monkeypatch)
        if content is not None:
            one.config.write_bytes(content)
        return one

    return make

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The logs of a host, and the test of DCGM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import evidence
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.modules import gpu_evidence

KERNEL = "a kernel: NVRM: GPU 0000:3b:00.0 has fallen off the bus.\na kernel: eth0: link is up\n"


class Commands:
    """Simulated commands. answers: (exit code, standard output) by program; None: it exceeds its time limit."""

    def __init__(self, **answers: tuple[int, str] | None) -> None:
        self.answers, self.called = answers, []  # type: dict[str, tuple[int, str] | None], list[list[str]]

    def __call__(self, argv: Any, **_options: Any) -> Completed:
        self.called.append(list(argv))
        name = "kernel" if argv[-1] == "-k" else argv[0].replace("-", "_")
        found = self.answers.get(name, (127, ""))
        if found is None:
            raise CommandError(argv, None, "", "", "The limit was 60 s.")
        return Completed(tuple(argv), found[0], found[1], "")


@pytest.fixture(autouse=True)
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The build logs of DKMS, the newest first."""
    paths = [tmp_path / name for name in ("a.log", "b.log")]
    for age, path in enumerate(paths):
        path.write_text(f"log {path.name}")
        os.utime(path, (1000 - age, 1000 - age))
    monkeypatch.setattr(evidence.glob, "glob", lambda pattern: [str(path) for path in reversed(paths)])
    return paths


def test_texts() -> None:
    """Only lines about GPUs of the kernel log, and only the end of a long text."""
    run = Commands(kernel=(0, KERNEL), journalctl=(0, "x" * (evidence.SIZE + 5)), nvidia_smi=(9, "No devices"))
    found = evidence.read_evidence(run)
    assert found == {"kernel.log": KERNEL.splitlines()[0], "services.log": "x" * evidence.SIZE,
                     "nvidia-smi.txt": "No devices", "dkms.log": "log a.log"}


def test_missing_programs_and_logs_are_left_out(builds: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence.glob, "glob", lambda pattern: [])
    assert evidence.read_evidence(Commands(kernel=(0, ""))) == {}
    assert "nvidia-smi" in evidence.read_evidence(Commands(nvidia_smi=None))["nvidia-smi.txt"]


def test_a_log_that_vanishes_is_left_out(builds: list[Path]) -> None:
    for path in builds:
        path.unlink()
    assert "dkms.log" not in evidence.read_evidence(Commands())


@pytest.mark.parametrize(("answer", "passed", "why"), [
    ((0, "| Memory | Pass - All |"), True, ""),
    ((1, "| Memory     | Fail - GPU: 0 |\n| PCIe | Pass |"), False, "Memory | Fail - GPU: 0"),
    ((226, "cannot connect"), None, "exit code 226"),  # nothing was tested
])
def test_diag(answer: tuple[int, str], passed: bool | None, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "which", lambda program: f"/usr/bin/{program}")
    run = Commands(dcgmi=answer)
    assert evidence.run_diag(run, [], 2) == (evidence.Diag(True, passed, why), answer[1])
    assert run.called == [["dcgmi", "diag", "-r", "2"]]


def test_diag_does_not_run_beside_clients_or_without_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Commands()
    assert evidence.run_diag(run, ["python3", "python3"], 1)[0] == (False, None, "GPU clients run: python3")
    monkeypatch.setattr(evidence, "which", lambda program: None)
    assert evidence.run_diag(run, [], 1)[0] == (False, None, "the program dcgmi is not installed")
    assert run.called == []
    monkeypatch.setattr(evidence, "which", lambda program: program)
    assert evidence.run_diag(Commands(dcgmi=None), [], 1)[0][:2] == (True, None)


def test_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "which", lambda program: program)
    monkeypatch.setattr(gpu_evidence, "read_holders", lambda root: [])
    monkeypatch.setattr(gpu_evidence, "run", Commands(kernel=(0, KERNEL), dcgmi=(0, "Pass")))
    found = gpu_evidence.read(1, False)
    assert [one["meaning"] for one in found["explained"]] == [
        "A GPU no longer answers on PCIe. This is a hardware problem."]
    assert found["dcgm"] == {"ran": True, "passed": True, "why": ""} and found["evidence"]["dcgmi-diag.txt"] == "Pass"
    assert gpu_evidence.read(1, True)["dcgm"]["why"] == "check mode runs no test"
    assert gpu_evidence.read(0, False)["dcgm"] == {"ran": False, "passed": None, "why": ""}

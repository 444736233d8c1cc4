# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated machine for each test. Only test_cdi.py needs root, because it creates device nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.nvml.build import build
from tests.conformance.nvml import Nvml

ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """A simulated machine: a state file, with programs and a library that use it."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder = folder
        self.state = state
        self.nvml = Nvml(folder)
        self.environment = {
            **os.environ,
            "GPUSIM_STATE": str(state),
            "LD_LIBRARY_PATH": str(folder),
            "PYTHONPATH": str(ROOT),
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the machine (nvidia-smi, gpusim) or any other program in its environment."""
        program = self.folder / command[0]
        words = [str(program) if program.exists() else command[0], *command[1:]]
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)

    def sim(self, *words: str) -> str:
        """Runs gpusim; returns its output."""
        result = self.run("gpusim", *words)
        assert result.returncode == 0, result.stderr
        return result.stdout


@pytest.fixture(scope="session")
def nvml_folder() -> Path:
    """The folder with the library and the programs."""
    return build()


@pytest.fixture
def machine(nvml_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """C(machine("a100-80=8")) creates a machine that this process and its children use."""

    def make(*words: str, folder: Path = nvml_folder) -> Machine:
        made = Machine(folder, tmp_path / "state")
        monkeypatch.setenv("GPUSIM_STATE", str(made.state))
        made.sim("init", "--driver", "570.172.08", *words)
        return made

    return make

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MIG of eight simulated GPUs: The CPU time and the NVML calls are compared with those of mig-parted 0.15.0 for the
same work on such GPUs.

The CPU time is that of the whole payload of the module as it runs on a host, minus that of a module that does nothing.
It is scaled by nvidia-ctk, which was measured together with mig-parted and is measured again here. The commands run
alternately and medians count, so other load on the machine affects all of them equally.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab.nvml.build import build
from lab.tools import toolkit_program
from tests.conformance.conftest import Machine
from tests.conformance.test_cdi import DRIVER, driver_root
from tests.unit.floors.test_payload import EMPTY, MODULES

ROUNDS, GPUS = 25, 8
# Captured side by side, the best of 15 runs each, as here: nvidia-ctk cdi generate and mig-parted assert of 56
# instances, CPU in ms; NVML calls of the latter, and of mig-parted apply from MIG off to all-balanced.
CTK_MS, ASSERT_MS, ASSERT_CALLS, BALANCED_CALLS = 27, 467, 885, 5391
NO_OP_SHARE, APPLY_SHARE = 0.3, 0.2
PLAN_BUDGET_MS = 100
# The payload of a module with its arguments, as Ansible sends it to a host.
PAYLOAD = """import json, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([])
from ansible.executor.module_common import modify_module
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
name, path, arguments, out = sys.argv[1:]
built = modify_module(module_name=name, module_path=path, module_args=json.loads(arguments),
                      templar=Templar(DataLoader()), task_vars={"ansible_python_interpreter": sys.executable},
                      module_compression="ZIP_DEFLATED")
open(out, "wb").write(built.b_module_data)
"""
# Eight GPUs that stand differently, each to something else that costs it some of what it has.
PLANS = """import time
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board, Placement
board = Board(boards.profiles_of("20b2"))
present = [tuple(Placement("1g.10gb", start, ((1, 0),)) for start in range(7) if start != gone) for gone in range(7)]
present.append((Placement("7g.80gb", 0, tuple((1, start) for start in range(7))),))
wanted = [{("1g.10gb", 1): 2, ("2g.20gb", 2): 1, ("3g.40gb", 3): 1}] * 7 + [{("3g.40gb", 1): 3, ("4g.40gb", 1): 4}]
started = time.process_time()
assert all(board.target(*pair) for pair in zip(present, wanted))
print(1000 * (time.process_time() - started))
"""
Row = tuple[str, str, str, bool]
CTK, EMPTY_MODULE = "nvidia-ctk", "empty"


def rows() -> list[Row]:
    """The rows C((what, figure, budget, whether it is kept)). Needs root, because it mounts a file system for the
    journals."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        host = Machine(build(), folder / "state")
        host.environment["GPUSIM_TRACE"] = str(folder / "trace")
        host.sim("init", "--driver", DRIVER, f"a100-80={GPUS}")
        return measure(host, folder)


def measure(host: Machine, folder: Path) -> list[Row]:
    """Measures three runs (from MIG off to all-balanced, then to small instances, then a run without changes)
    alternately with the calibrator."""
    generate, bare = calibrator(host, folder)
    (folder / "empty.py").write_text(EMPTY)
    empty = payload("empty", folder / "empty.py", {}, folder)
    balanced, seven = (payload("mig_config", MODULES / "mig_config.py", {"selected": name, "disruption": "idle"},
                               folder) for name in ("all-balanced", "all-1g.10gb"))
    applied = changed_and_calls(balanced, host, folder)
    changed_and_calls(seven, host, folder)
    again = changed_and_calls(seven, host, folder)
    turns = Turns({CTK: (generate, bare), EMPTY_MODULE: (empty, host.environment), "seven": (seven, host.environment)})
    share = turns.share("seven", ASSERT_MS)
    plans = [float(subprocess.run([sys.executable, "-c", PLANS], check=True, capture_output=True, text=True).stdout)
             for _number in range(3)]
    return [
        (f"MIG, {GPUS} GPUs with {7 * GPUS} instances, nothing to do: CPU share", f"{share:.2f}", f"< {NO_OP_SHARE}",
         share < NO_OP_SHARE and not again[0]),
        turns.shown("seven"),
        ("  NVML calls, share", f"{again[1]} = {again[1] / ASSERT_CALLS:.2f}", f"< {NO_OP_SHARE}",
         again[1] < NO_OP_SHARE * ASSERT_CALLS),
        ("  off to all-balanced: NVML calls, share", f"{applied[1]} = {applied[1] / BALANCED_CALLS:.2f}",
         f"< {APPLY_SHARE}", applied[0] and applied[1] < APPLY_SHARE * BALANCED_CALLS),
        (f"  plan of {GPUS} GPUs that all stand differently, CPU ms", f"{statistics.median(plans):.0f}",
         f"< {PLAN_BUDGET_MS}", statistics.median(plans) < PLAN_BUDGET_MS),
    ]


def calibrator(host: Machine, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command nvidia-ctk cdi generate and its environment, for the same GPUs with MIG off and a separate driver
    folder."""
    bare = Machine(host.folder, folder / "bare")
    bare.sim("init", "--driver", DRIVER, f"a100-80={GPUS}")
    root = driver_root(bare, folder / "root")
    return [str(toolkit_program("nvidia-ctk")), "cdi", "generate", "--driver-root", str(root), "--output",
            str(folder / "cdi.yaml")], bare.environment


def payload(name: str, path: Path, arguments: dict[str, Any], folder: Path) -> list[str]:
    """The command that runs a module as on a host, with a journal that is deleted afterwards."""
    out = folder / f"{name}-{'-'.join(str(value) for value in arguments.values())}"
    full = f"ansible_collections.gpuops.nvidia.plugins.modules.{name}"
    subprocess.run([sys.executable, "-c", PAYLOAD, full, str(path), json.dumps(arguments), str(out)], check=True)
    script = 'mount -t tmpfs none /var/lib && exec "$0" "$1"'
    return ["unshare", "--mount", "sh", "-c", script, sys.executable, str(out)]


def cpu(command: list[str], environment: dict[str, str]) -> float:
    """Milliseconds of CPU time of a command and its child processes."""
    quiet = {key: value for key, value in environment.items() if key != "GPUSIM_TRACE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=quiet, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


class Turns:
    """CPU time in ms of commands (with their environments) that run alternately, in the opposite order in every other
    round."""

    def __init__(self, commands: dict[str, tuple[list[str], dict[str, str]]]) -> None:
        self.taken: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(ROUNDS):
            for name in list(commands)[::-1 if number % 2 else 1]:
                self.taken[name].append(cpu(*commands[name]))

    def above(self, name: str) -> float:
        """The additional CPU time of a module compared with an empty one, which runs right before or after it."""
        return statistics.median(ours - nothing for ours, nothing in zip(self.taken[name], self.taken[EMPTY_MODULE]))

    def share(self, name: str, peer: float) -> float:
        """The share relative to the CPU time of a peer in ms, which was measured when nvidia-ctk took CTK_MS."""
        return self.above(name) / statistics.median(self.taken[CTK]) * CTK_MS / peer

    def shown(self, name: str) -> Row:
        """The figures from which the share is computed, with the best of all rounds in addition to the median."""
        ctk, nothing, ours = self.taken[CTK], self.taken[EMPTY_MODULE], self.taken[name]
        return ("  CPU ms above a no-op module / of nvidia-ctk (best)", f"{self.above(name):.0f} / "
                f"{statistics.median(ctk):.0f} ({min(ours) - min(nothing):.0f} / {min(ctk):.0f})", "", True)


def changed_and_calls(command: list[str], host: Machine, folder: Path) -> tuple[bool, int]:
    """Whether one run changed something, and how many NVML calls it made."""
    trace = folder / "trace"
    trace.write_text("")
    done = subprocess.run(command, env=host.environment, check=True, capture_output=True, text=True)
    return bool(json.loads(done.stdout)["changed"]), len(trace.read_text().splitlines())

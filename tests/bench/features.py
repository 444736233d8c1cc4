# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels of eight simulated GPUs: The CPU time is compared with that of gpu-feature-discovery 0.20.0 for the same
labels of such GPUs.

It includes the whole payload of the module as it runs on a host, measured as in C(mig.py). By default, the role returns
the labels as facts. The CPU time for the first write of the file of NFD is reported separately.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from lab.nvml.build import build
from tests.bench.mig import CTK, EMPTY_MODULE, Row, Turns, calibrator, payload
from tests.conformance.conftest import Machine
from tests.conformance.test_cdi import DRIVER
from tests.unit.floors.test_payload import EMPTY, MODULES

GPUS = 8
# Captured, the best of 15 runs each: gpu-feature-discovery --oneshot, without MIG and with 56 instances, CPU in ms.
GFD_MS, GFD_MIG_MS = 176, 220
SHARE = 0.5
# What the module writes is not kept.
MOUNTS = ("mount -t tmpfs none /var/lib && mkdir -p /etc/kubernetes && mount -t tmpfs none /etc/kubernetes && "
          'exec "$0" "$1"')


def rows() -> list[Row]:
    """The rows C((what, figure, budget, whether it is kept)). Needs root, because it mounts file systems for its
    files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty.py").write_text(EMPTY)
        generate, bare = calibrator(Machine(build(), folder / "unused"), folder)
        whole, cut = machine(folder / "whole"), machine(folder / "cut")
        for words in ("-mig 1", f"mig -cgi {','.join(7 * ['19'])} -C"):
            done = cut.run("nvidia-smi", *words.split())
            assert done.returncode == 0, done.stderr
        empty = payload("empty", folder / "empty.py", {}, folder)
        facts, file = (task(target, folder) for target in ("facts", "nfd_file"))
        for host, label, count in ((whole, "gpu.count", "8"), (cut, "mig-1g.10gb.count", "56")):
            for command in (facts, file):
                told = subprocess.run(command, env=host.environment, check=True, capture_output=True, text=True).stdout
                assert json.loads(told)["labels"][f"nvidia.com/{label}"] == count, told
        turns = Turns({CTK: (generate, bare), EMPTY_MODULE: (empty, bare), "plain": (facts, whole.environment),
                       "mig": (facts, cut.environment), "written": (file, cut.environment)})
    return [*shown(turns, "plain", f"labels of {GPUS} GPUs", GFD_MS),
            *shown(turns, "mig", f"labels of {GPUS} GPUs with {7 * GPUS} instances", GFD_MIG_MS),
            ("  the same, and NFD's file written: CPU ms", f"{turns.above('written'):.0f}", "", True)]


def task(target: str, folder: Path) -> list[str]:
    """The command that runs the module as on a host."""
    command = payload("gpu_labels", MODULES / "gpu_labels.py",
                      {"state": "present", "target": target, "mig_strategy": "mixed"}, folder)
    command[command.index("-c") + 1] = MOUNTS
    return command


def machine(state: Path) -> Machine:
    """Eight A100 with a driver."""
    made = Machine(build(), state)
    made.sim("init", "--driver", DRIVER, f"a100-80={GPUS}")
    return made


def shown(turns: Turns, name: str, what: str, peer: float) -> list[Row]:
    """The share of CPU time relative to the peer, and the figures from which it is computed."""
    share = turns.share(name, peer)
    return [(f"{what}: CPU share of GFD's", f"{share:.2f}", f"< {SHARE}", share < SHARE), turns.shown(name)]

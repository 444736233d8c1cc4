# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the simulated NVML: ``python -m lab.nvml.build`` prints the folder that holds the three parts.

These are ``libnvidia-ml.so.1``, ``nvidia-smi`` and ``gpusim``; the folder is cached by the hash of its inputs.
"""

from __future__ import annotations

from pathlib import Path

from lab.tools import cached, run_quietly

HERE = Path(__file__).resolve().parent


def build(boards: Path = HERE / "boards.json") -> Path:
    """The folder of a build with these device tables."""
    sources = sorted([*HERE.glob("*.[ch]"), HERE / "Makefile", HERE / "symbols.txt", HERE / "tables.py"])
    inputs = [path.read_bytes() for path in (*sources, boards)]

    def make(folder: Path) -> None:
        command = ["make", "--silent", "--jobs=2", f"--directory={HERE}", f"O={folder}", f"BOARDS={boards.resolve()}"]
        run_quietly(command, "the simulated NVML")
        for path in [*folder.glob("*.o"), *folder.glob("*.c")]:
            path.unlink()

    return cached("nvml", inputs, make)


if __name__ == "__main__":
    print(build())

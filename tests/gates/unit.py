# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the unit tests and measures their branch coverage of plugins/, which must not be below the floor; the floor
follows the coverage.

C(python -m tests.gates.unit [TEST ...]); if tests are named, the coverage is not measured.
"""

from __future__ import annotations

import json
import subprocess
import sys

import tomllib

from lab.stages import ROOT

REPORT = ROOT / ".build" / "coverage.json"  # of SlipCover: by file the lines and branches that were taken or missed
STEP = 0.5  # percent above the floor from which on the floor has to be raised


def main(tests: list[str]) -> int:
    """Returns the exit code of pytest, or 1 if the coverage does not match the floor."""
    pytest = [sys.executable, "-m", "pytest"]
    if tests:
        return subprocess.run([*pytest, *tests], cwd=ROOT, check=False).returncode
    REPORT.unlink(missing_ok=True)
    code = subprocess.run([*pytest, "-p", "tests.gates.covered", "tests/unit"], cwd=ROOT, check=False).returncode
    if not REPORT.exists():
        return code or 1
    found = json.loads(REPORT.read_text())["summary"]
    branches, lines = (100 * found[f"covered_{kind}"] / (found[f"covered_{kind}"] + found[f"missing_{kind}"])
                       for kind in ("branches", "lines"))
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["gates"]["branches"]
    if branches < floor:
        print(f"The unit tests cover {branches:.2f} % of the branches of plugins/; the floor is {floor} % "
              f"(pyproject.toml, tool.gates). Look for what they miss in {REPORT.relative_to(ROOT)}.")
        return code or 1
    if branches >= floor + STEP:
        print(f"The unit tests cover {branches:.2f} % of the branches of plugins/. Raise the floor of {floor} % in "
              "pyproject.toml (tool.gates), so that it stays so.")
        return code or 1
    print(f"branches of plugins/ covered: {branches:.2f} % (floor {floor} %), lines {lines:.2f} %")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

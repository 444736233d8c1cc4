# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit tests with the branches that they cover of plugins/: not less than the floor, which follows what is covered.

C(python -m tests.gates.unit [TEST ...]); with tests of one's choice nothing is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys

import tomllib

from lab.stages import ROOT

STEP = 0.5  # percent above the floor from which on the floor has to be raised
DATA = ROOT / ".build" / "coverage"


def main(tests: list[str]) -> int:
    """Returns pytest's exit code, or 1 where the coverage is not what the floor says."""
    if tests:
        return subprocess.run([sys.executable, "-m", "pytest", *tests], cwd=ROOT, check=False).returncode
    DATA.mkdir(parents=True, exist_ok=True)
    coverage = [sys.executable, "-m", "coverage"]
    data = f"--data-file={DATA / 'data'}"
    code = subprocess.run([*coverage, "run", data, "--branch", "--source=plugins", "-m", "pytest", "tests/unit"],
                          cwd=ROOT, check=False).returncode
    report = DATA / "report.json"
    subprocess.run([*coverage, "json", data, "-q", "-o", str(report)], cwd=ROOT, check=True)
    totals = json.loads(report.read_text())["totals"]
    branches = 100 * totals["covered_branches"] / totals["num_branches"]
    lines = 100 * totals["covered_lines"] / totals["num_statements"]
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["gates"]["branches"]
    if branches < floor:
        print(f"The unit tests cover {branches:.2f} % of the branches of plugins/; the floor is {floor} % "
              f"(pyproject.toml, tool.gates). Look for what they miss: coverage report --show-missing {data}")
        return code or 1
    if branches >= floor + STEP:
        print(f"The unit tests cover {branches:.2f} % of the branches of plugins/. Raise the floor of {floor} % in "
              "pyproject.toml (tool.gates), so that it stays so.")
        return code or 1
    print(f"branches of plugins/ covered: {branches:.2f} % (floor {floor} %), lines {lines:.2f} %")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

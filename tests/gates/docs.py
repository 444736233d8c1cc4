# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the documentation: ansible-doc of everything, the changelog, playbook syntax, links of the pages."""

from __future__ import annotations

import re
import subprocess
import sys

from lab.stages import ROOT


def check(problems: list[str], *argv: str) -> None:
    """Runs a command; adds a failure to the problems."""
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{' '.join(argv)[:110]}: {'ok' if done.returncode == 0 else 'FAILED'}")
    if done.returncode:
        problems.append(f"{' '.join(argv)}\n{done.stdout}{done.stderr}")


def main() -> int:
    """Prints the problems. Returns 1 if there are any."""
    problems: list[str] = []
    modules = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("[a-z]*.py"))
    check(problems, "ansible-doc", "-t", "module", *(f"gpuops.nvidia.{name}" for name in modules))
    for kind in ("filter", "inventory", "callback"):
        names = sorted(path.stem for path in (ROOT / "plugins" / kind).glob("[a-z]*.py"))
        if names:
            check(problems, "ansible-doc", "-t", kind, *(f"gpuops.nvidia.{name}" for name in names))
    roles = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
    for role in roles:
        if not (ROOT / "roles" / role / "meta" / "argument_specs.yml").exists():
            problems.append(f"roles/{role} has no meta/argument_specs.yml")
    if roles:
        check(problems, "ansible-doc", "-t", "role", *(f"gpuops.nvidia.{name}" for name in roles))
    playbooks = sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml"))
    check(problems, "ansible-playbook", "-i", "localhost,", "--syntax-check",
          *(f"gpuops.nvidia.{name}" for name in playbooks))
    check(problems, "antsibull-changelog", "lint")
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in link and not (page.parent / link).exists():
                problems.append(f"{page.relative_to(ROOT)} links to {link}, which is not there")
    for problem in problems:
        print(f"\n{problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

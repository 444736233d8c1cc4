# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the documentation: ansible-doc of everything, the changelog, playbook syntax, links of the pages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from lab.stages import ROOT


def check(problems: list[str], *argv: str) -> None:
    """Runs a command; adds a failure to the problems."""
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{' '.join(argv)[:110]}: {'ok' if done.returncode == 0 else 'FAILED'}")
    if done.returncode:
        problems.append(f"{' '.join(argv)}\n{done.stdout}{done.stderr}")


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w -]", "", words).replace(" ", "-")
        copies = (f"{anchor}-{number}" for number in range(1, len(found) + 1))
        found.add(anchor if anchor not in found else next(copy for copy in copies if copy not in found))
    return found


def dead_links(pages: Iterable[Path], root: Path) -> list[str]:
    """The problems of the links of pages to files in a checkout (root), and to headings of pages."""
    problems = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)[^)]*\)", text):
            name, _mark, anchor = link.partition("#")
            target = page.parent / name if name else page
            if "://" in link:
                continue
            if not target.exists():
                problems.append(f"{page.relative_to(root)} links to {name}, which is not there")
            elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
                problems.append(f"{page.relative_to(root)} links to {link}, but {target.name} has no such heading")
    return problems


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
    pages = [*ROOT.glob("*.md"), *(page for name in ("docs", "lab", "tests") for page in (ROOT / name).rglob("*.md"))]
    problems += dead_links(pages, ROOT)
    for problem in problems:
        print(f"\n{problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

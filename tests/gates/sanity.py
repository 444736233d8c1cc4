# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs C(ansible-test sanity) on the unpacked output of C(ansible-galaxy collection build), because it refuses a linked
checkout."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from lab.stages import ROOT
from lab.tools import alone, cached, run_quietly

# The script that ansible-test downloads to put pip into its environments; the one that Python carries does the same.
GET_PIP = 'import ensurepip\n\nensurepip.bootstrap(default_pip=True)\n'
SKIP = {"pslint": "there is no PowerShell in this collection and none to install here"}


def export(target: Path) -> None:
    """Unpacks the tarball of the collection and makes it a git repository, from which ansible-test lists the files."""
    built = target.parents[2] / "built"
    for folder in (target, built):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    run_quietly(["ansible-galaxy", "collection", "build", "--output-path", str(built), str(ROOT)], "the collection")
    with tarfile.open(next(built.glob("*.tar.gz"))) as tarball:
        tarball.extractall(target, filter="data")
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=target, check=True)


def left_out(target: Path) -> list[str]:
    """The folders and files at the top of the checkout of which nothing was exported."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\0")
    return sorted({name.split("/")[0] for name in names if name} - {path.name for path in target.iterdir()})


def main() -> int:
    """Runs all sanity tests except those in SKIP. Returns the exit code of ansible-test."""
    ignores = [path for path in (ROOT / "tests" / "sanity").glob("ignore-*.txt") if path.read_text().strip()]
    if ignores:
        print(f"Sanity ignore files must be empty: {', '.join(path.name for path in ignores)}")
        return 1
    target = ROOT / ".build" / "sanity" / "ansible_collections" / "gpuops" / "nvidia"
    export(target)
    print(f"left out, as Galaxy ships none of it (Python there: gate ruff): {', '.join(left_out(target))}")
    for name, reason in SKIP.items():
        print(f"left out: {name}: {reason}")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "ANSIBLE_HOME", "MYPYPATH")}
    env.update({"ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".build" / "sanity"), "LC_ALL": "C.UTF-8"})
    command = ["ansible-test", "sanity", "--local", "--requirements", "--python", version, "--color", "no",
               *(word for name in SKIP for word in ("--skip-test", name))]

    def prime(home: Path) -> None:
        """Creates the environments of the tests below a home folder, which parallel runs then share."""
        get_pip(home).parent.mkdir(parents=True, exist_ok=True)
        get_pip(home).write_text(GET_PIP)
        done = subprocess.run([*command, "--prime-venvs"], cwd=target, env={**env, "HOME": str(home)}, check=False)
        if done.returncode:
            raise SystemExit("ansible-test could not make the environments of its tests")

    made_of = [sys.version, str(Path(sys.executable).resolve()), importlib.metadata.version("ansible-core"), GET_PIP]
    home = cached("ansible-test", [one.encode() for one in made_of], prime)
    with alone(home):
        if not get_pip(home).exists():  # what saves and restores the cache left it out
            prime(home)
    return subprocess.run(command, cwd=target, env={**env, "HOME": str(home)}, check=False).returncode


def get_pip(home: Path) -> Path:
    """The path where ansible-test expects GET_PIP before it downloads another one."""
    return home / ".ansible" / "test" / "cache" / "get_pip_24_2.py"


if __name__ == "__main__":
    sys.exit(main())

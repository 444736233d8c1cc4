# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(.venv) in the checkout: pinned packages, and this collection on its path (C(python3 -m lab.venv [--tests])).

The packages are installed once into a cached environment; a checkout gets a copy of it, which takes seconds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lab.tools import alone, cached, run_quietly

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BUILD = ROOT / ".build"


def ensure(tests: bool = False) -> Path:
    """Creates the environment of this checkout, unless it exists. Returns its bin folder.

    An environment for tests also has the packages of a user, and is kept.
    """
    run, all_of_them = [ROOT / "requirements.txt"], [ROOT / "requirements.txt", ROOT / "tests" / "requirements.txt"]
    with alone(ROOT):
        tests = tests or stamp(VENV, all_of_them, "tests").exists()
        make(VENV, all_of_them if tests else run, "tests" if tests else "run", link_collection)
        link_collection(VENV)  # the environment may be older than this checkout's place
    return VENV / "bin"


def make(target: Path, files: list[Path], kind: str, complete: Callable[[Path], None] = lambda _made: None) -> Path:
    """An environment with the packages in these files; does nothing if it exists. Returns its bin folder.

    kind: keeps environments of other purposes apart in the cache. complete: adds further files to a new one.

    It replaces a former one atomically: a command that runs in the former one continues in the new one.
    """
    made = stamp(target, files, kind)
    if not made.exists():
        python = os.path.realpath(sys.executable)  # of an environment, the one that made it
        inputs = [sys.version.encode(), python.encode(), *(file.read_bytes() for file in files)]
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory("", "venv-", BUILD) as folder:
            fresh = Path(folder) / "fresh"
            copy(cached(f"venv-{kind}", inputs, lambda folder: install(folder, files)), fresh, target)
            complete(fresh)
            stamp(fresh, files, kind).touch()
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                target.rename(Path(folder) / "former")
            fresh.rename(target)
    return target / "bin"


def stamp(target: Path, files: list[Path], kind: str) -> Path:
    """The file in an environment that says which packages it has."""
    pinned = b"".join(file.read_bytes() for file in files)
    return target / f".{kind}-{hashlib.sha256(pinned).hexdigest()[:16]}"


def install(folder: Path, files: list[Path]) -> None:
    """Makes an environment and installs the packages of the files into it (one to two minutes)."""
    print("installing " + ", ".join(str(file.relative_to(ROOT)) for file in files), flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"{made.stdout}{made.stderr}\nPython's venv module is needed: apt-get install python3-venv")
    arguments = [word for file in files for word in ("-r", str(file))]
    run_quietly([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                 *arguments], "the Python environment")


def copy(source: Path, target: Path, used_at: Path) -> None:
    """Copies an environment, packages by hard links. Its scripts contain the path at which it will be used."""
    shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy)
    command = next(line for line in (source / "pyvenv.cfg").read_text().splitlines() if line.startswith("command ="))
    installed_at = command.split()[-1].encode()
    for program in (target / "bin").iterdir():
        if program.is_symlink() or not program.is_file():
            continue
        text = program.read_bytes()
        if installed_at in text:
            mode = program.stat().st_mode
            program.unlink()  # the cached one keeps its content
            program.write_bytes(text.replace(installed_at, str(used_at).encode()))
            program.chmod(mode)


def link_or_copy(source: str, target: str) -> None:
    """Creates a hard link, or a copy if the checkout and the cache are on different file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def link_collection(target: Path) -> None:
    """Makes the checkout available as C(ansible_collections.gpuops.nvidia) for the Ansible of the environment."""
    site = next((target / "lib").glob("python3.*/site-packages"))
    link = site / "ansible_collections" / "gpuops" / "nvidia"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink() or link.resolve() != ROOT:
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT)


if __name__ == "__main__":
    print(f"{ensure('--tests' in sys.argv)} is ready: ansible-playbook gpuops.nvidia.site, "
          "ansible-doc gpuops.nvidia.mig_config")

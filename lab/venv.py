# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(.venv) in the checkout: pinned packages, and this collection on its path (C(python3 -m lab.venv [--tests]))."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"


def ensure(tests: bool = False) -> Path:
    """Makes or completes the environment; does nothing when it is as wanted. Returns its bin folder."""
    files = [ROOT / "requirements.txt"] + ([ROOT / "tests" / "requirements.txt"] if tests else [])
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    stamp = VENV / f".{'tests' if tests else 'run'}-{wanted[:16]}"
    if not stamp.exists():
        if not (VENV / "bin" / "python").exists():
            print(f"making {VENV.name} with {sys.executable}", flush=True)
            command = [sys.executable, "-m", "venv", str(VENV)]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                raise SystemExit(f"{made.stdout}{made.stderr}\nPython's venv module is needed: "
                                 "apt-get install python3-venv")
        print("installing " + ", ".join(str(file.relative_to(ROOT)) for file in files), flush=True)
        arguments = [word for file in files for word in ("-r", str(file))]
        subprocess.run([str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                        *arguments], check=True)
        for old in VENV.glob(f".{'tests' if tests else 'run'}-*"):
            old.unlink()
        stamp.touch()
    link_collection()
    return VENV / "bin"


def link_collection() -> None:
    """Puts the checkout where the environment's ansible looks for C(ansible_collections.gpuops.nvidia)."""
    site = next((VENV / "lib").glob("python3.*/site-packages"))
    link = site / "ansible_collections" / "gpuops" / "nvidia"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink() or link.resolve() != ROOT:
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT)


if __name__ == "__main__":
    print(f"{ensure('--tests' in sys.argv)} is ready: ansible-playbook gpuops.nvidia.site, "
          "ansible-doc gpuops.nvidia.mig_config")

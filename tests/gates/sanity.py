# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(ansible-test sanity) on an exported copy of the tree, as it refuses a linked checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab.stages import ROOT

# The script that ansible-test downloads to put pip into its environments; the one that Python carries does the same.
GET_PIP = 'import ensurepip\n\nensurepip.bootstrap(default_pip=True)\n'
SKIP = {"pslint": "there is no PowerShell in this collection and none to install here"}


def export(target: Path) -> None:
    """Copies all files that git does not ignore and makes the copy a git tree, by which ansible-test lists."""
    if target.exists():
        shutil.rmtree(target)
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=target, check=True)


def main() -> int:
    """Runs all sanity tests but those of SKIP. Returns ansible-test's exit code."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpuops" / "ansible-test"
    (cache / ".ansible" / "test" / "cache").mkdir(parents=True, exist_ok=True)
    (cache / ".ansible" / "test" / "cache" / "get_pip_24_2.py").write_text(GET_PIP)
    target = ROOT / ".build" / "sanity" / "ansible_collections" / "gpuops" / "nvidia"
    export(target)
    ignores = [path for path in (target / "tests" / "sanity").glob("ignore-*.txt") if path.read_text().strip()]
    if ignores:
        print(f"Sanity ignore files must be empty: {', '.join(path.name for path in ignores)}")
        return 1
    for name, reason in SKIP.items():
        print(f"left out: {name}: {reason}")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "ANSIBLE_HOME", "MYPYPATH")}
    env.update({"HOME": str(cache), "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".build" / "sanity"), "LC_ALL": "C.UTF-8"})
    skips = [word for name in SKIP for word in ("--skip-test", name)]
    return subprocess.run(["ansible-test", "sanity", "--local", "--requirements", "--python", version, *skips,
                           "--color", "no"], cwd=target, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules run on hosts with Python 3.8: they use no newer features, and their unit tests pass there."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab import venv
from lab.tools import cached

ROOT = Path(__file__).resolve().parents[2]
CODE = ("plugins/modules", "plugins/module_utils")
OLDEST = (3, 8)
OF_MODULES = ("devices", "driver", "facts", "floors", "labels", "mig", "packages", "software", "toolkit")
# Controllers have a newer Python: tests of what runs there are left out.
ON_CONTROLLER = ("plugins.action", "plugins.plugin_utils", "plugins.filter", "plugins.inventory", "plugins.lookup",
                 "ansible.plugins", "from lab", "from tests.", "test_payloads")
REQUIREMENTS = ROOT / "tests" / "requirements-python38.txt"


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for folder in CODE for path in
                                  sorted((ROOT / folder).rglob("*.py"))])
def test_syntax(path: str) -> None:
    ast.parse((ROOT / path).read_text(), path, feature_version=OLDEST)


def test_library() -> None:
    """vermin has the version in which each part of the standard library was added."""
    program = Path(sys.executable).with_name("vermin")
    done = subprocess.run([str(program), "--target=3.8-", "--violations", "--no-tips", "--no-parse-comments", *CODE],
                          cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def interpreter() -> str | None:
    """A Python 3.8 on this machine if there is one: on PATH, or among those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for path in (*sorted(pyenv.glob("3.8.*/bin/python3.8")), shutil.which("python3.8")):
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False, timeout=60).returncode == 0:
            return str(path)
    return None


@pytest.mark.timeout(1500)
def test_unit_tests_of_modules(tmp_path: Path) -> None:
    """Without a Python 3.8, the tests above must be sufficient."""
    python = interpreter()
    if python is None:
        pytest.skip("there is no Python 3.8 on this machine")

    def install(folder: Path) -> None:
        for command in ([python, "-m", "venv", str(folder)],
                        [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check",
                         "--requirement", str(REQUIREMENTS)]):
            subprocess.run(command, check=True, timeout=1800)

    made = cached("venv-python38", [python.encode(), REQUIREMENTS.read_bytes()], install)
    # What a module finds on a host: Ansible's module_utils and the collection; for tests, tomllib by its former name.
    (tmp_path / "ansible").symlink_to(next((venv.VENV / "lib").glob("python3.*/site-packages/ansible")))
    collection = tmp_path / "ansible_collections" / "gpuops" / "nvidia"
    collection.parent.mkdir(parents=True)
    collection.symlink_to(ROOT)
    (tmp_path / "tomllib.py").write_text("from tomli import *\n")
    files = [str(path) for folder in OF_MODULES for path in sorted((ROOT / "tests" / "unit" / folder).glob("test_*.py"))
             if not any(word in path.read_text() for word in ON_CONTROLLER)]
    assert len(files) > 40
    done = subprocess.run([str(made / "bin" / "python"), "-m", "pytest", "-p", "no:cacheprovider", *files], cwd=ROOT,
                          capture_output=True, text=True, check=False, timeout=1200,
                          env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    print(done.stdout.splitlines()[-1])


# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A skipped test counts as failed, also a file that is skipped as a whole; permitted skips are printed with their
reasons."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.stages import ROOT

SKIP = "import pytest\n\n\ndef test_unit_tests_of_modules():\n    pytest.skip('not here')\n"


@pytest.mark.parametrize(("name", "text", "rc", "said"), [
    ("python38/test_modules.py", SKIP, 0, "may skip: python38/test_modules.py::test_unit_tests_of_modules: where"),
    ("test_one.py", SKIP, 1, "test_one.py::test_unit_tests_of_modules skipped, which counts as failed: "),
    ("test_one.py", "import pytest\n\npytest.skip('not here', allow_module_level=True)\n", 2,
     "test_one.py skipped, which counts as failed: "),
    ("test_one.py", "import pytest\n\npytest.importorskip('not_there')\n", 2,
     "test_one.py skipped, which counts as failed: "),
])
def test_skips(tmp_path: Path, name: str, text: str, rc: int, said: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", "/dev/null",
                           "--rootdir", str(tmp_path), str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=120)
    assert (done.returncode, said in done.stdout) == (rc, True), done.stdout + done.stderr

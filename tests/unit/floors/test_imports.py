# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that Ansible sends in a zip file are compiled once, and garbage collection is off."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

MODULE_UTILS = Path(__file__).parents[3] / "plugins" / "module_utils"
PACKAGE = "ansible_collections/gpuops/nvidia/plugins/module_utils"
IMPORT = """
import builtins, collections, gc, json, sys
sys.path.insert(0, sys.argv[1])
counts, compiled = collections.Counter(), builtins.compile
def count(source, filename, *words, **options):
    counts[str(filename).rpartition("module_utils/")[2]] += 1
    return compiled(source, filename, *words, **options)
builtins.compile = count
from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import root
try:
    from ansible_collections.gpuops.nvidia.plugins.module_utils import _there_is_none
except ImportError:
    print(json.dumps([counts, root.__file__, root.__package__, root.__spec__.loader.get_source(root.__name__),
                      gc.isenabled()]))
"""


def test_each_module_is_compiled_once(tmp_path: Path) -> None:
    names = ["_module_main.py", "_imports.py", "_errors.py", "_nulls.py", "_result.py", "_facts/__init__.py",
             "_facts/root.py"]
    with zipfile.ZipFile(tmp_path / "sent.zip", "w") as archive:
        parts = PACKAGE.split("/")
        for depth in range(1, len(parts) + 1):
            archive.writestr("/".join([*parts[:depth], "__init__.py"]), "")
        # Ansible sends this, too. It is not installed where the tests of Python 3.8 run.
        archive.writestr("ansible/__init__.py", "")
        archive.writestr("ansible/module_utils/__init__.py", "")
        archive.writestr("ansible/module_utils/basic.py", "class AnsibleModule: pass")
        for name in names:
            archive.write(MODULE_UTILS / name, f"{PACKAGE}/{name}")
    done = subprocess.run([sys.executable, "-c", IMPORT, str(tmp_path / "sent.zip")], capture_output=True, text=True,
                          check=False, cwd=tmp_path, env={})
    assert done.returncode == 0, done.stderr
    counts, file, package, source, collects = json.loads(done.stdout)
    # The first two are found before the finder is there.
    assert {name: counts[name] for name in names[2:]} == dict.fromkeys(names[2:], 1)
    assert file == f"{tmp_path}/sent.zip/{PACKAGE}/_facts/root.py"
    assert package.endswith("module_utils._facts")
    assert source == (MODULE_UTILS / "_facts" / "root.py").read_text()
    assert not collects


def test_other_processes_collect_garbage() -> None:
    """The processes of the controller, which run many tasks, import the same modules from folders."""
    words = f"import gc; from {PACKAGE.replace('/', '.')} import _module_main; print(gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"

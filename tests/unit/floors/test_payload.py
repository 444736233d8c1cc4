# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The size of what each task sends to a host: little more than an empty module, which is 163 KB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MODULES = Path(__file__).parents[3] / "plugins" / "modules"
EMPTY = """from ansible.module_utils.basic import AnsibleModule

AnsibleModule(argument_spec={}).exit_json()
"""
# In a process of its own, because Ansible's plugin loader takes over imports.
MEASURE = """
import json, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([])
from ansible.executor.module_common import modify_module
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
sizes = {}
for name, path in json.loads(sys.argv[1]).items():
    built = modify_module(module_name=name, module_path=path, module_args={}, templar=Templar(DataLoader()),
                          task_vars={"ansible_python_interpreter": "/usr/bin/python3"},
                          module_compression="ZIP_DEFLATED")
    sizes[name] = len(built.b_module_data)
print(json.dumps(sizes))
"""
# KB. Which package manager and which source of drivers a host has is known there only: these modules bring them all,
# with the program that reads keys by apt's own methods, and import those they need. mig_config brings the program that
# puts MIG back at boot, too; gpu_info brings what judges the journals and reads the health of GPUs.
LIMIT, LIMITS = 100, {"nvidia_driver": 318, "nvidia_software": 197, "container_toolkit": 176, "mig_config": 134,
                      "gpu_info": 136}


def test_payloads(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text(EMPTY)
    modules = {f"ansible_collections.gpuops.nvidia.plugins.modules.{path.stem}": str(path)
               for path in sorted(MODULES.glob("[a-z]*.py"))
               if "def main" in path.read_text()}  # the others are the documentation of an action
    done = subprocess.run([sys.executable, "-c", MEASURE, json.dumps({"empty": str(tmp_path / "empty.py"), **modules})],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    empty = sizes.pop("empty")
    over = {name: size - empty for name, size in sizes.items()}
    print(over)
    assert over and all(0 < size <= 1024 * LIMITS.get(name.rsplit(".", 1)[-1], LIMIT)
                        for name, size in over.items()), (empty, over)

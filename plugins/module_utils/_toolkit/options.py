# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of container_toolkit that describe files, for the module and its action plugin. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Option

# The names of the runtimes, in the order in which `auto` prefers them.
RUNTIMES = ("k3s", "rke2", "k0s", "microk8s", "docker", "containerd", "crio", "podman")
# Instead of names: one or all of the installed runtimes.
CHOOSING = ("auto", "all")
# The names of the vendor for its runtime classes: that of the option nvidia_runtime_name, and those of the modes.
RUNTIME_CLASSES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
# The parts of a runtime's file that runs can set, besides runtime classes: options that are enabled.
OPTION_PARTS = ("set_as_default", "cdi", "nri")
OF_FILES: t.Dict[str, Option] = {
    "runtime": {"type": "list", "elements": "str", "default": ["auto"], "choices": [*CHOOSING, *RUNTIMES]},
    "config_path": {"type": "path"},
    "drop_in_path": {"type": "path"},
    "set_as_default": {"type": "bool", "default": False},
    "nvidia_runtime_name": {"type": "str", "default": "nvidia"},
    "nvidia_runtime_path": {"type": "path"},
    "cdi": {"type": "bool", "default": True},
    "nri": {"type": "bool", "default": False},
    "rootless_users": {"type": "list", "elements": "str", "default": []},
    "settings": {"type": "dict", "default": {}},
    "mode": {"type": "str", "choices": ["auto", "cdi", "legacy"], "default": "auto"},
}

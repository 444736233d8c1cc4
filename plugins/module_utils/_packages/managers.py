# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package managers, by family of distributions."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt import Apt
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Manager
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf import Dnf
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper import Zypper

# Each is created with a runner and, optionally, lock_timeout.
MANAGERS: t.Dict[str, t.Callable[..., Manager]] = {"debian": Apt, "redhat": Dnf, "suse": Zypper}

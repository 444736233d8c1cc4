# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as they exist in practice: other distributions, hardware that hangs, full disks, values that the kernel
refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.rollback import Former, recall, remember
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

from tests.unit.driver.conftest import Made


@pytest.mark.parametrize(("system", "packages", "former"), [
    (("ubuntu", "20.04", "debian"), "", Former(None)),
    (("arch", "", "other"), "", Former(None)),
    # its repository's fingerprint has to be given, and a driver from the archive needs none
    (("debian", "13", "debian"), "", Former(None)),
    (("debian", "13", "debian"), "libcuda1\tamd64\t550.163.01-2\tii \n",
     Former("550.163.01", None, "distribution", False, installation="compute-only")),
    (("debian", "13", "debian"), "nvidia-driver-cuda\tamd64\t595.91.07-1\tii \n",
     Former("595.91.07", None, "cuda_repository", False, installation="compute-only")),
])
def test_what_a_host_had_is_read_where_no_repository_serves_it(
        made: Made, system: tuple[str, str, str], packages: str, former: Former) -> None:
    made.answers = {"dpkg-query -W": (0, packages)}
    os_id, os_version, family = system
    now = replace(made.now, os_id=os_id, os_version=os_version, family=family)
    remember(Host(Spec(source="runfile"), made.run, Root(str(made.folder)), made.journal), now)
    assert recall(made.journal) == former

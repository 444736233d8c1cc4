# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host without SSH access for root: an ordinary user becomes root by sudo, with a password and only from a
terminal."""

from __future__ import annotations

import pytest

from lab.stages import ROOT
from tests.integration import user
from tests.integration.conftest import own_lab

HOST = "gpu-b1"


@pytest.mark.timeout(1800)
def test_site_by_an_ordinary_user() -> None:
    with own_lab("become", f"{HOST}=a100-80:1@debian12user") as lab:
        before = lab.snapshot(HOST)

        def run(playbook: str, *words: str) -> user.Run:
            done = user.playbook(playbook, lab.hosts, *words, gpu_disruption="idle",
                                 gpu_policy=str(ROOT / "lab" / "demo" / "policy.yml"))
            assert done.rc == 0, done.output
            return done

        first = run("site")
        assert first.steps(HOST) and first.changed(HOST)
        assert lab.sh(HOST, "nvidia-smi --query-gpu=driver_version --format=csv,noheader").strip() == "595.91.07"
        # Nobody but root changes or needs what the run has written; others can read what they look at.
        assert lab.sh(HOST, "find /etc /usr/local /var/lib/gpuops -user deploy") == ""
        lab.sh(HOST, "su deploy -c 'nvidia-smi -L'")
        again = run("site", "--diff")
        assert again.changed(HOST) == [] and again.steps(HOST) == {}
        run("remove")
        assert lab.snapshot(HOST) == before
        assert lab.sh(HOST, "find /home/deploy/.ansible /tmp -mindepth 2 -name 'ansible-*'") == ""

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of mig_config for GPUs that need not exist."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import shown, work
from ansible_collections.gpuops.nvidia.tests.unit.mig.model import Model
from ansible_collections.gpuops.nvidia.tests.unit.mig.test_work import go, ids


def test_rendered_needs_no_gpu() -> None:
    result = go(Model(), "all-balanced", state="rendered", devices=["NVIDIA H200", "20b7"])
    assert ids(result) == ["enable MIG mode: gpu0",
                           "create MIG instances: gpu0 3g.71gb at 4, 2g.35gb at 0, 1g.18gb at 2,3",
                           "enable MIG mode: gpu1", "create MIG instances: gpu1 2g.12gb at 0, 1g.6gb at 2,3"]
    assert result["changed"] is False
    with pytest.raises(InputError, match="'RTX 9999' is not a known GPU"):
        go(Model(), "all-balanced", state="rendered", devices=["RTX 9999"])
    with pytest.raises(InputError, match="'A100' is not a known GPU.*A100-SXM4-40GB, A100-PG509-200, .*A100 80GB PCIe"):
        go(Model(), "all-balanced", state="rendered", devices=["A100"])


@pytest.mark.parametrize("word, words", [("H200", []), ("2330", []), ("nvidia h100 nvl", []), (
    "H100", ["H100 is planned as PCI device 2339. Models with similar names have other profiles: "
             "H100 80GB HBM3, H100 PCIe."])])
def test_a_word_that_means_several_boards_is_said(word: str, words: list[str]) -> None:
    request = work.Request("rendered", None, "all-balanced", [word], "never", False)
    job = shown.ReadOnlyRun(request, Model())  # type: ignore[arg-type]
    assert len(job.run()["plan"]) == 2 and job.warnings == words

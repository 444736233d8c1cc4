# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run


def test_output_locale_and_input() -> None:
    done = run(["sh", "-c", "echo $LC_ALL; cat"], stdin="in")
    assert (done.rc, done.stdout) == (0, "C\nin")


def test_a_failure_names_command_code_and_output() -> None:
    with pytest.raises(CommandError) as caught:
        run(["sh", "-c", "echo why >&2; exit 3"], hint="Do that.")
    assert "exit code 3: why. Do that." in str(caught.value)
    assert caught.value.as_result()["error"]["rc"] == 3


def test_a_missing_program_is_127() -> None:
    assert run(["no-such-program-here"], check=False).rc == 127


def test_time_runs_out() -> None:
    with pytest.raises(CommandError, match="ran out of time"):
        run(["sleep", "5"], timeout=0.2)


def test_an_input_error_names_the_place() -> None:
    error = InputError("'5.5' is no version.", "Use 595.91.07.", path="spec.driver.version", value="5.5")
    assert str(error) == "spec.driver.version: '5.5' is no version. Use 595.91.07."


def test_a_program_that_cannot_be_started_is_126(tmp_path: Path) -> None:
    """A file that is not executable, or that is for another architecture."""
    (tmp_path / "nvidia-smi").write_text("")
    assert run([str(tmp_path / "nvidia-smi")], check=False).rc == 126

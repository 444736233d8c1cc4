# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How every module ends, with any user input and any host."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._module_main import finish


class Ended(Exception):
    """Raised when the module has printed its result."""


class Module:
    """The part of AnsibleModule that finish uses."""

    _diff = False

    def fail_json(self, **result: t.Any) -> None:
        raise Ended(result)

    exit_json = fail_json


def ended(work: t.Callable[[], dict[str, t.Any]]) -> dict[str, t.Any]:
    with pytest.raises(Ended) as caught:
        finish(t.cast(t.Any, Module()), work)
    return t.cast("dict[str, t.Any]", caught.value.args[0])


def test_a_state_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    """The error names what is in its place."""
    (tmp_path / "gpuops").write_text("in the way")

    def work() -> dict[str, t.Any]:
        with Journal("driver", root=str(tmp_path / "gpuops/journal")):
            return {}

    result = ended(work)
    assert result["error"]["kind"] == "journal" and f"{tmp_path}/gpuops is not a folder." in result["msg"]


def test_what_is_installed_is_for_all_users(tmp_path: Path) -> None:
    """root on a hardened host has umask 077, so only root could read folders and files that package scripts write."""
    path = tmp_path / "lib/python/pynvml.py"

    def work() -> dict[str, t.Any]:
        with Journal("driver", root=str(tmp_path / "journal")) as journal:
            journal.write_file(str(path), b"")
        return {}

    before = os.umask(0o077)
    try:
        ended(work)
    finally:
        os.umask(before)
    assert [oct(one.stat().st_mode & 0o777) for one in (path, path.parent, path.parent.parent)] == [
        "0o644", "0o755", "0o755"]


def test_a_message_that_quotes_something_very_long_is_cut() -> None:
    """A long word of a file, or a long number in a document."""
    def work() -> dict[str, t.Any]:
        raise HostError(f"{'x' * 100_000} is no word.", "Mend the file.")

    result = ended(work)
    assert len(result["msg"]) < 9000 and result["msg"].endswith("more characters. Mend the file.")
    assert result["error"]["message"] in result["msg"]

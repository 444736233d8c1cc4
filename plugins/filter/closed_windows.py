# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter closed_windows: until when all maintenance windows are closed."""

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import windows


def closed_windows(given: object, now: float | None = None) -> str:
    """Why nothing may be begun now, empty if a window is open or there is none. now: seconds since 1970, by default the
    present time. Raises AnsibleFilterError if a window is not valid."""
    try:
        return windows.closed(windows.parse(given), time.time() if now is None else now)
    except InputError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """How Ansible finds the filter."""

    def filters(self) -> dict[str, t.Callable[..., str]]:
        """Maps the names of the filters to their functions."""
        return {"closed_windows": closed_windows}

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where AnsibleModule meets the domains: the one place that turns errors into fail_json.

A module imports this before all else of ours, as what comes after it is then compiled once only.
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils import _imports  # noqa: F401 # pylint: disable=unused-import
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, refused
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

DISRUPTION: dict[str, t.Any] = {"type": "str", "choices": list(LEVELS), "default": "never"}
# An option that is an address. It is not logged: what is secret in it is known only after the invocation was logged.
ADDRESS: dict[str, t.Any] = {"type": "str", "no_log": True}


def hide(module: AnsibleModule, *addresses: str | None) -> None:
    """Of addresses in options of the type L(ADDRESS), only what is secret stays out of results.

    That is a user, a password or a token before the host, and a query, which may be a signature. An address with such a
    part is not shown as a whole; others are shown.
    """
    for address in filter(None, addresses):
        secrets = re.findall(r"://([^/@]+)@", address)
        secrets += [address.partition("?")[2]] if "://" in address and "?" in address else []
        if not any(secrets):
            module.no_log_values.discard(address)
        module.no_log_values.update(filter(None, secrets))


def finish(module: AnsibleModule, work: t.Callable[[], dict[str, t.Any]]) -> None:
    """Runs work and ends the module with its result, or with the one error that it raised."""
    os.umask(0o022)  # what packages and we install is for all users; secrets have modes of their own
    try:
        result = work()
    except GpuopsError as error:
        module.fail_json(**error.as_result())
    except OSError as error:
        module.fail_json(**refused(error).as_result())
    if not module._diff:
        result.pop("diff", None)
    module.exit_json(**result)

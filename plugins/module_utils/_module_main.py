# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a module, and converts errors to fail_json.

A module must import this before other modules of the collection, see L(_imports).
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.nvidia.plugins.module_utils import _imports  # noqa: F401 # pylint: disable=unused-import
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, refused
from ansible_collections.gpuops.nvidia.plugins.module_utils._nulls import without_nulls
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS, Option, Result

DISRUPTION: Option = {"type": "str", "choices": list(LEVELS), "default": "never"}
# The type of an option with a URL. It is not logged: Ansible logs options before L(hide) knows the secrets in it.
ADDRESS: Option = {"type": "str", "no_log": True}


class Module(AnsibleModule):
    """An C(AnsibleModule) that takes options and suboptions that are null as omitted."""

    def _load_params(self) -> None:
        """Called before the arguments are validated, because a null would not have the type of its option."""
        super()._load_params()
        self.params: dict[str, t.Any] = without_nulls(self.params, self.argument_spec)


def hide(module: AnsibleModule, *addresses: str | None) -> None:
    """Hides only the secrets in URLs from results, instead of all options of the type L(ADDRESS).

    Secrets are a user, password or token before the host, and a query, which may be a signature. A URL with a secret is
    also hidden as a whole.
    """
    for address in filter(None, addresses):
        secrets = re.findall(r"://([^/@]+)@", address)
        secrets += [address.partition("?")[2]] if "://" in address and "?" in address else []
        if not any(secrets):
            module.no_log_values.discard(address)
        module.no_log_values.update(filter(None, secrets))


def finish(module: AnsibleModule, work: t.Callable[[], Result]) -> None:
    """Runs work, and ends the module with its result or error."""
    os.umask(0o022)  # all users may read installed files; files with secrets have explicit modes
    try:
        result = work()
    except GpuopsError as error:
        module.fail_json(**error.as_result())
    except OSError as error:
        module.fail_json(**refused(error).as_result())
    if not module._diff:
        result.pop("diff", None)
    module.exit_json(**result)

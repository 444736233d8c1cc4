# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of container_toolkit that name runtimes, and the variables with the same meaning. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import (
    CHOOSING,
    OPTION_PARTS,
    RUNTIME_CLASSES,
    RUNTIMES,
)

# A runtime class is the handler of a RuntimeClass, which must be an RFC 1123 label (Kubernetes, RuntimeClass).
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
# Docker, containerd and CRI-O have the low-level runtimes. The others are the vendor's, or names in our journal.
_RESERVED = ("runc", "crun", *RUNTIME_CLASSES[1:], *OPTION_PARTS)


def names_in(value: object) -> list[str]:
    """The names in a list, or in a text that is split at commas as Ansible does it. Without a value, only `auto`."""
    if isinstance(value, (list, tuple)):
        return [str(name) for name in value]
    return str(value).split(",") if value else ["auto"]


def choose(wanted: t.Collection[str], running: t.Mapping[str, t.Optional[bool]], only_docker: bool, kubelet: bool
           ) -> list[str]:
    """The runtimes that `auto` or `all` in wanted means.

    running: of the installed ones, whether each runs; only_docker: whether containerd has no CRI plugin, so that it
    only serves Docker; kubelet: whether a kubelet is configured on the host. `auto` chooses the first running runtime,
    otherwise the first installed one. A containerd that only serves Docker comes last, even if it is running, and `all`
    omits it if Docker is installed.
    """
    last = "containerd" if only_docker else None
    found = [name for name in RUNTIMES if name in running]
    found.sort(key=lambda name: (name == last, not running[name], kubelet and name == "docker"))
    if "all" not in wanted:
        return found[:1]
    return [name for name in found if name != last or "docker" not in running]


def check(names: t.Sequence[str], path: str = "runtime", **paths: object) -> None:
    """Raises InputError for names that exclude each other.

    path: the option or variable with the names. paths: the values of options that belong to one runtime.
    """
    given, allowed = list(names), [*CHOOSING, *RUNTIMES]
    choosing = [name for name in given if name in CHOOSING]
    twice = next((name for name in given if given.count(name) > 1), None)
    if not given:
        raise InputError("no runtime is named.", "Name at least one runtime, or set auto or all.", path=path,
                         value=given, allowed=allowed)
    if twice:
        raise InputError(f"{twice} is named twice.", "Name each runtime once.", path=path, value=given, allowed=allowed)
    if choosing and len(given) > 1:
        raise InputError(f"{choosing[0]} excludes other names.",
                         f"Set only {choosing[0]}, or only names of runtimes.", path=path, value=given, allowed=allowed)
    if len(given) == 1 and given != ["all"]:
        return
    for option, value in paths.items():
        if value:
            raise InputError(f"it is the path of one runtime, but {path} is {', '.join(given)}.",
                             f"Omit {option}, or configure the runtime with this path in a task of its own.",
                             path=option, value=value, allowed=f"only if {path} is auto or one name")


def check_nvidia_runtime(name: str, path: str | None, mode: str, prefix: str = "") -> None:
    """Raises InputError for an invalid name or path of the NVIDIA runtime.

    prefix: of the variables, empty for the options of the module.
    """
    if not _LABEL.fullmatch(name) or name in _RESERVED:
        why = "the name is reserved." if name in _RESERVED else "it is not a name of a runtime class in Kubernetes."
        raise InputError(why, "Choose a name such as nvidia or nvidia-gpu.", path=f"{prefix}nvidia_runtime_name",
                         value=name, allowed="at most 63 lower-case letters, digits and inner hyphens, except "
                         + ", ".join(_RESERVED))
    if path and not path.startswith("/"):
        raise InputError("the path is not absolute.", "Set the absolute path of a program on the host.",
                         path=f"{prefix}nvidia_runtime_path", value=path, allowed="an absolute path")
    if path and mode != "auto":
        raise InputError(f"{prefix}mode {mode} also sets the program of the runtime.",
                         f"Omit {prefix}nvidia_runtime_path, or set {prefix}mode to auto.",
                         path=f"{prefix}nvidia_runtime_path", value=path, allowed=f"only if {prefix}mode is auto")


def check_rootless(users: t.Sequence[str], cdi: bool, mode: str) -> None:
    """Raises InputError for users that are named twice, and for options that rootless containers cannot use."""
    twice = next((name for name in users if users.count(name) > 1 or not name), None)
    if twice is not None:
        raise InputError("a user has no name, or is named twice.", "Name each user once.", path="rootless_users",
                         value=list(users), allowed="names of users of the host, except root")
    if users and (not cdi or mode == "legacy"):
        option = "mode" if mode == "legacy" else "cdi"
        raise InputError("rootless containers get GPUs only through CDI.", f"Set {option} to "
                         f"{'auto' if option == 'mode' else 'true'}, or omit rootless_users.", path=option,
                         value=mode if option == "mode" else cdi, allowed="auto or cdi" if option == "mode" else True)

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options for the driver, and their validation for the GPUs of the host. Pure."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import Model
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError

VERSION = re.compile(r"\d{3}\.\d+(\.\d+)?\Z")
BRANCH = re.compile(r"\d{3}\Z")
# NVIDIA Driver Installation Guide 620: "Proprietary Kernel Modules Removed".
_LAST_PROPRIETARY = 619
# The first release of NVIDIA/open-gpu-kernel-modules.
_FIRST_OPEN = 515
# Since this branch, the vendor's installer chooses the open modules by default (release notes of R560).
OPEN_BY_DEFAULT_FROM = 560

# The options that have no effect on a driver that is only verified, each with its variable of the role.
INSTALLS_ONLY: t.Dict[str, str] = {
    "kernel_module_type": "driver_kernel_module_type", "source": "driver_source", "installation": "driver_installation",
    "repository": "driver_repository_url", "runfile": "driver_runfile_src", "imex_nodes": "driver_imex_nodes",
    "fabric_manager_settings": "driver_fabric_manager_settings", "peermem": "driver_peermem", "gds": "driver_gds",
    "gdrcopy": "driver_gdrcopy", "module_parameters": "driver_module_parameters",
    "module_signing": "driver_signing_key", "hold_kernel": "driver_hold_kernel", "licence": "driver_licence_token",
    "image": "driver_image",
}


class LicenceOptions(t.TypedDict, total=False):
    """The option C(licence)."""

    token: t.Optional[str]
    feature_type: t.Optional[int]
    settings: t.Optional[t.Mapping[str, object]]


@dataclass(frozen=True)
class Spec:
    """The options of the module. kernel_module_type: C(auto), C(open) or C(proprietary). installation: C(auto), C(full)
    or C(compute-only). fabric: C(auto) or C(none).

    repository: C({url, key, fingerprint}). fabric_manager_settings: C({NAME: value}). module_parameters: C({module:
    {parameter: value}}). module_signing: C({key, certificate, password}). licence: C({token, feature_type, settings}).
    runfile: C({src, checksum}). All keys are optional; the part that uses a mapping validates it. next_kernel: whether
    modules are also built for the newest installed kernel. hold_kernel: whether upgrades of packages must not install
    another kernel. lock_timeout: maximum seconds to wait for a lock. image: whether the host is an image without a GPU.
    image_gpus: the models of its GPUs, by NVML's name or PCI device id.
    """

    version: str | None = None
    branch: str | None = None
    kernel_module_type: str = "auto"
    source: str = "auto"
    installation: str = "auto"
    repository: t.Mapping[str, str] | None = None
    persistenced: bool = True
    fabric: str = "auto"
    imex_nodes: t.Sequence[str] = ()
    fabric_manager_settings: t.Mapping[str, object] | None = None
    peermem: bool = False
    gds: bool = False
    gdrcopy: bool = False
    module_parameters: t.Mapping[str, t.Mapping[str, object]] | None = None
    module_signing: t.Mapping[str, str] | None = None
    next_kernel: bool = True
    hold_kernel: bool = False
    licence: LicenceOptions | None = None
    lock_timeout: int = 120
    runfile: t.Mapping[str, str] | None = None
    image: bool = False
    image_gpus: t.Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.lock_timeout < 0:
            raise InputError(f"{self.lock_timeout} is not a number of seconds.",
                             "Set 0 (do not wait) or a positive number.", path="lock_timeout", value=self.lock_timeout)
        if self.version and not VERSION.match(self.version):
            raise InputError(f"'{self.version}' is not a driver version.",
                             "Set a version such as 595.91.07, or set branch instead.", path="version",
                             value=self.version)
        if self.branch and not BRANCH.match(self.branch):
            raise InputError(f"'{self.branch}' is not a driver branch.", "Set a number of three digits, such as 595.",
                             path="branch", value=self.branch)
        if self.version and self.branch and branch_of(self.version) != int(self.branch):
            raise InputError(f"Version {self.version} is not of branch {self.branch}.", "Set only one of them.",
                             path="branch", value=self.branch, allowed=[str(branch_of(self.version))])

    def accepts(self, version: str | None) -> bool:
        """Whether a vendor version satisfies the options. version: None if no driver is installed."""
        if version is None:
            return False
        if self.version:
            return version == self.version
        return not self.branch or branch_of(version) == int(self.branch)

    def wanted(self) -> str:
        """The desired version or branch as text for messages."""
        return self.version or (f"branch {self.branch}" if self.branch else "any version")


def is_set(value: object) -> bool:
    """Whether the value of an option or variable is not its default."""
    if isinstance(value, t.Mapping):
        return any(inner is not None for inner in value.values())
    return value not in (None, "", "auto", False, [], ())


def branch_of(version: str) -> int:
    """The branch of a vendor version, such as 595 for C(595.91.07); 0 for other versions."""
    found = re.match(r"([0-9]{1,9})(\.|\Z)", version)
    return int(found.group(1)) if found else 0


def kernel_module_type(spec: Spec, gpus: t.Sequence[tuple[str, Model | None]]) -> str:
    """The module type for all GPUs of a host: C(open) or C(proprietary). gpus: C((PCI address, model)) of each GPU.

    Unknown models (None) are newer than this collection, so open modules support them. Raises InputError if the desired
    type does not support a GPU, and HostError if no type supports all of them.
    """
    not_open, only_open = ([f"{address} ({model.name or model.architecture})" for address, model in gpus
                            if model is not None and model.open_modules == need] for need in ("no", "required"))
    if not_open and only_open:
        raise HostError(f"No kernel module type supports all GPUs: {', '.join(not_open)} need proprietary modules, "
                        f"{', '.join(only_open)} need open ones.", "Move the GPUs of one type to another host.")
    if spec.kernel_module_type == "open" and not_open:
        raise InputError(f"open modules do not support {', '.join(not_open)}.", "Use auto or proprietary.",
                         path="kernel_module_type", value="open", allowed=["auto", "proprietary"])
    if spec.kernel_module_type == "proprietary" and only_open:
        raise InputError(f"proprietary modules do not support {', '.join(only_open)}.", "Use auto or open.",
                         path="kernel_module_type", value="proprietary", allowed=["auto", "open"])
    if spec.kernel_module_type != "auto":
        return spec.kernel_module_type
    requested = spec.version or spec.branch
    if not_open or (requested and branch_of(requested) < OPEN_BY_DEFAULT_FROM and not only_open and not spec.gds):
        return "proprietary"
    return "open"


def check_version(version: str, flavour: str, gpus: t.Sequence[tuple[str, Model | None]]) -> None:
    """Raises InputError if a version or branch (C(595)) does not support the GPUs with this module type."""
    branch = branch_of(version)
    for address, model in gpus:
        if model is not None and model.last_branch is not None and branch > model.last_branch:
            raise InputError(f"Branch {branch} does not support {model.name or model.architecture} at {address}.",
                             f"Set branch to {model.last_branch}, the last one that supports it.",
                             path="version", value=version, allowed=f"branches up to {model.last_branch}")
        # For other models, first_driver can be the first driver that supports MIG.
        if model is not None and model.open_modules == "required" and branch < branch_of(model.first_driver or "0"):
            raise InputError(f"Branch {branch} does not support {model.name or model.architecture} at {address}.",
                             f"Set version to {model.first_driver} or newer.",
                             path="version", value=version, allowed=f"{model.first_driver} and newer")
    if flavour == "open" and branch < _FIRST_OPEN:
        raise InputError(f"Driver branch {branch} has no open kernel modules.",
                         f"Use proprietary modules, or a branch from {_FIRST_OPEN} on.",
                         path="kernel_module_type", value=flavour, allowed=["proprietary"])
    if flavour == "proprietary" and branch > _LAST_PROPRIETARY:
        raise InputError(f"Driver branch {branch} has no proprietary kernel modules.",
                         f"Use open modules, or a branch up to {_LAST_PROPRIETARY}.",
                         path="kernel_module_type", value=flavour, allowed=["open"])

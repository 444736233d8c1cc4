# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of hosts: the driver is installed on a host without a GPU, for the GPUs that the options name.

Such a run plans no step that loads or unloads modules, or starts or stops services. The first boot on a host with GPUs
does this, by the list of modules for boot and the enabled services.
"""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import MODELS, Model, fabric_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.prebuilt import kernels
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import (
    DriverState,
    modinfo,
    module_flavour,
    read_driver_state,
    wrong_module,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError, nearest
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

# Exists while systemd is running (sd_booted(3)).
_SYSTEMD = "/run/systemd/system"


def named_gpus(spec: Spec) -> t.Tuple[t.Tuple[str, Model], ...]:
    """The models that the option image_gpus names, as in C(DriverState.gpus), with the path of the option instead of
    the PCI address. A name can stand for several models. Raises InputError for an unknown model."""
    found: list[tuple[str, Model]] = []
    for index, value in enumerate(spec.image_gpus):
        path, word = f"image_gpus[{index}]", str(value).strip().lower()
        models = [model for key, model in MODELS.items() if word and word in (key, (model.name or "").lower())]
        if not models:
            raise _unknown(path, value, word)
        found += [(path, model) for model in models]
    return tuple(found)


def _unknown(path: str, value: str, word: str) -> InputError:
    names = sorted({model.name for model in MODELS.values() if model.name})
    similar = [name for name in names if word and word in name.lower()] or [nearest(word, names, 0.3)]
    known = f"Similar ones are {', '.join(similar)}. " if similar[0] else ""
    return InputError(f"'{value}' is not a known model of a GPU.", f"{known}Use the name that nvidia-smi -L prints, or "
                      "the PCI device id of four digits, such as 2330.", path=path, value=value, allowed=names)


def read_state(spec: Spec, root: Root, run: Runner) -> DriverState:
    """The state of the driver. For an image, with the named GPUs instead of those of the host, and without Secure Boot:
    keys are enrolled in the firmware of each host that boots the image."""
    now = read_driver_state(root, run)
    if not spec.image:
        return now
    gpus = named_gpus(spec)
    models = [model for _path, model in gpus]
    return replace(now, gpus=gpus, secure_boot=None,
                   fabric=fabric_of(models, sum(model.fabric == "nvswitch" for model in models)))


def check_builder(spec: Spec, now: DriverState, root: Root) -> None:
    """Raises InputError for options that an image cannot have, and HostError for a host on which none can be built."""
    secrets = {"module_signing.key": (spec.module_signing or {}).get("key"),
               "licence.token": (spec.licence or {}).get("token")}
    for path in (path for path, value in secrets.items() if value):
        raise InputError("an image must not contain a secret.", "Omit it here, and set it in the first run on the "
                         "hosts that boot the image.", path=path)
    if not (spec.image_gpus or spec.version or spec.branch):
        raise InputError("nothing determines the driver of the image.",
                         "Set image_gpus to the models of the GPUs, or set version or branch.", path="image_gpus",
                         value=[])
    if now.modules:
        raise HostError("An image is built on a host on which no module of the driver is loaded, but here "
                        f"{', '.join(now.modules)} is.",
                        "Build the image on a host without a GPU, or set image to false on a host with GPUs.")
    if not root.exists(_SYSTEMD):
        raise HostError("systemd does not run here, as in a chroot or a container, so the kernel and the services of "
                        "the image are unknown.", "Boot the image in a virtual machine, as the builders of Packer for "
                        "virtual machines and clouds do.")


def disagreements(host: Host, now: DriverState, desired: DesiredDriver, packages: str | None) -> list[str]:
    """One sentence for each difference between the files of the image and the desired driver: the libraries, the
    packages, and the modules of each kernel. packages: see L(verify.disagreements)."""
    wanted = desired.version
    found = [] if now.library == wanted else [
        f"the libraries are {now.library}, not {wanted}" if now.library else "libnvidia-ml is not installed"]
    if packages is not None and packages != wanted:
        found.append(f"the packages are {packages}, not {wanted}")
    for kernel in kernels(host.root, now) if host.spec.next_kernel or not desired.dkms else [now.kernel]:
        version, flavour = modinfo(host.run, "version", kernel), module_flavour(host.run, kernel)
        if version != wanted:
            found.append(wrong_module(kernel, version, wanted).rstrip("."))
        elif flavour != desired.flavour:
            found.append(f"the module for kernel {kernel} is {flavour}, not {desired.flavour}")
    return found

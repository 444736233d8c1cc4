# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds the kernels of a host: upgrades bring no other kernel, for which the driver might have no modules.

Like the version of the driver, kernels are held by a file of this collection, and not by C(apt-mark hold),
C(dnf versionlock) or C(zypper addlock). So holds of administrators are never changed, and a removal restores exactly
the former state. No plugin is needed, and the headers of the running kernel can still be installed:

- apt: a file of preferences prefers the installed version (archive C(now)) of each package of a kernel, and of the
  metapackages that would bring the next kernel. C(apt-get upgrade), C(dist-upgrade) and unattended upgrades keep them
  back. It has no effect on packages that are not installed, such as headers, and needs no change for new packages.
- zypper: a file of system checks forbids kernels that are newer than those in /boot.
- dnf: see L(dnf_excludes), whose words the journal contains.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import dnf_excludes
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import write_atomic
from ansible_collections.gpuops.nvidia.plugins.module_utils._kernels import flavour_of, installed_kernels, newest
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import SETTINGS
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper_tools import CHECKS
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

HOLD = "hold kernels"
RELEASE = "release kernels"
# The kind of journal entries for a file of others that this collection edits.
KIND = "kernel_hold"
APT_FILE = "/etc/apt/preferences.d/gpuops-kernel.pref"
ZYPPER_FILE = f"{CHECKS}/gpuops-kernel.check"
_PATHS = {"debian": APT_FILE, "redhat": SETTINGS, "suse": ZYPPER_FILE}
# Ubuntu's metapackages, such as linux-generic, are from source packages linux-meta and linux-meta-FLAVOUR.
_APT_TEXT = b"""\
# Written by gpuops.nvidia: upgrades must not install another kernel.
Package: linux-image-* linux-headers-* linux-modules-* src:linux-meta*
Pin: release a=now
Pin-Priority: 1000
"""
# Packages with the version of the kernel, in addition to kernel-FLAVOUR, and those without a flavour in their names.
_SUSE_PARTS = ("base", "devel", "extra", "optional", "livepatch")
_SUSE_SHARED = ("devel", "macros", "source", "syms")
_TDNF = ("azurelinux", "mariner")
# Systems that update their kernel in another way, by a file that only these have.
_IMAGES = {"/run/ostree-booted": "rpm-ostree", "/usr/sbin/transactional-update": "transactional-update"}


def is_held(root: Root, now: DriverState) -> bool:
    """Whether the kernels are held as by this collection."""
    path = _PATHS.get(now.family, "")
    if path == SETTINGS:
        return dnf_excludes.holds(root.text(path) or "")
    return bool(path) and root.data(path) == _content(root, now)


def _content(root: Root, now: DriverState) -> bytes:
    """The content of the file that holds the kernels, for apt and zypper."""
    if now.family != "suse":
        return _APT_TEXT
    newer: dict[str, list[str]] = {}
    for release in {now.kernel, *installed_kernels(root)}:
        flavour = flavour_of(release, now.family)
        if flavour:
            newer.setdefault(flavour, []).append(release)
    lines = ["# Written by gpuops.nvidia: updates must not install another kernel."]
    for flavour, releases in sorted(newer.items()):
        # The release of a package ends with a number that the release of its kernel does not have.
        bound = f"{newest(releases)[:-len(flavour) - 1]}.99999"
        shared = (f"kernel-{part}{'' if flavour == 'default' else f'-{flavour}'}" for part in _SUSE_SHARED)
        lines += [f"conflicts:{package} > {bound}" for package in (
            f"kernel-{flavour}", *(f"kernel-{flavour}-{part}" for part in _SUSE_PARTS), *shared)]
    return "\n".join([*lines, ""]).encode()


def finding_headers(run: Runner, root: Root) -> Runner:
    """A runner whose dnf commands also find the headers of held kernels."""
    def call(argv: t.Sequence[str], **options: t.Any) -> Completed:
        words = dnf_excludes.with_headers(root.text(SETTINGS) or "") if argv[0] in ("dnf", "dnf4") else []
        return run([argv[0], *words, *argv[1:]], **options)
    return call


class KernelHold(Part):
    """Holds and releases the kernels. They are held first, even if GPU clients delay a change of the driver."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        root = self.host.root
        if not self.host.spec.hold_kernel:
            return self._release("prepare")
        _check_possible(root, now)
        path = _PATHS[now.family]
        if is_held(root, now):
            return []
        if path == SETTINGS and root.data(path) is None:
            raise HostError(f"{path} is missing.", "Reinstall the package dnf-data, or set hold_kernel to false.",
                            path=path)
        data = {} if path == SETTINGS else {"content": _content(root, now)}
        return [("prepare", Step(HOLD, path, "upgrades must not install another kernel", data=data))]

    def absent(self, now: DriverState) -> list[Phased]:
        """See L(Part)."""
        return self._release("configure")

    def _release(self, phase: str) -> list[Phased]:
        return [(phase, Step(RELEASE, path, "as it was before", data={"files": [path]}))
                for path in _PATHS.values() if self._is_recorded(path)]

    def _is_recorded(self, path: str) -> bool:
        return self.host.journal.get(KIND if path == SETTINGS else "file", path) is not None

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action == HOLD:
            if step.target == SETTINGS:
                self._exclude()
            else:
                self.host.journal.write_file(step.target, step.data["content"])
        elif step.action == RELEASE:
            if step.target == SETTINGS:
                self._include()
            else:
                self.host.journal.restore_file(step.target)
        else:
            return False
        return True

    def disagreements(self, now: DriverState, desired: DesiredDriver) -> list[str]:
        """See L(Part)."""
        held = not self.host.spec.hold_kernel or is_held(self.host.root, now)
        return [] if held else [f"upgrades can install another kernel, because {_PATHS[now.family]} does not hold it"]

    def _exclude(self) -> None:
        journal = self.host.journal
        text = self._without_own()
        kept = [word for word in dnf_excludes.excluded(text) if word in dnf_excludes.HELD]
        text, former, written = dnf_excludes.hold(text)
        journal.keep(KIND, SETTINGS, None)
        journal.note(KIND, SETTINGS, {"kept": kept, "former": former, "written": written})
        self._write(text)

    def _include(self) -> None:
        self._write(self._without_own())
        self.host.journal.forget(KIND, SETTINGS)

    def _without_own(self) -> str:
        """The text of dnf.conf without the words that this collection has added."""
        text = (self.host.root.data(SETTINGS) or b"").decode("utf-8", "surrogateescape")
        entry = self.host.journal.get(KIND, SETTINGS)
        return dnf_excludes.release(text, **entry["after"]) if entry and entry["after"] else text

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "surrogateescape")
        if data != (self.host.root.data(SETTINGS) or b""):
            write_atomic(self.host.root.at(SETTINGS), data)


def _check_possible(root: Root, now: DriverState) -> None:
    """Raises InputError if the kernels of this host cannot be held."""
    image = next((name for path, name in _IMAGES.items() if root.exists(path)), "")
    if image:
        why = f"{image} updates the system as a whole"
    elif now.family not in _PATHS or now.os_id in _TDNF:
        why = f"it is not supported for {now.os_id} yet"
    elif now.family == "suse" and flavour_of(now.kernel, now.family) is None:
        why = f"the package of {now.kernel} is not known"
    else:
        return
    raise InputError(f"The kernel of this host cannot be held: {why}.",
                     "Set hold_kernel to false, and hold the kernel with the tools of the distribution.",
                     path="hold_kernel", value=True, allowed=[False])

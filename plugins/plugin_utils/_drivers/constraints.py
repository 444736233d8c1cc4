# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The constraints that exclude drivers: requests of users, the GPUs, the system, the release. Pure. PRIVATE.

Their order is significant: of several explanations of the same length, the one with the first constraints is shown.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import packages
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.candidates import (
    ARCHITECTURES,
    Candidate,
    Universe,
    Version,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import ModelRequirements, Situation
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.solve import Constraint


@dataclass(frozen=True)
class Request:
    """The request for the driver of a host or pool, according to the policy and variables.

    version: None for any; by: the variable or key that sets the version, such as C(driver.version of FILE); key: the
    variable or key to change it; grid: whether it is a version of the vGPU guest driver; flavour: C(auto), C(open) or
    C(proprietary); flavour_by: the variable or key that sets the flavour; source: None for any; source_by: the variable
    that sets the source; gds, gdrcopy, peermem: whether these are installed as well; gds_by, gdrcopy_by: the variables
    or keys that set them; gds_open: whether this
    version of GPUDirect Storage needs open modules; mig: the selected layout; cuda: the CUDA version that the driver
    must support; vgpu: whether the guest driver is requested; own_image: whether the image is not in the vendor's
    repository; own_key: whether modules are signed with a key of the user; runfile: whether the user sets a .run file;
    fabric: whether the services of the fabric must run; cluster: whether the driver runs in containers, otherwise on
    the host.
    """

    version: Version | None = None
    by: str = ""
    key: str = "driver.version"
    grid: bool = False
    flavour: str = "auto"
    flavour_by: str = "driver.kernelModuleType"
    precompiled: bool = False
    source: str | None = None
    source_by: str = "driver_source of this host"
    gds: bool = False
    gds_by: str = "gds.enabled"
    gds_open: bool = True
    gdrcopy: bool = False
    gdrcopy_by: str = "gdrcopy.enabled"
    peermem: bool = False
    mig: str | None = None
    cuda: str | None = None
    vgpu: bool = False
    own_image: bool = False
    own_key: bool = False
    runfile: bool = False
    fabric: bool = True
    cluster: bool = False

    @property
    def features(self) -> frozenset[str]:
        """The requested features of L(candidates.FEATURES)."""
        asked = {"gds": self.gds, "mig": self.mig, "cuda": self.cuda}
        return frozenset(name for name, value in asked.items() if value)


def constraints(space: Universe, situation: Situation, request: Request, release: Release) -> list[Constraint]:
    """All constraints for a host or pool, in the order in which explanations prefer them."""
    every = [*_requested(space, request), *_host(space, situation, request), *_gpus(space, situation, request),
             *_coherent(space, situation), _flavours(space, request), *_system(space, situation, request, release),
             *_fabric(space, situation, request), *_defaults(space, situation, request, release)]
    return [constraint for constraint in every if constraint.allows != space.all]


def _requested(space: Universe, request: Request) -> t.Iterator[Constraint]:
    """The constraints that result from requests of the user."""
    if request.version:
        change = f"{request.key}: {{branch}}" if request.key == "driver_branch" else f"{request.key}: {{version}}"
        if request.key == "driver_runfile_src":
            change = "a driver_runfile_src of {version}"
        yield Constraint("driver.version", f"{request.by} requests driver {request.version}",
                         space.where(lambda driver: driver.version == request.version), change)
    if request.flavour != "auto":
        value = "{switch}" if request.flavour_by == "driver.useOpenKernelModules" else "{flavour}"
        yield Constraint("driver.kernelModuleType", f"{request.flavour_by} requests {request.flavour} kernel modules",
                         space.where(lambda driver: driver.flavour == request.flavour),
                         f"{request.flavour_by.split(' ')[0]}: {value}")
    if request.precompiled:
        yield Constraint("driver.usePrecompiled", "driver.usePrecompiled requests precompiled modules",
                         space.where(lambda driver: driver.signed), "driver.usePrecompiled: false")
    if request.source:
        yield Constraint("driver.source", f"{request.source_by} requests {request.source}",
                         space.where(lambda driver: driver.signed == (request.source == "precompiled")
                                     and (driver.signed or driver.source == request.source)), "driver_source: {source}")
    if request.source == "runfile" and not request.runfile:
        yield Constraint("runfile", "a .run file has one version, so the complete version must be known",
                         space.where(lambda driver: driver.source != "runfile" or driver.version.text is not None),
                         "driver_runfile_src")
    if request.gds:
        needs = "open kernel modules" if request.gds_open else "kernel modules"
        yield Constraint("gds.enabled", f"{request.gds_by} (GPUDirect Storage) needs {needs} that are not precompiled",
                         space.where(lambda driver: driver.gds and not driver.signed
                                     and (driver.flavour == "open" or not request.gds_open)),
                         f"{request.gds_by}: false")
    if request.gdrcopy:
        yield Constraint("gdrcopy.enabled", f"{request.gdrcopy_by} needs kernel modules that are not precompiled",
                         space.where(lambda driver: not driver.signed), f"{request.gdrcopy_by}: false")
    if request.mig:
        yield Constraint("mig.layout", f"MIG layout {request.mig!r} is selected for this host",
                         space.where(lambda driver: driver.mig), "no mig_manager_selected")
    if request.cuda:
        yield _cuda(space, request.cuda)


def _cuda(space: Universe, level: str) -> Constraint:
    """The constraint of a requested CUDA version. With minor version compatibility, a driver that is new enough
    supports all minor versions of a CUDA major version."""
    major = version_key(level)[:1]
    first = releases.cuda_needs(level)

    def runs(driver: Candidate) -> bool:
        if first:
            return driver.version.key >= version_key(first)
        branch = releases.branch(driver.version.branch)
        return branch is None or branch.cuda is None or version_key(branch.cuda)[:1] >= major

    needs = f"needs driver {first} or newer" if first else "needs a newer driver than this collection knows"
    return Constraint("cuda.version", f"CUDA {level} (cuda.version) {needs}",
                      space.where(lambda driver: driver.cuda and runs(driver)), "cuda.version: {cuda}")


def _host(space: Universe, situation: Situation, request: Request) -> t.Iterator[Constraint]:
    """The constraints that an administrator can remove by a change on the host itself."""
    if situation.secure_boot == "signed" and not request.own_key:
        own = "" if request.cluster else ", driver_signing_key of this host"
        yield Constraint("secure_boot", "Secure Boot is on and no key of DKMS is enrolled, so only signed modules can "
                         "be loaded", space.where(lambda driver: driver.signed),
                         f"an enrolled key of DKMS (mokutil --import){own}, or Secure Boot off")
    if not situation.headers and not request.cluster:
        yield Constraint("kernel.headers", f"the headers of kernel {situation.kernel} are neither installed nor in "
                         "the index of the package manager: no modules can be built for it",
                         space.where(lambda driver: driver.signed), "a kernel whose headers are in the repositories")
    if situation.secure_boot and request.gds:
        yield Constraint("secure_boot", "GPUDirect Storage does not work while Secure Boot is on",
                         space.where(lambda driver: not driver.gds), "Secure Boot off")
    if request.vgpu and request.cluster:
        yield Constraint("vgpu", "driverType requests a vGPU driver, which is built in the container",
                         space.where(lambda driver: not driver.signed))
    # On a host, the version of the guest driver does not say where it comes from.
    if (situation.vgpu or request.vgpu) and not (request.grid and request.cluster):
        machine = "Node" if request.cluster else "host"
        what = f"this {machine} is a vGPU guest" if situation.vgpu else "driverType is vgpu"
        text = f"{what}: the guest driver is only in the NVIDIA Licensing Portal, not in a repository"
        if request.cluster:
            yield Constraint("driver.repository", text, space.all if request.own_image else 0,
                             "driver.repository with your own image of the guest driver")
        else:
            yield Constraint("vgpu", text, space.where(lambda driver: request.runfile and driver.source == "runfile"),
                             "driver_runfile_src with the guest driver of your licence")


def _gpus(space: Universe, situation: Situation, request: Request) -> t.Iterator[Constraint]:
    """The constraints of GPU architectures, followed by those of GPU models."""
    families: dict[str, list[ModelRequirements]] = {}
    for gpu in situation.gpus:
        if gpu.family and gpu.architecture:
            families.setdefault(gpu.family, []).append(gpu)
    for family, gpus in sorted(families.items()):
        known = gpus[0].architecture
        if known is not None:
            first = str(known.first_branch) if known.first_branch else None
            yield _gpu(space, f"gpu:{family}", " and ".join(gpu.name for gpu in gpus), known.open_modules, first,
                       known.last_branch, known if request.cuda else None, request.cuda)
    for gpu in situation.gpus:
        generation = gpu.architecture.open_modules if gpu.architecture else None
        own = gpu.open_modules if gpu.open_modules and gpu.open_modules != generation else "optional"
        if gpu.first or own != "optional":
            yield _gpu(space, f"gpu:{gpu.short}", gpu.name, own, gpu.first, None)


def _gpu(space: Universe, name: str, gpus: str, modules: str, first: str | None, last: int | None,
         known: releases.Architecture | None = None, cuda: str | None = None) -> Constraint:
    floor = version_key(first) if first else ()
    needed = {"no": "proprietary", "required": "open"}.get(modules)
    compiles = known is None or cuda is None or _compiles(known, cuda)

    def drives(driver: Candidate) -> bool:
        return ((needed is None or driver.flavour == needed) and driver.version.key >= floor
                and (last is None or driver.version.branch <= last) and (compiles or not driver.cuda))

    words = [f"{needed} kernel modules" if needed else "", f"driver {first} or newer" if first else "",
             f"a branch up to {last}" if last else "",
             "" if compiles else f"another CUDA than {cuda}"]
    asked = [word for word in words if word]
    text = " and ".join([", ".join(asked[:-1]), asked[-1]] if len(asked) > 1 else asked)
    return Constraint(name, f"{gpus} needs {text}", space.where(drives))


def _compiles(known: releases.Architecture, level: str) -> bool:
    """Whether the CUDA toolkit of a version (C(12.8), C(13)) compiles for a GPU architecture."""
    wanted = version_key(level)
    first, last = version_key(known.cuda[0]), known.cuda[1:]
    return wanted >= first[:len(wanted)] and all(wanted[:1] <= version_key(major) for major in last)


def _coherent(space: Universe, situation: Situation) -> t.Iterator[Constraint]:
    coherent = [gpu.short for gpu in situation.gpus if gpu.coherent]
    if coherent:
        first = releases.floor("coherent_memory")
        floor = version_key(first)
        yield Constraint("cdmm", f"{' and '.join(coherent)} with driver {first} or newer uses coherent driver memory "
                         "(CDMM), which excludes MIG and GPUDirect Storage",
                         space.where(lambda driver: driver.version.key < floor or not (driver.gds or driver.mig)))


def _flavours(space: Universe, request: Request) -> Constraint:
    known = releases.branch(request.version.branch) if request.version else None
    text = (f"branch {known.number} has {' and '.join(known.flavours)} kernel modules only" if known
            else "not every branch has both flavours of kernel modules")

    def has(driver: Candidate) -> bool:
        branch = releases.branch(driver.version.branch)
        return branch is None or driver.flavour in branch.flavours

    return Constraint("branch.flavours", text, space.where(has))


def _system(space: Universe, situation: Situation, request: Request, release: Release) -> t.Iterator[Constraint]:
    """The constraints that result from the drivers published for the machine, the operating system and the kernel."""
    if situation.arch and situation.arch not in ARCHITECTURES:
        yield Constraint("arch", f"drivers are published for {' and '.join(ARCHITECTURES)}, not for {situation.arch}",
                         0)
    elif situation.arch:
        yield Constraint("arch", f"the machine is {situation.arch}",
                         space.where(lambda driver: driver.arch == situation.arch))
    # Images that the user has built can be for systems that the vendor does not support.
    if situation.os is None or (request.cluster and request.own_image):
        return
    system, words = situation.os, " ".join(situation.os).strip()
    built = space.where(lambda driver: driver.signed or (
        packages.has_container(system, driver.arch) if request.cluster
        else packages.publishes(system, driver.source, driver.flavour, driver.version.branch)))
    precompiled = _signed(situation, request, release, {driver.version.branch for driver in space.candidates})
    # The vendor's images contain modules for x86_64 only; Canonical's packages contain them for both architectures.
    signed = space.where(lambda driver: not driver.signed or (
        driver.version.branch in precompiled and (driver.arch == ARCHITECTURES[0] or not request.cluster)))
    branches = " and ".join(str(number) for number in sorted(precompiled))
    limits = "driver containers for x86_64 only" if request.cluster else packages.limits(system)
    some = f"precompiled modules of branch {branches} only" if branches else "no precompiled modules"
    where = f" (release {release.version})" if request.cluster else ""
    has = [limits] * (built != space.all) + [f"{some}{where}"] * (signed != space.all)
    yield Constraint("os", f"{words} has {' and '.join(has)}" if built & signed else
                     f"no driver is published for {words}", built & signed)
    if situation.kernel:
        of_kernel = {number for number in precompiled if precompiled[number]}
        yield Constraint("kernel", f"there are no precompiled modules for kernel {situation.kernel}{where}",
                         space.where(lambda driver: not driver.signed or driver.version.branch in of_kernel))


def _signed(situation: Situation, request: Request, release: Release, branches: t.Collection[int]) -> dict[int, bool]:
    """The branches with precompiled modules for the system, each with whether this includes the kernel."""
    if situation.os is None:
        return {}
    if not request.cluster:
        return {number: packages.signed(situation.os, situation.kernel_flavour or "", number) for number in branches
                if packages.signed(situation.os, None, number)}
    flavours = sorted({str(flavour) for row in release.precompiled or () for flavour in row["flavours"]})
    return {number: releases.precompiled(release, number, *situation.os, situation.kernel_flavour, situation.kernel)
            for number in branches
            if any(releases.precompiled(release, number, *situation.os, flavour) for flavour in flavours)}


_WORDS = {"gds": "GPUDirect Storage", "gdrcopy": "GDRCopy"}


def _fabric(space: Universe, situation: Situation, request: Request) -> t.Iterator[Constraint]:
    fabric = situation.fabric
    if fabric in packages.FABRIC and request.fabric and not request.cluster:
        yield Constraint("nvswitch", "the NVSwitches of this host need a fabric manager of the driver's version",
                         space.where(lambda driver: packages.provides_all(
                             situation.os, driver.arch, driver.source, driver.version.named, packages.FABRIC[fabric])))
    beside = [kind for kind, asked in (("gds", request.gds), ("gdrcopy", request.gdrcopy)) if asked]
    if beside and not request.cluster:
        yield Constraint("packages", f"{' and '.join(_WORDS[kind] for kind in beside)} comes from NVIDIA's repository",
                         space.where(lambda driver: packages.provides_all(
                             situation.os, driver.arch, driver.source, driver.version.named, beside)))


def _defaults(space: Universe, situation: Situation, request: Request, release: Release) -> t.Iterator[Constraint]:
    """The defaults. They come last, so that explanations prefer other constraints.

    On a host that loads only signed modules, precompiled modules are used without a request.
    """
    signed_only = situation.secure_boot == "signed" and not request.own_key and not request.cluster
    if not request.precompiled and not request.source and not signed_only:
        yield Constraint("driver.usePrecompiled", "driver.usePrecompiled is false: modules are built on the host",
                         space.where(lambda driver: not driver.signed), "driver.usePrecompiled: true")
    if not request.source and not request.cluster:
        yield Constraint("driver.source", "a .run file is used only if it is requested",
                         space.where(lambda driver: driver.source != "runfile"), "driver_source: {source}")
    yield Constraint("release", f"release {release.version} supports drivers {', '.join(release.drivers)}",
                     space.where(lambda driver: driver.version == request.version
                                 or driver.version.text in release.drivers),
                     "{release}")

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each constraint excludes, one by one: exactly the listed drivers, and none if it does not apply."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.candidates import (
    IN_CLUSTER,
    ON_HOSTS,
    Candidate,
    Version,
    universe,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.constraints import Request, constraints
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import Situation, models
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import facts

V26 = releases.release("26.7.0")
VERSIONS = ("525.60.13", "535", "550.144.03", "570.148.08", "580.65.06", "580.173.02", "580", "595.91.07",
            "610.57.04", "999")
HOST = Situation((), ("ubuntu", "24.04"), "x86_64", "6.8.0-60-generic", "generic", True, None, None, False)
NOTHING, CLUSTER = Request(), Request(cluster=True)

Excluded = t.Callable[[Candidate], bool]


def excluded(name: str, here: Situation = HOST, wish: Request = NOTHING) -> tuple[set[Candidate], set[Candidate], str]:
    """All candidates, those that the constraints with this name exclude, and the texts of these constraints."""
    space = universe(tuple(Version.of(one) for one in VERSIONS), IN_CLUSTER if wish.cluster else ON_HOSTS,
                     wish.features)
    found = [one for one in constraints(space, here, wish, V26) if one.id == name]
    gone = {member for one in found for member in space.members(space.all & ~one.allows)}
    return set(space.candidates), gone, " / ".join(f"{one.text} [{one.change}]" for one in found)


def here(**changes: t.Any) -> Situation:
    """A host with these differences from L(HOST)."""
    return t.cast(Situation, HOST.__class__(**{**vars(HOST), **changes}))


def branch(one: Candidate) -> int:
    return one.version.branch


CASES: list[t.Any] = [
    # -- what is asked for
    ("driver.version", HOST, Request(version=Version.of("580"), by="x"), lambda one: one.version.named != "580"),
    ("driver.version", HOST, Request(), None),
    ("driver.kernelModuleType", HOST, Request(flavour="open"), lambda one: one.flavour != "open"),
    ("driver.kernelModuleType", HOST, Request(), None),
    ("driver.usePrecompiled", HOST, Request(precompiled=True), lambda one: not one.signed),
    ("driver.usePrecompiled", HOST, Request(), lambda one: one.signed),
    ("driver.usePrecompiled", HOST, Request(source="distribution"), None),
    ("driver.usePrecompiled", here(secure_boot="signed"), Request(), None),
    ("driver.usePrecompiled", here(secure_boot="signed"), Request(own_key=True), lambda one: one.signed),
    ("driver.usePrecompiled", here(secure_boot="signed"), CLUSTER, lambda one: one.signed),
    ("driver.source", HOST, Request(source="distribution"), lambda one: one.signed or one.source != "distribution"),
    ("driver.source", HOST, Request(source="precompiled"), lambda one: not one.signed),
    ("driver.source", HOST, Request(), lambda one: one.source == "runfile"),
    ("driver.source", HOST, Request(source="runfile"), lambda one: one.source != "runfile"),
    ("runfile", HOST, Request(source="runfile"), lambda one: one.source == "runfile" and one.version.text is None),
    ("runfile", HOST, Request(source="runfile", runfile=True), None),
    ("runfile", HOST, Request(), None),
    ("gds.enabled", HOST, Request(gds=True), lambda one: not one.gds or one.signed or one.flavour != "open"),
    ("gds.enabled", HOST, Request(gds=True, gds_open=False), lambda one: not one.gds or one.signed),
    ("gdrcopy.enabled", HOST, Request(gdrcopy=True), lambda one: one.signed),
    ("mig.layout", HOST, Request(mig="all-1g.10gb"), lambda one: not one.mig),
    # CUDA 12 needs 525, CUDA 13 needs 580; of a major that is not known a driver of that major or newer is needed.
    ("cuda.version", HOST, Request(cuda="12.4"), lambda one: not one.cuda),
    ("cuda.version", HOST, Request(cuda="13.0"), lambda one: not one.cuda or branch(one) < 580),
    ("cuda.version", HOST, Request(cuda="10.2"), lambda one: not one.cuda),
    ("cuda.version", HOST, Request(cuda="14"), lambda one: not one.cuda or branch(one) <= 610),
    # -- the host
    ("secure_boot", here(secure_boot="signed"), Request(), lambda one: not one.signed),
    ("secure_boot", here(secure_boot="signed"), CLUSTER, lambda one: not one.signed),
    ("secure_boot", here(secure_boot="signed"), Request(own_key=True), None),
    ("secure_boot", here(secure_boot="mok"), Request(), None),
    ("secure_boot", here(secure_boot="mok"), Request(gds=True), lambda one: one.gds),
    ("secure_boot", HOST, Request(gds=True), None),
    ("kernel.headers", here(headers=False), Request(), lambda one: not one.signed),
    ("kernel.headers", here(headers=False), CLUSTER, None),
    ("kernel.headers", HOST, Request(), None),
    # The guest driver of vGPU is in no repository: it needs a .run file of the licence portal, or an own image.
    ("vgpu", here(vgpu=True), Request(), lambda one: True),
    ("vgpu", here(vgpu=True), Request(runfile=True), lambda one: one.source != "runfile"),
    ("vgpu", here(vgpu=True), Request(grid=True), lambda one: True),
    ("vgpu", here(vgpu=True), Request(runfile=True, grid=True), lambda one: one.source != "runfile"),
    ("driver.repository", here(vgpu=True), Request(cluster=True, grid=True), None),
    ("vgpu", HOST, Request(vgpu=True), lambda one: True),
    ("vgpu", HOST, Request(vgpu=True, grid=True), lambda one: True),
    ("vgpu", HOST, Request(), None),
    ("driver.repository", here(vgpu=True), CLUSTER, lambda one: True),
    ("driver.repository", here(vgpu=True), Request(cluster=True, own_image=True), None),
    ("driver.repository", here(vgpu=True), Request(cluster=True, vgpu=True), lambda one: True),
    ("driver.repository", HOST, Request(cluster=True, vgpu=True), lambda one: True),
    ("driver.repository", HOST, Request(cluster=True, vgpu=True, own_image=True), None),
    ("driver.repository", HOST, Request(cluster=True, vgpu=True, grid=True), None),
    ("vgpu", HOST, Request(cluster=True, vgpu=True, own_image=True), lambda one: one.signed),
    ("vgpu", HOST, Request(cluster=True, vgpu=True, grid=True), lambda one: one.signed),
    # -- machine, system, kernel
    ("arch", HOST, Request(), lambda one: one.arch != "x86_64"),
    ("arch", here(arch="aarch64"), Request(), lambda one: one.arch != "aarch64"),
    ("arch", here(arch="ppc64le"), Request(), lambda one: True),
    ("arch", here(arch=None), Request(), None),
    # Driver containers with modules that come built: x86_64 alone, of the branches of the release.
    ("os", HOST, CLUSTER, lambda one: one.signed and (one.arch == "aarch64" or branch(one) not in (580, 595))),
    ("os", HOST, Request(cluster=True, own_image=True), None),
    ("os", here(os=None), CLUSTER, None),
    ("os", here(os=("rhel", "9.6")), CLUSTER, lambda one: one.signed or one.arch == "aarch64"),
    ("os", here(os=("debian", "12")), Request(), lambda one: one.signed or (
        one.source == "distribution" and branch(one) != 535)),
    ("kernel", here(kernel_flavour="lowlatency"), CLUSTER, lambda one: one.signed),
    ("kernel", here(kernel="7.1.0-1-generic"), CLUSTER, lambda one: one.signed),
    ("kernel", HOST, CLUSTER, lambda one: one.signed and branch(one) not in (580, 595)),
    ("kernel", here(kernel=""), CLUSTER, None),
    # -- the fabric: NVLink 5 needs NVLSM too, which Canonical's archive does not have, and none before branch 570
    ("nvswitch", here(fabric="nvswitch"), Request(), lambda one: one.source == "runfile"),
    ("nvswitch", here(fabric="nvlink5"), Request(), lambda one: one.source != "cuda_repository" or branch(one) < 570),
    ("nvswitch", here(fabric="nvlink5_rack"), Request(), None),
    ("nvswitch", here(fabric="nvlink5"), Request(fabric=False), None),
    ("nvswitch", here(fabric="nvlink5"), CLUSTER, None),
    ("nvswitch", HOST, Request(), None),
    ("os", here(os=("debian", "12")), Request(own_image=True), lambda one: one.signed or (
        one.source == "distribution" and branch(one) != 535)),
    ("kernel", here(kernel_flavour="odd"), Request(), lambda one: one.signed),
    ("kernel", here(kernel_flavour=None), Request(), lambda one: one.signed),
    ("packages", HOST, Request(gds=True), lambda one: one.source != "cuda_repository"),
    ("packages", HOST, Request(gdrcopy=True), lambda one: one.source != "cuda_repository"),
    ("packages", HOST, Request(cluster=True, gds=True), None),
    ("packages", HOST, Request(), None),
    # -- what nobody has asked for
    ("release", HOST, Request(), lambda one: one.version.text not in V26.drivers),
    ("release", HOST, Request(version=Version.of("570.148.08")), lambda one: one.version.text not in (
        *V26.drivers, "570.148.08")),
]


@pytest.mark.parametrize(("name", "situation", "wish", "predicate"), CASES,
                         ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)])
def test_exactly_these_are_excluded(name: str, situation: Situation, wish: Request, predicate: Excluded | None) -> None:
    space, gone, text = excluded(name, situation, wish)
    wanted = {one for one in space if predicate is not None and predicate(one)}
    assert gone == wanted, text
    assert bool(text) == (predicate is not None)


@pytest.mark.parametrize(("arch", "expected"), [("x86_64", True), ("aarch64", True)])
def test_canonicals_modules_are_there_for_both_machines(arch: str, expected: bool) -> None:
    space, gone, _text = excluded("os")
    kept = [one for one in space - gone if one.signed and one.arch == arch]
    assert bool(kept) == expected
    assert {branch(one) for one in kept} <= {535, 550, 570, 580, 595}


OLDER = ("390", "470", "520", "525", "525.85.12", "570.124", "570.133.20")


def of_gpus(wish: Request, *devices: str) -> tuple[set[Candidate], set[Candidate], str]:
    """The same as L(excluded) for the requirements of GPUs, including older drivers."""
    space = universe(tuple(Version.of(one) for one in (*OLDER, *VERSIONS)), ON_HOSTS, wish.features)
    gpus = tuple(models(facts(list(devices))["gpus"]))
    found = [one for one in constraints(space, here(gpus=gpus), wish, V26) if one.id.startswith("gpu:")]
    gone = {member for one in found for member in space.members(space.all & ~one.allows)}
    return set(space.candidates), gone, " / ".join(f"{one.id}: {one.text}" for one in found)


@pytest.mark.parametrize(("device", "wish", "predicate", "words"), [
    ("1db5", Request(), lambda one: one.flavour == "open" or branch(one) > 580,
     "gpu:volta: Tesla V100-SXM2-32GB (volta) needs proprietary kernel modules and a branch up to 580"),
    ("102d", Request(), lambda one: one.flavour == "open" or branch(one) > 470, "gpu:kepler: "),
    ("2901", Request(), lambda one: one.flavour != "open" or one.version.key < (570, 133, 20),
     "gpu:B200: NVIDIA B200 (blackwell) needs driver 570.133.20 or newer"),
    ("2330", Request(), lambda one: one.version.key < (525, 85, 12),
     "gpu:hopper: NVIDIA H100 80GB HBM3 (hopper) needs driver 525 or newer"),
    # A model may need more than its architecture: GH200 needs open modules, from 535 on.
    ("2342", Request(), lambda one: one.flavour != "open" or branch(one) < 535,
     "gpu:GH200: NVIDIA GH200 480GB (hopper) needs open kernel modules and driver 535 or newer"),
    # What the toolkit of a CUDA level compiles for: volta up to 12, ampere from 11.0 on.
    ("1db5", Request(cuda="12.9"), lambda one: one.flavour == "open" or branch(one) > 580, ""),
    ("1db5", Request(cuda="13.0"), lambda one: one.flavour == "open" or branch(one) > 580 or one.cuda,
     "needs proprietary kernel modules, a branch up to 580 and another CUDA than 13.0"),
    ("20b2", Request(cuda="10.2"), lambda one: one.cuda or one.version.key < (450, 80, 2), "another CUDA than 10.2"),
    ("20b2", Request(cuda="11.0"), lambda one: one.version.key < (450, 80, 2), ""),
    ("20b2", Request(cuda="13.0"), lambda one: one.version.key < (450, 80, 2), ""),
    ("1eb8", Request(), lambda one: one.version.key < (410,), "gpu:T4: Tesla T4 (turing) needs driver 410 or newer"),
])
def test_what_gpus_need(device: str, wish: Request, predicate: Excluded, words: str) -> None:
    space, gone, text = of_gpus(wish, device)
    assert gone == {one for one in space if predicate(one)}, text
    assert words in text


def test_gpus_of_one_architecture_are_told_together() -> None:
    _space, gone, text = of_gpus(NOTHING, "1db5", "1db1", "20b2")
    assert gone == of_gpus(NOTHING, "1db5")[1] | of_gpus(NOTHING, "1db1")[1] | of_gpus(NOTHING, "20b2")[1]
    assert text.count("gpu:volta: ") == 1 and " (volta) and Tesla V100" in text


def test_a_gpu_that_nobody_knows_excludes_nothing() -> None:
    assert of_gpus(Request(cuda="13.0"), "ffff")[1:] == (set(), "")


@pytest.mark.parametrize(("wish", "features"), [
    (Request(gds=True), {"gds"}), (Request(mig="x", cuda="13.0"), {"mig", "cuda"}), (Request(gdrcopy=True), set())])
def test_only_what_is_asked_for_multiplies_the_candidates(wish: Request, features: set[str]) -> None:
    assert wish.features == features


def test_coherent_memory_excludes_mig_and_gds_of_newer_drivers() -> None:
    gpus = tuple(models(facts(["2342", "20b2"])["gpus"]))
    first = releases.version_key(releases.floor("coherent_memory"))
    wish = Request(gds=True, mig="all-1g.10gb")
    space, gone, text = excluded("cdmm", here(gpus=gpus), wish)
    assert gone == {one for one in space if one.version.key >= first and (one.gds or one.mig)}
    assert gone and gone != space and "GH200 with" in text and "A100" not in text
    assert excluded("cdmm", HOST, wish)[1] == set()


def test_flavours_that_a_branch_does_not_have() -> None:
    space = universe((Version.of("470"), Version.of("580"), Version.of("620.10"), Version.of("999")), ON_HOSTS,
                     frozenset())
    gone = {member for one in constraints(space, HOST, Request(), V26) if one.id == "branch.flavours"
            for member in space.members(space.all & ~one.allows)}
    assert {(branch(one), one.flavour) for one in gone} == {(470, "open"), (620, "proprietary")}


@pytest.mark.parametrize(("name", "situation", "wish", "words"), [
    ("driver.version", HOST, Request(version=Version.of("580"), by="driver_branch of x", key="driver_branch"),
     "driver_branch of x requests driver branch 580 [driver_branch: {branch}]"),
    ("driver.version", HOST, Request(version=Version.of("580.173.02"), by="it"), "[driver.version: {version}]"),
    ("driver.version", HOST, Request(version=Version.of("580.1.2"), by="it", key="driver_runfile_src"),
     "[a driver_runfile_src of {version}]"),
    ("driver.kernelModuleType", HOST, Request(flavour="open", flavour_by="driver.useOpenKernelModules"),
     "[driver.useOpenKernelModules: {switch}]"),
    ("secure_boot", here(secure_boot="signed"), Request(), "driver_signing_key of this host, or Secure Boot off"),
    ("secure_boot", here(secure_boot="signed"), CLUSTER, "(mokutil --import), or Secure Boot off"),
    ("vgpu", here(vgpu=True), Request(), "this host is a vGPU guest: the guest driver is only in"),
    ("vgpu", here(vgpu=True), Request(), "[driver_runfile_src with the guest driver of your licence]"),
    ("driver.repository", here(vgpu=True), CLUSTER, "this Node is a vGPU guest: the guest driver is only in the NVIDIA "
     "Licensing Portal, not in a repository [driver.repository with your own image of the guest driver]"),
    ("driver.repository", HOST, Request(cluster=True, vgpu=True), "driverType is vgpu: the guest driver is only in"),
    ("vgpu", HOST, Request(vgpu=True), "driverType is vgpu: "),
    ("vgpu", HOST, Request(cluster=True, vgpu=True), "which is built in the container []"),
    ("os", HOST, CLUSTER, "ubuntu 24.04 has precompiled modules of branch 580 and 595 only (release 26.7.0)"),
    ("os", here(os=("rhel", "9.6")), CLUSTER, "rhel 9.6 has driver containers for x86_64 only and no "
     "precompiled modules (release 26.7.0)"),
    ("kernel", here(kernel="7.1.0-1-generic"), CLUSTER, "for kernel 7.1.0-1-generic (release 26.7.0)"),
    ("gds.enabled", HOST, Request(gds=True), "needs open kernel modules that are not precompiled [gds.enabled: false]"),
    ("gds.enabled", HOST, Request(gds=True, gds_open=False, gds_by="x"), "x (GPUDirect Storage) needs kernel modules"),
    ("cuda.version", HOST, Request(cuda="14"), "needs a newer driver than this collection knows"),
    ("packages", HOST, Request(gds=True, gdrcopy=True), "GPUDirect Storage and GDRCopy comes from NVIDIA's repository"),
])
def test_a_constraint_says_who_asks_and_what_to_change(name: str, situation: Situation, wish: Request,
                                                       words: str) -> None:
    assert words in excluded(name, situation, wish)[2]

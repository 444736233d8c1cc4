# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts and their expected labels, written by hand and not computed.

The labels of a host are words C(key=value); a key without a slash has the prefix C(nvidia.com/). Sources: C(captured),
output of gpu-feature-discovery 0.20.0 on simulated GPUs (whose PCI class is ours); C(read), its source (internal/lm);
C(ours), what is our own decision.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Gpu, MigDevice, Node


@dataclass(frozen=True)
class Situation:
    """strategy, sharing: options of gpu_labels. labels: all labels, as words."""

    name: str
    source: str
    node: Node
    labels: str
    strategy: str = "none"
    sharing: t.Mapping[str, t.Any] | None = None


# -- devices

_ATTRIBUTES = ("memory", "multiprocessors", "slices.gi", "slices.ci", "engines.copy", "engines.decoder",
               "engines.encoder", "engines.jpeg", "engines.ofa")


def mig(profile: str, *values: int) -> MigDevice:
    """A MIG device with its attributes in the above order."""
    return MigDevice(profile, dict(zip(_ATTRIBUTES, values)))


A100 = Gpu("NVIDIA A100-SXM4-80GB", 81920, (8, 0), mig_capable=True)
A100_40 = Gpu("NVIDIA A100-SXM4-40GB", 40960, (8, 0), mig_capable=True)
A30 = Gpu("NVIDIA A30", 24576, (8, 0), mig_capable=True)
H100 = Gpu("NVIDIA H100 80GB HBM3", 81559, (9, 0), mig_capable=True)
H200 = Gpu("NVIDIA H200", 143771, (9, 0), mig_capable=True)
B200 = Gpu("NVIDIA B200", 183359, (10, 0), mig_capable=True)
L40S = Gpu("NVIDIA L40S", 46068, (8, 9))
T4 = Gpu("Tesla T4", 15360, (7, 5))
V100 = Gpu("Tesla V100-SXM2-32GB", 32768, (7, 0))

M1G = mig("1g.10gb", 9728, 14, 1, 1, 1, 0, 0, 0, 0)
M1G_ME = mig("1g.10gb+me", 9728, 14, 1, 1, 1, 1, 0, 1, 1)
M2G = mig("2g.20gb", 19968, 28, 2, 2, 2, 1, 0, 0, 0)
M3G = mig("3g.40gb", 40192, 42, 3, 3, 3, 2, 0, 0, 0)
M1C3G = mig("1c.3g.40gb", 40192, 14, 3, 1, 3, 2, 0, 0, 0)
M2C3G = mig("2c.3g.40gb", 40192, 28, 3, 2, 3, 2, 0, 0, 0)


def sliced(gpu: Gpu, *devices: MigDevice) -> Gpu:
    """A GPU in MIG mode."""
    return gpu._replace(mig_enabled=True, mig_devices=devices)


def node(*gpus: Gpu, **other: t.Any) -> Node:
    """A host with driver 570.172.08."""
    settings: dict[str, t.Any] = {"driver": "570.172.08", "cuda": (12, 8), "machine": "DGXA100 920-23687-2530-000"}
    return Node(gpus, **{**settings, **other})


def bare(*gpus: Gpu, **other: t.Any) -> Node:
    """A host without a driver, for which only PCI ids are known."""
    return Node(tuple(gpu._replace(memory_mib=None) for gpu in gpus), machine="PowerEdge R760xa", **other)


# -- labels

DRIVER_570 = """
cuda.driver-version.full=570.172.08 cuda.driver-version.major=570 cuda.driver-version.minor=172
cuda.driver-version.revision=08 cuda.driver.major=570 cuda.driver.minor=172 cuda.driver.rev=08
cuda.runtime-version.full=12.8 cuda.runtime-version.major=12 cuda.runtime-version.minor=8
cuda.runtime.major=12 cuda.runtime.minor=8 """
DGX = "gpu.machine=DGXA100-920-23687-2530-000 gpu.mode=compute vgpu.present=false "
USUAL = DRIVER_570 + DGX + "mps.capable=false "
A100_IS = ("gpu.memory=81920 gpu.family=ampere gpu.compute.major=8 gpu.compute.minor=0 mig.capable=true ")
A100_FULL = USUAL + A100_IS + "gpu.product=NVIDIA-A100-SXM4-80GB "
UNSHARED = "gpu.replicas=1 gpu.sharing-strategy=none "
ALL_IN_MIG = "gpu.replicas=0 gpu.sharing-strategy=none "
# Engines and slices of a MIG device under the strategy "single".
SINGLE_1G = """gpu.memory=9728 gpu.multiprocessors=14 gpu.slices.gi=1 gpu.slices.ci=1 gpu.engines.copy=1
gpu.engines.decoder=0 gpu.engines.encoder=0 gpu.engines.jpeg=0 gpu.engines.ofa=0 """
SINGLE_A100 = (USUAL + "gpu.family=ampere gpu.compute.major=8 gpu.compute.minor=0 mig.capable=true "
               "mig.strategy=single ")
INVALID_A100 = (SINGLE_A100 + "gpu.product=NVIDIA-A100-SXM4-80GB-MIG-INVALID gpu.count=0 gpu.replicas=0 gpu.memory=0 "
                "gpu.sharing-strategy= ")
MIXED_1G = """mig-1g.10gb.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb mig-1g.10gb.memory=9728
mig-1g.10gb.multiprocessors=14 mig-1g.10gb.slices.gi=1 mig-1g.10gb.slices.ci=1 mig-1g.10gb.engines.copy=1
mig-1g.10gb.engines.decoder=0 mig-1g.10gb.engines.encoder=0 mig-1g.10gb.engines.jpeg=0 mig-1g.10gb.engines.ofa=0 """
UNSHARED_1G = "mig-1g.10gb.replicas=1 mig-1g.10gb.sharing-strategy=none "


def slicing(name: str, replicas: int, **group: t.Any) -> dict[str, t.Any]:
    """A device plugin configuration with time-slicing."""
    return {"version": "v1", "sharing": {"timeSlicing": {**group, "resources": [{"name": name, "replicas": replicas}]}}}


def mps(name: str, replicas: int, **group: t.Any) -> dict[str, t.Any]:
    """The sharing part of a device plugin configuration with MPS."""
    return {"mps": {**group, "resources": [{"name": name, "replicas": replicas}]}}


FULL_GPUS = [
    Situation("eight A100, no MIG", "captured", node(*8 * [A100]), A100_FULL + UNSHARED + "gpu.count=8"),
    Situation("four L40S", "captured", node(*4 * [L40S]), USUAL + UNSHARED + """
        gpu.product=NVIDIA-L40S gpu.count=4 gpu.memory=46068 gpu.family=ada-lovelace gpu.compute.major=8
        gpu.compute.minor=9 mig.capable=false"""),
    Situation("one T4", "captured", node(T4), USUAL + UNSHARED + """
        gpu.product=Tesla-T4 gpu.count=1 gpu.memory=15360 gpu.family=turing gpu.compute.major=7 gpu.compute.minor=5
        mig.capable=false"""),
    Situation("four V100", "captured", node(*4 * [V100]), USUAL + UNSHARED + """
        gpu.product=Tesla-V100-SXM2-32GB gpu.count=4 gpu.memory=32768 gpu.family=volta gpu.compute.major=7
        gpu.compute.minor=0 mig.capable=false"""),
    Situation("eight H100, product with blanks", "captured", node(*8 * [H100]), USUAL + UNSHARED + """
        gpu.product=NVIDIA-H100-80GB-HBM3 gpu.count=8 gpu.memory=81559 gpu.family=hopper gpu.compute.major=9
        gpu.compute.minor=0 mig.capable=true"""),
    Situation("eight B200", "captured", node(*8 * [B200]), USUAL + UNSHARED + """
        gpu.product=NVIDIA-B200 gpu.count=8 gpu.memory=183359 gpu.family=blackwell gpu.compute.major=10
        gpu.compute.minor=0 mig.capable=true"""),
    Situation("an architecture without a name", "read", node(Gpu("NVIDIA Thor", 125000, (11, 0))),
              USUAL + UNSHARED + """
        gpu.product=NVIDIA-Thor gpu.count=1 gpu.memory=125000 gpu.family=undefined gpu.compute.major=11
        gpu.compute.minor=0 mig.capable=false"""),
    Situation("a GPU whose memory NVML does not tell", "read", node(Gpu("NVIDIA GB10", None, (12, 1))),
              USUAL + UNSHARED + """gpu.product=NVIDIA-GB10 gpu.count=1 gpu.family=blackwell gpu.compute.major=12
              gpu.compute.minor=1 mig.capable=false"""),
    Situation("display GPUs", "read", node(*2 * [L40S._replace(pci_class="0300")]),
              DRIVER_570 + UNSHARED + """gpu.machine=DGXA100-920-23687-2530-000 gpu.mode=graphics vgpu.present=false
              mps.capable=false gpu.product=NVIDIA-L40S gpu.count=2 gpu.memory=46068 gpu.family=ada-lovelace
              gpu.compute.major=8 gpu.compute.minor=9 mig.capable=false"""),
    Situation("display and compute GPUs", "read", node(L40S, L40S._replace(pci_class="0300")),
              DRIVER_570 + UNSHARED + """gpu.machine=DGXA100-920-23687-2530-000 gpu.mode=unknown vgpu.present=false
              mps.capable=false gpu.product=NVIDIA-L40S gpu.count=2 gpu.memory=46068 gpu.family=ada-lovelace
              gpu.compute.major=8 gpu.compute.minor=9 mig.capable=false"""),
    Situation("a version of two parts, a machine with odd characters", "read",
              node(T4, driver="390.157", cuda=(9, 1), machine="Standard PC (Q35 + ICH9, 2009)"),
              UNSHARED + """gpu.machine=Standard-PC-Q35-ICH9-2009 gpu.mode=compute vgpu.present=false mps.capable=false
              cuda.driver-version.full=390.157 cuda.driver-version.major=390 cuda.driver-version.minor=157
              cuda.driver-version.revision= cuda.driver.major=390 cuda.driver.minor=157 cuda.driver.rev=
              cuda.runtime-version.full=9.1 cuda.runtime-version.major=9 cuda.runtime-version.minor=1
              cuda.runtime.major=9 cuda.runtime.minor=1 gpu.product=Tesla-T4 gpu.count=1 gpu.memory=15360
              gpu.family=turing gpu.compute.major=7 gpu.compute.minor=5 mig.capable=false"""),
    Situation("no machine name", "captured", node(T4, machine=None), DRIVER_570 + UNSHARED + """
        gpu.machine=unknown gpu.mode=compute vgpu.present=false mps.capable=false gpu.product=Tesla-T4 gpu.count=1
        gpu.memory=15360 gpu.family=turing gpu.compute.major=7 gpu.compute.minor=5 mig.capable=false"""),
    Situation("no GPU, driver loaded", "captured", node(), "vgpu.present=false"),
    Situation("no GPU, no driver", "read", bare(), "vgpu.present=false"),
    Situation("a vGPU guest", "read", node(Gpu("GRID T4-16Q", 16384, (7, 5)), vgpu=("580.65.06", "r580_00")),
              DRIVER_570 + UNSHARED + """gpu.machine=DGXA100-920-23687-2530-000 gpu.mode=compute mps.capable=false
              gpu.product=GRID-T4-16Q gpu.count=1 gpu.memory=16384 gpu.family=turing gpu.compute.major=7
              gpu.compute.minor=5 mig.capable=false vgpu.present=true vgpu.host-driver-version=580.65.06
              vgpu.host-driver-branch=r580_00"""),
]

FABRIC = ("00000000-0000-0000-0000-0000000000c1", 7)
CLIQUES = [
    Situation("one clique", "read", node(*4 * [H100._replace(fabric=FABRIC)]), USUAL + UNSHARED + """
        gpu.product=NVIDIA-H100-80GB-HBM3 gpu.count=4 gpu.memory=81559 gpu.family=hopper gpu.compute.major=9
        gpu.compute.minor=0 mig.capable=true gpu.clique=00000000-0000-0000-0000-0000000000c1.7"""),
    Situation("one GPU is not attached", "read", node(H100._replace(fabric=FABRIC), H100), USUAL + UNSHARED + """
        gpu.product=NVIDIA-H100-80GB-HBM3 gpu.count=2 gpu.memory=81559 gpu.family=hopper gpu.compute.major=9
        gpu.compute.minor=0 mig.capable=true gpu.clique=00000000-0000-0000-0000-0000000000c1.7"""),
    Situation("two cliques", "read", node(H100._replace(fabric=FABRIC), H100._replace(fabric=(FABRIC[0], 8))),
              USUAL + UNSHARED + """gpu.product=NVIDIA-H100-80GB-HBM3 gpu.count=2 gpu.memory=81559 gpu.family=hopper
              gpu.compute.major=9 gpu.compute.minor=0 mig.capable=true"""),
]

SHARED = [
    Situation("time-slicing", "captured", node(*8 * [A100]), USUAL + A100_IS + """gpu.count=8 gpu.replicas=4
        gpu.product=NVIDIA-A100-SXM4-80GB-SHARED gpu.sharing-strategy=time-slicing""",
              sharing=slicing("nvidia.com/gpu", 4)),
    Situation("time-slicing, renamed", "captured", node(*8 * [A100]), A100_FULL + """gpu.count=8 gpu.replicas=4
        gpu.sharing-strategy=time-slicing""", sharing=slicing("nvidia.com/gpu", 4, renameByDefault=True)),
    Situation("time-slicing of a resource that is not there", "captured", node(*8 * [A100]),
              A100_FULL + UNSHARED + "gpu.count=8", sharing=slicing("nvidia.com/mig-1g.10gb", 4)),
    Situation("a resource name without its prefix", "captured", node(*4 * [L40S]), USUAL + """
        gpu.product=NVIDIA-L40S-SHARED gpu.count=4 gpu.memory=46068 gpu.family=ada-lovelace gpu.compute.major=8
        gpu.compute.minor=9 mig.capable=false gpu.replicas=2 gpu.sharing-strategy=time-slicing""",
              sharing=slicing("gpu", 2)),
    Situation("MPS", "captured", node(*8 * [A100]), DRIVER_570 + DGX + A100_IS + """gpu.count=8 gpu.replicas=10
        mps.capable=true gpu.product=NVIDIA-A100-SXM4-80GB-SHARED gpu.sharing-strategy=mps""",
              sharing=mps("nvidia.com/gpu", 10)),
    Situation("MPS, renamed", "captured", node(*8 * [A100]), DRIVER_570 + DGX + A100_IS + """gpu.count=8
        gpu.replicas=10 mps.capable=true gpu.product=NVIDIA-A100-SXM4-80GB gpu.sharing-strategy=mps""",
              sharing=mps("nvidia.com/gpu", 10, renameByDefault=True)),
    Situation("MPS and time-slicing: MPS wins", "captured", node(*8 * [A100]), DRIVER_570 + DGX + A100_IS + """
        gpu.count=8 gpu.replicas=2 mps.capable=true gpu.product=NVIDIA-A100-SXM4-80GB-SHARED
        gpu.sharing-strategy=mps""",
              sharing={**mps("nvidia.com/gpu", 2), "timeSlicing": {"resources": [{"name": "gpu", "replicas": 9}]}}),
    Situation("MPS of a resource that is not there", "captured", node(*8 * [A100]),
              DRIVER_570 + DGX + A100_IS + UNSHARED + "gpu.count=8 mps.capable=true gpu.product=NVIDIA-A100-SXM4-80GB",
              sharing=mps("nvidia.com/other", 10)),
]

MIG_NONE = [
    Situation("MIG on all GPUs, strategy none", "captured", node(*8 * [sliced(A100, *7 * [M1G])]),
              A100_FULL + ALL_IN_MIG + "gpu.count=8"),
    Situation("MIG on half of the GPUs, strategy none", "captured",
              node(*4 * [A100], *4 * [sliced(A100, *7 * [M1G])]), A100_FULL + UNSHARED + "gpu.count=8"),
    Situation("MIG on half of the GPUs, strategy none, time-slicing", "captured",
              node(*4 * [A100], *4 * [sliced(A100, *7 * [M1G])]), USUAL + A100_IS + """gpu.count=8 gpu.replicas=4
              gpu.product=NVIDIA-A100-SXM4-80GB-SHARED gpu.sharing-strategy=time-slicing""",
              sharing=slicing("nvidia.com/gpu", 4)),
]

MIG_SINGLE = [
    Situation("single, seven 1g.10gb each", "captured", node(*8 * [sliced(A100, *7 * [M1G])]),
              SINGLE_A100 + SINGLE_1G + UNSHARED + "gpu.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb gpu.count=56",
              "single"),
    Situation("single, no GPU in MIG mode", "captured", node(*8 * [A100]),
              A100_FULL + UNSHARED + "gpu.count=8 mig.strategy=single", "single"),
    Situation("single, boards that cannot do MIG", "captured", node(*4 * [L40S]), USUAL + UNSHARED + """
        gpu.product=NVIDIA-L40S gpu.count=4 gpu.memory=46068 gpu.family=ada-lovelace gpu.compute.major=8
        gpu.compute.minor=9 mig.capable=false mig.strategy=single""", "single"),
    Situation("single, only some GPUs in MIG mode", "captured",
              node(*4 * [A100], *4 * [sliced(A100, *7 * [M1G])]), INVALID_A100, "single"),
    Situation("single, a GPU in MIG mode without instances", "captured",
              node(*7 * [sliced(A100, *7 * [M1G])], sliced(A100)), INVALID_A100, "single"),
    Situation("single, two profiles", "captured", node(*8 * [sliced(A100, M1G, M1G, M2G, M3G)]), INVALID_A100,
              "single"),
    Situation("single, an invalid layout is never shared", "captured",
              node(*8 * [sliced(A100, M1G, M1G, M2G, M3G)]), INVALID_A100, "single", slicing("nvidia.com/gpu", 4)),
    Situation("single, with media engines", "captured", node(sliced(A100, M1G_ME)), SINGLE_A100 + UNSHARED + """
        gpu.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me gpu.count=1 gpu.memory=9728 gpu.multiprocessors=14
        gpu.slices.gi=1 gpu.slices.ci=1 gpu.engines.copy=1 gpu.engines.decoder=1 gpu.engines.encoder=0
        gpu.engines.jpeg=1 gpu.engines.ofa=1""", "single"),
    Situation("single, 1g with and without media engines are two profiles", "captured",
              node(sliced(A100, *6 * [M1G], M1G_ME)), INVALID_A100, "single"),
    Situation("single, compute instances smaller than their GPU instance", "captured",
              node(sliced(A100, M1C3G, M1C3G, M1C3G)), SINGLE_A100 + UNSHARED + """
        gpu.product=NVIDIA-A100-SXM4-80GB-MIG-1c.3g.40gb gpu.count=3 gpu.memory=40192 gpu.multiprocessors=14
        gpu.slices.gi=3 gpu.slices.ci=1 gpu.engines.copy=3 gpu.engines.decoder=2 gpu.engines.encoder=0
        gpu.engines.jpeg=0 gpu.engines.ofa=0""", "single"),
    Situation("single, time-slicing", "captured", node(*8 * [sliced(A100, *7 * [M1G])]), SINGLE_A100 + SINGLE_1G + """
        gpu.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED gpu.count=56 gpu.replicas=3
        gpu.sharing-strategy=time-slicing""", "single", slicing("nvidia.com/gpu", 3)),
    Situation("single, other boards", "captured", node(*2 * [sliced(A30, *2 * [mig(
        "2g.12gb", 11968, 28, 2, 2, 2, 2, 0, 0, 0)])]), USUAL + UNSHARED + """gpu.product=NVIDIA-A30-MIG-2g.12gb
        gpu.count=4 gpu.memory=11968 gpu.multiprocessors=28 gpu.slices.gi=2 gpu.slices.ci=2 gpu.engines.copy=2
        gpu.engines.decoder=2 gpu.engines.encoder=0 gpu.engines.jpeg=0 gpu.engines.ofa=0 gpu.family=ampere
        gpu.compute.major=8 gpu.compute.minor=0 mig.capable=true mig.strategy=single""", "single"),
]

MIG_MIXED = [
    Situation("mixed, half of the GPUs", "captured", node(*4 * [A100], *4 * [sliced(A100, *7 * [M1G])]),
              A100_FULL + UNSHARED + MIXED_1G + UNSHARED_1G + "gpu.count=8 mig-1g.10gb.count=28 mig.strategy=mixed",
              "mixed"),
    Situation("mixed, all GPUs", "captured", node(*8 * [sliced(A100, *7 * [M1G])]),
              A100_FULL + ALL_IN_MIG + MIXED_1G + UNSHARED_1G
              + "gpu.count=8 mig-1g.10gb.count=56 mig.strategy=mixed", "mixed"),
    Situation("mixed, a GPU in MIG mode without instances", "captured", node(*2 * [sliced(A100)]),
              A100_FULL + ALL_IN_MIG + "gpu.count=2 mig.strategy=mixed", "mixed"),
    Situation("mixed, three profiles", "captured", node(*2 * [sliced(A100, M1G, M1G, M2G, M3G)]),
              A100_FULL + ALL_IN_MIG + MIXED_1G + UNSHARED_1G + """gpu.count=2 mig-1g.10gb.count=4 mig.strategy=mixed
              mig-2g.20gb.product=NVIDIA-A100-SXM4-80GB-MIG-2g.20gb mig-2g.20gb.count=2 mig-2g.20gb.replicas=1
              mig-2g.20gb.sharing-strategy=none mig-2g.20gb.memory=19968 mig-2g.20gb.multiprocessors=28
              mig-2g.20gb.slices.gi=2 mig-2g.20gb.slices.ci=2 mig-2g.20gb.engines.copy=2 mig-2g.20gb.engines.decoder=1
              mig-2g.20gb.engines.encoder=0 mig-2g.20gb.engines.jpeg=0 mig-2g.20gb.engines.ofa=0
              mig-3g.40gb.product=NVIDIA-A100-SXM4-80GB-MIG-3g.40gb mig-3g.40gb.count=2 mig-3g.40gb.replicas=1
              mig-3g.40gb.sharing-strategy=none mig-3g.40gb.memory=40192 mig-3g.40gb.multiprocessors=42
              mig-3g.40gb.slices.gi=3 mig-3g.40gb.slices.ci=3 mig-3g.40gb.engines.copy=3 mig-3g.40gb.engines.decoder=2
              mig-3g.40gb.engines.encoder=0 mig-3g.40gb.engines.jpeg=0 mig-3g.40gb.engines.ofa=0""", "mixed"),
    Situation("mixed, with media engines", "captured", node(sliced(A100, M1G_ME)),
              A100_FULL + ALL_IN_MIG + """gpu.count=1 mig.strategy=mixed
              mig-1g.10gb.me.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me mig-1g.10gb.me.count=1
              mig-1g.10gb.me.replicas=1 mig-1g.10gb.me.sharing-strategy=none mig-1g.10gb.me.memory=9728
              mig-1g.10gb.me.multiprocessors=14 mig-1g.10gb.me.slices.gi=1 mig-1g.10gb.me.slices.ci=1
              mig-1g.10gb.me.engines.copy=1 mig-1g.10gb.me.engines.decoder=1 mig-1g.10gb.me.engines.encoder=0
              mig-1g.10gb.me.engines.jpeg=1 mig-1g.10gb.me.engines.ofa=1""", "mixed"),
    Situation("mixed, two compute instances in one GPU instance", "captured", node(sliced(A100, M2C3G, M1C3G)),
              A100_FULL + ALL_IN_MIG + """gpu.count=1 mig.strategy=mixed
              mig-2c.3g.40gb.product=NVIDIA-A100-SXM4-80GB-MIG-2c.3g.40gb mig-2c.3g.40gb.count=1
              mig-2c.3g.40gb.replicas=1 mig-2c.3g.40gb.sharing-strategy=none mig-2c.3g.40gb.memory=40192
              mig-2c.3g.40gb.multiprocessors=28 mig-2c.3g.40gb.slices.gi=3 mig-2c.3g.40gb.slices.ci=2
              mig-2c.3g.40gb.engines.copy=3 mig-2c.3g.40gb.engines.decoder=2 mig-2c.3g.40gb.engines.encoder=0
              mig-2c.3g.40gb.engines.jpeg=0 mig-2c.3g.40gb.engines.ofa=0
              mig-1c.3g.40gb.product=NVIDIA-A100-SXM4-80GB-MIG-1c.3g.40gb mig-1c.3g.40gb.count=1
              mig-1c.3g.40gb.replicas=1 mig-1c.3g.40gb.sharing-strategy=none mig-1c.3g.40gb.memory=40192
              mig-1c.3g.40gb.multiprocessors=14 mig-1c.3g.40gb.slices.gi=3 mig-1c.3g.40gb.slices.ci=1
              mig-1c.3g.40gb.engines.copy=3 mig-1c.3g.40gb.engines.decoder=2 mig-1c.3g.40gb.engines.encoder=0
              mig-1c.3g.40gb.engines.jpeg=0 mig-1c.3g.40gb.engines.ofa=0""", "mixed"),
    Situation("mixed, time-slicing of a profile", "captured", node(*8 * [sliced(A100, *7 * [M1G])]),
              (A100_FULL + ALL_IN_MIG + MIXED_1G).replace("MIG-1g.10gb ", "MIG-1g.10gb-SHARED ") + """gpu.count=8
              mig-1g.10gb.count=56 mig.strategy=mixed mig-1g.10gb.replicas=2
              mig-1g.10gb.sharing-strategy=time-slicing""", "mixed", slicing("nvidia.com/mig-1g.10gb", 2)),
    Situation("mixed, time-slicing of the full GPUs only", "captured",
              node(*4 * [A100], *4 * [sliced(A100, *7 * [M1G])]), USUAL + A100_IS + MIXED_1G + UNSHARED_1G + """
              gpu.product=NVIDIA-A100-SXM4-80GB-SHARED gpu.count=8 gpu.replicas=4 gpu.sharing-strategy=time-slicing
              mig-1g.10gb.count=28 mig.strategy=mixed""", "mixed", slicing("nvidia.com/gpu", 4)),
]

SEVERAL_MODELS = [
    Situation("two models, the first wins", "ours", node(A100, A100, L40S), A100_FULL + UNSHARED + """gpu.count=2
        gpuops.nvidia/A100-SXM4-80GB.product=NVIDIA-A100-SXM4-80GB gpuops.nvidia/A100-SXM4-80GB.count=2
        gpuops.nvidia/A100-SXM4-80GB.memory=81920 gpuops.nvidia/A100-SXM4-80GB.family=ampere
        gpuops.nvidia/A100-SXM4-80GB.compute.major=8 gpuops.nvidia/A100-SXM4-80GB.compute.minor=0
        gpuops.nvidia/A100-SXM4-80GB.mig.capable=true gpuops.nvidia/L40S.product=NVIDIA-L40S
        gpuops.nvidia/L40S.count=1 gpuops.nvidia/L40S.memory=46068 gpuops.nvidia/L40S.family=ada-lovelace
        gpuops.nvidia/L40S.compute.major=8 gpuops.nvidia/L40S.compute.minor=9
        gpuops.nvidia/L40S.mig.capable=false"""),
    Situation("two models, the whole one wins over the one in MIG mode", "captured",
              node(sliced(A100, *7 * [M1G]), L40S), USUAL + UNSHARED + """gpu.product=NVIDIA-L40S gpu.count=1
        gpu.memory=46068 gpu.family=ada-lovelace gpu.compute.major=8 gpu.compute.minor=9 mig.capable=true
        gpuops.nvidia/A100-SXM4-80GB.product=NVIDIA-A100-SXM4-80GB gpuops.nvidia/A100-SXM4-80GB.count=1
        gpuops.nvidia/A100-SXM4-80GB.memory=81920 gpuops.nvidia/A100-SXM4-80GB.family=ampere
        gpuops.nvidia/A100-SXM4-80GB.compute.major=8 gpuops.nvidia/A100-SXM4-80GB.compute.minor=0
        gpuops.nvidia/A100-SXM4-80GB.mig.capable=true gpuops.nvidia/L40S.product=NVIDIA-L40S
        gpuops.nvidia/L40S.count=1 gpuops.nvidia/L40S.memory=46068 gpuops.nvidia/L40S.family=ada-lovelace
        gpuops.nvidia/L40S.compute.major=8 gpuops.nvidia/L40S.compute.minor=9
        gpuops.nvidia/L40S.mig.capable=false"""),
]

BARE = "gpu.machine=PowerEdge-R760xa gpu.mode=compute vgpu.present=false "
BEFORE_DRIVER = [
    Situation("before a driver, MIG boards", "ours", bare(*8 * [A100]), BARE + """gpu.product=NVIDIA-A100-SXM4-80GB
        gpu.count=8 gpu.family=ampere gpu.compute.major=8 gpu.compute.minor=0 mig.capable=true"""),
    Situation("before a driver, other boards", "ours", bare(*4 * [L40S]), BARE + """gpu.product=NVIDIA-L40S gpu.count=4
        gpu.family=ada-lovelace gpu.compute.major=8 gpu.compute.minor=9 mig.capable=false"""),
    Situation("before a driver, an unknown id", "ours", bare(Gpu(None), Gpu(None)),
              BARE + "gpu.count=2 mig.capable=false"),
    Situation("before a driver, a known and an unknown id", "ours", bare(Gpu(None), L40S), BARE + """gpu.count=1
        gpu.product=NVIDIA-L40S gpu.family=ada-lovelace gpu.compute.major=8 gpu.compute.minor=9 mig.capable=false"""),
    Situation("before a driver, two models", "ours", bare(V100, B200), BARE + """gpu.product=Tesla-V100-SXM2-32GB
        gpu.count=1 gpu.family=volta gpu.compute.major=7 gpu.compute.minor=0 mig.capable=true
        gpuops.nvidia/Tesla-V100-SXM2-32GB.product=Tesla-V100-SXM2-32GB gpuops.nvidia/Tesla-V100-SXM2-32GB.count=1
        gpuops.nvidia/Tesla-V100-SXM2-32GB.family=volta gpuops.nvidia/Tesla-V100-SXM2-32GB.compute.major=7
        gpuops.nvidia/Tesla-V100-SXM2-32GB.compute.minor=0 gpuops.nvidia/Tesla-V100-SXM2-32GB.mig.capable=false
        gpuops.nvidia/B200.product=NVIDIA-B200 gpuops.nvidia/B200.count=1 gpuops.nvidia/B200.family=blackwell
        gpuops.nvidia/B200.compute.major=10 gpuops.nvidia/B200.compute.minor=0
        gpuops.nvidia/B200.mig.capable=true"""),
]

LOST = A100._replace(mig_devices=None)
LOST_IN_MIG = A100._replace(mig_enabled=True, mig_devices=None)
NOT_READ = [
    Situation("a lost GPU still counts", "ours", node(*7 * [A100], LOST), A100_FULL + UNSHARED + "gpu.count=8"),
    Situation("a lost GPU's memory is its siblings'", "ours", node(LOST._replace(memory_mib=None), *7 * [A100]),
              A100_FULL + UNSHARED + "gpu.count=8"),
    Situation("single, a lost GPU is not an empty one", "ours",
              node(*7 * [sliced(A100, *7 * [M1G])], LOST_IN_MIG), SINGLE_A100 + SINGLE_1G + UNSHARED
              + "gpu.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb gpu.count=49", "single"),
]

ALL = [*FULL_GPUS, *CLIQUES, *SHARED, *MIG_NONE, *MIG_SINGLE, *MIG_MIXED, *SEVERAL_MODELS, *BEFORE_DRIVER, *NOT_READ]

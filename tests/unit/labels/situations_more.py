# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Further situations: other boards, kinds of MIG profiles, sharing together with MIG, hosts without a driver."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Gpu
from ansible_collections.gpuops.nvidia.tests.unit.labels import situations
from ansible_collections.gpuops.nvidia.tests.unit.labels.situations import (
    A100,
    A100_FULL,
    A100_IS,
    ALL_IN_MIG,
    BARE,
    DRIVER_570,
    H100,
    L40S,
    M1G,
    MIXED_1G,
    SINGLE_1G,
    SINGLE_A100,
    T4,
    UNSHARED,
    UNSHARED_1G,
    USUAL,
    Situation,
    bare,
    mig,
    mps,
    node,
    sliced,
    slicing,
)

PRO6000 = Gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, (12, 0), mig_capable=True)
PRO6000_IS = """gpu.memory=97887 gpu.family=blackwell gpu.compute.major=12 gpu.compute.minor=0 mig.capable=true
gpu.product=NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition """
H200 = situations.H200
B200 = situations.B200
# Slices and attributes as the driver tells them of these boards.
H100_1G = mig("1g.10gb", 9984, 16, 1, 1, 1, 1, 0, 1, 0)
H100_7G = mig("7g.80gb", 81152, 132, 7, 7, 8, 7, 0, 7, 1)
H200_1G = mig("1g.18gb", 16384, 16, 1, 1, 1, 1, 0, 1, 0)
B200_2G = mig("2g.45gb", 45312, 36, 2, 2, 4, 2, 0, 2, 0)
GRAPHICS = mig("1g.24gb+gfx", 24192, 46, 1, 1, 1, 1, 1, 1, 0)
ALL_ENGINES = mig("1g.24gb+me.all", 24192, 46, 1, 1, 1, 4, 4, 4, 1)
NO_ENGINES = mig("1g.24gb-me", 24192, 46, 1, 1, 1, 0, 0, 0, 0)

BOARDS = [
    Situation("a Kepler board", "read", node(Gpu("Tesla K80", 11441, (3, 7)), driver="470.256.02", cuda=(11, 4)),
              UNSHARED + """gpu.machine=DGXA100-920-23687-2530-000 gpu.mode=compute vgpu.present=false mps.capable=false
              cuda.driver-version.full=470.256.02 cuda.driver-version.major=470 cuda.driver-version.minor=256
              cuda.driver-version.revision=02 cuda.driver.major=470 cuda.driver.minor=256 cuda.driver.rev=02
              cuda.runtime-version.full=11.4 cuda.runtime-version.major=11 cuda.runtime-version.minor=4
              cuda.runtime.major=11 cuda.runtime.minor=4 gpu.product=Tesla-K80 gpu.count=1 gpu.memory=11441
              gpu.family=kepler gpu.compute.major=3 gpu.compute.minor=7 mig.capable=false"""),
    Situation("a Maxwell board", "read", node(Gpu("Tesla M60", 7618, (5, 2))), USUAL + UNSHARED + """
        gpu.product=Tesla-M60 gpu.count=1 gpu.memory=7618 gpu.family=maxwell gpu.compute.major=5 gpu.compute.minor=2
        mig.capable=false"""),
    Situation("Pascal boards", "read", node(*2 * [Gpu("Tesla P100-PCIE-16GB", 16280, (6, 0))]), USUAL + UNSHARED + """
        gpu.product=Tesla-P100-PCIE-16GB gpu.count=2 gpu.memory=16280 gpu.family=pascal gpu.compute.major=6
        gpu.compute.minor=0 mig.capable=false"""),
    Situation("a Rubin board", "read", node(Gpu("NVIDIA VR200", 294912, (13, 0), mig_capable=True)),
              USUAL + UNSHARED + """gpu.product=NVIDIA-VR200 gpu.count=1 gpu.memory=294912 gpu.family=rubin
              gpu.compute.major=13 gpu.compute.minor=0 mig.capable=true"""),
    Situation("a class that is neither display nor 3D", "read", node(T4._replace(pci_class="0380")),
              DRIVER_570 + UNSHARED + """gpu.machine=DGXA100-920-23687-2530-000 gpu.mode=unknown vgpu.present=false
              mps.capable=false gpu.product=Tesla-T4 gpu.count=1 gpu.memory=15360 gpu.family=turing
              gpu.compute.major=7 gpu.compute.minor=5 mig.capable=false"""),
    Situation("single, H100 as one piece each", "read", node(*2 * [sliced(H100, H100_7G)]), USUAL + UNSHARED + """
        gpu.product=NVIDIA-H100-80GB-HBM3-MIG-7g.80gb gpu.count=2 gpu.memory=81152 gpu.multiprocessors=132
        gpu.slices.gi=7 gpu.slices.ci=7 gpu.engines.copy=8 gpu.engines.decoder=7 gpu.engines.encoder=0
        gpu.engines.jpeg=7 gpu.engines.ofa=1 gpu.family=hopper gpu.compute.major=9 gpu.compute.minor=0
        mig.capable=true mig.strategy=single""", "single"),
    Situation("single, H200", "read", node(*8 * [sliced(H200, *7 * [H200_1G])]), USUAL + UNSHARED + """
        gpu.product=NVIDIA-H200-MIG-1g.18gb gpu.count=56 gpu.memory=16384 gpu.multiprocessors=16 gpu.slices.gi=1
        gpu.slices.ci=1 gpu.engines.copy=1 gpu.engines.decoder=1 gpu.engines.encoder=0 gpu.engines.jpeg=1
        gpu.engines.ofa=0 gpu.family=hopper gpu.compute.major=9 gpu.compute.minor=0 mig.capable=true
        mig.strategy=single""", "single"),
    Situation("mixed, B200", "read", node(sliced(B200, *3 * [B200_2G]), B200), USUAL + UNSHARED + """
        gpu.product=NVIDIA-B200 gpu.count=2 gpu.memory=183359 gpu.family=blackwell gpu.compute.major=10
        gpu.compute.minor=0 mig.capable=true mig.strategy=mixed mig-2g.45gb.product=NVIDIA-B200-MIG-2g.45gb
        mig-2g.45gb.count=3 mig-2g.45gb.replicas=1 mig-2g.45gb.sharing-strategy=none mig-2g.45gb.memory=45312
        mig-2g.45gb.multiprocessors=36 mig-2g.45gb.slices.gi=2 mig-2g.45gb.slices.ci=2 mig-2g.45gb.engines.copy=4
        mig-2g.45gb.engines.decoder=2 mig-2g.45gb.engines.encoder=0 mig-2g.45gb.engines.jpeg=2
        mig-2g.45gb.engines.ofa=0""", "mixed"),
    Situation("mixed, graphics, all engines and no engines", "read",
              node(sliced(PRO6000, GRAPHICS, ALL_ENGINES, NO_ENGINES)), USUAL + ALL_IN_MIG + PRO6000_IS + """
        gpu.count=1 mig.strategy=mixed mig-1g.24gb.gfx.count=1 mig-1g.24gb.gfx.replicas=1
        mig-1g.24gb.gfx.product=NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb.gfx
        mig-1g.24gb.gfx.sharing-strategy=none mig-1g.24gb.gfx.memory=24192 mig-1g.24gb.gfx.multiprocessors=46
        mig-1g.24gb.gfx.slices.gi=1 mig-1g.24gb.gfx.slices.ci=1 mig-1g.24gb.gfx.engines.copy=1
        mig-1g.24gb.gfx.engines.decoder=1 mig-1g.24gb.gfx.engines.encoder=1 mig-1g.24gb.gfx.engines.jpeg=1
        mig-1g.24gb.gfx.engines.ofa=0 mig-1g.24gb.me.all.count=1 mig-1g.24gb.me.all.replicas=1
        mig-1g.24gb.me.all.product=NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb.me.all
        mig-1g.24gb.me.all.sharing-strategy=none mig-1g.24gb.me.all.memory=24192
        mig-1g.24gb.me.all.multiprocessors=46 mig-1g.24gb.me.all.slices.gi=1 mig-1g.24gb.me.all.slices.ci=1
        mig-1g.24gb.me.all.engines.copy=1 mig-1g.24gb.me.all.engines.decoder=4 mig-1g.24gb.me.all.engines.encoder=4
        mig-1g.24gb.me.all.engines.jpeg=4 mig-1g.24gb.me.all.engines.ofa=1 mig-1g.24gb-me.count=1
        mig-1g.24gb-me.replicas=1
        mig-1g.24gb-me.product=NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb-me
        mig-1g.24gb-me.sharing-strategy=none mig-1g.24gb-me.memory=24192 mig-1g.24gb-me.multiprocessors=46
        mig-1g.24gb-me.slices.gi=1 mig-1g.24gb-me.slices.ci=1 mig-1g.24gb-me.engines.copy=1
        mig-1g.24gb-me.engines.decoder=0 mig-1g.24gb-me.engines.encoder=0 mig-1g.24gb-me.engines.jpeg=0
        mig-1g.24gb-me.engines.ofa=0""", "mixed"),
]

SHARING = [
    Situation("strategy none, all in MIG mode: what cannot be had is not shared", "read",
              node(*8 * [sliced(A100, *7 * [M1G])]), A100_FULL + ALL_IN_MIG + "gpu.count=8",
              sharing=slicing("nvidia.com/gpu", 4)),
    Situation("single, time-slicing, renamed", "read", node(*8 * [sliced(A100, *7 * [M1G])]),
              SINGLE_A100 + SINGLE_1G + """
        gpu.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb gpu.count=56 gpu.replicas=3 gpu.sharing-strategy=time-slicing""",
              "single", slicing("nvidia.com/gpu", 3, renameByDefault=True)),
    Situation("single, no GPU in MIG mode, time-slicing", "read", node(*8 * [A100]), USUAL + A100_IS + """gpu.count=8
        gpu.replicas=4 gpu.product=NVIDIA-A100-SXM4-80GB-SHARED gpu.sharing-strategy=time-slicing
        mig.strategy=single""", "single", slicing("nvidia.com/gpu", 4)),
    Situation("mixed, no GPU in MIG mode, MPS", "read", node(*8 * [A100]),
              DRIVER_570 + situations.DGX + A100_IS + """gpu.count=8 gpu.replicas=2 mps.capable=true mig.strategy=mixed
              gpu.product=NVIDIA-A100-SXM4-80GB-SHARED gpu.sharing-strategy=mps""", "mixed",
              mps("nvidia.com/gpu", 2)),
    Situation("mixed, time-slicing of a profile, renamed", "read", node(*8 * [sliced(A100, *7 * [M1G])]),
              A100_FULL + ALL_IN_MIG + MIXED_1G + """gpu.count=8 mig-1g.10gb.count=56 mig.strategy=mixed
              mig-1g.10gb.replicas=2 mig-1g.10gb.sharing-strategy=time-slicing""", "mixed",
              slicing("nvidia.com/mig-1g.10gb", 2, renameByDefault=True)),
    Situation("mixed, time-slicing of GPUs and of a profile", "read",
              node(*4 * [A100], *4 * [sliced(A100, *7 * [M1G])]),
              USUAL + A100_IS + MIXED_1G.replace("MIG-1g.10gb ", "MIG-1g.10gb-SHARED ") + """gpu.count=8 gpu.replicas=4
              gpu.product=NVIDIA-A100-SXM4-80GB-SHARED gpu.sharing-strategy=time-slicing mig.strategy=mixed
              mig-1g.10gb.count=28 mig-1g.10gb.replicas=2 mig-1g.10gb.sharing-strategy=time-slicing""", "mixed",
              {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4},
                                             {"name": "nvidia.com/mig-1g.10gb", "replicas": 2}]}}),
    Situation("a resource that is named twice: the first counts", "read", node(*8 * [A100]), USUAL + A100_IS + """
        gpu.count=8 gpu.replicas=4 gpu.product=NVIDIA-A100-SXM4-80GB-SHARED gpu.sharing-strategy=time-slicing""",
              sharing={"timeSlicing": {"resources": [{"name": "gpu", "replicas": 4}, {"name": "gpu", "replicas": 9}]}}),
]

TWO_MODELS = """
gpuops.nvidia/A100-SXM4-80GB.product=NVIDIA-A100-SXM4-80GB gpuops.nvidia/A100-SXM4-80GB.count=1
gpuops.nvidia/A100-SXM4-80GB.memory=81920 gpuops.nvidia/A100-SXM4-80GB.family=ampere
gpuops.nvidia/A100-SXM4-80GB.compute.major=8 gpuops.nvidia/A100-SXM4-80GB.compute.minor=0
gpuops.nvidia/A100-SXM4-80GB.mig.capable=true gpuops.nvidia/H100-80GB-HBM3.product=NVIDIA-H100-80GB-HBM3
gpuops.nvidia/H100-80GB-HBM3.count=1 gpuops.nvidia/H100-80GB-HBM3.memory=81559
gpuops.nvidia/H100-80GB-HBM3.family=hopper gpuops.nvidia/H100-80GB-HBM3.compute.major=9
gpuops.nvidia/H100-80GB-HBM3.compute.minor=0 gpuops.nvidia/H100-80GB-HBM3.mig.capable=true """
MODELS = [
    # GFD tells MIG devices apart by profile alone: those of two models count as one kind, named after the first.
    Situation("single, two models cut into one profile", "read",
              node(sliced(A100, *7 * [M1G]), sliced(H100, *7 * [H100_1G])), SINGLE_A100 + SINGLE_1G + UNSHARED
              + TWO_MODELS + "gpu.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb gpu.count=14", "single"),
    Situation("mixed, one model cut, one whole", "read", node(sliced(A100, M1G), H100), USUAL + UNSHARED + MIXED_1G
              + UNSHARED_1G + TWO_MODELS + """gpu.product=NVIDIA-H100-80GB-HBM3 gpu.count=1 gpu.memory=81559
              gpu.family=hopper gpu.compute.major=9 gpu.compute.minor=0 mig.capable=true mig-1g.10gb.count=1
              mig.strategy=mixed""", "mixed"),
]

NO_DRIVER = [
    Situation("before a driver, strategy and sharing say nothing yet", "ours", bare(*8 * [A100]), BARE + """
        gpu.product=NVIDIA-A100-SXM4-80GB gpu.count=8 gpu.family=ampere gpu.compute.major=8 gpu.compute.minor=0
        mig.capable=true""", "mixed", slicing("nvidia.com/gpu", 4)),
    Situation("before a driver, display GPUs", "ours", bare(*2 * [L40S._replace(pci_class="0300")]), """
        gpu.machine=PowerEdge-R760xa gpu.mode=graphics vgpu.present=false gpu.product=NVIDIA-L40S gpu.count=2
        gpu.family=ada-lovelace gpu.compute.major=8 gpu.compute.minor=9 mig.capable=false"""),
    Situation("before a driver, a vGPU guest", "ours", bare(T4._replace(name=None), vgpu=("580.65.06", "r580_00")), """
        gpu.machine=PowerEdge-R760xa gpu.mode=compute gpu.count=1 gpu.family=turing gpu.compute.major=7
        gpu.compute.minor=5 mig.capable=false vgpu.present=true vgpu.host-driver-version=580.65.06
        vgpu.host-driver-branch=r580_00"""),
]

ALL = [*situations.ALL, *BOARDS, *SHARING, *MODELS, *NO_DRIVER]

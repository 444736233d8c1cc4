# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Properties of GPU models by PCI id, for hosts whose driver does not run. Pure data.

Sources: device ids and names, README of NVIDIA/open-gpu-kernel-modules 595 ("Compatible GPUs") and pci.ids;
minimum drivers for MIG, NVIDIA MIG User Guide 610 ("Supported GPUs"); floors of B300 and GB300, release notes of R580;
switches of boards, Fabric Manager user guide and gpu-driver-container (31c3 is the GPU of the DGX Station, which has
none); memory totals, published nvidia-smi output with default ECC. If the driver runs, query the GPU instead.
"""

from __future__ import annotations

import typing as t

# Subsystem vendors that share an entry in NVIDIA's list: Dell, HP, NVIDIA, Lenovo.
_WORKSTATION_VENDORS = ("1028", "103c", "10de", "17aa")

# device[:subsystem vendor:subsystem] | NVML name | compute capability | MiB | flags | first driver
# A row without a subsystem applies to all subsystems without a row. The name is empty if it is not known or depends on
# the subsystem. Flags: m supports MIG; s on boards with NVSwitches on the PCI bus, l on boards with NVLink 5 switches,
# which are not on the PCI bus, r in racks with such switches; c coherent with the memory of a Grace CPU.
_TABLE = """
102d|Tesla K80|3.7|11441||340
13f2|Tesla M60|5.2|||352
1bb3|Tesla P4|6.1|||367
1b38|Tesla P40|6.1|||367
15f7|Tesla P100-PCIE-12GB|6.0|||375
15f8|Tesla P100-PCIE-16GB|6.0|||375
15f9|Tesla P100-SXM2-16GB|6.0|||375
1db1|Tesla V100-SXM2-16GB|7.0|||384
1db5|Tesla V100-SXM2-32GB|7.0|32768||390
1db4|Tesla V100-PCIE-16GB|7.0|||384
1db6|Tesla V100-PCIE-32GB|7.0|||390
1df6|Tesla V100S-PCIE-32GB|7.0|||418
1db2|Tesla V100-DGXS-16GB|7.0|||384
1db7|Tesla V100-DGXS-32GB|7.0|||390
1db3|Tesla V100-FHHL-16GB|7.0|||384
1db8|Tesla V100-SXM3-32GB|7.0||s|390
1eb8|Tesla T4|7.5|15360||410
1eb4|NVIDIA T4G|7.5|||470
1e30|Quadro RTX 6000|7.5|||410
1e30:*:129e|Quadro RTX 8000|7.5|||410
1e78||7.5|||410
1e78:10de:13d9|Quadro RTX 6000|7.5|||410
1e78:10de:13d8|Quadro RTX 8000|7.5|||410
25b6||8.6|15356||470
25b6:10de:157e|NVIDIA A2|8.6|15356||470
25b6:10de:14a9|NVIDIA A16|8.6|15356||470
2236|NVIDIA A10|8.6|23028||460
2237|NVIDIA A10G|8.6|23028||470
2235|NVIDIA A40|8.6|46068||460
2230|NVIDIA RTX A6000|8.6|49140||455
2231|NVIDIA RTX A5000|8.6|24564||460
24b0|NVIDIA RTX A4000|8.6|16376||460
20b7|NVIDIA A30|8.0|24576|m|460.73.01
20b9|NVIDIA A30X|8.0||m|
20b8|NVIDIA A100X|8.0||m|
20b0|NVIDIA A100-SXM4-40GB|8.0|40960|ms|450.80.02
20b0:10de:1450|NVIDIA A100-PG509-200|8.0|40960|ms|450.80.02
20b1||8.0|40960|m|450.80.02
20f1|NVIDIA A100-PCIE-40GB|8.0|40960|m|450.80.02
20b2|NVIDIA A100-SXM4-80GB|8.0|81920|ms|450.80.02
20b2:10de:1625|NVIDIA PG509-210|8.0|81920|ms|450.80.02
20b5|NVIDIA A100 80GB PCIe|8.0|81920|m|470
20b3|NVIDIA A100-SXM-64GB|8.0||ms|
20b6|NVIDIA PG506-232|8.0||m|
20bd|NVIDIA A800-SXM4-40GB|8.0|40960|ms|525
20f3|NVIDIA A800-SXM4-80GB|8.0|81920|ms|515
20f5|NVIDIA A800 80GB PCIe|8.0|81920|m|515
20f5:10de:179a|NVIDIA A800 80GB PCIe LC|8.0|81920|m|515
20f6|NVIDIA A800 40GB Active|8.0|40960|m|535
27b8|NVIDIA L4|8.9|23034||525
26b5|NVIDIA L40|8.9|46068||525
26b9|NVIDIA L40S|8.9|46068||535
26ba|NVIDIA L20|8.9|||535
27b6|NVIDIA L2|8.9|||535
26b1|NVIDIA RTX 6000 Ada Generation|8.9|49140||525
2684|NVIDIA GeForce RTX 4090|8.9|24564||520
2330|NVIDIA H100 80GB HBM3|9.0|81559|ms|525.85.12
2331|NVIDIA H100 PCIe|9.0|81559|m|525.85.12
2321|NVIDIA H100 NVL|9.0|95830|m|535
2339|NVIDIA H100|9.0||ms|525
2338||9.0|97871|m|
233d||9.0|97871|m|
2322|NVIDIA H800 PCIe|9.0|81559|m|525
2324|NVIDIA H800|9.0|81559|ms|525
233a|NVIDIA H800 NVL|9.0|95830|m|
2329|NVIDIA H20|9.0|97871|ms|535.161.07
232c|NVIDIA H20-3e|9.0|143771|ms|550
230e|NVIDIA H20 NVL16|9.0||m|
2335|NVIDIA H200|9.0|143771|ms|550.90.07
233b|NVIDIA H200 NVL|9.0|143771|m|550
2342|NVIDIA GH200 480GB|9.0|97871|mc|535
2342:10de:16eb|NVIDIA GH200 120GB|9.0|97871|mc|535
2342:10de:1805|NVIDIA GH200 120GB|9.0|97871|mc|535
2348|NVIDIA GH200 144G HBM3e|9.0||mc|550
2920||10.0||ml|
29bc||10.0||ml|
2901|NVIDIA B200|10.0|183359|ml|570.133.20
2941|NVIDIA GB200|10.0|189471|mrc|570.133.20
3182|NVIDIA B300 SXM6 AC|10.3|275040|ml|580.95.05
31c2|NVIDIA GB300|10.3|284208|mrc|580.95.05
31c3|NVIDIA GB300|10.3|284208|mc|580.95.05
2bb1|NVIDIA RTX PRO 6000 Blackwell Workstation Edition|12.0|97887|m|575.51.03
2bb4|NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition|12.0|97887|m|575.51.03
2bb5|NVIDIA RTX PRO 6000 Blackwell Server Edition|12.0|97887|m|575.51.03
2bb3|NVIDIA RTX PRO 5000 Blackwell|12.0||m|575.57.08
2bb3:*:227a|NVIDIA RTX PRO 5000 72GB Blackwell|12.0||m|575.57.08
2c31|NVIDIA RTX PRO 4500 Blackwell|12.0||m|575.64
2c34|NVIDIA RTX PRO 4000 Blackwell|12.0|||575
2c33|NVIDIA RTX PRO 4000 Blackwell SFF Edition|12.0|||575
2d30|NVIDIA RTX PRO 2000 Blackwell|12.0|||575
2b85|NVIDIA GeForce RTX 5090|12.0|32607||570
2e12|NVIDIA GB10|12.1|||580
"""

# Ranges of PCI ids by architecture (pci.ids), for models that are not in the table.
_GENERATIONS = (
    (0x0fc0, 0x103f, "kepler"), (0x1180, 0x11ff, "kepler"), (0x1280, 0x12ff, "kepler"), (0x1340, 0x143f, "maxwell"),
    (0x15f0, 0x15ff, "pascal"), (0x1617, 0x1667, "maxwell"), (0x1725, 0x172f, "pascal"), (0x174d, 0x17ff, "maxwell"),
    (0x1b00, 0x1d7f, "pascal"), (0x1d80, 0x1dff, "volta"), (0x1e00, 0x1fff, "turing"), (0x2080, 0x20ff, "ampere"),
    (0x2180, 0x21ff, "turing"), (0x2200, 0x223f, "ampere"), (0x2300, 0x23ff, "hopper"), (0x2400, 0x25ff, "ampere"),
    (0x2600, 0x28ff, "ada-lovelace"), (0x2900, 0x29ff, "blackwell"), (0x2b00, 0x2fff, "blackwell"),
    (0x3180, 0x31ff, "blackwell"),
)
# The last driver branch that supports an architecture. Current branches support the others.
_LAST_BRANCH = {"kepler": 470, "maxwell": 580, "pascal": 580, "volta": 580}
_FABRICS = {"s": "nvswitch", "l": "nvlink5", "r": "nvlink5_rack"}
_OPEN_MODULES = {"kepler": "no", "maxwell": "no", "pascal": "no", "volta": "no", "blackwell": "required"}


class Model(t.NamedTuple):
    """One GPU model.

    name: as NVML reports it (R470 and later), None if unknown. compute_capability: C((major, minor)). memory_mib: the
    total that NVML reports with default ECC, None if unknown. mig_capable: whether it supports MIG. first_driver: a
    lower bound (version or branch), for models with MIG the first one with MIG; None if unknown. open_modules: C(no),
    C(optional) or C(required). coherent: whether it shares memory with a Grace CPU (NVLink-C2C). fabric: that of its
    boards: C(none), C(nvswitch) (switches on the PCI bus, fabric manager), C(nvlink5) (fabric manager and NVLSM) or
    C(nvlink5_rack) (the rack manages the switches, hosts run IMEX).
    """

    device_id: str
    name: str | None
    compute_capability: t.Tuple[int, int]
    memory_mib: int | None
    mig_capable: bool
    fabric: str
    coherent: bool
    first_driver: str | None
    open_modules: str

    @property
    def architecture(self) -> str:
        """See L(architecture_of)."""
        return architecture_of(*self.compute_capability)

    @property
    def last_branch(self) -> int | None:
        """The last driver branch that supports it, None if current branches do."""
        return _LAST_BRANCH.get(self.architecture)


def fabric_of(models: t.Iterable[Model | None], switches: int) -> str:
    """The fabric of a host: C(none), C(nvswitch), C(nvlink5) or C(nvlink5_rack), see L(Model.fabric).

    switches: the number of NVSwitches on the PCI bus. NVLink 5 switches are not there; the model shows them.
    """
    kinds = {model.fabric for model in models if model}
    newer = sorted(kinds - {"none", "nvswitch"})
    return newer[0] if newer else "nvswitch" if switches else "none"


def architecture_of(major: int, minor: int) -> str:
    """The architecture as in the label C(gpu.family), C(undefined) if the label has no name for it."""
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return {3: "kepler", 5: "maxwell", 6: "pascal", 9: "hopper", 10: "blackwell", 12: "blackwell",
            13: "rubin"}.get(major, "undefined")


def _model(row: str) -> t.Tuple[str, Model]:
    """The key and the model of a row in the table."""
    key, name, capability, memory, flags, first = row.split("|")
    major, minor = (int(part) for part in capability.split("."))
    # Hosts with a Grace CPU need open modules. For others this depends on the architecture.
    modules = "required" if "c" in flags else _OPEN_MODULES.get(architecture_of(major, minor), "optional")
    fabric = next((kind for flag, kind in _FABRICS.items() if flag in flags), "none")
    return key, Model(key[:4], name or None, (major, minor), int(memory) if memory else None, "m" in flags, fabric,
                      "c" in flags, first or None, modules)


MODELS: t.Dict[str, Model] = dict(_model(row) for row in _TABLE.split("\n") if row)


def model_of(device_id: str, subsystem: str | None = None) -> Model | None:
    """The model for a PCI device id (C(20b2)) and subsystem (C(10de:1463)), None for an unknown id."""
    device_id = device_id.lower()
    if subsystem:
        vendor, board = subsystem.lower().split(":")
        for key in (f"{device_id}:{vendor}:{board}", f"{device_id}:*:{board}"):
            if key in MODELS and ("*" not in key or vendor in _WORKSTATION_VENDORS):
                return MODELS[key]
    return MODELS.get(device_id)


def generation_of(device_id: str) -> str | None:
    """The architecture for a PCI device id, also for unknown models; None outside of the known ranges."""
    model = model_of(device_id)
    if model is not None:
        return model.architecture
    number = int(device_id, 16) if device_id else -1
    return next((name for first, last, name in _GENERATIONS if first <= number <= last), None)

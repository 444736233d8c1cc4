# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The types of facts: of a host, as gpu_info returns them, and of a cluster, as read_cluster returns them. PRIVATE.

They have the keys that planning and verification read. The documentation of gpu_info and gpu_policy explains the keys.
None means "not known", as for most facts that are made from the labels of a Node.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section

Text = t.Optional[str]
Flag = t.Optional[bool]


class System(t.TypedDict):
    id: Text
    version_id: Text
    family: str


class Kernel(t.TypedDict):
    release: Text
    flavour: Text
    headers: Flag
    headers_package: Text
    headers_available: Flag
    newest_installed: Text


class Mok(t.TypedDict):
    tool: Flag
    enrolled: Flag


class Markers(t.TypedDict):
    kubernetes: Text
    immutable: Flag


class Machine(t.TypedDict):
    arch: str
    os: System
    kernel: Kernel
    secure_boot: Flag
    lockdown: Text
    mok: Mok
    markers: Markers


class MigInstance(t.TypedDict):
    profile: Text
    uuids: t.List[Text]


class Mig(t.TypedDict):
    enabled: bool
    pending: bool
    instances: t.List[MigInstance]


class Ecc(t.TypedDict):
    volatile: t.Optional[int]
    aggregate: t.Optional[int]


class RemappedRows(t.TypedDict):
    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


class NvLinks(t.TypedDict):
    links: int
    down: t.List[int]


class PcieLink(t.TypedDict):
    width: t.Optional[int]
    width_max: t.Optional[int]
    generation: t.Optional[int]
    generation_max: t.Optional[int]


class GpuFabric(t.TypedDict):
    state: str
    status: int


class Health(t.TypedDict):
    """The condition of a GPU."""

    ecc: Ecc
    retired_pages_pending: Flag
    remapped_rows: t.Optional[RemappedRows]
    nvlink: t.Optional[NvLinks]
    pcie: PcieLink
    idle: Flag
    slowdown: t.Optional[t.List[str]]
    fabric: t.Optional[GpuFabric]
    recovery: Text


class Xid(t.TypedDict):
    pci: str
    xid: int
    count: int
    first: str
    last: str


class Gpu(t.TypedDict):
    """A GPU on the PCI bus."""

    pci: str
    device_id: str
    subsystem: Text
    model: Text
    architecture: Text
    mig_capable: bool
    kernel_driver: Text
    uuid: Text
    mig: t.Optional[Mig]
    health: t.Optional[Health]
    error: Text


class Dkms(t.TypedDict):
    name: str
    version: str
    kernel: Text
    state: str


class Service(t.TypedDict):
    state: str
    enabled: str


class Nvml(t.TypedDict):
    available: Flag
    error: Text


class Driver(t.TypedDict):
    """The driver. loaded, library: versions; packages: maps names to versions; nodes: maps device nodes to faults."""

    loaded: Text
    library: Text
    flavour: Text
    source: Text
    packages: t.Dict[str, str]
    dkms: t.List[Dkms]
    reboot_pending: Flag
    missing_files: t.Optional[t.List[str]]
    nodes: t.Optional[t.Dict[str, str]]
    services: t.Optional[t.Dict[str, Service]]
    nvml: Nvml


class Runtime(t.TypedDict):
    version: Text
    running: Flag
    boot: Text
    stale: Flag
    cri: Flag
    nvidia: Flag
    classes: t.List[str]


class Rootless(t.TypedDict):
    classes: t.Optional[t.List[str]]
    running: Flag


class Cdi(t.TypedDict):
    devices: t.List[str]
    driver: Text


class Toolkit(t.TypedDict):
    version: Text
    packages: t.Dict[str, str]
    cdi_specs: t.List[str]
    missing_files: t.Optional[t.List[str]]
    cdi: t.Optional[Cdi]


Program = t.Optional[Section]  # C({version, running, listen or folder}), None if it is not installed


class Software(t.TypedDict):
    cuda: t.Dict[str, str]
    dcgm: Program
    dcgm_exporter: Program
    node_status_exporter: Program


class BootInstance(t.TypedDict):
    profile: str
    compute: t.List[t.List[int]]


class BootGpu(t.TypedDict):
    enabled: bool
    instances: t.List[BootInstance]


class MigBoot(t.TypedDict):
    enabled: Flag
    masked: Flag
    gpus: t.Optional[t.Dict[str, BootGpu]]
    vendor: Text


class JournalFault(t.TypedDict):
    concern: str
    message: str
    hint: str


class FormerDriver(t.TypedDict):
    """The driver before the last change. source, installation: values of C(driver_source) and
    C(driver_installation)."""

    version: str
    flavour: Text
    source: str
    installation: str


class Journals(t.TypedDict):
    brought: t.List[str]
    faults: t.List[JournalFault]
    former_driver: t.Optional[FormerDriver]


class Client(t.TypedDict):
    pid: t.Optional[int]
    name: Text
    unit: Text
    container: Text


class HostFacts(t.TypedDict):
    """The facts of a host. modules: maps kernel modules to whether they are loaded; clients: processes with a GPU."""

    host: Machine
    gpus: t.List[Gpu]
    nvswitches: t.List[Section]
    nvlink: t.Dict[str, Text]
    xids: t.Optional[t.List[Xid]]
    vgpu: t.Optional[t.Dict[str, Text]]
    driver: Driver
    modules: t.Dict[str, Flag]
    runtimes: t.Dict[str, t.Optional[Runtime]]
    rootless: t.Dict[str, Rootless]
    toolkit: Toolkit
    software: Software
    mig_boot: MigBoot
    journals: Journals
    clients: t.List[Client]


class NodeSystem(t.TypedDict):
    id: str
    version: str


class Node(t.TypedDict):
    """A Node. os: from NFD's labels or the image's name; runtime: C(containerd), C(docker), C(crio) or another name;
    written: the labels that this collection has written, only if the annotation that lists them is missing."""

    labels: t.Dict[str, str]
    annotations: t.Dict[str, str]
    os: t.Optional[NodeSystem]
    os_image: str
    kernel: str
    arch: str
    runtime: str
    runtime_version: str
    kubelet: str
    provider: Text
    taints: t.List[Section]
    ready: bool
    gpu: bool
    written: t.NotRequired[t.List[str]]


class DriverImage(t.TypedDict):
    tag: str
    kernel_module_type: str


class NvidiaDriver(t.TypedDict):
    uid: str
    there: t.Dict[str, str]


class ClusterFacts(t.TypedDict):
    """The facts of a cluster. config_maps: maps names to texts by key, or to None if there is no such ConfigMap."""

    server: str
    version: str
    nodes: t.Dict[str, Node]
    nfd: str
    service_monitors: bool
    prometheus_rules: t.NotRequired[bool]
    openshift: t.NotRequired[Flag]
    config_maps: t.NotRequired[t.Dict[str, t.Optional[t.Dict[str, str]]]]
    secrets: t.NotRequired[t.Dict[str, bool]]
    driver_daemon_sets: t.NotRequired[t.Dict[str, str]]
    driver_images: t.NotRequired[t.Dict[str, DriverImage]]
    driver_kernels: t.NotRequired[t.Dict[str, str]]
    nvidia_drivers: t.NotRequired[t.Dict[str, NvidiaDriver]]
    toolkit_runtime: t.NotRequired[str]


Nodes = t.Mapping[str, Node]
# For manifests that are only rendered.
NO_CLUSTER: ClusterFacts = {"server": "", "version": "", "nodes": {}, "nfd": "none", "service_monitors": False}

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Gather facts about the NVIDIA GPUs of a host, with or without a driver
version_added: 0.1.0
description:
  - Reads the PCI bus, the kernel, the distribution, the firmware, packages, container runtimes and GPU clients.
  - If a driver is loaded, the module also reads NVML. What cannot be read is null, and the result has the reason.
  - A missing driver, a lost GPU or a failed read is a fact and never an error.
options:
  cuda_samples:
    description:
      - Whether to add two vectors on each GPU with the library of the driver, as the validator of the GPU Operator
        does, and compare the sums. It needs no compiler and no CUDA toolkit. It uses 12 KiB of memory of each GPU in
        addition to the context of the driver. RV(samples) has the results. M(gpuops.nvidia.gpu_verify) compares them
        with the plan.
      - A GPU on which another process computes is not touched and is V(busy). If a GPU is in MIG mode, its first MIG
        device is used. A GPU in MIG mode without MIG devices is V(busy), too, because nothing can run on it.
    type: bool
    default: false
  cuda_timeout:
    description:
      - Seconds for O(cuda_samples) on all GPUs, which run at the same time. A sample that has not ended by then is
        V(failed).
    type: int
    default: 60
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
"""

EXAMPLES = r"""
- name: Gather the facts of the host
  gpuops.nvidia.gpu_info:
  register: gpu_host

- name: Show the models of its GPUs
  ansible.builtin.debug:
    msg: "{{ gpu_host.facts.gpus | map(attribute='model') | list }}"

- name: Run a CUDA sample on every GPU
  gpuops.nvidia.gpu_info:
    cuda_samples: true
  register: gpu_tried

- name: Show the GPUs on which it failed
  ansible.builtin.debug:
    msg: "{{ gpu_tried.samples | selectattr('state', 'eq', 'failed') }}"
"""

RETURN = r"""
facts:
  description: The facts. All keys are always present. A value that is not known is null.
  returned: success
  type: dict
  contains:
    schema:
      description: The version of this structure.
      type: int
      returned: always
      sample: 3
    host:
      description:
        - C(host.hostname), C(host.arch), C(host.machine) and C(host.vendor) (product and vendor by DMI).
        - C(host.virtual) is the hypervisor, V(kvm), V(vmware), V(microsoft), V(amazon) and so on, null on bare metal.
          C(host.cloud) is V(aws), V(azure), V(gcp) or V(oracle), virtual or not.
        - C(host.os) with C(id), C(version_id), C(codename), C(pretty_name) and C(family), which is V(debian),
          V(redhat), V(suse) or V(other).
        - C(host.kernel) with C(release), C(flavour) (V(generic), V(aws), V(cloud-amd64), V(64k) and so on), C(headers),
          whether modules can be built for it, and C(headers_package), the package that contains the headers.
        - C(host.kernel.headers_available) says whether the current index of the package manager has that package. It is
          read only on a host with a GPU that has neither headers nor a loaded driver. Otherwise it is null.
        - C(host.kernel.newest_installed) is the newest kernel in /boot. If it differs from C(release), the next boot
          starts another kernel. It is null if /boot has no kernel.
        - C(host.secure_boot) is null if the firmware does not report it. C(host.mok.tool) says whether mokutil is
          installed. C(host.mok.enrolled) says whether a key with which DKMS or akmods sign modules is enrolled; it is
          null if the firmware shows no list of keys. C(host.lockdown) is V(none), V(integrity), V(confidentiality) or
          null.
        - C(host.markers.dgx) has C(name) and C(version) of DGX OS, otherwise it is null. C(host.markers.kubernetes) is
          V(k3s), V(rke2), V(k0s), V(microk8s), V(eks), V(gke), V(aks), V(openshift), V(kubeadm) or null.
          C(host.markers.immutable) says that /usr is read-only.
      type: dict
      returned: always
      sample:
        hostname: gpu-1
        os: {id: debian, version_id: "12", codename: bookworm, family: debian, pretty_name: Debian GNU/Linux 12}
        kernel:
          release: 6.1.0-28-amd64
          flavour: amd64
          headers: true
          headers_package: linux-headers-6.1.0-28-amd64
          headers_available: null
          newest_installed: 6.1.0-28-amd64
        arch: x86_64
        machine: DGXA100 920-23687-2530-000
        vendor: NVIDIA
        virtual: null
        cloud: null
        secure_boot: false
        mok: {tool: true, enrolled: null}
        lockdown: none
        markers: {dgx: null, kubernetes: null, immutable: false}
    gpus:
      description:
        - The GPUs, sorted by PCI address. C(model), C(architecture), C(compute_capability) and C(mig_capable) come from
          NVML, or from the PCI ids if no driver is loaded. C(kernel_driver) is the kernel driver that is bound to the
          GPU.
        - C(mig) is null if the GPU is not MIG-capable or NVML cannot read it. C(instances) are its GPU instances by
          placement, each with its MIG devices. C(error) is the reason if a GPU could not be read.
        - C(health) is what NVML says about the condition of the GPU, null if the GPU does not answer. A value that the
          GPU or its driver does not know is null.
        - C(health.ecc) has the numbers of uncorrectable memory errors since the driver was loaded (C(volatile)) and in
          the life of the GPU (C(aggregate)). C(health.retired_pages_pending) says whether a page waits for its
          retirement (GPUs before Ampere). C(health.remapped_rows) has the rows that were remapped, and whether a
          remapping is pending or has failed (Ampere and later).
        - C(health.nvlink) has the number of NVLinks and the numbers of those that are down, null for a GPU without
          NVLinks. C(health.pcie) has the current width and generation of the PCIe link, and the highest that the GPU
          and its slot allow. C(health.idle) says whether nothing runs on the GPU; it then reduces its link.
        - C(health.slowdown) lists why the clocks are reduced, V(hw), V(hw_thermal), V(hw_power_brake) or V(sw_thermal).
        - C(health.fabric) is the registration with the NVLink fabric. C(state) is V(not_started), V(in_progress) or
          V(completed), C(status) an error number of NVML, 0 for none. It is null for a GPU without a fabric.
        - C(health.recovery) is what the driver recommends, V(none), V(reset), V(reboot), V(drain_p2p),
          V(drain_and_reset), V(recover_imex_domain), V(bus_reset) or V(system_reboot).
      type: list
      elements: dict
      returned: always
      sample:
        - pci: "0000:07:00.0"
          device_id: 20b2
          subsystem: 10de:1463
          class: "0302"
          model: NVIDIA A100-SXM4-80GB
          architecture: ampere
          compute_capability: "8.0"
          mig_capable: true
          kernel_driver: nvidia
          index: 0
          uuid: GPU-4d6f636b-0000-4000-8000-000000000000
          minor: 0
          serial: "1650000000000"
          memory_mib: 81920
          mig: {enabled: false, pending: false, instances: []}
          fabric: null
          health:
            ecc: {volatile: 0, aggregate: 0}
            retired_pages_pending: null
            remapped_rows: {correctable: 0, uncorrectable: 0, pending: false, failed: false}
            nvlink: {links: 12, down: []}
            pcie: {width: 16, width_max: 16, generation: 4, generation_max: 4}
            idle: true
            slowdown: []
            fabric: null
            recovery: none
          error: null
    nvswitches:
      description: NVSwitch bridges on the PCI bus.
      type: list
      elements: dict
      returned: always
      sample: [{pci: "0000:c4:00.0", device_id: 1af1}]
    nvlink:
      description:
        - C(nvlink.switches) is the number of NVSwitch bridges on the PCI bus.
        - C(nvlink.fabric) is V(none), V(nvswitch), V(nvlink5) if the boards have NVLink 5 switches, which are not on
          the bus (B200, B300), or V(nvlink5_rack) if the switches belong to the rack and not to the host (GB200,
          GB300).
      type: dict
      returned: always
      sample: {switches: 6, fabric: nvswitch}
    xids:
      description:
        - The Xids that the driver has written to the kernel log since boot, by GPU (C(pci), also of a GPU that is no
          longer on the bus) and number (C(xid)), with how often, and the times of the first and the last one.
        - Read from the journal, or from C(/dev/kmsg), which has only the newest messages. It is null if neither can be
          read, and empty if no driver is loaded.
      type: list
      elements: dict
      returned: always
      sample:
        - {pci: "0000:3b:00.0", xid: 79, count: 1, first: "2026-11-27T20:01:02Z", last: "2026-11-27T20:01:02Z"}
    mellanox:
      description: Whether the host has a Mellanox network adapter.
      type: bool
      returned: always
    vgpu:
      description: For a guest with a vGPU, C(version) and C(branch) of the driver of its hypervisor. Otherwise null.
      type: dict
      returned: always
    driver:
      description:
        - C(driver.loaded) is the version of the loaded module, C(driver.library) the version of the installed NVML
          library, C(driver.packages) the packages of the driver.
        - C(driver.flavour) is V(open) or V(proprietary), C(driver.source) is V(cuda_repository),
          V(distribution), V(runfile), V(container) (a driver container has mounted its root) or V(preinstalled) (part
          of the image of the operating system). C(driver.reboot_pending) is true if the loaded version differs from the
          installed version, or if the distribution requests a reboot.
        - C(driver.dkms) lists the modules of the vendor in DKMS, each with C(name), C(version), C(kernel) and C(state),
          which is V(installed), V(built), or V(added) if the module is built for no kernel.
        - C(driver.missing_files) are programs, libraries and sources of the packages of the driver that are missing or
          damaged. It is null if the package database has no information about them.
        - C(driver.nodes) maps the path of each faulty device node that the loaded driver needs to its problem. This is
          V(missing), V(no device) or its mode, such as V(mode 0000). C(driver.nodes) is null if no driver is loaded, if
          a driver container creates device nodes, or if the parameters of the module say that another program does.
        - C(driver.services) has the services of the driver by unit. C(state) is for example V(active), V(inactive),
          V(failed) or V(absent). C(enabled) is for example V(enabled), V(disabled) or V(masked). It is null if no
          driver is installed, or if systemd does not answer.
        - C(driver.nvml) has C(available), C(error) and C(cuda), the newest CUDA level that the driver supports.
      type: dict
      returned: always
      sample:
        loaded: 595.91.07
        flavour: open
        library: 595.91.07
        packages: {nvidia-open: 595.91.07-1}
        source: cuda_repository
        dkms: [{name: nvidia, version: 595.91.07, kernel: 6.1.0-28-amd64, state: installed}]
        reboot_pending: false
        missing_files: []
        nodes: {}
        services: {nvidia-persistenced.service: {state: active, enabled: enabled}}
        nvml: {available: true, error: null, cuda: "13.2"}
    modules:
      description:
        - Whether the relevant kernel modules are loaded.
        - C(modules.nouveau_denied) is true if the configuration of modprobe or the kernel command line blocks nouveau.
      type: dict
      returned: always
      sample: {nouveau: false, nvidia: true, nvidia_uvm: true, nouveau_denied: true}
    runtimes:
      description:
        - The container runtimes C(containerd), C(docker), C(crio) and C(podman). A runtime that is not installed is
          null.
        - C(running) says whether its service is running. It is null for Podman, which has no service, and if systemd
          does not answer. C(boot) is V(yes) if the service starts at boot, V(no), V(masked), or null if this is not
          known.
        - C(stale) says for containerd and CRI-O whether a configuration file has changed since the service was started
          or reloaded. It is null for the others, and if this is not known.
        - C(cri) says for containerd whether its CRI plugin is enabled. Packages of Docker disable it. It is null for
          the others.
        - C(classes) are the names of the runtime classes in the configuration, except those of Podman.
        - C(nvidia) says whether the configuration has a runtime named V(nvidia), and for Podman whether a CDI
          specification exists.
      type: dict
      returned: always
      sample:
        containerd: {version: 1.6.20, running: true, boot: "yes", stale: false, cri: true, nvidia: true,
                     classes: [nvidia, runc]}
        docker: null
        crio: null
        podman: null
    rootless:
      description:
        - The rootless Docker of the users that M(gpuops.nvidia.container_toolkit) has configured, by name of the user.
        - C(classes) are the runtime classes in its C(daemon.json), C(running) says whether it is running. They are null
          if this cannot be read.
      type: dict
      returned: always
      sample: {builder: {classes: [nvidia], running: true}}
    toolkit:
      description:
        - The NVIDIA container toolkit and the CDI specifications for NVIDIA devices.
        - C(missing_files) are programs and libraries of its packages that are missing or damaged, and the settings
          file C(/etc/nvidia-container-runtime/config.toml) if it is missing. It is null if the package database has no
          information about them.
        - C(cdi) has the devices in the specifications of the kind C(nvidia.com/gpu), and the driver version that they
          are for. It is null if there is no such specification.
      type: dict
      returned: always
      sample:
        version: 1.20.0
        packages: {nvidia-container-toolkit: 1.20.0-1}
        missing_files: []
        cdi_specs: [/var/run/cdi/nvidia.yaml]
        cdi: {devices: ["0", GPU-81d291f8-ceb4-43aa-af27-1ce1531dca49], driver: 595.91.07}
    software:
      description:
        - The software of the vendor apart from the driver. C(software.cuda) maps each installed CUDA level to the
          release of its toolkit.
        - C(dcgm), C(dcgm_exporter) and C(node_status_exporter) are null if they are not installed. C(running) says
          whether their service is running.
      type: dict
      returned: always
      sample:
        cuda: {"13.0": 13.0.2}
        dcgm: {version: 4.6.0, running: true}
        dcgm_exporter: {version: 4.8.3, running: true, listen: ":9400"}
        node_status_exporter: null
    mig_boot:
      description:
        - Whether C(gpuops-mig.service) is C(enabled), and by UUID the layout that it restores at boot (C(gpus), null if
          there is none). C(masked) is true if the unit is masked. C(vendor) is the name of the corresponding unit of
          the vendor, if that is enabled.
      type: dict
      returned: always
      sample:
        enabled: true
        masked: false
        gpus:
          gpu-81d291f8-ceb4-43aa-af27-1ce1531dca49:
            {pci: "0000:07:00.0", enabled: true, instances: [{profile: 7g.80gb, start: 0, compute: [[7, 0]]}]}
        vendor: null
    journals:
      description:
        - The journals of this collection in C(/var/lib/gpuops/journal). C(brought) lists the journals that are not
          empty, such as V(driver), V(container_toolkit) or V(mig).
        - C(faults) lists the journals that the modules would refuse, because they are damaged or users other than root
          could have written them. C(message) describes the fault, C(hint) what to do.
        - C(former_driver) is the driver that was on the host before the last change by M(gpuops.nvidia.nvidia_driver),
          with C(version), C(flavour), C(source) and C(installation); null if none is recorded.
      type: dict
      returned: always
      sample:
        brought: [container_toolkit, driver]
        faults: []
        former_driver: {version: 580.126.20, flavour: open, source: cuda_repository, installation: compute-only}
    clients:
      description:
        - Processes that have an NVIDIA device open. C(gpu) is a PCI address. It is null for a process that has only a
          control device open.
        - C(instance) is the id of the GPU instance, null for the whole GPU.
        - C(container) is the beginning of the id of the container of the process. For a process outside containers,
          C(unit) is its systemd unit.
      type: list
      elements: dict
      returned: always
      sample:
        - {pid: 4711, name: python3, gpu: "0000:07:00.0", instance: null, unit: training.service, container: null}
samples:
  description:
    - The result for each GPU. C(state) is V(ok), V(busy) or V(failed). C(reason) says why. C(device) is the UUID of the
      GPU or MIG device, null if the GPU does not answer.
    - If no sample can run on any GPU, there is one entry without C(gpu).
  returned: when O(cuda_samples)
  type: list
  elements: dict
  sample:
    - {gpu: "0000:07:00.0", device: GPU-5a9d3f9c-92ab-4f43-8f7a-1d7c6f3f2a10, state: ok, reason: ""}
"""


from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.collect import collect
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.health import health_snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run


def look(module: _module_main.Module) -> Result:
    """The result of the module."""
    snapshot = health_snapshot()
    result: Result = {"changed": False, "facts": collect(Root(), run, snapshot)}
    if module.params["cuda_samples"]:
        from ansible_collections.gpuops.nvidia.plugins.module_utils._cuda import samples

        result["samples"] = samples(snapshot, module.params["cuda_timeout"])
    return result


def main() -> None:
    """Entry point."""
    module = _module_main.Module(
        argument_spec={"cuda_samples": {"type": "bool", "default": False},
                       "cuda_timeout": {"type": "int", "default": 60}},
        supports_check_mode=True)
    _module_main.finish(module, lambda: look(module))


if __name__ == "__main__":
    main()

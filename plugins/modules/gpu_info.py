# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Gather everything about a host's NVIDIA GPUs, with or without a driver
version_added: 0.1.0
description:
  - Reads the PCI bus, the kernel, the distribution, firmware, packages, container runtimes and who holds a GPU.
  - Where a driver runs, NVML tells the rest. What cannot be read is null, and the reason is said beside it.
  - A missing driver, a lost GPU or a failed reading is a fact and never an error.
options:
  cuda_samples:
    description:
      - Also adds two vectors on each GPU by way of the driver's own library, as the GPU Operator's validator does, and
        compares the sums. It needs neither compiler nor CUDA toolkit, and 12 KiB of each GPU besides what the driver
        takes for a context. RV(samples) say what came of it, and M(gpuops.nvidia.gpu_verify) judges them.
      - A GPU on which a process computes is not touched; it counts as V(busy). Where MIG is on, the first MIG device of
        the GPU is taken; a GPU with MIG on and without devices is V(busy) too, as nothing can run there.
    type: bool
    default: false
  cuda_timeout:
    description:
      - Seconds for O(cuda_samples) of all GPUs together, which are asked at the same time. What has not ended by then
        is V(failed).
    type: int
    default: 60
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
"""

EXAMPLES = r"""
- name: Look at the host
  gpuops.nvidia.gpu_info:
  register: gpu_host

- name: Say which GPUs it has
  ansible.builtin.debug:
    msg: "{{ gpu_host.facts.gpus | map(attribute='model') | list }}"

- name: Does CUDA work on every GPU
  gpuops.nvidia.gpu_info:
    cuda_samples: true
  register: gpu_tried

- name: Name those on which it does not
  ansible.builtin.debug:
    msg: "{{ gpu_tried.samples | selectattr('state', 'eq', 'failed') }}"
"""

RETURN = r"""
facts:
  description: Everything readable. All keys are always present; what is unknown is null.
  returned: success
  type: dict
  contains:
    schema:
      description: The number of this shape.
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
          whether modules can be built for it, and C(headers_package), what the package manager is to install for that.
        - C(host.kernel.headers_available) says whether the package manager's present index has that package. It is
          asked for only where it matters, on a host with a GPU, without headers and without a loaded driver, and is
          null everywhere else.
        - C(host.kernel.newest_installed) is the newest kernel in /boot. Where it is not C(release), the next boot
          brings another kernel. Null where /boot has none.
        - C(host.secure_boot) is null where the firmware does not say. C(host.mok.tool) says whether mokutil is there,
          C(host.mok.enrolled) whether a key that DKMS or akmods sign modules with is enrolled, null where the firmware
          shows no list of keys. C(host.lockdown) is V(none), V(integrity), V(confidentiality) or null.
        - C(host.markers.dgx) has C(name) and C(version) of a DGX OS, else null. C(host.markers.kubernetes) is V(k3s),
          V(rke2), V(k0s), V(microk8s), V(eks), V(gke), V(aks), V(openshift), V(kubeadm) or null.
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
        - The GPUs by PCI address. C(model), C(architecture), C(compute_capability) and C(mig_capable) come from NVML,
          or before a driver runs from the PCI ids. C(kernel_driver) is what is bound to it.
        - C(mig) is null where the GPU cannot do MIG or NVML cannot tell; C(instances) are its GPU instances by
          placement, each with its MIG devices. C(error) says why a GPU could not be read.
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
        - C(nvlink.fabric) is V(none), V(nvswitch), V(nvlink5) where the boards have NVLink 5 switches, which are not on
          the bus (B200, B300), or V(nvlink5_rack) where a rack has them and they are not the host's business (GB200,
          GB300).
      type: dict
      returned: always
      sample: {switches: 6, fabric: nvswitch}
    mellanox:
      description: Whether a Mellanox network adapter is there.
      type: bool
      returned: always
    vgpu:
      description: The host's driver C(version) and C(branch) where this is a guest with a vGPU, else null.
      type: dict
      returned: always
    driver:
      description:
        - C(driver.loaded) is the version of the loaded module, C(driver.library) that of the installed
          NVML library, C(driver.packages) the driver's packages.
        - C(driver.flavour) is V(open) or V(proprietary), C(driver.source) is V(cuda_repository),
          V(distribution), V(runfile), V(container) (a driver container has its root mounted) or V(preinstalled) (it
          came with the system's image). C(driver.reboot_pending) says that another version is loaded than
          installed, or that the distribution asks for a reboot.
        - C(driver.dkms) is what DKMS has of the vendor's modules, each with C(name), C(version), C(kernel) and
          C(state), which is V(installed), V(built), or V(added) for one that is built for no kernel.
        - C(driver.missing_files) are programs, libraries and sources of the driver's packages that are missing or
          damaged, null where the package database does not tell.
        - C(driver.nodes) has by path what is wrong with a device node that the loaded driver needs, V(missing),
          V(no device) or its mode, such as V(mode 0000). It is null where the module's parameters leave device nodes to
          somebody else, where a driver container brings them, and without a loaded driver.
        - C(driver.services) has the driver's own services by unit. C(state) is V(active), V(inactive), V(failed) or
          V(absent), among others, C(enabled) is V(enabled), V(disabled) or V(masked), among others. It is null where no
          driver is installed and where systemd does not answer.
        - C(driver.nvml) has C(available), C(error) and C(cuda), the newest CUDA that the driver serves.
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
        - Whether kernel modules that matter are loaded.
        - C(modules.nouveau_denied) says that modprobe's configuration or the kernel's command line keep nouveau away.
      type: dict
      returned: always
      sample: {nouveau: false, nvidia: true, nvidia_uvm: true, nouveau_denied: true}
    runtimes:
      description:
        - The container runtimes C(containerd), C(docker), C(crio) and C(podman), null where one is not installed.
        - C(running) is the state of its service, null without one, as podman is, and where systemd does not answer.
          C(boot) is V(yes) where it starts at boot, V(no), V(masked), or null where that is not known.
        - C(stale) says of containerd and CRI-O whether a file of their configuration has changed since they were
          started or told to read it. It is null for the others and where that is not known.
        - C(nvidia) says whether its configuration has the runtime named V(nvidia), for podman also whether a CDI
          specification is there.
      type: dict
      returned: always
      sample:
        containerd: {version: 1.6.20, running: true, boot: "yes", stale: false, nvidia: true}
        docker: null
        crio: null
        podman: null
    toolkit:
      description:
        - The NVIDIA container toolkit and the CDI specifications for NVIDIA devices.
        - C(missing_files) are programs and libraries of its packages that are missing or damaged, and the settings
          file C(/etc/nvidia-container-runtime/config.toml) where that is gone; null where the package database does not
          tell.
        - C(cdi) is what those of the kind C(nvidia.com/gpu) name, and the driver that they are of; null without one.
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
        - The vendor's software beside the driver. C(software.cuda) has by CUDA level the release of its toolkit.
        - C(dcgm), C(dcgm_exporter) and C(node_status_exporter) are null where they are not installed; C(running) is the
          state of their service.
      type: dict
      returned: always
      sample:
        cuda: {"13.0": 13.0.2}
        dcgm: {version: 4.6.0, running: true}
        dcgm_exporter: {version: 4.8.3, running: true, listen: ":9400"}
        node_status_exporter: null
    mig_boot:
      description:
        - Whether C(gpuops-mig.service) is C(enabled), and by UUID what it brings back at boot (C(gpus), null where
          nothing is kept). C(masked) says that somebody has masked the unit. C(vendor) names the vendor's unit for the
          same if that is enabled.
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
        - The records of what this collection has changed, in C(/var/lib/gpuops/journal). C(brought) names those that
          have something on record, such as V(driver), V(container_toolkit) or V(mig).
        - C(faults) are those that the modules would refuse, as they are damaged, or as others than root could have
          written them. C(message) says what is wrong, C(hint) what to do.
      type: dict
      returned: always
      sample: {brought: [container_toolkit, driver], faults: []}
    clients:
      description:
        - Processes that hold an NVIDIA device. C(gpu) is a PCI address, null for one that holds only a control device.
        - C(instance) is the id of the GPU instance, null for the whole GPU.
        - C(container) is the beginning of the id of the container that the process runs in; for one that runs in none
          C(unit) is its systemd unit.
      type: list
      elements: dict
      returned: always
      sample:
        - {pid: 4711, name: python3, gpu: "0000:07:00.0", instance: null, unit: training.service, container: null}
samples:
  description:
    - By GPU what came of it. C(state) is V(ok), V(busy) or V(failed), C(reason) says why, C(device) is the UUID of the
      GPU or MIG device, null where the GPU does not answer.
    - Where nothing can be tried on any GPU there is one entry without C(gpu).
  returned: when O(cuda_samples)
  type: list
  elements: dict
  sample:
    - {gpu: "0000:07:00.0", device: GPU-5a9d3f9c-92ab-4f43-8f7a-1d7c6f3f2a10, state: ok, reason: ""}
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.nvidia.plugins.module_utils import _glue
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.brief import nvml_snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.collect import collect
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run


def look(module: AnsibleModule) -> dict[str, t.Any]:
    """The result of the module."""
    snapshot = nvml_snapshot()
    result: dict[str, t.Any] = {"changed": False, "facts": collect(Root(), run, snapshot)}
    if module.params["cuda_samples"]:
        from ansible_collections.gpuops.nvidia.plugins.module_utils._cuda import samples

        result["samples"] = samples(snapshot, module.params["cuda_timeout"])
    return result


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec={"cuda_samples": {"type": "bool", "default": False},
                                          "cuda_timeout": {"type": "int", "default": 60}}, supports_check_mode=True)
    _glue.finish(module, lambda: look(module))


if __name__ == "__main__":
    main()

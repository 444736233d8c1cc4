# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver
short_description: Install, switch, repair, verify or remove the NVIDIA driver
version_added: 0.1.0
description:
  - Reads the loaded module, packages, DKMS, libraries and services, plans small steps, executes exactly these steps,
    and reads the state again. At the end the versions of module, libraries, DKMS, packages and C(nvidia-smi) agree.
    Otherwise the task fails and names the difference.
  - A pinning package, or a file of this collection if the repository has none, keeps the version, so that an unattended
    upgrade cannot give module and libraries different versions.
  - If there are no GPU clients, loaded modules are replaced without a reboot, which needs O(disruption=idle). The
    services of the driver (DCGM and its exporter, fabric manager, IMEX, gridd, topologyd, persistenced) are stopped for
    this, and those that were running are started again. The fabric manager and IMEX are stopped, or restarted after a
    change of their files, only under the same conditions, because jobs on several GPUs abort without them.
  - With O(disruption=drain) other system services that use a GPU are stopped, too, and started again when the new
    driver works. Containers, login sessions, jobs of a scheduler and processes without a service are never stopped.
  - Modules are never unloaded while anything else uses them. The switch is then RV(pending), RV(holders) lists the GPU
    clients, and the running driver is not changed. The same applies to GPU clients that have started since the plan was
    made. With O(disruption=reboot) the new driver is installed while the former one is still loaded, and
    RV(reboot_required) says that a reboot loads it. The role reboots the host and continues.
  - If an installation, a build, a module or a service fails, the former driver is restored, and C(error.rolled_back)
    has its version. If there was no driver before, everything that the run has installed is removed, unless the
    installation is complete and only the hardware does not answer. If the rollback fails, too, C(error.rollback_error)
    says why.
  - If M(gpuops.nvidia.container_toolkit) has installed the unit that refreshes the CDI specification, the module starts
    it after a change of the driver.
  - Known messages of the kernel and of the programs of the vendor are explained in C(error.explained).
  - Before anything is changed, the module checks that the file systems are writable and have enough space.
  - If programs or libraries of a driver package are missing, the package is installed again. Missing device nodes of
    the loaded driver, and device nodes with too few permissions, are created as the parameters of the module say.
  - If nothing differs, the module reads files, runs C(dpkg-query) and C(systemctl) once each, or C(rpm) twice, and
    needs no network.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.plan
  - gpuops.nvidia._attributes.repository
  - gpuops.nvidia._attributes.proxy
options:
  state:
    description:
      - V(present) installs, switches or repairs the driver.
      - V(absent) removes what this module installed and restores the former state. A foreign driver stays. Loaded
        modules must be unloaded first, which needs O(disruption=idle). Services that are stopped for this stay stopped.
      - V(rolled_back) returns to the driver that was on the host before the last change, with the version, module type,
        source and set of packages that RV(former) shows, and otherwise does what V(present) does. After this, the host
        has its former driver, so a second run with V(rolled_back) changes nothing. A later run with V(present) and
        another version installs that version again. If no former driver is recorded, the task fails. A change that was
        interrupted before it was complete is undone.
      - With V(rolled_back), O(version), O(branch), O(kernel_module_type), O(source) and O(installation) are refused.
        The other options apply as with V(present). A driver from a C(.run) file is fetched again from the URL or path
        from which it was installed, or from O(runfile) if that names this version.
      - V(adopted) changes nothing, and fails if the installed driver does not work. A warning names options that have
        no effect then, such as O(hold_kernel).
      - V(gathered) changes nothing, and returns the current state, also as options in RV(gathered). It allows only the
        options O(disruption), O(lock_timeout) and O(proxy), which have no effect.
    type: str
    choices: [present, absent, adopted, gathered, rolled_back]
    default: present
  version:
    description:
      - The version of the vendor, such as V(595.91.07).
      - If neither this nor O(branch) is set, an installed driver is kept. If there is none, the newest driver that
        supports all GPUs of the host is installed.
    type: str
  branch:
    description:
      - The driver branch, such as V(595). An installed version of this branch is kept, otherwise the newest version of
        the branch is installed.
    type: str
  kernel_module_type:
    description:
      - V(open) or V(proprietary) kernel modules. V(auto) chooses open modules if they support all GPUs of the host.
        For a requested version or branch below 560 it chooses proprietary modules, as the vendor's installer does,
        unless a GPU or O(gds) needs open ones.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  source:
    description:
      - The source of the driver. V(auto) keeps a suitable installed driver, and otherwise chooses the first source that
        supports the distribution.
      - V(cuda_repository) is the repository of NVIDIA for the distribution, or O(repository).
      - V(distribution) is the archive of Ubuntu or Debian, through the package sources of the host.
      - V(precompiled) is the same with the modules that Ubuntu builds and signs for its kernels.
      - V(runfile) is the self-extracting installer of the vendor.
    type: str
    choices: [auto, distribution, cuda_repository, runfile, precompiled]
    default: auto
  installation:
    description:
      - The set of packages, as in the section "Compute-only and Desktop Installation" of the installation guide of the
        vendor.
      - V(full) also has the libraries and drivers for graphics and desktops. V(compute-only) has what CUDA needs.
      - V(auto) keeps the set that is installed. For a first installation, it is V(full) with NVIDIA's repository for
        Ubuntu and Azure Linux and with a C(.run) file, and V(compute-only) with all other sources.
      - A change replaces exactly the packages in which the two sets differ, in the same version, and reloads no module.
        Only a C(.run) file is installed again, because its installer has no other way. With a C(.run) file,
        V(compute-only) is its option C(--no-opengl-files).
      - A source that does not have the set is refused. A set for desktops without CUDA cannot be chosen, because it has
        no C(nvidia-smi) and no C(libcuda).
    type: str
    choices: [auto, full, compute-only]
    default: auto
  runfile:
    description:
      - The self-extracting installer of the vendor, for O(source=runfile). It is downloaded to the host, verified
        before it is run, and deleted after the installation. Missing kernel headers, compiler and DKMS are installed
        from the package sources of the host.
      - If somebody else has installed a driver from such a file, it is kept if it is suitable, and never changed.
    type: dict
    suboptions:
      src:
        description:
          - An C(https) or C(http) URL, or an absolute path on the host. A URL is fetched through O(proxy). If this is
            not set, the proxies in the environment of the task apply.
          - The version is that in the name of the file, or else O(version). The default of O(runfile.src) is the URL of
            the vendor for O(version).
        type: str
      checksum:
        description:
          - The digest of the file, as V(sha256:) and 64 hexadecimal digits.
          - If this is not set, the digest is read through C(https) from the URL of O(runfile.src) with the suffix
            C(.sha256sum), where the vendor and complete mirrors have it. If there is no such file, or O(runfile.src) is
            no C(https) URL, the file is refused.
        type: str
  persistenced:
    description:
      - Whether C(nvidia-persistenced) is enabled and started, so that GPUs stay initialised without GPU clients.
    type: bool
    default: true
  fabric:
    description:
      - V(auto) installs what the board of the GPUs needs, in the version of the driver. On boards with NVSwitches this
        is the fabric manager, on HGX boards with NVLink 5 also NVLSM, libnvsdm and IMEX, and in racks with NVLink 5
        only IMEX. Nothing is installed on other hosts.
      - V(none) installs none of this. Use it if you install it yourself, or for a virtual machine whose switches belong
        to its hypervisor.
    type: str
    choices: [auto, none]
    default: auto
  imex_nodes:
    description:
      - The IP addresses of the nodes that share GPU memory over NVLink 5. If this is set, C(nvidia-imex) is enabled
        and started. Otherwise its packages are installed, and its service is not changed.
    type: list
    elements: str
    default: []
  fabric_manager_settings:
    description:
      - Settings of the fabric manager by name, such as C(FABRIC_MODE) or C(LOG_LEVEL). They are written to
        C(/usr/share/nvidia/nvswitch/fabricmanager.cfg), and a running fabric manager is restarted, which needs
        O(disruption=idle), or O(disruption=drain) if services use a GPU.
      - The other lines of the file are not changed. A setting that you remove from the mapping gets its former value.
      - If the fabric manager does not start with new settings, the task fails, and it runs with the former ones again.
      - On hosts without a fabric manager, they have no effect.
    type: dict
    default: {}
  peermem:
    description:
      - Whether C(nvidia-peermem) is loaded, now and at boot, so that RDMA adapters reach GPU memory.
      - It needs C(ib_core). A host without an RDMA stack is refused.
    type: bool
    default: false
  gds:
    description:
      - Whether GPUDirect Storage (C(nvidia-fs)) is installed and loaded. It needs open kernel modules.
    type: bool
    default: false
  gdrcopy:
    description:
      - Whether GDRCopy (C(gdrdrv) and its library) is installed and loaded.
    type: bool
    default: false
  module_parameters:
    description:
      - Maps each kernel module to its parameters and their values, as in the examples. They are written to
        C(/etc/modprobe.d/zz-gpuops-nvidia.conf).
      - If a loaded module has another value, it is reloaded, which needs O(disruption=idle). A parameter that the
        module does not have is refused.
      - The modules are C(nvidia), C(nvidia_uvm), C(nvidia_modeset), C(nvidia_drm), C(nvidia_peermem), C(nvidia_fs) and
        C(gdrdrv).
    type: dict
    default: {}
  module_signing:
    description:
      - The key with which DKMS signs modules. The default is the key that DKMS has created.
      - With Secure Boot, C(mokutil) requests the enrolment of a key that is not enrolled yet. A person must confirm it
        at the console at the next boot. Until then RV(mok) and RV(reboot_required) report this, and a running driver
        keeps running and is not replaced.
      - Sources with signed modules do not need this.
    type: dict
    suboptions:
      key:
        description:
          - The private key as PEM, without a passphrase.
        type: str
      certificate:
        description:
          - Its certificate as PEM.
        type: str
      password:
        description:
          - The password to type at the console once, to enrol the key. The default is the password of root.
        type: str
  next_kernel:
    description:
      - Whether to build and check the modules for the newest installed kernel, too, if another kernel is running. This
        does not change the modules of the running kernel.
    type: bool
    default: true
  hold_kernel:
    description:
      - Whether upgrades of packages keep the installed kernels, with their headers and modules, so that the host does
        not boot a kernel for which the driver has no modules. The headers of the running kernel can still be installed.
      - The hold is a file C(/etc/apt/preferences.d/gpuops-kernel.pref) or
        C(/etc/zypp/systemCheck.d/gpuops-kernel.check), or words of C(excludepkgs) in C(/etc/dnf/dnf.conf).
        V(false) and O(state=absent) remove exactly these. Your own holds, such as C(apt-mark hold), are not changed.
      - Systems that update as a whole (rpm-ostree, transactional-update) and Azure Linux are refused.
    type: bool
    default: false
  licence:
    description:
      - The licence of a vGPU guest. Its driver must include C(nvidia-gridd). The service is restarted if one of its
        files has changed.
    type: dict
    suboptions:
      token:
        description:
          - The text of the client configuration token.
        type: str
      feature_type:
        description:
          - C(FeatureType) of C(/etc/nvidia/gridd.conf).
        type: int
      settings:
        description:
          - Other keys of C(/etc/nvidia/gridd.conf). Keys that are not named here, and comments, are not changed.
        type: dict
        default: {}
  lock_timeout:
    description:
      - Seconds to wait for the lock of another package manager, such as an unattended upgrade. Then the task fails and
        names the process that has the lock.
    type: int
    default: 120
  image:
    description:
      - Whether this host is an image that is built without a GPU, for example by Packer. Packages and files are
        installed, the modules are built for the running and the next kernel and checked with C(modinfo), and services
        are enabled. No module is loaded, no service is started, and C(nvidia-smi) is not run. The first boot on a host
        with GPUs loads the modules and starts the services.
      - It has an effect with O(state=present) and O(state=rolled_back). It is refused if modules of the driver are
        loaded, and if systemd is not running, as in a chroot.
      - O(module_signing.key) and O(licence.token) are refused, because an image must not contain secrets.
    type: bool
    default: false
  image_gpus:
    description:
      - With O(image=true), the models of the GPUs of the hosts that boot the image, each by the name that
        C(nvidia-smi -L) prints, or by its PCI device id. They determine the driver, the type of its modules and the
        software for NVSwitches, as the GPUs of a host do.
      - If this is not set, O(version) or O(branch) must be, and no software for NVSwitches is installed.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Install the newest driver of a branch
  gpuops.nvidia.nvidia_driver:
    branch: "595"

- name: Switch to one version, and reload the module if nothing uses a GPU
  gpuops.nvidia.nvidia_driver:
    version: 595.91.07
    disruption: idle

- name: Install into an image for hosts with H100 SXM, on a builder without a GPU
  gpuops.nvidia.nvidia_driver:
    branch: "595"
    image: true
    image_gpus: [NVIDIA H100 80GB HBM3]

- name: Install from a mirror
  gpuops.nvidia.nvidia_driver:
    version: 595.91.07
    repository:
      url: https://mirror.example.com/cuda/debian12/x86_64/

- name: Install from the vendor's .run file on a mirror
  gpuops.nvidia.nvidia_driver:
    source: runfile
    version: 595.91.07
    runfile:
      src: https://mirror.example.com/tesla/595.91.07/NVIDIA-Linux-x86_64-595.91.07.run
      checksum: sha256:3a1e0b5b9c7d4f60f5d3f4b3e1c29f0c7a8d6e5b4c3a2918f7e6d5c4b3a29180

- name: Allow profiling for all users, and sign modules with your own key
  gpuops.nvidia.nvidia_driver:
    branch: "595"
    disruption: idle
    module_parameters:
      nvidia:
        NVreg_RestrictProfilingToAdminUsers: 0
    module_signing:
      key: "{{ vaulted_signing_key }}"
      certificate: "{{ lookup('ansible.builtin.file', 'signing.pem') }}"
      password: "{{ vaulted_enrolment_password }}"

- name: Install what CUDA needs, without libraries for desktops
  gpuops.nvidia.nvidia_driver:
    branch: "595"
    installation: compute-only

- name: Return to the driver that was here before the last change
  gpuops.nvidia.nvidia_driver:
    state: rolled_back
    disruption: idle

- name: Verify a driver that something else manages
  gpuops.nvidia.nvidia_driver:
    state: adopted

- name: Read the driver of a host
  gpuops.nvidia.nvidia_driver:
    state: gathered
  register: current

- name: Show in check mode that a task with these options would change nothing
  gpuops.nvidia.nvidia_driver:
    state: "{{ current.gathered.state }}"
    version: "{{ current.gathered.version | default(omit) }}"
    repository: "{{ current.gathered.repository | default(omit) }}"
    persistenced: "{{ current.gathered.persistenced | default(omit) }}"
  check_mode: true

- name: Remove what this module installed
  gpuops.nvidia.nvidia_driver:
    state: absent
    disruption: idle
"""

RETURN = r"""
plan:
  description: The steps that were executed, or in check mode would be executed, in order.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "load module: nvidia"
      action: load module
      target: nvidia
      reason: it is not loaded
      needs: never
      assumed: false
pending:
  description: The steps that O(disruption) forbids or that are not possible now, each with its C(pending_reason).
  returned: success
  type: list
  elements: dict
  sample:
    - id: "unload modules: nvidia_uvm nvidia_modeset nvidia"
      pending_reason: in use by python3 (pid 4711) on 0000:07:00.0
version:
  description: The desired, verified or installed driver version; null without a driver.
  returned: success
  type: str
  sample: 595.91.07
former:
  description:
    - The driver that was on the host before the last change of its version, module type, source or set of packages, to
      which O(state=rolled_back) returns. It is null if none is recorded, because this module has not replaced a driver,
      and with O(state=adopted).
  returned: success
  type: dict
  sample: {version: 580.126.20, kernel_module_type: open, source: cuda_repository, installation: compute-only}
driver:
  description: The state before and after the steps.
  returned: success
  type: dict
  contains:
    before:
      description:
        - C(loaded) and C(flavour) of the loaded module, C(library) of libnvidia-ml, C(built), what DKMS has installed
          for the running kernel, C(modules), the loaded ones, and C(persistenced), the state of its service.
      type: dict
      returned: success
      sample: {loaded: null, flavour: null, library: null, built: [], modules: [], persistenced: absent}
    after:
      description: The same, read again.
      type: dict
      returned: success
      sample:
        loaded: 595.91.07
        flavour: open
        library: 595.91.07
        built: [595.91.07]
        modules: [nvidia_uvm, nvidia_modeset, nvidia]
        persistenced: active
holders:
  description:
    - The GPU clients, if a module has to be unloaded. C(instance) is the GPU instance, C(unit) the systemd unit,
      C(container) the beginning of the id of the container. If there is no C(pid), C(name) is a module that something
      other than a process uses, such as a console.
  returned: success
  type: list
  elements: dict
  sample:
    - {pid: 4711, name: python3, gpu: "0000:07:00.0", instance: null, unit: training.service, container: null}
mok:
  description:
    - C(enrolled) says whether the key with which DKMS signs is enrolled, null without Secure Boot. C(pending) says
      whether a person must enrol it at the console at the next boot, in check mode whether this would be so.
  returned: success
  type: dict
  sample: {enrolled: null, pending: false}
reboot_required:
  description:
    - Whether a reboot is needed for the pending steps. If C(mok.pending), it also needs a person at the console.
    - With O(state=gathered), whether module and library have different versions, or the distribution requests a reboot.
  returned: success
  type: bool
  sample: false
reasons:
  description: What differs or is pending, one sentence each.
  returned: success
  type: list
  elements: str
  sample: []
gathered:
  description:
    - The current state as options of this module. O(runfile), O(module_signing), O(next_kernel) and O(licence.token)
      are not included.
    - Without a driver, it contains only C(state), which is V(absent).
  returned: success, with O(state=gathered)
  type: dict
  contains:
    state: {description: "V(present) or V(absent).", type: str, returned: success, sample: present}
    version:
      description: The version of the libraries, or else of the loaded module.
      type: str
      returned: with a driver
      sample: 595.91.07
    kernel_module_type:
      description: That of the loaded module, or else of the packages; V(auto) if unknown.
      type: str
      returned: with a driver
      sample: open
    source:
      description: V(auto) if the driver is from a container or the image of the system.
      type: str
      returned: with a driver
      sample: cuda_repository
    installation:
      description: V(auto) if the installed packages are neither exactly V(full) nor V(compute-only), or unknown.
      type: str
      returned: with a driver
      sample: compute-only
    persistenced: {description: Whether the service runs., type: bool, returned: with a driver, sample: true}
    fabric:
      description: V(none) if the fabric manager is missing although the board needs it.
      type: str
      returned: with a driver
      sample: auto
    imex_nodes:
      description: The addresses in the file of IMEX if its service runs.
      type: list
      elements: str
      returned: with a driver
      sample: []
    fabric_manager_settings:
      description: The settings in the file of the fabric manager that this module has set.
      type: dict
      returned: with a driver
      sample: {FABRIC_MODE: "1"}
    peermem: {description: Whether C(nvidia_peermem) is loaded., type: bool, returned: with a driver, sample: false}
    gds: {description: Whether C(nvidia_fs) is loaded., type: bool, returned: with a driver, sample: false}
    gdrcopy: {description: Whether C(gdrdrv) is loaded., type: bool, returned: with a driver, sample: false}
    hold_kernel:
      description: Whether the kernels are held as by this module.
      type: bool
      returned: with a driver
      sample: false
    module_parameters:
      description: The parameters in the file of this module.
      type: dict
      returned: with a driver
      sample: {nvidia: {NVreg_RestrictProfilingToAdminUsers: "0"}}
    repository:
      description: The one that this module has configured. C(key) is the path of its key on the host.
      type: dict
      returned: if there is one
      sample: {url: "https://mirror.example.com/cuda/debian12/x86_64/"}
    licence:
      description: C(feature_type) and C(settings) of C(gridd.conf).
      type: dict
      returned: with C(nvidia-gridd) and its file
      sample: {feature_type: 1, settings: {ServerAddress: licence.example.com}}
packages:
  description: The installed packages of the driver with their versions.
  returned: success, with O(state=gathered)
  type: dict
  sample: {libnvidia-ml1: 595.91.07-1}
source:
  description: The origin of the driver as in the fact C(driver.source) of M(gpuops.nvidia.gpu_info); null without one.
  returned: success, with O(state=gathered)
  type: str
  sample: cuda_repository
services:
  description: C(state) and C(enabled) of each service of the driver.
  returned: success, with O(state=gathered)
  type: dict
  sample: {nvidia-persistenced.service: {state: active, enabled: enabled}}
"""

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main, _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.manage import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result

# The options that say what is wanted, as L(spec.Spec) has them.
WANTED = ("version", "branch", "kernel_module_type", "source", "installation", "repository", "persistenced", "fabric",
          "imex_nodes", "fabric_manager_settings", "peermem", "gds", "gdrcopy", "module_parameters", "module_signing",
          "next_kernel", "hold_kernel", "licence", "runfile", "lock_timeout", "image", "image_gpus")


def main() -> None:
    """Entry point."""
    module = _module_main.Module(
        argument_spec={
            "state": {"type": "str", "default": "present",
                      "choices": ["present", "absent", "adopted", "gathered", "rolled_back"]},
            "version": {"type": "str"},
            "branch": {"type": "str"},
            "kernel_module_type": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
            "source": {"type": "str", "default": "auto",
                       "choices": ["auto", "distribution", "cuda_repository", "runfile", "precompiled"]},
            "installation": {"type": "str", "choices": ["auto", "full", "compute-only"], "default": "auto"},
            "repository": {"type": "dict", "options": {"url": _module_main.ADDRESS, "fingerprint": {"type": "str"},
                                                       "key": _module_main.ADDRESS}},
            "runfile": {"type": "dict", "options": {"src": _module_main.ADDRESS, "checksum": {"type": "str"}}},
            "persistenced": {"type": "bool", "default": True},
            "fabric": {"type": "str", "choices": ["auto", "none"], "default": "auto"},
            "imex_nodes": {"type": "list", "elements": "str", "default": []},
            "fabric_manager_settings": {"type": "dict", "default": {}},
            "peermem": {"type": "bool", "default": False},
            "gds": {"type": "bool", "default": False},
            "gdrcopy": {"type": "bool", "default": False},
            "module_parameters": {"type": "dict", "default": {}},
            "module_signing": {"type": "dict", "no_log": False, "options": {
                "key": {"type": "str", "no_log": True}, "certificate": {"type": "str"},
                "password": {"type": "str", "no_log": True}}},
            "next_kernel": {"type": "bool", "default": True},
            "hold_kernel": {"type": "bool", "default": False},
            "licence": {"type": "dict", "options": {
                "token": {"type": "str", "no_log": True}, "feature_type": {"type": "int"},
                "settings": {"type": "dict", "default": {}}}},
            "lock_timeout": {"type": "int", "default": 120},
            "image": {"type": "bool", "default": False},
            "image_gpus": {"type": "list", "elements": "str", "default": []},
            "proxy": _proxy.OPTION,
            "disruption": _module_main.DISRUPTION,
        },
        supports_check_mode=True,
    )
    options = module.params
    repository, runfile = options["repository"] or {}, options["runfile"] or {}
    _module_main.hide(module, repository.get("url"), repository.get("key"), runfile.get("src"))

    def work() -> Result:
        _proxy.use(options["proxy"])
        wanted = {name: options[name] for name in WANTED}
        given = (options["licence"] or {}).values()
        spec = Spec(**{**wanted, "licence": options["licence"] if any(value not in (None, "", {}) for value in given)
                       else None})
        driver = Driver(spec, options["disruption"], module.check_mode)
        act: t.Callable[[], Result] = getattr(driver, options["state"])
        return act()

    _module_main.finish(module, work)


if __name__ == "__main__":
    main()

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver
short_description: Install, switch, repair, verify or remove the NVIDIA driver
version_added: 0.1.0
description:
  - Reads the loaded module, packages, DKMS, libraries and services, plans small steps, executes exactly these, and
    reads again. At the end module, libraries, DKMS, packages and C(nvidia-smi) agree, or the task says which differs.
  - A pinning package holds the version, or a file of this collection where there is none, so that an unattended
    upgrade cannot split module and libraries.
  - Loaded modules are exchanged without a reboot where nothing holds a GPU, which takes O(disruption=idle). The
    driver's own services (DCGM and its exporter, fabric manager, IMEX, gridd, topologyd, persistenced) are stopped for
    it, and those that ran are started again. The fabric manager and IMEX are stopped, or restarted for a change of
    their files, under the same conditions, as jobs on several GPUs abort without them.
  - With O(disruption=drain) other services of the system that hold a GPU are stopped too, and started again when the
    new driver works. Containers, sessions, jobs of a scheduler and loose processes are never stopped.
  - A module that something else uses is never unloaded. The switch then stays RV(pending), with the RV(holders), and
    nothing of the running driver is touched. With O(disruption=reboot) the new driver is then installed beside the
    running one, and RV(reboot_required) says that a reboot loads it; the role reboots and goes on.
  - When an install, a build, a load or a service fails, the former driver is brought back, and the error has its
    version in C(error.rolled_back). Where there was none, what the run had brought is taken away again, unless all of
    it is in place and only the hardware does not answer. Where going back fails too, C(error.rollback_error) says why.
  - Where M(gpuops.nvidia.container_toolkit) has installed the unit that keeps the CDI specification, it is started
    after the driver has changed.
  - Known messages of the kernel and of the vendor's programs are explained in the error, C(error.explained).
  - Before anything is changed it is looked whether the file systems are writable and have room.
  - A package of the driver whose programs or libraries somebody has removed from the disk is installed again. Device
    nodes of the loaded driver that are missing or closed are made, as the parameters of the module say.
  - On a host that is as wanted it reads files, asks C(dpkg-query) and C(systemctl) once each, or C(rpm) twice, and
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
      - V(absent) removes what this module brought, to the state before it. A driver that somebody else installed stays.
        Loaded modules have to go first, which takes O(disruption=idle). Services that are stopped for it stay stopped.
      - V(adopted) changes nothing, and fails unless the installed driver works.
    type: str
    choices: [present, absent, adopted]
    default: present
  version:
    description:
      - The vendor's version, such as V(595.91.07).
      - Without it and without O(branch), an installed driver is kept; where there is none, the newest that drives all
        GPUs of the host is installed.
    type: str
  branch:
    description:
      - The driver branch, such as V(595). An installed version of it is kept, otherwise its newest is installed.
    type: str
  kernel_module_type:
    description:
      - V(open) or V(proprietary) kernel modules. V(auto) takes open ones where all GPUs of the host have them.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  source:
    description:
      - Where the driver comes from. V(auto) keeps an installed driver that will do, and else takes the first that
        serves the distribution.
      - V(cuda_repository) is NVIDIA's repository for the distribution, or O(repository), V(distribution) the archive of
        Ubuntu or Debian by the sources that the host has, V(precompiled) the modules that Ubuntu builds and signs for
        its kernels, V(runfile) the vendor's self-extracting installer.
    type: str
    choices: [auto, distribution, cuda_repository, runfile, precompiled]
    default: auto
  runfile:
    description:
      - The vendor's self-extracting installer, for O(source=runfile). It is fetched to the host and verified before it
        can be run, and removed after its installation. Kernel headers, compiler and DKMS come from the host's own
        sources where they are missing.
      - A driver that somebody else installed from such a file is kept where it will do, and never changed.
    type: dict
    suboptions:
      src:
        description:
          - An C(https) or C(http) address, or an absolute path on the host. Proxies are those of the task's
            environment.
          - The version is that of the file's name, or else O(version). Without O(runfile.src) the vendor's address for
            O(version) is taken.
        type: str
      checksum:
        description:
          - The digest of the file, as V(sha256:) and 64 hexadecimal digits.
          - Without it, it is read by C(https) from the file that the vendor puts beside each archive
            (C(.sha256sum)). A file from elsewhere is refused without O(runfile.checksum).
        type: str
  persistenced:
    description:
      - Whether C(nvidia-persistenced) is enabled and started, so that GPUs stay initialised without clients.
    type: bool
    default: true
  fabric:
    description:
      - V(auto) brings what the GPUs' board needs, in the version of the driver. On boards with NVSwitches that is the
        fabric manager, on HGX boards with NVLink 5 also NVLSM, libnvsdm and IMEX, in racks with NVLink 5 IMEX alone.
        Other hosts get nothing.
      - V(none) leaves all of that to somebody else, for virtual machines whose switches belong to their host too.
    type: str
    choices: [auto, none]
    default: auto
  imex_nodes:
    description:
      - The IP addresses of the nodes that share GPU memory over NVLink 5. With them C(nvidia-imex) is enabled and
        started; without them its packages are installed and its service is left as it is.
    type: list
    elements: str
    default: []
  peermem:
    description:
      - Whether C(nvidia-peermem) is loaded, now and at boot, so that RDMA adapters reach GPU memory.
      - It needs C(ib_core), so a host without an RDMA stack is refused.
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
      - A mapping of parameters to values for each kernel module, as in the examples. They are written to
        C(/etc/modprobe.d/zz-gpuops-nvidia.conf).
      - A loaded module that has another value is reloaded, which takes O(disruption=idle). A parameter that the module
        does not have is refused.
      - The modules are C(nvidia), C(nvidia_uvm), C(nvidia_modeset), C(nvidia_drm), C(nvidia_peermem), C(nvidia_fs) and
        C(gdrdrv).
    type: dict
    default: {}
  module_signing:
    description:
      - The key that DKMS signs modules with. Without it DKMS uses the one that it has made itself.
      - With Secure Boot a key that is not enrolled is handed to the firmware by C(mokutil). Somebody has to confirm it
        at the console at the next boot; until then RV(mok) and RV(reboot_required) say so, a driver that runs goes on
        running, and nothing of it is replaced.
      - Sources whose modules come signed need none of this.
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
          - The password that is typed at the console once, to enrol the key. Without it that is root's.
        type: str
  next_kernel:
    description:
      - Whether the modules are also built, and seen, for the newest installed kernel where another one is running.
        The running one is not touched by it.
    type: bool
    default: true
  licence:
    description:
      - The licence of a vGPU guest, whose driver has to bring C(nvidia-gridd). The service is restarted when one of
        its files has changed.
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
          - Other keys of C(/etc/nvidia/gridd.conf). Keys that are not named here stay as they are, and so do comments.
        type: dict
        default: {}
  lock_timeout:
    description:
      - Seconds to wait for the lock of another package manager, such as an unattended upgrade. Then the task fails and
        names who holds it.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Install the newest driver of a branch
  gpuops.nvidia.nvidia_driver:
    branch: "595"

- name: Switch to one version, reloading the module where nothing uses a GPU
  gpuops.nvidia.nvidia_driver:
    version: 595.91.07
    disruption: idle

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

- name: Let everybody profile, and sign with a key of the site
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

- name: Verify a driver that something else manages
  gpuops.nvidia.nvidia_driver:
    state: adopted

- name: Remove what this module installed
  gpuops.nvidia.nvidia_driver:
    state: absent
    disruption: idle
"""

RETURN = r"""
plan:
  description: The steps that were executed, or in check mode would be, in order.
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
  description: Steps that were not allowed or not possible now, each with C(pending_reason).
  returned: success
  type: list
  elements: dict
  sample:
    - id: "unload modules: nvidia_uvm nvidia_modeset nvidia"
      pending_reason: in use by python3 (pid 4711) on 0000:07:00.0
version:
  description: The driver version that is wanted or verified, null where it is removed.
  returned: success
  type: str
  sample: 595.91.07
driver:
  description: What was read before and after the steps.
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
    - Processes with a GPU open, looked for only where a module had to be unloaded. C(instance) is the MIG GPU instance,
      C(unit) the systemd unit, C(container) the first digits of the container's id. Without C(pid), C(name) says which
      module is referred to by something that is no process, such as a console.
  returned: success
  type: list
  elements: dict
  sample:
    - {pid: 4711, name: python3, gpu: "0000:07:00.0", instance: null, unit: training.service, container: null}
mok:
  description:
    - C(enrolled), whether the key that DKMS signs with is enrolled, null without Secure Boot, and C(pending), whether
      its enrolment waits for the console at the next boot, in check mode whether it would.
  returned: success
  type: dict
  sample: {enrolled: null, pending: false}
reboot_required:
  description: Whether only a reboot gets on with what is pending. If C(mok.pending), it needs somebody at the console.
  returned: success
  type: bool
  sample: false
reasons:
  description: What differs or waits, one sentence each.
  returned: success
  type: list
  elements: str
  sample: []
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.nvidia.plugins.module_utils import _glue, _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.manage import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec

# The options that say what is wanted, as L(spec.Spec) has them.
WANTED = ("version", "branch", "kernel_module_type", "source", "repository", "persistenced", "fabric", "imex_nodes",
          "peermem", "gds", "gdrcopy", "module_parameters", "module_signing", "next_kernel", "licence", "runfile",
          "lock_timeout")


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "adopted"], "default": "present"},
            "version": {"type": "str"},
            "branch": {"type": "str"},
            "kernel_module_type": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
            "source": {"type": "str", "default": "auto",
                       "choices": ["auto", "distribution", "cuda_repository", "runfile", "precompiled"]},
            "repository": {"type": "dict", "options": {"url": _glue.ADDRESS, "fingerprint": {"type": "str"},
                                                       "key": _glue.ADDRESS}},
            "runfile": {"type": "dict", "options": {"src": _glue.ADDRESS, "checksum": {"type": "str"}}},
            "persistenced": {"type": "bool", "default": True},
            "fabric": {"type": "str", "choices": ["auto", "none"], "default": "auto"},
            "imex_nodes": {"type": "list", "elements": "str", "default": []},
            "peermem": {"type": "bool", "default": False},
            "gds": {"type": "bool", "default": False},
            "gdrcopy": {"type": "bool", "default": False},
            "module_parameters": {"type": "dict", "default": {}},
            "module_signing": {"type": "dict", "no_log": False, "options": {
                "key": {"type": "str", "no_log": True}, "certificate": {"type": "str"},
                "password": {"type": "str", "no_log": True}}},
            "next_kernel": {"type": "bool", "default": True},
            "licence": {"type": "dict", "options": {
                "token": {"type": "str", "no_log": True}, "feature_type": {"type": "int"},
                "settings": {"type": "dict", "default": {}}}},
            "lock_timeout": {"type": "int", "default": 120},
            "proxy": _proxy.OPTION,
            "disruption": _glue.DISRUPTION,
        },
        supports_check_mode=True,
    )
    options = module.params
    repository, runfile = options["repository"] or {}, options["runfile"] or {}
    _glue.hide(module, repository.get("url"), repository.get("key"), runfile.get("src"))

    def work() -> dict[str, t.Any]:
        _proxy.use(options["proxy"])
        wanted = {name: options[name] for name in WANTED}
        given = (options["licence"] or {}).values()
        spec = Spec(**{**wanted, "licence": options["licence"] if any(value not in (None, "", {}) for value in given)
                       else None})
        driver = Driver(spec, options["disruption"], module.check_mode)
        act: dict[str, t.Callable[[], dict[str, t.Any]]] = {
            "present": driver.present, "absent": driver.absent, "adopted": driver.adopted}
        return act[options["state"]]()

    _glue.finish(module, work)


if __name__ == "__main__":
    main()

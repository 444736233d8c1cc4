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
  - A pinning package holds the version, so that an unattended upgrade cannot split module and libraries.
  - A module that something uses is never unloaded. The switch then stays RV(pending), with the RV(holders), and nothing
    of the running driver is touched.
  - On a host that is as wanted it reads files, asks C(dpkg-query) and C(systemctl) once each, and needs no network.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.plan
options:
  state:
    description:
      - V(present) installs, switches or repairs the driver.
      - V(absent) removes what this module brought, to the state before it. A driver that somebody else installed stays.
        Loaded modules have to go first, which takes O(disruption=idle).
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
      - Where the driver comes from. V(auto) takes what serves the distribution.
      - Only V(cuda_repository), NVIDIA's repository for Debian and Ubuntu, is supported yet; others are refused.
    type: str
    choices: [auto, distribution, cuda_repository, runfile, precompiled]
    default: auto
  repository:
    description:
      - A mirror instead of the vendor's repository. What is not given is the vendor's.
    type: dict
    suboptions:
      url:
        description:
          - The folder that holds the repository's C(Release) file.
        type: str
      key:
        description:
          - The public key as a URL, as an absolute path on the host, or as a file name below O(repository.url).
        type: str
      fingerprint:
        description:
          - The 40 hexadecimal digits that the key must have. Needed with O(repository.key).
        type: str
  runfile:
    description:
      - The vendor's self-extracting installer, for O(source=runfile). It is fetched to the host and verified before it
        can be run, and removed after its installation. Kernel headers, compiler and DKMS come from the host's own
        sources where they are missing.
      - A driver that somebody else installed from such a file is kept where it will do, and never changed.
    type: dict
    version_added: 0.1.0
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
  description: Processes with a GPU open, looked for only where a module had to be unloaded.
  returned: success
  type: list
  elements: dict
  sample: [{pid: 4711, name: python3, gpu: "0000:07:00.0", instance: null}]
reboot_required:
  description: Whether only a reboot gets on with what is pending.
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
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._manage import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._glue import DISRUPTION, finish


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
            "repository": {"type": "dict", "options": {"url": {"type": "str"}, "fingerprint": {"type": "str"},
                                                       "key": {"type": "str", "no_log": False}}},
            "runfile": {"type": "dict", "options": {"src": {"type": "str"}, "checksum": {"type": "str"}}},
            "persistenced": {"type": "bool", "default": True},
            "disruption": DISRUPTION,
        },
        supports_check_mode=True,
    )
    options = module.params

    def work() -> dict[str, t.Any]:
        spec = Spec(options["version"], options["branch"], options["kernel_module_type"], options["source"],
                    options["repository"], options["persistenced"], runfile=options["runfile"])
        driver = Driver(spec, options["disruption"], module.check_mode)
        act: dict[str, t.Callable[[], dict[str, t.Any]]] = {
            "present": driver.present, "absent": driver.absent, "adopted": driver.adopted}
        return act[options["state"]]()

    finish(module, work)


if __name__ == "__main__":
    main()

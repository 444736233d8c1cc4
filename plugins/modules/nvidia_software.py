# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_software
short_description: Bring or remove NVIDIA's software beside the driver
version_added: 0.1.0
description:
  - CUDA toolkit, DCGM, its exporter, and metrics on the state of the node. Each component that is named is brought to
    its version, its files and its running service; the others are left alone.
  - Plans small steps, executes exactly these and reads again. A service that was started has to answer, or the task
    fails with its log. Where no driver works, services that need one stay RV(pending).
  - On a host that is as wanted it reads files, asks C(dpkg-query) and C(systemctl) once each, and needs no network.
  - The packages come from the repository of the driver, and share it with M(gpuops.nvidia.nvidia_driver); whoever is
    removed last takes it away.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.repository
  - gpuops.nvidia._attributes.proxy
  - gpuops.nvidia._attributes.files_before
options:
  state:
    description:
      - V(present) brings the components that are named.
      - V(absent) removes what this module brought of the components that are named, of all where none is, to the state
        before it.
    type: str
    choices: [present, absent]
    default: present
  cuda:
    description:
      - The CUDA toolkit. Several levels may stand side by side; the vendor's packages keep C(/usr/local/cuda) at one of
        them.
      - A level above the driver's is refused where its major number is higher; otherwise it runs by minor version
        compatibility.
    type: dict
    suboptions:
      version:
        description:
          - A level such as V(13.0), whose newest release is installed once, or a release such as V(13.0.2). V(13) is
            the newest level of that major number.
          - Without it, it is the newest level that the driver runs.
        type: str
      profile:
        description:
          - Whether login shells find the toolkit's programs, by a file in C(/etc/profile.d).
        type: bool
        default: false
  dcgm:
    description:
      - DCGM 4 and its service C(nvidia-dcgm), for the CUDA level of the driver. It takes the place of DCGM 3.
    type: dict
    suboptions:
      version:
        description:
          - The version, such as V(4.6.0). Without it an installed one is kept, otherwise the newest is installed.
        type: str
      profiling:
        description:
          - Whether the packages that are not open source are installed too. Without them there are no profiling metrics
            (C(DCGM_FI_PROF_*)).
        type: bool
        default: true
  dcgm_exporter:
    description:
      - The DCGM exporter and its service C(nvidia-dcgm-exporter), which asks the service of O(dcgm).
    type: dict
    suboptions:
      version:
        description:
          - The version, such as V(4.8.3). Without it an installed one is kept, otherwise the newest is installed.
        type: str
      listen:
        description:
          - Where it serves C(/metrics), as address and port; without an address on all of them.
        type: str
        default: ":9400"
      counters:
        description:
          - The text of a file of counters, in the exporter's format. The vendor's own set without it.
        type: str
  node_status_exporter:
    description:
      - A timer that writes the state of the node as metrics into a folder that Prometheus' node exporter reads. Names
        and meaning are those of the GPU Operator's node status exporter, with some in addition.
    type: dict
    suboptions:
      folder:
        description:
          - The folder of the node exporter's textfile collector. It is made where it is missing.
        type: str
        default: /var/lib/prometheus/node-exporter
      interval:
        description:
          - Seconds between two writings.
        type: int
        default: 60
  driver_cuda:
    description:
      - The CUDA level of the driver, such as V(13.2), for a preview on a host whose driver is not installed yet. An
        installed driver tells it itself.
    type: str
  repaired_repositories:
    description:
      - For check mode, the names of package repositories that will have been put right before this task runs, such as
        V(cuda). Then what this task would do is compared with the repository as it is by then.
      - Where it is not set, it is what a task that has registered C(driver_result), as the role driver does, plans to
        add.
    type: list
    elements: str
    default: []
  packages_before:
    description:
      - For check mode, whether tasks before this one install packages. If they do, the module does not try whether
        packages can be installed again, because the package manager may refuse this until those packages are there.
      - If this is not set, it is true if a task that has registered C(driver_result), as the role driver does, plans
        to install packages.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: DCGM and its exporter, on this host only
  gpuops.nvidia.nvidia_software:
    dcgm:
      version: 4.6.0
    dcgm_exporter:
      listen: 127.0.0.1:9400

- name: The CUDA toolkit 13.0
  gpuops.nvidia.nvidia_software:
    cuda:
      version: "13.0"
      profile: true

- name: Metrics on the state of the node
  gpuops.nvidia.nvidia_software:
    node_status_exporter: {}

- name: Remove the exporter, keep the rest
  gpuops.nvidia.nvidia_software:
    state: absent
    dcgm_exporter: {}

- name: Remove everything that this module brought
  gpuops.nvidia.nvidia_software:
    state: absent
"""

RETURN = r"""
plan:
  description: The steps of all components that were executed, or in check mode would be, in order.
  returned: success
  type: list
  elements: dict
  sample:
    - id: "enable and start service: nvidia-dcgm.service"
      action: enable and start service
      target: nvidia-dcgm.service
      reason: it is inactive
      needs: never
      assumed: false
pending:
  description: Steps that wait for something else, each with C(pending_reason).
  returned: success
  type: list
  elements: dict
  sample:
    - id: "enable and start service: nvidia-dcgm.service"
      pending_reason: the driver is not loaded
components:
  description: By component of this run its part.
  returned: success
  type: dict
  contains:
    dcgm:
      description:
        - C(plan) and C(pending) of this component, C(reasons), what a user should know, a sentence each, C(version) of
          what is installed, and C(service), the state of its service.
      type: dict
      returned: success
      sample: {plan: [], pending: [], reasons: [], version: 4.6.0, service: active}
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.nvidia.plugins.module_utils import _glue, _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.manage import NAMES, Software


def main() -> None:
    """Entry point."""
    text: dict[str, t.Any] = {"type": "str"}
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "cuda": {"type": "dict", "options": {"version": text, "profile": {"type": "bool", "default": False}}},
            "dcgm": {"type": "dict", "options": {"version": text, "profiling": {"type": "bool", "default": True}}},
            "dcgm_exporter": {"type": "dict", "options": {
                "version": text, "listen": {"type": "str", "default": ":9400"}, "counters": text}},
            "node_status_exporter": {"type": "dict", "options": {
                "folder": {"type": "str", "default": "/var/lib/prometheus/node-exporter"},
                "interval": {"type": "int", "default": 60}}},
            "driver_cuda": {"type": "str"},
            "repaired_repositories": {"type": "list", "elements": "str", "default": []},
            "packages_before": {"type": "bool", "default": False},
            "files_before": {"type": "list", "elements": "str", "default": []},
            "proxy": _proxy.OPTION,
            "repository": {"type": "dict", "options": {"url": _glue.ADDRESS, "fingerprint": text,
                                                       "key": _glue.ADDRESS}},
        },
        supports_check_mode=True,
    )
    options = module.params
    repository = options["repository"] or {}
    _glue.hide(module, repository.get("url"), repository.get("key"))

    def work() -> dict[str, t.Any]:
        _proxy.use(options["proxy"])
        wanted = {name: options[name] for name in NAMES if options[name] is not None}
        repaired = options["repaired_repositories"] if module.check_mode else ()
        software = Software(wanted, options["repository"], options["driver_cuda"], module.check_mode,
                            repaired=repaired, packages_before=module.check_mode and options["packages_before"],
                            files_before=options["files_before"] if module.check_mode else ())
        if options["state"] == "absent":
            return software.absent()
        return software.present()

    _glue.finish(module, work)


if __name__ == "__main__":
    main()

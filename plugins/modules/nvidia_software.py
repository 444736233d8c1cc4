# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_software
short_description: Install or remove CUDA, DCGM, the DCGM exporter and host metrics
version_added: 0.1.0
description:
  - Installs the CUDA toolkit, DCGM, its exporter, and metrics about the state of the host. Only components that the
    task sets are installed or changed.
  - Plans small steps, executes exactly these steps, and reads the state again. A service that was started must accept
    connections. Otherwise, the task fails and shows its log. If no driver works, the start of services that need a
    driver is returned in RV(pending).
  - If nothing differs, the module reads files, runs C(dpkg-query) and C(systemctl) once each, and needs no network.
  - The packages come from the repository that M(gpuops.nvidia.nvidia_driver) also uses. The repository is removed with
    the last package from it.
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
      - V(present) installs the components that the task sets.
      - V(absent) removes what this module installed for these components, or for all components if none is set, and
        restores the former state.
    type: str
    choices: [present, absent]
    default: present
  cuda:
    description:
      - The CUDA toolkit. Several CUDA levels can be installed side by side. The packages of the vendor choose the level
        at C(/usr/local/cuda).
      - A level with a higher major number than the level of the driver is refused. A higher minor number works by minor
        version compatibility.
    type: dict
    suboptions:
      version:
        description:
          - A level such as V(13.0), or a release such as V(13.0.2). V(13) is the newest level of this major number. For
            a level, the newest release is installed and not upgraded later.
          - The default is the newest level that the driver supports.
        type: str
      profile:
        description:
          - Whether to add the programs of the toolkit to the path of login shells, with a file in C(/etc/profile.d).
        type: bool
        default: false
  dcgm:
    description:
      - DCGM 4 and its service C(nvidia-dcgm), for the CUDA level of the driver. It replaces DCGM 3.
    type: dict
    suboptions:
      version:
        description:
          - The version, such as V(4.6.0). If this is not set, an installed version is kept, otherwise the newest is
            installed.
        type: str
      profiling:
        description:
          - Whether to also install the packages that are not open source. Profiling metrics (C(DCGM_FI_PROF_*)) need
            these packages.
        type: bool
        default: true
      args:
        description:
          - Further arguments of C(nv-hostengine), such as V([--log-level, DEBUG]). If they change, the service is
            restarted, and the exporter with it.
          - Options that the unit of the package sets, and options with which the service ends or does not listen on
            C(127.0.0.1:5555), are refused. V([-b, ALL]) opens DCGM, which has no authentication, to other machines.
        type: list
        elements: str
        default: []
      env:
        description:
          - Environment variables of C(nv-hostengine).
        type: dict
        default: {}
  dcgm_exporter:
    description:
      - The DCGM exporter and its service C(nvidia-dcgm-exporter), which reads from the service of O(dcgm).
    type: dict
    suboptions:
      version:
        description:
          - The version, such as V(4.8.3). If this is not set, an installed version is kept, otherwise the newest is
            installed.
        type: str
      listen:
        description:
          - The address and port of C(/metrics). Without an address, it is served on all addresses.
        type: str
        default: ":9400"
      counters:
        description:
          - The text of a file of counters, in the format of the exporter. The default is the file of the vendor.
        type: str
      args:
        description:
          - Further arguments of the exporter, such as V(--collect-interval=10000).
        type: list
        elements: str
        default: []
      env:
        description:
          - Environment variables of the exporter. O(dcgm_exporter.listen) and O(dcgm_exporter.counters) take precedence
            over C(DCGM_EXPORTER_LISTEN) and C(DCGM_EXPORTER_COLLECTORS).
        type: dict
        default: {}
      job_mapping:
        description:
          - The folder in which the scheduler of the cluster, for example a prolog script of Slurm, writes a file for
            each GPU with the IDs of its jobs. The metrics then have the label C(hpc_job).
        type: path
      web_config:
        description:
          - A file on the host that configures TLS and basic authentication, in the format of the web configuration of
            Prometheus exporters. The module does not create the file.
        type: path
  node_status_exporter:
    description:
      - A timer that writes metrics about the state of the host to a folder that the Prometheus node exporter reads. The
        metrics are those of the node status exporter of the GPU Operator, and some additional ones.
    type: dict
    suboptions:
      folder:
        description:
          - The folder of the textfile collector of the node exporter. It is created if it is missing.
        type: str
        default: /var/lib/prometheus/node-exporter
      interval:
        description:
          - The interval in seconds.
        type: int
        default: 60
  driver_cuda:
    description:
      - The CUDA level of the driver, such as V(13.2), for check mode on a host whose driver is not installed yet. If a
        driver is installed, its level is used instead.
    type: str
  repaired_repositories:
    description:
      - For check mode, the names of package repositories that earlier tasks would add or repair, such as V(cuda). The
        plan then uses these repositories as they would be.
      - If this is not set, it is taken from the plan in the registered variable C(driver_result), which the role driver
        sets.
    type: list
    elements: str
    default: []
  packages_before:
    description:
      - For check mode, whether earlier tasks would install packages. If so, the module does not check whether packages
        can be installed again, because the package manager may refuse this until the other packages are installed.
      - If this is not set, it is true if the registered variable C(driver_result), which the role driver sets, contains
        a plan to install packages.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Install DCGM and its exporter, which listens on the local address only
  gpuops.nvidia.nvidia_software:
    dcgm:
      version: 4.6.0
    dcgm_exporter:
      listen: 127.0.0.1:9400

- name: Install the CUDA toolkit 13.0
  gpuops.nvidia.nvidia_software:
    cuda:
      version: "13.0"
      profile: true

- name: Install metrics about the state of the host
  gpuops.nvidia.nvidia_software:
    node_status_exporter: {}

- name: Remove only the exporter
  gpuops.nvidia.nvidia_software:
    state: absent
    dcgm_exporter: {}

- name: Remove everything that this module installed
  gpuops.nvidia.nvidia_software:
    state: absent
"""

RETURN = r"""
plan:
  description: The steps of all components that were executed, or in check mode would be executed, in order.
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
  description: The steps that cannot be executed yet, each with C(pending_reason).
  returned: success
  type: list
  elements: dict
  sample:
    - id: "enable and start service: nvidia-dcgm.service"
      pending_reason: the driver is not loaded
components:
  description: The result of each component.
  returned: success
  type: dict
  contains:
    dcgm:
      description:
        - C(plan) and C(pending) of this component, C(reasons) (notes for the user), the installed C(version), and
          C(service) (the state of its service).
      type: dict
      returned: success
      sample: {plan: [], pending: [], reasons: [], version: 4.6.0, service: active}
"""


from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main, _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import EXPORTER_ADDRESS
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Option, Result
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.manage import NAMES, Software


def main() -> None:
    """Entry point."""
    text: Option = {"type": "str"}
    module = _module_main.Module(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "cuda": {"type": "dict", "options": {"version": text, "profile": {"type": "bool", "default": False}}},
            "dcgm": {"type": "dict", "options": {
                "version": text, "profiling": {"type": "bool", "default": True},
                "args": {"type": "list", "elements": "str", "default": []}, "env": {"type": "dict", "default": {}}}},
            "dcgm_exporter": {"type": "dict", "options": {
                "version": text, "listen": {"type": "str", "default": EXPORTER_ADDRESS}, "counters": text,
                "args": {"type": "list", "elements": "str", "default": []}, "env": {"type": "dict", "default": {}},
                "job_mapping": {"type": "path"}, "web_config": {"type": "path"}}},
            "node_status_exporter": {"type": "dict", "options": {
                "folder": {"type": "str", "default": "/var/lib/prometheus/node-exporter"},
                "interval": {"type": "int", "default": 60}}},
            "driver_cuda": {"type": "str"},
            "repaired_repositories": {"type": "list", "elements": "str", "default": []},
            "packages_before": {"type": "bool", "default": False},
            "files_before": {"type": "list", "elements": "str", "default": []},
            "proxy": _proxy.OPTION,
            "repository": {"type": "dict", "options": {"url": _module_main.ADDRESS, "fingerprint": text,
                                                       "key": _module_main.ADDRESS}},
        },
        supports_check_mode=True,
    )
    options = module.params
    repository = options["repository"] or {}
    _module_main.hide(module, repository.get("url"), repository.get("key"))

    def run_module() -> Result:
        _proxy.use(options["proxy"])
        selected = {name: options[name] for name in NAMES if options[name] is not None}
        repaired = options["repaired_repositories"] if module.check_mode else ()
        software = Software(selected, options["repository"], options["driver_cuda"], module.check_mode,
                            repaired=repaired, packages_before=module.check_mode and options["packages_before"],
                            files_before=options["files_before"] if module.check_mode else ())
        if options["state"] == "absent":
            return software.absent()
        return software.present()

    _module_main.finish(module, run_module)


if __name__ == "__main__":
    main()

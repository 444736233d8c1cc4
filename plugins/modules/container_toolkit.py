# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_toolkit
short_description: Install the NVIDIA Container Toolkit and configure container runtimes
version_added: 0.1.0
description:
  - Installs the packages of the toolkit, all at one version. The key of their repository is verified by its
    fingerprint.
  - Adds the runtime class C(nvidia) as a copy of the default runtime, so that options such as C(SystemdCgroup) are
    kept. From containerd 2.0 on, this is a drop-in file of this collection and one entry in C(imports). In containerd
    1.x a drop-in can replace all settings of a plugin, so the main file is edited in place. Its comments, order,
    quoting and line endings are kept.
  - Before a new configuration is written, the runtime validates it (C(containerd config dump)). The module checks what
    the runtime does not check. The runtime is restarted only if its configuration has changed. If it does not start,
    the former files are restored, it is started with them, and the task fails with its log. If a run is killed between
    writing and restarting, the next run completes it.
  - k3s, RKE2, k0s and MicroK8s generate the configuration file of their containerd. The module changes only the source
    of this file, which is their settings file, their folder of drop-ins or their template.
  - If the files of containerd or CRI-O have changed since its start, containerd is restarted and CRI-O is reloaded. A
    runtime that is not running, is masked or does not start at boot is not started. It is returned in RV(pending).
  - If programs or libraries of a package are missing, the package is installed again. If
    C(/etc/nvidia-container-runtime/config.toml) is missing, it is created again with the defaults of the packages.
  - For Docker, members of C(daemon.json) are set and Docker is reloaded. Only CDI (which must be enabled from 25.0 to
    28.1) and the removal of a member need a restart. A restart is always allowed if C(live-restore) is on. Otherwise it
    needs O(disruption=idle) if no container is running, and O(disruption=drain) if one is running. A restart that is
    not allowed is returned in RV(pending).
  - CRI-O gets a drop-in file of this collection and a reload (from 1.26 on). Podman needs only the CDI specification.
  - If another product owns the configuration of the runtime (GPU Operator, AKS, GKE, OpenShift and others), the task
    fails before it changes anything, and its message says where to configure the runtime. For Kubespray and Amazon EKS,
    RV(pending) and a warning contain the settings for the inventory or the NodeConfig.
  - O(state=absent) restores the former content of files. From a file that was edited after a run, only the parts of
    this collection are removed. Drop-ins of CRI-O, k0s, k3s and RKE2 are deleted even if they were edited. The
    packages, the repository and the key that this module installed are also removed.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
notes:
  - Configuration files are computed on the controller, which needs the Python library C(tomlkit). Hosts need nothing.
  - C(nvidia-ctk) of the vendor generates the CDI specifications. A specification is up to date if C(nvidia-ctk) prints
    the same content. The unit C(nvidia-cdi-refresh.service) of the vendor does not react to changes of MIG and to the
    removal of the driver. The module therefore also installs C(gpuops-cdi-refresh.service), which
    M(gpuops.nvidia.mig_config) and M(gpuops.nvidia.nvidia_driver) start after a change. If a specification differs
    while one of the two services is running, the module waits up to a minute until the service has finished.
  - With links in C(/dev/char) and a udev rule, containers keep their GPUs when systemd reloads its units. This is
    not true for containers that were started before, or with the mode C(legacy). O(state=absent) keeps the links for
    running containers. The links disappear at the next boot.
options:
  state:
    description:
      - V(present) installs the toolkit and configures the runtimes. V(absent) removes exactly what this module
        installed, from all runtimes, no matter which ones O(runtime) names.
      - V(gathered) changes nothing, and returns the current state, also as options in RV(gathered). It allows only
        O(runtime), O(config_path), O(drop_in_path) and O(rootless_users), and O(disruption) and O(proxy), which have no
        effect.
      - V(rendered) returns the configuration files in RV(rendered) without a connection to the host. O(runtime) must be
        one or several of V(k3s), V(rke2), V(k0s), V(docker), V(containerd), V(crio) and V(podman). O(version),
        O(repository), O(cdi_management) and O(rootless_users) cannot be set, because they do not affect these files.
    type: str
    choices: [present, absent, gathered, rendered]
    default: present
  version:
    description:
      - The version of all toolkit packages, such as V(1.20.1), or a full package version, such as V(1.20.1-1).
      - If this is not set, the installed version is kept. On a host without the toolkit the newest version is
        installed.
      - The packages that this module installs are held at one version. Foreign packages at the desired version are not
        changed. On a distribution whose packages are not supported, a toolkit that was installed without packages is
        not changed either.
    type: str
  repository:
    description: The repository of the packages, for a mirror. It is read only if a package is missing.
    type: dict
    default: {}
    suboptions:
      url:
        description:
          - The base URL of the flat APT repository or of the RPM repository. The default is the repository of the
            vendor.
          - V($(ARCH\)) stands for the architecture of the host as Debian names it, V($basearch) as dnf names it.
        type: str
      key:
        description:
          - The public key of the repository, as a URL, an absolute path on the host, or a file name relative to the
            base URL.
        type: str
        default: https://nvidia.github.io/libnvidia-container/gpgkey
      fingerprint:
        description: The OpenPGP fingerprint that the key must have, 40 hexadecimal digits.
        type: str
        default: C95B321B61E88C1809C4F759DDCAE044F796ECB0
  runtime:
    description:
      - The container runtimes to configure, as one name, a list of names, V(auto) or V(all). V(auto) and V(all) exclude
        other names.
      - V(auto) chooses the one that is running, or else one that is installed, in the order of the choices. A
        containerd without CRI belongs to Docker and is the last choice. On a host with a kubelet, Docker is the last
        choice before it.
      - V(all) chooses all installed ones, but not a containerd without CRI if Docker is installed.
      - If there is no runtime, V(auto) and V(all) set up the packages and the CDI specification, and the configuration
        is returned in RV(pending). If a named runtime is not installed, the task fails before it changes anything. It
        also fails if the configuration of one of the chosen runtimes cannot be read or changed.
      - With several runtimes, the files of all are validated before the first one is written. Then all files are
        written, and then the services are reloaded and restarted, first those for which O(disruption) does not matter.
      - A runtime that is no longer chosen keeps its configuration until O(state=absent), which removes it from all
        runtimes.
      - A restart of a server of k3s or RKE2 interrupts its control plane and needs O(disruption=idle).
    type: list
    elements: str
    choices: [auto, all, k3s, rke2, k0s, microk8s, docker, containerd, crio, podman]
    default: [auto]
  config_path:
    description:
      - The main configuration file of the runtime. The default is the file that its systemd unit names, or else the
        default path of the runtime.
      - If you set a path, the module edits this file, even if another product owns the configuration of the runtime.
      - You must set it if the unit names the file with a variable of an C(EnvironmentFile).
      - It cannot be set with several runtimes.
    type: path
  drop_in_path:
    description:
      - The drop-in file. The default for containerd 2.0 and newer is C(/etc/containerd/conf.d/99-gpuops-nvidia.toml),
        for CRI-O C(/etc/crio/crio.conf.d/99-gpuops-nvidia.conf), and for k0s
        C(/etc/k0s/containerd.d/99-gpuops-nvidia.toml).
      - CRI-O and k0s read no other folder.
      - It cannot be set with several runtimes.
    type: path
  set_as_default:
    description:
      - Whether the NVIDIA runtime becomes the default runtime. With V(false), the former default is restored if this
        module has changed it. Any other default is not changed.
    type: bool
    default: false
  nvidia_runtime_name:
    description:
      - The name of the runtime class of the NVIDIA runtime in all chosen runtimes, like C(--nvidia-runtime-name) of
        C(nvidia-ctk runtime configure). In Kubernetes, it is the handler of a RuntimeClass.
      - If the name changes, the class with the former name is removed. A name that another runtime has is refused.
      - k3s and RKE2 declare the class C(nvidia) themselves and keep it. A class with another name needs a version that
        reads drop-ins.
    type: str
    default: nvidia
  nvidia_runtime_path:
    description:
      - The program of this runtime class, like C(--nvidia-runtime-path) of C(nvidia-ctk runtime configure), for an
        NVIDIA container runtime or a wrapper that was installed without packages. It must be an executable file on the
        host, or the task fails before it changes anything.
      - The default is C(/usr/bin/nvidia-container-runtime), or the variant of O(mode). The path and another O(mode)
        than V(auto) exclude each other.
    type: path
  cdi:
    description:
      - Whether the runtime adds devices to containers through CDI. CDI is enabled if it is disabled, and the
        specification is generated if it is missing or out of date.
      - V(false) restores the setting of the runtime from before this module enabled CDI.
      - If all GPUs are in MIG mode and none has a MIG device, there is no specification, because it would be empty.
    type: bool
    default: true
  cdi_management:
    description:
      - Whether to also generate a specification of the kind C(management.nvidia.com/gpu), for unprivileged containers
        that manage all GPUs.
    type: bool
    default: false
  settings:
    description:
      - Settings of the NVIDIA container runtime in C(/etc/nvidia-container-runtime/config.toml), as nested mappings or
        with dotted names, such as V(nvidia-container-runtime.runtimes) for the low-level runtimes that it starts. Only
        these values change. Comments and the rest of the file are kept. Names and types are checked.
      - If a setting is removed from this option, its former value is restored.
    type: dict
    default: {}
  rootless_users:
    description:
      - The users whose rootless containers get GPUs, through CDI. They must exist on the host.
      - C(daemon.json) of the rootless Docker of each user is configured as that of Docker, and also names a folder with
        a link to the CDI specification. Files are read and written with the identity of the user. A restart ends the
        containers of this Docker, even if C(live-restore) is on, so it needs O(disruption=idle) or O(disruption=drain).
      - For Podman, the module checks whether the user can read the specification and the device nodes, and warns.
      - A user that is removed from the list keeps the configuration. O(state=absent) restores the files of all users.
      - It excludes O(cdi=false) and O(mode=legacy). The mode legacy would need the setting
        C(nvidia-container-cli.no-cgroups), which takes the GPUs from the containers of root.
    type: list
    elements: str
    default: []
  nri:
    description:
      - Whether to enable the Node Resource Interface (NRI) of containerd, which calls NRI plugins.
      - NRI is disabled in containerd 1.7 and enabled from 2.0 on. V(false) does not change it. If this module has
        enabled it, V(false) restores the former setting.
    type: bool
    default: false
  mode:
    description:
      - How the runtime class of O(nvidia_runtime_name) adds GPUs to a container.
      - V(auto) lets the NVIDIA container runtime decide for each container. V(cdi) and V(legacy) use the variant of the
        NVIDIA container runtime for this mode, and also add the class C(nvidia-cdi) or C(nvidia-legacy). They also
        install the package C(nvidia-container-toolkit-operator-extensions), which contains the variants.
    type: str
    choices: [auto, cdi, legacy]
    default: auto
  request:
    description: The request of the action plugin to the host. Not for playbooks.
    type: str
  seal:
    description: The key that encrypts the response of the host. Not for playbooks.
    type: str
extends_documentation_fragment:
  - gpuops.nvidia._attributes
  - gpuops.nvidia._attributes.plan
  - gpuops.nvidia._attributes.proxy
"""

EXAMPLES = r"""
- name: Install the toolkit for the container runtime of the host
  gpuops.nvidia.container_toolkit:
    version: 1.20.1

- name: Install the toolkit from a mirror, and make nvidia the default runtime
  gpuops.nvidia.container_toolkit:
    set_as_default: true
    repository:
      url: https://mirror.example.org/libnvidia-container/stable/deb/$(ARCH)/
      key: https://mirror.example.org/libnvidia-container/gpgkey

- name: Configure Docker and Podman of one host
  gpuops.nvidia.container_toolkit:
    runtime: [docker, podman]

- name: Configure all installed runtimes, and restart Docker only if no container is running
  gpuops.nvidia.container_toolkit:
    runtime: all
    disruption: idle

- name: Set options of the NVIDIA container runtime
  gpuops.nvidia.container_toolkit:
    settings:
      nvidia-container-runtime:
        log-level: debug
        runtimes: [/usr/libexec/crio/crun, runc]
      features.gdrcopy: true

- name: Add a runtime class with another name and program
  gpuops.nvidia.container_toolkit:
    nvidia_runtime_name: nvidia-site
    nvidia_runtime_path: /opt/site/bin/nvidia-container-runtime

- name: Let rootless containers of two users use the GPUs
  gpuops.nvidia.container_toolkit:
    runtime: podman
    rootless_users: [builder, trainer]

- name: Read the toolkit and the runtimes of a host
  gpuops.nvidia.container_toolkit:
    state: gathered
  register: current

- name: Name the runtimes that use the NVIDIA runtime by default
  ansible.builtin.debug:
    msg: "{{ current.runtimes | selectattr('is_default') | map(attribute='name') }}"

- name: Compute the files for containerd without a host
  gpuops.nvidia.container_toolkit:
    state: rendered
    runtime: containerd
    set_as_default: true
    settings:
      nvidia-container-runtime.log-level: debug
  register: files
  delegate_to: localhost

- name: Remove the toolkit and restore the former files
  gpuops.nvidia.container_toolkit:
    state: absent
"""

RETURN = r"""
plan:
  description: The steps that were executed, or in check mode would be executed, in order.
  returned: success, except with O(state=rendered)
  type: list
  elements: dict
  sample:
    - id: "restart service: containerd.service"
      action: restart service
      target: containerd.service
      reason: its configuration changes
      needs: never
      assumed: false
pending:
  description: The steps that O(disruption) forbids or that wait for something else, with the reason of each.
  returned: success, except with O(state=rendered)
  type: list
  elements: dict
  sample: []
runtime:
  description:
    - The runtime that was configured, the first one if there are several; null if there is none, or if there was
      nothing to remove.
  returned: success
  type: str
  sample: containerd
config_path:
  description: The main configuration file of RV(runtime).
  returned: success
  type: str
  sample: /etc/containerd/config.toml
runtime_names:
  description:
    - The names of all runtimes that were configured, in the order of O(runtime). They are followed by C(docker of NAME)
      for the rootless Docker of each user in O(rootless_users).
  returned: success
  type: list
  elements: str
  sample: [containerd, podman]
config_paths:
  description: The main configuration file of each of RV(runtime_names).
  returned: success
  type: dict
  sample: {containerd: /etc/containerd/config.toml, podman: /etc/containers/containers.conf}
packages:
  description: The toolkit packages that are installed, with their versions.
  returned: success, except with O(state=rendered)
  type: dict
  sample: {nvidia-container-toolkit: 1.20.1-1}
version:
  description: The version of the toolkit; null if it is not installed.
  returned: success, except with O(state=rendered)
  type: str
  sample: 1.20.1
previous_default_runtime:
  description: The default runtime of RV(runtime) before this module changed it.
  returned: success, except with O(state=rendered)
  type: str
  sample: runc
restart_required:
  description:
    - Whether one of the runtimes has not applied the configuration in its files yet. In check mode, whether a run would
      restart one.
  returned: success, except with O(state=rendered)
  type: bool
  sample: false
cdi_specs:
  description: The paths of the existing CDI specifications.
  returned: success, except with O(state=rendered)
  type: list
  elements: str
  sample: [/var/run/cdi/nvidia.yaml]
gathered:
  description:
    - The current state as options of this module, for O(runtime). Without the toolkit, it contains only C(state),
      which is V(absent).
    - If O(runtime) chooses several runtimes, the options are those of the first configured one. C(runtime) also
      contains the others, except those whose configuration these options would change. A warning names the omitted
      ones.
    - C(repository) is the one that this module has configured. Its C(key) is the path of the key on the host.
    - C(rootless_users) are the users whose Docker this module has configured, if there are any.
    - C(nvidia_runtime_name) and C(nvidia_runtime_path) are included only if they are not the defaults.
    - C(settings) are the known ones in the file. C(nri) is true only if this module has enabled NRI. C(config_path) is
      included only if O(config_path) is set, and C(drop_in_path) only if it is not the default.
  returned: success, with O(state=gathered)
  type: dict
  sample:
    state: present
    version: 1.20.1
    runtime: containerd
    set_as_default: false
    cdi: true
    cdi_management: false
    nri: false
    mode: auto
    settings: {nvidia-container-runtime: {mode: auto}}
rendered:
  description:
    - The files that the options would produce on a host that has no configuration files yet, for containerd 2.0, k0s
      1.36, Docker 28.2, CRI-O 1.31 and newer.
    - A file C(/etc/nvidia-container-runtime/config.toml) contains only O(settings); the packages add their defaults.
  returned: success, with O(state=rendered)
  type: list
  elements: dict
  contains:
    path: {description: The path on the host., type: str, returned: success, sample: /etc/docker/daemon.json}
    content:
      description: The text of the file.
      type: str
      returned: success
      sample: '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}'
cdi:
  description:
    - The CDI specification for containers, its C(path) (null if there is none), the names of its C(devices), and the
      version of the C(driver) in it.
  returned: success, with O(state=gathered)
  type: dict
  sample: {path: /var/run/cdi/nvidia.yaml, devices: ["0", "GPU-1b2c"], driver: 595.91.07}
runtimes:
  description: The installed runtimes in the order of O(runtime).
  returned: success, with O(state=gathered)
  type: list
  elements: dict
  contains:
    name: {description: A value of O(runtime)., type: str, returned: success, sample: containerd}
    user: {description: Whose rootless Docker it is; null for the others., type: str, returned: success, sample: null}
    config_path:
      description: The main configuration file.
      type: str
      returned: success
      sample: /etc/containerd/config.toml
    drop_in_paths:
      description: The drop-ins that this module has written.
      type: list
      elements: str
      returned: success
      sample: [/etc/containerd/conf.d/99-gpuops-nvidia.toml]
    service: {description: Its unit or null., type: str, returned: success, sample: containerd.service}
    running: {description: Whether its unit runs., type: bool, returned: success, sample: true}
    configured:
      description: Whether it has an NVIDIA runtime class, for Podman whether it finds a specification.
      type: bool
      returned: success
      sample: true
    classes:
      description: The NVIDIA runtime classes with their programs.
      type: dict
      returned: success
      sample: {nvidia: /usr/bin/nvidia-container-runtime}
    default_runtime: {description: The default runtime., type: str, returned: success, sample: runc}
    is_default: {description: Whether the NVIDIA runtime is the default., type: bool, returned: success, sample: false}
    cdi: {description: Whether CDI is enabled; null if unsupported., type: bool, returned: success, sample: true}
    nri: {description: Whether NRI is enabled; null if unknown., type: bool, returned: success, sample: null}
    problem:
      description: Why its configuration cannot be read, or null. Then the values after C(running) are empty or null.
      type: str
      returned: success
      sample: null
"""

import base64
import json
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils import _module_main, _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, InUse
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result, apply
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import OF_FILES
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.read import read_state, run_trials
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.seal import encrypt
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.step_executor import (
    StepExecutor,
    gather,
    plan,
    step_from_json,
)


def handle_request(params: dict[str, t.Any]) -> Result:
    """The response to a request of the action plugin, whose phase is `read`, `gather`, `try` or `apply`."""
    if not params["request"]:
        raise InputError("this module was called without its action plugin.",
                         "Call gpuops.nvidia.container_toolkit by its full name from a playbook.", path="request")
    request = {**params, **json.loads(base64.b64decode(params["request"]))}
    if request["phase"] == "try":
        return {"changed": False, "trials": run_trials(request, run)}
    applying, blocked_step = request["phase"] == "apply", None
    with Journal("container_toolkit", readonly=not applying) as journal:
        if applying:
            executor = StepExecutor(request, journal, run)
            steps = [step_from_json(step) for step in request["steps"]]
            try:
                apply(steps, executor.execute, journal)
                if request["forget_restored"]:
                    executor.forget_restored()
            except InUse:
                blocked_step = (journal.unfinished or {})["id"]
                journal.done(steps[-1])  # the blocked step has changed nothing
        host_state: dict[str, t.Any] = read_state(request, journal, run)
        more: dict[str, t.Any] = {}
        if request["phase"] == "gather":
            added, more = gather(request, journal, run)
        else:
            added = plan(request, journal, run)
        host_state.update(added)
    options = {name: value for name, value in params.items() if name not in ("request", "proxy")}
    return {"changed": applying, "host_state": host_state, "options": options, "blocked_step": blocked_step,
            **more}


def main() -> None:
    """Entry point."""
    module = _module_main.Module(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "gathered", "rendered"], "default": "present"},
            "version": {"type": "str"},
            "repository": {"type": "dict", "default": {}, "apply_defaults": True, "options": {
                "url": _module_main.ADDRESS,
                "key": {**_module_main.ADDRESS, "default": "https://nvidia.github.io/libnvidia-container/gpgkey"},
                "fingerprint": {"type": "str", "default": "C95B321B61E88C1809C4F759DDCAE044F796ECB0"},
            }},
            **OF_FILES,
            "cdi_management": {"type": "bool", "default": False},
            "proxy": _proxy.OPTION,
            "disruption": _module_main.DISRUPTION,
            # no_log: the candidate files in it may hold a registry's credentials.
            "request": {"type": "str", "no_log": True},
            "seal": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )

    _module_main.hide(module, module.params["repository"]["url"], module.params["repository"]["key"])

    def work() -> Result:
        _proxy.use(module.params["proxy"])
        response = handle_request(module.params)
        sealed = encrypt(json.dumps(response).encode(), module.params["seal"])
        return {"changed": response["changed"], "sealed": base64.b64encode(sealed).decode()}

    _module_main.finish(module, work)


if __name__ == "__main__":
    main()

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_policy
short_description: Validate, compare and export a policy, and turn it into a plan for hosts and cluster
version_added: 0.1.0
description:
  - Reads a policy, checks every key in it, and resolves it for each host with the GPUs of this host.
  - An unknown key is refused with its path, its line and the nearest known key. One message names all errors of all
    documents.
  - Deprecated keys are translated if possible, and named in RV(notes).
  - Can compare the policy with another one (O(compare_with)), or convert it to another format (O(export)).
  - A policy that a host cannot follow is refused before anything is changed. The refusal has the constraints that
    exclude each other, and the changes that would help. If other hosts can follow the policy, the refused host is left
    out and named in RV(rejected), unless the variable C(gpu_strict) is set. Otherwise the module fails with one message
    for all hosts.
  - Runs on the controller and opens no connection to a host. Use it once for the whole play, with C(run_once).
  - If components are delivered in a cluster, the module reads its Nodes through O(kubeconfig), and the ConfigMaps and
    Secrets that the policy names. For hosts, it reads these ConfigMaps if O(kubeconfig) is set. It uses no environment
    variable and no default file to find a cluster.
  - An option that is not set is taken from the variable of the same name with the prefix C(gpu_), such as
    C(gpu_placement). All hosts of the play that have this variable must have the same value. If none of them has it, it
    is taken from the hosts of the groups C(gpu_hosts) and C(gpu_control) that C(--limit) leaves out. An empty variable
    is refused, except that an empty C(gpu_kubeconfig), C(gpu_context), C(gpu_render_to), C(gpu_release) or C(gpu_proxy)
    is not set. For C(gpu_policy), see O(policy).
  - If a policy has a user or a query in a URL, a private key, or a variable whose name is that of a secret, such as
    C(NGC_API_KEY), Ansible neither prints nor logs the result, as with C(no_log). Further tasks can use it.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
options:
  policy:
    description:
      - The path of a file, or the policy itself as a mapping or a list of mappings. If this is not set, the defaults of
        the release apply.
      - The formats are ClusterPolicy (nvidia.com/v1), NVIDIADriver and GPUCluster (nvidia.com/v1alpha1), the values of
        the GPU Operator's Helm chart, and GPUClusterPolicy (gpu.nvidia.com/v1). The module detects the format from the
        content.
      - A file may contain several documents, which are one ClusterPolicy or GPUCluster and any number of NVIDIADrivers,
        or a List as C(kubectl get -o yaml) writes it. Values and a GPUClusterPolicy must be the only document.
      - V(live) reads the resources of a GPU Operator from the cluster of O(kubeconfig), whether the operator runs or
        not.
      - A relative path is looked up next to the inventory, next to the playbook, and in the working directory.
    type: raw
  release:
    description:
      - The release of the GPU Operator whose versions and defaults apply, such as V(26.3.3). If this is not set, the
        newest release.
    type: str
  placement:
    description:
      - V(hosts) delivers V(driver), V(container_toolkit), V(mig_manager), V(feature_discovery), V(validator), V(dcgm),
        V(dcgm_exporter), V(cuda) and V(node_status_exporter) on the hosts, if the policy enables them.
      - V(cluster) delivers these except V(cuda), and V(nfd) and V(device_plugin), in a cluster, if the policy enables
        them.
      - V(hybrid) delivers driver, container toolkit and MIG on those hosts of the group C(gpu_hosts) that are Nodes,
        and everything else in the cluster. Other Nodes with GPUs get everything from the cluster.
      - A mapping of components to V(host), V(cluster) or V(none) sets the placement of each component. A component that
        it leaves out is placed as with V(hosts).
      - The default is V(hosts), if the variable is not set either.
    type: raw
  disruption:
    description:
      - What the run may do to running work.
      - For the driver, the stricter of this option and the policy applies. If driver.upgradePolicy.autoUpgrade is
        false, a running driver is not disturbed (V(never)). In a ClusterPolicy, its default is false if upgradePolicy
        is set. The other keys of upgradePolicy do not change the level.
      - The default is V(never), if the variable is not set either.
    type: str
    choices: [never, idle, drain, reboot, ""]
  kubeconfig:
    description:
      - The path of the kubeconfig of the cluster. A relative path is looked up like that of O(policy).
    type: str
  context:
    description:
      - A context in O(kubeconfig). If this is not set, the current context.
    type: str
  namespace:
    description:
      - The namespace of the operands. The default is V(gpu-operator), if the variable is not set either.
    type: str
  image_registry:
    description:
      - The registry, or a mirror of it, with which image names begin. The default is V(nvcr.io), if the variable is not
        set either.
    type: str
  pull_secrets:
    description:
      - The names of Secrets in O(namespace) for pulling images.
    type: list
    elements: str
  proxy:
    description:
      - The proxy through which driver containers download packages, as C(http), C(https) and C(no_proxy), or by the
        names that these have in the environment. The roles on hosts read the variable C(gpu_proxy) themselves.
      - Driver containers get it as environment variables in uppercase and in lowercase, unless C(driver.env) of the
        policy sets them. Containers with precompiled modules do not get it, because they download nothing.
      - A proxy with a password is refused for driver containers unless C(driver.secretEnv) of the policy names a Secret
        that contains it.
    type: dict
  node_os:
    description:
      - The operating systems of Nodes with GPUs that need driver containers, such as V(ubuntu24.04).
      - If this is not set, they are read from the Nodes. It is needed only if manifests are written and no cluster is
        named.
    type: list
    elements: str
  render_to:
    description:
      - A folder to which the manifests are written. The cluster is then not changed.
    type: str
  sharing:
    description:
      - How Pods share GPUs, by time-slicing or MPS. The path of a file, or a mapping.
      - The forms are a configuration of the device plugin (version v1), only its section C(sharing), several named
        configurations as C({default, configs}), and a ConfigMap as the GPU Operator uses it.
      - Each configuration is checked before anything is changed. A key in the wrong place, which the device plugin
        would ignore silently, is refused, and the error names the right place.
      - The host variable C(device_plugin_config) names the configuration of the host's Node. Other Nodes get the
        default configuration. A single configuration is the default.
    type: raw
  monitoring:
    description:
      - The alerts, dashboards and counters for the DCGM exporter of a cluster, as a mapping with these keys.
      - C(rules), whether alerts are delivered as a PrometheusRule. If this is not set, they are delivered if the
        cluster has that kind and the exporter has its ServiceMonitor. V(true) is refused if the cluster does not have
        that kind.
      - C(dashboards) (V(false)), whether dashboards for Grafana are delivered as a ConfigMap, with the labels
        C(dashboard_labels) (C(grafana_dashboard=1)) by which a sidecar finds it.
      - C(counters), V(vendor) for the default counters of the exporter, or V(full) for a list of this collection that
        includes ECC errors and throttling.
      - C(rule_labels), more labels of the PrometheusRule, such as C(release=prometheus).
      - C(thresholds), numbers of the alerts, C(temperature) (85) and C(memory_temperature) (95) in Celsius, C(power)
        (0, no alert) in watts, C(idle_percent) (5) and C(idle_minutes) (120), C(lost_hours) (6), C(throttled_percent)
        (10), C(fatal_xids) (a list of numbers).
    type: dict
  maintenance_windows:
    description:
      - When a run may begin what disturbs a host or a Node, as a list of windows with these keys.
      - C(start) (required), a local time in quotes, such as V(22:00). C(hours) (required), how long the window is open,
        more than 0 and at most 168. These are hours that really pass, also in the nights in which the clocks change.
      - C(days) (V(all)), a list of V(mon), V(tue), V(wed), V(thu), V(fri), V(sat) and V(sun). A window that is open
        over midnight is on the day on which it opens.
      - C(timezone) (V(UTC)), a name of the IANA time zone database that the controller knows, such as V(Europe/Berlin).
      - Without windows, a run may begin at any time.
    type: raw
  take_over:
    description:
      - Whether to make a plan for a cluster that a GPU Operator owns, which is refused otherwise. RV(cluster) then
        tells M(gpuops.nvidia.operands) and M(gpuops.nvidia.gpu_labels) to adopt the cluster.
      - O(policy) must then be set, to V(live) for the operator's own policy, because later runs need it too.
    type: bool
    default: false
  check_pods:
    description:
      - The value that M(gpuops.nvidia.gpu_verify) gets at the end of the run. A wrong value, and in a cluster the name
        of a Node that is no GPU Node, is refused here, before anything is changed. It is not part of the plan.
    type: raw
    default: 0
  check_metrics:
    description:
      - As O(check_pods), for O(gpuops.nvidia.gpu_verify#module:check_metrics).
    type: raw
    default: 0
  facts:
    description:
      - The facts that M(gpuops.nvidia.gpu_info) returned for each host, or null for a host that could not be reached.
      - If this is not set, they are taken from the variable that the role preflight registers on the hosts of the play.
    type: dict
  cluster_facts:
    description:
      - The facts of the cluster, as a mapping with C(server), C(version), C(nodes), C(nfd) and C(service_monitors). If
        this is not set, it is read through O(kubeconfig).
      - C(prometheus_rules), whether the cluster has the kind PrometheusRule, may be left out, and is then false.
      - C(openshift), whether the cluster is OpenShift, may be left out. The cluster is then OpenShift if all of its
        Nodes report it.
      - C(config_maps) and C(secrets) have the ConfigMaps and Secrets that the policy names, by name. The value
        of a ConfigMap maps its keys to strings; it is null if the ConfigMap does not exist. The value of a Secret is
        whether it exists. Objects that are left out are not checked.
      - C(driver_daemon_sets) maps the name of each existing driver DaemonSet of this collection, which keeps this name,
        to its operating system, such as V(ubuntu24.04). C(driver_images) maps the name of each existing driver
        DaemonSet to the C(tag) of its image and to C(kernel_module_type). C(toolkit_runtime) is the container runtime
        that the toolkit in the cluster configures. A driver or runtime that is in use and that some Nodes need is only
        replaced by one that more than half of the Nodes need.
      - C(nvidia_drivers) maps the name of each NVIDIADriver to its C(uid) (empty if it does not exist) and to C(there),
        its DaemonSets by system. C(driver_kernels) maps the name of each DaemonSet for a single kernel to this kernel.
    type: dict
  overrides:
    description:
      - For each host, the variables of roles that take precedence over the policy, such as C(driver_version). For a
        secret such as C(driver_signing_key), the module only uses whether it is set.
      - If this is not set, they are taken from the inventory of the hosts of the play.
    type: dict
  resolve:
    description:
      - V(false) makes no plan. The policy is then read only for O(compare_with) or O(export).
      - Without these two options, the policy is not read. RV(cluster) then has the connection to the cluster, and
        RV(hosts) has the Nodes of the hosts. A removal uses this, so that it also works with an invalid policy.
    type: bool
    default: true
  compare_with:
    description:
      - A second policy, in the same forms as O(policy). RV(differences) lists the differences.
    type: raw
  export:
    description:
      - The format to convert the policy to. RV(exported) has the result.
      - Only what the policy sets is exported, not the defaults of the release. If the other format has a different
        default, the value is written out.
      - RV(notes) names the keys that the other format does not have.
    type: str
    choices: [cluster_policy, nvidia_driver, values]
seealso:
  - module: gpuops.nvidia.gpu_verify
  - module: gpuops.nvidia.gpu_report
"""

EXAMPLES = r"""
- name: Resolve a policy for given facts
  gpuops.nvidia.gpu_policy:
    policy:
      driver:
        version: 580.126.20
      toolkit:
        version: v1.19.1
    facts: "{{ {inventory_hostname: gpu_host.facts} }}"
    overrides: {}
  register: gpu_plan

- name: Resolve a ClusterPolicy for all hosts of the play
  gpuops.nvidia.gpu_policy:
    policy: cluster-policy.yml
    release: 26.3.3
    disruption: idle
  run_once: true
  register: gpu_plan

- name: Compare a new policy with the current one
  gpuops.nvidia.gpu_policy:
    policy:
      driver:
        version: 580.126.20
    compare_with:
      driver:
        version: 595.91.07
        kernelModuleType: open
    resolve: false
  run_once: true
  register: gpu_policies

- name: Share GPUs, with more replicas on some Nodes
  gpuops.nvidia.gpu_policy:
    placement: cluster
    render_to: manifests
    node_os: [ubuntu24.04]
    sharing:
      default: two
      configs:
        two:
          timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}
        eight:
          mps: {resources: [{name: nvidia.com/gpu, replicas: 8}]}
        whole: {}
    facts: {}
    overrides: {}
  register: gpu_plan_shared

- name: Convert a ClusterPolicy to values of the chart
  gpuops.nvidia.gpu_policy:
    policy:
      apiVersion: nvidia.com/v1
      kind: ClusterPolicy
      metadata:
        name: cluster-policy
      spec:
        driver:
          version: 580.126.20
        mig:
          strategy: mixed
    export: values
    resolve: false
  run_once: true
  register: gpu_policy_export

- name: Write the values to a file
  ansible.builtin.copy:
    content: "{{ gpu_policy_export.exported | to_nice_yaml }}"
    dest: values.yml
    mode: "0644"
  delegate_to: localhost
  run_once: true

- name: Export the policy of a running GPU Operator
  gpuops.nvidia.gpu_policy:
    policy: live
    kubeconfig: gpu-cluster.kubeconfig
    export: cluster_policy
    resolve: false
  run_once: true
  register: gpu_policy_live

- name: Read only the connection to the cluster and the Nodes of the hosts
  gpuops.nvidia.gpu_policy:
    resolve: false
    kubeconfig: gpu-cluster.kubeconfig
  run_once: true
  register: gpu_place
"""

RETURN = r"""
release:
  description: The release whose versions and defaults apply.
  returned: success
  type: str
  sample: 26.7.0
policy:
  description: The file of the policy, or the variable that contains it.
  returned: success
  type: str
  sample: /etc/ansible/cluster-policy.yml
format:
  description: V(ClusterPolicy), V(values), V(NVIDIADriver), V(GPUCluster), V(GPUClusterPolicy) or V(defaults).
  returned: success
  type: str
  sample: ClusterPolicy
disruption:
  description: The level that was given.
  returned: success
  type: str
  sample: idle
placement:
  description: The placement of each component, V(host), V(cluster), V(hybrid) or V(none).
  returned: success
  type: dict
  sample: {driver: host, container_toolkit: host, mig_manager: host, feature_discovery: host}
hosts:
  description:
    - For each host and component, the parameters of its role, with the disruption level that applies to it.
    - C(driver) also has values that its role derives itself. C(packages), C(repository) (C(name), C(arch) and
      C(stream)) and C(kernel_packages) are the source of the driver; C(installation) is V(auto), V(full) or
      V(compute-only); C(precompiled) says whether its kernel modules are precompiled; C(cuda) is the highest CUDA
      level that it runs; C(secure_boot) is V(signed) or V(mok) if Secure Boot is on. C(fabric) has C(manager),
      V(fabricmanager), V(fabricmanager+nvlsm) or null, its C(version), C(imex), whether the host is a tray of an
      NVLink rack, and C(imex_nodes). C(next_kernel) says whether modules are also installed for the kernel that boots
      next, C(licence) whether a licence token is set, C(persistenced) whether nvidia-persistenced runs,
      C(hold_kernel) whether upgrades keep the installed kernels. C(proxy) has what C(driver.env) of the policy sets,
      and C(fabric_manager_settings) those of the host, or else of C(driver.env). C(peermem), C(gds) and C(gdrcopy)
      say whether these kernel modules are installed.
    - C(driver.state) is V(rolled_back) for a host with this C(driver_state); the other keys then describe the driver
      before the last change, which C(journals.former_driver) of M(gpuops.nvidia.gpu_info) shows.
    - C(profile) has C(name), null if there is no profile, and C(because); see O(overrides).
    - C(preview) names the components whose facts differ from the plan, or whose plan has options that no fact shows.
      If the driver differs, it also names MIG, because reloading the driver removes the MIG instances. C(delivered)
      names all components that are delivered to the host as a host.
    - C(node) is empty for a host that is not a Node of the cluster. Otherwise C(name) is the name of the Node, and
      C(left) says whether a run that was killed or failed has left the Node out of service.
    - With O(resolve=false) and without a policy to compare or to export, each host has only C(node), and
      C(note) if it is not a Node and O(disruption) is above V(idle). The note applies to a host that belongs to a
      Kubernetes cluster, where V(idle) is then the highest level.
  returned: success
  type: dict
  sample:
    gpu01:
      driver:
        placement: host
        state: present
        version: 595.91.07
        branch: 595
        kernel_module_type: open
        source: cuda_repository
        packages: [nvidia-open]
        repository: {name: ubuntu2404, arch: x86_64, stream: null}
        kernel_packages: [linux-headers-6.8.0-45-generic]
        installation: auto
        precompiled: false
        fabric: {manager: null, imex: false, version: null, imex_nodes: []}
        persistenced: true
        peermem: false
        gds: false
        gdrcopy: false
        next_kernel: true
        hold_kernel: false
        licence: false
        proxy: {}
        fabric_manager_settings: {}
        module_parameters: {}
        cuda: "13.2"
        secure_boot: null
        disruption: never
        because: ["driver 595.91.07: the default of release 26.7.0"]
      profile: {name: null, because: ""}
      preview: [driver]
      delivered: [driver, container_toolkit, mig_manager, feature_discovery, dcgm, dcgm_exporter, validator]
      node: {name: gpu01, left: false}
host_nodes:
  description:
    - The C(node) of each host, as in RV(hosts), including hosts that the plan rejects, and hosts on which nothing is
      delivered.
  returned: success, unless a policy is only compared or exported
  type: dict
  sample:
    gpu01: {name: gpu01, left: false}
host_levels:
  description:
    - The highest level of disruption that applies to each of these hosts. It is O(disruption), or at most V(idle) for a
      host that belongs to a Kubernetes cluster and whose Node is not known.
  returned: success, with O(resolve)
  type: dict
  sample:
    gpu01: idle
cluster:
  description:
    - The plan of the cluster, for M(gpuops.nvidia.operands), M(gpuops.nvidia.gpu_labels) and
      M(gpuops.nvidia.gpu_verify). Null if nothing is delivered in a cluster.
    - C(components) has each component with its state, images and settings. C(nodes) has facts about the Nodes.
      C(deploy) has the components that the Nodes get, whether labels differ, and the hosts that report labels for
      Nodes.
    - C(pools) has the Nodes that one driver image serves, each with C(nodes), C(os), C(kernel), C(gpu) and C(driver)
      (C(version), C(kernel_module_type), C(image) and C(because)).
    - C(left) has the Nodes that a removal has left out of service and that are not Nodes of the hosts.
    - With O(resolve=false) it has only C(kubeconfig), C(context) and C(namespace). It is null if no cluster is named,
      or if C(--limit) leaves out all hosts of the group C(gpu_control).
  returned: success
  type: dict
  sample: null
checks:
  description:
    - The findings of the preflight, as a list of C(host) (or V(cluster)), C(check), C(severity) (V(error),
      V(warning) or V(info)), C(text), C(fix) and C(detail), which is what of the host has the problem. On a refusal
      they are in RV(error).
  returned: success, with O(resolve)
  type: list
  elements: dict
  sample:
    - host: gpu01
      check: kernel_headers
      severity: error
      text: >-
        the driver cannot be built: kernel 6.8.0-31-generic has no headers here, and linux-headers-6.8.0-31-generic is
        not in the package index
      fix: Boot a kernel whose headers the package source has, or add the source of this one
      detail: ""
batch:
  description: The number of hosts that may be disturbed at the same time, from C(gpu_max_unavailable).
  returned: success, unless a policy is only compared or exported
  type: int
  sample: 1
windows:
  description: The windows of O(maintenance_windows), each with C(days), C(start), C(hours) and C(timezone).
  returned: success, with O(resolve)
  type: list
  elements: dict
  sample:
    - {days: [sat, sun], start: "22:00", hours: 6.0, timezone: Europe/Berlin}
strict:
  description: The variable C(gpu_strict). With V(true) no host is changed if one host fails beforehand.
  returned: success, with O(resolve)
  type: bool
  sample: false
kubeconfig:
  description: The path of the kubeconfig that applies, null if no cluster is named. RV(context) is the context in it.
  returned: success, unless a policy is only compared or exported
  type: str
  sample: /etc/ansible/admin.conf
context:
  description: The context in RV(kubeconfig), null for the current one.
  returned: success, unless a policy is only compared or exported
  type: str
  sample: null
rejected:
  description:
    - The hosts that are left out of the plan, each with C(path), C(message) and C(hint). A host is left out if it
      cannot follow the policy and C(gpu_strict) is not set, if its facts do not have the shape that
      M(gpuops.nvidia.gpu_info) documents, if its facts set variables of this collection, or if Ansible cannot template
      a variable of this collection that its inventory sets. The other hosts are part of the plan. Without O(resolve)
      these are only hosts of the last two kinds.
  returned: success
  type: dict
  sample:
    gpu07:
      path: facts.gpus[0].pci
      message: "The answer of the host is invalid: facts.gpus[0].pci is 7 (allowed: a string)."
      hint: Look at what runs on the host.
differences:
  description:
    - The differences, by path in the spec of a ClusterPolicy. The policies are compared with their defaults filled in,
      so two formats of the same policy do not differ.
    - C(before) is the value in O(policy), C(after) the value in O(compare_with), null if it is not set. C(text) is the
      same as a sentence.
  returned: success, with O(compare_with)
  type: list
  elements: dict
  sample:
    - path: driver.version
      before: 580.126.20
      after: 595.91.07
      text: "driver.version: '580.126.20' becomes '595.91.07'"
exported:
  description: The policy in the format of O(export), for V(nvidia_driver) a list of objects, else a mapping.
  returned: success, with O(export)
  type: raw
  sample: {driver: {version: 580.126.20}, mig: {strategy: mixed}}
notes:
  description: Notes for the user, which do not stop the run.
  returned: success
  type: list
  elements: str
  sample: []
explanations:
  description: For each host, the reasons for its plan.
  returned: success
  type: dict
  sample: {gpu01: ["driver: open kernel modules: auto: every GPU supports open modules"]}
error:
  description:
    - C(kind) is the kind of the error. For V(policy) C(refusals) is a list of C(hosts), C(reason), C(remedy),
      C(constraints) (C(id) and C(text) of the constraints that exclude all drivers) and C(free) (C(drop), the
      constraint to lift, C(also), the constraints to lift with it, and C(result), the variables or keys to set). For a
      cluster, C(pools) has the pools that could be resolved.
    - C(faults) lists the errors in documents. C(checks) is the same as RV(checks).
  returned: failure
  type: dict
  sample: {kind: policy, refusals: [{hosts: [gpu01], reason: no NVIDIA GPU is on its PCI bus, remedy: Take it out.}]}
"""

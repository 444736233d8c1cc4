# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_policy
short_description: Validate, compare and export a policy, and turn it into a plan for hosts and cluster
version_added: 0.1.0
description:
  - Reads a policy, checks every key of it, and resolves it for each host against the GPUs that are there.
  - A key that is not known is refused with its path, line and the nearest known key. All faults of all documents come
    in one message.
  - Deprecated keys are translated where that is possible, and said in RV(notes).
  - Says on request in what the policy differs from another, and gives it in another format.
  - What a host cannot do is refused before anything is changed, with the constraints that exclude each other and what
    would free them. The refusals of all hosts come in one message.
  - Runs on the controller and opens no connection to a host. Use it once for the whole play, with C(run_once).
  - Where components are delivered in a cluster, its Nodes are read through O(kubeconfig). Nothing else names a cluster,
    no environment variable and no default file.
  - An option that is not set is taken from the variable of the same name with the prefix C(gpu_), such as
    C(gpu_placement), of the hosts of the play, which must agree; what none of them has is taken from the hosts of the
    groups C(gpu_hosts) and C(gpu_control) that C(--limit) leaves out.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
options:
  policy:
    description:
      - The path of a file, or the policy itself as a mapping or a list of mappings. Without it the defaults of the
        release count.
      - Accepted are a ClusterPolicy (nvidia.com/v1), NVIDIADrivers and a GPUCluster (nvidia.com/v1alpha1), the values
        of the GPU Operator's Helm chart, and a GPUClusterPolicy (gpu.nvidia.com/v1). The format is seen from the
        content.
      - A file may hold several documents, one ClusterPolicy or GPUCluster with any number of NVIDIADrivers; also a List
        as C(kubectl get -o yaml) writes it. Values and a GPUClusterPolicy stand alone.
      - V(live) reads the resources of a GPU Operator from the cluster of O(kubeconfig), whether the operator runs or
        not.
      - A relative path is looked for beside the inventory, beside the playbook, and in the working directory.
    type: raw
  release:
    description:
      - The release of the GPU Operator whose versions and defaults apply, such as V(26.3.3). The newest one without it.
    type: str
  placement:
    description:
      - V(hosts) delivers V(driver), V(container_toolkit), V(mig_manager) and V(feature_discovery) on the hosts.
      - V(cluster) delivers these and V(nfd), V(validator), V(device_plugin), V(dcgm), V(dcgm_exporter) and
        V(node_status_exporter) in a cluster, as far as the policy has them on.
      - V(hybrid) leaves driver, container toolkit and MIG to those hosts of the inventory's group C(gpu_hosts) that are
        Nodes, the rest to the cluster. Other Nodes with GPUs get all of it from the cluster.
      - A mapping of components to V(host), V(cluster) or V(none) says it one by one; what it leaves out is as in
        V(hosts).
      - V(hosts) if neither this nor the variable is set.
    type: raw
  disruption:
    description:
      - What the run may do to running work.
      - For the driver the stricter of this and the policy counts. Where driver.upgradePolicy.autoUpgrade is false, a
        running driver is not disturbed (V(never)); a ClusterPolicy that has an upgradePolicy without autoUpgrade says
        false. The other keys of upgradePolicy say how an upgrade goes and forbid nothing.
      - V(never) if neither this nor the variable is set.
    type: str
    choices: [never, idle, drain, reboot, ""]
  kubeconfig:
    description:
      - The file that names the cluster. A relative path is looked for as that of O(policy).
    type: str
  context:
    description:
      - A context in O(kubeconfig). Its current one without it.
    type: str
  namespace:
    description:
      - The namespace of what is delivered in the cluster, V(gpu-operator) if neither this nor the variable is set.
    type: str
  image_registry:
    description:
      - The registry, or a mirror of it, that stands in front of image names, V(nvcr.io) if neither this nor the
        variable is set.
    type: str
  pull_secrets:
    description:
      - Names of Secrets in O(namespace) with which images are pulled.
    type: list
    elements: str
  proxy:
    description:
      - The proxy through which driver containers fetch packages, as C(http), C(https) and C(no_proxy), or by the names
        that these have in the environment. Its roles on hosts read the variable C(gpu_proxy) themselves.
      - They get it as variables in capitals and in small letters, unless the policy's C(driver.env) has them. Where
        modules come built nothing is fetched, and none gets it.
      - One with a password is refused for them unless C(driver.secretEnv) of the policy names a Secret that has it.
    type: dict
  node_os:
    description:
      - Operating systems of Nodes with GPUs, such as V(ubuntu24.04), for which driver containers are wanted.
      - Without it they are read from the Nodes; needed only where manifests are written and no cluster is named.
    type: list
    elements: str
  render_to:
    description:
      - A folder for the manifests. The plan then says so, and the cluster is left alone.
    type: str
  sharing:
    description:
      - How Pods share GPUs, time-slicing or MPS. The path of a file, or a mapping.
      - Accepted are a configuration of the device plugin (version v1), its part C(sharing) alone, several of them by
        name as C({default, configs}), and a ConfigMap as the GPU Operator takes it.
      - Each is checked before anything is changed. A key at a wrong place, which the device plugin passes over in
        silence, is refused with the place where it belongs.
      - A host variable C(device_plugin_config) names the configuration of its Node. The others have the default one; a
        configuration that stands alone is it.
    type: raw
  monitoring:
    description:
      - What goes with the DCGM exporter of a cluster, as a mapping.
      - C(rules), whether alerts are delivered as a PrometheusRule. Unset they are where the cluster knows that kind and
        the exporter has its ServiceMonitor; V(true) is refused where the cluster does not.
      - C(dashboards) (V(false)), whether dashboards for Grafana are delivered as a ConfigMap, with the labels
        C(dashboard_labels) (C(grafana_dashboard=1)) by which a sidecar finds it.
      - C(counters), V(vendor) for what the exporter collects by itself, or V(full) for a file of ours with ECC errors
        and throttling too.
      - C(rule_labels), more labels of the PrometheusRule, such as C(release=prometheus).
      - C(thresholds), numbers of the alerts, C(temperature) (85) and C(memory_temperature) (95) in Celsius, C(power)
        (0, no alert) in watts, C(idle_percent) (5) and C(idle_minutes) (120), C(lost_hours) (6), C(throttled_percent)
        (10), C(fatal_xids) (a list of numbers).
    type: dict
  take_over:
    description:
      - Whether the plan may be made for a cluster that a GPU Operator owns, which is refused otherwise; RV(cluster)
        then tells M(gpuops.nvidia.operands) and M(gpuops.nvidia.gpu_labels) to take it over.
      - The policy must be set then, V(live) for the operator's own, as later runs need it too.
    type: bool
    default: false
  facts:
    description:
      - By host what M(gpuops.nvidia.gpu_info) returned as facts, null for a host that could not be asked.
      - Without it they are taken from the variable that the role preflight registers on the hosts of the play.
    type: dict
  cluster_facts:
    description:
      - What the cluster has, as a mapping with C(server), C(version), C(nodes), C(nfd) and C(service_monitors). It is
        read through O(kubeconfig) without this.
      - C(prometheus_rules), whether it knows PrometheusRule, may be left out, and is false then.
      - With C(config_maps) (by name the texts by key, null where it is not there) and C(secrets) (by name whether it is
        there) also those that the policy names; what is left out of them is not checked. With C(driver_daemon_sets) (by
        name the system, such as V(ubuntu24.04)) our own that are there and keep their names. Likewise with
        C(nvidia_drivers), by name of the NVIDIADriver a mapping with C(uid) (empty where it is not there) and C(there),
        by system its DaemonSet.
    type: dict
  overrides:
    description:
      - By host the variables of roles that win over the policy, such as C(driver_version). Of a secret such as
        C(driver_signing_key) only counts whether it is set.
      - Without it they are taken from the inventory of the hosts of the play.
    type: dict
  resolve:
    description:
      - V(false) makes no plan. The policy is read only where O(compare_with) or O(export) want it.
      - Without these no cluster is asked either. It only says, in RV(cluster), which cluster is meant, as a removal
        needs to know also where the policy is broken.
    type: bool
    default: true
  compare_with:
    description:
      - A second policy, given as O(policy) is. RV(differences) says in what it differs.
    type: raw
  export:
    description:
      - A format into which the policy is put, in RV(exported).
      - What the policy says is exported, not what the defaults of the release add. Where the other format has another
        default, it is written out.
      - What has no place in the other format is said in RV(notes).
    type: str
    choices: [cluster_policy, nvidia_driver, values]
seealso:
  - module: gpuops.nvidia.gpu_verify
  - module: gpuops.nvidia.gpu_report
"""

EXAMPLES = r"""
- name: Resolve a policy for the facts at hand
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

- name: See what a new policy would change
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

- name: Share GPUs, more densely on some Nodes
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

- name: Make values for the chart of a ClusterPolicy
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

- name: Write them down
  ansible.builtin.copy:
    content: "{{ gpu_policy_export.exported | to_nice_yaml }}"
    dest: values.yml
    mode: "0644"
  delegate_to: localhost
  run_once: true

- name: Take over the policy of a running GPU Operator
  gpuops.nvidia.gpu_policy:
    policy: live
    kubeconfig: gpu-cluster.kubeconfig
    export: cluster_policy
    resolve: false
  run_once: true
  register: gpu_policy_live

- name: Find out which cluster is meant
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
  description: Where the policy came from.
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
  description: By component V(host), V(cluster), V(hybrid) or V(none).
  returned: success
  type: dict
  sample: {driver: host, container_toolkit: host, mig_manager: host, feature_discovery: host}
hosts:
  description:
    - By host and component the parameters of its role, each with the disruption level that counts for it.
    - C(driver) also says what its role does not need to be told. C(packages), C(repository) (C(name), C(arch) and
      C(stream)) and C(kernel_packages) are what brings it; C(precompiled) says that its modules come built; C(cuda) is
      the highest CUDA level that it runs; C(secure_boot) is V(signed) or V(mok) where Secure Boot is on.
      C(fabric) has C(manager), V(fabricmanager), V(fabricmanager+nvlsm) or null, its C(version), C(imex), whether the
      host is a tray of an NVLink rack, and C(imex_nodes). C(next_kernel) says whether the kernel that boots next gets
      its modules too, C(licence) whether a licence token is set, C(persistenced) whether nvidia-persistenced runs.
      C(peermem), C(gds) and C(gdrcopy) say which kernel modules stand beside the driver.
    - C(profile) has C(name), null without one, and C(because); see O(overrides).
    - C(preview) names the components whose facts differ from the plan, and MIG beside a driver that does, as its reload
      takes the instances. C(delivered) names all components that the host gets as a host.
    - C(node) is empty for a host that is no Node of the cluster. Otherwise C(name) is the Node's, and C(left) says
      whether a run that was killed or has failed has left it out of service.
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
        precompiled: false
        fabric: {manager: null, imex: false, version: null, imex_nodes: []}
        persistenced: true
        peermem: false
        gds: false
        gdrcopy: false
        next_kernel: true
        licence: false
        module_parameters: {}
        cuda: "13.2"
        secure_boot: null
        disruption: never
        because: ["driver 595.91.07: the default of release 26.7.0"]
      profile: {name: null, because: ""}
      preview: [driver]
      delivered: [driver, container_toolkit, mig_manager, feature_discovery, dcgm, dcgm_exporter, validator]
      node: {name: gpu01, left: false}
cluster:
  description:
    - What the cluster is to hold, for M(gpuops.nvidia.operands), M(gpuops.nvidia.gpu_labels) and
      M(gpuops.nvidia.gpu_verify). Null where nothing is delivered in a cluster.
    - C(components) has each component with its state, images and settings, C(nodes) what is known of the Nodes,
      C(deploy) which components Nodes get, whether labels differ, and the hosts whose labels go to their Nodes.
    - C(pools) has the Nodes that one driver image serves, each with C(nodes), C(os), C(kernel), C(gpu) and C(driver)
      (C(version), C(kernel_module_type), C(image) and C(because)).
    - With O(resolve=false) C(kubeconfig), C(context) and C(namespace) alone; null where no cluster is named, and where
      C(--limit) leaves out all hosts of the group C(gpu_control).
  returned: success
  type: dict
  sample: null
checks:
  description:
    - What is known beforehand to go wrong, as a list of C(host) (or V(cluster)), C(check), C(severity) (V(error),
      V(warning) or V(info)), C(text) and C(fix). On a refusal they are in RV(error).
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
batch:
  description: How many hosts may be disturbed at the same time, by the variable C(gpu_max_unavailable).
  returned: success, with O(resolve)
  type: int
  sample: 1
strict:
  description: What the variable C(gpu_strict) says. With V(true) one host that fails beforehand keeps all unchanged.
  returned: success, with O(resolve)
  type: bool
  sample: false
kubeconfig:
  description: The path of the kubeconfig that counts, null where no cluster is named. RV(context) is the one in it.
  returned: success, with O(resolve)
  type: str
  sample: /etc/ansible/admin.conf
context:
  description: The context in RV(kubeconfig), null for the current one.
  returned: success, with O(resolve)
  type: str
  sample: null
rejected:
  description:
    - By host that is left out of the plan C(path), C(message) and C(hint). Either the host cannot follow the policy,
      and C(gpu_strict) is not set. Or its answer to M(gpuops.nvidia.gpu_info) has another shape than documented there,
      or its facts set variables of this collection. The other hosts are part of the plan.
  returned: success, with O(resolve)
  type: dict
  sample:
    gpu07:
      path: facts.gpus[0].pci
      message: "The answer of the host is not believed: facts.gpus[0].pci is 7, allowed is a string."
      hint: Look at what runs on the host.
differences:
  description:
    - What differs, by path in the shape of a ClusterPolicy's spec. What both policies mean is compared, defaults filled
      in, so that two formats of one policy do not differ.
    - C(before) is the value of O(policy), C(after) that of O(compare_with), null for what is not set; C(text) says it
      for people.
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
  description: What deserves attention and hinders nothing.
  returned: success
  type: list
  elements: str
  sample: []
explanations:
  description: By host why the plan is as it is.
  returned: success
  type: dict
  sample: {gpu01: ["driver: open kernel modules: auto: every GPU supports open modules"]}
error:
  description:
    - On a refusal its kind, and for V(policy) the list C(refusals) of C(hosts), C(reason), C(remedy), C(constraints)
      (C(id) and C(text) of those that exclude each other) and C(free) (C(drop), which of them, C(also), what must go
      with it, and C(result), what would be the plan then). Of a cluster C(pools) as far as they were worked out.
    - C(faults) lists what is wrong with documents, C(checks) what RV(checks) would say.
  returned: failure
  type: dict
  sample: {kind: policy, refusals: [{hosts: [gpu01], reason: no NVIDIA GPU is on its PCI bus, remedy: Take it out.}]}
"""

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: operands
short_description: Make a cluster hold the objects of the GPU components, and nothing else of ours
version_added: 0.1.0
description:
  - Renders the manifests of components, compares them with what the API server has, and applies what differs by
    server-side apply with the field manager C(gpuops.nvidia). One list for each kind is read, and an object is written
    only where it differs.
  - What foreign hands changed, removed or added inside the objects is repaired, such as an image, an environment
    variable, C(hostPID), a container or a rule. Their labels and annotations on an object and its status stay, as does
    the annotation by which C(kubectl rollout restart) restarts pods, since taking it out would restart them again.
    What an autoscaler or a controller writes through a subresource stays where the manifest does not name it, and so
    does what a mutating webhook adds to what we apply or makes of it. Where a value is another though the server has it
    on record as ours, a dry run tells whether an apply would change it. The order of a list counts where it means
    something, such as that of init containers.
  - What the server never changes in place is made anew, such as the role of a binding, the handler of a runtime class,
    a ConfigMap that was made immutable or a Service that has lost its address (C(clusterIP=None)). A DaemonSet whose
    pods only users may restart (OnDelete) leaves them to its successor, or is refused where that would not know them.
  - Objects of ours carry the label C(app.kubernetes.io/managed-by=gpuops.nvidia), the label C(gpuops.nvidia/component)
    and the annotation C(gpuops.nvidia/applied). By these they are found again and removed when they are no longer
    wanted.
  - An object of the same name that is not ours is used as it is when it does what is wanted, and is then neither
    labelled nor removed. Otherwise nothing is changed and the message names it. A Namespace that is there already gets
    our labels and keeps its own; a CustomResourceDefinition serves when it has the wanted versions.
  - CustomResourceDefinitions and the Namespace come first and are waited for. In check mode the plan is complete also
    where they are not there yet; what can be tried on the server is tried by a dry run, so that a refusal by admission
    or for lack of rights is known beforehand.
  - A busy server, broken connections and lost races are ridden through for some seconds. A run that fails midway is
    continued by the next one.
  - The cluster is the one of O(kubeconfig). E(KUBECONFIG), C(~/.kube/config), E(K8S_AUTH_KUBECONFIG) and service
    accounts are never used.
  - A cluster that a live GPU Operator owns is refused where O(cluster) is given, unless O(take_over) is.
  - Runs on the controller. Values of Secrets are never shown.
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
extends_documentation_fragment:
  - gpuops.nvidia._attributes
requirements:
  - kubernetes (on the controller)
options:
  state:
    description:
      - V(present) makes the objects be as wanted and removes what is no longer wanted of the same components.
      - V(absent) removes all objects of ours, or those of O(components), and waits until they are gone. Without
        O(components) the Namespace goes too if this module made it and nothing foreign is left in it; a Namespace that
        stays loses our labels and annotations. A CustomResourceDefinition of which others have objects stays as well.
      - V(handed_back) gives the objects of the components (NFD, definitions and Namespaces apart) to the GPU Operator
        that is installed in the cluster, which then is started. Its ClusterPolicy becomes that of O(policy) first; no
        pod is touched. Where none is installed, nothing is done, see RV(operator).
    type: str
    choices: [present, absent, handed_back]
    default: present
  cluster:
    description:
      - What M(gpuops.nvidia.gpu_policy) returned as C(cluster). Excludes O(manifests).
      - A component whose state there is C(absent) is removed.
    type: dict
  components:
    description:
      - Only these components are looked after, and only their objects are removed. All of O(cluster) without it.
    type: list
    elements: str
  manifests:
    description:
      - Manifests to be delivered instead of those of the components, such as a monitoring rule of your own. Namespaced
        ones must name their namespace.
    type: list
    elements: dict
  component:
    description:
      - The name under which O(manifests) are kept apart from the objects of other tasks; at most 63 letters, digits,
        dots, dashes and underscores. Needed with O(manifests).
    type: str
  kubeconfig:
    description:
      - Path of the kubeconfig of the cluster. Needed unless O(render_to) is given.
      - A relative path is looked for beside the inventory, beside the playbook, and in the working directory.
    type: path
  context:
    description:
      - A context in it, instead of its current one.
    type: str
  render_to:
    description:
      - A folder to which the manifests are written, one file an object and a C(kustomization.yaml) that lists them in
        order. No cluster is asked. Files that an earlier run wrote and that are no longer wanted are removed; with
        O(state=absent) all of them.
    type: path
  take_over:
    description:
      - Whether a GPU Operator that owns the cluster is stopped (its Deployment scaled to 0) and the objects that it
        made are taken over, in place and with their pods; those of drivers do not restart, as their DaemonSets are
        OnDelete.
      - Before anything is changed it is refused where something would start the operator again (OLM, Flux, Argo CD),
        where it upgrades drivers now, where it runs what O(cluster) does not have, and where a selector is another. All
        writes are tried on the server first.
      - Objects that are not wanted here stay with the ClusterPolicy, which stays, as does its definition. Afterwards,
        and where no operator is, it changes nothing.
      - Needs O(cluster), and excludes O(components).
    type: bool
    default: false
  policy:
    description:
      - The ClusterPolicy for O(state=handed_back), as M(gpuops.nvidia.gpu_policy) returns it in C(exported) with
        C(export=cluster_policy).
    type: dict
  disruption:
    description:
      - What O(state=absent) may disturb. Below V(drain) the DaemonSets of drivers and of the MPS daemon stay as long as
        they have pods, with the other objects of their components and the Namespace, see RV(pending).
      - From V(drain) on their pods are ended Node by Node, O(max_unavailable) at a time. The DaemonSets are deleted
        without their pods. Then each Node is taken out of service as by M(gpuops.nvidia.node_maintenance), which evicts
        the pods that use a GPU within their disruption budgets; its MPS daemon and its driver pod are deleted and
        waited for; and the Node is put back as it was. All other objects follow.
      - A Node that is not Ready is passed over, and so is one whose pods may not be evicted. After too many Nodes on
        which something fails, no further Node is begun, see O(max_fail_percentage). What the pods on such Nodes need
        stays, everything else is removed, and the task fails at its end with the reason C(Timeout). The next run
        continues, also after a run that was killed.
      - With O(state=present) the level in O(cluster) counts. From V(drain) on, pods of drivers and of the MPS daemon
        end in the same way where no DaemonSet of a driver or of the MPS daemon is wanted any more. A Node that is
        passed over is in RV(pending), and the task does not fail; it fails at its end where a Node has
        failed. Driver pods whose DaemonSet is replaced or moves are replaced in the same way; the new DaemonSet is kept
        from each Node by its deploy label until the former pod has ended.
    type: str
    choices: [never, idle, drain, reboot]
    default: never
  wait:
    description:
      - Whether to wait until the DaemonSets, Deployments and Jobs are ready.
    type: bool
    default: false
  wait_timeout:
    description:
      - How long to wait, in seconds, for workloads to be ready.
      - With O(state=absent), after how many seconds in which no object and no pod has gone the task fails. While they
        go, it waits as long as that takes and prints how many are left.
    type: int
    default: 300
  max_unavailable:
    description:
      - How many Nodes whose driver or MPS pods are removed may be out of service at the same time, a number or a share
        of these Nodes such as V(25%). See O(disruption).
    type: str
    default: '1'
  max_fail_percentage:
    description:
      - The percentage of these Nodes that may fail before no further Node is begun. A Node that is passed over has not
        failed. The first Node is served alone, and if it fails, no further Node is begun.
    type: int
    default: 0
  drain_timeout:
    description:
      - The seconds to wait on such a Node for the pods of operands, again for the evicted pods, again for the
        deleted pods, and again for the Node to become Ready.
    type: int
    default: 600
  force:
    description:
      - Whether pods without a controller may be evicted from such a Node. Nothing starts them again.
    type: bool
    default: false
  delete_emptydir_data:
    description:
      - Whether pods with emptyDir volumes may be evicted from such a Node. Their data are lost.
    type: bool
    default: false
seealso:
  - module: gpuops.nvidia.gpu_policy
  - module: gpuops.nvidia.gpu_labels
  - module: gpuops.nvidia.node_maintenance
  - module: gpuops.nvidia.gpu_verify
"""

EXAMPLES = r"""
- name: Deliver all components that the policy wants
  gpuops.nvidia.operands:
    cluster: "{{ gpu_plan.cluster }}"
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Deliver one component and wait for it
  gpuops.nvidia.operands:
    cluster: "{{ gpu_plan.cluster }}"
    components: [device_plugin]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    wait: true

- name: Deliver an object of your own with the same care
  gpuops.nvidia.operands:
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    component: dashboards
    manifests:
      - apiVersion: v1
        kind: ConfigMap
        metadata:
          name: gpu-dashboard
          namespace: gpu-operator
        data:
          title: GPUs

- name: Write the manifests to a folder for GitOps
  gpuops.nvidia.operands:
    cluster: "{{ gpu_plan.cluster }}"
    render_to: ./manifests

- name: Take over what a GPU Operator runs
  gpuops.nvidia.operands:
    cluster: "{{ gpu_plan.cluster }}"
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    take_over: true

- name: Give it back
  gpuops.nvidia.operands:
    state: handed_back
    policy: "{{ exported_policy.exported }}"
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Remove everything of ours from the cluster
  gpuops.nvidia.operands:
    state: absent
    disruption: drain
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
"""

RETURN = r"""
plan:
  description:
    - The steps in order. C(action) is V(create), V(update) (what is wanted has changed), V(repair) (a foreign hand has
      changed the object), V(replace) (either of them, where the server allows it only with a new object), V(adopt) (a
      GPU Operator's object becomes ours), V(delete), or V(release) (an object that stays loses our marks); V(stop) and
      V(start) of an operator, V(hand over) of an object and V(forget) of a Node (our annotations go) to it; with
      O(render_to) V(write file) or V(remove file). C(reason) names the fields that differ.
      - Also the steps on Nodes whose driver and MPS pods go; V(hold), V(cordon), V(evict),
        V(pause), V(delete) of a pod, V(resume), V(uncordon) and V(release).
  returned: success
  type: list
  elements: dict
  sample:
    - id: "repair: DaemonSet gpu-operator/nvidia-dcgm-exporter"
      action: repair
      target: DaemonSet gpu-operator/nvidia-dcgm-exporter
      reason: spec.template.spec.hostPID
      needs: never
      assumed: false
pending:
  description:
    - What the C(disruption) in O(cluster), or O(disruption), forbids and is not done, with C(pending_reason). It needs
      V(drain) to end driver pods or MPS daemons that run, by removing, replacing or moving their DaemonSet. While the
      driver's is pending, all other changes of the driver are. With O(state=present) also Nodes that were passed over,
      see O(disruption).
  returned: success
  type: list
  elements: dict
  sample: []
objects:
  description:
    - All objects that were looked at, with C(object), C(component), C(action), C(reasons), C(before) and C(after).
      Beside the actions of RV(plan) there are V(keep) and V(reuse) (a foreign object that does what is wanted).
    - C(before) and C(after) are empty for what is not written; defaults of the server are left out.
  returned: success
  type: list
  elements: dict
  sample:
    - object: DaemonSet gpu-operator/nvidia-dcgm-exporter
      component: dcgm_exporter
      action: keep
      reasons: []
      before: {}
      after: {}
counts:
  description: How many objects had each action.
  returned: success
  type: dict
  sample: {create: 0, update: 0, repair: 1, replace: 0, adopt: 0, delete: 0, release: 0, reuse: 0, keep: 58}
workloads:
  description:
    - The DaemonSets and Deployments of ours as they are, where nothing was written; empty otherwise. Made for the
      option C(workloads) of M(gpuops.nvidia.gpu_verify).
  returned: when a cluster was converged
  type: list
  elements: dict
operator:
  description: Whether a GPU Operator is installed that the objects were given to.
  returned: with O(state=handed_back)
  type: bool
server:
  description: The API server's address, empty with O(render_to).
  returned: success
  type: str
  sample: https://10.0.0.10:6443
error:
  description:
    - What went wrong. For V(cluster) with C(verb), C(object), C(status), C(reason) and C(fields) as the server names
      them, and C(done), the steps that had been carried out. With O(state=absent) also with C(pending), and with
      C(nodes), by Node that was passed over what is wrong with it.
  returned: failure
  type: dict
  sample: {kind: cluster, verb: apply, object: ConfigMap gpu-operator/x, status: 403, reason: Forbidden, fields: []}
"""

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: operands
short_description: Create, repair and remove the objects of GPU components in a cluster
version_added: 0.1.0
description:
  - Renders the manifests of components, compares them with the objects on the API server, and changes the objects that
    differ by server-side apply, with the field manager C(gpuops.nvidia). It reads each kind with one list request, and
    writes an object only if it differs.
  - Drift inside the objects is repaired, for example a changed image, or an added environment variable, C(hostPID),
    container or rule. Foreign labels and annotations of an object and its status are not changed. This includes the
    annotation of C(kubectl rollout restart), because its removal would restart the pods again. A value that an
    autoscaler or a controller writes through a subresource stays if the manifest does not set it. What a mutating
    webhook adds or changes stays, too. If a value differs although the API server records it as ours, a dry run shows
    whether an apply would change it. The order of a list matters only where it has a meaning, such as for init
    containers.
  - If the API server does not allow a change in place, the object is replaced. Examples are the role of a binding, the
    handler of a runtime class, an immutable ConfigMap, and a Service that has lost its address (C(clusterIP=None)). If
    only users may restart the pods of a DaemonSet (OnDelete), its pods are kept for the new DaemonSet. If the new
    DaemonSet would not select them, the change is refused.
  - Owned objects have the label C(app.kubernetes.io/managed-by=gpuops.nvidia), the label C(gpuops.nvidia/component) and
    the annotation C(gpuops.nvidia/applied). With these, the module finds them again and prunes those that are no longer
    planned.
  - A foreign object with the same name is used if it is as planned. It then gets no labels and is never removed.
    Otherwise nothing is changed, and the error names it. An existing Namespace gets our labels and keeps its own. An
    existing CustomResourceDefinition is used if it has the needed versions.
  - CustomResourceDefinitions and the Namespace are created first, and the module waits for them. The plan of check mode
    is complete, even if they do not exist yet. All writes that the API server can check are tried by a dry run first,
    so an admission error or a missing permission is reported before anything is changed.
  - If the API server is busy, a connection breaks, or another client writes at the same time, the module retries for
    some seconds. If a run fails, the next run continues it.
  - Only the cluster of O(kubeconfig) is used. E(KUBECONFIG), C(~/.kube/config), E(K8S_AUTH_KUBECONFIG) and service
    accounts are never used.
  - With O(cluster), a cluster that a live GPU Operator owns is refused, unless O(take_over) is set.
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
      - V(present) creates and repairs the objects, and prunes objects of the same components that are no longer
        planned.
      - V(absent) removes all owned objects, or those of O(components), and waits until they are deleted. Without
        O(components), the Namespace is removed, too, if this module created it and it contains no foreign objects. If
        the Namespace stays, our labels and annotations are removed from it. A CustomResourceDefinition with foreign
        objects stays as well.
      - V(handed_back) gives the objects of the components (except NFD, CustomResourceDefinitions and Namespaces) to the
        GPU Operator that is installed in the cluster, and starts it. Before that, its ClusterPolicy is set to
        O(policy). No pod is touched. If no operator is installed, nothing is changed, see RV(operator).
    type: str
    choices: [present, absent, handed_back]
    default: present
  cluster:
    description:
      - The plan of the cluster, as M(gpuops.nvidia.gpu_policy) returns it in C(cluster). It cannot be used with
        O(manifests).
      - A component with the state C(absent) is removed.
    type: dict
  components:
    description:
      - The components to change. Only their objects are created, changed or removed. The default is all components of
        O(cluster).
    type: list
    elements: str
  manifests:
    description:
      - Your own manifests, which are applied instead of those of the components, such as a monitoring rule. Manifests
        of namespaced objects must contain the namespace.
    type: list
    elements: dict
  component:
    description:
      - A name for O(manifests), which separates them from the objects of other tasks. It has at most 63 letters,
        digits, dots, dashes and underscores. Needed with O(manifests).
    type: str
  kubeconfig:
    description:
      - The path of the kubeconfig of the cluster. Needed unless O(render_to) is set.
      - A relative path is looked up next to the inventory, next to the playbook, and in the working directory.
    type: path
  context:
    description:
      - A context in O(kubeconfig). The default is the current context.
    type: str
  render_to:
    description:
      - A folder to which the manifests are written, one file for each object, and a C(kustomization.yaml) that lists
        them in order. No cluster is used. Files that an earlier run wrote and that are no longer planned are deleted;
        with O(state=absent) all of them. With O(components) or O(component), only files of these components change.
    type: path
  take_over:
    description:
      - Whether to stop a GPU Operator that owns the cluster (its Deployment is scaled to 0), and to adopt its objects
        in place, with their pods. Driver pods do not restart, because their DaemonSets are OnDelete.
      - This is refused before anything is changed if something would start the operator again (OLM, Flux, Argo CD), if
        the operator is upgrading drivers, if it runs a component that O(cluster) does not have, or if a selector
        differs. All writes are first tried by a dry run.
      - Objects that are not planned stay with the ClusterPolicy. The ClusterPolicy and its CustomResourceDefinition
        stay, too. If the cluster is already adopted, or has no operator, this option changes nothing.
      - Needs O(cluster), and cannot be used with O(components).
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
        they have pods. The other objects of their components and the Namespace then stay, too, see RV(pending).
      - From V(drain) on, their pods end Node by Node, O(max_unavailable) Nodes at a time. First the DaemonSets are
        deleted without their pods. Then each Node is taken out of service as by M(gpuops.nvidia.node_maintenance),
        which evicts the pods that use a GPU within their disruption budgets. The module deletes the MPS daemon and the
        driver pod of the Node, waits until they have ended, and puts the Node back as it was. At the end all other
        objects are removed.
      - A Node is skipped if it is NotReady, or if its pods may not be evicted. If too many Nodes fail, no further Node
        is changed, see O(max_fail_percentage). The objects that the pods on such Nodes need stay, everything else is
        removed, and the task fails at its end with the reason C(Timeout). The next run continues, also after a run was
        killed.
      - With O(state=present) the level in O(cluster) applies. From V(drain) on, the pods of drivers and of the MPS
        daemon end in the same way if no DaemonSet of a driver or of the MPS daemon is planned any more. Skipped and
        failed Nodes are in RV(pending) and RV(problems), and the task does not fail. If a DaemonSet of a driver is
        replaced by another one or moves to other Nodes, its pods are replaced in the same way; the deploy label of a
        Node keeps pods of the new DaemonSet away from it until the former pod has ended.
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
      - Seconds to wait until the workloads are ready.
      - With O(state=absent), the task fails if no object and no pod has disappeared for this number of seconds. As long
        as they disappear, the task waits and prints how many are left.
    type: int
    default: 300
  max_unavailable:
    description:
      - How many Nodes whose driver or MPS pods are removed may be out of service at the same time, a number or a
        percentage of these Nodes such as V(25%). See O(disruption).
    type: str
    default: '1'
  max_fail_percentage:
    description:
      - The percentage of these Nodes that may fail before no further Node is changed. A Node that is skipped has not
        failed. The first Node is served alone.
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
  windows:
    description:
      - The maintenance windows in which driver and MPS pods may end, in the form of C(gpu_maintenance_windows), for the
        plan of a cluster. If there is none, they may end at any time. O(take_over) and a removal ignore them.
      - While all windows are closed, the changes that would end these pods are pending, as with C(disruption=never).
        If the windows close meanwhile, the Nodes that are out of service are finished, and the others are pending.
    type: raw
seealso:
  - module: gpuops.nvidia.gpu_policy
  - module: gpuops.nvidia.gpu_labels
  - module: gpuops.nvidia.node_maintenance
  - module: gpuops.nvidia.gpu_verify
"""

EXAMPLES = r"""
- name: Deliver all components of the policy
  gpuops.nvidia.operands:
    cluster: "{{ gpu_plan.cluster }}"
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Deliver one component and wait for it
  gpuops.nvidia.operands:
    cluster: "{{ gpu_plan.cluster }}"
    components: [device_plugin]
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    wait: true

- name: Deliver your own object
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

- name: Adopt the objects of a GPU Operator
  gpuops.nvidia.operands:
    cluster: "{{ gpu_plan.cluster }}"
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
    take_over: true

- name: Hand the objects back to the GPU Operator
  gpuops.nvidia.operands:
    state: handed_back
    policy: "{{ exported_policy.exported }}"
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig

- name: Remove all owned objects from the cluster
  gpuops.nvidia.operands:
    state: absent
    disruption: drain
    kubeconfig: /etc/ansible/gpu-cluster.kubeconfig
"""

RETURN = r"""
plan:
  description:
    - The steps in order. C(reason) names the fields that differ. C(action) is one of the following.
    - V(create), V(delete), V(update) (the desired object has changed), V(repair) (somebody else has changed the
      object), V(replace) (an update or repair that needs a new object), V(adopt) (an object of a GPU Operator becomes
      owned), or V(release) (our labels and annotations are removed from an object that stays).
    - V(stop) and V(start) of a GPU Operator, V(hand over) of an object to it, and V(forget) of a Node (our annotations
      are removed).
    - V(hold), V(cordon), V(evict), V(pause), V(delete) of a pod, V(resume), V(uncordon) and V(release) on Nodes whose
      driver and MPS pods end.
    - V(write file) or V(remove file) with O(render_to).
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
    - The steps that the C(disruption) in O(cluster), or O(disruption), forbids, each with its C(pending_reason).
      Removing, replacing or moving the DaemonSet of a driver or of the MPS daemon ends its pods and needs V(drain). If
      the DaemonSet of a driver is pending, all other changes of the driver are pending, too. With O(state=present)
      skipped Nodes are listed as well, see O(disruption).
  returned: success
  type: list
  elements: dict
  sample: []
problems:
  description:
    - Sentences about work that the task has not done although O(disruption) allows it, with the skipped Nodes, the
      reasons and what to do. The playbook site fails with it at its end. It is a warning, too.
    - In check mode the Nodes that would be skipped if the task ran now, with the same reasons. A driver or MPS pod that
      is already ending is only a warning then.
  returned: unless O(render_to) is set
  type: list
  elements: str
  sample: []
ended_on:
  description:
    - The Nodes that lose a deploy label of driver or MPS pods (C(deploy.leaving) in O(cluster)) and on which these pods
      have ended, or in check mode would have ended. M(gpuops.nvidia.gpu_labels) may remove the labels there.
  returned: with O(state=present), unless O(render_to) is set
  type: list
  elements: str
  sample: []
objects:
  description:
    - All objects that were compared, with C(object), C(component), C(action), C(reasons), C(before) and C(after). In
      addition to the actions of RV(plan) there are V(keep) and V(reuse) (a foreign object that is as planned).
    - C(before) and C(after) are empty for objects that are not written. Defaults of the API server are left out.
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
  description: The number of objects for each action.
  returned: success
  type: dict
  sample: {create: 0, update: 0, repair: 1, replace: 0, adopt: 0, delete: 0, release: 0, reuse: 0, keep: 58}
workloads:
  description:
    - The current DaemonSets and Deployments of the components if nothing was written, otherwise empty. Use it for the
      option C(workloads) of M(gpuops.nvidia.gpu_verify).
  returned: when a cluster was converged
  type: list
  elements: dict
operator:
  description: Whether a GPU Operator is installed, so that the objects were given to it.
  returned: with O(state=handed_back)
  type: bool
server:
  description: The address of the API server, empty with O(render_to).
  returned: success
  type: str
  sample: https://10.0.0.10:6443
error:
  description:
    - The error. If its C(kind) is V(cluster), it has C(verb), C(object), C(status), C(reason) and C(fields) from the
      API server, and C(done), the steps that were executed before. With O(state=absent) it also has C(pending), and
      C(nodes), which maps each skipped Node to its problem.
  returned: failure
  type: dict
  sample: {kind: cluster, verb: apply, object: ConfigMap gpu-operator/x, status: 403, reason: Forbidden, fields: []}
"""

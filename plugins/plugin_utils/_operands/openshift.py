# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RBAC objects that only an OpenShift cluster needs. Pure. PRIVATE.

Source: the assets of GPU Operator 26.7.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object

_RBAC = "rbac.authorization.k8s.io"
_PRIVILEGED = {"apiGroups": ["security.openshift.io"], "resources": ["securitycontextconstraints"], "verbs": ["use"],
               "resourceNames": ["privileged"]}


def rights(manifests: t.Sequence[Object], namespace: str) -> list[Object]:
    """Roles and bindings that allow the pods of DaemonSets to run privileged. If manifests has the Role, the rule is
    added to it.

    The GPU Operator allows the node status exporter to use every SecurityContextConstraint; this collection allows only
    C(privileged).
    """
    roles = {one["metadata"]["name"]: one for one in manifests if one["kind"] == "Role"}
    made: list[Object] = []
    accounts = [one["spec"]["template"]["spec"].get("serviceAccountName") for one in manifests
                if one["kind"] == "DaemonSet"]
    for name in dict.fromkeys(filter(None, accounts)):
        if name in roles:
            roles[name]["rules"].append(_PRIVILEGED)
        else:
            made += _pair(name, namespace, [_PRIVILEGED], {"name": name, "namespace": namespace})
    return made


def prometheus(namespace: str) -> list[Object]:
    """A Role and its binding, by which the Prometheus of OpenShift finds the pods that it scrapes."""
    rule = {"apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": ["get", "list", "watch"]}
    return _pair("prometheus-k8s", namespace, [rule], {"name": "prometheus-k8s", "namespace": "openshift-monitoring"})


def _pair(name: str, namespace: str, rules: list[Object], account: Object) -> list[Object]:
    about = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": name, "namespace": namespace}}
    return [{**about, "kind": "Role", "rules": rules},
            {**about, "kind": "RoleBinding", "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
             "subjects": [{"kind": "ServiceAccount", **account}]}]

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects that a cluster needs only if it is OpenShift: rights that are Kubernetes' own. Pure. PRIVATE.

Source: GPU Operator 26.7, its assets.
"""

from __future__ import annotations

import typing as t

Manifest = t.Dict[str, t.Any]

_RBAC = "rbac.authorization.k8s.io"
_PRIVILEGED = {"apiGroups": ["security.openshift.io"], "resources": ["securitycontextconstraints"], "verbs": ["use"],
               "resourceNames": ["privileged"]}


def rights(manifests: t.Sequence[Manifest], namespace: str) -> list[Manifest]:
    """Roles and bindings by which the pods of DaemonSets may run privileged; a Role that is there gets the rule.

    The GPU Operator gives the node status exporter every constraint; here it is this one, too.
    """
    roles = {one["metadata"]["name"]: one for one in manifests if one["kind"] == "Role"}
    made: list[Manifest] = []
    accounts = [one["spec"]["template"]["spec"].get("serviceAccountName") for one in manifests
                if one["kind"] == "DaemonSet"]
    for name in dict.fromkeys(filter(None, accounts)):
        if name in roles:
            roles[name]["rules"].append(_PRIVILEGED)
        else:
            made += _pair(name, namespace, [_PRIVILEGED], {"name": name, "namespace": namespace})
    return made


def prometheus(namespace: str) -> list[Manifest]:
    """By these the cluster's own Prometheus finds what it scrapes."""
    rule = {"apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": ["get", "list", "watch"]}
    return _pair("prometheus-k8s", namespace, [rule], {"name": "prometheus-k8s", "namespace": "openshift-monitoring"})


def _pair(name: str, namespace: str, rules: list[Manifest], account: Manifest) -> list[Manifest]:
    about = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": name, "namespace": namespace}}
    return [{**about, "kind": "Role", "rules": rules},
            {**about, "kind": "RoleBinding", "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
             "subjects": [{"kind": "ServiceAccount", **account}]}]

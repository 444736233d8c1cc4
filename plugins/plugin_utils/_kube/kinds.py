# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of objects that the collection creates or reads: their paths on the API server and their order. PRIVATE.

The table is fixed, because discovery needs a request for each API group and does not list a kind whose
CustomResourceDefinition does not exist yet.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

# A name is a segment of a URL path, and a part of the name of a manifest file (apimachinery: IsValidPathSegmentName).
_NAME = re.compile(r"(?!\.{1,2}$)[^/%\s\x00-\x1f\x7f]+")


def is_name(text: object) -> bool:
    """Whether a value can be the name of an object or of a namespace. For some kinds the server has stricter rules."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Kind:
    """A kind of objects.

    rank: objects of a lower rank are created earlier and deleted later; shipped: whether components create objects of
    this kind, so that each run searches for owned objects that are no longer planned.
    """

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    rank: int
    shipped: bool = False

    @property
    def root(self) -> str:
        """The URL path of the API version: C(/api/v1), C(/apis/apps/v1)."""
        return f"/{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"

    @property
    def group(self) -> str:
        """The API group, such as C(apps); empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def resource(self) -> str:
        """The name of the resource in roles and for kubectl: C(nodes), C(daemonsets.apps)."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, name: str | None = None, namespace: str | None = None) -> str:
        """The URL path of an object, or of the list if there is no name. Raises InputError for an invalid name."""
        for text in (name, namespace or None):
            if text is not None and not is_name(text):
                raise InputError(f"{text!r} is not a valid name of a {self.kind} or of its namespace.",
                                 "Write a name without spaces, slashes or percent signs.", path="name", value=text)
        parts = [self.root]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        return "/".join(parts)

    def label(self, name: str, namespace: str | None = None) -> str:
        """The name of an object in messages: C(DaemonSet gpu-operator/nvidia-dcgm), C(Node gpu01)."""
        return f"{self.kind} {namespace}/{name}" if self.namespaced and namespace else f"{self.kind} {name}"


CUSTOM, _READ = 90, 99
_WEBHOOKS = "admissionregistration.k8s.io/v1"
# The fields of L(Kind). An object has a higher rank than the objects that it needs.
_ROWS: t.Sequence[t.Tuple[str, str, str, bool, int, bool]] = (
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False, 0, True),
    ("v1", "Namespace", "namespaces", False, 10, True),
    ("v1", "ResourceQuota", "resourcequotas", True, 15, False),
    ("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", False, 15, False),
    ("v1", "ServiceAccount", "serviceaccounts", True, 20, True),
    ("v1", "Secret", "secrets", True, 25, False),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False, 30, True),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", True, 31, True),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", False, 32, True),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", True, 33, True),
    ("v1", "ConfigMap", "configmaps", True, 40, True),
    ("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", False, 45, True),
    ("v1", "Service", "services", True, 50, True),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", True, 55, False),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True, 55, False),
    ("apps/v1", "DaemonSet", "daemonsets", True, 60, True),
    ("apps/v1", "Deployment", "deployments", True, 61, True),
    ("batch/v1", "Job", "jobs", True, 62, False),
    (_WEBHOOKS, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False, 70, False),
    (_WEBHOOKS, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False, 70, False),
    ("nfd.k8s-sigs.io/v1alpha1", "NodeFeature", "nodefeatures", True, CUSTOM, False),
    ("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureRule", "nodefeaturerules", False, CUSTOM, True),
    ("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureGroup", "nodefeaturegroups", True, CUSTOM, False),
    ("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", True, CUSTOM, True),
    ("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules", True, CUSTOM, True),
    ("nvidia.com/v1", "ClusterPolicy", "clusterpolicies", False, CUSTOM, False),
    ("nvidia.com/v1alpha1", "NVIDIADriver", "nvidiadrivers", False, CUSTOM, False),
    # Kinds that are only read.
    ("nvidia.com/v1alpha1", "GPUCluster", "gpuclusters", False, _READ, False),
    ("v1", "Node", "nodes", False, _READ, False),
    ("v1", "Pod", "pods", True, _READ, False),
    ("v1", "Event", "events", True, _READ, False),
    ("apps/v1", "ReplicaSet", "replicasets", True, _READ, False),
    ("apps/v1", "ControllerRevision", "controllerrevisions", True, _READ, False),
)

KINDS: t.Mapping[t.Tuple[str, str], Kind] = {(row[0], row[1]): Kind(*row) for row in _ROWS}


def shipped(everything: bool = False) -> list[Kind]:
    """The kinds of objects that components create. everything: also include the kinds of a user's own manifests."""
    return [kind for kind in KINDS.values() if kind.shipped or (everything and kind.rank < _READ)]


def of_crd(crd: t.Mapping[str, t.Any]) -> Kind:
    """The kind that a CustomResourceDefinition defines, in the first version that is served."""
    spec = crd["spec"]
    version = next(one["name"] for one in spec["versions"] if one.get("served"))
    return Kind(f"{spec['group']}/{version}", spec["names"]["kind"], spec["names"]["plural"],
                spec["scope"] == "Namespaced", CUSTOM)


def find(api_version: str, kind: str) -> Kind:
    """Finds a kind in the table. Raises InputError if the table does not contain it."""
    row = KINDS.get((api_version, kind))
    if row is None:
        versions = sorted({known.api_version for known in KINDS.values() if known.kind == kind})
        raise InputError(f"The collection does not support the kind {kind} of {api_version}.",
                         f"Write apiVersion: {versions[0]}." if versions else "Apply this object with another tool.",
                         path="apiVersion, kind", value=f"{api_version} {kind}",
                         allowed=[f"{known.api_version} {known.kind}" for known in KINDS.values()])
    return row

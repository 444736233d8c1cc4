# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plain manifests with one object of each kind that components deliver."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def objects(name: str) -> list[Object]:
    """A Namespace of this name with objects in it; the names of cluster-wide objects contain the name, too."""
    def meta(what: str = "", **more: Any) -> Object:
        return {"name": what or name, "namespace": name, **more}

    account = [{"kind": "ServiceAccount", "name": "agent", "namespace": name}]
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": name, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("agent")},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta("agent"), "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
            {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]}]},
        {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": meta("agent"), "subjects": account,
         "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "agent"}},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": account,
         "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("settings"),
         "data": {"config.yaml": "version: v1\nflags: {}\n", "empty": ""}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta("token"), "stringData": {"password": "s3cr3t-value"}},
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "nvidia"},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta("metrics"), "spec": {
            "selector": {"app": "agent"}, "ports": [{"name": "metrics", "port": 9400, "targetPort": 9400}]}},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta("agent", labels={"app": "agent"}),
         "spec": daemon_set()},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("master"), "spec": deployment()},
    ]


def daemon_set() -> Object:
    """A DaemonSet like those of operands: an init container, several volumes, tolerations, and quantities that the
    server normalizes."""
    return {
        "selector": {"matchLabels": {"app": "agent"}},
        "updateStrategy": {"type": "RollingUpdate"},
        "template": {
            "metadata": {"labels": {"app": "agent"}},
            "spec": {
                "serviceAccountName": "agent",
                "priorityClassName": "system-node-critical",
                "nodeSelector": {"nvidia.com/gpu.deploy.agent": "true"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "initContainers": [{"name": "wait", "image": "example.org/agent:1", "command": ["sh", "-c", "true"],
                                    "securityContext": {"privileged": True},
                                    "volumeMounts": [{"name": "run", "mountPath": "/run/nvidia"}]},
                                   {"name": "check", "image": "example.org/agent:1", "command": ["true"]}],
                "containers": [{
                    "name": "agent", "image": "example.org/agent:1",
                    "env": [{"name": "MODE", "value": "all"}, {"name": "NOTHING", "value": ""},
                            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                            {"name": "TARGET", "value": "$(NODE_NAME):9400"}],
                    "ports": [{"name": "metrics", "containerPort": 9400}],
                    "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5},
                    "resources": {"limits": {"memory": "1024Mi", "cpu": "1000m"}, "requests": {"cpu": "0.5"}},
                    "volumeMounts": [{"name": "run", "mountPath": "/run/nvidia", "mountPropagation": "HostToContainer"},
                                     {"name": "settings", "mountPath": "/settings"}]}],
                "volumes": [{"name": "run", "hostPath": {"path": "/run/nvidia", "type": "DirectoryOrCreate"}},
                            {"name": "settings", "configMap": {"name": "settings"}},
                            {"name": "scratch", "emptyDir": {}}]}}}


def deployment() -> Object:
    """A small Deployment that sets its replicas."""
    return {"replicas": 2, "selector": {"matchLabels": {"app": "master"}},
            "template": {"metadata": {"labels": {"app": "master"}},
                         "spec": {"containers": [{"name": "master", "image": "example.org/master:1"}]}}}

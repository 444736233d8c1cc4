# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of a control plane and their arguments."""

from __future__ import annotations

from pathlib import Path

SERVICES = "10.96.0.0/16"
# The control plane's own requests and the lab's are left out: what remains is what users and tests did.
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [system:kube-controller-manager, system:kube-scheduler, system:apiserver, kwok, gpuops-lab, system:anonymous]
- level: Request
  verbs: [create, update, patch]
- level: Metadata
"""


def arguments(folder: Path, ports: dict[str, int]) -> dict[str, list[str]]:
    """The arguments of each part. folder: the cluster's; ports: of C(api), C(etcd) and C(peer) on loopback."""
    pki = folder / "pki"
    etcd = f"https://127.0.0.1:{ports['etcd']}"
    peer = f"https://127.0.0.1:{ports['peer']}"
    quick = ["--leader-elect=false", "--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=1000"]
    return {
        "etcd": [
            "--name=lab", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=lab={peer}",
            "--client-cert-auth", f"--trusted-ca-file={pki / 'ca.crt'}",
            f"--cert-file={pki / 'server.crt'}", f"--key-file={pki / 'server.key'}",
            "--peer-client-cert-auth", f"--peer-trusted-ca-file={pki / 'ca.crt'}",
            f"--peer-cert-file={pki / 'server.crt'}", f"--peer-key-file={pki / 'server.key'}",
        ],
        "kube-apiserver": [
            f"--etcd-servers={etcd}", f"--etcd-cafile={pki / 'ca.crt'}",
            f"--etcd-certfile={pki / 'etcd-client.crt'}", f"--etcd-keyfile={pki / 'etcd-client.key'}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={ports['api']}",
            "--endpoint-reconciler-type=none", f"--service-cluster-ip-range={SERVICES}", "--allow-privileged",
            "--authorization-mode=Node,RBAC", "--kubelet-preferred-address-types=InternalIP",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            f"--tls-cert-file={pki / 'server.crt'}", f"--tls-private-key-file={pki / 'server.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'service-accounts.key'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            f"--audit-policy-file={folder / 'audit-policy.yaml'}", f"--audit-log-path={folder / 'audit.log'}",
            "--audit-log-mode=blocking", "--audit-log-maxsize=2000",
        ],
        "kube-controller-manager": [
            f"--kubeconfig={folder / 'kube-controller-manager.kubeconfig'}", f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}", *quick,
            # kwok renews the nodes' leases; under load it may be late, and only a fault may lose a node.
            "--node-monitor-grace-period=10m",
        ],
        "kube-scheduler": [f"--kubeconfig={folder / 'kube-scheduler.kubeconfig'}", *quick],
        "kwok": [
            f"--kubeconfig={folder / 'kwok.kubeconfig'}", "--enable-crds=Stage", "--node-ip=127.0.0.1",
            "--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--node-lease-duration-seconds=200",
        ],
    }

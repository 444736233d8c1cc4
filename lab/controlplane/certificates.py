# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys, certificates and kubeconfigs, made by openssl (elliptic curves: a few ms each).

The key of the authority is RSA: the API server verifies the certificate of a user in each request, and verifying an RSA
signature takes a quarter of the time of one with an elliptic curve.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

DAYS = "3650"
CONFIG = """\
[req]
distinguished_name = none
prompt = no
[none]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = {names}
"""
CONTROL_PLANE = ("DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc",
                 "IP:127.0.0.1", "IP:10.96.0.1")
# File name to subject. The groups decide what each may do (Kubernetes' built-in roles).
SUBJECTS = {
    "server": "/CN=kube-apiserver",
    "etcd-client": "/CN=etcd-client",
    "kubelet-client": "/O=system:masters/CN=kube-apiserver-kubelet-client",
    "admin": "/O=system:masters/CN=admin",
    "lab": "/O=system:masters/CN=gpuops-lab",
    "kwok": "/O=system:masters/CN=kwok",
    "kube-controller-manager": "/O=system:masters/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
}
USERS = ("admin", "lab", "kwok", "kube-controller-manager", "kube-scheduler")
REQUEST = ("openssl", "req", "-config", "openssl.conf", "-x509", "-nodes", "-days", DAYS)
RSA = ("-newkey", "rsa:2048")
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


def make(folder: Path) -> None:
    """Creates the files of a control plane: C(ca.crt), C(service-accounts.key), and a C(.crt) and a C(.key) for each "
    "of SUBJECTS."""
    make_authority(folder, CONTROL_PLANE)
    openssl(folder, "openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "service-accounts.key")
    for name, subject in SUBJECTS.items():
        sign(folder, name, subject)


def make_authority(folder: Path, names: Sequence[str]) -> None:
    """Creates C(ca.crt) and C(ca.key). names: the subject alternative names of the certificates that it signs, in the
    notation of openssl."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "openssl.conf").write_text(CONFIG.format(names=", ".join(names)))
    openssl(folder, *REQUEST, *RSA, "-extensions", "authority", "-subj", "/CN=gpuops-lab", "-keyout", "ca.key", "-out",
            "ca.crt")


def sign(folder: Path, name: str, subject: str) -> None:
    """Creates a key and a certificate that this authority signs."""
    openssl(folder, *REQUEST, *CURVE, "-extensions", "leaf", "-subj", subject, "-CA", "ca.crt", "-CAkey", "ca.key",
            "-keyout", f"{name}.key", "-out", f"{name}.crt")


def openssl(folder: Path, *command: str) -> None:
    """Runs openssl 3 or newer."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")


def kubeconfig(folder: Path, user: str, cluster: str, port: int) -> str:
    """A kubeconfig for one of USERS that carries its key, as JSON (which is YAML too)."""
    def data(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    server = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": data("ca.crt")}
    key = {"client-certificate-data": data(f"{user}.crt"), "client-key-data": data(f"{user}.key")}
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": cluster,
        "clusters": [{"name": cluster, "cluster": server}],
        "users": [{"name": user, "user": key}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
    }, indent=2) + "\n"

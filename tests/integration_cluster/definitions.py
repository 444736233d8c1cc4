# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CustomResourceDefinitions of a single test. No other test file defines their kinds in the same cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from lab.controlplane.cluster import wait_established
from tests.integration_cluster.conftest import Kubectl
from tests.waiting import until

Object = dict[str, Any]


def crd(group: str, kind: str, plural: str, version: str, scope: str = "Cluster") -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {"group": group, "scope": scope,
                     "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                     "versions": [{"name": version, "served": True, "storage": True,
                                   "schema": {"openAPIV3Schema": schema}}]}}


def create(kubectl: Kubectl, *definitions: Object) -> None:
    """Creates the definitions, and returns when objects of them can be created."""
    for one in definitions:
        kubectl("create", "--filename", "-", stdin=one)
        wait_established(kubectl.server, one["metadata"]["name"])


@contextmanager
def removed(kubectl: Kubectl, client: Client, *definitions: Object) -> Iterator[None]:
    """Checks at the end that none of them exists and none is served, which the server does for a moment longer."""
    try:
        yield
    finally:
        kubectl("delete", "--ignore-not-found", "crd", *(one["metadata"]["name"] for one in definitions))
        for one in definitions:
            row = kinds.of_crd(one)
            until(lambda row=row: not client.serves(row), f"{row.resource} is no longer served")  # type: ignore[misc]

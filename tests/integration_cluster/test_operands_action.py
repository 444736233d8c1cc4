# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as users call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration_cluster import samples
from tests.integration_cluster.conftest import Audit, Kubectl


def operands(*flags: str, **options: Any) -> dict[str, Any]:
    """The result of C(ansible -m operands), and as C(shown) the difference that was printed."""
    ansible = Path(sys.executable).with_name("ansible")
    done = subprocess.run(
        [str(ansible), "localhost", "-m", "gpuops.nvidia.operands", "-a", json.dumps(options), *flags],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "NO_COLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "minimal"})
    shown, _mark, result = done.stdout.rpartition("localhost | ")
    found: dict[str, Any] = json.loads(result[result.index("{"):])
    return {**found, "shown": shown}


def test_from_preview_to_removal(kubeconfig: str, kubectl: Kubectl, audit: Audit, fresh: Callable[[], str]) -> None:
    name = fresh()
    options = {"kubeconfig": kubeconfig, "component": name, "manifests": samples.objects(name)}
    preview = operands("--check", "--diff", **options)
    assert preview["changed"] and not audit.writes
    done = operands("--diff", **options)
    assert done["plan"] == preview["plan"] and len(done["plan"]) == 12
    assert "+  name: settings" in done["shown"] and done["shown"] == preview["shown"]
    audit.start()
    again = operands("--diff", **options)
    assert not again["changed"] and again["counts"]["keep"] == 12 and not audit.writes
    kubectl("--namespace", name, "set", "env", "daemonset/agent", "--containers=agent", "ADDED=x")
    assert [step["reason"] for step in operands(**options)["plan"]] == [
        "spec.template.spec.containers[name=agent].env[name=ADDED]"]
    gone = operands(kubeconfig=kubeconfig, state="absent", components=[name])
    assert gone["counts"]["delete"] == 11
    assert not operands(kubeconfig=kubeconfig, state="absent", components=[name])["changed"]


def test_a_refusal_is_one_clear_message(kubeconfig: str, fresh: Callable[[], str]) -> None:
    result = operands(kubeconfig=kubeconfig, component="x", manifests=[
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Upper", "namespace": "default"}}])
    assert not result["changed"] and result["error"]["kind"] == "cluster" and result["error"]["status"] == 422
    assert result["msg"].startswith("ConfigMap default/Upper: the API server refused to apply it (Invalid)")
    assert operands(kubeconfig=kubeconfig)["error"]["path"] == "cluster, manifests"
    assert operands(kubeconfig=kubeconfig, cluster={"namespace": "x"})["msg"] == (
        "cluster: It has no common, components, so it is no plan of a cluster. Give what gpu_policy returned as "
        "cluster.")

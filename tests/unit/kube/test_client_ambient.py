# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Only the named kubeconfig counts. All other kubeconfigs lead to a server that records every connection."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

MANIFESTS = {"component": "demo",
             "manifests": [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}]}


class Trap:
    """A server that answers 404 and records its clients."""

    def __init__(self, folder: Path) -> None:
        self.paths: list[str] = []
        paths = self.paths

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                paths.append(f"{self.command} {self.path}")
                self.send_error(404)

            do_GET = do_PATCH = do_DELETE = do_POST = answer  # noqa: N815

            def log_message(self, *words: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        folder.mkdir(parents=True, exist_ok=True)
        self.kubeconfig = folder / "config"
        self.kubeconfig.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "x", "user": {}}],
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def ambient(tmp_path: Path) -> Iterator[Trap]:
    made = Trap(tmp_path / "home" / ".kube")
    yield made
    made.close()


@pytest.fixture
def named(tmp_path: Path) -> Iterator[Trap]:
    made = Trap(tmp_path / "named")
    yield made
    made.close()


def operands(ambient: Trap, *calls: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Calls of C(operands) in one play, each of which can fail; all ambient kubeconfigs lead to the recording
    server."""
    home = ambient.kubeconfig.parents[1]
    play = home / "play.json"
    play.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [
        {"gpuops.nvidia.operands": options, "ignore_errors": True} for options in calls]}]))
    surroundings = {
        **os.environ, "HOME": str(home), "ANSIBLE_HOME": str(home / "ansible"),
        "KUBECONFIG": str(ambient.kubeconfig), "K8S_AUTH_KUBECONFIG": str(ambient.kubeconfig),
        "K8S_AUTH_HOST": f"http://127.0.0.1:{ambient.port}", "K8S_AUTH_CONTEXT": "x",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(ambient.port)}
    ansible = Path(sys.executable).with_name("ansible-playbook")
    return subprocess.run([str(ansible), str(play)], capture_output=True, text=True, check=False, env=surroundings,
                          timeout=120)


def test_only_the_named_cluster_is_asked(ambient: Trap, named: Trap) -> None:
    done = operands(ambient, {"state": "absent"}, MANIFESTS, {**MANIFESTS, "kubeconfig": str(named.kubeconfig)})
    assert re.search(r"ok=3 .*failed=0 .*ignored=3", done.stdout), done.stdout + done.stderr
    tasks = done.stdout.split("TASK [")[1:]
    assert ["No kubeconfig is set" in one for one in tasks] == [True, True, False], done.stdout
    assert ["gpu_kubeconfig" in one for one in tasks[:2]] == [True, True], done.stdout
    assert named.paths and all("/api" in path for path in named.paths)
    assert ambient.paths == []


@pytest.mark.parametrize(("content", "message"), [
    (None, "does not exist"),
    ("", "is not a valid kubeconfig"),
    ("[1, 2", "is not a valid kubeconfig"),
    ("- 1", "is not a valid kubeconfig"),
    ("kind: Config", "is not a valid kubeconfig"),
    ("contexts: [{name: a}, {}]", "its structure is unexpected"),
    ("[" * 700, "its structure is unexpected"),
    ("current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, token: x}]\n"
     "clusters: [{name: a, cluster: {server: 'http://a'}}]", r"Expected key user in [^{]*\. Use"),
    ("current-context: a\ncontexts: [{name: a, context: {cluster: a}}]\n"
     "clusters: [{name: a, cluster: {server: 'http://a', proxy-url: 2026-01-01}}]", "proxy-url in [^ ]+ cannot"),
])
def test_an_unusable_kubeconfig_is_said(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        Client(str(path))


@pytest.mark.parametrize("path", ["{named}:x/config", "{named}:{named}"])
def test_a_path_is_never_taken_for_several(named: Trap, path: str) -> None:
    """The library would read the existing ones of several paths, so another cluster could be used."""
    file = Path(path.format(named=named.kubeconfig))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    with pytest.raises(InputError, match="contains ':', .* Move or rename the file") as caught:
        Client(str(file))
    assert caught.value.details["path"] == "kubeconfig"


def test_an_unknown_context_and_a_missing_server(named: Trap) -> None:
    with pytest.raises(InputError, match="has no context 'nowhere'. Set one of ") as caught:
        Client(str(named.kubeconfig), "nowhere")
    assert caught.value.details["allowed"] == [yaml.safe_load(named.kubeconfig.read_text())["current-context"]]
    config = yaml.safe_load(named.kubeconfig.read_text())
    del config["clusters"][0]["cluster"]["server"]
    named.kubeconfig.write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match="has no server"):
        Client(str(named.kubeconfig))

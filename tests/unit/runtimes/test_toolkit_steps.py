# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which runtimes are chosen, which steps follow from a proposal, and which parts of a diff are masked."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import RUNTIMES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import registry, toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import FileChange, Proposal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    FileRecord,
    HostJournal,
    HostState,
    Journal,
    RuntimeState,
)


def test_registry() -> None:
    assert tuple(registry.RUNTIMES) == RUNTIMES
    assert registry.choose(["auto"], {}) == registry.choose(["all"], {}) == []
    with pytest.raises(HostError, match="containerd is not installed"):
        registry.choose(["containerd"], {})
    assert registry.choose(["auto"], {"containerd": RuntimeState("containerd", "/c")}) == ["containerd"]
    both = {name: RuntimeState(name, "/c", running=name != "podman") for name in ("docker", "containerd", "podman")}
    assert registry.choose(["auto"], both) == ["docker"]
    assert registry.choose(["auto"], both, kubelet=True) == ["containerd"]


def _acting(act: str, owed: dict[str, str], changed: bool = True, **more: t.Any) -> list[tuple[str, str, str]]:
    """Action, needs and reason of the steps for a runtime whose proposal needs an act."""
    view = RuntimeState("x", "/etc/x", "x.service", running=True)
    changes = [FileChange("/etc/x", None, "x", "main", "")] if changed else []
    seen = HostState({"containerd": view}, journal=HostJournal(restart=owed))
    steps = toolkit_steps.runtime_steps(seen, {"containerd": Proposal(changes, action=act, **more)})
    return [(step.action, step.needs, step.reason) for step in steps if step.action.endswith("service")]


def test_acts() -> None:
    assert _acting("reload", {}) == [("reload service", "never", "its configuration changes")]
    assert _acting("restart", {}, needs="idle", action_reason="why") == [("restart service", "idle", "why")]
    assert _acting("none", {}) == []
    assert _acting("reload", {}, changed=False) == []
    assert _acting("restart", {}, changed=False, due_reason="missing") == [("restart service", "never", "missing")]
    stopped = "an earlier run changed its configuration but did not complete"
    assert _acting("reload", {"x.service": "reload"}, changed=False) == [("reload service", "never", stopped)]
    assert _acting("restart", {"x.service": "reload"}) == [
        ("restart service", "never", "its configuration changes")]
    assert _acting("reload", {"x.service": "restart"}) == [("restart service", "never", stopped)]
    assert _acting("reload", {"other.service": "restart"}, changed=False) == []


def test_removal_is_of_every_runtime_that_was_configured() -> None:
    """For example Docker first, and k3s after it has replaced Docker on the host."""
    records = {"/etc/x": "docker", "/etc/y": "k3s"}
    files = {path: FileRecord("drop-in", "ours", None, name) for path, name in records.items()}
    seen = HostState({name: RuntimeState(name, "/c", f"{name}.service", running=True) for name in records.values()},
                     journal=HostJournal(True, files, {"docker": "runc", "k3s": "crun"}))
    assert seen.journal.of("k3s") == Journal({"/etc/y": files["/etc/y"]}, "crun")
    proposals = {name: Proposal([FileChange(path, "x", None, "drop-in", "")]) for path, name in records.items()}
    assert [step.id for step in toolkit_steps.removal_steps(seen, proposals)] == [
        "remove file: /etc/x", "remove file: /etc/y", "restart service: docker.service",
        "restart service: k3s.service"]


def test_credentials_are_masked_in_diffs() -> None:
    text = '''[x.auth]
  username = "reader"
  password = "s3cret"
  auth = 'czNjcmV0'
y = { identitytoken = "s3cret" }
'''
    masked = toolkit_steps.mask(text)
    assert "s3cret" not in masked
    assert "czNjcmV0" not in masked
    assert 'username = "reader"' in masked


@pytest.mark.parametrize("text", [
    'password = """\nS3CRET\nS3CRET"""\n', "password = '''\nS3CRET'''\n",
    'token = [\n  "S3CRET",\n  "S3CRET", # x\n]\n',
    '[host."https://x".header]\n  Authorization = ["Basic S3CRET"]\n', '[x.header]\n  X-Site = ["S3CRET", "S3CRET"]\n',
    'headers = { X-Site = "S3CRET", Y = ["S3CRET"] }\n', 'headers = ["Authorization: Bearer S3CRET, S3CRET"]\n',
    'identity_token = "S3CRET"\n', "client_secret = 'S3CRET'\n", 'secretkey = "S3CRET"\n', 'passphrase = "S3CRET"\n',
    '{"auths": {"x": {"auth": "S3CRET"}}}', '{"log-opts": {"splunk-token":\n  "S3CRET"}}',
    '{"HttpHeaders": {"X": "S3CRET"}}',
    'x = "https://S3CRET@github.com/x"\n', 'x = "https://S3CRET:x-oauth-basic@github.com/x"\n',
    'x = "http://u:S3CRET/S3CRET@proxy:3128"\n', 'x = "http://u:S3@S3CRET@proxy:3128"\n',
    'env = ["REGISTRY_PASSWORD=S3CRET"]\n',
    '"args": ["--token=S3CRET", "--x"]', 'a."b.c".token = "S3\\"S3CRET"\n', "token = S3CRET\n", 'token = "S3CRET\n',
    'token = ["S3CRET"\nx = "S3CRET"', '# password = "S3CRET"\n', 'x = "https://x/?access_token=S3CRET&y=1"\n',
    "auth:\n  password: S3CRET S3CRET\n", 'signing_key = "S3CRET"\n', '{"encryption-key": "S3CRET"}', "jwt: S3CRET\n",
    'bearer = "S3CRET"\n', 'x = "Bearer abcS3CRET"\n', 'x = "https://m/x?sig=S3CRET"\n', "x: m/x?sig=S3CRET\n",
    'x = """\n-----BEGIN RSA PRIVATE KEY-----\nS3CRET\nS3CRET\n-----END RSA PRIVATE KEY-----\n"""\n',
    '{"x": "-----BEGIN PRIVATE KEY-----\\nS3CRET\\n-----END PRIVATE KEY-----\\n"}',
])
def test_no_credential_is_in_a_diff(text: str) -> None:
    assert "S3CRET" not in toolkit_steps.mask(text) and "*****" in toolkit_steps.mask(text)
    assert "S3CRET" not in toolkit_steps.mask(f'a = 1\r\n{text}')


@pytest.mark.parametrize("text", [
    'a = "b"\nc = ["d", "e"]\n[x.header]\n[x.y]\nf = "g"\n', '{"token": null, "x": true}', "",
    'image = "docker://reg:5000/nvidia/x@sha256:0123"\n', 'x = "https://registry:5000/v2"\n',
    'authorization-plugins = ["p"]\n', 'keyring = "/etc/x.gpg"\nkey = "a"\nauthor = "me"\ntoken_file = "/etc/x"\n',
    'x = "-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----"\n',
    'global_auth_file = "/var/lib/kubelet/config.json"\n', "[x.auth]\nusername = 'reader'\n"])
def test_all_else_is_shown(text: str) -> None:
    assert toolkit_steps.mask(text) == text


def test_a_runtime_without_a_service_has_nothing_to_start() -> None:
    seen = HostState({"podman": RuntimeState("podman", "/c")})
    assert toolkit_steps.pending_steps(seen, {"podman": Proposal()}) == []

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which names are those of secrets, and which parts of texts are secrets; and what is none."""

from __future__ import annotations

import time

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import hidden
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import toolkit_steps

SECRETS = (
    "REGISTRY_AUTH", "registryAuth", "GPG_PASSPHRASE", "SIGNING_KEY", "signing_key", "encryption-key",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "SESSION_COOKIE", "cookie", "JWT", "jwt", "ID_JWT", "bearer",
    "NGC_API_KEY", "ngc.api.key", "apiKey", "PASSWORD", "passwd", "DB_PASS", "dbPass", "DB_PWD", "pass", "TOKEN",
    "identitytoken", "privateKey", "TS_AUTHKEY", "LICENSE_KEY", "licence_key", "SSH_KEY", "STORAGE_ACCOUNT_KEY",
    "API_KEY_2", "PRE_SHARED_KEY", "WIFI_PSK", "authorization", "client_secret", "CREDENTIALS", "authconfig",
    "CONNECTION_STRING")
OTHERS = (
    "key", "KEY", "keys", "keyring", "driver_repository_key", "gpgkey", "PUBLIC_KEY", "public_signing_key",
    "SIGNING_KEY_FINGERPRINT", "fingerprint", "author", "AUTHOR", "authority", "authenticated", "bypass",
    "NO_PROXY_BYPASS",
    "compass", "PASS_DEVICE_SPECS", "passthrough", "topologyKey", "key_model", "decryption_keys_path", "tls_key",
    "TOKEN_FILE", "tokenFile", "SIGNING_KEY_PATH", "SECRET_NAME", "VALIDATOR_IMAGE_PULL_SECRETS", "imagePullSecrets",
    "global_auth_file", "username", "NVIDIA_VISIBLE_DEVICES", "monkey", "hotkey", "linux-headers", "signature",
    "", None, 1)


@pytest.mark.parametrize("name", SECRETS)
def test_names_of_secrets(name: str) -> None:
    """One list serves the variables of objects, the lines of logs, and the configuration files of runtimes."""
    assert hidden.is_secret(name)
    assert hidden.holds_secret({"env": [{"name": name, "value": "S3CRET"}]})
    assert "S3CRET" not in toolkit_steps.mask(f'{name} = "S3CRET"\n')
    if "." not in name:
        assert "S3CRET" not in hidden.without_secrets(f"{name}=S3CRET")


@pytest.mark.parametrize("name", OTHERS)
def test_other_names(name: object) -> None:
    assert not hidden.is_secret(name)
    assert not hidden.holds_secret({"env": [{"name": name, "value": "shown"}]})
    assert name is None or "shown" in hidden.without_secrets(f"{name}=shown")
    if not str(name).endswith("headers"):  # in files of runtimes, these are the headers of requests
        assert toolkit_steps.mask(f'{name} = "shown"\n') == f'{name} = "shown"\n'


@pytest.mark.parametrize("value", ["", "true", "False"])
def test_a_switch_is_no_secret(value: str) -> None:
    assert not hidden.holds_secret({"name": "REQUIRE_AUTH", "value": value})
    assert not hidden.is_secret_variable({"name": "REQUIRE_AUTH", "value": value})


BLOCK = "-----BEGIN {0}-----\nS3CRET+/S3CRET\nS3CRET==\n-----END {0}-----"


@pytest.mark.parametrize(("text", "shown"), [
    ("https://m/x?sig=S3CRET", "https://m/x?********"), ("https://m/x?a=S3CRET&b=S3CRET y", "https://m/x?******** y"),
    ("['https://m/x?sig=S3CRET', 'y']", "['https://m/x?********', 'y']"),
    ("[https://m/x?sig=S3CRET, y]", "[https://m/x?********, y]"), ("/x?a=b&sig=S3CRET&c=d", "/x?a=b&sig=********&c=d"),
    ("m/x?X-Amz-Signature=S3CRET", "m/x?X-Amz-Signature=********"),
    ("https://u:S3CRET?S3CRET@m/x", "https://********@m/x"), ("http://u:S3CRET/S3CRET@m:80/", "http://********@m:80/"),
    ("http://u:S3'S3CRET@m:80/", "http://********@m:80/"), ("Bearer abcS3CRET", "Bearer ********"),
    ("basic dTpTM0NS3CRET=", "basic ********"), ("x eyJS3CRET0000.S3CRET00.S3CRET y", "x ******** y"),
    *((f"a\n{BLOCK.format(name)}\nb", f"a\n-----BEGIN {name}-----********-----END {name}-----\nb")
      for name in ("PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY",
                   "PGP PRIVATE KEY BLOCK")),
    (repr(f"a {BLOCK.format('EC PRIVATE KEY')}"),
     "'a -----BEGIN EC PRIVATE KEY-----********-----END EC PRIVATE KEY-----'"),
    ("a -----BEGIN PRIVATE KEY-----\nS3CRET\nS3CRET", "a -----BEGIN PRIVATE KEY-----********"),
])
def test_secret_parts_of_texts(text: str, shown: str) -> None:
    for found in (hidden.without_parts(text), hidden.without_secrets(text), toolkit_steps.mask(text)):
        assert found == shown
    assert hidden.holds_secret({"a": ["x", {"b": text}]}) and not hidden.holds_secret("x")


@pytest.mark.parametrize("text", [
    "https://m/x", "https://m/x?", "is it https://m/x? Yes", "a ? b : c", "x?y=z", "https://[::1]:5000/x@sha256:01",
    "docker://reg:5000/nvidia/x@sha256:0123", "basic authentication", "no basic auth credentials", "eyJ.x",
    '{"a":["https://x"],"b":"me@y"}', "['https://x','me@y']", BLOCK.format("CERTIFICATE"), BLOCK.format("PUBLIC KEY"),
    BLOCK.format("PGP PUBLIC KEY BLOCK"), "key: value", "author: me", "keyring: /usr/share/keyrings/x.gpg",
    "SHA256:nThbg6kXUpJWGl7E1IGOCspRomTxdCARLviKw6E5SY8",
])
def test_all_else_is_shown(text: str) -> None:
    assert hidden.without_parts(text) == hidden.without_secrets(text) == toolkit_steps.mask(text) == text
    assert not hidden.holds_secret(text)


@pytest.mark.parametrize("part", [
    "://", "://a", "eyJaaaaaaaa", "eyJaaaaaaaa.", "-----BEGIN ", "-----BEGIN A PRIVATE KEY-----", "?", "?sig", "&a-",
    "://u:", "A_", "aA", "bearer ", "basic aaaaaaaa", "a=", "'", "@"])
def test_long_texts_take_no_longer(part: str) -> None:
    before = time.process_time()
    for text in (part * (200_000 // len(part)), part + "a" * 200_000):
        hidden.without_secrets(text)
        hidden.holds_secret(text)
    assert time.process_time() - before < 5

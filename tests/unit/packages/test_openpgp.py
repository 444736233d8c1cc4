# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fingerprints of two keys made for this test by GnuPG 2.2, which also told the expected values."""

from __future__ import annotations

import base64

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._openpgp import armor, dearmor, keys, packets

ED25519 = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawF73xYJKwYBBAHaRw8BAQdAdvG5rStlrg1b2tl2JEFaT0BFXZ5tiCJ4Kevu
2LLg32m0KVBhY2thZ2VzIG9mIGEgdGVzdCA8cGFja2FnZXNAZXhhbXBsZS5jb20+
iJAEExYIADgWIQSnT2z0G4bZBQvUGUoYrsXARcebgQUCawF73wIbAwULCQgHAgYV
CgkICwIEFgIDAQIeAQIXgAAKCRAYrsXARcebgaseAQDpoSh5r3yHeF317YPPAbEF
qxP2eOM/S5rrzCbA7XFWtwEAxEWI13OYtam8uIhEmNMXx/ytBwzOviJeiUPaHr/K
vwg=
=Aaue
-----END PGP PUBLIC KEY BLOCK-----
"""
RSA = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mI0EawF73wEEAL7DoBGTYZ4Hm3vifDWYx3jFNurZHU7t7D0vy5Png6LCEynOPWpI
TQrChsJNnNKAc57fhH/bsfX7POFbeNLUKgOMeHaDEsf2RCXBa5/EG2O0r1YIqa0x
ND8nebSSkHCiafco2XSyZJD8Dko/oEWcuMEAdfnT0R7HBRzWL0YKC4cfABEBAAG0
IUFub3RoZXIgb25lIDxhbm90aGVyQGV4YW1wbGUuY29tPojOBBMBCgA4FiEEdh4U
8xanls7ECF9y0GGP0qN6qXIFAmsBe98CGwMFCwkIBwIGFQoJCAsCBBYCAwECHgEC
F4AACgkQ0GGP0qN6qXK3eQP9EqED0eB4aDYgvpAXmXhADuxQ1pwEoQqI98ukjs+f
9UUgmPmZp0quag46uDahBXvdTh9wVcWCSN30SJkllYD6Pn45Wby6/fkCUaZHJ4/0
L+MWHmqvSpQrZYa8108WoJWGtK4pBojap6sYiGrY3IP/o64KOdCyARwZ59F6+oN1
wKw=
=FEkm
-----END PGP PUBLIC KEY BLOCK-----
"""
ED25519_FINGERPRINT = "A74F6CF41B86D9050BD4194A18AEC5C045C79B81"
RSA_FINGERPRINT = "761E14F316A796CEC4085F72D0618FD2A37AA972"


@pytest.mark.parametrize(("text", "fingerprint"), [(ED25519, ED25519_FINGERPRINT), (RSA, RSA_FINGERPRINT)])
def test_fingerprint_of_armored_and_binary(text: str, fingerprint: str) -> None:
    armored = text.encode()
    assert list(keys(armored)) == [fingerprint]
    assert list(keys(dearmor(armored))) == [fingerprint]
    assert keys(armored)[fingerprint] == dearmor(armored)


@pytest.mark.parametrize("text", [ED25519, RSA])
def test_armor_is_that_of_gpg(text: str) -> None:
    assert armor(dearmor(text.encode())).split()[-6:] == text.encode().split()[-6:]
    assert dearmor(armor(dearmor(text.encode()))) == dearmor(text.encode())


def test_windows_line_ends_and_comment() -> None:
    text = ED25519.replace("\n\n", "\nComment: from a mirror\n\n", 1).replace("\n", "\r\n")
    assert list(keys(text.encode())) == [ED25519_FINGERPRINT]


def test_a_ring_is_taken_apart() -> None:
    ring = keys((ED25519 + RSA).encode())
    assert list(ring) == [ED25519_FINGERPRINT, RSA_FINGERPRINT]
    assert ring[RSA_FINGERPRINT] == dearmor(RSA.encode())
    assert ring[ED25519_FINGERPRINT] + ring[RSA_FINGERPRINT] == dearmor((ED25519 + RSA).encode())


def test_new_packet_format_has_the_same_fingerprint() -> None:
    binary = dearmor(RSA.encode())
    rewritten = b""
    for tag, _start, body, end in packets(binary):
        size = end - body
        length = bytes([size]) if size < 192 else b"\xff" + size.to_bytes(4, "big")
        rewritten += bytes([0xC0 | tag]) + length + binary[body:end]
    assert rewritten != binary
    assert list(keys(rewritten)) == [RSA_FINGERPRINT]


def test_one_changed_byte_changes_the_fingerprint() -> None:
    binary = bytearray(dearmor(ED25519.encode()))
    binary[20] ^= 1
    assert ED25519_FINGERPRINT not in keys(bytes(binary))


@pytest.mark.parametrize("data", [
    b"<html>404</html>",
    dearmor(RSA.encode())[:50],
    ED25519.replace("\n\n", "\n\n!!!\n", 1).encode(),
    base64.b64encode(b"no packets"),
    bytes([0xC6, 0xE0, 0x00]),
    bytes([0x9B, 0x04]),
])
def test_no_key(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        keys(data)


def test_other_versions_are_left_out() -> None:
    assert keys(bytes([0x98, 6, 3, 0, 0, 0, 0, 0])) == {}

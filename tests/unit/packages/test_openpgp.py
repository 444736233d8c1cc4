# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fingerprints and subkeys of keys that GnuPG 2.2 created for this test; it also gave the expected values."""

from __future__ import annotations

import base64

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import (
    armor,
    dearmor,
    keys,
    packets,
    without_unsigned_subkeys,
)

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
# With a subkey that signs.
SIGNING = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mI0EawRNXgEEAMirZ5b2K/i0qT3U4zvZigSlig5AVjEBNJ79Ff6Uj/JYLbjC+8Ze
/Jw6ftbgyZcKHqiKBXRm8Owr/0snKzMhs4o28jMZY8cj3X59TU7czPG0z/xXless
VpO6QZ1kDCNgD7S411tYKcE91RZBsCpCf8MuaSmT96gNMu749krlOSjFABEBAAG0
LVJlcG9zaXRvcnkgb2YgYSB0ZXN0IDxyZXBvc2l0b3J5QGV4YW1wbGUuY29tPojO
BBMBCgA4FiEEGn8uHgewDRaXUL3LVPNb2tJG7qcFAmsETV4CGwMFCwkIBwIGFQoJ
CAsCBBYCAwECHgECF4AACgkQVPNb2tJG7qdzKgP+LvTDn6QpQICdOg91D5FUyO5J
f4WdAQprXTUS8/henSKRTyAaNWLDH/23EMt8diW3CCfguzblb/ouTQQBgnd5Rc5o
Avt6Y8vdoArhe653lvPahEyJyaLLnOP4TIAdlfQ28ICfZXdL7k10EuJEUt8st22G
2v2uscBsI4RFIBrh2TW4jQRrBE1eAQQAx/p1aRpha/lOmqeqRfQR34IIwUdYf4lw
9OfL9tMEzpbg5L1cP+rUwiVsussekVfwZ73qMoIqGOG2UkeC1aaP9Y9Vtx2B2nHs
RNN6vUHJt2b3nZV5+jvZIn5xdc8JtpKAAI2WYtsdf4uBPZLHZPY77LFBPiZoBAV3
LMI3R9FoqbMAEQEAAYkBawQYAQoAIBYhBBp/Lh4HsA0Wl1C9y1TzW9rSRu6nBQJr
BE1eAhsCAL8JEFTzW9rSRu6ntCAEGQEKAB0WIQQdaSjLBDAZlNI3HfgqsWjXgcYX
gAUCawRNXgAKCRAqsWjXgcYXgFHZA/9UzErLVgdC1NOy6VOTtQibfMlDXKC8H1jO
VAyHglwKD+Pk3BAVtr8APeCVDzTc0cC1ZQMj4sTbQlLIzvRHzwYi0HOFnPx/FIiv
pWhIr/l/TTJeNbzdLOzBocBQs2lyHTAfKDr4/9h/9TPxMbKSYM7Jx6Zwr32OpPwR
Ibs7gzc1EWQOA/93d7+DNHFk63d11yUchCyBiN2wBV+Zqe+EgVK6p67ap2AHDTZA
tLHIyizA73jmrtQPUau5JDYscXMHz55vranJ32N7nIkv8HoeEPtTxSX1rtI/qdFR
n9vc/Ngdk8IrUwih5sqHOFxBvEMmnwS7Z3bEFWXdTPvKWX6DqBbbETTuhQ==
=WO48
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


def subkey_of(data: bytes) -> tuple[bytes, bytes]:
    """The packets of the only subkey of a key and of its signature."""
    parts = [data[start:end] for _tag, start, _body, end in packets(data)]
    return parts[3], parts[4]


@pytest.mark.parametrize("text", [ED25519, RSA, SIGNING])
def test_a_key_and_the_subkeys_that_it_has_signed_stay(text: str) -> None:
    assert without_unsigned_subkeys(dearmor(text.encode())) == dearmor(text.encode())


def test_a_subkey_that_the_key_has_not_signed_goes() -> None:
    """A mirror can add a subkey: the fingerprint is that of the primary key, and an old rpm trusts the whole file."""
    ours, theirs = dearmor(RSA.encode()), dearmor(SIGNING.encode())
    subkey, signature = subkey_of(theirs)
    as_subkey = bytes([0xB8]) + ours[1:143]  # somebody else's primary key as a subkey
    for added in (subkey, subkey + signature, as_subkey + signature):
        assert keys(ours + added)[RSA_FINGERPRINT] == ours + added
        assert without_unsigned_subkeys(ours + added) == ours
    assert without_unsigned_subkeys(theirs + as_subkey + signature) == theirs
    assert without_unsigned_subkeys(dearmor(ED25519.encode()) + subkey + signature) == dearmor(ED25519.encode())
    forged = theirs[:-len(signature)] + signature[:-1] + bytes([signature[-1] ^ 1])
    assert without_unsigned_subkeys(forged) == theirs[:398]


def test_nothing_but_what_a_public_key_is_made_of_stays() -> None:
    assert without_unsigned_subkeys(dearmor(RSA.encode()) + bytes([0xCB, 3]) + b"abc") == dearmor(RSA.encode())
    assert without_unsigned_subkeys(bytes([0xC2, 1, 4])) == b""

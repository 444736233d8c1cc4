# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes fingerprints of OpenPGP public keys without gpg, which may not be installed on a host.

Source: RFC 4880, sections 4.2 (packet headers), 6.2 (ASCII armor) and 12.2 (the fingerprint of a version 4 key is the
SHA-1 of 0x99, the length and the body of the public-key packet). The package manager verifies all signatures, except
that rpm before 4.18 does not verify the signatures of subkeys (CVE-2021-3521); L(without_unsigned_subkeys) does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import typing as t

_BEGIN, _END = re.compile(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n"), b"-----END PGP PUBLIC KEY BLOCK-----"
_SIGNATURE, _PUBLIC_KEY, _USER_ID, _SUBKEY, _USER_ATTRIBUTE = 2, 6, 13, 14, 17
_BINDING, _RSA = 0x18, (1, 3)
# Hash algorithms by number (RFC 4880, 9.4), with the prefix of the digest in an RSA signature (5.2.2).
_HASHES = {2: ("sha1", "3021300906052b0e03021a05000414"), 8: ("sha256", "3031300d060960864801650304020105000420"),
           9: ("sha384", "3041300d060960864801650304020205000430"),
           10: ("sha512", "3051300d060960864801650304020305000440")}


def dearmor(data: bytes) -> bytes:
    """The binary packets of an armored or binary key file. Raises ValueError if the armor is damaged."""
    blocks = list(_blocks(data))
    if not blocks:
        return data
    packets = b""
    for block in blocks:
        lines = [line.rstrip(b" \t\r") for line in block.split(b"\n")]
        _headers, found, body = b"\n".join([b"", *lines]).partition(b"\n\n")
        # The line that begins with "=" is the checksum. It is not verified, because the fingerprint is verified.
        text = b"".join(line for line in body.split() if not re.match(rb"=[A-Za-z0-9+/]{4}\Z", line))
        try:
            packets += base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"its armor is damaged ({error})") from error
        if not found:
            raise ValueError("its armor has no blank line after the headers")
    return packets


def _blocks(data: bytes) -> t.Iterator[bytes]:
    """Yields the text between the first and last line of each armor, in linear time."""
    begin = _BEGIN.search(data)
    while begin:
        end = data.find(_END, begin.end())
        if end < 0:
            return
        yield data[begin.end():end]
        begin = _BEGIN.search(data, end)


def packets(data: bytes) -> t.Iterator[tuple[int, int, int, int]]:
    """Yields C((tag, start, body, end)) for each packet, with offsets in data. Raises ValueError if data is not
    OpenPGP."""
    at = 0
    while at < len(data):
        start, header = at, data[at]
        try:
            if not header & 0x80:
                raise ValueError(f"no OpenPGP packet begins at byte {at}")
            if header & 0x40:
                tag, first = header & 0x3F, data[at + 1]
                if first < 192:
                    size, at = first, at + 2
                elif first < 224:
                    size, at = ((first - 192) << 8) + data[at + 2] + 192, at + 3
                elif first == 255:
                    size, at = int.from_bytes(data[at + 2:at + 6], "big"), at + 6
                else:
                    raise ValueError("a key has no packets of partial length")
            else:
                tag, width = (header >> 2) & 0x0F, (1, 2, 4, 0)[header & 3]
                if not width:
                    raise ValueError("a key has no packets of indeterminate length")
                size, at = int.from_bytes(data[at + 1:at + 1 + width], "big"), at + 1 + width
        except IndexError as error:
            raise ValueError("it ends within a packet") from error
        if at + size > len(data):
            raise ValueError("it ends within a packet")
        yield tag, start, at, at + size
        at += size


def keys(data: bytes) -> dict[str, bytes]:
    """The version 4 keys in a key file, as C({fingerprint: binary packets}). A fingerprint has 40 upper-case
    hexadecimal digits.

    Raises ValueError if data does not consist of OpenPGP packets.
    """
    binary = dearmor(data)
    found: dict[str, bytes] = {}
    current = ""
    for tag, start, body, end in packets(binary):
        if tag == _PUBLIC_KEY:
            content = binary[body:end]
            current = ""
            if content[:1] == b"\x04":
                digest = hashlib.sha1(b"\x99" + len(content).to_bytes(2, "big") + content)
                current = digest.hexdigest().upper()
                found.setdefault(current, b"")
        if current:
            found[current] += binary[start:end]
    return found


def is_key(data: bytes, fingerprint: str) -> bool:
    """Whether a key file contains exactly the key with this fingerprint."""
    try:
        return list(keys(data)) == [fingerprint]
    except ValueError:
        return False


def without_unsigned_subkeys(data: bytes) -> bytes:
    """A binary key without the subkeys that the key has not signed, because anybody can add such subkeys.

    Only RSA signatures are verified; a key with another algorithm loses all subkeys.
    """
    # For each part of the key: tag, content, signatures, and all packets.
    found: list[tuple[int, bytes, list[bytes], list[bytes]]] = []
    for tag, start, body, end in packets(data):
        if tag in (_PUBLIC_KEY, _USER_ID, _USER_ATTRIBUTE, _SUBKEY):
            found.append((tag, data[body:end], [], [data[start:end]]))
        elif tag == _SIGNATURE and found:
            found[-1][2].append(data[body:end])
            found[-1][3].append(data[start:end])
    primary = found[0][1] if found else b""
    return b"".join(b"".join(parts) for tag, content, signatures, parts in found
                    if tag != _SUBKEY or any(_binds(primary, content, signature) for signature in signatures))


def _binds(primary: bytes, subkey: bytes, signature: bytes) -> bool:
    """Whether the RSA primary key made this signature for the subkey (RFC 4880, 5.2.3, 5.2.4 and 5.5.2)."""
    try:
        version, kind, algorithm, number = signature[:4]
        end = 6 + int.from_bytes(signature[4:6], "big")
        if (version, kind) != (4, _BINDING) or algorithm not in _RSA or primary[5] not in _RSA:
            return False
        name, prefix = _HASHES[number]
        modulus, rest = _integer(primary[6:])
        exponent, _rest = _integer(rest)
        value, _rest = _integer(signature[end + 4 + int.from_bytes(signature[end:end + 2], "big"):])
    except (IndexError, KeyError, ValueError):
        return False
    hashed = hashlib.new(name)
    for key in (primary, subkey):
        hashed.update(b"\x99" + len(key).to_bytes(2, "big") + key)
    hashed.update(signature[:end] + b"\x04\xff" + end.to_bytes(4, "big"))
    digest, size = bytes.fromhex(prefix) + hashed.digest(), (modulus.bit_length() + 7) // 8
    wanted = b"\x00\x01" + b"\xff" * (size - 3 - len(digest)) + b"\x00" + digest
    return len(wanted) == size and pow(value, exponent, modulus).to_bytes(size, "big") == wanted


def _integer(data: bytes) -> tuple[int, bytes]:
    """A multiprecision integer (RFC 4880, 3.2) and the remaining data. Raises IndexError if it is truncated."""
    size = (int.from_bytes(data[:2], "big") + 7) // 8 + 2
    data[size - 1]  # pylint: disable=pointless-statement
    return int.from_bytes(data[2:size], "big"), data[size:]


def armor(data: bytes) -> bytes:
    """The ASCII armor of a binary key, with the checksum that rpm requires (RFC 4880, 6.1 and 6.2)."""
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ignored in range(8):
            crc = (crc << 1) ^ (0x1864CFB if crc & 0x800000 else 0)
    return (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n" + base64.encodebytes(data)
            + b"=" + base64.b64encode((crc & 0xFFFFFF).to_bytes(3, "big"))
            + b"\n-----END PGP PUBLIC KEY BLOCK-----\n")

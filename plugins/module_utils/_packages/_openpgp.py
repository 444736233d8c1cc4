# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fingerprints of OpenPGP public keys, without gpg, which hosts need not have. PRIVATE to the collection.

Only what identifies a key is read: RFC 4880 sections 4.2 (packet headers), 6.2 (ASCII armor) and 12.2 (a version 4
fingerprint is the SHA-1 of 0x99, the length and the body of the public-key packet). Signatures are the package
manager's business.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import typing as t

_ARMOR = re.compile(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)
_PUBLIC_KEY = 6


def dearmor(data: bytes) -> bytes:
    """The binary packets of a key file, armored or binary. Raises ValueError when the armor is damaged."""
    blocks = _ARMOR.findall(data)
    if not blocks:
        return data
    packets = b""
    for block in blocks:
        _headers, found, body = re.sub(rb"[ \t\r]+\n", b"\n", b"\n" + block).partition(b"\n\n")
        # The line that begins with "=" is the checksum of the armor; the fingerprint checks more than it does.
        text = b"".join(line for line in body.split() if not re.match(rb"=[A-Za-z0-9+/]{4}\Z", line))
        try:
            packets += base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"its armor is damaged ({error})") from error
        if not found:
            raise ValueError("its armor has no blank line after the headers")
    return packets


def packets(data: bytes) -> t.Iterator[tuple[int, int, int, int]]:
    """Yields C((tag, start, body, end)) as offsets for each packet. Raises ValueError when data is not OpenPGP."""
    at = 0
    while at < len(data):
        start, header = at, data[at]
        try:
            if not header & 0x80:
                raise ValueError(f"byte {at} begins no OpenPGP packet")
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
    """The keys of a key file: fingerprint (40 upper-case hex digits) to that key's own binary packets.

    Keys of another version than 4 are left out. Raises ValueError when data holds no OpenPGP packets.
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


def armor(data: bytes) -> bytes:
    """The ASCII armor of a binary key, with the checksum, without which rpm takes no key (RFC 4880, 6.1 and 6.2)."""
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ignored in range(8):
            crc = (crc << 1) ^ (0x1864CFB if crc & 0x800000 else 0)
    return (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n" + base64.encodebytes(data)
            + b"=" + base64.b64encode((crc & 0xFFFFFF).to_bytes(3, "big"))
            + b"\n-----END PGP PUBLIC KEY BLOCK-----\n")

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds and hides possible secrets in data and texts, in linear time. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t

# What a name, in small letters and without punctuation, contains or ends with if it is that of a secret; and the last
# words of such names.
_PARTS = ("passw", "passphrase", "passcode", "secret", "token", "credential", "cookie", "bearer", "jwt",
          "connectionstring", "apikey", "accesskey", "privatekey", "signingkey", "encryptionkey", "authkey", "joinkey",
          "masterkey", "sessionkey", "sharedkey", "accountkey", "sshkey", "hmackey", "licensekey", "licencekey")
_ENDS = ("auth", "authorization", "authconfig")
_LAST = ("pass", "pwd", "psk")
# The last words of names whose values only say where a secret is, or which one it is; and names of Secrets.
_OTHERS = ("file", "files", "path", "paths", "dir", "name", "names", "fingerprint", "fingerprints")
_PULL_SECRETS = ("pullsecret", "pullsecrets")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SWITCH = ("", "true", "false")

# A user, with or without a password, in a URL. A quote before punctuation ends the URL. A password may have slashes;
# digits after a colon and before a slash are a port.
_USER = re.compile(r"""(?<=://)(?!\[)(?:(?:[^/\s"']|["'](?![,\]}):\s]|\Z))+|[^/@:\s"']*:(?![0-9]+/)[^\s"']{1,300})@""")
_URL = re.compile(r"""(://[^\s"'<>?]*\?)([^\s"'<>]+)|://[^\s"'<>?]*""")
# The signature in a query whose URL has no scheme.
_SIGNATURE = re.compile(r"""(?i)(?<=[?&])((?:[\w-]*-)?sig(?:nature)?=)[^\s"'&<>]+""")
_PRIVATE_KEY = re.compile(r"(-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----).+?(?=-----END |\Z)", re.DOTALL)
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+")
# What follows "basic" is a word of a sentence if it has no digit, no equals sign and no capital letter in it.
_BEARER = re.compile(r"\b((?i:bearer)|(?i:basic)(?=\s+[\w.~+/-]*(?:[0-9=]|[a-z][A-Z])))\s+[\w.~+/=-]{8,}")
# A name and its separator. It starts at the beginning of a word, as other starts would take quadratic time.
_NAME = re.compile(r"(?<![\w-])([\w-]+)[\"']?\s*[=:]\s*")
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'|(?:(?i:bearer|basic)\s+)?[^\s,;]+")
HIDDEN = "********"


def is_secret(name: object) -> bool:
    """Whether a variable or key of this name may hold a secret."""
    words = [word.lower() for word in _WORD.findall(str(name))]
    if not words or words[-1] in _OTHERS or ("public" in words and words[-1] in ("key", "keys")):
        return False
    text = "".join(words)
    return words[-1] in _LAST or text.endswith(_ENDS) or (
        any(part in text for part in _PARTS) and not text.endswith(_PULL_SECRETS))


def is_secret_variable(variable: t.Mapping[str, object]) -> bool:
    """Whether a variable C({name, value}) holds a secret."""
    return str(variable.get("value") or "").lower() not in _SWITCH and is_secret(variable.get("name"))


def without_private_keys(text: str, replacement: str = HIDDEN) -> str:
    """A text with the private keys in its PEM blocks replaced. The text may end in a block."""
    return _PRIVATE_KEY.sub(lambda found: found[1] + replacement, text)


def without_parts(text: str, replacement: str = HIDDEN) -> str:
    """A text with its secrets replaced that are known by their form.

    These are users and queries in URLs (C(https://********@mirror.example?********)), private keys in PEM blocks, and
    tokens.
    """
    text = _USER.sub(f"{replacement}@", without_private_keys(text, replacement))
    text = _URL.sub(lambda found: found[0] if not found[1] else found[1] + _query(found[2], replacement), text)
    text = _SIGNATURE.sub(lambda found: found[1] + replacement, text)
    return _BEARER.sub(lambda found: f"{found[1]} {replacement}", _JWT.sub(replacement, text))


def _query(query: str, replacement: str) -> str:
    """A hidden query, with the punctuation that follows the URL."""
    bare = query.rstrip(",;.)]}")
    return (replacement if bare else "") + query[len(bare):]


def without_secrets(text: str) -> str:
    """A text in which the parts of L(without_parts), and values of names that L(is_secret) finds, are replaced."""
    text = without_parts(text)
    parts, end = [], 0
    for name in _NAME.finditer(text):
        value = _VALUE.match(text, name.end()) if name.start() >= end and is_secret(name[1]) else None
        if value:
            parts += [text[end:name.end()], HIDDEN]
            end = value.end()
    return "".join([*parts, text[end:]])


def holds_secret(data: object) -> bool:
    """Whether data has a variable for which L(is_secret_variable) is true, or a text that L(without_parts) changes."""
    if isinstance(data, t.Mapping):
        return is_secret_variable(data) or any(map(holds_secret, data.values()))
    if isinstance(data, (list, tuple)):
        return any(map(holds_secret, data))
    return isinstance(data, str) and without_parts(data, "") != data

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proxy for downloads: its option, and its environment variables."""

from __future__ import annotations

import os
import re
import typing as t
from urllib.parse import urlsplit

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, brief

# The keys of the option, and the names of environment variables, which are aliases.
NAMES = {"http": "HTTP_PROXY", "https": "HTTPS_PROXY", "no_proxy": "NO_PROXY"}
# The names of the variables as programs read them.
SPELLINGS = tuple(word for upper in NAMES.values() for word in (upper, upper.lower()))
_SCHEMES = ("http", "https")
# The option of modules.
OPTION: dict[str, object] = {"type": "dict", "options": {
    "http": {"type": "str", "aliases": ["HTTP_PROXY", "http_proxy"], "no_log": True},
    "https": {"type": "str", "aliases": ["HTTPS_PROXY", "https_proxy"], "no_log": True},
    "no_proxy": {"type": "list", "elements": "str", "aliases": ["NO_PROXY"]}}}


def read(given: object, path: str = "proxy") -> dict[str, str]:
    """The keys that are set, of C({http, https, no_proxy}). Raises InputError, without passwords.

    given: the option; its no_proxy can be a list, or hosts separated by commas.
    """
    if given in (None, ""):
        return {}
    if not isinstance(given, t.Mapping):
        raise InputError(f"{_shown(given)} is not a mapping.",
                         "Write {http: http://proxy.example:3128, https: http://proxy.example:3128, no_proxy: .example}"
                         ".", path=path)
    words = {word: name for name, upper in NAMES.items() for word in (name, upper, upper.lower())}
    found: dict[str, str] = {}
    for key, value in given.items():
        if key not in words:
            raise InputError(f"{_shown(key)!r} is not a key of a proxy.",
                             f"Write {', '.join(NAMES)} (or {', '.join(NAMES.values())}).",
                             path=path, allowed=list(NAMES))
        text = _hosts(value, f"{path}.{key}") if words[key] == "no_proxy" else _url(value, f"{path}.{key}")
        if text and found.setdefault(words[key], text) != text:
            raise InputError(f"it is set twice, with another value as {key}.", "Set it once.",
                             path=f"{path}.{words[key]}")
    return found


def variables(proxy: t.Mapping[str, str]) -> dict[str, str]:
    """The environment variables in upper and lower case, because programs read one or the other."""
    return {word: proxy[name] for name in NAMES if name in proxy for word in (NAMES[name], NAMES[name].lower())}


def use(given: object) -> None:
    """Uses the proxy for downloads by this process and its commands. Raises InputError."""
    os.environ.update(variables(read(given)))


def has_password(proxy: t.Mapping[str, str]) -> bool:
    """Whether a URL contains a user."""
    return any(masked(text) != text for text in proxy.values())


def masked(text: str) -> str:
    """A URL without user and password: C(http://***@proxy.example:3128)."""
    return re.sub(r"^(\w+://)?.*@", r"\1***@", text, flags=re.DOTALL)


def _shown(value: object) -> str:
    """A value for a message: truncated, without user and password."""
    return brief(value, lambda one: masked(str(one)), 100)


def _url(value: object, path: str) -> str:
    text = "" if value is None else value if isinstance(value, str) else _shown(value)
    try:
        parts = urlsplit(text)
        good = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if text and (not good or re.search(r"\s", text)):
        raise InputError(f"{_shown(text)!r} is not the URL of a proxy.",
                         "Write http://HOST:PORT, with special characters of a password percent-encoded.", path=path)
    return text


def _hosts(value: object, path: str) -> str:
    given = value if isinstance(value, (list, tuple)) else value.split(",") if isinstance(value, str) else [value or ""]
    words = [(one if isinstance(one, str) else _shown(one)).strip() for one in given]
    strange = [word for word in words if re.search(r"[\s,]|://", word)]
    if strange:
        raise InputError(f"{_shown(strange[0])!r} is not a host.",
                         "Write hosts, domains (.example.com) or networks (10.0.0.0/8), separated by commas.",
                         path=path)
    return ",".join(filter(None, words))

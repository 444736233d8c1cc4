# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A support bundle: a compressed archive of texts without secrets. Pure. PRIVATE."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.hidden import HIDDEN, is_secret, without_secrets
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable

_FOLDER = "gpu-support"
_JSON = ".json"
_LEFT_OUT = ("args", "command", "env", "httpHeaders", "managedFields")
_ANNOTATIONS = ("gpuops.nvidia/", "nvidia.com/")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def archive(texts: t.Mapping[str, str]) -> bytes:
    """A gzip-compressed tar archive. texts: by path, whose parts come from L(part); those of JSON files come from
    L(document). The same texts give the same bytes."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed, \
            tarfile.open(fileobj=compressed, mode="w") as archived:
        for path, text in sorted(texts.items()):
            content = (text if path.endswith(_JSON) else _cleaned(text)).encode()
            entry = tarfile.TarInfo(f"{_FOLDER}/{path}")
            entry.size, entry.mode = len(content), 0o644
            archived.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def part(name: str) -> str:
    """A part of a path for a name that a host or a cluster has chosen."""
    return _UNSAFE.sub("_", name).lstrip(".")[:120] or "_"


def document(data: t.Any) -> str:
    """Data as JSON, without secrets and without what may hold them in a form that is not known: environment variables,
    command lines, headers of probes, and annotations of others."""
    return json.dumps(_shown(data), indent=2, sort_keys=True, default=str, skipkeys=True) + "\n"


def _shown(data: t.Any, key: str = "") -> t.Any:
    if isinstance(data, dict):
        return {name: _shown(value, str(name)) for name, value in data.items()
                if not (name in _LEFT_OUT and isinstance(value, (dict, list)))
                and (key != "annotations" or str(name).startswith(_ANNOTATIONS))}
    if isinstance(data, (list, tuple)):
        return [_shown(one, key) for one in data]
    if isinstance(data, str):
        return HIDDEN if is_secret(key) and data else without_secrets(data)
    return data


def _cleaned(text: str) -> str:
    """A text without secrets and control characters."""
    return "\n".join(printable(line) for line in without_secrets(text).split("\n"))

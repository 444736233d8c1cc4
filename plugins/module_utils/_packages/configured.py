# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the repository that this collection has configured on a host, as the option C(repository)."""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_tools import SOURCES
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import REPOSITORIES as DNF
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import keys
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper_tools import REPOSITORIES as ZYPPER

_URL = re.compile(r"^(?:URIs: |baseurl=)(\S+)$", re.M)
_KEY = re.compile(r"^(?:Signed-By: |gpgkey=file://)(/\S+)$", re.M)


def read_repository(root: Root, *names: str) -> dict[str, str]:
    """C({url, key, fingerprint}) of the first configured repository with one of these names; empty if there is none.

    key: the path of the key on the host. A key file that contains other than one key is omitted with its fingerprint.
    """
    paths = [f"{folder}/gpuops-{name}.{end}" for name in names
             for folder, end in ((SOURCES, "sources"), (DNF, "repo"), (ZYPPER, "repo"))]
    text = next(filter(None, map(root.text, paths)), "")
    url, key = _URL.search(text), _KEY.search(text)
    if not url:
        return {}
    found = {"url": url.group(1)}
    try:
        fingerprints = list(keys(root.data(key.group(1)) or b"")) if key else []
    except ValueError:
        fingerprints = []
    if key and len(fingerprints) == 1:
        found.update(key=key.group(1), fingerprint=fingerprints[0])
    return found

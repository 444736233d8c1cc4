# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which labels of a Node this collection may write at all, and whose they are. Pure. PRIVATE to the collection.

There are two families: deploy labels, which attract operands, and features, which say what GPUs a host has (those of
GPU feature discovery and ours for each model). The rest of C(nvidia.com/) is input of users and state of others.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

Labels = t.Mapping[str, str]

PRESENT = "nvidia.com/gpu.present"
DEPLOY = "nvidia.com/gpu.deploy."
MIG_CONFIG = "nvidia.com/mig.config"
PLUGIN_CONFIG = "nvidia.com/device-plugin.config"
# Input of users.
OPERANDS = f"{DEPLOY}operands"
WORKLOAD = "nvidia.com/gpu.workload.config"
# One of these has every host with a GPU, whatever can be read of it.
SHOWS_A_GPU = ("nvidia.com/gpu.count", "nvidia.com/mig.capable")

NFD = "feature.node.kubernetes.io/"
# NFD writes the first for vendor, the others for class and vendor: 3D controller, VGA controller.
PCI = tuple(f"{NFD}pci-{kind}10de.present" for kind in ("", "0302_", "0300_"))

# What NFD's master calls the annotation that lists the labels which it keeps up; another instance of it has a prefix.
_NFD_LISTS = "nfd.node.kubernetes.io/feature-labels"

_OURS = "gpuops.nvidia/"
# Of GPU feature discovery 0.20, by the beginnings of their names.
_FEATURES = re.compile(
    r"nvidia\.com/(cuda\.(driver|runtime)|gpu\.(machine|count|memory|product|family|compute|replicas|sharing-strategy|mode|"
    r"clique|multiprocessors|slices|engines)|mig\.(capable|strategy)|mig-|mps\.capable|vgpu\.(present|host-driver))"
    r"[A-Za-z0-9._-]*")
# Kubernetes, "Labels and Selectors".
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def is_deploy(key: str) -> bool:
    """Whether a key is of the family of deploy labels; a feature otherwise."""
    return key in (PRESENT, MIG_CONFIG, PLUGIN_CONFIG) or key.startswith(DEPLOY)


def is_feature(key: str) -> bool:
    """Whether a key says what GPUs a host has."""
    prefix, _slash, name = key.partition("/")
    return f"{prefix}/" == _OURS and bool(_NAME.fullmatch(name)) or bool(_FEATURES.fullmatch(key))


def may_be_ours(key: str) -> bool:
    """Whether this collection writes such a label at all."""
    return key != OPERANDS and (is_deploy(key) or is_feature(key))


def is_nfd_list(key: str) -> bool:
    """Whether an annotation is a list of NFD's."""
    return key == _NFD_LISTS or key.endswith(f".{_NFD_LISTS}")


def nfd_keys(annotations: Labels) -> t.FrozenSet[str]:
    """The labels that Node Feature Discovery keeps up on a Node, those of GPU feature discovery among them."""
    return frozenset(_in_full(name) for key, value in annotations.items() if is_nfd_list(key)
                     for name in value.split(",") if name)


def nfd_lists_without(annotations: Labels, keys: t.AbstractSet[str]) -> t.Dict[str, str]:
    """The lists of Node Feature Discovery without some labels; only those that name one of them."""
    found = {key: ",".join(name for name in value.split(",") if _in_full(name) not in keys)
             for key, value in annotations.items() if is_nfd_list(key)}
    return {key: value for key, value in found.items() if value != annotations[key]}


def _in_full(name: str) -> str:
    return name if "/" in name else NFD + name


def wrong_feature(labels: Labels) -> str:
    """What is wrong with features that a host has told, as a part of a sentence; empty where nothing is.

    A host is believed about its GPUs only, so that one in wrong hands cannot attract what belongs elsewhere.
    """
    for key, value in labels.items():
        if not is_feature(key):
            return f"{key} says nothing about GPUs"
        if value and not _NAME.fullmatch(value):
            return f"{value!r} cannot be the value of a label ({key})"
    return ""


def parse_adopt(given: t.Iterable[str]) -> t.FrozenSet[str]:
    """The option C(adopt). Raises InputError for a key that is never ours."""
    keys = frozenset(given)
    for key in sorted(keys):
        if not may_be_ours(key):
            raise InputError(f"{key!r} is no label that this module writes.",
                             "Name labels as gathered or present return them in foreign; input of users, such as "
                             f"{OPERANDS} and {WORKLOAD}, is not among them.", path="adopt", value=key)
    return keys

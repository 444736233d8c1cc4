# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The labels of a Node that this collection may write. Pure. PRIVATE.

There are two families: deploy labels, by which operands run on a Node, and feature labels, which describe the GPUs of a
Node (those of GPU feature discovery, and ours for each model). An upgrade of the driver also writes its state. All
other labels below C(nvidia.com/) are input of users or belong to other programs.
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
# The state of a driver upgrade.
UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"
# Input of users.
OPERANDS = f"{DEPLOY}operands"
WORKLOAD = "nvidia.com/gpu.workload.config"
# Each host with a GPU has one of these, even if its GPU cannot be read.
SHOWS_A_GPU = ("nvidia.com/gpu.count", "nvidia.com/mig.capable")

NFD = "feature.node.kubernetes.io/"
# NFD writes the first for vendor, the others for class and vendor: 3D controller, VGA controller.
PCI = tuple(f"{NFD}pci-{kind}10de.present" for kind in ("", "0302_", "0300_"))

# The annotation in which NFD's master lists the labels that it manages. Another instance of NFD adds a prefix.
_NFD_LISTS = "nfd.node.kubernetes.io/feature-labels"

_OURS = "gpuops.nvidia/"
# Prefixes of the labels of GPU feature discovery 0.20.
_FEATURES = re.compile(
    r"nvidia\.com/(cuda\.(driver|runtime)|gpu\.(machine|count|memory|product|family|compute|replicas|sharing-strategy|mode|"
    r"clique|multiprocessors|slices|engines)|mig\.(capable|strategy)|mig-|mps\.capable|vgpu\.(present|host-driver))"
    r"[A-Za-z0-9._-]*")
# Kubernetes, "Labels and Selectors".
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def is_deploy(key: str) -> bool:
    """Whether a key is a deploy label."""
    return key in (PRESENT, MIG_CONFIG, PLUGIN_CONFIG) or key.startswith(DEPLOY)


def is_feature(key: str) -> bool:
    """Whether a key is a feature label."""
    prefix, _slash, name = key.partition("/")
    return f"{prefix}/" == _OURS and bool(_NAME.fullmatch(name)) or bool(_FEATURES.fullmatch(key))


def may_be_ours(key: str) -> bool:
    """Whether this collection may write a label."""
    return key != OPERANDS and (is_deploy(key) or is_feature(key) or key == UPGRADE_STATE)


def is_nfd_list(key: str) -> bool:
    """Whether an annotation is NFD's list of labels."""
    return key == _NFD_LISTS or key.endswith(f".{_NFD_LISTS}")


def nfd_keys(annotations: Labels) -> t.FrozenSet[str]:
    """The labels of a Node that Node Feature Discovery manages, including those of GPU feature discovery."""
    return frozenset(_in_full(name) for key, value in annotations.items() if is_nfd_list(key)
                     for name in value.split(",") if name)


def nfd_lists_without(annotations: Labels, keys: t.AbstractSet[str]) -> t.Dict[str, str]:
    """The annotations of Node Feature Discovery that list any of these keys, without these keys."""
    found = {key: ",".join(name for name in value.split(",") if _in_full(name) not in keys)
             for key, value in annotations.items() if is_nfd_list(key)}
    return {key: value for key, value in found.items() if value != annotations[key]}


def _in_full(name: str) -> str:
    return name if "/" in name else NFD + name


def wrong_feature(labels: Labels) -> str:
    """The fault of the feature labels that a host reports, as a part of a sentence; empty if there is none.

    A host may only describe its own GPUs, so that a compromised host cannot attract pods.
    """
    for key, value in labels.items():
        if not is_feature(key):
            return f"{key} is not a label of GPU features"
        if value and not _NAME.fullmatch(value):
            return f"{value!r} is not a valid value of the label {key}"
    return ""


def parse_adopt(given: t.Iterable[str]) -> t.FrozenSet[str]:
    """The keys in the option C(adopt). Raises InputError for a label that this collection never writes."""
    keys = frozenset(given)
    for key in sorted(keys):
        if not may_be_ours(key) or key == UPGRADE_STATE:
            raise InputError(f"{key!r} is not a label that this module writes.",
                             "Use keys that the states gathered and present return in foreign. Labels that users set, "
                             f"such as {OPERANDS} and {WORKLOAD}, cannot be adopted.", path="adopt", value=key)
    return keys

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a host as generic resources and features of Slurm. PRIVATE to the collection.

Source: gres.conf(5) and slurm.conf(5) of Slurm 22.05 to 25.11. `AutoDetect=off` with a NodeName is for this node, and
has precedence over a detection for all nodes. `MultipleFiles` (from 21.08 on) is for MIG devices: the device file of
the GPU and the capability files of the GPU instance and the compute instance. Types are those of Slurm's detection
with NVML: the product in lower case with underscores, followed by the profile of a MIG device.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Facts

MINORS_TABLE = "/proc/driver/nvidia-caps/mig-minors"
_MINOR = re.compile(r"^(gpu\d+/gi\d+(?:/ci\d+)?)/access (\d{1,9})$", re.M)
# Characters with a meaning in a request for generic resources or in a list of features.
_SPECIAL = re.compile(r"[^a-z0-9._-]+")
_ADVICE = "# slurm.conf: "


class Resource(t.NamedTuple):
    """A device that jobs can allocate. type: Slurm's name of its type; files: its device files."""

    type: str
    files: t.Tuple[str, ...]


def resources(facts: Facts, minors_table: str) -> t.List[Resource]:
    """The GPUs, and MIG devices of GPUs in MIG mode, that could be read completely, in order of PCI address.

    minors_table: the driver's table of capability files. Raises HostError if a MIG device has none.
    """
    minors = {name: int(minor) for name, minor in _MINOR.findall(minors_table)}
    found: t.List[Resource] = []
    for gpu in facts["gpus"]:
        if gpu["minor"] is None or gpu["model"] is None or gpu["error"]:
            continue
        kind, own = word(gpu["model"]), f"/dev/nvidia{gpu['minor']}"
        if not (gpu["mig"] and gpu["mig"]["enabled"]):
            found.append(Resource(kind, (own,)))
            continue
        for instance in gpu["mig"]["instances"]:
            for device in instance["devices"]:
                owner = f"gpu{gpu['minor']}/gi{instance['gi']}"
                files = tuple(_capability(minors, name) for name in (owner, f"{owner}/ci{device['ci']}"))
                profile = word(device.get("profile", instance["profile"]).replace("+", "."))
                found.append(Resource(f"{kind}_{profile}", (own, *files)))
    return found


def word(text: str) -> str:
    """A name in Slurm's syntax: in lower case, with underscores for other characters."""
    return _SPECIAL.sub("_", text.lower()).strip("_")


def _capability(minors: t.Mapping[str, int], name: str) -> str:
    if name not in minors:
        raise HostError(f"{MINORS_TABLE} has no line for {name}, so its device file is unknown.",
                        "Check this file and nvidia-smi mig -lgi. The kernel module of the driver provides the table.",
                        path=MINORS_TABLE)
    return f"/dev/nvidia-caps/nvidia-cap{minors[name]}"


def describe(found: t.Sequence[Resource], node: str, labels: t.Mapping[str, str]) -> t.List[str]:
    """The lines of gres.conf for a node, after a comment with its line for slurm.conf; none without resources."""
    if not found:
        return []
    types = [resource.type for resource in found]
    gres = ",".join(f"gpu:{kind}:{types.count(kind)}" for kind in dict.fromkeys(types))
    advice = f"{_ADVICE}NodeName={node} Gres={gres} Feature={','.join(_features(labels, types))}"
    return [advice, *(f"NodeName={node} AutoDetect=off Name=gpu Type={resource.type} "
                      f"{'File' if len(resource.files) == 1 else 'MultipleFiles'}={','.join(resource.files)}"
                      for resource in found)]


def summary(described: t.Sequence[str]) -> t.Dict[str, object]:
    """JSON of the lines of describe for the result: `{lines, gres, features}`; gres is empty without resources."""
    advice = dict(pair.split("=", 1) for line in described if line.startswith(_ADVICE)
                  for pair in line[len(_ADVICE):].split(" "))
    return {"lines": [line for line in described if not line.startswith("#")], "gres": advice.get("Gres", ""),
            "features": [feature for feature in advice.get("Feature", "").split(",") if feature]}


def _features(labels: t.Mapping[str, str], types: t.Sequence[str]) -> t.List[str]:
    """The features with which jobs select nodes (`--constraint`): models and MIG profiles, architecture (`ampere`),
    compute capability (`cc8.0`), branch of the driver (`driver580`) and the newest supported CUDA (`cuda13.0`)."""
    def label(key: str) -> str:
        return labels.get(f"nvidia.com/{key}", "")

    words = list(dict.fromkeys(types))
    if label("gpu.family"):
        words += [label("gpu.family"), f"cc{label('gpu.compute.major')}.{label('gpu.compute.minor')}"]
    if label("cuda.driver-version.major"):
        words.append(f"driver{label('cuda.driver-version.major')}")
    if label("cuda.runtime-version.full"):
        words.append(f"cuda{label('cuda.runtime-version.full')}")
    return words

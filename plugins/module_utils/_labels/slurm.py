# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a host as generic resources and features of Slurm. PRIVATE to the collection.

Source: gres.conf(5) and slurm.conf(5) of Slurm 22.05 to 25.11. `AutoDetect=off` with a NodeName overrides a detection
for all nodes. `MultipleFiles` (from 21.08 on) lists the files of a MIG device: the device file of the GPU and the
capability files of the GPU instance and the compute instance. Types have the same names as with Slurm's detection by
NVML: the product in lower case with underscores, then the profile of a MIG device.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Facts

MINORS_TABLE = "/proc/driver/nvidia-caps/mig-minors"
_MINOR = re.compile(r"^(gpu\d+/gi\d+(?:/ci\d+)?)/access (\d{1,9})$", re.M)
# Matches characters that have a meaning in a request for generic resources or in a list of features.
_SPECIAL = re.compile(r"[^a-z0-9._-]+")
_SLURM_CONF = "# slurm.conf: "


class Resource(t.NamedTuple):
    """A device that jobs can allocate. type: Slurm's name of its type; files: its device files."""

    type: str
    files: t.Tuple[str, ...]


def resources(facts: Facts, minors_table: str) -> t.List[Resource]:
    """The resources of a host, in the order of PCI addresses: full GPUs, and the MIG devices of GPUs in MIG mode.

    GPUs that could not be read completely are omitted. minors_table: the content of MINORS_TABLE, the driver's table of
    capability files. Raises HostError if the table lacks a MIG device.
    """
    minors = {name: int(minor) for name, minor in _MINOR.findall(minors_table)}
    found: t.List[Resource] = []
    for gpu in facts["gpus"]:
        if gpu["minor"] is None or gpu["model"] is None or gpu["error"]:
            continue
        type_name, device_file = slurm_name(gpu["model"]), f"/dev/nvidia{gpu['minor']}"
        if not (gpu["mig"] and gpu["mig"]["enabled"]):
            found.append(Resource(type_name, (device_file,)))
            continue
        for instance in gpu["mig"]["instances"]:
            for device in instance["devices"]:
                gpu_instance = f"gpu{gpu['minor']}/gi{instance['gi']}"
                files = tuple(_capability(minors, name) for name in (gpu_instance, f"{gpu_instance}/ci{device['ci']}"))
                profile = slurm_name(device.get("profile", instance["profile"]).replace("+", "."))
                found.append(Resource(f"{type_name}_{profile}", (device_file, *files)))
    return found


def slurm_name(text: str) -> str:
    """The text as a name in Slurm: in lower case, with underscores instead of special characters."""
    return _SPECIAL.sub("_", text.lower()).strip("_")


def _capability(minors: t.Mapping[str, int], name: str) -> str:
    if name not in minors:
        raise HostError(f"{MINORS_TABLE} has no line for {name}, so its device file is unknown.",
                        "Check this file and nvidia-smi mig -lgi. The kernel module of the driver provides the table.",
                        path=MINORS_TABLE)
    return f"/dev/nvidia-caps/nvidia-cap{minors[name]}"


def gres_lines(host_resources: t.Sequence[Resource], node: str, labels: t.Mapping[str, str]) -> t.List[str]:
    """The lines of gres.conf for a node: a comment with the line for slurm.conf, then a line for each resource.

    Without resources, there are no lines.
    """
    if not host_resources:
        return []
    types = [resource.type for resource in host_resources]
    gres = ",".join(f"gpu:{type_name}:{types.count(type_name)}" for type_name in dict.fromkeys(types))
    slurm_conf = f"{_SLURM_CONF}NodeName={node} Gres={gres} Feature={','.join(_features(labels, types))}"
    return [slurm_conf, *(f"NodeName={node} AutoDetect=off Name=gpu Type={resource.type} "
                          f"{'File' if len(resource.files) == 1 else 'MultipleFiles'}={','.join(resource.files)}"
                          for resource in host_resources)]


def summary(lines: t.Sequence[str]) -> t.Dict[str, object]:
    """JSON for the result: `{lines, gres, features}`. lines: those of gres_lines. gres is empty without resources."""
    slurm_conf = dict(pair.split("=", 1) for line in lines if line.startswith(_SLURM_CONF)
                      for pair in line[len(_SLURM_CONF):].split(" "))
    return {"lines": [line for line in lines if not line.startswith("#")], "gres": slurm_conf.get("Gres", ""),
            "features": [feature for feature in slurm_conf.get("Feature", "").split(",") if feature]}


def _features(labels: t.Mapping[str, str], types: t.Sequence[str]) -> t.List[str]:
    """The features with which jobs select nodes (`--constraint`): models and MIG profiles, architecture (`ampere`),
    compute capability (`cc8.0`), driver branch (`driver580`) and the newest supported CUDA version (`cuda13.0`)."""
    def label(key: str) -> str:
        return labels.get(f"nvidia.com/{key}", "")

    features = list(dict.fromkeys(types))
    if label("gpu.family"):
        features += [label("gpu.family"), f"cc{label('gpu.compute.major')}.{label('gpu.compute.minor')}"]
    if label("cuda.driver-version.major"):
        features.append(f"driver{label('cuda.driver-version.major')}")
    if label("cuda.runtime-version.full"):
        features.append(f"cuda{label('cuda.runtime-version.full')}")
    return features

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's GPUs as generic resources and features of Slurm. Pure. PRIVATE to the collection.

Source: gres.conf(5) and slurm.conf(5) of Slurm 22.05 to 25.11. C(AutoDetect=off) with a NodeName holds for that node
alone and wins over a detection for all; C(MultipleFiles) (from 21.08) is a MIG device: the GPU's own file and the
capability files of its GPU instance and its compute instance. Types are written as Slurm's detection by NVML writes
them: the product in small letters with underscores, for a MIG device its profile behind that.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError

MINORS_TABLE = "/proc/driver/nvidia-caps/mig-minors"
_MINOR = re.compile(r"^(gpu\d+/gi\d+(?:/ci\d+)?)/access (\d{1,9})$", re.M)
# Letters that mean something in a request for generic resources or in a list of features.
_SPECIAL = re.compile(r"[^a-z0-9._-]+")
_SAID = "# slurm.conf: "


class Resource(t.NamedTuple):
    """One allocatable device. type: Slurm's name for its kind; files: its device files."""

    type: str
    files: t.Tuple[str, ...]


def resources(facts: t.Mapping[str, t.Any], minors_table: str) -> t.List[Resource]:
    """The GPUs, or MIG devices of those in MIG mode, that NVML told whole, in order of PCI address.

    facts: of gpu_info; minors_table: the driver's table of capability files. Raises HostError where a MIG device has
    none.
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
    """A name as Slurm takes it: small letters, an underscore for what it would not take."""
    return _SPECIAL.sub("_", text.lower()).strip("_")


def _capability(minors: t.Mapping[str, int], name: str) -> str:
    if name not in minors:
        raise HostError(f"{MINORS_TABLE} has no line for {name}, so its device file is not known.",
                        "Look at this file and at nvidia-smi mig -lgi; the table comes with the driver's module.",
                        path=MINORS_TABLE)
    return f"/dev/nvidia-caps/nvidia-cap{minors[name]}"


def describe(found: t.Sequence[Resource], node: str, labels: t.Mapping[str, str]) -> t.List[str]:
    """The lines of gres.conf for a node, after a comment with what its line in slurm.conf ought to say; none without
    any resource."""
    if not found:
        return []
    types = [one.type for one in found]
    gres = ",".join(f"gpu:{kind}:{types.count(kind)}" for kind in dict.fromkeys(types))
    said = f"{_SAID}NodeName={node} Gres={gres} Feature={','.join(_features(labels, types))}"
    return [said, *(f"NodeName={node} AutoDetect=off Name=gpu Type={one.type} "
                    f"{'File' if len(one.files) == 1 else 'MultipleFiles'}={','.join(one.files)}" for one in found)]


def told(described: t.Sequence[str]) -> t.Dict[str, t.Any]:
    """C({lines, gres, features}) of what L(describe) gave; gres is empty without any resource."""
    said = dict(pair.split("=", 1) for line in described if line.startswith(_SAID)
                for pair in line[len(_SAID):].split(" "))
    return {"lines": [line for line in described if not line.startswith("#")], "gres": said.get("Gres", ""),
            "features": [one for one in said.get("Feature", "").split(",") if one]}


def _features(labels: t.Mapping[str, str], types: t.Sequence[str]) -> t.List[str]:
    """By which jobs choose nodes with C(--constraint).

    Models and MIG profiles, architecture (C(ampere)), compute capability (C(cc8.0)), driver branch (C(driver580)) and
    the newest CUDA (C(cuda13.0)).
    """
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

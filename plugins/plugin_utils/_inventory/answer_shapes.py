# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The structure of the results of this collection's modules: facts of gpu_info, steps, errors, labels. Pure. PRIVATE.

A test compares it with the documentation of gpu_info. An unknown value is null if null is allowed. The limits are far
above the values of real machines; they prevent a host from exhausting the memory of the controller.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.collect import SCHEMA
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.driver import MODULES
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.health import (
    FABRIC_STATES,
    MOST_LINKS,
    RECOVERY,
    SLOWDOWNS,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.xids import HIGHEST, MOST_ROWS
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.shapes import (
    Fields,
    Flag,
    Nullable,
    Number,
    OneOf,
    Rows,
    Shape,
    Table,
    Text,
)

_GPUS, _INSTANCES, _PACKAGES, _CLIENTS, _STEPS = 256, 64, 10_000, 50_000, 10_000

_FLAG, _TEXT, _NUMBER = Flag(), Text(), Number()
_MAYBE_FLAG, _MAYBE_TEXT, _MAYBE_NUMBER = Nullable(_FLAG), Nullable(_TEXT), Nullable(_NUMBER)
_LONG = Text(longest=10_000)
_NAME = Text(longest=256)
_PCI = Text(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", "a PCI address such as 0000:07:00.0")
_DEVICE = Text(r"([0-9a-f]{4})?", "four hexadecimal digits")
_BOARD = Text(r"[0-9a-f]{4}:[0-9a-f]{4}", "vendor and device such as 10de:1463")
_UUID = Text(r"[0-9A-Za-z][0-9A-Za-z./_-]{0,95}", "a UUID")
_DRIVER = Text(r"\d{1,4}(\.\d{1,5}){1,3}", "a version such as 595.91.07")
_CAPABILITY = Text(r"\d{1,3}\.\d{1,3}", "a compute capability such as 9.0")
_VERSIONS = Table(_NAME, _NAME, _PACKAGES)

_MIG_DEVICE = Fields({"uuid": Nullable(_UUID), "ci": _MAYBE_NUMBER}, {"profile": _MAYBE_TEXT, **dict.fromkeys(
    ("gi_slices", "ci_slices", "memory_mib", "multiprocessors", "copy", "decoder", "encoder", "jpeg", "ofa"),
    _MAYBE_NUMBER)})
_INSTANCE = Fields({
    "gi": _NUMBER, "profile": _MAYBE_TEXT, "profile_id": _MAYBE_NUMBER, "start": _MAYBE_NUMBER, "size": _MAYBE_NUMBER,
    "uuids": Rows(Nullable(_UUID), _INSTANCES)}, {"devices": Rows(_MIG_DEVICE, _INSTANCES)})
_HEALTH = Fields({
    "ecc": Fields(dict.fromkeys(("volatile", "aggregate"), _MAYBE_NUMBER)), "retired_pages_pending": _MAYBE_FLAG,
    "remapped_rows": Nullable(Fields({"correctable": _NUMBER, "uncorrectable": _NUMBER, "pending": _FLAG,
                                      "failed": _FLAG})),
    "nvlink": Nullable(Fields({"links": _NUMBER, "down": Rows(_NUMBER, MOST_LINKS)})),
    "pcie": Fields(dict.fromkeys(("width", "width_max", "generation", "generation_max"), _MAYBE_NUMBER)),
    "idle": _MAYBE_FLAG, "slowdown": Nullable(Rows(OneOf(tuple(SLOWDOWNS)), len(SLOWDOWNS))),
    "fabric": Nullable(Fields({"state": OneOf(tuple(FABRIC_STATES.values())), "status": _NUMBER})),
    "recovery": Nullable(OneOf(RECOVERY))})
_TIME = Text(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "a time such as 2026-11-27T20:01:02Z")
_GPU = Fields({
    "pci": _PCI, "device_id": _DEVICE, "subsystem": Nullable(_BOARD), "class": _MAYBE_TEXT,
    "model": _MAYBE_TEXT, "architecture": _MAYBE_TEXT, "compute_capability": Nullable(_CAPABILITY),
    "mig_capable": _FLAG, "kernel_driver": _MAYBE_TEXT, "index": _MAYBE_NUMBER, "uuid": Nullable(_UUID),
    "minor": _MAYBE_NUMBER, "serial": _MAYBE_TEXT, "memory_mib": _MAYBE_NUMBER,
    "mig": Nullable(Fields({"enabled": _FLAG, "pending": _FLAG, "instances": Rows(_INSTANCE, _INSTANCES)})),
    "fabric": Nullable(Fields({"cluster": _TEXT, "clique": _NUMBER})), "health": Nullable(_HEALTH),
    "error": Nullable(_LONG)})
_HOST = Fields({
    "hostname": _TEXT, "arch": _TEXT, "machine": _MAYBE_TEXT, "vendor": _MAYBE_TEXT, "virtual": _MAYBE_TEXT,
    "cloud": _MAYBE_TEXT, "secure_boot": _MAYBE_FLAG, "lockdown": _MAYBE_TEXT,
    "mok": Fields({"tool": _FLAG, "enrolled": _MAYBE_FLAG}),
    "os": Fields({"id": _MAYBE_TEXT, "version_id": _MAYBE_TEXT, "codename": _MAYBE_TEXT, "pretty_name": _MAYBE_TEXT,
                  "family": OneOf(("debian", "redhat", "suse", "other"))}),
    "kernel": Fields({"release": _TEXT, "flavour": _MAYBE_TEXT, "headers": _FLAG, "headers_package": _MAYBE_TEXT,
                      "headers_available": _MAYBE_FLAG, "newest_installed": _MAYBE_TEXT}),
    "markers": Fields({"dgx": Nullable(Fields({"name": _MAYBE_TEXT, "version": _MAYBE_TEXT})),
                       "kubernetes": _MAYBE_TEXT, "immutable": _FLAG})})
_RUNTIME = Nullable(Fields({
    "version": _MAYBE_TEXT, "running": _MAYBE_FLAG, "boot": Nullable(OneOf(("yes", "no", "masked"))),
    "stale": _MAYBE_FLAG, "cri": _MAYBE_FLAG, "nvidia": _FLAG,
    "classes": Rows(_TEXT, 1000)}))
_LOST = Nullable(Rows(_LONG, _PACKAGES))
_BOOT = Fields({"pci": _TEXT, "enabled": _FLAG, "instances": Rows(Fields({
    "profile": _TEXT, "start": Number(smallest=-1), "compute": Rows(Rows(_NUMBER, 8), _INSTANCES)}), _INSTANCES)},
    closed=False)

FACTS = Fields({
    "schema": Number(SCHEMA, SCHEMA),
    "host": _HOST,
    "gpus": Rows(_GPU, _GPUS),
    "nvswitches": Rows(Fields({"pci": _PCI, "device_id": _DEVICE}), _GPUS),
    "nvlink": Fields({"switches": _NUMBER, "fabric": OneOf(("none", "nvswitch", "nvlink5", "nvlink5_rack"))}),
    "xids": Nullable(Rows(Fields({"pci": _PCI, "xid": Number(HIGHEST), "count": _NUMBER, "first": _TIME,
                                  "last": _TIME}), MOST_ROWS)),
    "mellanox": _FLAG,
    "vgpu": Nullable(Fields({"version": _MAYBE_TEXT, "branch": _MAYBE_TEXT})),
    "driver": Fields({
        "loaded": Nullable(_DRIVER), "library": Nullable(_DRIVER), "packages": _VERSIONS,
        "flavour": Nullable(OneOf(("open", "proprietary"))),
        "source": Nullable(OneOf(("cuda_repository", "distribution", "runfile", "container", "preinstalled"))),
        "dkms": Rows(Fields({"name": _TEXT, "version": _TEXT, "kernel": _MAYBE_TEXT,
                             "state": OneOf(("installed", "built", "added"))}), _PACKAGES),
        "reboot_pending": _FLAG, "missing_files": _LOST, "nodes": Nullable(Table(_TEXT, _TEXT, _PACKAGES)),
        "services": Nullable(Table(_NAME, Fields({"state": _NAME, "enabled": _NAME}), 64)),
        "nvml": Fields({"available": _FLAG, "error": Nullable(_LONG), "cuda": _MAYBE_TEXT})}),
    "modules": Fields(dict.fromkeys((*MODULES, "nouveau_denied"), _FLAG)),
    "runtimes": Fields(dict.fromkeys(("containerd", "docker", "crio", "podman"), _RUNTIME)),
    "rootless": Table(_TEXT, Fields({"classes": Nullable(Rows(_TEXT, 1000)), "running": _MAYBE_FLAG}), 1000),
    "toolkit": Fields({
        "version": _MAYBE_TEXT, "packages": _VERSIONS, "cdi_specs": Rows(_LONG, _PACKAGES), "missing_files": _LOST,
        "cdi": Nullable(Fields({"devices": Rows(_TEXT, _PACKAGES), "driver": _MAYBE_TEXT}))}),
    "software": Fields({
        "cuda": _VERSIONS,
        "dcgm": Nullable(Fields({"version": _TEXT, "running": _FLAG})),
        "dcgm_exporter": Nullable(Fields({"version": _TEXT, "running": _FLAG, "listen": _TEXT})),
        "node_status_exporter": Nullable(Fields({"running": _FLAG, "folder": _LONG}))}),
    "mig_boot": Fields({"enabled": _FLAG, "masked": _FLAG,
                        "gpus": Nullable(Table(_UUID, _BOOT, _GPUS)), "vendor": _MAYBE_TEXT}),
    "journals": Fields({"brought": Rows(_NAME, 64),
                        "faults": Rows(Fields({"concern": _NAME, "message": _LONG, "hint": _LONG}), 64),
                        "former_driver": Nullable(Fields({
                            "version": _DRIVER, "flavour": Nullable(OneOf(("open", "proprietary"))),
                            "source": OneOf(("cuda_repository", "distribution", "precompiled", "runfile")),
                            "installation": OneOf(("auto", "full", "compute-only"))}))}),
    "clients": Rows(Fields({
        "pid": _MAYBE_NUMBER, "name": _MAYBE_TEXT, "gpu": Nullable(_PCI), "instance": _MAYBE_NUMBER,
        "unit": _MAYBE_TEXT, "container": _MAYBE_TEXT}), _CLIENTS),
})

STEP: dict[str, Shape] = {"id": _LONG, "action": _LONG, "target": _LONG, "reason": _LONG,
                          "needs": OneOf(LEVELS), "assumed": _FLAG}
_PLAN = Rows(Fields(STEP, closed=False), _STEPS)
PENDING = Rows(Fields({**STEP, "pending_reason": _LONG}, closed=False), _STEPS)
_WORDS = Nullable(Text(longest=100_000))
LABELS = Table(Text(longest=320), _NAME, 2_000)

_CLIENT = Fields(optional={**dict.fromkeys(("name", "gpu", "unit", "container"), _MAYBE_TEXT),
                           **dict.fromkeys(("pid", "instance"), _MAYBE_NUMBER)}, closed=False)

# The kind of the error for an invalid result.
KIND = "answer"
# The keys that actions, roles and playbooks read from the results of modules. Other keys are only displayed.
ANSWER: dict[str, Shape] = {
    **dict.fromkeys(("failed", "changed", "unreachable", "skipped"), _FLAG),
    "msg": _WORDS, "plan": _PLAN, "pending": PENDING, "facts": FACTS,
    "error": Fields(dict.fromkeys(("kind", "message", "hint"), _WORDS),
                    dict.fromkeys(("path", "component", "library"), _WORDS), closed=False),
    "components": Table(_NAME, Fields(optional={"plan": _PLAN, "pending": PENDING}, closed=False), 64),
    "samples": Rows(Fields({"gpu": Nullable(_PCI), "device": _MAYBE_TEXT, "state": OneOf(("ok", "busy", "failed")),
                            "reason": _LONG}), _GPUS),
    "reboot_required": _FLAG, "touched": Rows(_NAME, _GPUS), "in_free_space": Rows(_NAME, _GPUS),
    "holders": Rows(_CLIENT, _CLIENTS), "reset": Rows(_NAME, _GPUS), "refused": Rows(_NAME, _GPUS),
    "unanswered": Rows(_PCI, _GPUS),
    "mok": Fields({"enrolled": _MAYBE_FLAG, "pending": _FLAG}, closed=False),
    "evidence": Table(_NAME, Text(longest=100_000), 16),
    "explained": Rows(Fields({"message": _WORDS, "meaning": _LONG, "action": _LONG}), 64),
    "dcgm": Fields({"ran": _FLAG, "passed": _MAYBE_FLAG, "why": _LONG}),
    "started": _FLAG, "slurm_node": Fields({
        "name": _NAME, "states": Rows(_NAME, 64), "reason": _LONG, "jobs": _LONG, "waits": _LONG, "held_by": _LONG,
        **dict.fromkeys(("left", "failed", "responds"), _FLAG)}),
    "labels": LABELS, "unread": Rows(Fields({"gpu": Nullable(_PCI), "error": _WORDS}), _GPUS),
    "diff": Rows(Table(_NAME, Text(longest=16 * 2**20), 16), _STEPS),
}
# The keys of ansible_facts that modules of this collection may set. All other keys are removed.
OWN_FACTS: dict[str, Shape] = {"gpu_labels": LABELS, "gpu_labels_unread": Rows(Nullable(_PCI), _GPUS)}

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds GPU clients: the processes with open files under /dev/nvidia*. PRIVATE to the collection."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

_DEVICE = re.compile(r"^/dev/nvidia(\d{1,9})$")
_CAPABILITY = re.compile(r"^/dev/nvidia-caps/nvidia-cap(\d{1,9})$")
# A line of the driver's table: C(gpu0/gi7/ci0/access 12) has the minor of the GPU, the instance ids, and the minor of
# the capability device.
_MINOR = re.compile(r"^gpu(\d{1,9})/gi(\d{1,9})(?:/ci\d+)?/access (\d{1,9})$", re.M)
_MINORS_TABLE = "/proc/driver/nvidia-caps/mig-minors"
# The control group of a container has its 64 digits: docker-ID.scope, cri-containerd-ID.scope, ID.
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.M)
# The control group of a pod: C(/kubepods/burstable/podUID/...), or C(kubepods-burstable-podUID.slice) with systemd.
_POD_UID = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?![0-9a-f])")
# The kubelet has a log folder C(namespace_name_UID) for each pod.
_POD_LOGS = "/var/log/pods"
_TRANSIENT = "/run/systemd/transient"
# The name of a unit has at most 255 characters (systemd.unit(5)).
# The names of units have these characters (systemd.unit).
_UNIT = re.compile(r"/([A-Za-z0-9:_.\\@-]{1,249}\.(?:service|scope))(?=/|$)", re.M)
# Services that run users' work or must not be stopped: container runtimes, schedulers, job runners, sshd.
_RUNS_USERS_WORK = re.compile(r"(sshd?|dbus(-broker)?|systemd-logind|containerd|docker|crio|kubelet|k3s(-agent)?|"
                              r"rke2-(server|agent)|k0s(worker|controller)|slurmd|pbs(_mom)?|condor|lsfd|sgeexecd.*|"
                              r"gridengine-exec|nomad|crond?|atd|jupyterhub|gitlab-runner|actions\.runner\..*)\.service\Z")


class Client(t.TypedDict):
    """A process with an open NVIDIA device.

    gpu: its PCI address, None if the process has only a control device open; instance: the id of the GPU instance,
    None for the whole GPU.
    """

    pid: int
    name: str
    gpu: str | None
    instance: int | None


def read_clients(root: Root, gpus: t.Mapping[int, str], own_pid: int | None = None) -> list[Client]:
    """The GPU clients, sorted by pid, with an entry for each GPU or GPU instance that a process has open.

    gpus: maps device minors to PCI addresses. own_pid: a process to leave out, by default this one.
    """
    if not any(name.startswith("nvidia") for name in root.names("/dev")):
        return []
    # The devices of a GPU instance and of its compute instances all belong to this GPU instance.
    capabilities = {int(minor): (int(gpu), int(instance))
                    for gpu, instance, minor in _MINOR.findall(root.text(_MINORS_TABLE) or "")}
    clients: list[Client] = []
    for name in root.names("/proc"):
        if name.isdigit() and int(name) != (own_pid or os.getpid()):
            files = [root.link(f"/proc/{name}/fd/{number}") for number in root.names(f"/proc/{name}/fd")]
            held = {path for path in files if path and path.startswith("/dev/nvidia")}
            if held:
                label = root.text(f"/proc/{name}/comm") or "?"
                clients += [{"pid": int(name), "name": label, "gpu": gpu, "instance": instance}
                            for gpu, instance in _open_gpus(held, gpus, capabilities)]
    return sorted(clients, key=by_pid)


def by_pid(client: t.Mapping[str, t.Any]) -> tuple[int, str, int]:
    """The sort key of clients."""
    return client["pid"], client["gpu"] or "", client["instance"] or 0


def owner_of(root: Root, pid: int | None) -> dict[str, str | None]:
    """C({unit, container}) of a process, by its control group: its systemd unit, or 12 digits of its container's id."""
    text = root.text(f"/proc/{pid}/cgroup") or ""
    container = _CONTAINER.search(text)
    if container:
        return {"unit": None, "container": container.group(1)[:12]}
    units = _UNIT.findall(text)
    return {"unit": units[-1] if units else None, "container": None}


def pod_of(root: Root, pid: int | None) -> str | None:
    """The pod of a process by its control group: C(namespace/name), or the UID of the pod if the kubelet has no logs.

    None if the process belongs to no pod.
    """
    text = root.text(f"/proc/{pid}/cgroup") or ""
    found = _POD_UID.search(text)
    if found is None:
        return "of unknown name" if "kubepods" in text else None
    uid = found.group(1).replace("_", "-")
    folders = (name.split("_") for name in root.names(_POD_LOGS))
    return next((f"{folder[0]}/{folder[1]}" for folder in folders if len(folder) == 3 and folder[2] == uid), uid)


def stoppable(root: Root, holders: t.Iterable[t.Mapping[str, t.Any]]) -> tuple[str, ...]:
    """The units of GPU clients that can be stopped and started again: system services that do not run users' work.

    holders: C({pid, unit}) of processes. Transient units (systemd-run) are left out, because they cannot be started
    again.
    """
    found = []
    for holder in holders:
        unit = str(holder["unit"] or "")
        system = ("/user.slice/" not in (root.text(f"/proc/{holder['pid']}/cgroup") or "")
                  and not root.exists(f"{_TRANSIENT}/{unit}"))
        users_work = _RUNS_USERS_WORK.match(unit) or pod_of(root, holder["pid"])
        if unit.endswith(".service") and system and not users_work:
            found.append(unit)
    return tuple(dict.fromkeys(found))


def _open_gpus(held: t.Iterable[str], gpus: t.Mapping[int, str],
               capabilities: t.Mapping[int, t.Tuple[int, int]]) -> list[tuple[str | None, int | None]]:
    """(GPU, GPU instance) of the open devices of a process; (None, None) if it has only control devices open.

    A client of a GPU instance also has the device of the GPU open, which is not listed again.
    """
    full_gpus = {int(found.group(1)) for found in map(_DEVICE.match, held) if found}
    caps = {int(found.group(1)) for found in map(_CAPABILITY.match, held) if found}
    instances = {capabilities[minor] for minor in caps if minor in capabilities}
    found: list[tuple[str | None, int | None]] = [(gpus.get(gpu), instance) for gpu, instance in instances]
    found += [(gpus.get(gpu), None) for gpu in full_gpus - {gpu for gpu, _instance in instances}]
    return found or [(None, None)]

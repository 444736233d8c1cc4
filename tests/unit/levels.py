# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each level of gpu_disruption allows, act by act. test_levels.py in each folder tests the acts of its domain.
tests/integration/test_levels.py tests whole runs of site.yml at each level.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.tests.unit.pages import HOME, rows

LEVELS = ("never", "idle", "drain", "reboot")
YES, NO, REBOOT = "yes", "no", "by a reboot"
ALWAYS = (YES, YES, YES, YES)
IDLE = (NO, YES, YES, YES)
DRAIN = (NO, NO, YES, YES)
ONLY_REBOOT = (NO, NO, NO, REBOOT)
NEVER = (NO, NO, NO, NO)

TABLE: t.Dict[str, t.Dict[str, t.Tuple[str, ...]]] = {
    "driver": {
        "install the first driver and load its modules": ALWAYS,
        "start a service of the driver that should run": ALWAYS,
        "unload nouveau that nothing uses": ALWAYS,
        "unload nouveau that a console or a display uses": ONLY_REBOOT,
        "unload and load the modules while nothing uses a GPU": IDLE,
        "unload and load the modules while a service of the system uses a GPU": DRAIN,
        "unload and load the modules while a container, a session or another process uses a GPU": ONLY_REBOOT,
        "stop or restart the fabric manager or IMEX while nothing uses a GPU": IDLE,
        "stop or restart the fabric manager or IMEX while a service of the system uses a GPU": DRAIN,
        "stop or restart the fabric manager or IMEX while another process uses a GPU": NEVER,
        "replace the driver while its key waits for the console": NEVER,
        "remove the driver while nothing uses a GPU": IDLE,
        "remove the driver while a service of the system uses a GPU": DRAIN,
        "remove the driver while another process uses a GPU": NEVER,
    },
    "mig": {
        "create instances in free space, also if other instances are busy": ALWAYS,
        "destroy an idle instance": IDLE,
        "destroy an instance that a service or another process of the host uses": DRAIN,
        "destroy an instance that a pod uses": NEVER,
        "change the MIG mode of an idle GPU": IDLE,
        "change the MIG mode of a GPU that a process of the host has open": DRAIN,
        "change the MIG mode of a GPU that a pod has open": NEVER,
        "reset an idle GPU": IDLE,
        "reset a GPU that a process of the host has open": DRAIN,
        "reset a GPU that a pod has open": NEVER,
        "change a MIG mode that only a reboot applies": ONLY_REBOOT,
    },
    "settings": {
        "set the persistence mode": ALWAYS,
        "prepare another ECC mode": ALWAYS,
        "set a limit of power or clocks": ALWAYS,
        "allow more processes on a GPU": ALWAYS,
        "allow only as many processes as use the GPU": ALWAYS,
        "forbid more processes while the GPU is idle": ALWAYS,
        "forbid processes that use the GPU to open it again": DRAIN,
    },
    "toolkit": {
        "restart containerd, also that of MicroK8s": ALWAYS,
        "restart or reload CRI-O": ALWAYS,
        "reload Docker": ALWAYS,
        "restart Docker with live-restore": ALWAYS,
        "restart Docker without live-restore and without containers": IDLE,
        "restart Docker without live-restore and with containers": DRAIN,
        "restart Docker if it does not answer": DRAIN,
        "restart an agent of k3s or RKE2": ALWAYS,
        "restart a server of k3s or RKE2": IDLE,
    },
    "software": {
        "restart DCGM or an exporter": ALWAYS,
    },
    "cluster": {
        "delete the DaemonSet of the MPS daemon without pods": ALWAYS,
        "delete the DaemonSet of the MPS daemon with pods": DRAIN,
        "pause the MPS daemon of a Node without GPU pods": IDLE,
        "pause the MPS daemon of a Node with GPU pods": DRAIN,
        "remove the deploy label by which a driver pod runs": DRAIN,
        "start the MIG manager on a Node that requests a layout": IDLE,
        "restart an outdated MIG manager": IDLE,
        "delete Node Feature Discovery while a driver selects its Nodes by its labels": DRAIN,
    },
}


def cases(domain: str) -> list[tuple[str, str, str]]:
    """C([(act, level, what the table says)]) for a domain."""
    return [(act, level, said) for act, row in TABLE[domain].items() for level, said in zip(LEVELS, row)]


def on_page(page: str) -> dict[str, tuple[str, ...]]:
    """The same table from a page of docs/, between its marks C(levels)."""
    return {act: tuple(said) for act, *said in rows((HOME / "docs" / page).read_text(encoding="utf-8"), "levels")}

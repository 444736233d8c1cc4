# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notes about the variables C(gpu_*) that have no effect because of gpu_placement. Pure. PRIVATE.

Those of roles, such as driver_version, are in the plan of the hosts (L(resolve)), gpu_sharing in both plans.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.find import Variables

OF_HOSTS = ("gpu_settings",)
OF_CLUSTERS = ("gpu_render_to", "gpu_monitoring", "gpu_startup_taint", "gpu_check_pods", "gpu_check_metrics",
               "gpu_image_registry", "gpu_pull_secrets", "gpu_node_os", "gpu_mig_layout")
# The maximum number of hosts that a note names.
_SHOWN = 20


def notes(play: t.Mapping[str, Variables], hosts: t.Iterable[str], placement: t.Mapping[str, str]) -> list[str]:
    """The notes. play: the variables of the hosts of the play, by host; hosts: those that do not only represent a
    cluster; placement: the placements of all components."""
    places = set(placement.values())
    found = []
    if not {"host", "hybrid"} & places:
        for name in OF_HOSTS:
            having = [host for host in hosts if host in play and play[host].get(name) not in (None, "")]
            why = "no effect in site: nothing is delivered on hosts"
            found += [f"{some_of(having, _SHOWN)}: {name}: {why}."] if having else []
    if not {"cluster", "hybrid"} & places:
        named = [name for name in OF_CLUSTERS if any(
            # With a kubeconfig, gpu_render_to limits what may happen to hosts that are Nodes.
            mine.get(name) and not (name == "gpu_render_to" and mine.get("gpu_kubeconfig")) for mine in play.values())]
        found += [f"{', '.join(named)}: no effect: nothing is delivered in a cluster."] if named else []
    return found

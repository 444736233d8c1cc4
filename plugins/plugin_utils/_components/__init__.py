# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The components: what each needs on a host and in a cluster, and whether it is as planned. PRIVATE.

One file has all that planning and verification know of one component. L(_data.components) has their order, and what
the inventory may say of them.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import (
    container_toolkit,
    cuda,
    dcgm,
    dcgm_exporter,
    device_plugin,
    driver,
    feature_discovery,
    mig_manager,
    nfd,
    node_status_exporter,
    validator,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import Component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components

BY_NAME: t.Mapping[str, Component] = {component.name: component for component in (
    container_toolkit.COMPONENT, cuda.COMPONENT, dcgm.COMPONENT, dcgm_exporter.COMPONENT, device_plugin.COMPONENT,
    driver.COMPONENT, feature_discovery.COMPONENT, mig_manager.COMPONENT, nfd.COMPONENT, node_status_exporter.COMPONENT,
    validator.COMPONENT)}
# In the order of the one ordered list.
COMPONENTS: t.Tuple[Component, ...] = tuple(BY_NAME[name] for name in components.NAMES)
IN_CLUSTERS: t.Tuple[Component, ...] = tuple(BY_NAME[entry.name] for entry in components.IN_CLUSTERS)
ON_HOSTS: t.Tuple[Component, ...] = tuple(BY_NAME[entry.name] for entry in components.ON_HOSTS)

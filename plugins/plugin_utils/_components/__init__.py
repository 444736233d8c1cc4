# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The components. Each file contains the plans of one component, on a host and in a cluster, and its check. PRIVATE.

L(_data.components) contains the order of the components and their variables.
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
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Value

BY_NAME: t.Mapping[str, Component[Value]] = {component.name: component for component in (
    container_toolkit.COMPONENT, cuda.COMPONENT, dcgm.COMPONENT, dcgm_exporter.COMPONENT, device_plugin.COMPONENT,
    driver.COMPONENT, feature_discovery.COMPONENT, mig_manager.COMPONENT, nfd.COMPONENT, node_status_exporter.COMPONENT,
    validator.COMPONENT)}
COMPONENTS: t.Tuple[Component[Value], ...] = tuple(BY_NAME[name] for name in components.NAMES)
IN_CLUSTERS: t.Tuple[Component[Value], ...] = tuple(BY_NAME[entry.name] for entry in components.IN_CLUSTERS)
ON_HOSTS: t.Tuple[Component[Value], ...] = tuple(BY_NAME[entry.name] for entry in components.ON_HOSTS)

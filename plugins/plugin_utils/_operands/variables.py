# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets the environment variables of the policy, which replace variables of the template. Pure. PRIVATE."""

from __future__ import annotations

import hashlib
import json
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MPS_DAEMON, Object

Plan = t.Mapping[str, t.Any]

# The variable with the digest of all fields on which the installation of the driver depends.
DRIVER_DIGEST = "DRIVER_CONFIG_DIGEST"
_DRIVER_FOLDER = "/run/nvidia/driver"  # on the host, if the policy sets no other folder


def set_variables(manifest: Object, plan: Plan, common: Plan) -> None:
    """Sets the variables of all containers of a DaemonSet.

    The variables of a component are for its first container. The MPS daemon does not get the variables of the device
    plugin, to which it belongs.
    """
    spec = manifest["spec"]["template"]["spec"]
    if manifest["metadata"]["name"] != MPS_DAEMON:
        _set(spec["containers"][0], plan["env"])
    folders = {volume["name"] for volume in spec["volumes"]}
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        check, _dash, kind = container["name"].rpartition("-")
        if kind == "validation":
            _set(container, common["validation"]["env"].get(check, {}))
        if container["name"] == "k8s-driver-manager":
            _set(container, plan["manager_env"])
        if "host-root" in folders and common["host_root"] != "/":
            _set(container, {"HOST_ROOT": common["host_root"]})
        folder = common["driver_install_dir"]
        if "driver-install-dir" in folders and container["name"] == "driver-validation" and folder != _DRIVER_FOLDER:
            _set(container, {"DRIVER_INSTALL_DIR": folder, "DRIVER_INSTALL_DIR_CTR_PATH": folder})
    _driver_digest(spec)


def _set(container: Object, variables: t.Mapping[str, str]) -> None:
    """Sets variables of a container. A variable that it already has is replaced at the same position."""
    if not variables:
        return
    items = container.setdefault("env", [])
    places = {item["name"]: index for index, item in enumerate(items)}
    for name, value in variables.items():
        item = {"name": name, "value": value}
        if name in places:
            items[places[name]] = item
        else:
            items.append(item)


def _driver_digest(spec: Object) -> None:
    """Sets the digest of the driver's installation. The driver manager reinstalls the driver only if it changes."""
    holders = [item for container in [*spec["containers"], *spec.get("initContainers", ())]
               for item in container.get("env", ()) if item["name"] == DRIVER_DIGEST]
    if not holders:
        return
    content = [[container.get(key) for key in ("name", "image", "command", "args", "env", "envFrom", "volumeMounts")]
               for container in spec["containers"]]
    text = json.dumps([content, spec["volumes"]], sort_keys=True)
    for item in holders:
        item["value"] = hashlib.sha256(text.encode()).hexdigest()[:16]

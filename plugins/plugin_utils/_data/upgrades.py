# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The labels and annotations of the GPU Operator for driver upgrades. Pure. PRIVATE.

Source: GPU Operator 26.7 and k8s-operator-libs (pkg/upgrade). The operator and this collection can each continue an
upgrade that the other one has started.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import label_keys

# The label of a Node with its state, and the states.
STATE = label_keys.UPGRADE_STATE
REQUIRED = "upgrade-required"
CORDON = "cordon-required"
WAIT = "wait-for-jobs-required"
POD_DELETION = "pod-deletion-required"
DRAIN = "drain-required"
POD_RESTART = "pod-restart-required"
VALIDATION = "validation-required"
UNCORDON = "uncordon-required"
DONE = "upgrade-done"
FAILED = "upgrade-failed"
# The states in which a Node is cordoned for its upgrade.
CORDONED = (WAIT, POD_DELETION, DRAIN, POD_RESTART, VALIDATION, UNCORDON)
IN_PROGRESS = (CORDON, *CORDONED)
# Those of an upgrade that was begun and has not come to its end.
UNFINISHED = (*IN_PROGRESS, FAILED)

# Labels that users set: on a Node that is not upgraded, and on a pod that a drain does not evict.
SKIP = "nvidia.com/gpu-driver-upgrade.skip"
DRAIN_SKIP = "nvidia.com/gpu-driver-upgrade-drain.skip"

# Annotations of a Node: a user requests an upgrade; the Node was cordoned before the upgrade; a new driver waits until
# it may be loaded; since when the upgrade waits for jobs and for the validator, in seconds since 1970.
REQUESTED = "nvidia.com/gpu-driver-upgrade-requested"
CORDONED_BEFORE = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
SAFE_LOAD = "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load"
WAITING_SINCE = "nvidia.com/gpu-driver-upgrade-wait-for-pod-completion-start-time"
VALIDATING_SINCE = "nvidia.com/gpu-driver-upgrade-validation-start-time"

#!/bin/sh
# Waits for a validated driver, takes its place on the node from the barrier file, and starts the MIG manager.
set -eu

ready=/run/nvidia/validations/driver-ready
while [ ! -f "$ready" ]; do
    echo "waiting for $ready"
    sleep 5
done
cat "$ready"
set -a
# shellcheck source=/dev/null
. "$ready"
set +a

# With a driver of the host its GPU clients are systemd units, which must stop while MIG mode changes.
export WITH_SHUTDOWN_HOST_GPU_CLIENTS="${IS_HOST_DRIVER:-false}"

# A node has its toolkit from the DaemonSet or from its own packages.
hook="${NVIDIA_CDI_HOOK_PATH:-}"
if [ -n "$hook" ] && [ ! -x "/host$hook" ] && [ -x /host/usr/bin/nvidia-cdi-hook ]; then
    export NVIDIA_CDI_HOOK_PATH=/usr/bin/nvidia-cdi-hook
fi

exec nvidia-mig-manager

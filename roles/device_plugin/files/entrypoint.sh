#!/bin/sh
# Waits for a validated driver, takes its place on the node from the barrier file, and starts the device plugin.
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

loaded() {
    [ -d "/sys/module/$1" ]
}

# What the policy does not say follows from the modules that are loaded.
if loaded gdrdrv; then
    export GDRCOPY_ENABLED="${GDRCOPY_ENABLED:-true}"
fi
if loaded nvidia_fs; then
    export GDS_ENABLED="${GDS_ENABLED:-true}" MOFED_ENABLED="${MOFED_ENABLED:-true}"
fi

# A node has its toolkit from the DaemonSet or from its own packages.
hook="${NVIDIA_CDI_HOOK_PATH:-}"
if [ -n "$hook" ] && [ ! -x "/host$hook" ] && [ -x /host/usr/bin/nvidia-cdi-hook ]; then
    export NVIDIA_CDI_HOOK_PATH=/usr/bin/nvidia-cdi-hook
fi

exec nvidia-device-plugin

#!/bin/sh
# Startup probe of the driver container: the kernel module is loaded, the daemons (where the container reports them) are
# up, and nvidia-smi works. Then it writes the barrier file for which the rest of the node waits.
set -eu

validations=/run/nvidia/validations

fail() {
    echo "$1"
    exit 1
}

[ -f /sys/module/nvidia/refcnt ] || fail "kernel module nvidia is not loaded"

# Driver images before 26.7 do not write this file.
if [ -f "$validations/.driver-daemons-status" ]; then
    read -r status <"$validations/.driver-daemons-status" || true
    [ "${status:-}" = Ready ] || fail "driver daemons: ${status:-unknown}"
fi

nvidia-smi || fail "nvidia-smi failed"

mkdir -p "$validations"
# The name appears only when the content is whole.
cat >"$validations/.driver-ctr-ready.new" <<EOF
GDRCOPY_ENABLED: ${GDRCOPY_ENABLED:-false}
GDS_ENABLED: ${GDS_ENABLED:-false}
GPU_DIRECT_RDMA_ENABLED: ${GPU_DIRECT_RDMA_ENABLED:-false}
EOF
mv "$validations/.driver-ctr-ready.new" "$validations/.driver-ctr-ready"

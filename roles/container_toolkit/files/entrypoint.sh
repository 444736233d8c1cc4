#!/bin/sh
# Waits for a validated driver, reads its location on the node from the barrier file, and installs the toolkit.
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

# containerd from 1.6.9 on sends SIGTERM to a container that starts just after its own restart.
sleep 5

exec nvidia-toolkit

# shellcheck shell=sh
# Stand-in of nvidia-imex: it runs with the driver of its own version, when it is told which nodes there are.
if [ "$1" = --version ]; then echo "IMEX version is: @VERSION@"; exit 0; fi
grep -q ' @VERSION@ ' /proc/driver/nvidia/version 2>/dev/null || { echo "the driver is not @VERSION@" >&2; exit 1; }
grep -q '^[0-9a-f]' /etc/nvidia-imex/nodes_config.cfg || { echo "no nodes are configured" >&2; exit 1; }
exec sleep infinity

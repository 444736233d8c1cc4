# shellcheck shell=sh
# Stand-in of the hook of the legacy mode: a container that asks for GPUs that way is told so.
case "$1" in
    -version | --version) echo "NVIDIA Container Runtime Hook version @VERSION@" ;;
    prestart)
        grep -qs 'NVIDIA_VISIBLE_DEVICES=[^v"]' || exit 0
        echo "nvidia-container-runtime-hook: the lab does not simulate the legacy mode; use CDI" >&2
        exit 1
        ;;
esac

# shellcheck shell=sh
# Stand-in: says its version; the legacy mode, which needs a real one, is not simulated.
case "$1" in
    -V | --version | version) echo "cli-version: @VERSION@" && echo "lib-version: @VERSION@" ;;
    *)
        echo "nvidia-container-cli: the lab does not simulate the legacy mode; use CDI" >&2
        exit 1
        ;;
esac

# shellcheck shell=sh
# Stand-in of nvidia-modprobe: loads what the options name (nvidia-modprobe -h: -u unified memory, -m modeset).
/sbin/modprobe nvidia || exit 1
for option; do
    case "$option" in
        -u | --unified-memory | -u=* | --unified-memory=*) /sbin/modprobe nvidia-uvm || exit 1 ;;
        -m | --modeset) /sbin/modprobe nvidia-modeset || exit 1 ;;
    esac
done

# shellcheck shell=sh
# Stand-in of nvidia-modprobe: loads what the options name and, where a real kernel has the vendor's devices, makes their
# nodes (nvidia-modprobe -h: -c a device's minor, -u unified memory, -m modeset).
/sbin/modprobe nvidia || exit 1
node() { # node DEVICE MINOR NAME: with the major number that /proc/devices gives the device
    major=$(sed -n "s/^ *\\([0-9]*\\) $1\$/\\1/p" /proc/devices)
    [ -n "$major" ] || return 0
    if [ "$(stat -c %t:%T "/dev/$3" 2>/dev/null)" != "$(printf %x:%x "$major" "$2")" ]; then
        rm -f "/dev/$3"
        mknod -m 666 "/dev/$3" c "$major" "$2"
    fi
}
minors=
for option; do
    case "$option" in
        -c?*) minors="$minors ${option#-c}" ;;
        -u | --unified-memory | -u=* | --unified-memory=*)
            /sbin/modprobe nvidia-uvm || exit 1
            node nvidia-uvm 0 nvidia-uvm ;;
        -m | --modeset) /sbin/modprobe nvidia-modeset || exit 1 ;;
    esac
done
for minor in $minors; do
    node nvidia-frontend "$minor" "nvidia$minor"
    node nvidia-frontend 255 nvidiactl
done

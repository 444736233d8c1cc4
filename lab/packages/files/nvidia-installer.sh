# shellcheck shell=sh
# Stand-in of nvidia-installer: the options, steps, records and exit codes that scripts meet (NVIDIA/nvidia-installer).
# Called as nvidia-uninstall it removes what it recorded.
VERSION=@VERSION@
RECORD=/var/lib/nvidia
MODULES="nvidia nvidia-uvm nvidia-modeset nvidia-drm nvidia-peermem"
LIBRARIES=/usr/lib/x86_64-linux-gnu
here=$(cd "$(dirname "$0")" && pwd)

action=install silent='' type='' dkms='' load=yes unload=yes modules=yes only_modules='' force_running=''
check_alternate=yes nouveau=yes modprobe=yes initramfs='' peermem=yes drm=yes uvm=yes
kernel=$(uname -r) log=/var/log/nvidia-installer.log
[ "$(basename "$0")" = nvidia-uninstall ] && action=uninstall

say() {
    echo "$1"
    [ -w "$(dirname "$log")" ] && echo "-> $1" >>"$log"
    return 0
}

fail() {
    echo "ERROR: $1" >&2
    [ -w "$(dirname "$log")" ] && echo "ERROR: $1" >>"$log"
    exit 1
}

# The type that suits the GPUs: proprietary as soon as one needs it, or where there is none that can use the open one.
recommended() {
    answer=proprietary
    for device in /sys/bus/pci/devices/*; do
        [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
        case "$(cat "$device/class")" in 0x03*) ;; *) continue ;; esac
        if [ "$(($(cat "$device/device")))" -ge "$((0x1e00))" ]; then
            answer=open
        else
            answer=proprietary
            break
        fi
    done
    echo "$answer"
}

unload_modules() {
    for module in nvidia_peermem nvidia_uvm nvidia_drm nvidia_modeset nvidia; do
        [ ! -e "/sys/module/$module" ] || /sbin/modprobe -r "$module" 2>/dev/null || return 1
    done
}

# put SOURCE TARGET MODE: installs a file and records it, kept from before where there was one.
put() {
    if [ -e "$2" ] && ! grep -qsx "1: $2" "$RECORD/log"; then
        mkdir -p "$RECORD/backup$(dirname "$2")"
        mv "$2" "$RECORD/backup$2"
        echo "2: $2" >>"$RECORD/log"
    fi
    for parent in "$(dirname "$(dirname "$(dirname "$2")")")" "$(dirname "$(dirname "$2")")" "$(dirname "$2")"; do
        [ -d "$parent" ] || { mkdir -p "$parent" && echo "$parent" >>"$RECORD/dirs"; }
    done
    echo "1: $2" >>"$RECORD/log"
    if [ "$3" = link ]; then ln -sfn "$1" "$2"; else install -m "$3" "$1" "$2"; fi || undo "Unable to install '$2'."
}

need_headers() {
    [ -e "/lib/modules/$kernel/build/include" ] ||
        fail "Unable to find the kernel source tree for kernel $kernel. Please make sure its headers are installed."
}

put_modules() {
    source=$here/kernel
    [ "${type:-$(recommended)}" != open ] || source=$here/kernel-open
    if [ "$dkms" = yes ]; then
        for file in dkms.conf $(for module in $MODULES; do echo "prebuilt/$module.ko"; done); do
            put "$source/$file" "/usr/src/nvidia-$VERSION/$file" 644
        done
        { dkms add "nvidia/$VERSION" && dkms build "nvidia/$VERSION" -k "$kernel" &&
            dkms install "nvidia/$VERSION" -k "$kernel" --force; } >>"$log" 2>&1 ||
            say "WARNING: the kernel modules could not be registered with DKMS; see $log."
    fi
    for module in $MODULES; do
        case "$module" in
            nvidia-uvm) [ "$uvm" = yes ] || continue ;;
            nvidia-drm) [ "$drm" = yes ] || continue ;;
            nvidia-peermem) [ "$peermem" = yes ] || continue ;;
        esac
        put "$source/prebuilt/$module.ko" "/lib/modules/$kernel/kernel/drivers/video/$module.ko" 644
    done
    depmod -a "$kernel" 2>>"$log"
}

uninstall() {
    [ -e "$RECORD/log" ] || fail "There is no NVIDIA driver installed that this program knows of ($RECORD/log is missing)."
    if [ "$unload" = yes ] && ! unload_modules; then
        fail "An NVIDIA kernel module 'nvidia' appears to be in use; end its users, or pass --skip-module-unload."
    fi
    version=$(sed -n 's/^version: //p' "$RECORD/log")
    command -v dkms >/dev/null && [ -d "/var/lib/dkms/nvidia/$version" ] && dkms remove "nvidia/$version" --all >>"$log" 2>&1
    sed -n 's/^1: //p' "$RECORD/log" | while read -r path; do rm -f "$path"; done
    sed -n 's/^2: //p' "$RECORD/log" | while read -r path; do mv "$RECORD/backup$path" "$path"; done
    [ ! -e "$RECORD/dirs" ] || sort -ru "$RECORD/dirs" | while read -r path; do rmdir "$path" 2>/dev/null; done
    rm -rf "$RECORD"
    for folder in /lib/modules/*; do [ ! -d "$folder" ] || depmod -a "$(basename "$folder")" 2>>"$log"; done
    ldconfig
    say "Uninstallation of the existing driver, NVIDIA Accelerated Graphics Driver for Linux-x86_64 ($version), is complete."
}

# undo MESSAGE: takes back what this run has installed, and fails.
undo() {
    (unload='' && uninstall) >/dev/null
    fail "$1"
}

install_driver() {
    [ "$check_alternate" = yes ] && [ -e /usr/lib/nvidia/alternate-install-present ] &&
        fail "The installation was canceled due to the availability or presence of an alternate driver installation."
    if [ -z "$force_running" ] && [ -z "$only_modules" ] && ! unload_modules; then
        fail "An NVIDIA kernel module 'nvidia' appears to be already loaded in your kernel. Exit its users and try again."
    fi
    [ "$modules" != yes ] || need_headers
    if [ -n "$only_modules" ]; then
        grep -qsx "version: $VERSION" "$RECORD/log" || fail "Driver $VERSION is not installed: kernel modules alone cannot be."
        put_modules
        return
    fi
    if [ -e "$RECORD/log" ]; then (unload='' && uninstall) || exit 1; fi
    mkdir -p "$RECORD"
    echo "version: $VERSION" >"$RECORD/log"
    for name in libnvidia-ml libcuda libnvidia-ptxjitcompiler; do
        put "$here/$name.so" "$LIBRARIES/$name.so.$VERSION" 755
        put "$name.so.$VERSION" "$LIBRARIES/$name.so.1" link
    done
    put "$here/nvidia-smi" /usr/bin/nvidia-smi 755
    put "$here/nvidia-persistenced" /usr/bin/nvidia-persistenced 755
    [ "$modprobe" != yes ] || put "$here/nvidia-modprobe" /usr/bin/nvidia-modprobe 4755
    put "$here/nvidia-installer" /usr/bin/nvidia-installer 755
    put nvidia-installer /usr/bin/nvidia-uninstall link
    for chip in tu10x ga10x; do put "$here/firmware/gsp_$chip.bin" "/lib/firmware/nvidia/$VERSION/gsp_$chip.bin" 644; done
    if [ "$nouveau" = yes ]; then
        for folder in /etc/modprobe.d /usr/lib/modprobe.d; do
            put "$here/disable-nouveau.conf" "$folder/nvidia-installer-disable-nouveau.conf" 644
        done
    fi
    ldconfig
    [ "$modules" != yes ] || put_modules
    if [ "$modules" = yes ] && [ "$load" = yes ] && [ "$kernel" = "$(uname -r)" ]; then
        for module in nvidia nvidia-uvm nvidia-modeset; do
            /sbin/modprobe "$module" >>"$log" 2>&1 || undo "Unable to load the kernel module '$module.ko'. See $log."
        done
    fi
    [ "$initramfs" != yes ] || update-initramfs -u >>"$log" 2>&1 || say "WARNING: the initramfs could not be rebuilt."
    say "Installation of the NVIDIA Accelerated Graphics Driver for Linux-x86_64 (version: $VERSION) is now complete."
}

sanity() {
    [ -e "$RECORD/log" ] || fail "There is no NVIDIA driver installed that this program knows of."
    sed -n 's/^1: //p' "$RECORD/log" | while read -r path; do
        [ -e "$path" ] || { echo "ERROR: '$path' is missing." >&2 && exit 1; }
    done || exit 1
    echo "'NVIDIA Accelerated Graphics Driver for Linux-x86_64' sanity check passed."
}

set_type() {
    case "$1" in
        open | kernel-open) type=open ;;
        proprietary | kernel) type=proprietary ;;
        *) fail "Invalid kernel module type '$1'. Valid: open, proprietary." ;;
    esac
}

while [ $# -gt 0 ]; do
    # --option=value and --option value are the same.
    option=$1 value=
    shift
    case "$option" in
        --*=*) value=${option#*=} option=${option%%=*} ;;
        -[Mmk]=*) value=${option#*=} option=${option%%=*} ;;
        --ui | --kernel-module-type | -M | --kernel-module-build-directory | -m | --kernel-name | -k | --log-file-name | \
            --module-signing-* | --concurrency-level | -j | --tmpdir | --kernel-source-path | --kernel-install-path | \
            --utility-prefix | --x-prefix | --opengl-prefix | --compat32-prefix)
            [ $# -gt 0 ] || fail "The option '$option' needs a value."
            value=$1
            shift
            ;;
    esac
    case "$option" in
        --silent | -s) silent=yes ;;
        --no-questions | -q) ;;
        --ui) [ "$value" != none ] || silent=yes ;;
        --kernel-module-type | -M | --kernel-module-build-directory | -m) set_type "$value" ;;
        --kernel-name | -k) kernel=$value ;;
        --log-file-name) log=$value ;;
        --dkms) dkms=yes ;;
        --no-dkms) dkms= ;;
        --skip-module-load) load= ;;
        --skip-module-unload) unload= ;;
        --rebuild-initramfs) initramfs=yes ;;
        --no-rebuild-initramfs) initramfs= ;;
        --allow-installation-with-running-driver) force_running=yes ;;
        --no-allow-installation-with-running-driver) force_running= ;;
        --no-kernel-modules | --no-kernel-module) modules= ;;
        --kernel-modules-only | --kernel-module-only | -K) only_modules=yes ;;
        --no-drm) drm= ;;
        --no-peermem) peermem= ;;
        --no-unified-memory) uvm= ;;
        --no-check-for-alternate-installs) check_alternate= ;;
        --disable-nouveau | -Z) nouveau=yes ;;
        --no-disable-nouveau) nouveau= ;;
        --no-nvidia-modprobe) modprobe= ;;
        --uninstall) action=uninstall ;;
        --sanity) action=sanity ;;
        --driver-info | -i) action=info ;;
        --print-recommended-kernel-module-type) action=recommend ;;
        --version | -v) echo "nvidia-installer:  version $VERSION" && exit 0 ;;
        --help | -h | --advanced-options | -A)
            echo "nvidia-installer: see the README of the driver; this is the lab's stand-in." && exit 0
            ;;
        # Known to the vendor's, without an effect here.
        --accept-license | -a | --no-cc-version-check | --no-network | -N | --no-opengl-files | --no-install-compat32-libs | \
            --no-nouveau-check | -z | --no-backup | -b | --systemd | --no-systemd | --expert | -e | --no-x-check | \
            --no-install-libglvnd | --no-wine-files | --no-libglx-indirect | --module-signing-* | --concurrency-level | -j | \
            --tmpdir | --kernel-source-path | --kernel-install-path | --utility-prefix | --x-prefix | --opengl-prefix | \
            --compat32-prefix | --no-precompiled-interface | -n | --no-runlevel-check | --no-recursion | \
            --run-nvidia-xconfig | -X | --no-distro-scripts | --force-libglx-indirect | --install-compat32-libs) ;;
        *) fail "unrecognized option: '$option'. Invalid commandline, please run with --help for usage information." ;;
    esac
done

case "$action" in
    recommend) recommended && exit 0 ;;
    sanity) sanity && exit 0 ;;
    info)
        [ -e "$RECORD/log" ] || fail "There is no NVIDIA driver currently installed."
        echo "The currently installed driver is: 'NVIDIA Accelerated Graphics Driver for Linux-x86_64' (version: $(
            sed -n 's/^version: //p' "$RECORD/log"))." && exit 0
        ;;
esac
[ "$(id -u)" = 0 ] || fail "nvidia-installer must be run as root"
[ -n "$silent" ] || [ "$action" = uninstall ] || fail "This stand-in asks no questions: pass --silent."
[ "$action" = uninstall ] && [ "$log" = /var/log/nvidia-installer.log ] && log=/var/log/nvidia-uninstall.log
: >"$log" || fail "The log $log cannot be written."
if [ "$action" = uninstall ]; then uninstall; else install_driver; fi

# shellcheck shell=sh
# Stand-in of nvidia-installer: the options of its branch, the order of its work, its record of files and its exit codes
# (NVIDIA/nvidia-installer 470.256.02 to 590.48.01). Called as nvidia-uninstall it removes what it recorded.
# /run/kill-installer may hold a point of the work (built, cleared, registered, half): everything up to sshd is killed there.
umask 022
VERSION=@VERSION@
RECORD=/var/lib/nvidia
MODULES="nvidia nvidia-uvm nvidia-modeset nvidia-drm nvidia-peermem"
UNLOAD="nvidia_peermem nvidia_uvm nvidia_drm nvidia_modeset nvidia"
LIBRARIES=/usr/lib/x86_64-linux-gnu
DESCRIPTION="NVIDIA Accelerated Graphics Driver for Linux-x86_64"
here=$(cd "$(dirname "$0")" && pwd)

action=install silent='' type='' dkms='' load=yes unload=yes modules=yes only_modules='' force_running=''
check_alternate=yes check_nouveau=yes nouveau=yes modprobe=yes initramfs='' peermem=yes drm=yes uvm=yes
kernel=$(uname -r) named='' log='' built='' key='' certificate=''
[ "$(basename "$0")" = nvidia-uninstall ] && action=uninstall

say() {
    [ -z "$log" ] || echo "-> $1" >>"$log"
    [ -n "$silent" ] || echo "$1"
}

warn() {
    [ -z "$log" ] || echo "WARNING: $1" >>"$log"
    echo "WARNING: $1" >&2
}

fail() {
    echo "ERROR: $1" >&2
    if [ -n "$log" ]; then
        echo "ERROR: $1" >>"$log"
        echo "ERROR: Installation has failed.  Please see the file '$log' for details." >&2
    fi
    rm -rf "$built"
    exit 1
}

# Whether this branch is that of a version, or a later one.
since() { [ "$(printf '%s\n%s\n' "$1" "$VERSION" | sort -V | head -n 1)" = "$1" ]; }

unknown() {
    echo "nvidia-installer: unrecognized option: '$1'" >&2
    echo "ERROR: Invalid commandline, please run \`$0 --help\` for usage information." >&2
    exit 1
}

crc() { cksum <"$1" | cut -d ' ' -f 1; }

kill_at() {
    [ "$(cat /run/kill-installer 2>/dev/null)" = "$1" ] || return 0
    rm -f /run/kill-installer
    victims='' pid=$$
    while [ "$pid" -gt 1 ] && [ "$(cat "/proc/$pid/comm")" != sshd ]; do
        victims="$victims $pid"
        pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
    done
    # shellcheck disable=SC2086
    kill -9 $victims
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

nouveau_drives() { find /sys/bus/pci/devices/*/driver -maxdepth 0 -lname '*/nouveau' 2>/dev/null | grep -q .; }

unload_modules() {
    for module in $UNLOAD; do
        [ ! -e "/sys/module/$module" ] || /sbin/rmmod "$module" 2>>"$log" || return 1
    done
}

# folder PATH: makes a folder and its parents, each recorded.
folder() {
    [ ! -d "$1" ] || return 0
    folder "$(dirname "$1")"
    mkdir "$1" && echo "$1" >>"$RECORD/dirs"
}

# put SOURCE TARGET MODE: installs a file, or by the mode "link" a link to SOURCE; what stood there is kept.
put() {
    if [ -L "$2" ]; then
        printf '2: %s\n%s\n%s\n' "$2" "$(readlink "$2")" "$(stat -c '0%a %u %g' "$2")" >>"$RECORD/log"
        rm "$2"
    elif [ -e "$2" ]; then
        number=$(($(find "$RECORD" -name '1[0-9][0-9]' | wc -l) + 100))
        printf '%s: %s\n%s %s\n' "$number" "$2" "$(crc "$2")" "$(stat -c '0%a %u %g' "$2")" >>"$RECORD/log"
        mv "$2" "$RECORD/$number"
    fi
    folder "$(dirname "$2")"
    if [ "$3" = link ]; then
        ln -s "$1" "$2" && printf '0: %s\n%s\n' "$2" "$1" >>"$RECORD/log"
    else
        install -m "$3" "$1" "$2" && printf '1: %s\n%s\n' "$2" "$(crc "$2")" >>"$RECORD/log"
    fi || fail "Unable to install '$2'."
}

check_tools() {
    for tool in cc:gcc make:make ld:binutils tr:coreutils sed:sed; do
        command -v "${tool%%:*}" >/dev/null || fail "Unable to find the development tool \`${tool%%:*}\` in your path; \
please make sure that you have the package '${tool##*:}' installed."
    done
    [ -e /usr/include/stdio.h ] || fail "You do not appear to have libc header files installed on your system."
}

# Not in the record: the vendor's does not take these files away again either.
deny_nouveau() {
    for place in /etc/modprobe.d /usr/lib/modprobe.d; do
        [ ! -d "$place" ] || cp "$here/disable-nouveau.conf" "$place/nvidia-installer-disable-nouveau.conf"
    done
}

build() {
    [ -e "/lib/modules/$kernel/build/include" ] || fail "Unable to find the kernel source tree for the currently running \
kernel.  Please make sure you have installed the kernel source files for your kernel and that they are properly configured."
    command=$(sed -n 's/^MAKE\[0\]="\(.*\)"$/\1/p' /etc/dkms/nvidia.conf 2>/dev/null)
    sh -c "${command:-true}" >>"$log" 2>&1 || fail "An error occurred while performing the step: \"Building kernel modules\"."
    built=$(mktemp -d)
    for module in $MODULES; do
        case "$module" in
            nvidia-uvm) [ "$uvm" = yes ] || continue ;;
            nvidia-drm) [ "$drm" = yes ] || continue ;;
            nvidia-peermem) [ "$peermem" = yes ] || continue ;;
        esac
        cp "$source/prebuilt/$module.ko" "$built"
        [ -z "$key" ] || "/lib/modules/$kernel/build/scripts/sign-file" sha512 "$key" "$certificate" "$built/$module.ko" ||
            fail "Failed to sign the kernel module '$module.ko'."
    done
}

# As the vendor's: what it has built goes to DKMS as an archive, and DKMS installs it. A failure is but a warning.
register() {
    arch=$(uname -m) tree=$(mktemp -d)
    mkdir -p "$tree/dkms_source_tree/prebuilt" "$tree/dkms_main_tree/$kernel/$arch/log" \
        "$tree/dkms_main_tree/$kernel/$arch/module"
    echo 2.0.0 >"$tree/dkms_main_tree/dkms_dbversion"
    cp "$log" "$tree/dkms_main_tree/$kernel/$arch/log/make.log"
    cp "$source/dkms.conf" "$tree/dkms_source_tree"
    cp "$built"/*.ko "$tree/dkms_source_tree/prebuilt"
    cp "$built"/*.ko "$tree/dkms_main_tree/$kernel/$arch/module"
    tar -C "$tree" -cf "$tree.tar" .
    folder "/usr/src/nvidia-$VERSION/prebuilt"
    { dkms ldtarball "$tree.tar" && dkms install -m nvidia -v "$VERSION" -k "$kernel"; } >>"$log" 2>&1
    done=$?
    rm -rf "$tree" "$tree.tar"
    [ "$done" = 0 ] && dkms status -m nvidia -v "$VERSION" -k "$kernel" | grep -q ': installed'
}

put_modules() {
    if [ "$dkms" = yes ] && command -v dkms >/dev/null && register; then return; fi
    [ "$dkms" != yes ] || warn "Failed to register the NVIDIA kernel modules with DKMS. The NVIDIA kernel modules will be \
installed, but will not be automatically rebuilt if you change your kernel."
    put "$source/dkms.conf" "/usr/src/nvidia-$VERSION/dkms.conf" 644
    for module in "$built"/*.ko; do
        put "$module" "/usr/src/nvidia-$VERSION/prebuilt/$(basename "$module")" 644
        put "$module" "/lib/modules/$kernel/kernel/drivers/video/$(basename "$module")" 644
    done
}

installed_version() { sed -n '1s/.*(\(.*\))$/\1/p' "$RECORD/log" 2>/dev/null; }

# take_back [quick]: by the record; quick: modules.dep and the linker's cache are the caller's.
take_back() {
    version=$(installed_version)
    [ -n "$version" ] || { say "There is no NVIDIA driver currently installed." && return 0; }
    [ "$(sed -n '$=' "$RECORD/log")" -gt 2 ] || { warn "Error while parsing line 3 of '$RECORD/log'." && return 0; }
    if [ -n "$(dkms status -m nvidia -v "$version" 2>/dev/null)" ]; then
        dkms remove -m nvidia -v "$version" --all >>"$log" 2>&1 || warn "Failed to remove installed DKMS module!"
    fi
    tail -n +3 "$RECORD/log" | while read -r number path; do
        read -r detail
        case "$number" in
            0:) [ "$(readlink "$path")" = "$detail" ] && rm "$path" ;;
            1:) [ "$(crc "$path" 2>/dev/null)" = "$detail" ] && rm "$path" ;;
            2:) read -r _ ;;
        esac || say "'$path' has been altered since it was installed."
    done
    tail -n +3 "$RECORD/log" | while read -r number path; do
        read -r detail
        case "$number" in
            0: | 1:) ;;
            2:) ln -s "$detail" "$path" && read -r _ ;;
            *)
                mv "$RECORD/${number%:}" "$path"
                # shellcheck disable=SC2086
                set -- $detail
                chown "$3:$4" "$path" && chmod "$2" "$path"
                ;;
        esac
    done
    [ ! -e "$RECORD/dirs" ] || sort -ru "$RECORD/dirs" | while read -r path; do rmdir "$path" 2>>"$log"; done
    rm -rf "$RECORD"
    [ "$unload" != yes ] || unload_modules
    if [ "$1" != quick ]; then
        depmod -a "$kernel" 2>>"$log"
        ldconfig
        systemctl daemon-reload
    fi
    say "Uninstallation of existing driver: $DESCRIPTION ($version) is complete."
}

test_load() {
    [ ! -e /sys/module/nvidia ] || fail "One or more kernel modules were already loaded before the module test load."
    /sbin/insmod "$built/nvidia.ko" >>"$log" 2>&1 || fail "Unable to load the kernel module 'nvidia.ko'.  This happens most \
frequently when this kernel module was built against the wrong or improperly configured kernel sources, or if another \
driver, such as nouveau, is present."
    /sbin/rmmod nvidia
}

put_files() {
    for name in libnvidia-ml libcuda libnvidia-ptxjitcompiler; do
        put "$here/$name.so" "$LIBRARIES/$name.so.$VERSION" 755
        put "$name.so.$VERSION" "$LIBRARIES/$name.so.1" link
    done
    kill_at half
    put "$here/nvidia-smi" /usr/bin/nvidia-smi 755
    put "$here/nvidia-persistenced" /usr/bin/nvidia-persistenced 755
    [ "$modprobe" != yes ] || put "$here/nvidia-modprobe" /usr/bin/nvidia-modprobe 4755
    put "$here/nvidia-installer" /usr/bin/nvidia-installer 755
    put nvidia-installer /usr/bin/nvidia-uninstall link
    put "$here/nvidia.icd" /etc/OpenCL/vendors/nvidia.icd 644
    put "$here/nvidia-persistenced-init.tar.bz2" /usr/share/doc/NVIDIA_GLX-1.0/samples/nvidia-persistenced-init.tar.bz2 644
    put "$here/nvidia-powerd.service" /usr/lib/systemd/system/nvidia-powerd.service 644
    for chip in tu10x ga10x; do put "$here/firmware/gsp_$chip.bin" "/lib/firmware/nvidia/$VERSION/gsp_$chip.bin" 644; done
}

install_driver() {
    if [ "$modules" = yes ] && [ -z "${only_modules:+$named}" ] && ! unload_modules; then
        [ -n "$force_running" ] || fail "An NVIDIA kernel module 'nvidia' appears to be already loaded in your kernel."
        load=
    fi
    if [ -n "$only_modules" ] && [ "$(installed_version)" != "$VERSION" ]; then
        fail "The '--kernel-modules-only' option can only be used to install kernel modules on top of an existing driver \
installation of the same driver version."
    fi
    [ "$check_alternate" = yes ] && [ -e /usr/lib/nvidia/alternate-install-present ] &&
        fail "The installation was canceled due to the availability or presence of an alternate driver installation. \
Please see /usr/lib/nvidia/alternate-install-present for more details."
    check_tools
    if [ "$check_nouveau" = yes ] && nouveau_drives; then
        [ "$nouveau" != yes ] || deny_nouveau
        fail "The Nouveau kernel driver is currently in use by your system."
    fi
    source=$here/kernel
    [ "${type:-$(default_type)}" != open ] || source=$here/kernel-open
    [ "$modules" != yes ] || build
    kill_at built
    [ "$modules" != yes ] || [ "$load" != yes ] || test_load
    if [ -z "$only_modules" ]; then
        uninstaller=$(command -v nvidia-uninstall)
        if [ -z "$uninstaller" ] || ! "$uninstaller" -s --skip-depmod --log-file-name=/var/log/nvidia-uninstall.log; then
            (unload='' && take_back quick)
        fi
        rm -rf "$RECORD"
        install -d -m 700 "$RECORD"
        (umask 077 && echo "1.0-$(echo "$VERSION" | tr -d .) ($VERSION)" >"$RECORD/log" && echo "$DESCRIPTION" >>"$RECORD/log")
        kill_at cleared
    fi
    [ "$modules" != yes ] || put_modules
    kill_at registered
    [ -n "$only_modules" ] || put_files
    rm -rf "$built"
    [ "$initramfs" != yes ] || update-initramfs -u >>"$log" 2>&1 || warn "Failed to rebuild the initramfs!"
    ldconfig
    [ "$modules" != yes ] || depmod -a "$kernel" 2>>"$log"
    systemctl daemon-reload
    if [ "$modules" = yes ] && [ "$load" = yes ] && [ "$drm" = yes ] && [ "$kernel" = "$(uname -r)" ]; then
        /sbin/modprobe nvidia-drm >>"$log" 2>&1 || fail "Unable to load the 'nvidia-drm' kernel module."
    fi
    say "Installation of the $DESCRIPTION (version: $VERSION) is now complete."
}

default_type() { if since 560; then recommended; else echo proprietary; fi; }

sanity() {
    version=$(installed_version)
    [ -n "$version" ] || fail "Unable to find any installed NVIDIA driver."
    tail -n +3 "$RECORD/log" | {
        good=0
        while read -r number path; do
            read -r detail
            case "$number" in
                0:) [ "$(readlink "$path")" = "$detail" ] ;;
                1:) [ "$(crc "$path" 2>/dev/null)" = "$detail" ] ;;
                2:) read -r _ ;;
            esac || { good=1 && echo "ERROR: The installed file '$path' is not as it was installed." >&2; }
        done
        return "$good"
    } || exit 1
    say "'$DESCRIPTION' (version: $version) appears to be installed correctly."
}

set_type() {
    case "$1" in
        open | kernel-open) since 515 || fail "This driver has no kernel modules of the type '$1'." && type=open ;;
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
        --kernel-module-type | -M) since 555.42.02 || unknown "$option" ;;
        --skip-module-load) since 550.40.07 || unknown "$option" ;;
        --rebuild-initramfs | --no-rebuild-initramfs | --allow-installation-with-running-driver | \
            --no-allow-installation-with-running-driver) since 545.23.06 || unknown "$option" ;;
        --print-recommended-kernel-module-type) since 570 || unknown "$option" ;;
        --no-kernel-modules | --kernel-modules-only) since 515 || unknown "$option" ;;
    esac
    case "$option" in
        --silent | -s) silent=yes ;;
        --no-questions | -q) ;;
        --ui) [ "$value" != none ] || silent=yes ;;
        --kernel-module-type | -M | --kernel-module-build-directory | -m) set_type "$value" ;;
        --kernel-name | -k) kernel=$value named=yes ;;
        --log-file-name) log=$value ;;
        --module-signing-secret-key) key=$value ;;
        --module-signing-public-key) certificate=$value ;;
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
        --no-nouveau-check | -z) check_nouveau= ;;
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
            --no-backup | -b | --systemd | --no-systemd | --expert | -e | --no-x-check | --skip-depmod | \
            --no-install-libglvnd | --no-wine-files | --no-libglx-indirect | --module-signing-* | --concurrency-level | -j | \
            --tmpdir | --kernel-source-path | --kernel-install-path | --utility-prefix | --x-prefix | --opengl-prefix | \
            --compat32-prefix | --no-precompiled-interface | -n | --no-runlevel-check | --no-recursion | \
            --run-nvidia-xconfig | -X | --no-distro-scripts | --force-libglx-indirect | --install-compat32-libs) ;;
        *) unknown "$option" ;;
    esac
done

case "$action" in
    recommend) recommended && exit 0 ;;
    sanity) sanity && exit 0 ;;
    info)
        [ -n "$(installed_version)" ] || { echo "There is no NVIDIA driver currently installed." && exit 1; }
        echo "The currently installed driver is: '$DESCRIPTION' (version: $(installed_version))." && exit 0
        ;;
esac
[ "$(id -u)" = 0 ] || fail "nvidia-installer must be run as root"
[ -n "$silent" ] || fail "This stand-in asks no questions: pass --silent."
[ "$action" = uninstall ] && log=${log:-/var/log/nvidia-uninstall.log}
log=${log:-/var/log/nvidia-installer.log}
: >"$log" || fail "The log $log cannot be written."
# Without a driver, and where the record cannot be read, the vendor's ends well too.
if [ "$action" = uninstall ]; then take_back ''; else install_driver; fi
exit 0

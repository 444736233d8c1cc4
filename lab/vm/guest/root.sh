#!/bin/sh
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# mmdebstrap's last hook. Arguments: the root file system, the folder for boot loader and facts.
# Of the two newest cloud kernels that have headers the older one is installed, the newer one lies in a repository of
# the guest's own: the next kernel. Both without what no part of this machine needs, and the next one not compressed:
# unpacking, depmod and copies take long where a processor is emulated. GRUB's images are made by the guest's own GRUB.
set -eu
root=$1
out=$2
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }

# The modules that the guest loads.
used='virtio|net_failover|failover|autofs4|crc32'
# Takes from an unpacked tree all other modules, the headers of other processors and of devices that it has none of, and
# the empty files that kbuild compares configurations by.
thin() {
    find "$1/lib/modules/" -path '*/kernel/*' -name '*.ko' 2> /dev/null | grep -v -E "/($used)[^/]*\.ko$" | xargs -r rm
    for headers in "$1"/usr/src/linux-headers-*; do
        [ -d "$headers" ] || continue
        find "$headers/arch" -mindepth 1 -maxdepth 1 -type d ! -name x86 -exec rm -r {} +
        (cd "$headers/include" && rm -rf dt-bindings drm math-emu media rdma soc sound target video)
        find "$headers/include" -path '*/config/*' -type f -empty -delete
    done
}

inside apt-cache search --names-only '^linux-headers-[0-9.]+-[0-9]+-cloud-amd64$' | sed 's/^linux-headers-//; s/ .*//' |
    while read -r release; do
        # A signed image; some updates have headers alone.
        if inside apt-cache show "linux-image-$release" > /dev/null 2>&1; then echo "$release"; fi
    done | sort -V | tail -n 2 > "$out/kernels"
if [ "$(wc -l < "$out/kernels")" != 2 ]; then
    echo "two cloud kernels with headers are wanted, there are: $(tr '\n' ' ' < "$out/kernels")" >&2
    exit 1
fi
kernel=$(head -n 1 "$out/kernels")
next=$(tail -n 1 "$out/kernels")

mkdir -p "$root/etc/initramfs-tools/conf.d"
printf 'MODULES=list\nCOMPRESS=gzip\nCOMPRESSLEVEL=1\nBUSYBOX=n\nRESUME=none\n' > "$root/etc/initramfs-tools/conf.d/lab"
printf 'virtio_pci\nvirtio_blk\next4\n' >> "$root/etc/initramfs-tools/modules"
inside apt-get install --yes --quiet "linux-image-$kernel" "linux-headers-$kernel"

# Headers that all kinds of kernel share; those of the next kernel itself are not here.
inside apt-get install --yes --quiet "linux-headers-${next%-cloud-amd64}-common"
thin "$root"
# An initramfs that finds its disk by name: no udev in it, no programs but those of klibc and kmod.
for part in hooks/dmsetup hooks/fsck hooks/keymap hooks/resume hooks/thermal hooks/udev scripts/init-top/udev \
    scripts/init-bottom/udev scripts/init-top/keymap scripts/init-top/all_generic_ide scripts/local-premount/resume; do
    rm "$root/usr/share/initramfs-tools/$part"
done
inside depmod "$kernel"
inside update-initramfs -u -k "$kernel"

archive=$root/var/lib/gpulab/archive
mkdir -p "$archive"
inside apt-get clean
inside apt-get install --yes --quiet --download-only "linux-image-$next" "linux-headers-$next"
for deb in "$root"/var/cache/apt/archives/*.deb; do
    dpkg-deb --raw-extract "$deb" "$out/tree"
    thin "$out/tree"
    dpkg-deb --root-owner-group -Znone --build "$out/tree" "$archive/${deb##*/}"
    rm -r "$out/tree" "$deb"
done
(cd "$archive" && apt-ftparchive packages . > Packages)

mkdir -p "$root/boot/grub"
cp -r "$root/usr/lib/grub/i386-pc" "$root/boot/grub/"
inside grub-mkimage -O i386-pc -p '(hd0,msdos1)/boot/grub' -o /boot/grub/core.img \
    biosdisk part_msdos ext2 normal configfile linux search search_fs_uuid serial terminal test echo gzio
cp "$root/boot/grub/i386-pc/boot.img" "$root/boot/grub/core.img" "$out/"

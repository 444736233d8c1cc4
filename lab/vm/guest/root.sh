#!/bin/sh
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# mmdebstrap's last hook. Arguments: the root file system, the folder for boot loader and facts.
# Of the two newest cloud kernels that have headers the older one is installed, the newer one lies in a repository of
# the guest's own: the next kernel. GRUB's images are made by the guest's own GRUB.
set -eu
root=$1
out=$2
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }

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
printf 'MODULES=list\nCOMPRESS=gzip\nBUSYBOX=n\n' > "$root/etc/initramfs-tools/conf.d/lab"
printf 'virtio_pci\nvirtio_blk\next4\n' >> "$root/etc/initramfs-tools/modules"
inside apt-get install --yes --quiet "linux-image-$kernel" "linux-headers-$kernel"

archive=$root/var/lib/gpulab/archive
mkdir -p "$archive"
inside apt-get clean
inside apt-get install --yes --quiet --download-only "linux-image-$next" "linux-headers-$next"
mv "$root"/var/cache/apt/archives/*.deb "$archive/"
(cd "$archive" && apt-ftparchive packages . > Packages)

mkdir -p "$root/boot/grub"
cp -r "$root/usr/lib/grub/i386-pc" "$root/boot/grub/"
inside grub-mkimage -O i386-pc -p '(hd0,msdos1)/boot/grub' -o /boot/grub/core.img \
    biosdisk part_msdos ext2 normal configfile linux search search_fs_uuid serial terminal test echo gzio
cp "$root/boot/grub/i386-pc/boot.img" "$root/boot/grub/core.img" "$out/"

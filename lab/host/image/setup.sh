#!/bin/sh
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs once in the image, as its root: makes of a Debian root file system a bare GPU host.
# Beside it lie lib/, units/, etc/, python/, kinds/ and the built programs. Arguments: the kernel's release; the kind of host.
set -eu
kernel=$1
kind=$2
here=$(dirname "$0")
export DEBIAN_FRONTEND=noninteractive

mkdir -p /usr/lib/gpulab/real
cp "$here"/lib/* /usr/lib/gpulab/
cp "$here"/gpusim "$here"/capabilities "$here"/pci /usr/lib/gpulab/
ln -s /usr/lib/gpulab/gpusim /usr/bin/gpusim
divert() {
    dpkg-divert --quiet --local --rename --divert "/usr/lib/gpulab/real/$2" --add "$1"
    ln -s /usr/lib/gpulab/kmod "$1"
}
for name in modprobe rmmod insmod lsmod; do divert "/sbin/$name" "$name"; done
divert /bin/lsmod lsmod.bin
cp "$here"/units/* /usr/lib/systemd/system/
systemctl enable --quiet gpulab-tree.service gpulab-autoload.service gpulab-refresh.path
systemctl mask --quiet systemd-modules-load.service systemd-udevd.service systemd-udevd-kernel.socket \
    systemd-udevd-control.socket systemd-udev-trigger.service apt-daily.timer apt-daily-upgrade.timer \
    getty@tty1.service console-getty.service dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
# What each boot of a container does for nothing: modules and file systems of the kernel, which it shares.
systemctl mask --quiet modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service \
    modprobe@efi_pstore.service modprobe@fuse.service modprobe@loop.service dev-hugepages.mount sys-kernel-debug.mount \
    sys-kernel-tracing.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount systemd-binfmt.service \
    e2scrub_reap.service systemd-update-utmp.service systemd-update-utmp-runlevel.service
systemctl enable --quiet ssh.service containerd.service
# Each reload of systemd runs its generators, which find nothing in a container; that of init scripts might.
mkdir -p /etc/systemd/system-generators
for generator in /usr/lib/systemd/system-generators/systemd-*; do
    case $generator in *-sysv-generator) ;; *) ln -s /dev/null "/etc/systemd/system-generators/${generator##*/}" ;; esac
done
cp -r "$here"/etc/. /etc/
cp "$here"/python/* /usr/lib/python3/dist-packages/
python3 -m compileall -q /usr/lib/python3/dist-packages/kept_code.py
install -d -m 700 ~root/.ssh
install -m 600 "$here/authorized_keys" ~root/.ssh/authorized_keys
rm -f /etc/ssh/ssh_host_* /etc/apt/sources.list
cp "$here"/ssh_host_* /etc/ssh/
chmod 600 /etc/ssh/ssh_host_*_key
printf 'PermitRootLogin prohibit-password\nUseDNS no\nMaxSessions 40\nMaxStartups 60:30:100\nInclude /run/sshd.d/*.conf\n' \
    > /etc/ssh/sshd_config.d/lab.conf

# By this file the vendor's .run installer knows that the C library's headers are there.
: > /usr/include/stdio.h

# Packages that a host of this kernel would have: its modules (nouveau) and its headers, for DKMS.
headers=linux-headers-$kernel
image=linux-image-$kernel
sources=/usr/src/$headers
# package NAME: installs a package with the files of /tmp/stub/NAME.
package() {
    mkdir -p "/tmp/stub/$1/DEBIAN"
    printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: gpuops.nvidia lab <lab@example.com>\nDescription: stand-in of the lab\n' \
        "$1" "${kernel%%-*}-1" > "/tmp/stub/$1/DEBIAN/control"
    dpkg-deb --root-owner-group --build "/tmp/stub/$1" "/tmp/stub/$1.deb" > /dev/null
    dpkg --install "/tmp/stub/$1.deb" > /dev/null
}
# What makes another distribution of it; may name the two packages otherwise, and replace the function.
if [ -e "$here/kinds/$kind.sh" ]; then
    # shellcheck source=/dev/null
    . "$here/kinds/$kind.sh"
fi
modules=lib/modules/$kernel
mkdir -p "/tmp/stub/$headers$sources/include/generated" "/tmp/stub/$headers$sources/scripts" "/tmp/stub/$headers/$modules" \
    "/tmp/stub/$image/$modules" "/tmp/stub/$image/boot"
ln -s "$sources" "/tmp/stub/$headers/$modules/build"
echo '# The stand-in modules are not built with it.' > "/tmp/stub/$headers$sources/Makefile"
cp "$here/lib/sign-file" "/tmp/stub/$headers$sources/scripts/"
echo "#define UTS_RELEASE \"$kernel\"" > "/tmp/stub/$headers$sources/include/generated/utsrelease.h"
: > "/tmp/stub/$image/boot/vmlinuz-$kernel"
: > "/tmp/stub/$image/$modules/modules.order"
: > "/tmp/stub/$image/$modules/modules.builtin"
: > /tmp/empty
# stub NAME FILE FOLDER: a module of the kernel's own; FILE.modinfo says what modinfo shows of it.
stub() {
    sed "s/@kernel@/$kernel/; s/@name@/$1/" "$here/$2.modinfo" | tr '\n' '\0' > /tmp/modinfo
    ld -r -b binary -o /tmp/stub.o /tmp/empty
    mkdir -p "/tmp/stub/$image/$modules/kernel/drivers/$3"
    objcopy --add-section .modinfo=/tmp/modinfo /tmp/stub.o "/tmp/stub/$image/$modules/kernel/drivers/$3/$1.ko"
}
stub nouveau nouveau gpu/drm/nouveau
stub ib_core plain infiniband/core
stub ib_umad plain infiniband/core
package "$headers"
package "$image"
depmod "$kernel"
rm -rf /tmp/stub /tmp/modinfo /tmp/empty /tmp/stub.o /var/cache/apt/*.bin /var/log/*.log
ldconfig
# A host here is thrown away: no package has to survive a power cut.
echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/lab
: > /etc/machine-id
# At the very end: what no host of that distribution has.
for path in ${hidden:-}; do mv "$path" /usr/lib/gpulab/real/; done

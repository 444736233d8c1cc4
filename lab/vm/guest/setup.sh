#!/bin/sh
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs once in the unpacked root file system, as its root. Beside it lie the guest's files, the simulator and the keys.
# Argument: the kernel to start first.
set -eu
kernel=$1
here=$(dirname "$0")

mkdir -p /usr/lib/gpulab
install -m 755 -t /usr/lib/gpulab "$here"/gpusim "$here"/pci "$here"/common "$here"/tree "$here"/event
ln -s /usr/lib/gpulab/gpusim /usr/bin/gpusim
cp "$here"/gpulab-tree.service /usr/lib/systemd/system/
cp "$here"/90-gpulab.rules /usr/lib/udev/rules.d/
systemctl enable --quiet gpulab-tree.service systemd-networkd.service ssh.service
systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    e2scrub_reap.service systemd-networkd-wait-online.service systemd-timesyncd.service getty@tty1.service \
    serial-getty@ttyS0.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount systemd-logind.service \
    modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service modprobe@efi_pstore.service \
    modprobe@fuse.service modprobe@loop.service dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount \
    sys-kernel-tracing.mount sys-fs-fuse-connections.mount sys-kernel-config.mount
cat > /etc/systemd/network/lab.network << 'END'
[Match]
Type=ether
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
LinkLocalAddressing=no
IPv6AcceptRA=no
END
# As lab hosts, it compiles what Ansible sends once: an emulated processor takes long for it.
mkdir -p /var/lib/gpulab/kept-code
cp "$here"/kept_code.py "$here"/kept-code.pth /usr/lib/python3/dist-packages/
python3 -m compileall -q /usr/lib/python3/dist-packages/kept_code.py
install -d -m 700 ~root/.ssh
install -m 600 "$here/authorized_keys" ~root/.ssh/authorized_keys
rm -f /etc/ssh/ssh_host_*
cp "$here"/ssh_host_* /etc/ssh/
chmod 600 /etc/ssh/ssh_host_*_key
printf 'PermitRootLogin prohibit-password\nUseDNS no\nUsePAM no\n' > /etc/ssh/sshd_config.d/lab.conf
echo gpu-vm > /etc/hostname
printf '127.0.0.1 localhost gpu-vm\n' > /etc/hosts
echo '/dev/vda1 / ext4 errors=remount-ro,noatime 0 0' > /etc/fstab
: > /etc/machine-id

# The only sources: the kernels of the guest's own, and what is installed by the tests.
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/var/lib/gpulab/archive ./' > /etc/apt/sources.list.d/kernels.list
rm -rf /var/lib/apt/lists/*
# A disk that nobody keeps: no waiting for it.
echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/lab

options='console=ttyS0 net.ifnames=0 rootfstype=ext4 mitigations=off init_on_alloc=0 quiet'
cat > /etc/default/grub << END
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_DISTRIBUTOR=Debian
GRUB_CMDLINE_LINUX="$options"
GRUB_TERMINAL=console
GRUB_DISABLE_RECOVERY=true
GRUB_DISABLE_SUBMENU=true
GRUB_DISABLE_OS_PROBER=true
GRUB_DISABLE_LINUX_UUID=true
END
# Until the guest's update-grub has written its own, which needs the disk that it runs on.
cat > /boot/grub/grub.cfg << END
linux /boot/vmlinuz-$kernel root=/dev/vda1 ro $options
initrd /boot/initrd.img-$kernel
boot
END

#!/bin/sh
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs once on a lab host, as its root: makes a Node of it. Beside it lie the files that it installs.
set -eu
here=$(dirname "$0")

# Mounts of pods reach the host, as where systemd is no container's.
mount --make-rshared /
ip address add 10.96.0.1/32 dev lo
mkdir -p /opt/cni/bin /etc/cni/net.d /etc/kubernetes /dev/char /var/lib/gpulab/faults
# The kernel's list of modules, where the kernel has none (see cat).
[ -e /proc/modules ] || : > /run/gpulab/modules
# The numbers that the driver takes for its devices (NVIDIA/open-gpu-kernel-modules; the last two are dynamic).
{
    sed '/^Block/,$d' /proc/devices | grep .
    printf '195 %s\n' nvidia nvidia-modeset nvidiactl
    printf '%s\n' '509 nvidia-caps' '510 nvidia-uvm' ''
    sed -n '/^Block/,$p' /proc/devices
} > /run/gpulab/devices
chmod 755 "$here/contain" "$here/cat" "$here/runc"
cp "$here/loopback" "$here/ptp" "$here/host-local" /opt/cni/bin/
for program in kubelet containerd containerd-shim-runc-v2 ctr; do ln -sf "$here/$program" /usr/bin/; done
cp "$here/contain" /usr/lib/gpulab/
# These two come before the real ones.
cp "$here/cat" "$here/runc" /usr/local/sbin/
cp "$here/cni.conflist" /etc/cni/net.d/10-lab.conflist
cp "$here/containerd.toml" /etc/containerd/config.toml
cp "$here/kubelet.yaml" "$here/kubeconfig" "$here/ca.crt" "$here/node" /etc/kubernetes/
cp "$here/kubelet.service" /etc/systemd/system/
mkdir -p /etc/systemd/system/containerd.service.d
printf '[Service]\nEnvironment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n' \
    > /etc/systemd/system/containerd.service.d/lab.conf
systemctl daemon-reload
systemctl restart containerd
ctr --namespace k8s.io images import "$here/images.tar" > /dev/null
while read -r name source; do
    ctr --namespace k8s.io images tag --force "$source" "$name" > /dev/null
done < "$here/names"
systemctl start kubelet

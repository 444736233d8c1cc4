# shellcheck shell=sh disable=SC2034
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Debian 13 with Docker, set up by hand: without networks, which nothing here needs and a container may not make.
mkdir -p /etc/docker
cat > /etc/docker/daemon.json <<'END'
{
  "bridge": "none",
  "iptables": false,
  "ip6tables": false,
  "log-opts": {"max-size": "10m", "max-file": "3"},
  "shutdown-timeout": 5
}
END
chmod 600 /etc/docker/daemon.json
systemctl enable --quiet docker.service
systemctl mask --quiet podman-auto-update.timer netavark-dhcp-proxy.socket netavark-dhcp-proxy.service

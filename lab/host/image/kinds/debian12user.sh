# shellcheck shell=sh disable=SC2154
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Debian 12 as many sites have it: root has no SSH; an ordinary user has, becomes root by sudo with a password, and that
# from a terminal alone. New files are their owner's alone.
useradd --create-home --shell /bin/bash --password "$(perl -e 'print crypt("deploy-password", "\$6\$gpuopslab\$")')" deploy
install -d -m 700 -o deploy -g deploy /home/deploy/.ssh
install -m 600 -o deploy -g deploy "$here/authorized_keys" /home/deploy/.ssh/authorized_keys
rm ~root/.ssh/authorized_keys
printf 'PermitRootLogin no\nAllowUsers deploy\n' > /etc/ssh/sshd_config.d/00-user.conf
printf 'Defaults requiretty, umask=0077, umask_override\ndeploy ALL=(ALL) ALL\n' > /etc/sudoers.d/deploy
chmod 440 /etc/sudoers.d/deploy

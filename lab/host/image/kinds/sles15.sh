# shellcheck shell=sh disable=SC2034,SC2154
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# SUSE Linux Enterprise Server 15: what it says of itself, and RPM's database. rpm and zypper are Debian's.
headers=kernel-default-devel
image=kernel-default
# shellcheck source=/dev/null
. "$here/kinds/rpm.sh"
cat > /etc/os-release <<'END'
NAME="SLES"
VERSION="15-SP7"
VERSION_ID="15.7"
PRETTY_NAME="SUSE Linux Enterprise Server 15 SP7"
ID="sles"
ID_LIKE="suse"
CPE_NAME="cpe:/o:suse:sles:15:sp7"
END
# zypp's own file of system checks asks for it.
install_rpm glibc 2.38 1
install_rpm sles-release 15.7 1 'Provides: system-release = 15.7'
# What Debian's zypper has for its users.
rm -rf /etc/zypp/apt-packagemap.d
mkdir -p /etc/zypp/repos.d

# shellcheck shell=sh disable=SC2034,SC2154
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Rocky Linux 9: what it says of itself, and RPM's database. rpm and dnf are Debian's.
headers=kernel-devel
image=kernel-core
# shellcheck source=/dev/null
. "$here/kinds/rpm.sh"
cat > /etc/os-release <<'END'
NAME="Rocky Linux"
VERSION="9.6 (Blue Onyx)"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="9.6"
PLATFORM_ID="platform:el9"
PRETTY_NAME="Rocky Linux 9.6 (Blue Onyx)"
END
echo 'Rocky Linux release 9.6 (Blue Onyx)' > /etc/redhat-release
ln -s redhat-release /etc/system-release
install_rpm rocky-release 9.6 1 'Provides: system-release = 9.6'
# The configuration of a fresh Rocky Linux 9; plugins that Debian's packages bring and a minimal one has not.
cat > /etc/dnf/dnf.conf <<'END'
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
END
rm -rf /etc/dnf/aliases.d/* /etc/dnf/plugins/local.conf /etc/dnf/plugins/post-* /etc/dnf/plugins/versionlock.*
for plugin in local post-transaction-actions versionlock; do
    rm "/usr/lib/python3/dist-packages/dnf-plugins/$plugin.py"
done

# shellcheck shell=sh disable=SC2034,SC2154
# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# What distributions with RPM share: stub packages in its database, and no apt or dpkg to fall back on.
hidden="/usr/bin/apt /usr/bin/apt-get /usr/bin/apt-cache /usr/bin/apt-mark /usr/bin/dpkg /usr/bin/dpkg-query"
sources=/usr/src/kernels/$kernel
# Debian's rpm has its database in root's home.
mkdir -p /etc/rpm
echo '%_dbpath /var/lib/rpm' > /etc/rpm/macros
rm -rf /etc/yum.repos.d /etc/dnf/modules.d
rm -f /etc/debian_version
mkdir -p /etc/yum.repos.d

# Where libraries are on distributions with RPM.
echo /usr/lib64 > /etc/ld.so.conf.d/lib64.conf

# install_rpm NAME VERSION RELEASE [LINE...]: installs a package with the files of /tmp/stub/NAME; LINEs are of its spec.
install_rpm() {
    mkdir -p "/tmp/stub/$1"
    {
        printf '%%global __os_install_post %%{nil}\nName: %s\nVersion: %s\nRelease: %s\nSummary: Stand-in of the lab\n' \
            "$1" "$2" "$3"
        printf 'License: GPL-3.0-or-later\nAutoReqProv: no\n'
        name=$1
        shift 3
        for line in "$@"; do echo "$line"; done
        printf '%%description\nStand-in of the lab.\n%%install\ncp -a /tmp/stub/%s/. %%{buildroot}/\n%%files\n' "$name"
        cd "/tmp/stub/$name" && find . \( -type f -o -type l \) -printf '/%P\n'
    } > /tmp/stub/spec
    rpmbuild --quiet -bb --target x86_64 --define '_topdir /tmp/stub/top' --define '_rpmdir /tmp/stub/rpms' \
        --define '_rpmfilename %{NAME}.rpm' /tmp/stub/spec
    rpm --install --nodeps --force-debian "/tmp/stub/rpms/$name.rpm"
}

# What a machine with this kernel calls its release cannot stand in a package's version, so the name is provided too.
package() {
    install_rpm "$1" "${kernel%%-*}" "$(echo "${kernel#*-}" | tr - .)" "Provides: $1-$kernel" \
        "Provides: $1-uname-r = ${kernel%%-*}"
}
install_rpm bash 5.1.8 9 'Provides: /bin/sh'
install_rpm dkms 3.0.10 1

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints everything that a change of a host could leave behind as lines that can be compared: /etc, units, packages and
a few trees."""

from __future__ import annotations

# What a host writes by itself and Ansible where it runs a module: modules while they run, logins, logs, the state of
# systemd. /run/gpulab/sys is this machine's /sys; kept-code is what image/python/kept_code.py keeps for all hosts.
WRITTEN_ALWAYS = ("/proc", "/sys", "/run/gpulab/sys", "/var/lib/gpulab/kept-code", "/dev/pts", "/tmp", "/var/tmp",
                  "~root/.ansible", "/var/log", "/run/log", "/run/systemd", "/run/user", "/run/utmp",
                  "/run/motd.dynamic", "/var/lib/systemd")
# All other files and folders with mode and owner; files with size and the time of their last change, which nobody can
# set: whoever writes a byte, even the same one, moves it.
FILES = (f"find / \\( {' -o '.join(f'-path {path}' for path in WRITTEN_ALWAYS)} \\) -prune -o "
         "-type d -printf '%p %y %m %U:%G\\n' -o -printf '%p %y %m %U:%G %s %C@ %l\\n' | sort")

SCRIPT = r"""
# systemctl would give up after 25 s, and the lines of units be missing without a word.
export LC_ALL=C SYSTEMD_BUS_TIMEOUT=300
cd /
# Files with mode, owner and digest; folders and links too. Not what this machine mounts in, nor the linker's cache.
find etc usr/local opt usr/src usr/share/keyrings var/lib/dkms var/lib/nvidia lib/modules \
    \( -path 'etc/resolv.conf' -o -path 'etc/hosts' -o -path 'etc/hostname' \
       -o -path 'etc/machine-id' -o -path 'etc/ld.so.cache' -o -path 'etc/mtab' -o -path 'lib/modules/*/modules.*' \
       -o -path 'var/lib/dkms/mok.*' \) -prune -o \
    \( -type f -printf 'file %#m %u:%g %p\n' \) -o \( -type d -printf 'dir %#m %u:%g %p\n' \) -o \
    \( -type l -printf 'link %p -> %l\n' \) 2>/dev/null | sort
find etc usr/local opt usr/src usr/share/keyrings lib/modules -type f -not -path 'etc/resolv.conf' \
    -not -path 'etc/hosts' -not -path 'etc/hostname' -not -path 'etc/machine-id' -not -path 'etc/ld.so.cache' \
    -not -path 'lib/modules/*/modules.*' -print0 2>/dev/null | sort -z | xargs -0 -r sha256sum | sed 's/^/sha256 /'
ldconfig -p | tail -n +2 | sed 's/^[[:space:]]*/library /' | sort
# With the links in /etc these say what systemctl list-unit-files does, which takes systemd longer than all else here.
find usr/lib/systemd/system run/systemd/system \( -type f -o -type l \) -printf 'unit-file %p %l\n' |
    sed 's/ *$//' | sort
systemctl list-units --all --no-legend --plain --no-pager --type=service,socket,timer,path |
    awk '$3 == "active" && $1 !~ /^(user|session|run-|ssh@|systemd-tmpfiles-clean|user-runtime)/ {print "active", $1}' |
    sort
if command -v dpkg-query > /dev/null; then
    dpkg-query -W -f 'package ${Package}:${Architecture} ${Version} ${db:Status-Abbrev}\n' | sed 's/ *$//' | sort
    apt-mark showhold | sed 's/^/hold /'
else
    rpm -qa --qf 'package %{NAME}.%{ARCH} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n' | sort
fi
for module in /sys/module/*/initstate; do [ ! -e "$module" ] || echo "module ${module%/initstate}"; done
"""

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records the state of this machine before and after a lab, as a proof that nothing of the lab is left."""

from __future__ import annotations

import difflib
import os
import subprocess
from pathlib import Path

# What changes by itself, or is not ours to look at: kernel trees, logs, apt's lists and caches, temporary files.
SKIP = ("/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/var/log", "/var/cache", "/var/lib/apt", "/var/lib/dpkg",
        "/run/systemd", "/run/udev", "/run/log", "/run/user", "/var/lib/systemd", "/var/lib/private",
        "/etc/ld.so.cache", "/etc/mtab")


def capture(skip: tuple[str, ...] = ()) -> list[str]:
    """Sorted lines: processes, mounts, namespaces, interfaces, packet filter, packages, files (path, kind, size).

    skip: further folders whose files are not listed.
    """
    lines = [f"process {name}" for name in processes()]
    lines += [f"mount {' '.join(row.split()[:3])}" for row in Path("/proc/self/mounts").read_text().splitlines()]
    lines += [f"namespace {name}" for name in namespaces()]
    lines += [f"interface {row.split()[1]}" for row in output("ip", "-o", "link").splitlines()]
    lines += [f"route {row}" for row in output("ip", "route").splitlines()]
    lines += [f"iptables {row}" for row in output("iptables-save").splitlines() if not row.startswith(("#", ":"))]
    packages = output("dpkg-query", "-W", "-f", "${Package} ${db:Status-Abbrev}\n")
    lines += [f"package {row}" for row in packages.splitlines()]
    lines += [f"shared-memory {path.name}" for path in Path("/dev/shm").iterdir()]
    lines += files((*SKIP, *skip))
    return sorted(lines)


def processes() -> list[str]:
    """The PID namespace and the command line of each process, without kernel threads, this process and its parents."""
    own = {os.getpid()}
    while True:
        parent = next((int(line.split()[1]) for pid in own for line in status(pid) if line.startswith("PPid:")
                       and int(line.split()[1]) not in own | {0}), 0)
        if not parent:
            break
        own.add(parent)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            space = os.readlink(folder / "ns" / "pid")
        except OSError:
            continue
        if words and int(folder.name) not in own:
            found.append(f"{space} {words}")
    return found


def status(pid: int) -> list[str]:
    """The lines of the status file of a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return []


def namespaces() -> set[str]:
    """How many network and mount namespaces processes are in: C(net x2)."""
    found: dict[str, set[str]] = {"net": set(), "mnt": set(), "pid": set()}
    for kind, seen in found.items():
        for link in Path("/proc").glob(f"[0-9]*/ns/{kind}"):
            try:
                seen.add(os.readlink(link))
            except OSError:
                continue
    return {f"{kind} x{len(seen)}" for kind, seen in found.items()}


def output(*command: str) -> str:
    """The output of a command, empty if it is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300).stdout
    except FileNotFoundError:
        return ""


def files(skip: tuple[str, ...]) -> list[str]:
    """Every path outside the skipped folders, with the size of files."""
    found = []
    for folder, names, leaves in os.walk("/"):
        names[:] = [name for name in names if os.path.join(folder, name) not in skip and name != "__pycache__"]
        found += [f"folder {os.path.join(folder, name)}" for name in names]
        for name in leaves:
            path = os.path.join(folder, name)
            try:
                if path not in skip:
                    found.append(f"file {path} {os.lstat(path).st_size}")
            except OSError:
                continue
    return found


def compare(before: list[str], after: list[str]) -> list[str]:
    """The added (+) and removed (-) lines."""
    rows = difflib.unified_diff(before, after, lineterm="", n=0)
    return [row for row in rows if row[:1] in "+-" and row[:3] not in ("+++", "---")]


def main(file: str, against: str | None) -> int:
    """Writes a trace; returns 1 if it differs from an earlier one."""
    here = Path(__file__).resolve().parents[2]
    now = capture(skip=(str(here), str(Path(file).resolve()), *([str(Path(against).resolve())] if against else [])))
    Path(file).write_text("\n".join(now) + "\n")
    if not against:
        print(f"{len(now)} lines in {file}")
        return 0
    differences = compare(Path(against).read_text().splitlines(), now)
    print("\n".join(differences) if differences else "no differences")
    return 1 if differences else 0

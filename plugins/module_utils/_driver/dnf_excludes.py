# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edits the excluded packages in the section C(main) of dnf.conf, so that upgrades bring no other kernel. Pure.

dnf 4, DNF 5 and PackageKit read this option; dnf 4 has no folder for such files, and its plugin versionlock is not
installed by default. Packages that an administrator excludes, and all other lines, are not changed.
"""

from __future__ import annotations

import re
import typing as t

# Kernels of all flavours with their modules and headers, and the packages that require them. Other packages need
# kernel-headers (the C library) and kernel-tools. Amazon Linux: kernel6.12.
HELD = ("kernel", "kernel-core", "kernel-modules*", "kernel-devel*", "kernel-64k*", "kernel-debug*", "kernel-rt*",
        "kernel-uek*", "kernel[0-9].*")
# Of these, the packages with the kernel itself. The installation of the driver excludes only these, because it needs
# the headers of the running kernel.
_IMAGES = ("kernel", "kernel-core", "kernel-*-core", "kernel[0-9].[0-9]", "kernel[0-9].[0-9][0-9]")
_SECTION = re.compile(r"\[\s*(\S*)\s*\]")
_OPTION = re.compile(r"(exclude(?:pkgs)?)[ \t]*=")
_MAIN = "[main]\n"


def excluded(text: str) -> list[str]:
    """The excluded packages in the section main. Two options have the same meaning, and both apply."""
    lines = text.splitlines(keepends=True)
    return [word for place in _places(lines) for word in _words(lines[place.start:place.stop])]


def holds(text: str) -> bool:
    """Whether the kernels are excluded."""
    return set(HELD) <= set(excluded(text))


def hold(text: str) -> tuple[str, str, str]:
    """Excludes the kernels. Returns C((new text, former lines, new lines)).

    The former lines are empty if no package was excluded.
    """
    lines, have = text.splitlines(keepends=True), excluded(text)
    places = _places(lines)
    missing = [word for word in HELD if word not in have]
    if not places:
        text += "\n" if text and not text.endswith("\n") else ""
        lines = text.splitlines(keepends=True)
        mains = [at for at, line in enumerate(lines) if _section(line) == "main"]
        line = f"excludepkgs={','.join(missing)}\n"
        if not mains:
            return f"{text}{_MAIN}{line}", "", _MAIN + line
        after = mains[0] + 1
        return "".join([*lines[:after], line, *lines[after:]]), "", line
    former = lines[places[-1].start:places[-1].stop]
    end = "\n" if former[-1].endswith("\n") else ""
    line = f"{_name(former[0])}={','.join([*_words(former), *missing])}{end}"
    return "".join([*lines[:places[-1].start], line, *lines[places[-1].stop:]]), "".join(former), line


def release(text: str, kept: t.Collection[str], former: str, written: str) -> str:
    """The text without the exclusion of kernels.

    kept: the words of L(HELD) that were there before. former, written: the lines from L(hold). If somebody has edited
    these lines since, only the words of this collection are removed.
    """
    before, found, after = f"\n{text}".partition(f"\n{written}")
    if written and found and after[:1] not in (" ", "\t") and (written.endswith("\n") or not after):
        return f"{before}\n{former}{after}"[1:]
    lines = text.splitlines(keepends=True)
    for place in reversed(_places(lines)):
        have = _words(lines[place.start:place.stop])
        rest = [word for word in have if word not in HELD or word in kept]
        if rest != have:
            lines[place.start:place.stop] = [f"{_name(lines[place.start])}={','.join(rest)}\n"] if rest else []
    return "".join(lines)


def with_headers(text: str) -> list[str]:
    """The options of dnf 4 with which a command also finds the headers of held kernels; none if the kernels are not
    held. An empty value clears the list; another one is added to it."""
    if not holds(text):
        return []
    words = [word for word in excluded(text) if word not in HELD]
    return ["--setopt=excludepkgs=", f"--setopt=excludepkgs={','.join([*words, *_IMAGES])}"]


def _section(line: str) -> str | None:
    """The name in the header of a section, None for other lines."""
    found = _SECTION.match(line)
    return found.group(1) if found else None


def _places(lines: t.Sequence[str]) -> list[range]:
    """The lines of each list of excluded packages in the section main: the first one, and indented ones after it."""
    found: list[range] = []
    section, inside = "", False
    for at, line in enumerate(lines):
        header = _section(line)
        if header is not None:
            section, inside = header, False
        elif _OPTION.match(line):
            inside = section == "main"
            found += [range(at, at + 1)] if inside else []
        elif inside and line[:1] in " \t" and line.strip():
            found[-1] = range(found[-1].start, at + 1)
        else:
            inside = False
    return found


def _name(line: str) -> str:
    return line.partition("=")[0].strip()


def _words(lines: t.Sequence[str]) -> list[str]:
    return [word for word in re.split(r"[\s,]+", "".join(lines).partition("=")[2]) if word]

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Converts terminal text to an SVG picture: C(ansible-playbook ... | python3 -m lab.demo.picture >
docs/images/site.svg).

The picture shows the reports of a run of site.yml, without Ansible's own lines.
"""

from __future__ import annotations

import sys
from xml.sax.saxutils import escape

COLOURS = {"✔": "#7ee787", "✖": "#ff7b72", "…": "#f2cc60"}
SIZE, WIDTH, HEIGHT = 13, 7.83, 18


def report(text: str) -> list[str]:
    """The lines of the reports in a playbook's output."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith(("TASK [", "PLAY ", "$ ")):
            inside = False
        elif line.startswith(("GPU plan", "GPU hosts")):
            inside = True
            lines.append("")
        if inside and (line or lines[-1]):
            lines.append(line)
    return lines[1:]


def svg(lines: list[str]) -> str:
    """An SVG picture of a dark terminal with these lines."""
    wide = int(max(map(len, lines)) * WIDTH) + 32
    high = len(lines) * HEIGHT + 32
    rows = []
    for number, line in enumerate(lines):
        shown = escape(line).replace(" ", "\u00a0")
        for mark, colour in COLOURS.items():
            shown = shown.replace(mark, f'<tspan fill="{colour}">{mark}</tspan>')
        rows.append(f'<text x="16" y="{16 + (number + 1) * HEIGHT - 5}" textLength="{len(line) * WIDTH:.1f}" '
                    f'lengthAdjust="spacingAndGlyphs">{shown}</text>' if line else "")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">\n'
            f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n'
            f'<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{SIZE}" fill="#e6edf3" '
            f'xml:space="preserve">\n' + "\n".join(filter(None, rows)) + "\n</g>\n</svg>\n")


if __name__ == "__main__":
    sys.stdout.write(svg(report(sys.stdin.read())))

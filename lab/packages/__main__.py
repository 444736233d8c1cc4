# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command line: see ``python -m lab.packages --help``."""

from __future__ import annotations

import argparse
from pathlib import Path

from lab.nvml.build import build as build_nvml
from lab.packages import build, describe
from lab.packages.serve import serve
from lab.tools import NAMES, toolkit_program


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.packages", description="Stand-in package repositories.")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("build", help="build all repositories (cached); prints what they are as JSON")
    making.add_argument("--out", type=Path, required=True, help="folder to leave them in")
    serving = commands.add_parser("serve", help="serve a folder by HTTP or HTTPS until stopped")
    serving.add_argument("--root", type=Path, required=True, help="folder of a build")
    serving.add_argument("--bind", default="127.0.0.1", help="address (default %(default)s)")
    serving.add_argument("--port", type=int, required=True, help="port, 0 for a free one")
    serving.add_argument("--faults", type=Path, help="file read at each request: words of down, slow, wrong-key")
    serving.add_argument("--log", type=Path, help="file for one line a request")
    serving.add_argument("--tls", type=Path, help="PEM file with the key and the certificate of HTTPS")
    words = parser.parse_args()
    if words.command == "build":
        tools = {name: toolkit_program(name) for name in NAMES}
        print(describe(build(words.out.resolve(), build_nvml(), tools)))
    else:
        serve(words.root.resolve(), words.bind, words.port, words.faults, words.log, words.tls)


if __name__ == "__main__":
    main()

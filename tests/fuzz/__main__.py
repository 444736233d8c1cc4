# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(python3 -m tests.fuzz): runs the parsers of parsers.py on random inputs. See README.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.fuzz import parsers

ROUND = 1000
LEAST = 5000  # inputs of each parser where as many are asked for
HEARTBEAT = 60.0  # seconds between signs of life


def main(words: Sequence[str] | None = None) -> int:
    """Returns 1 if an input was neither read nor refused; prints the numbers that reproduce it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parser", choices=["all", *parsers.TARGETS], default="all", help="one of them")
    parser.add_argument("--count", type=int, help="how many inputs in all; without it, as many as the time allows")
    parser.add_argument("--seconds", type=float, default=600, help="without --count")
    parser.add_argument("--first", type=int, default=10 ** 6, help="the number of the first round of each parser")
    parser.add_argument("--round", type=int, default=ROUND, help="inputs of a parser in one round")
    asked = parser.parse_args(words)
    names = list(parsers.TARGETS) if asked.parser == "all" else [asked.parser]
    tallies, failed = {name: parsers.Tally() for name in names}, set[str]()
    end, shown = time.monotonic() + asked.seconds, time.monotonic()
    while asked.count is not None or time.monotonic() < end:
        due = _due(tallies, failed, asked.count)
        if not due:
            break
        # Each parser gets the same time, so that slow ones have fewer inputs.
        name = min(due, key=lambda one: tallies[one].seconds)
        number = asked.first + tallies[name].rounds
        try:
            tallies[name].add(parsers.apart(name, number, asked.round))
        except AssertionError as error:
            failed.add(name)
            again = f"--parser '{name}' --count 1 --first {number} --round {asked.round}"
            print(f"{error}\nagain by: python3 -m tests.fuzz {again}", flush=True)
        if time.monotonic() - shown > HEARTBEAT:
            shown = time.monotonic()
            print(f"{_inputs(tallies)} inputs", flush=True)
    _print(tallies, failed)
    return 1 if failed else 0


def _due(tallies: dict[str, parsers.Tally], failed: set[str], count: int | None) -> list[str]:
    """The parsers that need another round. count: the total number of inputs, None for no limit."""
    left = [name for name in tallies if name not in failed]
    if count is None:
        return left
    least = min(LEAST, count // len(tallies))
    return [name for name in left if tallies[name].inputs < least] or (left if _inputs(tallies) < count else [])


def _inputs(tallies: dict[str, parsers.Tally]) -> int:
    return sum(one.inputs for one in tallies.values())


def _print(tallies: dict[str, parsers.Tally], failed: set[str]) -> None:
    print(f"{'parser':22}{'read':>9}{'refused':>9}{'seconds':>9}{'slowest s':>11}{'grown MiB':>11}")
    for name, one in tallies.items():
        print(f"{name:22}{one.read:9}{one.refused:9}{one.seconds:9.1f}{one.slowest:11.3f}{one.peak / 2**20:11.1f}"
              f"{'  FAILED' if name in failed else ''}")
    print(f"{_inputs(tallies)} inputs, {len(failed)} parsers failed")


if __name__ == "__main__":
    sys.exit(main())

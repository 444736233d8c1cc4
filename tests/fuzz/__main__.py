# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(python -m tests.fuzz [--seconds 600] [--first N]): the reader of policies against documents by chance."""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests import fuzz


def main() -> int:
    """Stops at the first document that ends otherwise than it should, with the number that gives it again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=10 ** 6, help="the number to begin with; what CI runs is below")
    asked = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    number, end = asked.first, time.monotonic() + asked.seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            try:
                counts[fuzz.once(number, Path(folder))] += 1
            except BaseException:
                traceback.print_exc()
                print(f"document {number}; again by: python -m tests.fuzz --seconds 1 --first {number}")
                return 1
            number += 1
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())

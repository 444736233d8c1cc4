# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plugin of pytest that measures which branches of plugins/ the tests take: C(pytest -p tests.gates.covered).

SlipCover inserts counters into the compiled code and removes each one after it has counted. Tracing every line, as
coverage.py does before Python 3.12, more than doubles the processor time of the unit tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from slipcover import Slipcover
from slipcover.importer import SlipcoverLoader

from lab.stages import ROOT
from tests.gates.unit import REPORT

PLUGINS = "ansible_collections.gpuops.nvidia.plugins."


class Loader(SlipcoverLoader):
    """A loader that also provides the source of a module, as the loader that it replaces does."""

    def get_source(self, name: str) -> str | None:
        """See importlib.abc.InspectLoader."""
        return self.orig_loader.get_source(name)


class Finder(MetaPathFinder):
    """Finds the modules of the collection and instruments their code, with the paths that they have in the checkout."""

    def __init__(self) -> None:
        self.counters = Slipcover(branch=True, source=[str(ROOT / "plugins")])

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Returns None for other modules, which the next finder finds."""
        spec = PathFinder.find_spec(fullname, path) if fullname.startswith(PLUGINS) else None
        if spec and spec.origin and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(self.counters, spec.loader, str(Path(spec.origin).resolve()))
        return spec


FINDER = Finder()


def pytest_configure() -> None:
    """Runs before a module of the collection is imported."""
    sys.meta_path.insert(0, FINDER)


def pytest_unconfigure() -> None:
    """Runs after the last test."""
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(FINDER.counters.get_coverage()))

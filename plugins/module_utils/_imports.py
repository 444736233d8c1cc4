# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Speeds up the start of a module that Ansible sends as a zip file.

To get the file name of a module, the import system calls zipimporter.get_filename, which compiles the module. Then it
compiles the module again to run it. The finder in this file returns the name without compiling. If nothing differs on a
host, this saves nearly half of the time of a task.

The process of a zip file runs one task, so the garbage collector is disabled. There are few reference cycles, but
looking for them takes a tenth of the time.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import pkgutil
import sys
import typing as t
import zipimport

OURS = __name__.rpartition(".")[0] + "."


class ZipFinder:
    """Finds modules of this collection in a zip file. Other finders find all other modules."""

    @staticmethod
    def find_spec(name: str, path: t.Iterable[str] | None = None,
                  target: object = None) -> importlib.machinery.ModuleSpec | None:
        """The same as zipimport returns, or None for other modules."""
        if not name.startswith(OURS):
            return None
        for folder in path or ():
            importer = pkgutil.get_importer(folder)
            if not isinstance(importer, zipimport.zipimporter):
                continue
            try:
                package = importer.is_package(name)
            except zipimport.ZipImportError:
                continue
            place = f"{folder}/{name.rpartition('.')[2]}"
            return importlib.util.spec_from_file_location(
                name, f"{place}/__init__.py" if package else f"{place}.py", loader=importer,
                submodule_search_locations=[place] if package else None)
        return None


if ZipFinder not in sys.meta_path and importlib.machinery.PathFinder in sys.meta_path:
    # Directly before the finder that would find the same modules.
    sys.meta_path.insert(sys.meta_path.index(t.cast(t.Any, importlib.machinery.PathFinder)), t.cast(t.Any, ZipFinder))

if isinstance(t.cast(t.Any, __spec__).loader, zipimport.zipimporter):
    gc.disable()

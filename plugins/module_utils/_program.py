# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds programs that units on a host run: zip files with code of this collection.

A program is built on the host from the code that Ansible has sent for the module. The same code gives the same bytes.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import typing as t
import zipfile

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml import PYNVML, source

FOLDER = "/usr/local/lib/gpuops"
# A regular expression, because parsing all sources takes a tenth of a second.
_IMPORT = re.compile(r"^ *from (ansible_collections\.gpuops\.nvidia\.plugins\.module_utils[\w.]*) "
                     r"import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def program(start: str) -> bytes:
    """The zip file that runs C(main) of a module. start: the full name of the module."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in sorted(_sources(start).items()):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), source)
    return buffer.getvalue()


def _sources(start: str) -> dict[str, str]:
    """The sources of a module and of its imports from this collection: file name to text."""
    found = {"__main__.py": f"from {start} import main\n\nmain()\n"}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        path = module.replace(".", "/") + ".py"
        if path in found:
            continue
        spec = importlib.util.find_spec(module)
        loader: t.Any = spec.loader if spec else None
        found[path] = loader.get_source(module)
        for index in range(1, module.count(".") + 1):
            found["/".join([*module.split(".")[:index], "__init__.py"])] = ""
        for name, imported in _IMPORT.findall(found[path]):
            names = re.findall(r"(\w+)(?: as \w+)?", imported)
            waiting += [f"{name}.{one}" for one in names] if _is_package(name) else [name]
    return found


def _is_package(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


def drop_compiled(path: str) -> None:
    """Removes the compiled version of a Python file."""
    folder, name = os.path.split(path)
    cache = os.path.join(folder, "__pycache__")
    for compiled in os.listdir(cache) if os.path.isdir(cache) else ():
        if compiled.startswith(name[:-2]):
            os.unlink(os.path.join(cache, compiled))
    if os.path.isdir(cache) and not os.listdir(cache):
        os.rmdir(cache)


def pynvml(root: Root) -> bytes:
    """The content of the installed pynvml, or of that for this task. Raises MissingLibrary."""
    data = read_bytes(root.at(PYNVML))
    return data if data is not None else read_bytes(source()) or b""

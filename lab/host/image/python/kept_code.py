# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Caches the compiled code of modules that Python imports from zip files; C(kept-code.pth) loads this file at each
start of Python.

Ansible sends a module with all that it imports as a zip, which Python compiles each time: half of the processor time of
a task that finds nothing to do. The key of the cache is the source, so the executed code is the same.
"""

import _frozen_importlib_external as external  # importlib would be imported for it
import _imp
import marshal
import os
import sys
import zipimport

FOLDER = os.environ.get("GPUOPS_KEPT_CODE", "/var/lib/gpulab/kept-code")
MAGIC = int.from_bytes(external.MAGIC_NUMBER, "little")
compile_source = zipimport._compile_source


def code_of(path, source):  # type: ignore[no-untyped-def]
    """The code of a module's source, as bytes. path: what tracebacks call the module."""
    kept = f"{FOLDER}/{MAGIC:x}-{len(source):x}-{_imp.source_hash(MAGIC, source).hex()}"
    try:
        with open(kept, "rb") as file:
            code = marshal.loads(file.read())
    except OSError:
        code = compile_source(path, source)
        keep(kept, marshal.dumps(code))
    else:
        _imp._fix_co_filename(code, path)
    return code


def keep(name, data):  # type: ignore[no-untyped-def]
    """Writes a file atomically, because other hosts can write the same one."""
    own = f"{name}.{os.urandom(8).hex()}"
    try:
        with open(own, "xb") as file:
            file.write(data)
        os.replace(own, name)
    except OSError:  # no room, or no right to write: it is compiled again next time
        pass


if os.path.isdir(FOLDER):
    zipimport._compile_source = code_of


def read_at_once():  # type: ignore[no-untyped-def]
    """Copies the program on standard input to a file, and starts Python again with this file.

    Ansible sends a module on standard input, and most of it is one line. Python reads a file at once. From standard
    input it reads 4 KiB at a time and copies the whole line each time, which can take longer than the module itself.
    """
    script = os.memfd_create("script", 0)
    while True:
        part = os.read(0, 1 << 20)
        if not part:
            break
        os.write(script, part)
    os.execv(sys.executable, [sys.executable, f"/proc/self/fd/{script}"])


if len(getattr(sys, "orig_argv", "--")) == 1 and sys.executable and os.path.isdir(FOLDER) and not os.isatty(0):
    read_at_once()

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the record of a .run installer, and removes its driver.

NVIDIA's uninstaller runs first. After an interrupted installation it may be missing, or may report success without
removing files. In addition, DKMS keeps the sources of modules. The functions here remove what remains.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import (
    RECORD,
    RECORD_FOLDERS,
    Record,
    parse_record,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

UNINSTALLER = "/usr/bin/nvidia-uninstall"
_UNINSTALL_LOG = "/var/log/nvidia-uninstall.log"
# Maximum seconds for one command.
_LIMIT = 900


def read_record(root: Root) -> Record | None:
    """The record on this host, None if there is no driver from a .run file."""
    return parse_record(root.text(RECORD) or "", root.text(RECORD_FOLDERS) or "")


def missing_files(root: Root, record: Record) -> list[str]:
    """Recorded files that do not exist. Contents are not compared, because the checksum format is not documented."""
    return [path for path in record.paths if not os.path.lexists(root.at(path))]


def sources_of(version: str) -> str:
    """The folder into which the installer and DKMS write the sources of modules."""
    return f"/usr/src/nvidia-{version}"


def remove_driver(run: Runner, root: Root, versions: t.Iterable[str], sources: t.Iterable[str], kernel: str,
                  arch: str) -> None:
    """Removes a complete or incomplete driver. Raises HostError if the record or an entry of DKMS remains.

    versions: versions that may be registered with DKMS. sources: folders of this collection with sources of modules.
    """
    if root.exists(RECORD) and root.exists(UNINSTALLER):
        run([UNINSTALLER, "--silent"], timeout=_LIMIT, check=False)
    record = read_record(root)
    if record is not None:
        _remove_recorded(root, record)
    _remove_record(root)
    registered = read_dkms(root, kernel, arch)[1]
    for version in versions:
        if version in registered:
            run(["dkms", "remove", "-m", registered[version], "-v", version, "--all"], timeout=_LIMIT, check=False)
    for folder in sources:
        shutil.rmtree(root.at(folder), ignore_errors=True)
    left = [f"{version} in DKMS" for version in versions if version in read_dkms(root, kernel, arch)[1]]
    left += [RECORD] if root.exists(RECORD) else []
    if left:
        raise HostError(f"The driver of the .run file was not removed completely; left: {', '.join(left)}.",
                        f"Check {_UNINSTALL_LOG} and dkms status.")
    run(["depmod", "-a", kernel], timeout=_LIMIT, check=False)
    run(["ldconfig"], timeout=_LIMIT)
    run(["systemctl", "daemon-reload"])


def _remove_record(root: Root) -> None:
    """Removes the record, and its folder if it is empty. A file in the folder may be the only copy of a former file."""
    for path in (RECORD, RECORD_FOLDERS):
        if os.path.lexists(root.at(path)):
            os.unlink(root.at(path))
    with contextlib.suppress(OSError):
        os.rmdir(root.at(os.path.dirname(RECORD)))


def _remove_recorded(root: Root, record: Record) -> None:
    """Removes the recorded files and restores the former files."""
    for path in record.paths:
        if os.path.islink(root.at(path)) or os.path.isfile(root.at(path)):
            os.unlink(root.at(path))
    for path, target in record.links.items():
        if not os.path.lexists(root.at(path)):
            os.symlink(target, root.at(path))
    for path, (kept, mode, uid, gid) in record.backups.items():
        if os.path.isfile(root.at(kept)):
            shutil.move(root.at(kept), root.at(path))
            os.chmod(root.at(path), mode)
            os.chown(root.at(path), uid, gid)
    for folder in record.folders:
        try:
            os.rmdir(root.at(folder))
        except OSError:
            continue  # it contains files that the installer has not created

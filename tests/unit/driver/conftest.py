# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Host, Part
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import SERVICES, DriverState, Service
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

VERSION, KERNEL = "595.91.07", "6.1.0-28-amd64"


class LocalJournal(Journal):
    """A journal whose files are below a temporary root, but have the names of a host."""

    def __init__(self, root: Path) -> None:
        super().__init__("driver", root=str(root / "var/lib/gpuops/journal"))
        self.below = root

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """The same as in the base class, without a record of the former content."""
        self.keep("file", path, {"state": "absent"})
        where = self.below / path[1:]
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(data)
        where.chmod(mode)

    def restore_file(self, path: str) -> None:
        """The same as in the base class, for a file that was missing before."""
        (self.below / path[1:]).unlink(missing_ok=True)
        self.forget("file", path)


@dataclass
class Tree:
    """The files of a simulated host."""

    folder: Path

    def put(self, path: str, text: str | bytes = "") -> None:
        """Writes a file."""
        where = self._place(path)
        where.write_bytes(text.encode() if isinstance(text, str) else text)

    def link(self, path: str, target: str) -> None:
        """Creates a symbolic link, and replaces an existing one."""
        where = self._place(path)
        where.unlink(missing_ok=True)
        where.symlink_to(target)

    def read(self, path: str) -> str:
        """A file's text."""
        return (self.folder / path.lstrip("/")).read_text()

    def _place(self, path: str) -> Path:
        where = self.folder / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        return where


@dataclass
class Made(Tree):
    """A simulated host with one part of the driver: its files, its answers to commands, and the commands that were
    run."""

    journal: LocalJournal
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    now: DriverState = DriverState(
        os_id="debian", os_version="12", family="debian", arch="x86_64", kernel=KERNEL, headers=True, secure_boot=False,
        gpus=(("0000:07:00.0", None),), loaded=None, flavour=None, library=None, modules=(), built=(), registered={},
        nouveau=None, services=dict.fromkeys(SERVICES, Service("absent", "")))
    desired: DesiredDriver = DesiredDriver(VERSION, "open", delivered=True, source="cuda_repository")

    def run(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        """Answers a command by its beginning; an unknown command does nothing and succeeds."""
        self.asked.append(tuple(argv))
        self.inputs.append(options.get("stdin") or "")
        words = " ".join(argv)
        rc, text = next((answer for start, answer in self.answers.items() if words.startswith(start)), (0, ""))
        return Completed(tuple(argv), rc, text, "")

    def works(self, **services: str) -> None:
        """The driver works. services: maps parts of service names to C(active) or C(inactive); they are enabled."""
        units = {f"nvidia-{name}.service": Service(state, "enabled") for name, state in services.items()}
        self.now = replace(self.now, loaded=VERSION, flavour="open", library=VERSION, built=(VERSION,),
                           registered={VERSION: "nvidia"}, modules=("nvidia_uvm", "nvidia_modeset", "nvidia"),
                           services={**self.now.services, **units})
        self.desired = replace(self.desired, delivered=False)

    def part(self, make: t.Type[Part], **spec: t.Any) -> t.Any:
        """A part with a specification."""
        return make(Host(Spec(**spec), self.run, Root(str(self.folder)), self.journal))

    def ids(self, make: t.Type[Part], **spec: t.Any) -> list[str]:
        """The phase and id of each step that a part plans."""
        return [f"{phase}/{step.id}" for phase, step in self.part(make, **spec).plan(self.now, self.desired)]

    def do(self, make: t.Type[Part], **spec: t.Any) -> Part:
        """Plans and executes the steps of the part itself; returns the part."""
        part = self.part(make, **spec)
        for _phase, step in part.plan(self.now, self.desired):
            part.execute(step)
        return t.cast(Part, part)


@pytest.fixture
def made(tmp_path: Path) -> t.Iterator[Made]:
    """A bare host on which a driver is installed."""
    journal = LocalJournal(tmp_path)
    with journal:
        yield Made(tmp_path, journal)

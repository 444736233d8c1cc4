# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual machine with a real kernel, which is emulated, so it needs no feature of this machine's processor or
kernel.

It continues from a saved state (memory, devices and disk), which later machines share and none of them changes.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import runs
from lab.controlplane import processes
from lab.host import engine
from lab.host import image as host_image
from lab.tools import cached, run_quietly
from lab.vm import image, packages
from lab.vm.qmp import Monitor

CODE = Path(__file__).resolve().parents[2]
REPOSITORIES = "10.0.2.100"  # an address of the guest's network that QEMU answers at
HARDWARE = ("-accel", "tcg,thread=multi,tb-size=512", "-machine", "q35", "-cpu", "Nehalem", "-smp", "1", "-m", "1536",
            "-nodefaults", "-no-user-config", "-display", "none", "-device", "virtio-rng-pci")
SSH = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o",
       "IdentitiesOnly=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8")


@dataclass
class Machine:
    """The stored data of a machine. port: the port of this machine for its SSH. mark: its process."""

    name: str
    port: int
    mark: tuple[int, int]
    state: str

    @property
    def folder(self) -> Path:
        """The folder of its disk, its console and its log."""
        return machines_folder() / self.name

    @property
    def monitor(self) -> Path:
        """The socket of its monitor; its path is short, as sockets' paths must be."""
        return engine.run_folder() / f"vm-{runs.title(self.name)}"

    @property
    def shared(self) -> tuple[str, ...]:
        """SSH options for one connection that several commands share, because an emulated machine takes long to open
        one."""
        return ("-o", "ControlMaster=auto", "-o", "ControlPersist=120s", "-o", f"ControlPath={self.monitor}.ssh")

    @property
    def runs(self) -> bool:
        """Whether its process exists."""
        return processes.runs((self.mark[0], self.mark[1]))

    def ssh(self, *words: str, check: bool = True, capture: bool = True, stdin: str | None = None,
            limit: float = 2400.0) -> subprocess.CompletedProcess[str]:
        """Runs a command in it as root."""
        command = ["ssh", *SSH, *self.shared, "-i", str(host_image.key()), "-p", str(self.port), "root@127.0.0.1",
                   *words]
        done = subprocess.run(command, text=True, check=False, capture_output=capture, timeout=limit,
                              **({"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}))
        if check and done.returncode:
            raise SystemExit(f"{self.name}: {' '.join(words)}: {done.stderr or ''}{done.stdout or ''}".rstrip())
        return done

    def connect(self, limit: float = 120.0) -> Monitor:
        """Its monitor, once it listens: its socket is there a moment before that."""
        end = time.monotonic() + limit
        while True:
            try:
                return Monitor(self.monitor)
            except (FileNotFoundError, ConnectionRefusedError) as problem:
                if not self.runs or time.monotonic() > end:
                    log = (self.folder / "qemu.log").read_text(errors="replace")[-500:]
                    raise SystemExit(f"QEMU did not start: {log}") from problem
            time.sleep(0.05)

    def wait(self, limit: float = 600.0) -> None:
        """Until SSH answers."""
        end = time.monotonic() + limit
        while self.ssh("true", check=False).returncode:
            if not self.runs or time.monotonic() > end:
                log = (self.folder / "qemu.log").read_text(errors="replace")[-500:]
                raise SystemExit(f"the virtual machine {self.name} does not answer; see {self.folder}/console\n{log}")
            time.sleep(0.3)

    def close(self) -> None:
        """Ends the shared connection."""
        subprocess.run(["ssh", "-O", "exit", *self.shared, "root@127.0.0.1"], check=False, capture_output=True,
                       timeout=120)

    def reboot(self) -> None:
        """Reboots it as its administrator would; returns when it is ready."""
        read = "cat /proc/sys/kernel/random/boot_id"
        before = self.ssh(read).stdout
        self.ssh("systemctl reboot", check=False)
        self.close()
        end = time.monotonic() + 600
        while (done := self.ssh(read, check=False)).returncode or done.stdout == before:
            if not self.runs or time.monotonic() > end:
                raise SystemExit(f"{self.name} does not come back; see {self.folder}/console")
            time.sleep(0.5)
        self.ssh("systemctl is-system-running --wait", check=False, limit=600)

    def ended(self, limit: float = 120.0) -> None:
        """Waits until its process has ended, after its monitor has received the command."""
        end = time.monotonic() + limit
        while self.runs:
            if time.monotonic() > end:
                raise SystemExit(f"the virtual machine {self.name} was told to end and has not after {limit:.0f} s")
            time.sleep(0.1)

    def save(self) -> None:
        """Writes the record."""
        (self.folder / "vm.json").write_text(json.dumps(asdict(self)) + "\n")


def machines_folder() -> Path:
    """The folder of the files of all machines of this run."""
    return runs.folder() / "vms"


def names() -> list[str]:
    """The existing machines."""
    return sorted(path.parent.name for path in machines_folder().glob("*/vm.json"))


def load(name: str) -> Machine:
    """The machine of this name."""
    record = machines_folder() / name / "vm.json"
    if not record.exists():
        there = ", ".join(names()) or "none"
        raise SystemExit(f"there is no machine {name} (machines: {there}); start one: lab vm up --name {name}")
    found = json.loads(record.read_text())
    return Machine(**{**found, "mark": tuple(found["mark"])})


FIRST_BOOT = "systemctl is-system-running --wait"


def booted() -> Path:
    """The state of a machine that has booted once and has no driver."""
    return state("booted", [str(image.disk()).encode(), FIRST_BOOT.encode()], None,
                 lambda machine: machine.ssh(FIRST_BOOT))


def state(kind: str, inputs: list[bytes], origin: Path | None, prepare: Callable[[Machine], object]) -> Path:
    """The folder of a saved state, which is created if necessary: a machine continues from another state and is
    prepared.

    inputs: what the preparation depends on. origin: the state before, None for a disk that was never booted.
    """
    def make(folder: Path) -> None:
        print(f"making the virtual machine's state '{kind}'", flush=True)
        start_time = time.monotonic()
        name = f"making-{kind}"
        remove(name)
        machine = start(name, origin)
        try:
            prepare(machine)
            # Dropping caches would save space, but Debian's 6.1.192 has an ext4 that then finds no page of its bitmaps
            # (ext4_mb_load_buddy_gfp), and every process that makes a folder ends.
            machine.ssh("sync")
            with machine.connect() as monitor:
                monitor.save(folder / "memory")
                monitor("quit")
            machine.ended()
            shutil.move(machine.folder / "disk.qcow2", folder / "disk.qcow2")
        finally:
            remove(name)
        print(f"state '{kind}' made in {time.monotonic() - start_time:.0f} s", flush=True)

    all_inputs = [str(origin).encode(), image.qemu_version().encode(), " ".join(HARDWARE).encode(), *inputs]
    return cached(f"vm-state-{kind}", all_inputs, make)


def start(name: str, origin: Path | None) -> Machine:
    """Starts a fresh machine that continues from a state, or boots; returns when it responds."""
    folder = machines_folder() / name
    folder.mkdir(parents=True)
    engine.run_folder().mkdir(mode=0o700, exist_ok=True)
    base = origin / "disk.qcow2" if origin else image.disk()
    run_quietly(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(base),
                 str(folder / "disk.qcow2")], "the disk of the virtual machine")
    machine = Machine(name, 0, (0, 0), str(origin or ""))
    incoming = ["-incoming", "defer"] if origin else []
    served = f"{sys.executable} -m lab.vm.inetd {packages.repository()} {folder / 'faults'}"
    command = [
        "qemu-system-x86_64", *HARDWARE,
        "-drive", f"file={folder / 'disk.qcow2'},if=virtio,cache=unsafe,discard=unmap",
        "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22,"
                   f"guestfwd=tcp:{REPOSITORIES}:80-cmd:{served.replace(',', ',,')}",
        "-device", "virtio-net-pci,netdev=net,romfile=", "-serial", f"file:{folder / 'console'}",
        "-qmp", f"unix:{machine.monitor},server=on,wait=off", *incoming]
    with (folder / "qemu.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=CODE, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
    machine.mark = (process.pid, processes.began(process.pid))
    machine.save()
    try:
        with machine.connect() as monitor:
            machine.port = forwarded(monitor)
            machine.save()
            if origin:
                monitor.resume(origin / "memory")
        machine.wait()
        # Its clock goes on from when it was saved.
        machine.ssh(f"date --utc --set @{int(time.time())}")
    except BaseException:
        processes.stop([machine.mark])
        raise
    return machine


def forwarded(monitor: Monitor) -> int:
    """The port of this machine that QEMU uses for the SSH of the guest."""
    shown = monitor("human-monitor-command", **{"command-line": "info usernet"})
    found = re.search(r"HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", shown)
    if not found:
        raise SystemExit(f"QEMU forwards no port to the virtual machine: {shown}")
    return int(found[1])


def up(name: str, origin: Path | None = None) -> Machine:
    """Replaces a machine of this name with a fresh one from a state, by default one without a driver."""
    found = origin or booted()
    remove(name)
    return start(name, found)


def remove(name: str) -> None:
    """Ends a machine and removes its files, if it exists."""
    if name in names():
        machine = load(name)
        machine.close()
        processes.stop([machine.mark])
        machine.monitor.unlink(missing_ok=True)
    shutil.rmtree(machines_folder() / name, ignore_errors=True)


def purge() -> None:
    """Ends all machines of this run; cached states stay."""
    for name in names():
        remove(name)
    shutil.rmtree(machines_folder(), ignore_errors=True)
    with contextlib.suppress(OSError):  # not there, or another run has something in it
        engine.run_folder().rmdir()

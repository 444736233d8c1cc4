# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the state of a host to step ids, and what each level of disruption allows."""

from __future__ import annotations

import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import Build
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs, request_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.manage import PARTS
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.module_parameters import BOOT_FILE, boot_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import must_reload
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.nouveau import DENY_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import (
    changes_modules,
    gate_driver,
    plan_absent,
    plan_present,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import SERVICES, DriverState, Service
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.verify import disagreements
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml import PYNVML
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import PERSISTENCED

NEW, OLD, KERNEL = "595.91.07", "580.95.05", "6.1.0-28-amd64"
ALL = ("nvidia_uvm", "nvidia_modeset", "nvidia")


def units(service: Service) -> dict[str, Service]:
    """Only the unit persistenced exists."""
    return {**dict.fromkeys(SERVICES, Service("absent", "")), PERSISTENCED: service}


ACTIVE, ABSENT = units(Service("active", "enabled")), units(Service("absent", ""))
BARE = DriverState(
    os_id="debian", os_version="12", family="debian", arch="x86_64", kernel=KERNEL, headers=True, secure_boot=False,
    gpus=(("0000:07:00.0", None),), loaded=None, flavour=None, library=None, modules=(), built=(), registered={},
    nouveau=None, services=ABSENT)
RUNNING = replace(BARE, loaded=NEW, flavour="open", library=NEW, modules=ALL, built=(NEW,), registered={NEW: "nvidia"},
                  services=ACTIVE)
FORMER = replace(RUNNING, loaded=OLD, library=OLD, built=(OLD,), registered={OLD: "nvidia"})
INSTALL = Step("install packages", "nvidia-driver-cuda", data={"packages": {"nvidia-kernel-open-dkms": "1"}})
SMI = Step("install packages", "nvidia-smi", data={"packages": {"nvidia-smi": "1"}})
PYTHON = {"pid": 4711, "name": "python3", "gpu": "0000:07:00.0", "instance": None, "unit": None, "container": None}

BUILD = f"build modules: {NEW} for kernel {KERNEL}"
LOADS = ["load module: nvidia", "load module: nvidia-uvm", "load module: nvidia-modeset"]
START = "enable and start service: nvidia-persistenced.service"
STOP = "disable and stop service: nvidia-persistenced.service"
SHIP = f"install file: {PYNVML}"
UNLOAD = "unload modules: nvidia_uvm nvidia_modeset nvidia"
DENY = f"deny nouveau: {DENY_FILE}"
BOOT = f"list modules for boot: {BOOT_FILE}"
INITRAMFS = f"rebuild initramfs: {KERNEL}"
RIVAL = "unload conflicting module: nouveau"


class Case(t.NamedTuple):
    """The differences from the defaults of a plan."""

    situation: DriverState
    expected: list[str]
    packages: t.Sequence[Step] = ()
    flavour: str = "open"
    persistenced: bool = True
    holders: t.Sequence[dict[str, t.Any]] = ()
    owed: bool = False
    initramfs: bool = False
    files: t.Sequence[str] = (PYNVML, DENY_FILE, BOOT_FILE)


CASES = {
    "converged": Case(RUNNING, []),
    "bare": Case(BARE, [INSTALL.id, BOOT, BUILD, *LOADS, SHIP, START], [INSTALL], files=()),
    "no persistence": Case(BARE, [INSTALL.id, BOOT, BUILD, *LOADS, SHIP], [INSTALL], persistenced=False,
                           files=()),
    "persistence no longer": Case(RUNNING, [STOP], persistenced=False),
    "a package without modules": Case(RUNNING, [SMI.id], [SMI]),
    "built for no kernel": Case(replace(RUNNING, built=()), [BUILD]),
    "not loaded": Case(replace(RUNNING, loaded=None, flavour=None, modules=()), LOADS),
    "not built for this kernel": Case(replace(BARE, registered={NEW: "nvidia"}), [BUILD, *LOADS, START]),
    "uvm not loaded": Case(replace(RUNNING, modules=("nvidia_modeset", "nvidia")), [LOADS[1]]),
    "service stopped": Case(replace(RUNNING, services=units(Service("inactive", "enabled"))), [START]),
    "service disabled": Case(replace(RUNNING, services=units(Service("active", "disabled"))), [START]),
    "service started by udev": Case(replace(RUNNING, services=units(Service("active", "static"))), []),
    "switch": Case(FORMER, [UNLOAD, INSTALL.id, BUILD, *LOADS, START], [INSTALL]),
    "other flavour": Case(RUNNING, [UNLOAD, INSTALL.id, BUILD, *LOADS, START], [INSTALL], flavour="proprietary"),
    "version mismatch after an upgrade by hand": Case(replace(RUNNING, loaded=OLD), [UNLOAD, *LOADS, START]),
    "libraries of another version under the right module": Case(replace(RUNNING, library=OLD), [SMI.id], [SMI]),
    "nouveau on disk": Case(replace(BARE, nouveau="installed"),
                            [INSTALL.id, DENY, BOOT, BUILD, INITRAMFS, *LOADS, SHIP, START],
                            [INSTALL], initramfs=True, files=()),
    "nouveau loaded": Case(replace(BARE, nouveau="loaded"), [INSTALL.id, DENY, BOOT, BUILD, RIVAL, *LOADS, SHIP, START],
                           [INSTALL], files=()),
    "nouveau denied already": Case(replace(RUNNING, nouveau="installed"), [], initramfs=True),
    "killed before the initramfs": Case(replace(RUNNING, nouveau="installed"), [INITRAMFS], owed=True, initramfs=True),
}


@pytest.fixture
def host(tmp_path: Path) -> t.Iterator[Host]:
    """A file tree with a journal in it, and a runner without commands."""
    (tmp_path / "proc").mkdir()
    with Journal("driver", root=str(tmp_path / "journal")) as journal:
        yield Host(Spec(), run, Root(str(tmp_path)), journal, check=True)


def put(host: Host, *paths: str) -> None:
    for path in paths:
        where = Path(host.root.at(path))
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(boot_text(host.spec, "none") if path == BOOT_FILE else b"")


def plan(case: Case, host: Host) -> list[Step]:
    put(host, *case.files)
    if case.initramfs:
        put(host, "/usr/sbin/update-initramfs", f"/boot/initrd.img-{KERNEL}")
    if case.owed:
        request_rebuild(host.journal)
    host = replace(host, spec=Spec(persistenced=case.persistenced))
    desired = DesiredDriver(NEW, case.flavour, must_reload(case.situation, NEW, case.flavour), case.holders,
              changes_modules(case.packages))
    return plan_present(case.situation, desired, [make(host) for make in PARTS], Initramfs(host), [], case.packages)


@pytest.mark.parametrize("name", CASES)
def test_present(name: str, host: Host) -> None:
    assert [step.id for step in plan(CASES[name], host)] == CASES[name].expected


@pytest.mark.parametrize(("name", "level", "done"), [
    ("bare", "never", 8), ("switch", "never", 0), ("switch", "idle", 7), ("nouveau loaded", "never", 10),
    ("version mismatch after an upgrade by hand", "never", 0), ("version mismatch after an upgrade by hand", "idle", 5),
])
def test_levels(name: str, level: str, done: int, host: Host) -> None:
    steps = plan(CASES[name], host)
    allowed, pending = gate_driver(steps, level)
    assert allowed == steps[:done]
    assert [step.id for step in pending] == [step.id for step in steps[done:]]


@pytest.mark.parametrize("level", ["never", "idle", "drain", "reboot"])
def test_a_held_module_is_never_unloaded_and_nothing_else_is_done(level: str, host: Host) -> None:
    steps = plan(CASES["switch"]._replace(holders=[PYTHON]), host)
    allowed, pending = gate_driver(steps, level)
    assert allowed == []
    assert [step.id for step in pending] == CASES["switch"].expected
    assert pending[0].pending_reason == "in use by python3 (pid 4711) on 0000:07:00.0"
    assert pending[1].pending_reason == f"it follows '{UNLOAD}'"


@pytest.mark.parametrize("level", ["never", "reboot"])
def test_nouveau_in_use_waits_for_a_reboot_with_all_else_done(level: str, host: Host) -> None:
    case = CASES["nouveau on disk"]
    steps = plan(case._replace(situation=replace(BARE, nouveau="used")), host)
    allowed, pending = gate_driver(steps, level)
    assert [step.id for step in allowed] == [INSTALL.id, DENY, BOOT, BUILD, INITRAMFS]
    assert pending[0].id == RIVAL
    assert "reboot the host" in pending[0].pending_reason


PURGE = Step("purge packages", "nvidia-driver-cuda", data={"packages": ["nvidia-driver-cuda"]})
DROP = Step("remove repository", "cuda", data={"files": []})


def absent(situation: DriverState, packages: list[Step], files: list[str], service: dict[str, str],
           holders: list[dict[str, t.Any]], host: Host) -> list[Step]:
    put(host, "/usr/sbin/update-initramfs", f"/boot/initrd.img-{KERNEL}")
    if service:
        host.journal.keep("service", PERSISTENCED, service)
    return plan_absent(situation, [make(host) for make in PARTS], Initramfs(host), packages, files, holders)


@pytest.mark.parametrize(("situation", "packages", "files", "service", "expected"), [
    (RUNNING, [PURGE, DROP], [PYNVML], {"state": "absent", "enabled": ""},
     [UNLOAD, STOP, PURGE.id, DROP.id, f"restore file: {PYNVML}"]),
    (replace(RUNNING, modules=(), loaded=None), [PURGE], [], {}, [PURGE.id]),
    (RUNNING, [DROP], [DENY_FILE], {"state": "active", "enabled": "enabled"},
     [DROP.id, f"restore file: {DENY_FILE}", INITRAMFS]),
    (RUNNING, [], [], {}, []),
])
def test_absent(situation: DriverState, packages: list[Step], files: list[str], service: dict[str, str],
                expected: list[str], host: Host) -> None:
    steps = absent(situation, packages, files, service, [], host)
    assert [step.id for step in steps] == expected
    assert gate_driver(steps, "idle") == (steps, [])
    assert gate_driver(steps, "never")[0] == ([] if UNLOAD in expected else steps)


def test_absent_with_holders_stays_pending(host: Host) -> None:
    steps = absent(RUNNING, [PURGE], [PYNVML], {}, [PYTHON], host)
    allowed, pending = gate_driver(steps, "drain")
    assert allowed == []
    assert len(pending) == len(steps)


@pytest.mark.parametrize(("situation", "expected"), [
    (RUNNING, ""), (BARE, ""), (FORMER, f"{OLD} is loaded, but {NEW} is desired"),
    (replace(RUNNING, flavour="proprietary"), "the proprietary module is loaded, but the open one is desired"),
    (replace(RUNNING, loaded=None, flavour=None), "the version of the loaded module is unknown"),
])
def test_must_reload(situation: DriverState, expected: str) -> None:
    assert must_reload(situation, NEW, "open") == expected


@pytest.mark.parametrize(("situation", "packages", "expected"), [
    (RUNNING, NEW, []),
    (BARE, NEW, ["no NVIDIA module is loaded"]),
    (replace(RUNNING, library=OLD), NEW, [f"Driver/library version mismatch: module {NEW}, libraries {OLD}"]),
    (replace(RUNNING, library=None), NEW, ["libnvidia-ml is not installed"]),
    (RUNNING, OLD, [f"the packages are {OLD}, not {NEW}"]),
    (replace(RUNNING, flavour="proprietary"), NEW, ["the loaded module is proprietary, not open"]),
])
def test_disagreements(situation: DriverState, packages: str, expected: list[str]) -> None:
    assert disagreements(situation, NEW, "open", packages) == expected


def test_an_adopted_driver_needs_neither_dkms_nor_packages() -> None:
    assert disagreements(replace(RUNNING, built=()), None, None, None) == []


@pytest.mark.parametrize("source", ["nvidia", "nvidia-current-open", ""])
def test_a_driver_that_dkms_has_forgotten_is_registered_by_its_sources(made: t.Any, source: str) -> None:
    """The state is that after C(dkms remove --all). Without sources, check mode fails as a run does."""
    made.works()
    made.now = replace(made.now, built=(), registered={})
    if not source:
        with pytest.raises(HostError, match=f"Driver {NEW} is not registered with DKMS"):
            made.ids(Build)
        assert made.asked == []
        return
    made.put(f"/usr/src/{source}-{NEW}/dkms.conf")
    with pytest.raises(HostError, match=f"DKMS did not build {source}/{NEW}"):
        made.do(Build)
    assert made.asked[0][:6] == ("dkms", "install", "-m", source, "-v", NEW)
    assert "--force" in made.asked[0]  # else DKMS leaves modules that it takes for installed


def test_what_dkms_did_not_build_is_said(host: Host) -> None:
    desired = DesiredDriver(NEW, "open")
    assert Build(host).disagreements(RUNNING, desired) == []
    assert Build(host).disagreements(replace(RUNNING, built=()), desired) == [
        f"DKMS has not built {NEW} for kernel {KERNEL}"]
    assert Build(host).disagreements(replace(RUNNING, built=()), replace(desired, dkms=False)) == []

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired state of components on a host, and the plan and the effect of a run, on simulated hosts with real
journals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import typing as t
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.module_utils import basic
from ansible_collections.gpuops.nvidia.plugins.action import nvidia_software
from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import PackageState, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import PYNVML, program
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import component_installer, dcgm, manage, report
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import Desired, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.component_installer import Installer
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.cuda import Cuda
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.dcgm import Dcgm
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.dcgm_exporter import (
    COUNTERS,
    DROP_IN,
    DcgmExporter,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.manage import Software
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.node_status import PROGRAM, NodeStatusExporter
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import Service
from ansible_collections.gpuops.nvidia.plugins.modules import nvidia_software as software_module

A100, V100 = model_of("20b2"), model_of("1db5")
STATUS = {"folder": "/metrics", "interval": 30}


def host(cuda: str | None = "13.2", *models: t.Any, packages: t.Iterable[str] = (),
         wanted: t.Iterable[str] = ("dcgm", "dcgm_exporter"), root: str = "/nonexistent") -> Host:
    return Host(Root(root), cuda, models or (A100,), dict.fromkeys(packages, "1"), tuple(wanted), "/usr/bin/python3")


@pytest.mark.parametrize(("version", "package", "exact"), [
    ("13.0", "cuda-toolkit-13-0", None), ("13.0.2", "cuda-toolkit-13-0", "13.0.2"), ("12", "cuda-toolkit-12", None),
    ("", "cuda-toolkit-13", None), ("12.9", "cuda-toolkit-12-9", None)])
def test_cuda_by_its_level(version: str, package: str, exact: str | None) -> None:
    desired = Cuda.desired({"version": version}, host())
    assert desired.packages == {package: exact} and not desired.files and not desired.notes


def test_cuda_and_the_driver() -> None:
    with pytest.raises(InputError, match=r"CUDA 14.0 does not run on .* whose CUDA level is 13.2. .*13.x"):
        Cuda.desired({"version": "14.0"}, host())
    assert "minor version compatibility" in Cuda.desired({"version": "13.3"}, host()).notes[0]
    assert "was not compared" in Cuda.desired({"version": "14.0"}, host(None)).notes[0]
    with pytest.raises(HostError, match="no driver is installed"):
        Cuda.desired({"version": None}, host(None))
    with pytest.raises(InputError, match="cuda.version: 'newest' is not a CUDA level"):
        Cuda.desired({"version": "newest"}, host())
    with pytest.raises(InputError, match="is not a CUDA level"):
        Cuda.desired({"version": "9" * 5000}, host())
    assert Cuda.desired({"version": "13.0", "profile": True}, host()).files


@pytest.mark.parametrize(("level", "model", "levels"), [
    ("13.2", A100, {"cuda13"}), ("12.8", A100, {"cuda12"}), ("13.0", V100, {"cuda12", "cuda13"}),
    ("12.2", V100, {"cuda12"})])
def test_dcgm_is_for_the_drivers_cuda(level: str, model: t.Any, levels: set[str]) -> None:
    desired = Dcgm.desired({"version": "4.6.0", "profiling": False}, host(level, model))
    assert set(desired.packages) == {f"datacenter-gpu-manager-4-{part}" for part in {"core", *levels}}
    assert set(desired.packages.values()) == {"4.6.0"} and list(desired.replaced) == ["datacenter-gpu-manager"]
    more = Dcgm.desired({"version": "", "profiling": True}, host(level, model)).packages
    assert set(more) - set(desired.packages) == {f"datacenter-gpu-manager-4-proprietary{part}" for part in
                                              ("", *(f"-{level}" for level in levels))}
    assert set(more.values()) == {None}


def test_dcgm_needs_to_know_the_driver() -> None:
    with pytest.raises(HostError, match="driver_cuda"):
        Dcgm.desired({}, host(None))
    with pytest.raises(InputError, match="dcgm.version: 'v4' is not a version"):
        Dcgm.desired({"version": "v4"}, host())


@pytest.mark.parametrize(("listen", "address"), [
    (":9400", ("127.0.0.1", 9400)), ("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:9400", ("::1", 9400)),
    ("0.0.0.0:9400", ("127.0.0.1", 9400)), ("metrics.lan:9400", ("metrics.lan", 9400))])
def test_where_the_exporter_listens(listen: str, address: tuple[str, int]) -> None:
    desired = DcgmExporter.desired({"listen": listen}, host())
    assert desired.address == address
    assert f"--address {listen} --collectors /etc/dcgm-exporter/default-counters.csv" in desired.files[DROP_IN].decode()


def test_arguments_and_variables_of_the_exporter() -> None:
    text = DcgmExporter.desired({
        "args": ["--a=b c", "50%$x", 'q"\\'], "env": {"B": "50% $x", "A": 'q"\\'}, "job_mapping": "/var/jobs",
        "web_config": "/etc/web.yml"}, host()).files[DROP_IN].decode()
    assert text.splitlines()[2:5] == ['Environment="A=q\\"\\\\"', 'Environment="B=50%% $x"', "ExecStart="]
    assert text.endswith(' --hpc-job-mapping-dir /var/jobs --web-config-file /etc/web.yml "--a=b c" "50%%$$x" '
                         '"q\\"\\\\"\n')


def test_arguments_and_variables_of_dcgm() -> None:
    def text(**options: t.Any) -> str:
        return Dcgm.desired(t.cast(t.Any, options), host()).files[dcgm.DROP_IN].decode()

    assert Dcgm.desired({}, host()).files == {}
    assert text(env={"DCGM_SUPPORT_NON_NVIDIA_CPU": "1"}) == (
        '# Written by gpuops.nvidia.\n[Service]\nEnvironment="DCGM_SUPPORT_NON_NVIDIA_CPU=1"\n')
    assert text(args=["--log-level", "DEBUG", "-f", "/var/log/50%.log", "-b", "ALL"]).splitlines()[2:] == [
        "ExecStart=", 'ExecStart=/usr/bin/nv-hostengine -n --service-account nvidia-dcgm "--log-level" "DEBUG" "-f" '
        '"/var/log/50%%.log" "-b" "ALL"']
    assert Dcgm.desired({"args": ["-b ALL"]}, host()).notes == [dcgm.OPEN]
    assert Dcgm.desired({"args": ["--bind-interface", "127.0.0.1", "-f", "-"]}, host()).notes == []


@pytest.mark.parametrize("args", [
    ["-n"], ["--service-account", "root"], ["-p", "5556"], ["-p 5556"], ["--port=5556"], ["-d"], ["-d", "/tmp/x"],
    ["--vsock-cid"], ["-t"], ["-nt"], ["-bALL"], ["-b"], ["-b", "10.0.0.1"], ["--pid", "/x"], ["--help"], ["--"],
    ["-f", "/a", "--log-filename", "/b"], ["-b0.0.0.0"], ["-p5556"], ["-b", "ALL", "--bind-interface", "127.0.0.1"],
    ["sh", "-c", "x"], ["--log-level", "INFO", "--log-level", "DEBUG"], ["-f", "a\nExecStartPre=/bin/x"]])
def test_arguments_with_which_dcgm_does_not_work(args: list[str]) -> None:
    with pytest.raises(InputError, match=r"dcgm\.args: "):
        Dcgm.desired({"args": args}, host())


@pytest.mark.parametrize("env", [{"A B": "x"}, {"A": "a\nUser=x"}])
def test_variables_that_no_unit_can_contain(env: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"dcgm\.env: "):
        Dcgm.desired({"env": env}, host())


@pytest.mark.parametrize(("option", "value"), [
    ("args", ["a\nExecStartPre=/bin/x"]), ("env", {"A": "a\nUser=x"}), ("env", {"A B": "x"}), ("env", {"": "x"}),
    ("job_mapping", "jobs"), ("job_mapping", "/a b"), ("web_config", "/a%n"), ("web_config", "/a\nUser=x")])
def test_what_no_unit_can_contain(option: str, value: t.Any) -> None:
    with pytest.raises(InputError, match=f"dcgm_exporter.{option}"):
        DcgmExporter.desired(t.cast(t.Any, {option: value}), host())


@pytest.mark.parametrize("listen", ["9400", ":0", ":65536", ":94 00", "a b:9400", "$(id):9400", ":9400\nExecStart=x"])
def test_what_is_no_address(listen: str) -> None:
    with pytest.raises(InputError, match="dcgm_exporter.listen"):
        DcgmExporter.desired({"listen": listen}, host())


def test_the_exporter_and_what_it_asks() -> None:
    with pytest.raises(InputError, match="The exporter needs DCGM 4"):
        DcgmExporter.desired({}, host(wanted=["dcgm_exporter"]))
    there = host(packages=["datacenter-gpu-manager-4-core"], wanted=["dcgm_exporter"])
    desired = DcgmExporter.desired({"counters": "DCGM_FI_DEV_GPU_TEMP, gauge, t\n\n"}, there)
    assert desired.files[COUNTERS] == b"DCGM_FI_DEV_GPU_TEMP, gauge, t\n"
    assert f"--collectors {COUNTERS}" in desired.files[DROP_IN].decode()


def test_the_program_runs_by_itself(tmp_path: Path) -> None:
    archive = program(report.__name__)
    assert archive == program(report.__name__)
    names = zipfile.ZipFile(io.BytesIO(archive)).namelist()
    assert any(name.endswith("_nvml.py") for name in names) and not any("ansible/" in name for name in names)
    (tmp_path / "node-status.pyz").write_bytes(archive)
    subprocess.run([sys.executable, "-I", "node-status.pyz", "x.prom"], cwd=tmp_path, check=True, env={})
    assert "gpu_operator_node_driver_ready" in (tmp_path / "x.prom").read_text()


def test_the_node_status_exporter(tmp_path: Path) -> None:
    there = tmp_path / PYNVML.lstrip("/")
    there.parent.mkdir(parents=True)
    there.write_bytes(b"# the one of the driver")
    desired = NodeStatusExporter.desired(STATUS, host(root=str(tmp_path)))
    assert desired.files[PYNVML] == b"# the one of the driver" and desired.files[PROGRAM] == program(report.__name__)
    service = desired.files["/etc/systemd/system/gpuops-node-status.service"].decode()
    assert f"ExecStart=/usr/bin/python3 {PROGRAM} /metrics/gpuops-node-status.prom" in service
    assert "OnUnitActiveSec=30s" in desired.files["/etc/systemd/system/gpuops-node-status.timer"].decode()
    for wrong in ({"folder": "metrics"}, {"folder": "/a b"}, {"folder": "/%n"}, {"interval": 4}, {"interval": 90000}):
        with pytest.raises(InputError, match="node_status_exporter"):
            NodeStatusExporter.desired({**STATUS, **wrong}, host(root=str(tmp_path)))


def machine(tmp_path: Path, loaded: str | None, library: str | None) -> Root:
    """A host with two NVIDIA devices on its bus."""
    for name, vendor, kind in (("0000:07:00.0", "0x10de", "0x030200"), ("0000:07:00.1", "0x10de", "0x040300"),
                               ("0000:09:00.0", "0x8086", "0x020000")):
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        for key, value in (("vendor", vendor), ("device", "0x20b2"), ("class", kind), ("subsystem_vendor", "0x10de"),
                           ("subsystem_device", "0x1463")):
            (folder / key).write_text(value)
        (folder / "driver").symlink_to("/sys/bus/pci/drivers/nvidia")
    if loaded:
        (tmp_path / "sys/module/nvidia").mkdir(parents=True)
        (tmp_path / "sys/module/nvidia/version").write_text(loaded)
    if library:
        (tmp_path / "usr/lib64").mkdir(parents=True)
        (tmp_path / "usr/lib64/libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{library}")
    return Root(str(tmp_path))


def snapshot(available: bool = True, **gpu: t.Any) -> dict[str, t.Any]:
    seen = {"pci": "0000:07:00.0", "device_id": "20b2", "subsystem": "10de:1463", "model": "A100", "index": 0,
            "uuid": "GPU-1", "minor": 0, "serial": None, "memory_mib": 81920, "compute_capability": "8.0",
            "mig": {"enabled": False, "pending": False, "instances": []}, "error": None, **gpu}
    return {"available": available, "error": None, "driver": None, "library": None, "cuda": "13.2", "clients": [],
            "gpus": [seen] if available else []}


def values(root: Root, told: dict[str, t.Any], former: str = "") -> dict[str, float]:
    """Maps names to single samples."""
    made = report.metrics(root, told, former, 1000.0)
    return {name: samples[0][1] for name, samples in made.items() if samples}


def test_metrics_of_a_node_that_works(tmp_path: Path) -> None:
    found = values(machine(tmp_path, "595.91.07", "595.91.07"), snapshot())
    assert found["gpu_operator_node_driver_ready"] == found["gpu_operator_node_driver_validation"] == 1
    assert found["gpu_operator_node_driver_validation_last_success_ts_seconds"] == 1000
    assert found["gpu_operator_nvidia_pci_devices_total"] == 2 and found["gpuops_node_gpus"] == 1
    assert not any(found[f"gpuops_node_{name}"] for name in (
        "driver_version_mismatch", "reboot_pending", "gpu_lost", "gpu_mig_mode_pending"))


@pytest.mark.parametrize(("loaded", "library", "told", "which"), [
    ("595.91.07", "595.91.07", snapshot(uuid=None, error="GPU_IS_LOST"), {"gpu_lost"}),
    ("580.126.20", "595.91.07", snapshot(False), {"driver_version_mismatch", "reboot_pending"}),
    (None, "595.91.07", snapshot(False), set()),
    ("595.91.07", "595.91.07", snapshot(mig={"enabled": False, "pending": True, "instances": []}),
     {"gpu_mig_mode_pending"})])
def test_metrics_of_a_node_in_trouble(tmp_path: Path, loaded: str | None, library: str, told: dict[str, t.Any],
                                      which: set[str]) -> None:
    former = 'gpu_operator_node_driver_validation_last_success_ts_seconds{node="a"} 77\n'
    found = values(machine(tmp_path, loaded, library), told, former)
    flags = ("driver_version_mismatch", "reboot_pending", "gpu_lost", "gpu_mig_mode_pending")
    assert {name for name in flags if found.get(f"gpuops_node_{name}")} == which
    works = which == {"gpu_mig_mode_pending"}
    assert found["gpu_operator_node_driver_validation"] == works
    assert found["gpu_operator_node_driver_validation_last_success_ts_seconds"] == (1000 if works else 77)


def test_metrics_as_text() -> None:
    text = report.render({"gpuops_node_gpus": [({}, 2)], "gpuops_node_gpu_lost": [({"gpu": "0000:07:00.0"}, True)],
                          "gpuops_node_gpu_mig_mode_pending": []}, "node-1")
    assert text.splitlines()[2] == 'gpuops_node_gpus{node="node-1"} 2'
    assert text.splitlines()[-1] == 'gpuops_node_gpu_lost{gpu="0000:07:00.0",node="node-1"} 1'
    assert "mig_mode" not in text


class Systemd:
    """systemctl of a host with one unit; answers and records."""

    def __init__(self, state: str = "inactive", enabled: str = "disabled") -> None:
        self.state, self.enabled = state, enabled
        self.calls: list[str] = []

    def __call__(self, argv: t.Sequence[str], **_options: t.Any) -> Completed:
        words = list(argv)
        self.calls.append(" ".join(words[1:3]))
        if words[1] in ("start", "restart"):
            self.state = "active"
        if words[1] == "enable":
            self.enabled = "enabled"
        if words[1] == "disable":
            self.state, self.enabled = "inactive", "disabled"
        told = f"LoadState=loaded\nActiveState={self.state}\nUnitFileState={self.enabled}\n"
        return Completed(tuple(words), 0, told, "")


def one_run(tmp_path: Path, desired: Desired | None, systemd: Systemd) -> list[str]:
    """Plans and executes; without a desired state, this is a removal. Returns the ids of the steps."""
    with Journal("demo", str(tmp_path / "state" / "journal")) as journal:
        work = Installer("x.service", desired, journal, systemd, Root(), None, None)
        service = Service(systemd.state, systemd.enabled)
        state = PackageState({})
        steps = work.plan(state, service) if desired else work.plan_absent(state, service, ())
        apply(steps, work.execute, journal)
        if desired is None:
            work.forget_restored()
    return [step.action for step in steps]


@pytest.mark.parametrize(("engine", "state", "own", "more"), [
    ("restart service", "active", [], True), ("restart service", "active", ["restart service"], False),
    ("restart service", "inactive", [], False), ("enable and start service", "active", [], False),
    ("write file", "active", [], False)])
def test_a_restart_of_dcgm_is_one_of_its_exporter(engine: str, state: str, own: list[str], more: bool) -> None:
    plans = {"dcgm": manage.ComponentPlan([Step(engine, "x")]),
             "dcgm_exporter": manage.ComponentPlan([Step(one, DcgmExporter.unit) for one in own])}
    services = {"dcgm": Service("active", "enabled"), "dcgm_exporter": Service(state, "enabled")}
    restarts = manage._restart_exporter(plans, services)
    assert restarts == (more or bool(own))
    assert [step.reason for step in plans["dcgm_exporter"].steps[len(own):]] == ["DCGM is restarted"] * more
    manage._restart_exporter({"dcgm": plans["dcgm"]}, services)


def test_a_killed_run_still_owes_the_exporter_its_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The restart of DCGM is complete, and the next run plans nothing for it."""
    path, text, killed, calls = str(tmp_path / "x.conf"), [b"1"], [False], list[str]()
    (tmp_path / "x.conf").touch()

    def systemctl(argv: t.Sequence[str], **_options: t.Any) -> Completed:
        calls.append(" ".join(argv[1:3]))
        if killed[0] and calls[-1] == f"restart {DcgmExporter.unit}":
            raise KeyboardInterrupt
        return Completed(tuple(argv), 0, "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n", "")

    def wanted(_self: Software, _components: object, _state: object) -> dict[str, Desired]:
        return {"dcgm": Desired(files={path: text[0]}, unit=Dcgm.unit),
                "dcgm_exporter": Desired(unit=DcgmExporter.unit)}

    running = {name: Service("active", "enabled") for name in ("dcgm", "dcgm_exporter")}
    monkeypatch.setattr(Software, "_desired", wanted)
    monkeypatch.setattr(Software, "_manager", lambda _self: None)
    monkeypatch.setattr(Software, "_services", lambda _self, _components: running)
    monkeypatch.setattr(Software, "_driver_problem", lambda _self: "")

    def run(check: bool = False) -> dict[str, list[str]]:
        software = Software({"dcgm": {}, "dcgm_exporter": {}}, None, None, check, systemctl, Root(),
                            str(tmp_path / "state" / "journal"))
        parts = software.present()["components"]
        return {name: [f"{step['action']}: {step['reason']}" for step in part["plan"]] for name, part in parts.items()}

    run()
    text[0], killed[0] = b"2", True
    run(check=True)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert f"restart {Dcgm.unit}" in calls
    killed[0] = False
    assert run() == {"dcgm": [], "dcgm_exporter": ["restart service: an earlier run has not restarted it"]}
    assert run() == {"dcgm": [], "dcgm_exporter": []}


def test_files_and_service_come_and_go(tmp_path: Path) -> None:
    path, output = tmp_path / "etc" / "x.conf", tmp_path / "out" / "x.prom"
    (tmp_path / "keep").touch()
    systemd = Systemd()

    def desired(text: bytes) -> Desired:
        return Desired(files={str(path): text}, outputs=[str(output)], unit="x.service")

    assert one_run(tmp_path, desired(b"1"), systemd) == ["write file", "enable and start service"]
    output.write_text("made by the service")
    assert one_run(tmp_path, desired(b"1"), systemd) == []
    systemd.calls.clear()
    assert one_run(tmp_path, desired(b"2"), systemd) == ["write file", "restart service"]
    assert systemd.calls.count("restart x.service") == 1
    systemd.enabled = "disabled"
    assert one_run(tmp_path, desired(b"2"), systemd) == ["enable service"]
    assert one_run(tmp_path, None, systemd) == ["disable and stop service", "restore file", "restore file"]
    assert list(tmp_path.iterdir()) == [tmp_path / "keep"]


CUDA = Repository("cuda", "https://mirror.example/cuda/", "k.pub", "A" * 40)


def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *concerns: str) -> list[Installer]:
    """Running components with installed packages of a repository whose files somebody has damaged."""
    monkeypatch.setattr(PackageWork, "is_present", lambda self, _state, _wanted: self._has_repository())
    monkeypatch.setattr(PackageWork, "plan_repair", lambda *_args: [])
    monkeypatch.setattr(PackageWork, "plan_install", lambda *_args, **_options: [])
    manager: t.Any = SimpleNamespace(is_configured=lambda _repository: False, lost_files=lambda _names: {},
                                     reinstall=lambda _packages, check: None,
                                     probe=lambda _repository: contextlib.nullcontext(SimpleNamespace(key=b"KEY")))
    works = []
    for concern in concerns:
        with Journal(concern, str(tmp_path / "state" / "journal")) as journal:
            journal.keep("file", "/usr/share/keyrings/gpuops-cuda.gpg", {"state": "absent"})
        desired = Desired(packages={"x": None}, unit="x.service")
        works.append(Installer("x.service", desired, journal, Systemd(), Root(str(tmp_path)), manager, CUDA))
    return works


@pytest.mark.parametrize(("repaired", "steps"), [((), [["add repository"], []]), (("cuda",), [[], []]),
                                                 (("driver",), [["add repository"], []])])
def test_a_repository_of_several_is_put_right_once_and_restarts_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repaired: t.Sequence[str], steps: list[list[str]]) -> None:
    works = shared(tmp_path, monkeypatch, "dcgm", "dcgm_exporter")
    software = Software({}, None, None, True, root=Root(str(tmp_path)), repaired=repaired)
    running = Service("active", "enabled")
    assert [[step.action for step in software._plan(work, PackageState({}), running)] for work in works] == steps


@pytest.mark.parametrize(("service", "last"), [("active", "restart service"), ("inactive", "enable and start service")])
@pytest.mark.parametrize("package", ["x", "x-library"])
def test_a_program_that_is_gone_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str,
                                            service: str, last: str) -> None:
    work, = shared(tmp_path, monkeypatch, "dcgm")
    asked: list[list[str]] = []
    manager: t.Any = work.packages and work.packages.manager
    manager.is_configured = lambda _repository: True
    manager.lost_files = lambda names: asked.append(list(names)) or {package: ["/usr/bin/x"]}
    with Journal("dcgm", str(tmp_path / "state" / "journal")) as work.journal:
        for name, ours in (("x", True), ("x-library", True), ("libc", False)):
            work.journal.keep("package", name, {"state": "absent"})
            work.journal.note("package", name, {"version": "1", "ours": ours})
        state = PackageState({"x": "1", "x-library": "1", "libc": "1"})
        steps = work.plan(state, Service(service, "enabled"))
        assert asked == [["x", "x-library"]]
        assert [step.action for step in steps] == ["refresh package lists", "install packages again", last]
        monkeypatch.setattr(PackageWork, "execute", lambda *_arguments: True)
        work.execute(steps[1])
        assert (work.journal.get("restart", "x.service") is not None) == (service == "active")


def test_check_mode_knows_what_the_driver_role_would_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[t.Any] = []
    monkeypatch.setattr(nvidia_software.inventory_vars, "driver_steps", lambda _variables, action: [action])
    monkeypatch.setattr(nvidia_software.HostAction, "run_module", lambda _self, _variables, args: asked.append(args))
    for check, given in ((True, {}), (False, {}), (True, {"repaired_repositories": []})):
        action = object.__new__(nvidia_software.ActionModule)
        action._task = SimpleNamespace(check_mode=check, args={"dcgm": {}, **given})
        action.run_module({})
    assert [one.get("repaired_repositories") for one in asked] == [["add repository"], None, []]
    assert [one.get("packages_before") for one in asked] == [True, None, True]
    assert [one.get("files_before") for one in asked] == [["install file"], None, ["install file"]]


def test_a_file_that_the_driver_brings_before_it_is_no_step_of_check_mode(tmp_path: Path) -> None:
    path = f"{tmp_path}/pynvml.py"
    with Journal("node_status_exporter", str(tmp_path / "state" / "journal")) as journal:
        work = Installer("x.timer", Desired(files={path: b"x"}), journal, lambda *_a, **_o: None,  # type: ignore[arg-type]
                                Root(), None, None)
        for before, steps in (([], 1), ([path], 1)):  # it is not on record yet
            work.files_before = before
            assert len(work._plan_files()) == steps
        journal.write_file(path, b"x")
        os.unlink(path)
        for before, steps in (([], 1), ([path], 0)):
            work.files_before = before
            assert len(work._plan_files()) == steps


@pytest.mark.parametrize("check", [True, False])
def test_what_the_driver_role_would_repair_counts_in_check_mode_alone(monkeypatch: pytest.MonkeyPatch, check: bool
                                                                      ) -> None:
    """In a run, the driver role has already repaired it, and the host is read."""
    given: list[t.Any] = []

    def software(*_words: t.Any, **options: t.Any) -> t.Any:
        given.append(options)
        return SimpleNamespace(present=lambda: {"changed": False})

    before = {"packages_before": True, "files_before": ["/x"]}
    arguments = {"dcgm": {}, "repaired_repositories": ["cuda"], **before, "_ansible_check_mode": check}
    monkeypatch.setattr(software_module, "Software", software)
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    monkeypatch.setattr(basic.AnsibleModule, "log", lambda *_words, **_options: None)
    with pytest.raises(SystemExit):
        software_module.main()
    assert given == [{"repaired": ["cuda"], **before} if check else
                     {"repaired": (), "packages_before": False, "files_before": ()}]


def test_what_packages_before_it_repair_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, = shared(tmp_path, monkeypatch, "dcgm")
    assert work.packages is not None
    for packages_before in (False, True):
        software = Software({}, None, None, True, root=Root(str(tmp_path)), packages_before=packages_before)
        software._plan(work, PackageState({}), Service("active", "enabled"))
        assert work.packages.packages_before is packages_before


def test_a_restart_that_is_owed_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    systemd = Systemd("active", "enabled")
    desired = Desired(files={str(path): b"1"}, unit="x.service")
    with Journal("demo", str(tmp_path / "state" / "journal")) as journal:
        work = Installer("x.service", desired, journal, systemd, Root(), None, None)
        steps = work.plan(PackageState({}), Service("active", "enabled"))
        work.execute(steps[0])  # and here the run is killed
    assert one_run(tmp_path, desired, systemd) == ["restart service"]
    # It ran before us, so it goes on with what it had.
    assert one_run(tmp_path, None, systemd) == ["restore file", "restart service"]
    assert systemd.state == "active" and not path.exists()


def test_a_masked_service_is_told_before_anything_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    with Journal("demo", str(tmp_path / "journal"), readonly=True) as journal:
        desired = Desired(files={str(path): b"1"}, unit="x.service")
        work = Installer("x.service", desired, journal, Systemd(), Root(), None, None)
        with pytest.raises(HostError, match="x.service is masked"):
            work.plan(PackageState({}), Service("absent", "masked"))


def test_a_masked_file_is_told_before_anything_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe replaces the null device; otherwise, a defect would destroy that of this machine."""
    os.mkfifo(tmp_path / "null")
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))
    (tmp_path / "x.conf").symlink_to(tmp_path / "null")
    with Journal("demo", str(tmp_path / "journal"), readonly=True) as journal:
        desired = Desired(files={str(tmp_path / "y.conf"): b"1", str(tmp_path / "x.conf"): b"1"}, unit="x.service")
        work = Installer("x.service", desired, journal, Systemd(), Root(), None, None)
        with pytest.raises(HostError, match="x.conf cannot be written.*must not exist on this host"):
            work.plan(PackageState({}), Service("inactive", "disabled"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_program_follows_no_link_of_the_folders_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs as root, and the folder belongs to the user of the node exporter."""
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("root's\n")
    output = folder / "x.prom"
    output.symlink_to(secret)
    (folder / ".x.prom.gpuops-abcdefgh").touch()  # of a run that systemd has ended
    for path in (folder, output):
        os.chown(path, 4711, 4711, follow_symlinks=False)
    read: list[str] = []

    def metrics(_root: Root, _told: t.Any, former: str, _now: float) -> dict[str, report.Samples]:
        read.append(former)
        return {"gpuops_node_gpus": [({}, 2)]}

    monkeypatch.setattr(report, "metrics", metrics)
    monkeypatch.setattr(report, "nvml_snapshot", lambda clients: {})
    monkeypatch.setattr(sys, "argv", ["x", str(output)])
    for _run in range(2):
        report.main()
    assert secret.read_text() == "root's\n" and read[0] == "" and "gpuops_node_gpus" in read[1]
    assert [path.name for path in folder.iterdir()] == ["x.prom"] and not output.is_symlink()
    folder.rename(tmp_path / "moved")
    (tmp_path / "etc").mkdir()
    folder.symlink_to("etc")
    os.lchown(folder, 4711, 4711)
    with pytest.raises(HostError, match=f"{folder} is a link of user 4711"):
        report.main()
    assert not list((tmp_path / "etc").iterdir())


def test_a_service_whose_packages_go_is_not_restarted(tmp_path: Path) -> None:
    class Packages:
        def plan_absent(self, _state: PackageState, _going: t.Collection[str]) -> list[Step]:
            return [Step("purge packages", "dcgm", data={"packages": ["dcgm"]})]

        def is_of_repository(self, _path: str) -> bool:
            return False

    systemd = Systemd("active", "enabled")
    with Journal("demo", str(tmp_path / "journal")) as journal:
        journal.keep("service", "x.service", {"state": "active", "enabled": "enabled"})
        work = Installer("x.service", None, journal, systemd, Root(), None, None)
        work.packages = t.cast(t.Any, Packages())
        steps = work.plan_absent(PackageState({}), Service("active", "enabled"), ())
    assert [step.action for step in steps] == ["purge packages"]


def test_a_service_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component_installer, "_ANSWER_LIMIT", 0)
    with pytest.raises(GpuopsError, match=r"runs, but does not answer at 127.0.0.1:1: .*journalctl -u x.service"):
        one_run(tmp_path, Desired(unit="x.service", address=("127.0.0.1", 1)), Systemd())


class Killed(BaseException):
    """Ends the run here."""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("removal", [False, True])
def test_killed_at_any_step(tmp_path: Path, removal: bool, number: int, late: bool) -> None:
    (tmp_path / "keep").touch()
    files = {str(tmp_path / "etc" / name): name.encode() for name in ("a", "b", "c")}
    desired = Desired(files=files, outputs=[str(tmp_path / "out" / "x")], unit="x.service")
    systemd = Systemd()
    if removal:
        one_run(tmp_path, desired, systemd)
    with Journal("demo", str(tmp_path / "state" / "journal")) as journal:
        work = Installer("x.service", None if removal else desired, journal, systemd, Root(), None, None)
        service, state = Service(systemd.state, systemd.enabled), PackageState({})
        steps = work.plan_absent(state, service, ()) if removal else work.plan(state, service)
        done = 0

        def execute(step: t.Any) -> None:
            nonlocal done
            if done == number and not late:
                raise Killed
            work.execute(step)
            done += 1
            if done > number:
                raise Killed

        with contextlib.suppress(Killed):
            apply(steps, execute, journal)
    one_run(tmp_path, None if removal else desired, systemd)
    if not removal:
        assert {path: Path(path).read_bytes() for path in files} == files and systemd.state == "active"
        assert one_run(tmp_path, desired, systemd) == []
        one_run(tmp_path, None, systemd)
    assert list(tmp_path.iterdir()) == [tmp_path / "keep"]
    assert (systemd.state, systemd.enabled) == ("inactive", "disabled")

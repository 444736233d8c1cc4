# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scripts of ConfigMaps, run with sh on a temporary tree that represents the root of a container."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROLES = Path(__file__).resolve().parents[3] / "roles"
READY = "run/nvidia/validations/driver-ready"
HOOK = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
# Absolute paths of the scripts that a container has.
PATHS = ("/run/nvidia", "/sys/module", "/host$", "/host/")


class Container:
    """A tree with replaced programs, each of which prints its name and its environment."""

    def __init__(self, root: Path, script: str, *programs: str) -> None:
        self.root = root
        text = (ROLES / script).read_text()
        for path in PATHS:
            text = text.replace(path, f"{root}{path}")
        self.script = root / "script.sh"
        self.script.write_text(text)
        for program in programs:
            self.program(f"bin/{program}", f"#!/bin/sh\necho started {program}\nenv\n")
        # What waits gets what it waits for, and goes on.
        self.program("bin/sleep", f"#!/bin/sh\necho slept $1\nmkdir -p {root}/run/nvidia/validations\n"
                                  f"echo IS_HOST_DRIVER=true >{root}/{READY}\n")

    def program(self, path: str, text: str = "#!/bin/sh\n") -> None:
        self.file(path, text).chmod(0o755)

    def file(self, path: str, text: str = "") -> Path:
        made = self.root / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
        return made

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.root}/bin:{os.environ['PATH']}"
        return subprocess.run(["sh", str(self.script)], env={"PATH": path, **environment}, capture_output=True,
                              text=True, check=False, timeout=20)


def variables(output: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


ENTRYPOINTS = [("container_toolkit", "nvidia-toolkit"), ("device_plugin", "nvidia-device-plugin"),
               ("mig_manager", "nvidia-mig-manager")]


@pytest.mark.parametrize(("role", "program"), ENTRYPOINTS)
def test_entrypoints_wait_for_the_driver_and_take_its_place(role: str, program: str, tmp_path: Path) -> None:
    container = Container(tmp_path, f"{role}/files/entrypoint.sh", program)
    result = container.run()
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "waiting for" in lines[0]
    assert lines.index("slept 5") < lines.index(f"started {program}")
    assert variables(result.stdout)["IS_HOST_DRIVER"] == "true"


@pytest.mark.parametrize(("role", "program"), ENTRYPOINTS[1:])
@pytest.mark.parametrize(("there", "given", "expected"), [
    ([HOOK], HOOK, HOOK), (["/usr/bin/nvidia-cdi-hook"], HOOK, "/usr/bin/nvidia-cdi-hook"),
    ([HOOK, "/usr/bin/nvidia-cdi-hook"], HOOK, HOOK), ([], HOOK, HOOK), (["/usr/bin/nvidia-cdi-hook"], None, None),
])
def test_cdi_hook_of_the_node(role: str, program: str, there: list[str], given: str | None, expected: str | None,
                              tmp_path: Path) -> None:
    container = Container(tmp_path, f"{role}/files/entrypoint.sh", program)
    container.file(READY, "NVIDIA_DRIVER_ROOT=/\n")
    for path in there:
        container.program(f"host{path}")
    result = container.run(**({"NVIDIA_CDI_HOOK_PATH": given} if given else {}))
    assert variables(result.stdout).get("NVIDIA_CDI_HOOK_PATH") == expected
    assert variables(result.stdout)["NVIDIA_DRIVER_ROOT"] == "/"


@pytest.mark.parametrize(("modules", "given", "expected"), [
    ([], {}, (None, None, None)), (["gdrdrv"], {}, ("true", None, None)), (["nvidia_fs"], {}, (None, "true", "true")),
    (["gdrdrv", "nvidia_fs"], {"GDRCOPY_ENABLED": "false", "MOFED_ENABLED": "false"}, ("false", "true", "false")),
])
def test_device_plugin_looks_at_loaded_modules(modules: list[str], given: dict[str, str],
                                               expected: tuple[str | None, ...], tmp_path: Path) -> None:
    container = Container(tmp_path, "device_plugin/files/entrypoint.sh", "nvidia-device-plugin")
    container.file(READY)
    for module in modules:
        container.file(f"sys/module/{module}/refcnt", "0")
    got = variables(container.run(**given).stdout)
    assert tuple(got.get(name) for name in ("GDRCOPY_ENABLED", "GDS_ENABLED", "MOFED_ENABLED")) == expected


@pytest.mark.parametrize(("text", "expected"), [("IS_HOST_DRIVER=true\n", "true"), ("", "false")])
def test_mig_manager_stops_clients_of_a_host_driver(text: str, expected: str, tmp_path: Path) -> None:
    container = Container(tmp_path, "mig_manager/files/entrypoint.sh", "nvidia-mig-manager")
    container.file(READY, text)
    assert variables(container.run().stdout)["WITH_SHUTDOWN_HOST_GPU_CLIENTS"] == expected


@pytest.mark.parametrize(("module", "daemons", "smi", "passes"), [
    (True, "Ready\n", 0, True), (True, "Ready", 0, True), (True, None, 0, True), (False, "Ready\n", 0, False),
    (True, "NotReady\n", 0, False), (True, "", 0, False), (True, "Ready\n", 1, False),
])
def test_startup_probe_of_the_driver(module: bool, daemons: str | None, smi: int, passes: bool,
                                     tmp_path: Path) -> None:
    container = Container(tmp_path, "driver/files/startup-probe.sh")
    container.program("bin/nvidia-smi", f"#!/bin/sh\nexit {smi}\n")
    if module:
        container.file("sys/module/nvidia/refcnt", "0\n")
    if daemons is not None:
        container.file("run/nvidia/validations/.driver-daemons-status", daemons)
    result = container.run(GDS_ENABLED="true")
    assert (result.returncode == 0) is passes
    ready = tmp_path / "run/nvidia/validations/.driver-ctr-ready"
    assert ready.exists() is passes
    if passes:
        assert ready.read_text().splitlines() == ["GDRCOPY_ENABLED: false", "GDS_ENABLED: true",
                                                  "GPU_DIRECT_RDMA_ENABLED: false"]
    else:
        assert result.stdout.strip() or smi

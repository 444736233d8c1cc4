# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vendor's own nvidia-ctk on a simulated machine whose /proc looks like that of a real one.

Needs root: the tests create device nodes, and the commands of each test run in a mount namespace of their own, so that
nothing is visible outside.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.tools import toolkit_program
from tests.conformance.conftest import Machine

Make = Callable[..., Machine]
DRIVER = "570.172.08"
CAPS_MAJOR = 236


@pytest.fixture(scope="module")
def nvidia_ctk() -> Path:
    """The vendor's program, built from source on first use."""
    return toolkit_program("nvidia-ctk")


def driver_root(host: Machine, folder: Path) -> Path:
    """A folder that looks like the root of a host with the driver: two libraries and the device nodes."""
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    devices = folder / "dev"
    libraries.mkdir(parents=True)
    (devices / "nvidia-caps").mkdir(parents=True)
    (libraries / f"libnvidia-ml.so.{DRIVER}").write_bytes((host.folder / "libnvidia-ml.so.1").read_bytes())
    (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{DRIVER}")
    (libraries / f"libcuda.so.{DRIVER}").write_bytes(b"")
    count = len(host.run("nvidia-smi", "-L").stdout.splitlines())
    nodes = {"nvidiactl": (195, 255), "nvidia-uvm": (510, 0)}
    nodes.update({f"nvidia{minor}": (195, minor) for minor in range(count)})
    nodes.update({f"nvidia-caps/nvidia-cap{minor}": (CAPS_MAJOR, minor) for minor in instance_minors(host)})
    for name, (major, minor) in nodes.items():
        os.mknod(devices / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    host.environment["LD_LIBRARY_PATH"] = str(libraries)
    return folder


def instance_minors(host: Machine) -> dict[int, str]:
    """Maps the capability minors of the existing instances to their names."""
    minors = dict(line.split() for line in host.sim("caps").splitlines())
    names = []
    for line in host.sim("show").splitlines():
        word, *numbers = line.split()
        if word == "gi":
            names.append(f"gpu{numbers[0]}/gi{numbers[1]}/access")
        elif word == "ci":
            names.append(f"gpu{numbers[0]}/gi{numbers[1]}/ci{numbers[2]}/access")
    return {int(minors[name]): name for name in names}


def in_namespace(host: Machine, script: str) -> str:
    """Runs a shell script with an empty folder of its own at /proc/driver; returns its output."""
    whole = f"set -e\nmount -t tmpfs none /proc/driver\n{script}"
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", whole], env=host.environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def generate(host: Machine, nvidia_ctk: Path, root: Path) -> dict[str, Any]:
    """The specification that nvidia-ctk writes."""
    spec = root / "nvidia.yaml"
    words = [str(nvidia_ctk), "cdi", "generate", "--driver-root", str(root), "--output", str(spec)]
    script = f"""mkdir /proc/driver/nvidia-caps
{shlex.quote(str(host.folder / "gpusim"))} caps > /proc/driver/nvidia-caps/mig-minors
{shlex.join(words)}"""
    in_namespace(host, script)
    data: dict[str, Any] = yaml.safe_load(spec.read_text(encoding="utf-8"))
    return data


def device_paths(spec: dict[str, Any], root: Path) -> dict[str, list[str]]:
    """Maps device names to their device nodes, without the root."""
    return {
        device["name"]: [node["path"].removeprefix(str(root)) for node in device["containerEdits"]["deviceNodes"]]
        for device in spec["devices"]
    }


def test_cdi_of_whole_gpus(machine: Make, nvidia_ctk: Path, tmp_path: Path) -> None:
    host = machine("a100-80=8")
    root = driver_root(host, tmp_path / "root")
    spec = generate(host, nvidia_ctk, root)
    uuids = host.run("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").stdout.split()
    assert spec["kind"] == "nvidia.com/gpu"
    paths = device_paths(spec, root)
    assert sorted(paths) == sorted(["all", *map(str, range(8)), *uuids])
    assert all(paths[str(index)] == [f"/dev/nvidia{index}"] == paths[uuid] for index, uuid in enumerate(uuids))


def test_cdi_of_mig_devices(machine: Make, nvidia_ctk: Path, tmp_path: Path) -> None:
    host = machine("a100-80=2")
    host.run("nvidia-smi", "-mig", "1", "-i", "1")
    host.run("nvidia-smi", "mig", "-i", "1", "-cgi", "9,14,19,19", "-C")
    listing = host.run("nvidia-smi", "-L").stdout
    root = driver_root(host, tmp_path / "root")
    paths = device_paths(generate(host, nvidia_ctk, root), root)
    uuids = [line.split("UUID: ")[1].rstrip(")") for line in listing.splitlines()]
    assert len(uuids) == 6
    assert sorted(paths) == sorted(["all", "0", "1:0", "1:1", "1:2", "1:3", uuids[0], *uuids[2:]])
    minors = {name: minor for minor, name in instance_minors(host).items()}
    assert paths["1:0"] == [
        "/dev/nvidia1",
        f"/dev/nvidia-caps/nvidia-cap{minors['gpu1/gi2/access']}",
        f"/dev/nvidia-caps/nvidia-cap{minors['gpu1/gi2/ci0/access']}",
    ]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  Tue Jul  8 18:25:16 UTC 2025", 0),
        (f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (dvs-builder@U22)", 0),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025", 18),
        (None, 9),
    ],
)
def test_the_module_s_version_at_its_real_place(text: str | None, status: int, machine: Make, tmp_path: Path) -> None:
    """Without GPUSIM_STATE the library reads /proc/driver/nvidia/version and /var/lib/gpusim/state."""
    host = machine("a100-80=1")
    driver_root(host, tmp_path / "root")
    version = f"mkdir /proc/driver/nvidia; echo {shlex.quote(text)} > /proc/driver/nvidia/version" if text else "true"
    script = f"""{version}
mount -t tmpfs none /var/lib
mkdir /var/lib/gpusim
cp {shlex.quote(str(host.state))} /var/lib/gpusim/state
unset GPUSIM_STATE
{shlex.quote(str(host.folder / "nvidia-smi"))} --query-gpu=driver_version --format=csv,noheader || echo $?"""
    output = in_namespace(host, script)
    assert output.split()[-1] == (str(status) if status else DRIVER)

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Container images that are created on this machine: busybox, the vendor's toolkit, and replacements for software
without source."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from lab.controlplane.nodes import DRIVER
from lab.nvml.build import build as build_nvml
from lab.packages.content import compile_driver, compile_library
from lab.tools import INSTALLER, NAMES, cached, debian_package, device_plugin, toolkit_program

SCRIPTS = Path(__file__).resolve().parent / "image"
STAND_INS = "usr/lib/stand-in"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# What programs with glibc need, by this machine's paths.
GLIBC = ("/lib64/ld-linux-x86-64.so.2", *(f"/lib/x86_64-linux-gnu/{name}" for name in (
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")))
PLAIN, WITH_DRIVER = "localhost/stand-in:plain", "localhost/stand-in:driver"
KERNEL_COMMANDS = ("insmod", "rmmod", "lsmod", "modprobe")


def archive() -> Path:
    """The path of an archive with PLAIN and WITH_DRIVER, in the format of C(docker save). Built on the first call."""
    nvml = build_nvml()
    programs = [*(toolkit_program(name) for name in (*NAMES, INSTALLER)), device_plugin()]
    inputs = [str(one).encode() for one in (nvml, *programs)]
    inputs += [path.read_bytes() for path in (*sorted(SCRIPTS.iterdir()), Path(__file__))]

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as made:
            plain, driver = Path(made) / "plain", Path(made) / "driver"
            fill_plain(plain, programs)
            fill_driver(driver, nvml, Path(made) / "built")
            layers = [pack(plain, Path(made)), pack(driver, Path(made))]
            write(folder / "images.tar", {PLAIN: layers[:1], WITH_DRIVER: layers})

    return cached("images", inputs, build) / "images.tar"


def fill_plain(root: Path, programs: list[Path]) -> None:
    """The files of all images: a shell, the C library, and each of our and the vendor's programs under its name."""
    for name in ("bin", "usr/bin", LIBRARIES, STAND_INS, "etc", "tmp", "root", "run", "var/lib", "dev", "proc", "sys"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("lib", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr" / "sbin").mkdir()
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "lib64").mkdir()
    for path in GLIBC:
        shutil.copy(path, root / path.lstrip("/"))
    busybox(root)
    for script in SCRIPTS.iterdir():
        target = root / (STAND_INS if script.name in ("common", "on-the-host") else "usr/bin") / script.name
        shutil.copy(script, target)
        target.chmod(0o755)
    for name in KERNEL_COMMANDS:
        (root / "bin" / name).unlink(missing_ok=True)
        (root / "usr" / "bin" / name).symlink_to(f"/{STAND_INS}/on-the-host")
    for program in programs:
        shutil.copy(program, root / "usr" / "bin")
    (root / "usr" / "bin" / "plugin").rename(root / STAND_INS / "plugin")  # called by nvidia-device-plugin
    artifacts = root / "artifacts" / "deb" / "usr"
    (artifacts / "bin").mkdir(parents=True)
    (artifacts / "lib" / "x86_64-linux-gnu").mkdir(parents=True)
    for name in ("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime"):
        (root / "usr" / "bin" / name).rename(artifacts / "bin" / name)
    # The runtime chooses its mode by the name that it is called by. The others are for the legacy mode alone.
    for name in ("nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"):
        shutil.copy(artifacts / "bin" / "nvidia-container-runtime", artifacts / "bin" / name)
    for name in ("nvidia-container-cli", "nvidia-container-runtime-hook"):
        (artifacts / "bin" / name).write_text("#!/bin/sh\necho not in the lab\nexit 1\n")
        (artifacts / "bin" / name).chmod(0o755)
    for name in ("libnvidia-container.so.1", "libnvidia-container-go.so.1"):
        compile_library(name, "1.20.1", artifacts / "lib" / "x86_64-linux-gnu" / name)


def busybox(root: Path) -> None:
    """Debian's static busybox, and its programs by their names."""
    program = debian_package("busybox-static") / "bin" / "busybox"
    shutil.copy(program, root / "bin")
    for name in subprocess.run([program, "--list"], capture_output=True, text=True, check=True,
                               timeout=60).stdout.split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")


def fill_driver(root: Path, nvml: Path, built: Path) -> None:
    """The additional files of the driver image: modules, libraries and nvidia-smi of one release."""
    (root / LIBRARIES).mkdir(parents=True)
    (root / "usr" / "bin").mkdir()
    (root / "usr" / "lib" / "modules").mkdir()
    driver = compile_driver(DRIVER, nvml, built)
    for name in ("nvidia", "nvidia-uvm", "nvidia-modeset"):
        shutil.copy(driver.module("open", name), root / "usr" / "lib" / "modules")
    for stem, source in (("libnvidia-ml", nvml / "libnvidia-ml.so.1"), ("libcuda", built / "libcuda.so")):
        shutil.copy(source, root / LIBRARIES / f"{stem}.so.{DRIVER}")
        (root / LIBRARIES / f"{stem}.so.1").symlink_to(f"{stem}.so.{DRIVER}")
    shutil.copy(nvml / "nvidia-smi", root / "usr" / "bin")


def pack(root: Path, folder: Path) -> Path:
    """A layer in which only root owns files."""
    path = folder / f"{root.name}.tar"
    with tarfile.open(path, "w") as file:
        for entry in sorted(root.iterdir()):
            file.add(entry, entry.name, filter=owned)
    return path


def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Normalizes an entry, so that its bytes do not depend on the user and the time."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = "root"
    return info


def write(path: Path, images: dict[str, list[Path]]) -> None:
    """An archive of images: each name with its layers."""
    digests = {layer: hashlib.sha256(layer.read_bytes()).hexdigest() for layers in images.values() for layer in layers}
    with tarfile.open(path, "w") as file:
        def put(name: str, content: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))

        for layer, digest in digests.items():
            file.add(layer, f"{digest}.tar")
        manifest = []
        for number, (name, layers) in enumerate(images.items()):
            put(f"{number}.json", json.dumps({
                "architecture": "amd64", "os": "linux", "rootfs": {
                    "type": "layers", "diff_ids": [f"sha256:{digests[layer]}" for layer in layers]},
                "config": {"Entrypoint": ["/bin/sleep", "infinity"],
                           "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}}).encode())
            manifest.append({"Config": f"{number}.json", "RepoTags": [name],
                             "Layers": [f"{digests[layer]}.tar" for layer in layers]})
        put("manifest.json", json.dumps(manifest).encode())

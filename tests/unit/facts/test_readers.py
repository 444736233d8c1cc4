# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Single readers: unusual systems, faults, missing data."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import (
    clients,
    device_nodes,
    installed_packages,
    package_files,
    package_names,
    pci,
    runtimes,
    system,
    unit_files,
    versions,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import (
    driver as driver_module,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import (
    gpus as gpus_module,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.tests.unit.facts import samples, trees

Package = installed_packages.Package


# -- the bus


def test_virtual_functions_and_audio_are_no_gpus(tmp_path: Path) -> None:
    """SR-IOV functions of a vGPU host and the HDMI audio function are left out; devices of the VGA class count."""
    trees.pci(tmp_path, "0000:07:00.0", "26b9", pci_class="0300", driver="vfio-pci")
    trees.pci(tmp_path, "0000:07:00.1", "22ba", pci_class="0403", driver="snd_hda_intel")
    trees.pci(tmp_path, "0000:07:00.4", "26b9", pci_class="0302")
    trees.link(tmp_path, "/sys/bus/pci/devices/0000:07:00.4/physfn", "../0000:07:00.0")
    bus = pci.read_bus(Root(str(tmp_path)))
    assert [(gpu.address, gpu.pci_class, gpu.driver) for gpu in bus.gpus] == [("0000:07:00.0", "0300", "vfio-pci")]
    assert bus.switches == () and bus.mellanox is False and bus.vgpu is None


def config_space(capability: bytes, position: int = 0x68) -> bytes:
    """A configuration space with one vendor-specific capability after a power-management one."""
    space = bytearray(256)
    space[0x06] = 0x10
    space[0x34] = 0x60
    space[0x60:0x63] = bytes((0x01, position, 0))
    space[position:position + len(capability)] = capability
    return bytes(space)


RECORD = b"\x00\x16" + b"580.65.06\0" + b"r580_00\0\0\0"


@pytest.mark.parametrize(("space", "found"), [
    (config_space(b"\x09\x00\x1bVF" + RECORD), ("580.65.06", "r580_00")),
    (config_space(b"\x09\x00\x1fVF" + b"\x02\x04ab" + RECORD), ("580.65.06", "r580_00")),
    (config_space(b"\x09\x00\x1bXX" + RECORD), None),
    (config_space(b"\x09\x00\x0aVF" + RECORD[:5]), None),
    (config_space(b"\x09\x00\x0aVF\x02\x00\x00\x00\x00"), None),
    (config_space(b"\x09\x68\x03"), None),
    (bytes(256), None),
    (b"", None),
], ids=["guest", "second record", "other signature", "cut", "record of no length", "loop", "no list", "not readable"])
def test_vgpu_guest(space: bytes, found: tuple[str, str] | None) -> None:
    """The version of the host driver, from the capability of a vGPU."""
    assert pci.vgpu_host_driver(space) == found


# -- the host


@pytest.mark.parametrize(("text", "family", "version"), [
    ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', "debian", "24.04"),
    ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.5"\n', "redhat", "9.5"),
    ('ID="sles"\nVERSION_ID="15.7"\n', "suse", "15.7"),
    ('ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID=22\n', "debian", "22"),
    ('# nothing\nID=nixos\n', "other", None),
])
def test_families(tmp_path: Path, text: str, family: str, version: str | None) -> None:
    """The family follows from ID, then from ID_LIKE."""
    trees.put(tmp_path, "/etc/os-release", text)
    found = system.read_os(Root(str(tmp_path)))
    assert (found["family"], found["version_id"]) == (family, version)


def test_headers(tmp_path: Path) -> None:
    """A dangling build link does not count as headers; nor does a folder without a Makefile."""
    root = Root(str(tmp_path))
    assert not system.has_headers(root, "6.1")
    trees.link(tmp_path, "/lib/modules/6.1/build", "/usr/src/linux-headers-6.1")
    assert not system.has_headers(root, "6.1")
    trees.put(tmp_path, "/usr/src/linux-headers-6.1/include/x.h", "")
    assert not system.has_headers(root, "6.1")
    trees.put(tmp_path, "/usr/src/linux-headers-6.1/Makefile", "")
    assert system.has_headers(root, "6.1")


@pytest.mark.parametrize(("value", "state"), [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\x00", False), (None, None)])
def test_secure_boot(tmp_path: Path, value: bytes | None, state: bool | None) -> None:
    """Secure Boot is on, off, or the UEFI variable is missing."""
    (tmp_path / "sys/firmware/efi").mkdir(parents=True)
    if value is not None:
        trees.put(tmp_path, "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", value)
    assert system.secure_boot(Root(str(tmp_path))) is state


@pytest.mark.parametrize(("value", "state"), [(b"\x06\0\0\0\x01", False), (b"\x06\0\0\0\x00", True)])
def test_shim_that_validates_nothing(tmp_path: Path, value: bytes, state: bool) -> None:
    """After mokutil --disable-validation, the kernel also loads unsigned modules."""
    for name, data in (("SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\x06\0\0\0\x01"),
                       ("MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23", value)):
        trees.put(tmp_path, f"/sys/firmware/efi/efivars/{name}", data)
    assert system.secure_boot(Root(str(tmp_path))) is state


def test_no_uefi_is_no_secure_boot(tmp_path: Path) -> None:
    """Machines with a BIOS cannot have Secure Boot."""
    assert system.secure_boot(Root(str(tmp_path))) is False


# -- packages and driver


@pytest.mark.parametrize(("name", "driver", "toolkit"), [
    ("nvidia-open", True, False), ("nvidia-driver-580-server", True, False), ("libnvidia-ml1", True, False),
    ("linux-modules-nvidia-580-server-open-6.8.0-50-generic", True, False), ("libcuda1", True, False),
    ("nvidia-fabricmanager", True, False), ("cuda-drivers", True, False), ("kmod-nvidia-open-dkms", True, False),
    ("nvidia-driver-pinning-595", True, False), ("libnvsdm", True, False), ("nvlsm", True, False),
    ("nvidia-container-toolkit", False, True), ("libnvidia-container1", False, True),
    ("nvidia-cuda-toolkit", False, False), ("nvidia-gds-12-8", False, False), ("containerd.io", False, False),
])
def test_whose_package(name: str, driver: bool, toolkit: bool) -> None:
    """Packages of the driver, of the toolkit, or of neither."""
    packages = {name: Package("1", "")}
    assert bool(package_names.driver_packages(packages)) is driver
    assert bool(package_names.toolkit_packages(packages)) is toolkit


def test_rpm_list() -> None:
    """Epochs are kept, and the vendor shows the source."""
    text = "bash\t5.1-9\tRocky\nnvidia-driver-cuda\t3:580.105.08-1.el9\tNVIDIA\nkernel\t5.14\tRocky\n"
    assert installed_packages.parse_rpm_list(text) == {"nvidia-driver-cuda": Package("3:580.105.08-1.el9", "NVIDIA")}
    assert installed_packages.upstream("3:580.105.08-1.el9") == "580.105.08"


def test_rpm_is_asked_once(tmp_path: Path) -> None:
    """On such a distribution, one rpm command lists all packages."""
    (tmp_path / "var/lib/rpm").mkdir(parents=True)
    run = trees.Answers({("rpm", "-qa"): "nvidia-open\t3:595.91.07-1\tNVIDIA\n"})
    assert list(installed_packages.read_packages(Root(str(tmp_path)), run, "redhat")) == ["nvidia-open"]
    assert len(run.asked) == 1
    assert installed_packages.read_packages(Root(str(tmp_path)), run, "debian") == {}


@pytest.mark.parametrize(("packages", "wanted"), [
    ({"nvidia-open": Package("595.91.07-1", "NVIDIA <cudatools@nvidia.com>")}, "cuda_repository"),
    ({"nvidia-driver-580-server": Package("580.173.02-0ubuntu0.24.04.1", "Ubuntu <u@lists.ubuntu.com>")},
     "distribution"),
    ({"nvidia-kernel-dkms": Package("535.261.03-1", "Debian NVIDIA Maintainers <p@lists.alioth.debian.org>")},
     "distribution"),
    ({}, None),
])
def test_source(tmp_path: Path, packages: dict[str, Package], wanted: str | None) -> None:
    """The packager shows where packages come from."""
    assert driver_module.source(Root(str(tmp_path)), packages, None) == wanted


def test_source_runfile(tmp_path: Path) -> None:
    """There is a log of the installer and no package."""
    trees.put(tmp_path, "/var/lib/nvidia/log", "")
    assert driver_module.source(Root(str(tmp_path)), {}, "580.65.06") == "runfile"


@pytest.mark.parametrize(("text", "wanted"), [
    ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "open"),
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Wed Jun 11", "proprietary"),
])
def test_loaded_flavour(tmp_path: Path, text: str, wanted: str) -> None:
    """The loaded module shows its flavour, even if packages suggest another one."""
    trees.put(tmp_path, "/proc/driver/nvidia/version", text)
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    root = Root(str(tmp_path))
    loaded = versions.loaded_version(root)
    assert loaded == text.split()[-3 if wanted == "open" else -4]
    assert driver_module.flavour(root, loaded, {"nvidia-dkms-open": Package("1", "")}) == wanted


@pytest.mark.parametrize(("names", "wanted"), [
    (["nvidia-open", "nvidia-dkms-open"], "open"), (["cuda-drivers", "nvidia-dkms"], "proprietary"),
    (["nvidia-kernel-open-dkms"], "open"), (["kmod-nvidia-latest-dkms"], "proprietary"), (["libnvidia-ml1"], None),
])
def test_installed_flavour(tmp_path: Path, names: list[str], wanted: str | None) -> None:
    """Before the module is loaded, the packages show the flavour."""
    packages = dict.fromkeys(names, Package("1", ""))
    assert driver_module.flavour(Root(str(tmp_path)), None, packages) == wanted


def test_mismatch_needs_reboot(tmp_path: Path) -> None:
    """The library does not match the loaded module, or the distribution requests a reboot."""
    root = Root(str(tmp_path))
    assert versions.reboot_pending(root, "580.65.06", "595.91.07")
    assert not versions.reboot_pending(root, "595.91.07", "595.91.07")
    assert not versions.reboot_pending(root, None, "595.91.07")
    trees.put(tmp_path, "/run/reboot-required.pkgs", "linux-image-6.1\nnvidia-dkms-open\n")
    assert versions.reboot_pending(root, None, None)


# -- runtimes


def test_runtime_without_package(tmp_path: Path) -> None:
    """A binary without a package is run to get its version; a stopped service is not running."""
    trees.put(tmp_path, "/usr/local/bin/containerd", "")
    trees.put(tmp_path, "/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    run = trees.Answers({
        ("containerd",): "containerd github.com/containerd/containerd v2.1.4 75cb2b7\n",
        tuple(trees.SYSTEMCTL):
            "Id=containerd.service\nActiveState=active\n\nId=docker.service\nActiveState=inactive\n"})
    found = runtimes.read_runtimes(Root(str(tmp_path)), run, {"docker-ce": Package("5:28.1.1-1~debian.12", "")}, [])
    unknown = {"boot": None, "stale": None}
    assert found == {"containerd": {"version": "2.1.4", "running": True, "cri": True, "nvidia": False,
                                    "classes": [], **unknown},
                     "docker": {"version": "28.1.1", "running": False, "cri": None, "nvidia": True,
                                "classes": ["nvidia"], **unknown},
                     "crio": None, "podman": None}


@pytest.mark.parametrize(("shown", "running", "boot"), [
    ("LoadState=loaded\nActiveState=active\nUnitFileState=enabled", True, "yes"),
    ("LoadState=loaded\nActiveState=inactive\nUnitFileState=disabled\nWantedBy=\nRequiredBy=", False, "no"),
    ("LoadState=loaded\nActiveState=active\nUnitFileState=disabled\nWantedBy=docker.service", True, "yes"),
    ("LoadState=masked\nActiveState=inactive\nUnitFileState=masked", False, "masked"),
    ("LoadState=masked\nActiveState=failed\nUnitFileState=", False, "masked"),
    ("LoadState=loaded\nActiveState=active\nUnitFileState=static", True, None),
    ("LoadState=not-found\nActiveState=inactive\nUnitFileState=", None, None),
])
def test_service_of_a_runtime(tmp_path: Path, shown: str, running: bool | None, boot: str | None) -> None:
    trees.put(tmp_path, "/usr/bin/containerd", "")
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    run = trees.Answers({tuple(trees.SYSTEMCTL): f"Id=containerd.service\n{shown}\n"})
    found = runtimes.read_runtimes(Root(str(tmp_path)), run, {"podman": Package("4.3", "")}, [])
    assert (found["containerd"]["running"], found["containerd"]["boot"]) == (running, boot)
    assert (found["podman"]["running"], found["podman"]["boot"]) == (None, None)  # it has no service


def test_what_nobody_answers_is_unknown(tmp_path: Path) -> None:
    trees.put(tmp_path, "/usr/bin/containerd", "")
    found = runtimes.read_runtimes(Root(str(tmp_path)), trees.Answers(), {}, [])["containerd"]
    assert (found["running"], found["boot"], found["stale"]) == (None, None, None)


@pytest.mark.parametrize(("socket", "running", "boot"), [
    ("ActiveState=active\nUnitFileState=enabled", True, "yes"),
    ("ActiveState=active\nUnitFileState=disabled", True, "no"),
    ("ActiveState=inactive\nUnitFileState=enabled", False, "yes"),
    ("ActiveState=inactive\nUnitFileState=disabled", False, "no"),
])
def test_a_socket_stands_for_its_service(tmp_path: Path, socket: str, running: bool, boot: str) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    run = trees.Answers({tuple(trees.SYSTEMCTL): "Id=docker.service\nLoadState=loaded\nActiveState=inactive\n"
                         "UnitFileState=disabled\nTriggeredBy=docker.socket\n\n"
                         f"Id=docker.socket\nLoadState=loaded\n{socket}\n"})
    docker = runtimes.read_runtimes(Root(str(tmp_path)), run, {"docker-ce": Package("5:28.1.1-1", "")}, [])["docker"]
    assert (docker["running"], docker["boot"]) == (running, boot)
    assert run.asked[-1][-2:] == ["docker.service", "docker.socket"]


@pytest.mark.parametrize(("since", "state", "stale"), [
    (-60, "active", True), (60, "active", False), (-60, "inactive", None), (None, "active", None)])
def test_whether_a_runtime_has_read_its_file(tmp_path: Path, since: int | None, state: str, stale: bool | None) -> None:
    """since: seconds from the change of the file to the start of the service."""
    trees.put(tmp_path, "/usr/bin/containerd", "")
    trees.put(tmp_path, "/etc/containerd/conf.d/x.toml", "")
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    began = "" if since is None else int((time.monotonic() + since) * 1_000_000)
    run = trees.Answers({tuple(trees.SYSTEMCTL): f"Id=containerd.service\nActiveState={state}\n"
                         f"StateChangeTimestampMonotonic={began}\n"})
    assert runtimes.read_runtimes(Root(str(tmp_path)), run, {}, [])["containerd"]["stale"] is stale


@pytest.mark.parametrize(("text", "cri"), [
    ("", True), ("disabled_plugins = []\n", True), ('disabled_plugins = ["cri"]\n', False),
    ('#disabled_plugins = ["cri"]\n', True), ('disabled_plugins = ["io.containerd.internal.v1.opt"]\n', True),
    ("disabled_plugins = ['x',\n  'io.containerd.grpc.v1.cri']\n", False),
    ('version = 3\ndisabled_plugins=["io.containerd.cri.v1.runtime"]\n', False)])
def test_whether_containerd_serves_kubernetes(tmp_path: Path, text: str, cri: bool) -> None:
    trees.put(tmp_path, "/usr/bin/containerd", "")
    trees.put(tmp_path, "/etc/containerd/config.toml", text)
    assert runtimes.read_runtimes(Root(str(tmp_path)), trees.Answers(), {}, [])["containerd"]["cri"] is cri


def test_a_change_in_the_future_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that was recorded while the clock was wrong would be newer than every start."""
    path = tmp_path / "x.toml"
    path.write_text("")
    began = int(time.monotonic() * 1_000_000) - 9_000_000
    unit = {"ActiveState": "active", "StateChangeTimestampMonotonic": str(began)}
    assert unit_files.is_stale([str(path), "/nowhere"], unit) is True
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    assert unit_files.is_stale([str(path)], unit) is False


# -- device nodes


class Nodes(Root):
    """A tree with device nodes. modes: maps paths to the modes of devices; a text stands for another kind of file."""

    def __init__(self, path: Path, modes: dict[str, int | str]) -> None:
        super().__init__(str(path))
        self.modes = modes

    def stat(self, path: str) -> os.stat_result | None:
        mode = self.modes.get(path)
        kind = stat.S_IFREG if isinstance(mode, str) else stat.S_IFCHR | (mode or 0)
        return None if mode is None else os.stat_result([kind, *[0] * 9])


PARAMS = "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n"


@pytest.mark.parametrize(("modes", "faults"), [
    ({}, {}),
    ({"/dev/nvidia0": 0o666}, {}),
    ({"/dev/nvidia0": None}, {"/dev/nvidia0": "missing"}),
    ({"/dev/nvidia1": 0}, {"/dev/nvidia1": "mode 0000"}),
    ({"/dev/nvidiactl": 0o600, "/dev/nvidia1": "text"}, {"/dev/nvidiactl": "mode 0600", "/dev/nvidia1": "no device"}),
])
def test_device_nodes(tmp_path: Path, modes: dict[str, t.Any], faults: dict[str, str]) -> None:
    for minor in (0, 1):
        trees.put(tmp_path, f"/proc/driver/nvidia/gpus/0000:0{minor}:00.0/information", f"Device Minor: \t {minor}\n")
    trees.put(tmp_path, "/proc/driver/nvidia/params", PARAMS)
    wanted = {"/dev/nvidiactl": (195, 255), "/dev/nvidia0": (195, 0), "/dev/nvidia1": (195, 1)}
    root = Nodes(tmp_path, {**dict.fromkeys(wanted, 0o660), **modes})
    assert device_nodes.required_nodes(root) == wanted
    assert device_nodes.node_faults(root) == faults


@pytest.mark.parametrize("params", [None, "ModifyDeviceFiles: 1\n", PARAMS.replace("Files: 1", "Files: 0")])
def test_device_nodes_of_somebody_else_are_not_judged(tmp_path: Path, params: str | None) -> None:
    trees.put(tmp_path, "/proc/driver/nvidia/gpus/0000:00:00.0/information", "Device Minor: 0\n")
    if params:
        trees.put(tmp_path, "/proc/driver/nvidia/params", params)
    assert device_nodes.node_faults(Root(str(tmp_path))) is None


def test_without_gpus_no_node_is_needed(tmp_path: Path) -> None:
    trees.put(tmp_path, "/proc/driver/nvidia/params", PARAMS)
    assert device_nodes.node_faults(Root(str(tmp_path))) == {}


# -- files of packages in rpm's database


def rpm_line(package: str, state: int, flags: int, path: str, rest: str = "0\t8\t") -> str:
    """A line as the query prints a file. rest: its time, the number of the algorithm and the digest."""
    return f"{package}\t{state}\t{flags}\t{path}\t{rest}\n"


@pytest.mark.parametrize(("answer", "lost"), [
    (rpm_line("xlib", 0, 0, "/usr/lib64/libx.so.1") + rpm_line("xlib", 0, 0, "/usr/lib64/there")
     + rpm_line("xlib", 0, 64, "/usr/lib64/ghost") + rpm_line("xlib", 0, 17, "/usr/lib64/config")
     + rpm_line("xlib", 2, 0, "/usr/lib/left-out") + rpm_line("xlib", 0, 0, "/usr/share/x")
     + rpm_line("yes", 0, 0, "/usr/bin/yes"), {"xlib": ["/usr/lib64/libx.so.1"], "yes": ["/usr/bin/yes"]}),
    (None, None),
])
def test_lost_files_in_rpm(tmp_path: Path, answer: str | None, lost: t.Any) -> None:
    trees.put(tmp_path, "/usr/lib64/there", "")
    run = trees.Answers({("rpm", "-q"): answer} if answer else {})
    assert package_files.lost_files(Root(str(tmp_path)), run, "redhat", ["xlib", "yes"]) == lost
    assert package_files.lost_files(Root(str(tmp_path)), run, "redhat", []) == {}


@pytest.mark.parametrize(("name", "size", "lost"), [
    ("libx.so.1.2", None, False), ("libx.so.1.2", -1, True), ("libx.so.1.2", 40, True), ("libx.so.1.2", 0, True),
    ("x.ko", -1, True), ("notes", 0, False)])
def test_a_library_that_is_cut_off_counts_as_lost(tmp_path: Path, name: str, size: int | None, lost: bool) -> None:
    content = Path(sys.executable).resolve().read_bytes()
    path = tmp_path / "usr/lib" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content[:size])
    trees.put(tmp_path, "/var/lib/dpkg/info/x.list", f"/usr/lib\n/usr/lib/{name}\n")
    found = package_files.lost_files(Root(str(tmp_path)), trees.Answers({}), "debian", ["x"])
    assert found == ({"x": [f"/usr/lib/{name}"]} if lost else {})


@pytest.mark.parametrize(("text", "lost"), [("#!/bin/sh\n", False), ("", True)])
def test_a_program_that_is_empty_counts_as_lost(tmp_path: Path, text: str, lost: bool) -> None:
    trees.put(tmp_path, "/usr/bin/x", text)
    (tmp_path / "usr/bin/link").symlink_to("/nowhere")
    trees.put(tmp_path, "/var/lib/dpkg/info/x.list", "/usr/bin/x\n/usr/bin/link\n")
    found = package_files.lost_files(Root(str(tmp_path)), trees.Answers({}), "debian", ["x"])
    assert found == ({"x": ["/usr/bin/x"]} if lost else {})


@pytest.mark.parametrize("family", ["debian", "redhat"])
@pytest.mark.parametrize(("path", "content", "changed", "lost"), [
    ("/usr/bin/x", "#!/bin/sh -e\n", 2000, True),  # of the same size
    ("/usr/bin/x", "#!/bin/sh -x\n", 2000, False),  # copied or restored
    ("/usr/bin/x", "#!/bin/sh -e\n", 1000, False),  # nobody has written it since
    ("/usr/lib/x.ko", "#!/bin/sh -e\n", 2000, False),  # signed on the host
    ("/usr/src/x/x.c", "#!/bin/sh -e\n", 2000, False),
])
def test_a_program_that_somebody_has_written_counts_as_lost(tmp_path: Path, family: str, path: str, content: str,
                                                            changed: int, lost: bool) -> None:
    trees.put(tmp_path, path, content)
    os.utime(f"{tmp_path}{path}", (changed, changed))
    meant = b"#!/bin/sh -x\n"
    trees.put(tmp_path, "/var/lib/dpkg/info/x.list", f"{path}\n")
    os.utime(tmp_path / "var/lib/dpkg/info/x.list", (1000, 1000))
    trees.put(tmp_path, "/var/lib/dpkg/info/x.md5sums", f"{hashlib.md5(meant).hexdigest()}  {path[1:]}\n")
    run = trees.Answers({("rpm", "-q"): rpm_line("x", 0, 0, path, f"1000\t8\t{hashlib.sha256(meant).hexdigest()}")})
    assert package_files.lost_files(Root(str(tmp_path)), run, family, ["x"]) == ({"x": [path]} if lost else {})


def test_without_md5_nothing_is_said_of_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in FIPS mode has no MD5."""
    def refuse(name: str) -> t.Any:
        raise ValueError(f"unsupported hash type {name}")

    trees.put(tmp_path, "/usr/bin/x", "#!/bin/sh\n")
    trees.put(tmp_path, "/var/lib/dpkg/info/x.list", "/usr/bin/x\n")
    os.utime(tmp_path / "var/lib/dpkg/info/x.list", (1000, 1000))
    trees.put(tmp_path, "/var/lib/dpkg/info/x.md5sums", f"{'0' * 32}  usr/bin/x\n")
    assert package_files.lost_files(Root(str(tmp_path)), trees.Answers({}), "debian", ["x"]) == {"x": ["/usr/bin/x"]}
    monkeypatch.setattr(package_files.hashlib, "new", refuse)
    assert package_files.lost_files(Root(str(tmp_path)), trees.Answers({}), "debian", ["x"]) == {}


def test_an_rpm_that_hangs_tells_nothing(tmp_path: Path) -> None:
    def run(argv: t.Sequence[str], **_options: t.Any) -> t.Any:
        raise CommandError(argv, None, "", "")

    assert package_files.lost_files(Root(str(tmp_path)), run, "redhat", ["xlib"]) is None


# -- clients


def test_clients(tmp_path: Path) -> None:
    """Processes that use a GPU, an instance or the control device, an uninvolved process, and our own."""
    for name in ("nvidiactl", "nvidia0", "nvidia-caps"):
        trees.put(tmp_path, f"/dev/{name}", "")
    trees.put(tmp_path, "/proc/driver/nvidia-caps/mig-minors",
              "config 1\nmonitor 2\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\ngpu1/gi3/access 201\n")
    trees.process(tmp_path, 10, "python3", "/dev/nvidia0", "/dev/nvidiactl")
    trees.process(tmp_path, 11, "trainer", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap66",
                  "/dev/nvidia-caps/nvidia-cap67")
    trees.process(tmp_path, 12, "nvidia-smi", "/dev/nvidiactl")
    trees.process(tmp_path, 13, "bash", "/dev/pts/0")
    trees.process(tmp_path, 14, "ansible", "/dev/nvidia0")
    found = clients.read_clients(Root(str(tmp_path)), {0: "0000:07:00.0"}, own_pid=14)
    assert found == [{"pid": 10, "name": "python3", "gpu": "0000:07:00.0", "instance": None},
                     {"pid": 11, "name": "trainer", "gpu": "0000:07:00.0", "instance": 7},
                     {"pid": 12, "name": "nvidia-smi", "gpu": None, "instance": None}]


def test_numbers_that_no_device_has_name_no_client(tmp_path: Path) -> None:
    """Python does not convert numbers with more than 4,300 digits."""
    digits = "9" * 5000
    trees.put(tmp_path, "/dev/nvidia0", "")
    trees.put(tmp_path, "/proc/driver/nvidia-caps/mig-minors",
              f"gpu{digits}/gi7/access 66\ngpu0/gi{digits}/access 67\ngpu0/gi7/access {digits}\ngpu0/gi3/access 68\n")
    trees.process(tmp_path, 10, "python3", *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (66, 67, 68)))
    trees.process(tmp_path, 11, "python3", f"/dev/nvidia{digits[:4000]}")
    found = clients.read_clients(Root(str(tmp_path)), {0: "0000:07:00.0"}, own_pid=14)
    assert [(one["pid"], one["gpu"], one["instance"]) for one in found] == [(10, "0000:07:00.0", 3), (11, None, None)]


# -- GPUs


def snapshot(*gpus: dict[str, t.Any]) -> dict[str, t.Any]:
    """An NVML snapshot of these GPUs."""
    empty = dict.fromkeys(("pci", "device_id", "subsystem", "model", "index", "uuid", "minor", "serial", "memory_mib",
                           "compute_capability", "mig", "error"))
    return {**trees.NO_NVML, "available": True, "gpus": [{**empty, **gpu} for gpu in gpus]}


def test_lost_gpu_stays_in_the_facts(tmp_path: Path) -> None:
    """A GPU that has fallen off the bus keeps the properties from its PCI id; its index and the reason come from
    NVML."""
    for address in samples.ADDRESSES[:3]:
        trees.pci(tmp_path, address, "20b2", driver="nvidia")
    bus = pci.read_bus(Root(str(tmp_path)))
    gpus = gpus_module.merge_gpus(bus, snapshot(
        {"pci": "0000:07:00.0", "index": 0, "uuid": "GPU-a", "model": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920,
         "compute_capability": "8.0", "mig": {"enabled": False, "pending": False, "instances": []}},
        {"pci": "0000:47:00.0", "index": 2, "uuid": "GPU-c", "model": "NVIDIA A100-SXM4-80GB"},
        {"index": 1, "error": "GPU_IS_LOST"}))
    assert [gpu["error"] for gpu in gpus] == [None, "The GPU does not answer: GPU_IS_LOST.", None]
    assert (gpus[1]["index"], gpus[1]["model"], gpus[1]["mig_capable"], gpus[1]["uuid"]) == (
        1, "NVIDIA A100-SXM4-80GB", True, None)


def test_passthrough_gpu_is_not_missed(tmp_path: Path) -> None:
    """NVML never lists a GPU that vfio-pci uses; this is no error."""
    trees.pci(tmp_path, "0000:07:00.0", "26b9", driver="vfio-pci")
    gpus = gpus_module.merge_gpus(pci.read_bus(Root(str(tmp_path))), snapshot())
    assert (gpus[0]["error"], gpus[0]["kernel_driver"]) == (None, "vfio-pci")


def test_nvml_wins_over_the_table(tmp_path: Path) -> None:
    """For a GPU that is in no list, NVML gives name, architecture and MIG capability."""
    trees.pci(tmp_path, "0000:07:00.0", "ffff", driver="nvidia")
    gpus = gpus_module.merge_gpus(pci.read_bus(Root(str(tmp_path))), snapshot(
        {"pci": "0000:07:00.0", "index": 0, "uuid": "GPU-a", "model": "NVIDIA R100", "compute_capability": "13.0",
         "mig": {"enabled": False, "pending": False, "instances": []}}))
    assert (gpus[0]["model"], gpus[0]["architecture"], gpus[0]["mig_capable"]) == ("NVIDIA R100", "rubin", True)


def test_minor_from_proc(tmp_path: Path) -> None:
    """Without NVML, the folder of the driver in /proc shows the /dev/nvidiaN of a GPU."""
    trees.put(tmp_path, "/proc/driver/nvidia/gpus/0000:07:00.0/information",
              "Model: \t\t NVIDIA A100-SXM4-80GB\nDevice Minor: \t 3\n")
    gpus = [{"pci": "0000:07:00.0", "minor": None}, {"pci": "0000:0f:00.0", "minor": 1}]
    assert gpus_module.minors(Root(str(tmp_path)), gpus) == {3: "0000:07:00.0", 1: "0000:0f:00.0"}

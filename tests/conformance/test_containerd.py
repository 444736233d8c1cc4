# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configuration files that real programs write, checked with real containerd 1.6 (Debian's) and 2.3 (built from its Go
module).

Each file is changed to the desired state twice and then restored. The effective configuration of containerd is compared
with the one that ``nvidia-ctk runtime configure`` gives for the same file.
"""

from __future__ import annotations

import pathlib
import subprocess
import tarfile
import typing as t

import pytest
import tomllib
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import leaves
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.conftest import SHAPES, Host, played_host

from lab.host import image, needs
from lab.tools import containerd_programs, toolkit_program

PROGRAM = "/usr/bin/nvidia-container-runtime"
# What a person or a tool wrote, from which the programs below make theirs.
INPUTS = ("02-packaged-enabled.1.6+1.7+2.2", "05-kubeadm.1.6+1.7+2.2", "20-crun.1.7+2.2", "13-inventory-v3.2.2",
          "15-kata-gvisor.1.7", "14-credentials.1.7", "10-only-nvidia-v3.2.2", "19-multiline.2.2")
# Where nvidia-ctk does not do what is wanted: version and input to the reason.
NO_RUNC = "it declares nvidia alone, by which containerd 1.x loses its built-in runc"
UNREAD = "it writes version 1 into a drop-in and leaves the main file without an import"
SHIM = "it puts its program behind Kata's shim, which cannot start it"
DIFFERS = {("1.6", "missing"): NO_RUNC, ("1.6", "14-credentials"): NO_RUNC,
           ("1.6", "02-packaged-enabled"): UNREAD, ("2.3", "02-packaged-enabled"): UNREAD,
           ("1.6", "15-kata-gvisor"): SHIM, ("2.3", "15-kata-gvisor"): SHIM}


def _old(version: str) -> bool:
    return version == "1.6"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Maps C(ctk) and the versions of containerd to their programs."""
    needs.ensure()
    folder = tmp_path_factory.mktemp("containerd")
    with tarfile.open(image.rootfs()) as archive:
        member = next(one for one in archive if one.name.lstrip("./") == "usr/bin/containerd")
        member.name = "containerd"
        archive.extract(member, folder)
    return {"1.6": str(folder / "containerd"), "2.3": str(containerd_programs() / "containerd"),
            "ctk": str(toolkit_program("nvidia-ctk"))}


def _run(*words: str | pathlib.Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _configure(programs: t.Mapping[str, str], version: str, folder: pathlib.Path) -> None:
    """Configures containerd as the documentation of the vendor describes."""
    _run(programs["ctk"], "--quiet", "runtime", "configure", "--runtime=containerd", "--config",
         folder / "config.toml", "--drop-in-config", folder / "conf.d" / "99-nvidia.toml", "--nvidia-runtime-path",
         PROGRAM, "--set-as-default", "--cdi.enabled", "--executable-path", programs[version])


def _shape(name: str) -> str:
    return (SHAPES / f"{name}.toml").read_text(encoding="utf-8")


def _input(name: str) -> str:
    return "" if name == "missing" else next(_shape(one) for one in INPUTS if one.partition(".")[0] == name)


def _fits(name: str, version: str) -> bool:
    """Whether this containerd can read the input: 1.6 does not support version 3."""
    return not (_old(version) and "v3" in name or _old(version) and name in ("19-multiline",))


def _cases() -> list[tuple[str, str, str]]:
    names = ["missing", *(one.partition(".")[0] for one in INPUTS)]
    return [(version, maker, name) for version in ("1.6", "2.3") for maker in ("default", "systemd", "dump", "vendor")
            for name in (names if maker in ("dump", "vendor") else ["missing"]) if _fits(name, version)]


def _make(programs: t.Mapping[str, str], version: str, maker: str, name: str, config: pathlib.Path) -> str:
    """Output of a program to use as an input: C(containerd config default), the same with systemd cgroups, C(containerd
    config dump) of an input (which lists the file itself among its imports), or an input for the vendor's tool."""
    if maker in ("default", "systemd"):
        text = _run(programs[version], "config", "default")
        return text.replace("SystemdCgroup = false", "SystemdCgroup = true") if maker == "systemd" else text
    if maker == "dump":
        config.write_text(_input(name), encoding="utf-8")
        return _run(programs[version], "-c", config, "config", "dump")
    return _input(name)


def _cri(host: Host) -> dict[tuple[str, ...], t.Any]:
    """What the CRI plugin is told, without what is empty or off, for that is as good as not said."""
    data = tomllib.loads(_run(host.real or "", "-c", host.config, "config", "dump"))["plugins"]
    return {path: value for path, value in leaves(data.get(V3) or data[V2]).items() if value}


@pytest.mark.parametrize(("version", "maker", "name"), _cases())
def test_files_of_real_programs(programs: dict[str, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                version: str, maker: str, name: str) -> None:
    (tmp_path / "ours").mkdir()
    host = played_host(tmp_path / "ours", "1.6" if _old(version) else "2.2", monkeypatch)
    host.real = programs[version]
    host.config.write_text(_make(programs, version, maker, name, host.config), encoding="utf-8")
    if maker == "vendor":
        _configure(programs, version, host.folder)
    former = host.shape()
    before = _cri(host)

    why = DIFFERS.get((version, name)) if maker == "vendor" else None
    if why == SHIM:
        with pytest.raises(HostError, match="99-nvidia.toml"):
            host.converge()
        assert host.shape() == former
        return
    steps = host.converge()

    after = _cri(host)
    assert after["containerd", "default_runtime_name"] == "nvidia"
    assert after["containerd", "runtimes", "nvidia", "options", "BinaryName"] == PROGRAM
    ours = (("containerd", "default_runtime_name"), ("enable_cdi",))
    assert {path: value for path, value in before.items() if "nvidia" not in path and path not in ours} == {
        path: value for path, value in after.items() if "nvidia" not in path and path not in ours}
    if maker == "vendor" and why != UNREAD:
        assert steps == [], "what the vendor's tool has done with effect is left alone"
    else:
        assert after["containerd", "runtimes", "runc", "runtime_type"] == "io.containerd.runc.v2"
    still = host.tree()
    assert host.converge() == []
    assert host.tree() == still
    host.converge("absent")
    assert host.shape() == former


@pytest.mark.parametrize(("version", "name"),
                         [(version, name) for version, maker, name in _cases() if maker == "vendor"])
def test_effect_is_that_of_the_vendor(programs: dict[str, str], tmp_path: pathlib.Path,
                                      monkeypatch: pytest.MonkeyPatch, version: str, name: str) -> None:
    found = []
    for who in ("ours", "theirs"):
        (tmp_path / who).mkdir()
        host = played_host(tmp_path / who, "1.6" if _old(version) else "2.2", monkeypatch)
        host.real = programs[version]
        host.config.write_text(_input(name), encoding="utf-8")
        if who == "ours":
            host.converge()
        else:
            _configure(programs, version, host.folder)
        found.append(_cri(host))
    differing = {path for path in {*found[0], *found[1]} if found[0].get(path) != found[1].get(path)}
    assert bool(differing) == ((version, name) in DIFFERS), differing

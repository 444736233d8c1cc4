# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package repositories of the lab, checked with the tools that use them: apt, gpgv, rpm, and the archive itself."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lab.nvml.build import build as build_nvml
from lab.packages import DRIVERS, Repositories, build
from lab.packages import serve as http
from lab.packages.keys import keys
from lab.packages.runfile import runfile_name
from lab.tools import NAMES, toolkit_program

COMPUTE = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")
DKMS = """\
Package: dkms
Status: install ok installed
Architecture: all
Maintainer: nobody
Version: 3.0.10-8

Package: init-system-helpers
Status: install ok installed
Architecture: all
Maintainer: nobody
Version: 1.65

"""


def run(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command and captures its output (both streams together)."""
    return subprocess.run([str(word) for word in words], cwd=cwd, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def good(*words: str | Path, cwd: Path | None = None) -> str:
    """The output of a command that must succeed."""
    done = run(*words, cwd=cwd)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Repositories:
    out = tmp_path_factory.mktemp("packages") / "out"
    return build(out, build_nvml(), {name: toolkit_program(name) for name in NAMES})


@dataclass
class Web:
    """A running server. url ends with a slash."""

    url: str
    faults: Path
    log: Path


@pytest.fixture
def web(repositories: Repositories, tmp_path: Path) -> Iterator[Web]:
    faults, log = tmp_path / "faults", tmp_path / "log"
    server = http.make_server(repositories.root, "127.0.0.1", 0, faults, log)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Web(f"http://127.0.0.1:{server.server_address[1]}/", faults, log)
    server.shutdown()
    server.server_close()
    thread.join()


class Apt:
    """The apt of this machine with a folder of its own: sources, lists, preferences and package database belong to the
    test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("etc/preferences.d", "etc/trusted.gpg.d", "state/lists/partial", "cache/archives/partial"):
            (root / folder).mkdir(parents=True)
        self.status = root / "status"
        self.status.write_text(DKMS)

    def words(self) -> list[str]:
        options = {"Dir::Etc": f"{self.root}/etc", "Dir::State": f"{self.root}/state",
                   "Dir::Cache": f"{self.root}/cache", "Dir::State::status": str(self.status),
                   "Debug::NoLocking": "1", "APT::Sandbox::User": "root", "Acquire::http::Proxy": "DIRECT",
                   "Acquire::Languages": "none", "APT::Update::Error-Mode": "any", "APT::Architecture": "amd64"}
        return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]

    def source(self, url: str, key: Path) -> None:
        # gpgv reads an armored key only from a file whose name says so.
        shutil.copy(key, self.root / "key.asc")
        (self.root / "etc/sources.list").write_text(f"deb [signed-by={self.root}/key.asc] {url} /\n")

    def get(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run("apt-get", *self.words(), "--no-install-recommends", "-y", "-q", *words)

    def changes(self, *words: str) -> dict[str, str | None]:
        """Maps the packages that a simulated command would change to versions, None for removal."""
        done = self.get("-s", *words)
        assert done.returncode == 0, done.stdout
        found: dict[str, str | None] = {}
        for line in done.stdout.splitlines():
            parts = line.split()
            if parts[:1] == ["Inst"]:
                found[parts[1]] = line.split("(")[1].split()[0]
            elif parts[:1] in (["Remv"], ["Purg"]):
                found[parts[1]] = None
        return found

    def installed(self, index: Path, packages: dict[str, str | None]) -> None:
        """Marks these packages of an index as installed, with the preferences that they contain."""
        text = DKMS
        for stanza in index.read_text().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
            if fields and packages.get(fields["Package"]) == fields["Version"]:
                text += stanza.strip().replace("\n", "\nStatus: install ok installed\n", 1) + "\n\n"
        self.status.write_text(text)

    def pin(self, deb: Path) -> None:
        """Activates the preferences of a pinning package, as its installation would."""
        shutil.rmtree(self.root / "etc/preferences.d")
        good("dpkg-deb", "-x", deb, self.root / "pin")
        shutil.move(str(self.root / "pin/etc/apt/preferences.d"), self.root / "etc/preferences.d")


@pytest.fixture
def cuda(repositories: Repositories, web: Web, tmp_path: Path) -> Apt:
    apt = Apt(tmp_path / "apt")
    apt.source(f"{web.url}{repositories.cuda_path}", repositories.root / repositories.cuda_key_path)
    done = apt.get("update")
    assert done.returncode == 0, done.stdout
    return apt


def folder_of(repositories: Repositories) -> Path:
    return repositories.root / repositories.cuda_path


def test_keys_have_the_fingerprints_that_are_told(repositories: Repositories) -> None:
    told = {"cuda": repositories.cuda_fingerprint, "toolkit": repositories.toolkit_fingerprint,
            "rpm": repositories.rpm_fingerprint}
    paths = {"cuda": repositories.cuda_key_path, "toolkit": repositories.toolkit_key_path,
             "rpm": repositories.rpm_key_path}
    for name, path in paths.items():
        shown = good("gpg", "--batch", "--with-colons", "--show-keys", repositories.root / path)
        assert f":{told[name]}:" in shown, name
    assert len(set(told.values())) == 3


def test_releases_are_signed_and_a_change_is_seen(repositories: Repositories, tmp_path: Path) -> None:
    for name, path in (("cuda", repositories.cuda_path), ("toolkit", repositories.toolkit_path)):
        folder, keyring = repositories.root / path, keys()[name].binary
        good("gpgv", "--keyring", keyring, folder / "InRelease")
        good("gpgv", "--keyring", keyring, folder / "Release.gpg", folder / "Release")
        assert run("gpgv", "--keyring", keys()["stranger"].binary, folder / "InRelease").returncode
        changed = tmp_path / name
        changed.write_bytes((folder / "Release").read_bytes() + b"Changed: yes\n")
        assert run("gpgv", "--keyring", keyring, folder / "Release.gpg", changed).returncode


def test_apt_refuses_the_wrong_key_and_a_changed_index(repositories: Repositories, web: Web, tmp_path: Path) -> None:
    web.faults.write_text("wrong-key")
    with urllib.request.urlopen(f"{web.url}{repositories.cuda_key_path}") as answer:
        (tmp_path / "wrong.asc").write_bytes(answer.read())
    shown = good("gpg", "--batch", "--with-colons", "--show-keys", tmp_path / "wrong.asc")
    assert keys()["stranger"].fingerprint in shown and repositories.cuda_fingerprint not in shown
    apt = Apt(tmp_path / "apt")
    apt.source(f"{web.url}{repositories.cuda_path}", tmp_path / "wrong.asc")
    done = apt.get("update")
    assert done.returncode and "NO_PUBKEY" in done.stdout, done.stdout
    # The same repository with one byte of its index changed.
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("InRelease", "Packages"):
        shutil.copy(folder_of(repositories) / name, copy / name)
    (copy / "Packages").write_text((copy / "Packages").read_text().replace("610.57.04", "610.57.05", 1))
    other = Apt(tmp_path / "other")
    other.source(f"file:{copy}/", repositories.root / repositories.cuda_key_path)
    done = other.get("update")
    assert done.returncode and "Hash Sum mismatch" in done.stdout, done.stdout


def test_the_newest_branch_comes_where_nothing_is_pinned(cuda: Apt) -> None:
    changes = cuda.changes("install", *COMPUTE)
    assert changes["libnvidia-ml1"] == "610.57.04-1" and set(changes.values()) == {"610.57.04-1"}
    assert cuda.changes("install", "nvidia-open")["nvidia-kernel-open-dkms"] == "610.57.04-1"


@pytest.mark.parametrize("version", DRIVERS)
def test_a_pinning_package_gives_one_exact_version(cuda: Apt, repositories: Repositories, version: str) -> None:
    wanted = [f"{name}={version}-1" for name in COMPUTE]
    if version != DRIVERS[-1]:
        assert cuda.get("-s", "install", *wanted).returncode, "apt takes the newest of what is not named"
    cuda.pin(folder_of(repositories) / f"nvidia-driver-pinning-{version}_{version}-1_all.deb")
    changes = cuda.changes("install", *wanted)
    assert set(changes.values()) == {f"{version}-1"}
    assert {*COMPUTE, "libcuda1", "libnvidia-ml1", "nvidia-smi", "nvidia-persistenced", "nvidia-modprobe",
            "firmware-nvidia-gsp", "nvidia-kernel-support"} <= set(changes)


def test_changing_the_branch_moves_every_package(cuda: Apt, repositories: Repositories) -> None:
    folder = folder_of(repositories)
    cuda.pin(folder / "nvidia-driver-pinning-580_580-1_all.deb")
    old = cuda.changes("install", "nvidia-driver-pinning-580", *COMPUTE)
    assert old.pop("nvidia-driver-pinning-580") == "580-1" and set(old.values()) == {"580.126.20-1"}
    cuda.installed(folder / "Packages", {**old, "nvidia-driver-pinning-580": "580-1"})
    assert cuda.changes("install", "nvidia-driver-pinning-595") == {
        "nvidia-driver-pinning-580": None, "nvidia-driver-pinning-595": "595-1"}
    cuda.pin(folder / "nvidia-driver-pinning-595_595-1_all.deb")
    cuda.installed(folder / "Packages", {**old, "nvidia-driver-pinning-595": "595-1"})
    assert cuda.changes("dist-upgrade") == dict.fromkeys(old, "595.91.07-1")
    cuda.installed(folder / "Packages", dict.fromkeys(old, "595.91.07-1"))
    cuda.pin(folder / "nvidia-driver-pinning-595.80.01_595.80.01-1_all.deb")
    assert cuda.changes("--allow-downgrades", "dist-upgrade") == dict.fromkeys(old, "595.80.01-1")


def test_the_flavours_exclude_each_other(cuda: Apt, repositories: Repositories) -> None:
    cuda.installed(folder_of(repositories) / "Packages", cuda.changes("install", *COMPUTE))
    assert cuda.changes("install", "nvidia-kernel-dkms") == {
        "nvidia-kernel-open-dkms": None, "nvidia-kernel-dkms": "610.57.04-1"}


def test_an_older_toolkit_needs_all_four_named(repositories: Repositories, web: Web, tmp_path: Path) -> None:
    apt = Apt(tmp_path / "apt")
    apt.source(f"{web.url}{repositories.toolkit_path}", repositories.root / repositories.toolkit_key_path)
    done = apt.get("update")
    assert done.returncode == 0, done.stdout
    assert set(apt.changes("install", "nvidia-container-toolkit").values()) == {"1.20.0-1"}
    assert apt.get("-s", "install", "nvidia-container-toolkit=1.19.1-1").returncode
    names = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools",
             "libnvidia-container1")
    changes = apt.changes("install", *(f"{name}=1.19.1-1" for name in names))
    assert changes == dict.fromkeys(names, "1.19.1-1")


def unpacked(repositories: Repositories, name: str, into: Path) -> Path:
    good("dpkg-deb", "--raw-extract", folder_of(repositories) / name, into)
    return into


@pytest.mark.parametrize(("package", "text"), [("nvidia-kernel-open-dkms", "Dual MIT/GPL"),
                                               ("nvidia-kernel-dkms", "NVIDIA")])
def test_modules_say_version_and_licence(repositories: Repositories, tmp_path: Path, package: str, text: str) -> None:
    root = unpacked(repositories, f"{package}_595.91.07-1_amd64.deb", tmp_path / "root")
    source = root / "usr/src/nvidia-595.91.07"
    assert 'PACKAGE_VERSION="595.91.07"' in (source / "dkms.conf").read_text()
    for name in ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem"):
        shown = good("readelf", "--string-dump=.modinfo", source / f"prebuilt/{name}.ko")
        values = [line.split("]", 1)[1].strip() for line in shown.splitlines() if "]" in line]
        assert "version=595.91.07" in values and f"license={text}" in values, name


def test_libraries_have_the_names_that_programs_look_for(repositories: Repositories, tmp_path: Path) -> None:
    for package, soname in (("libnvidia-ml1", "libnvidia-ml.so.1"), ("libcuda1", "libcuda.so.1")):
        root = unpacked(repositories, f"{package}_595.91.07-1_amd64.deb", tmp_path / package)
        link = root / "usr/lib/x86_64-linux-gnu" / soname
        assert link.readlink().name == f"{soname.removesuffix('.1')}.595.91.07"
        assert f"[{soname}]" in good("readelf", "--dynamic", link)
        assert (root / "DEBIAN/triggers").read_text() == "activate-noawait ldconfig\n"


def test_configuration_and_units(repositories: Repositories, tmp_path: Path) -> None:
    support = unpacked(repositories, "nvidia-kernel-support_595.91.07-1_amd64.deb", tmp_path / "support")
    conffiles = (support / "DEBIAN/conffiles").read_text().split()
    assert conffiles and all((support / path[1:]).is_file() for path in conffiles)
    assert "blacklist nouveau" in (support / "etc/modprobe.d/nvidia-blacklists-nouveau.conf").read_text()
    daemon = unpacked(repositories, "nvidia-persistenced_595.91.07-1_amd64.deb", tmp_path / "daemon")
    assert "/etc/default/nvidia-persistenced" in (daemon / "DEBIAN/conffiles").read_text()
    assert "ExecStart=" in (daemon / "lib/systemd/system/nvidia-persistenced.service").read_text()
    assert "deb-systemd-helper purge nvidia-persistenced.service" in (daemon / "DEBIAN/postrm").read_text()
    for script in sorted(tmp_path.glob("*/DEBIAN/p*")):
        good("sh", "-n", script)


def test_rpm_packages_are_signed_and_tied_together(repositories: Repositories, tmp_path: Path) -> None:
    folder = repositories.root / repositories.rpm_path
    query: list[str | Path] = ["rpm", "--dbpath", tmp_path, "-qp", "--qf", "%{NAME} %{EPOCH}:%{VERSION}-%{RELEASE}\\n"]
    shown = good(*query, *sorted(folder.glob("*.rpm")))
    names = [line for line in shown.splitlines() if not line.startswith("warning:")]  # the key is not known yet
    assert {"nvidia-open 3:595.91.07-1.el9", "nvidia-driver-cuda-libs 3:580.126.20-1.el9",
            "kmod-nvidia-open-dkms 3:595.91.07-1.el9"} <= set(names) and len(names) == 28
    kmod = folder / "kmod-nvidia-open-dkms-595.91.07-1.el9.x86_64.rpm"
    assert "nvidia-kmod = 3:595.91.07" in good("rpm", "-qp", "--provides", kmod)
    assert "nvidia-kmod-common = 3:595.91.07" in good("rpm", "-qp", "--requires", kmod)
    assert run("rpmkeys", "--dbpath", tmp_path, "--checksig", kmod).returncode, "no key is known yet"
    good("rpmkeys", "--dbpath", tmp_path, "--import", repositories.root / repositories.rpm_key_path)
    assert "signatures OK" in good("rpmkeys", "--dbpath", tmp_path, "--checksig", kmod)


def test_rpm_dependencies_are_met_within_the_repository(repositories: Repositories, tmp_path: Path) -> None:
    folder = repositories.root / repositories.rpm_path
    names = ("nvidia-open", "nvidia-driver", "nvidia-driver-libs", "nvidia-driver-cuda", "nvidia-driver-cuda-libs",
             "libnvidia-ml", "nvidia-kmod-common", "kmod-nvidia-open-dkms", "nvidia-modprobe", "nvidia-persistenced")
    paths = [folder / f"{name}-595.91.07-1.el9.x86_64.rpm" for name in names]
    # An empty database: what the scripts run in, and dkms, is all that may be missing.
    needed = run("rpm", "--dbpath", tmp_path, "-U", "--test", *paths).stdout
    assert not [line for line in needed.splitlines() if "needed by" in line and "/bin/sh is" not in line
                and "dkms is needed" not in line], needed
    assert "nvidia-driver-cuda-libs = 3:595.91.07 is needed" in run(
        "rpm", "--dbpath", tmp_path, "-U", "--test", *(path for path in paths if "cuda-libs" not in path.name)).stdout
    rival = folder / "kmod-nvidia-latest-dkms-595.91.07-1.el9.x86_64.rpm"
    assert "conflicts with" in run("rpm", "--dbpath", tmp_path, "-U", "--test", *paths, rival).stdout


def test_repomd_is_signed_and_tells_the_truth(repositories: Repositories) -> None:
    folder = repositories.root / repositories.rpm_path
    good("gpgv", "--keyring", keys()["rpm"].binary, folder / "repodata/repomd.xml.asc", folder / "repodata/repomd.xml")
    space = {"r": "http://linux.duke.edu/metadata/repo"}
    entries = ElementTree.parse(folder / "repodata/repomd.xml").getroot().findall("r:data", space)
    assert {entry.get("type") for entry in entries} >= {"primary", "filelists", "modules"}
    for entry in entries:
        location, checksum = entry.find("r:location", space), entry.find("r:checksum", space)
        assert location is not None and checksum is not None
        assert hashlib.sha256((folder / str(location.get("href"))).read_bytes()).hexdigest() == checksum.text


def test_the_archive_checks_extracts_and_passes_options_on(repositories: Repositories, tmp_path: Path) -> None:
    archive = repositories.root / repositories.runfile_path / "595.91.07" / runfile_name("595.91.07")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in Path(f"{archive}.sha256sum").read_text()
    assert "All good" in good("sh", archive, "--check")
    good("sh", archive, "--extract-only", cwd=tmp_path)
    root = tmp_path / "NVIDIA-Linux-x86_64-595.91.07"
    assert (root / "kernel-open/prebuilt/nvidia.ko").is_file() and (root / "nvidia-installer").is_file()
    assert "595.91.07" in good("sh", archive, "--version")
    done = run("sh", archive, "--no-such-option")
    assert done.returncode == 1 and "unrecognized option: '--no-such-option'" in done.stdout
    done = run("sh", archive, "--silent", "--kernel-module-type=closed")
    assert done.returncode == 1 and "Valid: open, proprietary" in done.stdout
    older = repositories.root / repositories.runfile_path / "535.309.01" / runfile_name("535.309.01")
    for option in ("--skip-module-load", "--kernel-module-type=open", "-M=open", "--rebuild-initramfs"):
        done = run("sh", older, "--silent", option)
        assert done.returncode == 1 and "unrecognized option" in done.stdout
    damaged = tmp_path / "damaged.run"
    data = archive.read_bytes()
    damaged.write_bytes(data[:-100] + bytes(100))
    assert run("sh", damaged, "--check").returncode


def test_the_server_obeys_its_faults(repositories: Repositories, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{web.url}{repositories.cuda_path}InRelease"
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == (folder_of(repositories) / "InRelease").read_bytes()
    web.faults.write_text("down\n")
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(url)
    assert raised.value.code == 503
    monkeypatch.setattr(http, "DELAY", 0.3)
    web.faults.write_text("slow")
    start = time.monotonic()
    urllib.request.urlopen(url).close()
    assert time.monotonic() - start >= 0.3
    web.faults.unlink()
    with pytest.raises(urllib.error.HTTPError) as listed:
        urllib.request.urlopen(f"{web.url}{repositories.cuda_path}")
    assert listed.value.code == 404
    assert "InRelease" in web.log.read_text() and " 503 " in web.log.read_text()


def test_a_second_build_leaves_everything_and_a_foreign_folder_is_refused(
        repositories: Repositories, tmp_path: Path) -> None:
    release = folder_of(repositories) / "Release"
    before = release.stat()
    tools = {name: toolkit_program(name) for name in NAMES}
    assert build(repositories.root, build_nvml(), tools) == repositories
    assert release.stat().st_ino == before.st_ino and release.stat().st_mtime_ns == before.st_mtime_ns
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(SystemExit, match="holds other things"):
        build(tmp_path, build_nvml(), tools)
    assert (tmp_path / "mine").read_text() == "precious"

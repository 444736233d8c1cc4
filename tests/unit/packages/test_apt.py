# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of dpkg-query (1.21) and apt-get (2.6), as captured from Debian 12."""

from __future__ import annotations

import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages import apt, apt_tools
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_probe import (
    AptProbe,
    parse_packages,
    why_invalid,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_tools import (
    apt_get,
    is_list_of,
    list_prefix,
    parse_simulation,
    parse_state,
    source_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

STATE = """\
dpkg\tamd64\t1.21.22\tii|
adduser\tall\t3.134\tii|
nvidia-smi\tamd64\t595.91.07-1\thi|
libc6\ti386\t2.36-9\tii|
old\tamd64\t1.0-1\trc|
never\tamd64\t\tun|
nvidia-kernel-open-dkms\tamd64\t595.91.07-1\tiF|
libcuda1\tamd64\t595.91.07-1\tiU|
libnvidia-ml1\tamd64\t595.91.07-1\tiHR
trigger\tamd64\t1\tit|
waits\tamd64\t1\tiW|
""".replace("|", " ")  # dpkg-query pads the letters of the status to three

SIMULATION = """\
Reading package lists...
Building dependency tree...
Reading state information...
The following packages will be REMOVED:
  nvidia-kernel-dkms*
The following NEW packages will be installed:
  nvidia-kernel-open-dkms
0 upgraded, 1 newly installed, 1 downgraded, 1 to remove and 0 not upgraded.
Purg nvidia-kernel-dkms [595.91.07-1]
Remv old-driver [1.0-1] [nvidia-smi:amd64 ]
Inst nvidia-smi [595.91.07-1] (580.95.05-1 NVIDIA CUDA:debian12 [amd64]) []
Inst nvidia-kernel-open-dkms (580.95.05-1 NVIDIA CUDA:debian12 [amd64])
Inst libc6:i386 (2.36-9 Debian:12.1/stable [i386])
Conf nvidia-kernel-open-dkms (580.95.05-1 NVIDIA CUDA:debian12 [amd64])
"""

FINGERPRINT = "EB693B3035CD5710E231E123A4B469963BF863CC"


def test_state() -> None:
    state = parse_state(STATE, "amd64")
    assert state.installed == {"dpkg": "1.21.22", "adduser": "3.134", "nvidia-smi": "595.91.07-1",
                               "libc6:i386": "2.36-9"}
    assert state.broken == {"nvidia-kernel-open-dkms": "iF", "libcuda1": "iU", "libnvidia-ml1": "iHR",
                            "trigger": "it", "waits": "iW"}
    assert state.residual == {"old"}


def test_simulation() -> None:
    assert parse_simulation(SIMULATION) == [
        Change("nvidia-kernel-dkms", "595.91.07-1", None),
        Change("old-driver", "1.0-1", None),
        Change("nvidia-smi", "595.91.07-1", "580.95.05-1"),
        Change("nvidia-kernel-open-dkms", None, "580.95.05-1"),
        Change("libc6:i386", None, "2.36-9"),
    ]


def test_packages_index() -> None:
    text = "Package: b\nVersion: 580.95.05-1\n\nPackage: b\nVersion: 580.105.08-1\n\nPackage: a\nVersion: 1:1-1\n"
    assert parse_packages(text) == {"b": ["580.105.08-1", "580.95.05-1"], "a": ["1:1-1"]}


@pytest.mark.parametrize(("url", "prefix"), [
    ("https://developer.example.com/cuda/debian12/x86_64/", "developer.example.com_cuda_debian12_x86%5f64_"),
    ("http://user:secret@10.0.0.1:8080/a b/", "10.0.0.1:8080_a b_"),
    ("file:///srv/mirror", "_srv_mirror_"),
])
def test_list_prefix(url: str, prefix: str) -> None:
    assert list_prefix(url) == prefix


@pytest.mark.parametrize(("name", "ours"), [
    ("example.com_nvidia_Packages", True), ("example.com_nvidia_InRelease", True),
    ("example.com_nvidia_Release.gpg", True), ("example.com_nvidia_dists_stable_main_binary-amd64_Packages", True),
    ("example.com_nvidia_ubuntu_Packages", False), ("example.com_nvidia_ubuntu_dists_noble_InRelease", False),
    ("example.com_nvidia-old_Packages", False), ("mirror.example.com_nvidia_Packages", False),
])
def test_lists_of_a_repository_below_are_not_its_own(name: str, ours: bool) -> None:
    assert is_list_of(name, "https://example.com/nvidia/") is ours


def test_source_is_golden() -> None:
    flat = Repository("cuda", "https://example.com/r/", "k.pub", FINGERPRINT)
    assert source_text(flat, "/usr/share/keyrings/gpuops-cuda.gpg") == (
        b"# Written by gpuops.nvidia; it is removed together with the component that uses it.\n"
        b"Types: deb\nURIs: https://example.com/r/\nSuites: /\nSigned-By: /usr/share/keyrings/gpuops-cuda.gpg\n")
    deep = Repository("x", "https://example.com/r/", "k.pub", FINGERPRINT, "stable", ("main", "extra"))
    assert b"Suites: stable\nComponents: main extra\n" in source_text(deep, "/k")


@pytest.mark.parametrize(("key", "uri"), [
    ("3bf863cc.pub", "https://example.com/r/3bf863cc.pub"),
    ("/etc/keys/k.asc", "file:///etc/keys/k.asc"),
    ("https://keys.example.com/k.asc", "https://keys.example.com/k.asc"),
])
def test_key_uri(key: str, uri: str) -> None:
    assert Repository("cuda", "https://example.com/r/", key, FINGERPRINT).key_uri == uri


@pytest.mark.parametrize(("name", "url", "fingerprint", "path"), [
    ("Cuda/..", "https://example.com/", FINGERPRINT, "repository.name"),
    ("cuda", "example.com/", FINGERPRINT, "repository.url"),
    ("cuda", "https://example.com/ [trusted=yes]", FINGERPRINT, "repository.url"),
    ("cuda", "https://example.com/", FINGERPRINT[:8], "repository.fingerprint"),
])
def test_bad_repository(name: str, url: str, fingerprint: str, path: str) -> None:
    with pytest.raises(InputError) as caught:
        Repository(name, url, "k.pub", fingerprint)
    assert caught.value.details["path"] == path


def test_fingerprint_may_be_spaced() -> None:
    spaced = " ".join(FINGERPRINT[at:at + 4] for at in range(0, 40, 4)).lower()
    assert Repository("cuda", "https://example.com/", "k.pub", spaced).wanted_fingerprint == FINGERPRINT


def test_a_dpkg_at_work_is_not_one_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unattended upgrade of another package, during which dpkg has not merged its updates yet."""
    (tmp_path / "updates").mkdir()
    (tmp_path / "updates/0001").write_text("")
    (tmp_path / "lock").write_text("")
    monkeypatch.setattr(apt, "DPKG_JOURNAL", str(tmp_path / "updates"))
    monkeypatch.setattr(apt, "DPKG_LOCK", str(tmp_path / "lock"))
    manager = apt.Apt(lambda argv, **_options: Completed(tuple(argv), 0, STATE, ""))
    assert manager.read().interrupted
    hold = ("import fcntl, sys\nlock = open(sys.argv[1], 'a')\nfcntl.lockf(lock, fcntl.LOCK_EX)\n"
            "print(flush=True)\nsys.stdin.read()\n")
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path / "lock")], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert not manager.read().interrupted
        other.communicate()
    assert manager.read().interrupted


def test_a_source_of_somebody_else_for_the_same_repository_is_named(tmp_path: Path) -> None:
    """The guide of the vendor says to install it (cuda-keyring); apt then reads no source at all."""
    said = ("E: Conflicting values set for option Signed-By regarding source https://example.com/r/ /: "
            "/usr/share/keyrings/cuda-archive-keyring.gpg != /tmp/x/keyring.gpg\n"
            "E: The list of sources could not be read.\n")
    probe = AptProbe(lambda argv, **_options: Completed(tuple(argv), 100, "", said),
                     Repository("cuda", "https://example.com/r/", "k.pub", FINGERPRINT))
    probe.root = str(tmp_path)
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "cuda.list").write_text("deb https://example.com/r/ /\n")
    with pytest.raises(RepositoryError, match="cuda.list uses https.*cuda-archive-keyring.gpg") as caught:
        probe._check_keyrings()
    assert "apt-get purge cuda-keyring" in caught.value.hint


def test_waits_for_locks_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(apt_tools.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(apt_tools.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    answers = [100, 100, 0]

    def run(argv: t.Sequence[str], **options: t.Any) -> Completed:
        rc = answers.pop(0) if answers else 100
        return Completed(tuple(argv), rc, "", "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1")

    assert apt_get(run, ["update"]).rc == 0
    assert clock[0] == 6
    with pytest.raises(HostError, match="held its lock for over 300 s"):
        apt_get(run, ["update"])


@pytest.mark.parametrize(("said", "words"), [
    ("The following signatures were invalid: EXPKEYSIG A4B469963BF863CC cudatools", ": the key has expired"),
    ("The following signatures were invalid: REVKEYSIG A4B469963BF863CC cudatools", ": the key was revoked"),
    ("The following signatures couldn't be verified: NO_PUBKEY A4B469963BF863CC", ""),
])
def test_a_key_that_is_no_longer_valid(said: str, words: str) -> None:
    assert why_invalid(f"W: GPG error: https://mirror.example.com  InRelease: {said}") == words

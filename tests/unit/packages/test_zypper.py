# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""zypper 1.14 with recorded output, from a host with replacement packages with the names of the vendor."""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import os
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages import (
    rpm,
    zypper_probe,
    zypper_tools,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages import (
    zypper as zypper_module,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.managers import MANAGERS
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import dearmor
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper import Zypper
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper_tools import (
    parse_candidates,
    parse_changes,
    problems,
    proxy,
    zypper,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

from tests.unit.packages.test_openpgp import RSA, RSA_FINGERPRINT, SIGNING, subkey_of

ARCH = os.uname().machine
SWITCH = f"""\
<?xml version='1.0'?>
<stream>
<message type="info">Resolving package dependencies...</message>
<install-summary download-size="17283" space-usage-diff="0" packages-to-change="5">
<to-install>
<solvable type="package" name="nvidia-open-driver-G07" edition="595.91.07-1" arch="{ARCH}" summary="x">
<description>A driver.</description></solvable>
</to-install>
<to-downgrade>
<solvable type="package" name="nvidia-compute-G06" edition="580.95.05-1" arch="{ARCH}" \
edition-old="580.126.20-1" arch-old="{ARCH}" summary="x"/>
</to-downgrade>
<to-upgrade>
<solvable type="package" name="glibc" edition="2.38-2" arch="i586" edition-old="2.38-1" arch-old="i586" summary="x"/>
<solvable type="patch" name="security-1" edition="1" arch="noarch" summary="x"/>
</to-upgrade>
<to-remove>
<solvable type="package" name="nvidia-driver-G06" edition="580.126.20-1" arch="{ARCH}" summary="x"/>
</to-remove>
</install-summary>
</stream>
"""
OFFERED = f"""\
<?xml version='1.0'?>
<stream>
<search-result version="0.0">
<solvable-list>
<solvable status="not-installed" name="nvidia-compute-utils-G06" kind="package" edition="580.95.05-1" arch="{ARCH}"/>
<solvable status="not-installed" name="nvidia-compute-utils-G06" kind="package" edition="580.126.20-1" arch="{ARCH}"/>
</solvable-list>
</search-result>
</stream>
"""
CONFLICT = """\
<stream>
<message type="info">Resolving package dependencies...</message>
<prompt id="1">
<description>Problem: nvidia-open-driver-G06-580.126.20-1.x86_64 conflicts with nvidia-driver-G06
 Solution 1: deinstallation of nvidia-open-driver-G06-580.126.20-1.x86_64
</description>
<text>Choose from above solutions by number or cancel</text>
</prompt>
</stream>
"""
MISSING = '<stream><message type="error">No provider of &apos;nvidia-nosuch=1&apos; found.</message></stream>'
STRANGE = """\
<stream><message type="warning">File &apos;repomd.xml&apos; from repository &apos;x&apos; is signed with an unknown key
&apos;B11BF25B111D34DE&apos;.</message>
<message type="error">Repository &apos;x&apos; is invalid.
[gpuops-driver|https://example.com/r/] Valid metadata not found at specified URL
History:
 - Signature verification failed for repomd.xml
</message></stream>
"""
LOCKED = """\
<stream><message type="error">System management is locked by the application with pid 22682 (zypper).
Close this application before trying again.</message></stream>
"""


class Host:
    """Answers commands by a word in them, and records them with their environment."""

    key = b""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.answers = {"--eval": (0, "/var/lib/rpm\n"), **answers}
        self.calls: list[list[str]] = []
        self.settings: list[dict[str, str]] = []
        self.checks: dict[str, str] = {}

    def __call__(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        self.calls.append(list(argv))
        self.settings.append(dict(options.get("env") or {}))
        if argv[0] == "curl" and "curl" not in self.answers:
            Path(argv[argv.index("--output") + 1]).write_bytes(self.key)
        if "ZYPP_CONF" in self.settings[-1]:
            folder = Path(Path(self.settings[-1]["ZYPP_CONF"]).read_text().rsplit("= ", 1)[1].strip())
            self.checks = {path.name: path.read_text() for path in folder.iterdir()}
        rc, out = next((answer for key, answer in self.answers.items() if key in argv), (0, "<stream/>"))
        if rc and options.get("check", True):
            raise CommandError(argv, rc, out, "")
        return Completed(tuple(argv), rc, out, "")

    def words(self, program: str = "zypper") -> list[list[str]]:
        """The calls of a program, without the options that all calls of zypper have."""
        return [[word for word in call[1:] if word not in ("--non-interactive", "--xmlout")] for call in self.calls
                if call[0] == program]


def test_changes() -> None:
    assert parse_changes(SWITCH) == [
        Change("nvidia-open-driver-G07", None, "595.91.07-1"),
        Change("nvidia-compute-G06", "580.126.20-1", "580.95.05-1"), Change("glibc.i586", "2.38-1", "2.38-2"),
        Change("nvidia-driver-G06", "580.126.20-1", None)]
    assert parse_changes("<stream><message type='info'>Nothing to do.</message></stream>") == []


def test_candidates_are_newest_first() -> None:
    assert parse_candidates(OFFERED) == {"nvidia-compute-utils-G06": ["580.126.20-1", "580.95.05-1"]}


def test_what_is_no_xml_is_no_answer() -> None:
    with pytest.raises(HostError, match="did not print XML"):
        parse_changes("zypper: symbol lookup error")


@pytest.mark.parametrize(("text", "why"), [
    (CONFLICT, "Problem: nvidia-open-driver-G06-580.126.20-1.x86_64 conflicts with nvidia-driver-G06"),
    (MISSING, "No provider of 'nvidia-nosuch=1' found"), ("zypper: error while loading", "zypper: error while loading"),
])
def test_problems_are_the_sentences_that_say_why(text: str, why: str) -> None:
    assert problems(text) == why


@pytest.mark.parametrize("rc", [0, 102, 103, 106, 107])
def test_what_asks_for_a_reboot_has_worked(rc: int) -> None:
    assert zypper(Host(install=(rc, SWITCH)), ["install", "x"]).rc == rc


def test_failures() -> None:
    with pytest.raises(CommandError):
        zypper(Host(install=(4, CONFLICT)), ["install", "x"])
    with pytest.raises(HostError, match="no zypper"):
        zypper(Host(install=(127, "")), ["install", "x"])


def test_waits_for_a_lock_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    host = Host(install=(7, LOCKED))
    with pytest.raises(HostError, match="over 0 s: System management is locked by the application with pid 22682"):
        zypper(host, ["install", "x"], wait=0.01)
    assert len(host.calls) > 1


@pytest.mark.parametrize(("text", "found"), [
    ('PROXY_ENABLED="yes"\nHTTP_PROXY="http://proxy.example.com:3128"\n', {"proxy": "http://proxy.example.com:3128"}),
    ('PROXY_ENABLED="no"\nHTTP_PROXY="http://proxy.example.com:3128"\n', {}),
    ('PROXY_ENABLED="yes"\nHTTP_PROXY=""\n', {}),
])
def test_proxy(text: str, found: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proxy").write_text(text)
    monkeypatch.setattr(zypper_tools, "PROXY", str(tmp_path / "proxy"))
    assert proxy() == found


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of zypper below a temporary folder."""
    for name in ("REPOSITORIES", "KEYS", "CACHE", "CHECKS"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(Zypper, "repositories", str(tmp_path / "REPOSITORIES"))
    monkeypatch.setattr(rpm, "KEYS", str(tmp_path / "KEYS"))
    monkeypatch.setattr(zypper_module, "CACHE", str(tmp_path / "CACHE"))
    for name in ("REPOSITORIES", "CACHE", "CHECKS"):
        monkeypatch.setattr(zypper_probe, name, str(tmp_path / name))
    monkeypatch.setattr(zypper_probe, "SETTINGS", str(tmp_path / "zypp.conf"))
    return tmp_path


def probing(**answers: tuple[int, str]) -> tuple[Host, Zypper, Repository]:
    """A host that has the key, and a repository signed by it."""
    host = Host(**{"search": (0, OFFERED), **answers})
    body = b"\x04key"
    host.key = bytes([0x98, len(body)]) + body
    fingerprint = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    return host, Zypper(host), Repository("driver", "https://example.com/r/", "k.pub", fingerprint, held=True)


def test_suse_has_zypper() -> None:
    assert MANAGERS["suse"] is Zypper


def test_repository_files_are_recognised(paths: Path) -> None:
    host, manager, repository = probing()
    assert not manager.is_configured(repository)
    for path, content in manager.files(repository, host.key).items():
        Path(path).write_bytes(content)
    assert manager.is_configured(repository) and not host.calls
    text = Path(manager.source_path(repository)).read_text()
    assert "gpgcheck=1\nrepo_gpgcheck=1\n" in text and "autorefresh=0\npriority=50\n" in text
    Path(manager.source_path(repository)).write_text(text.replace("gpgcheck=1", "gpgcheck=0"))
    assert not manager.is_configured(repository)


def test_our_repository_is_checked_where_the_host_checks_none(paths: Path) -> None:
    """As libzypp reads them, the options of a repository come before those of zypp.conf, which are for all others."""
    (paths / "zypp.conf").write_text("[main]\ngpgcheck = off\nrepo_gpgcheck = off\npkg_gpgcheck = off\n")
    host, manager, repository = probing(**{"--dry-run": (0, SWITCH)})
    texts = []
    with manager.probe(repository) as probe:
        probe.simulate({"nvidia-open-driver-G07": "595.91.07-1"}, {})
        texts.append(Path(f"{probe.root}/tree{paths}/REPOSITORIES/gpuops-driver.repo").read_text())
    for path, content in manager.files(repository, host.key).items():
        Path(path).write_bytes(content)
    texts.append(Path(manager.source_path(repository)).read_text())
    manager.install({"nvidia-open-driver-G07": "595.91.07-1"})
    for text in texts:
        read = configparser.ConfigParser(interpolation=None)
        read.read_string((paths / "zypp.conf").read_text() + text)
        used = {**read["main"], **read["gpuops-driver"]}
        assert (used["gpgcheck"], used["repo_gpgcheck"]) == ("1", "1")
    assert len(host.words()) == 4 and "gpg" not in str(host.words())  # such as --no-gpg-checks
    for line in ("gpgcheck=1\n", "repo_gpgcheck=1\n"):  # then the host's own settings would count
        Path(manager.source_path(repository)).write_text(texts[1].replace(f"\n{line}", "\n"))
        assert not manager.is_configured(repository)


def test_lists_of_repositories_that_are_gone_are_forgotten(paths: Path) -> None:
    for kind in ("raw", "solv"):
        for name in ("gpuops-driver", "gpuops-cuda", "SLES"):
            (paths / "CACHE" / kind / name).mkdir(parents=True)
    (paths / "REPOSITORIES" / "gpuops-cuda.repo").touch()
    Zypper(Host()).forget_lists("https://example.com/r/")
    assert [sorted(os.listdir(paths / "CACHE" / kind)) for kind in ("raw", "solv")] == [["SLES", "gpuops-cuda"]] * 2


@pytest.mark.parametrize(("rc", "told"), [(0, False), (104, False), (4, True)])
def test_a_reinstallation_is_tried_before(rc: int, told: bool) -> None:
    host = Host(**{"--dry-run": (rc, "")})
    with pytest.raises(CommandError) if told else contextlib.nullcontext():
        Zypper(host).reinstall({"nvidia-open-driver-G07": "595.91.07-1"}, check=True)
    assert host.words()[0][-3:] == ["--force", "--dry-run", "nvidia-open-driver-G07=595.91.07-1"]


def test_install_and_remove() -> None:
    host = Host()
    manager = Zypper(host)
    manager.install({"nvidia-open-driver-G07": "595.91.07-1", "kernel-default-devel=6.4.0": ""},
                    gone=["nvidia-driver-G06"])
    manager.reinstall({"nvidia-open-driver-G07": "595.91.07-1"})
    manager.remove(["nvidia-open-driver-G07"], purge=False)
    first, again, second = host.words()
    assert again[-2:] == ["--force", "nvidia-open-driver-G07=595.91.07-1"]
    assert first[0] == second[0] == "--no-refresh" and "--oldpackage" in first and "--no-recommends" in first
    assert first[-3:] == ["kernel-default-devel=6.4.0", "nvidia-open-driver-G07=595.91.07-1", "!nvidia-driver-G06"]
    assert second[1:] == ["remove", "--no-clean-deps", "nvidia-open-driver-G07"]


@pytest.mark.parametrize(("said", "whole"), [
    ("Unsatisfied dependencies for nvidia-compute-utils-G06-580.126.20-1.x86_64:\n\tnvidia-compute-G06 = 580.126.20 is "
     "needed by (installed) nvidia-compute-utils-G06-580.126.20-1.x86_64\n", False),
    ("", True),
])
def test_a_cut_transaction_leaves_dependencies_open(said: str, whole: bool) -> None:
    assert Zypper(Host(**{"--verify": (0 if whole else 1, said)})).is_consistent() is whole


def test_a_probe_reads_with_the_wanted_key_alone_and_simulates_what_will_be_held(paths: Path) -> None:
    host, manager, repository = probing(install=(0, SWITCH))
    (paths / "REPOSITORIES" / "SLES.repo").write_text("[SLES]\n")
    (paths / "CACHE" / "raw" / "SLES").mkdir(parents=True)
    (paths / "CACHE" / "solv" / "@System").mkdir(parents=True)
    hold = paths / "CHECKS" / "gpuops-driver.check"
    hold.write_text("conflicts:nvidia-compute-G06 > 580.126.20_z\n")
    (paths / "CHECKS" / "theirs.check").write_text("requires:glibc\n")
    (paths / "zypp.conf").write_text("[main]\nsolver.checkSystemFileDir = /elsewhere\ndownload.use_deltarpm = no\n")
    with manager.probe(repository) as probe:
        assert probe.resolve("nvidia-compute-utils-G06", "580.95.05") == "580.95.05-1"
        tree = f"{probe.root}/tree"
        assert sorted(os.listdir(f"{tree}{paths}/REPOSITORIES")) == ["SLES.repo", "gpuops-driver.repo"]
        assert os.listdir(f"{tree}{paths}/CACHE/raw") == ["SLES"] and os.listdir(f"{tree}{paths}/CACHE/solv") == []
        assert not os.path.islink(f"{tree}{paths}/CACHE/raw/SLES")  # zypp would write through it
        changes = probe.simulate({"nvidia-compute-utils-G06": "580.95.05-1"}, {}, gone=["nvidia-driver-G06"],
                                 files={str(hold): b"conflicts:nvidia-compute-G06 > 580.95.05_z\n"})
        settings = Path(host.settings[-1]["ZYPP_CONF"]).read_text()
        with pytest.raises(RepositoryError, match="It has 580.126.20, 580.95.05"):
            probe.resolve("nvidia-compute-utils-G06", "570.1")
    assert host.words("rpm")[1][:3] == ["--root", tree, "--import"]
    assert all(words[:2] == ["--root", tree] for words in host.words()[:2])
    assert "--root" not in host.words()[2] and "--dry-run" in host.words()[2]
    assert host.words()[2][-1] == "!nvidia-driver-G06"
    assert Change("nvidia-driver-G06", "580.126.20-1", None) in changes
    assert host.checks == {"theirs.check": "requires:glibc\n",
                           "gpuops-driver.check": "conflicts:nvidia-compute-G06 > 580.95.05_z\n"}
    assert "use_deltarpm = no" in settings and "/elsewhere" not in settings
    assert hold.read_text().endswith("580.126.20_z\n") and not os.path.exists(tree)


def test_packages_that_go_first_are_taken_from_a_copy_of_the_database(paths: Path) -> None:
    database = paths / "rpm"
    database.mkdir()
    (database / "Packages").write_text("x")
    host, manager, repository = probing(install=(0, SWITCH), **{"--eval": (0, f"{database}\n")})
    with manager.probe(repository) as probe:
        probe.simulate({"a": "1-1"}, {}, ["nvidia-open-driver-G07"], ["nvidia-open-driver-G07"])
        assert Path(f"{probe.root}/tree{database}/Packages").read_text() == "x"
    erase = host.words("rpm")[-1]
    assert erase[:2] == ["--dbpath", f"{probe.root}/tree{database}"] and "--justdb" in erase
    assert host.words()[-1][:2] == ["--root", f"{probe.root}/tree"]
    assert not any(word.startswith("!") for word in host.words()[-1])


@pytest.mark.parametrize(("answers", "message"), [
    ({"curl": (7, "curl: (7) Failed to connect to example.com port 443")}, "cannot be fetched: curl: \\(7\\)"),
    ({"refresh": (4, STRANGE)}, "is not signed by the key"),
    ({"refresh": (4, '<message type="error">Timeout exceeded.</message>')}, "cannot be read: Timeout exceeded"),
    ({"search": (0, "<stream/>")}, "lists no packages"),
])
def test_what_is_wrong_with_a_repository(paths: Path, answers: dict[str, tuple[int, str]], message: str) -> None:
    _host, manager, repository = probing(**answers)
    with pytest.raises(RepositoryError, match=message), manager.probe(repository):
        pass


def test_another_key_is_refused(paths: Path) -> None:
    host, manager, repository = probing()
    host.key = b"\x98\x06\x04other"
    with pytest.raises(RepositoryError, match="has the fingerprint"), manager.probe(repository):
        pass
    assert not host.words()


def test_a_subkey_that_the_key_has_not_signed_reaches_no_host(paths: Path) -> None:
    """rpm before 4.18, which the systems of SUSE have, accepts it with the key (CVE-2021-3521)."""
    host, manager, repository = probing()
    ours = dearmor(RSA.encode())
    host.key = ours + b"".join(subkey_of(dearmor(SIGNING.encode())))
    with manager.probe(replace(repository, fingerprint=RSA_FINGERPRINT)) as probe:
        assert probe.key == ours and dearmor(Path(f"{probe.root}/key").read_bytes()) == ours


def test_why_a_transaction_cannot_be(paths: Path) -> None:
    _host, manager, repository = probing(install=(4, CONFLICT))
    with manager.probe(repository) as probe, pytest.raises(HostError, match="Problem: nvidia-open-driver-G06"):
        probe.simulate({"nvidia-driver-G06": "580.126.20-1"}, {})

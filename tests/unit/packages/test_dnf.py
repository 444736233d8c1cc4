# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dnf 4.14 and rpm 4.18 with recorded output, from a host with replacement packages with the names of the vendor."""

from __future__ import annotations

import configparser
import hashlib
import os
import shutil
import typing as t
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages import (
    dnf as dnf_module,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages import (
    dnf_probe,
    dnf_tools,
    rpm,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, Repository, specifiers
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf import Dnf
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import (
    dnf,
    parse_candidates,
    parse_decisions,
    problems,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import dearmor
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import parse_state
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

from tests.unit.packages.test_openpgp import RSA, RSA_FINGERPRINT, SIGNING, subkey_of

ARCH = os.uname().machine
FINGERPRINT = "C19BF9E8EEF28CD4FFA65B151637816764D4083D"
REPOSITORY = Repository("driver", "https://example.com/r/", "k.pub", FINGERPRINT, held=True)
INSTALLED = {"libnvidia-ml": "3:580.126.20-1.el9", "kmod-nvidia-open-dkms": "3:580.126.20-1.el9"}
FLAVOUR = f"""\
--> Starting dependency resolution
---> Package kmod-nvidia-latest-dkms.{ARCH} 3:595.91.07-1.el9 will be installed
---> Package libnvidia-ml.{ARCH} 3:580.126.20-1.el9 will be upgraded
---> Package libnvidia-ml.{ARCH} 3:595.91.07-1.el9 will be an upgrade
---> Package kmod-nvidia-open-dkms.{ARCH} 3:580.126.20-1.el9 will be erased
--> Finished dependency resolution
Dependencies resolved.
Operation aborted.
"""
DOWN = f"---> Package libnvidia-ml.{ARCH} 3:570.1-1.el9 will be a downgrade\n"
CONFLICT = """\
Error:
 Problem: problem with installed package kmod-nvidia-open-dkms-3:580.126.20-1.el9.x86_64
  - package kmod-nvidia-latest-dkms-3:595.91.07-1.el9.x86_64 from cuda conflicts with kmod-nvidia-open-dkms
  - conflicting requests
(try to add '--allowerasing' to command line to replace conflicting packages)
"""
LOCKED = """\
metadata already locked by 22682
  The application with PID 22682 is: sleep
    State  : Sleeping
"""


class Host:
    """Answers commands by their beginnings, and records them."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.answers = answers
        self.calls: list[list[str]] = []
        self.inputs: list[str] = []

    def __call__(self, argv: t.Sequence[str], **_options: t.Any) -> Completed:
        self.calls.append(list(argv))
        self.inputs.append(_options.get("stdin") or "")
        text = " ".join(argv)
        rc, out = next((answer for key, answer in self.answers.items() if key.replace("_", " ") in text), (0, ""))
        if rc and _options.get("check", True):
            raise CommandError(argv, rc, out, "")
        return Completed(tuple(argv), rc, out, "")

    def words(self, program: str) -> list[list[str]]:
        """The calls of a program, without the options that all calls of dnf have."""
        return [[word for word in call[1:] if word not in dnf_tools._OPTIONS] for call in self.calls
                if call[0] == program]


def test_state_has_epochs_and_foreign_architectures() -> None:
    state = parse_state(f"bash\t{ARCH}\t5.1.8-9\nnvidia-open\tnoarch\t3:595.91.07-1.el9\nglibc\ti686\t2.34-1\n"
                        "gpg-pubkey\t(none)\t111d34de-6b01\ngpg-pubkey\t(none)\t222d34de-6b01\n")
    assert state.installed == {"bash": "5.1.8-9", "nvidia-open": "3:595.91.07-1.el9", "glibc.i686": "2.34-1",
                               "gpg-pubkey": "222d34de-6b01"}
    assert not state.broken


def test_two_versions_are_broken_but_for_kernels() -> None:
    state = parse_state(f"libnvidia-ml\t{ARCH}\t3:595.91.07-1.el9\nlibnvidia-ml\t{ARCH}\t3:580.126.20-1.el9\n"
                        f"kernel-core\t{ARCH}\t5.14.0-570.el9\nkernel-core\t{ARCH}\t5.14.0-70.el9\n")
    assert state.installed == {"kernel-core": "5.14.0-570.el9"}
    assert state.broken == {"libnvidia-ml": "installed as 3:580.126.20-1.el9 and 3:595.91.07-1.el9"}


def test_decisions() -> None:
    assert sorted(parse_decisions(FLAVOUR, INSTALLED), key=lambda change: change.name) == [
        Change("kmod-nvidia-latest-dkms", None, "3:595.91.07-1.el9"),
        Change("kmod-nvidia-open-dkms", "3:580.126.20-1.el9", None),
        Change("libnvidia-ml", "3:580.126.20-1.el9", "3:595.91.07-1.el9")]
    assert parse_decisions(DOWN, INSTALLED) == [Change("libnvidia-ml", "3:580.126.20-1.el9", "3:570.1-1.el9")]


def test_candidates_are_newest_first() -> None:
    text = "\n".join(f"nvidia-driver-cuda\t{ARCH}\t3\t{version}-1.el9" for version in
                     ("580.95.05", "595.91.07", "580.126.20")) + f"\nnvidia-fabricmanager\t{ARCH}\t0\t580.126.20-1\n"
    assert parse_candidates(text) == {
        "nvidia-driver-cuda": ["3:595.91.07-1.el9", "3:580.126.20-1.el9", "3:580.95.05-1.el9"],
        "nvidia-fabricmanager": ["580.126.20-1"]}


def test_specs() -> None:
    assert specifiers({"nvidia-driver-cuda": "3:1-1.el9", "kernel-devel-5.14.0": ""}, "-") == [
        "kernel-devel-5.14.0", "nvidia-driver-cuda-3:1-1.el9"]


def test_problems_are_the_lines_that_say_why() -> None:
    assert problems(CONFLICT).startswith("Problem: problem with installed package kmod-nvidia-open-dkms")
    assert "try to add" not in problems(CONFLICT)


def test_what_the_host_keeps_out_is_named() -> None:
    said = "All matches were filtered out by exclude filtering for argument: x\nError: Unable to find a match: x\n"
    assert problems(said) == said.strip().replace("\n", " / ")


def test_a_transaction_answered_with_no_is_no_failure() -> None:
    assert dnf(Host(install=(1, FLAVOUR)), ["--assumeno", "install", "x"]).stdout == FLAVOUR
    with pytest.raises(CommandError):
        dnf(Host(install=(1, CONFLICT)), ["--assumeno", "install", "x"])


@pytest.mark.parametrize(("target", "name"), [("dnf-3", "dnf"), ("dnf5", "dnf4")])
def test_dnf_4_by_its_name(target: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / target).touch(mode=0o755)
    (tmp_path / "dnf").symlink_to(target)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dnf_tools.program() == name
    with pytest.raises(HostError, match=f"no {name}, but this collection needs dnf 4"):
        dnf(Host(install=(127, "")), ["install", "x"])


def test_waits_for_a_lock_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    host = Host(install=(200, LOCKED))
    with pytest.raises(HostError, match="over 0 s: metadata already locked by 22682"):
        dnf(host, ["install", "x"], wait=0.01)
    assert len(host.calls) > 1


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of dnf below a temporary folder."""
    for name in ("REPOSITORIES", "KEYS", "CACHE"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(dnf_module.Dnf, "repositories", str(tmp_path / "REPOSITORIES"))
    monkeypatch.setattr(rpm, "KEYS", str(tmp_path / "KEYS"))
    monkeypatch.setattr(dnf_module, "CACHE", str(tmp_path / "CACHE"))
    monkeypatch.setattr(dnf_tools, "SETTINGS", str(tmp_path / "SETTINGS"))
    for name in ("REPOSITORIES", "CACHE"):
        monkeypatch.setattr(dnf_probe, name, str(tmp_path / name))
    return tmp_path


def key_of(data: bytes) -> tuple[bytes, str]:
    """A public key packet with this data, and its fingerprint."""
    body = b"\x04" + data
    packet = bytes([0x98, len(body)]) + body
    return packet, hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()


def test_repository_files_hold_and_are_recognised(paths: Path) -> None:
    packet, fingerprint = key_of(b"key")
    repository = Repository("driver", "https://example.com/r/", "k.pub", fingerprint, held=True)
    manager = Dnf(Host())
    assert not manager.is_configured(repository)
    for path, content in manager.files(repository, packet).items():
        Path(path).write_bytes(content)
    assert manager.is_configured(repository)
    text = Path(manager.source_path(repository)).read_text()
    assert "gpgcheck=1\nrepo_gpgcheck=1\n" in text and "includepkgs=$gpuops_driver\npriority=50\n" in text
    assert "includepkgs" not in manager.files(Repository("cuda", "https://e.com/", "k", FINGERPRINT),
                                              packet)[f"{paths}/REPOSITORIES/gpuops-cuda.repo"].decode()
    Path(manager.source_path(repository)).write_text(text.replace("gpgcheck=1", "gpgcheck=0"))
    assert not manager.is_configured(repository)


def test_lists_of_repositories_that_are_gone_are_forgotten(paths: Path) -> None:
    for name in ("gpuops-driver-b8a55b93be0a8f0a", "gpuops-cuda-b8a55b93be0a8f0b", "baseos-b8a55b93be0a8f0b"):
        (paths / "CACHE" / name).mkdir()
    for name in ("gpuops-driver.solv", "gpuops-driver-filenames.solvx", "gpuops-cuda.solv", "packages.db"):
        (paths / "CACHE" / name).touch()
    (paths / "REPOSITORIES" / "gpuops-cuda.repo").touch()
    Dnf(Host()).forget_lists("https://example.com/r/")
    assert sorted(path.name for path in (paths / "CACHE").iterdir()) == [
        "baseos-b8a55b93be0a8f0b", "gpuops-cuda-b8a55b93be0a8f0b", "gpuops-cuda.solv", "packages.db"]


def test_the_key_is_found_by_the_end_of_its_fingerprint() -> None:
    host = Host(gpg=(0, "gpg-pubkey-64d4083d-6b017f74\ngpg-pubkey-d42d0685-62589a51\n"))
    manager = Dnf(host)
    assert manager.trusts(FINGERPRINT) and not manager.trusts("0" * 40)
    manager.distrust(FINGERPRINT)
    assert host.words("rpm")[-1] == ["--erase", "gpg-pubkey-64d4083d-6b017f74"]
    assert not Dnf(Host(gpg=(1, "package gpg-pubkey is not installed\n"))).trusts(FINGERPRINT)


@pytest.mark.parametrize(("said", "whole"), [
    ("Transaction ID : 3\nReturn-Code    : Failure: 1\n", False),
    ("Transaction ID : 3\nReturn-Code    : Success\n", True),
    ("No transactions\nError: Failed history info\n", True),
])
def test_a_cut_transaction_is_in_the_history(said: str, whole: bool) -> None:
    assert Dnf(Host(history=(0 if whole else 1, said))).is_consistent() is whole


def test_files_that_are_gone() -> None:
    line = "x\t0\t0\t/usr/lib/nowhere-at-all.so\t0\t8\t\n"
    manager = Dnf(lambda argv, **_options: Completed(tuple(argv), 0, line, ""))
    assert manager.lost_files(["x"]) == {"x": ["/usr/lib/nowhere-at-all.so"]}


def test_install_and_remove(tmp_path: Path) -> None:
    setting = tmp_path / "nvidia.conf"
    for suffix in (".rpmnew", ".mine"):
        Path(f"{setting}{suffix}").touch()

    class Keeping(Host):
        """An rpm that keeps a changed configuration file."""

        def __call__(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
            if argv[-2:] == ["remove", "nvidia-driver-cuda"]:
                Path(f"{setting}.rpmsave").touch()
            return super().__call__(argv, **options)

    host = Keeping(qc=(0, f"{setting}\n"))
    manager = Dnf(host)
    manager.install({"nvidia-driver-cuda": "3:1-1"}, ["libnvidia-ml"])
    manager.reinstall({"nvidia-driver-cuda": "3:1-1"}, check=True)
    manager.reinstall({"nvidia-driver-cuda": "3:1-1"})
    manager.remove(["nvidia-driver-cuda"])
    assert host.words("dnf") == [
        ["--allowerasing", "install", "nvidia-driver-cuda-3:1-1"], ["mark", "remove", "libnvidia-ml"],
        ["--assumeno", "reinstall", "nvidia-driver-cuda-3:1-1"], ["reinstall", "nvidia-driver-cuda-3:1-1"],
        ["--setopt=clean_requirements_on_remove=0", "remove", "nvidia-driver-cuda"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nvidia.conf.mine", "nvidia.conf.rpmnew"]
    Path(f"{setting}.rpmsave").touch()  # older than our packages
    manager.remove(["nvidia-driver-cuda"])
    assert Path(f"{setting}.rpmsave").exists()


def test_repair_takes_all_versions_out_and_leaves_those_of_others() -> None:
    twice = "".join(f"libnvidia-ml\t{ARCH}\t3:{version}-1.el9\n" for version in ("595.91.07", "580.126.20"))
    host = Host(qa=(0, twice))
    Dnf(host).repair(["libnvidia-ml", "gone"])
    assert ["--erase", "--allmatches", "--nodeps", "libnvidia-ml"] in host.words("rpm")
    with pytest.raises(HostError, match="libnvidia-ml"):
        Dnf(host).repair([])


class Fetching(Host):
    """The same as L(Host); curl writes a key."""

    key = b""

    def __call__(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        if argv[0] == "curl" and "curl" not in self.answers:
            Path(argv[argv.index("--output") + 1]).write_bytes(self.key)
        return super().__call__(argv, **options)


def probing(**answers: tuple[int, str]) -> tuple[Fetching, Dnf, Repository]:
    """A host that has the key, and a repository signed by it."""
    host = Fetching(**answers)
    host.key, fingerprint = key_of(b"key")
    return host, Dnf(host), Repository("driver", "https://example.com/r/", "k.pub", fingerprint, held=True)


OFFERED = f"@nvidia-driver-cuda\t{ARCH}\t3\t595.91.07-1.el9\n@nvidia-driver-cuda\t{ARCH}\t3\t580.126.20-1.el9\n"


def test_a_probe_simulates_with_the_versions_that_will_be_held(paths: Path) -> None:
    host, manager, repository = probing(repoquery=(0, f"Loaded plugins: x\n{OFFERED}"), install=(1, FLAVOUR),
                                        qa=(0, f"libnvidia-ml\t{ARCH}\t3:580.126.20-1.el9\n"))
    (paths / "REPOSITORIES" / "baseos.repo").write_text("[baseos]\n")
    for name in ("baseos.solv", "expired_repos.json", "gpuops-driver.solv"):
        (paths / "CACHE" / name).touch()
    (paths / "CACHE" / "baseos-b8a55b93be0a8f0b").mkdir()
    with manager.probe(repository) as probe:
        assert probe.resolve("nvidia-driver-cuda", "580.126.20") == "3:580.126.20-1.el9"
        assert sorted(os.listdir(f"{probe.root}/repos")) == ["baseos.repo", "gpuops-driver.repo"]
        assert sorted(os.listdir(f"{probe.root}/cache")) == ["baseos-b8a55b93be0a8f0b", "baseos.solv"]
        changes = probe.simulate({"nvidia-driver-cuda": "3:595.91.07-1.el9"}, {}, files={
            "/etc/dnf/vars/gpuops_driver": b"*-595.91.07-*,nvlsm*\n"})
        with pytest.raises(RepositoryError, match="It has 595.91.07, 580.126.20"):
            probe.resolve("nvidia-driver-cuda", "570.1")
    assert Change("libnvidia-ml", "3:580.126.20-1.el9", "3:595.91.07-1.el9") in changes
    assert "--setopt=gpuops-driver.includepkgs=*-595.91.07-*,nvlsm*" in host.words("dnf")[-1]
    assert not os.path.exists(probe.root)


def test_a_probe_leaves_the_metadata_of_others_as_they_are(paths: Path) -> None:
    """dnf writes downloads to the folder of a repository, through a link to the folder of the host."""
    host, manager, repository = probing(repoquery=(0, OFFERED), install=(1, FLAVOUR))
    folder = paths / "CACHE" / "baseos-b8a55b93be0a8f0b" / "repodata"
    folder.mkdir(parents=True)
    (folder / "repomd.xml").write_text("old")
    with manager.probe(repository) as probe:
        shutil.rmtree(f"{probe.root}/cache/baseos-b8a55b93be0a8f0b/repodata")
        probe.simulate({"nvidia-driver-cuda": "3:595.91.07-1.el9"}, {})
    assert (folder / "repomd.xml").read_text() == "old"
    assert all("--setopt=*.metadata_expire=-1" in call for call in host.words("dnf"))


def test_what_dnf_says_of_a_file_it_says_of_the_hosts(paths: Path) -> None:
    class Wrong(Fetching):
        def __call__(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
            folder = next((word[18:] for word in argv if word.startswith("--setopt=reposdir")), "")
            done = super().__call__(argv, **options)
            return done._replace(stderr=f"Warning: failed loading '{folder}/bad.repo', skipping.\n")

    _host, _manager, repository = probing()
    host = Wrong(repoquery=(1, ""))
    host.key = key_of(b"key")[0]
    with pytest.raises(RepositoryError, match=f"failed loading '{paths}/REPOSITORIES/bad.repo'"), \
            Dnf(host).probe(repository):
        pass


@pytest.mark.parametrize(("answers", "message"), [
    ({"curl": (7, "curl: (7) Failed to connect to example.com port 443")}, "cannot be fetched: curl: \\(7\\)"),
    ({"repoquery": (1, "Error: Failed to download metadata for repo 'x': repomd.xml GPG signature verification error: "
                       "Bad GPG signature")}, "is not signed by the key"),
    ({"repoquery": (1, "Error: Failed to download metadata for repo 'x': Cannot download repomd.xml")},
     "cannot be read: Error: Failed to download"),
    ({"repoquery": (0, "")}, "lists no packages"),
])
def test_what_is_wrong_with_a_repository(paths: Path, answers: dict[str, tuple[int, str]], message: str) -> None:
    _host, manager, repository = probing(**answers)
    with pytest.raises(RepositoryError, match=message), manager.probe(repository):
        pass


def test_another_key_is_refused(paths: Path) -> None:
    host, manager, repository = probing()
    host.key = key_of(b"other")[0]
    with pytest.raises(RepositoryError, match="has the fingerprint"), manager.probe(repository):
        pass
    assert not host.words("dnf")


def test_a_subkey_that_the_key_has_not_signed_reaches_no_host(paths: Path) -> None:
    """rpm before 4.18 accepts it with the key (CVE-2021-3521)."""
    host, manager, repository = probing(repoquery=(0, OFFERED))
    ours = dearmor(RSA.encode())
    host.key = ours + b"".join(subkey_of(dearmor(SIGNING.encode())))
    with manager.probe(replace(repository, fingerprint=RSA_FINGERPRINT)) as probe:
        assert probe.key == ours and dearmor(Path(f"{probe.root}/key").read_bytes()) == ours


@pytest.mark.parametrize(("key", "asked"), [
    ("k.pub", ['proxy = "http://proxy:3128"', 'proxy-user = "gate:k\\"ey"', 'user = "site:p w"']),
    ("https://elsewhere.example.com/k.pub?sig=x", ['proxy = "http://proxy:3128"', 'proxy-user = "gate:k\\"ey"']),
])
def test_passwords_of_dnf_serve_for_the_key_and_stand_in_no_command_line(
        paths: Path, key: str, asked: list[str]) -> None:
    (paths / "SETTINGS").write_text("[main]\ngpgcheck=1\nproxy=http://proxy:3128\nproxy_username = gate\n"
                                    'proxy_password=k"ey\nusername=site\npassword=p w\n')
    host, manager, repository = probing(repoquery=(0, OFFERED))
    with manager.probe(replace(repository, key=key)):
        pass
    [(argv, config)] = [(call, text) for call, text in zip(host.calls, host.inputs) if call[0] == "curl"]
    assert config.splitlines() == [f'url = "{urljoin("https://example.com/r/", key)}"', *asked]
    assert not any(secret in " ".join(argv) for secret in ("gate", "site", "proxy", "sig"))


def test_our_repository_is_checked_where_the_host_checks_none(paths: Path) -> None:
    """As dnf reads them, the options of a repository come before those of [main], which are for all others."""
    (paths / "SETTINGS").write_text("[main]\ngpgcheck=0\nrepo_gpgcheck=0\nlocalpkg_gpgcheck=0\n")
    host, manager, repository = probing(repoquery=(0, OFFERED), install=(1, FLAVOUR))
    texts = []
    with manager.probe(repository) as probe:
        probe.simulate({"nvidia-driver-cuda": "3:595.91.07-1.el9"}, {})
        texts.append(Path(f"{probe.root}/repos/gpuops-driver.repo").read_text())
    for path, content in manager.files(repository, host.key).items():
        Path(path).write_bytes(content)
    texts.append(Path(manager.source_path(repository)).read_text())
    host.answers["install"] = (0, "")
    manager.install({"nvidia-driver-cuda": "3:595.91.07-1.el9"})
    for text in texts:
        read = configparser.ConfigParser(interpolation=None)
        read.read_string((paths / "SETTINGS").read_text() + text)
        used = {**read["main"], **read["gpuops-driver"]}
        assert (used["gpgcheck"], used["repo_gpgcheck"]) == ("1", "1")
    assert len(host.words("dnf")) == 3 and "gpg" not in str(host.words("dnf"))
    for line in ("gpgcheck=1\n", "repo_gpgcheck=1\n"):  # then the host's own settings would count
        Path(manager.source_path(repository)).write_text(texts[1].replace(f"\n{line}", "\n"))
        assert not manager.is_configured(repository)


def test_why_a_transaction_cannot_be(paths: Path) -> None:
    _host, manager, repository = probing(repoquery=(0, OFFERED), install=(1, CONFLICT))
    with manager.probe(repository) as probe, pytest.raises(HostError, match="Problem: problem with installed package"):
        probe.simulate({"nvidia-driver-cuda": "3:595.91.07-1.el9"}, {})

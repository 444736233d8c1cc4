# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real apt and dpkg on a host in a temporary folder, with a signed repository."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import threading
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _run
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import package_files
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages import apt, apt_probe, apt_tools
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, Repository

from lab.packages.deb import Deb, write_repository
from lab.packages.keys import keys

pytestmark = pytest.mark.skipif(not all(map(shutil.which, ("apt-get", "dpkg-deb", "apt-ftparchive", "gpg"))),
                                reason="it needs apt, dpkg and gpg")

PIN = "Package: tool tool-lib\nPin: version {version}*\nPin-Priority: 1000\n"
RIVALS = dict.fromkeys(("Provides", "Conflicts", "Replaces"), "pinning")
CONFIGURATION = """\
Dir::State "{root}/var/lib/apt";
Dir::State::status "{root}/var/lib/dpkg/status";
Dir::Cache "{root}/var/cache/apt";
Dir::Etc "{root}/etc/apt";
Dir::Log "{root}/var/log/apt";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "root";
DPkg::Options {{ "--root={root}"; "--force-not-root"; "--force-bad-path"; "--log={root}/var/log/dpkg.log"; }};
"""


def _debs() -> list[Deb]:
    tools = [Deb(name, version, {"Depends": f"tool-lib (= {version})"} if name == "tool" else {},
                 {f"usr/share/{name}": version}, conffiles=())
             for version in ("1.0-1", "1.1-1", "2.0-1") for name in ("tool", "tool-lib")]
    pins = [Deb(f"pinning-{number}", "1-1", RIVALS,
                {f"etc/apt/preferences.d/pinning-{number}.pref": PIN.format(version=number)}, arch="all")
            for number in ("1.0", "1.1")]
    vendors = [Deb(name, "1-1", {"Depends": f"{name}-base"} if name.endswith(("a", "b")) else {},
                   {f"usr/share/{name}": name}) for name in ("nvidia-a", "nvidia-a-base", "nvidia-b", "nvidia-b-base")]
    return [*tools, *pins, *vendors, Deb("rival", "1-1", {"Conflicts": "tool"}),
            Deb("broken", "1-1", {"Depends": "nowhere"}),
            Deb("settings", "1-1", files={"etc/settings.conf": "x\n"}, conffiles=["/etc/settings.conf"])]


@pytest.fixture(scope="module")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, created once."""
    folder = tmp_path_factory.mktemp("vendor")
    write_repository(_debs(), folder, keys()["cuda"], {"Origin": "Vendor", "Architectures": "amd64"})
    shutil.copy(keys()["cuda"].public, folder / "key.pub")
    return folder


class Host:
    """A separate root for apt and dpkg."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, vendor: Path) -> None:
        self.root, self.vendor = root, vendor
        for name in ("etc/apt/sources.list.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/log/apt",
                     "var/lib/dpkg/updates", "var/lib/dpkg/info", "var/cache/apt/archives/partial", "keyrings", "tmp"):
            (root / name).mkdir(parents=True)
        (root / "var/lib/dpkg/status").write_text(
            "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21\nMaintainer: x\n"
            "Description: x\n\n")
        (root / "apt.conf").write_text(CONFIGURATION.format(root=root))
        for module, name, path in ((apt, "SOURCES", "etc/apt/sources.list.d"), (apt, "KEYRINGS", "keyrings"),
                                   (apt, "LISTS", "var/lib/apt/lists"), (apt, "DPKG_JOURNAL", "var/lib/dpkg/updates"),
                                   (apt, "DPKG_LOCK", "var/lib/dpkg/lock"),
                                   (apt_probe, "SOURCES", "etc/apt/sources.list.d"),
                                   (apt_probe, "LISTS", "var/lib/apt/lists"),
                                   (apt_tools, "STATUS", "var/lib/dpkg/status"),
                                   (apt_probe, "PREFERENCES", "etc/apt/preferences.d")):
            patch.setattr(module, name, str(root / path))
        patch.setenv("TMPDIR", str(root / "tmp"))
        self.manager = apt.Apt(self.run, 5)

    def run(self, argv: t.Sequence[str], **options: t.Any) -> _run.Completed:
        """Runs the real command with this root."""
        words = list(argv)
        if words[0] in ("dpkg", "dpkg-query"):
            words[1:1] = [f"--root={self.root}", *(["--force-not-root", "--force-bad-path"] * (words[0] == "dpkg"))]
        environment = {**(options.pop("env", None) or {}), "APT_CONFIG": str(self.root / "apt.conf")}
        done = _run.run(words, **options, env=environment)
        if words[0] == "dpkg-deb":  # paths in a package, and those that dpkg tells, know nothing of this root
            shutil.copytree(f"{words[-1]}/etc", f"{words[-1]}{self.root}/etc", dirs_exist_ok=True)
        if "-L" in words:
            return done._replace(stdout="".join(f"{self.root}{line}\n" for line in done.stdout.splitlines()))
        return done

    def repository(self, **changes: t.Any) -> Repository:
        return Repository(**{"name": "vendor", "url": f"file://{self.vendor}/", "key": "key.pub",
                             "fingerprint": keys()["cuda"].fingerprint, **changes})

    def configure(self) -> Repository:
        """The files that a plan would write."""
        repository = self.repository()
        for path, data in self.manager.files(repository, keys()["cuda"].binary.read_bytes()).items():
            Path(path).write_bytes(data)
        self.manager.refresh(repository)
        return repository

    def installed(self) -> dict[str, str]:
        return {name: version for name, version in self.manager.read().installed.items() if name != "dpkg"}

    def files(self) -> dict[str, bytes]:
        """All files of the root, without caches and locks of apt."""
        return {str(path.relative_to(self.root)): path.read_bytes() for path in sorted(self.root.rglob("*"))
                if path.is_file() and "var/cache" not in str(path) and "lock" not in path.name}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: Path) -> Host:
    return Host(tmp_path, monkeypatch, vendor)


# -- looking at a repository

def after(changes: t.Iterable[Change]) -> dict[str, tuple[str | None, str | None]]:
    return {change.name: (change.before, change.after) for change in changes}


BOTH = {"tool": "", "tool-lib": ""}


def test_a_probe_reads_the_repository_and_changes_nothing(host: Host) -> None:
    before = host.files()
    with host.manager.probe(host.repository()) as probe:
        assert probe.candidates["tool"] == ["2.0-1", "1.1-1", "1.0-1"]
        assert (probe.resolve("tool", "1.1"), probe.resolve("tool", None)) == ("1.1-1", "2.0-1")
        assert probe.key == keys()["cuda"].binary.read_bytes()
        assert after(probe.simulate(BOTH, {})) == {"tool": (None, "2.0-1"), "tool-lib": (None, "2.0-1")}
        assert after(probe.simulate({"tool": "1.1-1", "tool-lib": "1.1-1"}, {})) == {
            "tool": (None, "1.1-1"), "tool-lib": (None, "1.1-1")}
        with pytest.raises(RepositoryError, match=r"has no tool 3.0. It has 2.0, 1.1, 1.0"):
            probe.resolve("tool", "3.0")
        with pytest.raises(RepositoryError, match="has no package gone"):
            probe.resolve("gone", None)
    assert host.files() == before
    assert list((host.root / "tmp").iterdir()) == []


class Server(http.server.BaseHTTPRequestHandler):
    """Serves the key for the right query, after a redirect to itself."""

    def do_GET(self) -> None:
        path, _mark, query = self.path.partition("?")
        known = path in ("/moved", "/key.pub") and query == f"sig={SIGNATURE}"
        body = keys()["cuda"].public.read_bytes() if known and path == "/key.pub" else b""
        self.send_response(404 if not known else 302 if path == "/moved" else 200)
        self.send_header("Content-Length", str(len(body)))
        if path == "/moved":
            self.send_header("Location", f"/key.pub?{query}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: t.Any) -> None:
        """Logs nothing."""


SIGNATURE = "s1gned%2Fand%3D"


@pytest.fixture
def address() -> t.Iterator[str]:
    """The address of the server with the key."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def watched(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of all commands from now on."""
    words: list[str] = []
    real = subprocess.Popen

    def started(argv: t.Sequence[str], **options: t.Any) -> t.Any:
        words.extend(argv)
        return real(argv, **options)

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setenv("APT_CONFIG", str(host.root / "apt.conf"))
    return words


@pytest.mark.parametrize("path", ["key.pub", "moved"])
def test_the_signature_of_a_keys_address_is_in_no_command_line(
        host: Host, monkeypatch: pytest.MonkeyPatch, address: str, path: str) -> None:
    """Every user of the host can see command lines."""
    words = watched(host, monkeypatch)
    with host.manager.probe(host.repository(key=f"{address}/{path}?sig={SIGNATURE}")) as probe:
        assert probe.key == keys()["cuda"].binary.read_bytes() and probe.candidates["tool"]
    assert words and not [word for word in words if "s1gned" in word]


@pytest.mark.parametrize(("uri", "said"), [
    ("{address}/key.pub?sig=wrong", "404  Not Found"), ("http://127.0.0.1:9/key.pub?sig=s1gned", "Could not connect"),
    ("{address}/moved?sig=wrong", "404  Not Found"), ("{address}/key.pub?sig=x\n\n600 URI Acquire", "404  Not Found")])
def test_a_signed_address_that_does_not_answer(
        host: Host, monkeypatch: pytest.MonkeyPatch, address: str, uri: str, said: str) -> None:
    words = watched(host, monkeypatch)
    with pytest.raises(RepositoryError, match=f"cannot be fetched: {said}") as caught:
        host.manager.probe(host.repository(key=uri.format(address=address))).__enter__()
    assert "From this host, check the URL" in caught.value.hint
    assert not [word for word in words if "sig=" in word] and not list((host.root / "tmp").iterdir())


def test_pins_hold_in_the_simulation_alone(host: Host) -> None:
    with host.manager.probe(host.repository()) as probe:
        assert after(probe.simulate(BOTH, {"pinning-1.0": "1-1"})) == {
            "tool": (None, "1.0-1"), "tool-lib": (None, "1.0-1")}
        with pytest.raises(RepositoryError, match="has no pinning-1.0 2-1"):
            probe.simulate(BOTH, {"pinning-1.0": "2-1"})
    assert list((host.root / "etc/apt/preferences.d").iterdir()) == []


def test_what_a_host_has_pinned_counts_until_its_package_goes(host: Host) -> None:
    host.configure()
    host.manager.install({"pinning-1.1": "1-1", "tool": "1.1-1", "tool-lib": "1.1-1"})
    with host.manager.probe(host.repository()) as probe:  # also where apt would take the other's for the newer one
        assert after(probe.simulate(BOTH, {"pinning-1.0": "1-1"}))["tool"] == ("1.1-1", "1.0-1")
    host.manager.install({"pinning-1.0": "1-1", "tool": "1.0-1", "tool-lib": "1.0-1"}, gone=["pinning-1.1"])
    assert [path.name for path in (host.root / "etc/apt/preferences.d").iterdir()] == ["pinning-1.0.pref"]
    with host.manager.probe(host.repository()) as probe:
        assert probe.simulate(BOTH, {}) == []
        # A package that excludes the other brings its own pins instead.
        assert after(probe.simulate(BOTH, {"pinning-1.1": "1-1"})) == {
            "tool": ("1.0-1", "1.1-1"), "tool-lib": ("1.0-1", "1.1-1")}
    with host.manager.probe(host.repository()) as probe:
        assert after(probe.simulate(BOTH, {}, without=["pinning-1.0", "tool", "tool-lib"])) == {
            "tool": (None, "2.0-1"), "tool-lib": (None, "2.0-1")}
    ours = str(host.root / "etc/apt/preferences.d/pinning-1.0.pref")
    with host.manager.probe(host.repository()) as probe:
        text = PIN.format(version="1.1").encode()
        assert after(probe.simulate(BOTH, {}, files={ours: text}))["tool"] == ("1.0-1", "1.1-1")
        assert after(probe.simulate(BOTH, {}, files={ours: b""}))["tool"] == ("1.0-1", "2.0-1")


def test_what_goes_with_a_transaction_and_what_cannot_be(host: Host) -> None:
    host.configure()
    host.manager.install({"tool": "1.0-1", "tool-lib": "1.0-1"})
    with host.manager.probe(host.repository()) as probe:
        assert after(probe.simulate({"rival": "1-1"}, {}, gone=["tool"])) == {
            "tool": ("1.0-1", None), "rival": (None, "1-1")}
        with pytest.raises(HostError, match=r"cannot install broken=1-1: .*Depends: nowhere.* / E: "):
            probe.simulate({"broken": "1-1"}, {})


@pytest.mark.parametrize(("changes", "words"), [
    ({"url": "file:///nowhere/"}, "file:///nowhere/key.pub cannot be fetched"),
    ({"key": "Packages"}, "is not an OpenPGP public key"),
    ({"fingerprint": "A" * 40}, "has the fingerprint {cuda}, not A{{40}}"),
    ({"key": "{stranger.public}", "fingerprint": "{stranger.fingerprint}"}, "is not signed by the key {stranger}"),
    ({"suite": "stable", "components": ("main",)}, "cannot be read: .*does not have a Release file"),
])
def test_a_repository_that_is_not_what_was_said(host: Host, changes: dict[str, t.Any], words: str) -> None:
    known = keys()
    given = {name: value.format(**known) if isinstance(value, str) else value for name, value in changes.items()}
    before = host.files()
    with pytest.raises(RepositoryError, match=words.format(
            **{name: key.fingerprint for name, key in known.items()})), host.manager.probe(host.repository(**given)):
        pass
    assert host.files() == before
    assert list((host.root / "tmp").iterdir()) == []


def test_a_host_that_takes_unsigned_repositories_takes_ours_signed_alone(host: Host, tmp_path: Path) -> None:
    """The permission for another mirror does not apply to the packages of the vendor."""
    with (host.root / "apt.conf").open("a") as settings:
        settings.write('Acquire::AllowInsecureRepositories "true"; Acquire::AllowWeakRepositories "true";\n'
                       'Acquire::AllowDowngradeToInsecureRepositories "true";\n')
    unsigned = shutil.copytree(host.vendor, tmp_path / "unsigned")
    for name in ("InRelease", "Release.gpg"):
        (unsigned / name).unlink(missing_ok=True)
    repository = host.repository(url=f"file://{unsigned}/")
    with pytest.raises(RepositoryError, match="is not signed by the key"), host.manager.probe(repository):
        pass
    for path, data in host.manager.files(repository, keys()["cuda"].binary.read_bytes()).items():
        Path(path).write_bytes(data)
    with pytest.raises(CommandError, match="is not signed"):
        host.manager.refresh(repository)


def test_lists_of_a_repository_in_a_folder_below_stay(host: Host, vendor: Path) -> None:
    repository = host.configure()
    lists = host.root / "var/lib/apt/lists"
    below = f"{str(vendor).replace('/', '_')}_ubuntu_Packages"
    (lists / below).write_text("Package: other\nVersion: 1\nArchitecture: amd64\n")
    with host.manager.probe(repository) as probe:
        assert below in os.listdir(f"{probe.root}/lists") and "other" not in probe.candidates
    host.manager.forget_lists(repository.url)
    assert sorted(path.name for path in lists.iterdir()) == sorted([below, "auxfiles", "lock", "partial"])


def test_a_line_of_somebody_else_that_is_wrong_is_named_where_it_stands(host: Host) -> None:
    """The file is not named by its path in the folder of a simulation."""
    wrong = host.root / "etc/apt/sources.list.d/bad.list"
    wrong.write_text("deb http://example.com\n")
    with pytest.raises((HostError, RepositoryError), match=f"{wrong}") as caught, \
            host.manager.probe(host.repository()) as probe:
        probe.simulate(BOTH, {})
    assert "gpuops-packages-" not in str(caught.value.as_result())


def test_a_repository_without_packages_for_this_machine(host: Host, tmp_path: Path) -> None:
    write_repository([], tmp_path / "empty", keys()["cuda"], {"Origin": "Vendor"})
    shutil.copy(keys()["cuda"].public, tmp_path / "empty" / "key.pub")
    with pytest.raises(RepositoryError, match="lists no packages for this host's architecture"), host.manager.probe(
            host.repository(url=f"file://{tmp_path}/empty/")):
        pass


def test_another_keyring_for_the_same_place_is_told(host: Host) -> None:
    host.configure()
    for path in (host.root / "etc/apt/sources.list.d").iterdir():
        path.rename(path.with_name("cuda.sources"))
    with pytest.raises(RepositoryError, match="with another keyring: Conflicting values"), \
            host.manager.probe(host.repository()):
        pass


def test_a_source_without_a_keyring_for_the_same_place_is_told(host: Host) -> None:
    (host.root / "etc/apt/sources.list.d" / "vendor.list").write_text(f"deb file://{host.vendor}/ /\n")
    with pytest.raises(RepositoryError, match=r"vendor\.list uses file.* with another keyring: "), \
            host.manager.probe(host.repository()):
        pass


# -- changing the host

def test_a_host_knows_a_repository_by_two_files(host: Host) -> None:
    assert not host.manager.is_configured(host.repository())
    repository = host.configure()
    assert host.manager.is_configured(repository)
    assert not host.manager.is_configured(host.repository(fingerprint="A" * 40))
    assert not host.manager.is_configured(host.repository(suite="stable"))
    lists = host.root / "var/lib/apt/lists"
    assert [path.name for path in lists.iterdir() if path.name.endswith("_Packages")]
    (lists / "other_Packages").touch()
    host.manager.forget_lists(repository.url)
    assert sorted(path.name for path in lists.iterdir()) == [
        "auxfiles", "lock", "other_Packages", "partial"]
    Path(host.manager.keyring_path(repository)).write_bytes(b"no key")
    assert not host.manager.is_configured(repository)
    Path(host.manager.keyring_path(repository)).write_bytes(keys()["stranger"].binary.read_bytes())
    assert not host.manager.is_configured(repository)


def test_packages_come_change_and_go(host: Host) -> None:
    host.configure()
    assert after(host.manager.simulate_install(["tool"])) == {"tool": (None, "2.0-1"), "tool-lib": (None, "2.0-1")}
    host.manager.install({"tool": "2.0-1", "tool-lib": "2.0-1", "settings": ""}, auto=["tool-lib"])
    assert host.installed() == {"tool": "2.0-1", "tool-lib": "2.0-1", "settings": "1-1"}
    assert "Package: tool-lib" in (host.root / "var/lib/apt/extended_states").read_text()
    host.manager.install({"tool": "1.0-1", "tool-lib": "1.0-1"})  # back, as a plan may ask
    assert host.installed()["tool"] == "1.0-1"
    assert host.manager.is_consistent()
    assert after(host.manager.simulate_removal(["tool-lib"])) == {"tool": ("1.0-1", None), "tool-lib": ("1.0-1", None)}
    host.manager.install({"rival": "1-1"}, gone=["tool"])
    assert host.installed() == {"tool-lib": "1.0-1", "settings": "1-1", "rival": "1-1"}
    host.manager.remove(["settings"], purge=False)
    assert host.manager.read().residual == {"settings"}
    assert (host.root / "etc/settings.conf").exists()
    host.manager.remove(["settings", "rival", "tool-lib"])
    assert (host.installed(), host.manager.read().residual) == ({}, set())
    assert not (host.root / "etc/settings.conf").exists()
    with pytest.raises(HostError, match="apt cannot install broken: .*") as caught:
        host.manager.simulate_install(["broken"])
    assert "apt-get update" in caught.value.hint


def test_each_component_repairs_its_own_packages(host: Host) -> None:
    """apt refuses everything as long as any package has a missing dependency, even if another component will repair
    it."""
    host.configure()
    host.manager.install({"nvidia-a": "1-1", "nvidia-b": "1-1", "tool": "1.0-1", "tool-lib": "1.0-1"})
    host.run(["dpkg", "--purge", "--force-all", "nvidia-a-base", "nvidia-b-base"])
    before = host.files()
    with host.manager.probe(host.repository()) as probe:
        assert after(probe.simulate({"nvidia-a-base": ""}, {})) == {"nvidia-a-base": (None, "1-1")}
        assert after(probe.simulate({"nvidia-b-base": ""}, {}, without=["tool"])) == {"nvidia-b-base": (None, "1-1")}
        # It is not left out of sight for what cannot be done.
        with pytest.raises(HostError, match="nvidia-a : Depends: nvidia-a-base"):
            probe.simulate({"nvidia-a": "1-1", "broken": ""}, {})
    assert host.files() == before
    host.manager.reinstall({"tool": "1.0-1"}, check=True)
    host.manager.reinstall({"tool": "1.0-1"})
    host.manager.install({"nvidia-b-base": "1-1"})
    assert host.installed() == {"nvidia-a": "1-1", "nvidia-b": "1-1", "nvidia-b-base": "1-1", "tool": "1.0-1",
                                "tool-lib": "1.0-1"}
    host.manager.install({"nvidia-a-base": "1-1"})
    assert host.manager.is_consistent()
    assert set(before) - set(host.files()) == set()


def test_packages_of_others_that_lack_something_hold_up_everything(host: Host) -> None:
    host.configure()
    host.manager.install({"tool": "1.0-1", "tool-lib": "1.0-1"})
    host.run(["dpkg", "--purge", "--force-all", "tool-lib"])
    with host.manager.probe(host.repository()) as probe, \
            pytest.raises(HostError, match="tool : Depends: tool-lib") as caught:
        probe.simulate({"nvidia-a": ""}, {})
    assert "apt-get --fix-broken install" in caught.value.hint
    with pytest.raises(CommandError, match="Unmet dependencies"):
        host.manager.install({"nvidia-a": ""})


def test_a_configuration_file_of_the_host_stays(host: Host) -> None:
    host.configure()
    host.manager.install({"settings": "1-1"})
    (host.root / "etc/settings.conf").write_text("mine\n")
    host.run(["apt-get", "-y", "-q", "--reinstall", "install", "settings"], env=apt.ENVIRONMENT)
    assert (host.root / "etc/settings.conf").read_text() == "mine\n"


def test_what_was_cut_off_is_repaired_or_removed(host: Host) -> None:
    host.configure()
    host.manager.install({"tool": "1.0-1", "tool-lib": "1.0-1", "settings": "1-1"})
    status = host.root / "var/lib/dpkg/status"

    def spoil(name: str, letters: str) -> None:
        head, _, tail = status.read_text().partition(f"Package: {name}\n")
        status.write_text(f"{head}Package: {name}\n{tail.replace('install ok installed', letters, 1)}")

    spoil("tool", "install reinstreq half-installed")
    spoil("settings", "install ok unpacked")
    assert host.manager.read().broken == {"tool": "iHR", "settings": "iU"}
    host.manager.repair(["tool", "gone"])
    assert host.installed() == {"tool-lib": "1.0-1", "settings": "1-1"}
    assert host.manager.read().broken == {}
    spoil("settings", "install reinstreq half-installed")
    host.manager.remove(["settings"])
    assert host.installed() == {"tool-lib": "1.0-1"}


def test_a_copy_of_the_status_that_a_killed_run_has_left_goes(host: Host) -> None:
    """apt puts its lock beside the status file, so the copy is not in the temporary folder."""
    left = host.root / "var/lib/dpkg/gpuops-x1"
    left.write_text("")
    assert host.manager.read().interrupted
    host.manager.repair([])
    assert not left.exists() and not host.manager.read().interrupted


def test_a_repair_that_is_not_enough_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    run = host.run
    (host.root / "var/lib/dpkg/updates/0001").write_text("")
    assert host.manager.read().interrupted
    monkeypatch.setattr(host.manager, "run", lambda argv, **options: _run.Completed(tuple(argv), 1, "", "no space")
                        if "--configure" in argv else run(argv, **options))
    with pytest.raises(CommandError, match="Repair the package database yourself"):
        host.manager.repair([])


def test_a_file_that_is_gone_comes_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "Root", lambda: Root(str(host.root)))
    monkeypatch.setattr(package_files, "_CHECKED", re.compile("/usr/share/tool"))
    host.configure()
    host.manager.install({"tool": "1.0-1", "tool-lib": "1.0-1"})  # not the newest
    former = host.files()
    assert host.manager.lost_files(["tool", "tool-lib"]) == {}
    (host.root / "usr/share/tool").unlink()
    assert host.manager.lost_files(["tool", "tool-lib"]) == {"tool": ["/usr/share/tool"]}
    assert host.manager.lost_files(["tool", "unknown"]) == {}  # what cannot be told is no reason to install
    host.manager.reinstall({"tool": "1.0-1"}, check=True)
    assert not (host.root / "usr/share/tool").exists()
    host.manager.reinstall({"tool": "1.0-1"})
    assert host.manager.lost_files(["tool", "tool-lib"]) == {}
    assert host.installed() == {"tool": "1.0-1", "tool-lib": "1.0-1"}
    assert set(former) <= set(host.files())


def test_what_would_keep_a_package_from_coming_again_is_told_before(host: Host) -> None:
    host.configure()
    host.manager.install({"tool": "1.0-1", "tool-lib": "1.0-1"})
    for path in (host.root / "var/lib/apt/lists").iterdir():
        if path.is_file():
            path.unlink()
    before = host.files()
    host.manager.reinstall({"tool": "1.0-1"}, check=True)  # lists are fetched before
    host.manager.simulate_removal(["tool-lib"])
    assert host.files() == before
    wrong = host.root / "etc/apt/sources.list.d/bad.list"
    wrong.write_text("deb http://example.com\n")
    with pytest.raises(CommandError, match=f"{wrong}"):
        host.manager.reinstall({"tool": "1.0-1"}, check=True)

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The .run installer: the options for each branch, file names, digests, the record, downloads and removals."""

from __future__ import annotations

import contextlib
import email
import hashlib
import http.server
import io
import os
import threading
import typing as t
import urllib.request
import urllib.response
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import runfile_fetch as fetching
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile import UNIT_FILE, RunfileDelivery
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import (
    Archive,
    archive_of,
    install_options,
    module_options,
    parse_digest,
    parse_record,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_record import read_record, remove_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_tools import missing_packages, signing_key
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import (
    GpuopsError,
    HostError,
    InputError,
    RepositoryError,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

from tests.unit.driver.test_plan import BARE, KERNEL, RUNNING

NEW, OLD = "595.91.07", "580.95.05"
SHA = "ab" * 32
NAME = f"NVIDIA-Linux-x86_64-{NEW}.run"
URL = f"https://mirror.example.com/{NAME}"
VENDOR = f"https://us.download.nvidia.com/tesla/{NEW}/{NAME}"
GRID = f"/srv/NVIDIA-Linux-x86_64-{OLD}-grid.run"
RECORD = f"""\
1.0-5959107 ({NEW})
NVIDIA Accelerated Graphics Driver for Linux-x86_64
1: /usr/bin/nvidia-smi
4006411218
100: /etc/OpenCL/vendors/nvidia.icd
1127186453 100644 0 0
1: /etc/OpenCL/vendors/nvidia.icd
1127186453
2: /usr/lib/libcuda.so.1
libcuda.so.1.former
120777 0 0
0: /usr/lib/libcuda.so.1
libcuda.so.{NEW}
"""

# -- options


@pytest.mark.parametrize(("version", "flavour", "flavour_words", "skips"), [
    ("470.256.02", "proprietary", [], False),
    ("515.105.01", "open", ["--kernel-module-build-directory=kernel-open"], False),
    ("535.309.01", "proprietary", ["--kernel-module-build-directory=kernel"], False),
    ("545.29.06", "open", ["--kernel-module-build-directory=kernel-open"], False),
    ("550.40.07", "open", ["--kernel-module-build-directory=kernel-open"], True),
    ("555.42.02", "proprietary", ["--kernel-module-type=proprietary"], True),
    ("580.126.20", "open", ["--kernel-module-type=open"], True),
    ("620.10.01", "open", ["--kernel-module-type=open"], True),
])
def test_options_of_each_branch(version: str, flavour: str, flavour_words: list[str], skips: bool) -> None:
    words = install_options(version, flavour)
    assert words == ["--silent", "--dkms", "--no-nouveau-check", *flavour_words,
                     *(["--skip-module-load"] if skips else [])]
    only = "--kernel-module-only" if version.startswith("470") else "--kernel-modules-only"
    assert module_options(version, flavour, KERNEL) == [*words, only, f"--kernel-name={KERNEL}"]
    assert install_options(version, flavour, ("/k", "/c"))[-2:] == ["--module-signing-secret-key=/k",
                                                                    "--module-signing-public-key=/c"]


def test_beside_loaded_modules() -> None:
    assert install_options("545.23.06", "open", loaded=True)[-1] == "--allow-installation-with-running-driver"
    with pytest.raises(HostError, match="535.309.01 does not work while modules are loaded"):
        install_options("535.309.01", "open", loaded=True)


def test_a_branch_without_open_modules() -> None:
    with pytest.raises(InputError, match="470.256.02 has no open kernel modules"):
        install_options("470.256.02", "open")


# -- the archive


@pytest.mark.parametrize(("given", "version", "expected"), [
    (None, NEW, Archive(NEW, VENDOR, "")),
    ({"checksum": f"sha256:{SHA.upper()}"}, NEW, Archive(NEW, VENDOR, SHA)),
    ({"src": URL}, None, Archive(NEW, URL, "")),
    ({"src": GRID}, None, Archive(OLD, GRID, "")),
    ({"src": f"{URL}?X-Signature=s3cr3t"}, None, Archive(NEW, URL, "", "?X-Signature=s3cr3t")),
    ({"src": "http://mirror/driver.run"}, NEW, Archive(NEW, "http://mirror/driver.run", "")),
    ({"src": "http://mirror/driver.run"}, None, None),
    ({}, None, None),
])
def test_archive(given: dict[str, str] | None, version: str | None, expected: Archive | None) -> None:
    assert archive_of(given, version, "x86_64") == expected


@pytest.mark.parametrize(("given", "version", "message"), [
    ({"checksum": SHA}, NEW, "is not a digest"),
    ({"checksum": f"sha256:{SHA}0"}, NEW, "is not a digest"),
    ({"src": "ftp://mirror/a.run"}, NEW, "neither a URL nor an absolute path"),
    ({"src": "a.run"}, NEW, "neither a URL nor an absolute path"),
    ({"src": "/a b.run"}, NEW, "neither a URL nor an absolute path"),
    ({"src": "https://me:hidden@mirror/a.run"}, NEW, "must not contain a user or password"),
    ({"src": URL}, OLD, f"is version {NEW}, not {OLD}"),
    ({"src": URL.replace("x86_64", "aarch64")}, NEW, "is for aarch64, but this host is x86_64"),
])
def test_archives_that_cannot_be_right(given: dict[str, str], version: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        archive_of(given, version, "x86_64")
    assert "hidden" not in str(raised.value.as_result())


def test_digest_files() -> None:
    assert parse_digest(f"{SHA}  {NAME}\n") == SHA and parse_digest(SHA.upper()) == SHA
    assert parse_digest("<html>not found</html>") is None and parse_digest("") is None


# -- fetching


# What a server says of its files that cannot be.
LENGTHS = {f"/{name}.run": length for name, length in (
    ("huge", "9" * 5000), ("negative", "-1"), ("words", "many"), ("spaced", "1 2"))}


class Web(t.NamedTuple):
    """A server with these files."""

    url: str
    files: dict[str, bytes]


@pytest.fixture
def web() -> t.Iterator[Web]:
    files: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = files.get(self.path)
            self.send_response(200 if data is not None else 404)
            length = LENGTHS.get(self.path, str(len(data or b"")))
            self.send_header("Content-Length", length)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data or b"")

        def log_message(self, format: str, *args: t.Any) -> None:
            """Logs nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Web(f"http://127.0.0.1:{server.server_address[1]}", files)
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fetching, "FOLDER", str(tmp_path / "runfile"))
    return tmp_path / "runfile"


DATA = b"#!/bin/sh\nexit 0\n" * 100000


def test_fetched_and_verified(web: Web, folder: Path) -> None:
    web.files["/a.run"] = DATA
    archive, digest = Archive(NEW, f"{web.url}/a.run", ""), hashlib.sha256(DATA).hexdigest()
    assert fetching.size_of(archive) == len(DATA) and not fetching.is_downloaded(archive, digest)
    fetching.fetch(archive, digest)
    path = Path(fetching.path_of(archive))
    assert path.read_bytes() == DATA and path.stat().st_mode & 0o777 == 0o600 and path.parent == folder
    assert fetching.is_downloaded(archive, digest) and not fetching.is_downloaded(archive, SHA)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", LENGTHS)
def test_a_length_that_cannot_be_is_unknown(web: Web, path: str) -> None:
    web.files[path] = DATA
    assert fetching.size_of(Archive(NEW, f"{web.url}{path}", SHA)) == 0


def test_a_file_that_is_not_what_it_should_be_does_not_stay(web: Web, folder: Path) -> None:
    web.files["/a.run"] = DATA
    with pytest.raises(HostError, match=f"not sha256:{SHA}"):
        fetching.fetch(Archive(NEW, f"{web.url}/a.run", SHA), SHA)
    assert os.listdir(folder) == []


def test_the_signature_in_an_address_is_told_to_nobody_else(web: Web, folder: Path) -> None:
    """The URL of an object store grants access to everyone who reads it, and results and journals are kept."""
    digest = hashlib.sha256(DATA).hexdigest()
    web.files[f"/{NAME}?sig=s3cr3t"] = DATA
    given = {"src": f"{web.url}/{NAME}?sig=s3cr3t", "checksum": f"sha256:{digest}"}
    archive = archive_of(given, None, "x86_64")
    assert archive is not None and fetching.size_of(archive) == len(DATA) and "s3cr3t" not in archive.src
    fetching.fetch(archive, digest)
    assert os.listdir(folder) == [NAME]
    web.files.clear()
    for act in (lambda: fetching.fetch(archive, digest), lambda: fetching.size_of(archive)):
        with pytest.raises(RepositoryError, match="404") as caught:
            act()
        assert "s3cr3t" not in str(caught.value.as_result())


def test_a_file_on_the_host_is_copied_and_stays(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / NAME
    source.write_bytes(DATA)
    archive = Archive(NEW, str(source), SHA)
    fetching.fetch(archive, hashlib.sha256(DATA).hexdigest())
    assert source.read_bytes() == DATA and Path(fetching.path_of(archive)).read_bytes() == DATA
    with pytest.raises(InputError, match="There is no file /nowhere.run"):
        fetching.size_of(Archive(NEW, "/nowhere.run", SHA))


def test_what_vouches_for_a_file(web: Web) -> None:
    assert fetching.wanted_digest(Archive(NEW, "http://mirror/a.run", SHA)) == SHA
    for src in (f"{web.url}/a.run", "/srv/a.run"):
        with pytest.raises(InputError, match="has no digest"):
            fetching.wanted_digest(Archive(NEW, src, ""))


@pytest.mark.parametrize(("place", "text", "message"), [
    ("https://mirror/a.run.sha256sum", f"{SHA}  a.run\n", ""),
    ("https://mirror/a.run.sha256sum", "<html>", "has no digest"),
    ("http://elsewhere/a.run.sha256sum", f"{SHA}  a.run\n", "redirects to HTTP"),
])
def test_the_digest_beside_a_file(monkeypatch: pytest.MonkeyPatch, place: str, text: str, message: str) -> None:
    class Answer:
        def read(self, _size: int) -> bytes:
            return text.encode()

        def geturl(self) -> str:
            return place

    asked: list[str] = []

    @contextlib.contextmanager
    def answer(url: str, *_handlers: t.Any) -> t.Iterator[Answer]:
        asked.append(url)
        yield Answer()

    monkeypatch.setattr(fetching, "_open", answer)
    archive = Archive(NEW, "https://mirror/a.run", "")
    if message:
        with pytest.raises(RepositoryError, match=message):
            fetching.wanted_digest(archive)
    else:
        assert fetching.wanted_digest(archive) == SHA
    assert asked == ["https://mirror/a.run.sha256sum"]


@pytest.mark.parametrize(("hops", "message"), [
    (["https://mirror/a.run.sha256sum", "https://cdn/a"], ""),
    (["https://mirror/a.run.sha256sum", "http://between/a", "https://cdn/a"], "it redirects to HTTP"),
    (["https://mirror/a.run.sha256sum", "https://cdn/a", "HTTP://cdn/b", "https://cdn/c"], "it redirects to HTTP"),
])
def test_no_redirect_of_a_digest_goes_over_http(monkeypatch: pytest.MonkeyPatch, hops: list[str],
                                                message: str) -> None:
    """A server on HTTP can redirect to any place, including one with a valid certificate."""
    asked: list[str] = []

    def answer(_handler: t.Any, request: urllib.request.Request) -> t.Any:
        asked.append(request.full_url)
        more = hops[len(asked):]
        headers = email.message_from_string(f"Location: {more[0]}\n\n" if more else "\n")
        found = urllib.response.addinfourl(io.BytesIO(f"{SHA}  a.run\n".encode()), t.cast(t.Any, headers),
                                           request.full_url, 302 if more else 200)
        found.msg = ""  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", answer)
    monkeypatch.setattr(urllib.request.HTTPHandler, "http_open", answer)
    archive = Archive(NEW, "https://mirror/a.run", "")
    if message:
        with pytest.raises(RepositoryError, match=message) as caught:
            fetching.wanted_digest(archive)
        assert "runfile.checksum" in caught.value.hint and all(url.startswith("https:") for url in asked)
    else:
        assert fetching.wanted_digest(archive) == SHA and asked == hops


def test_servers_that_do_not_have_it(web: Web, folder: Path) -> None:
    for src, message in ((f"{web.url}/none.run", "404"), ("http://127.0.0.1:9/none.run", "refused")):
        with pytest.raises(RepositoryError, match=f"none.run cannot be fetched: .*{message}"):
            fetching.fetch(Archive(NEW, src, SHA), SHA)


def test_room(folder: Path) -> None:
    fetching.check_free_space(1000)
    with pytest.raises(HostError, match="MiB left; the .run file needs about"):
        fetching.check_free_space(1 << 50)


# -- the record


def test_record() -> None:
    record = parse_record(RECORD, "/etc/OpenCL\n/etc/OpenCL/vendors\n")
    assert record is not None and record.version == NEW and record.complete
    assert record.paths == ("/usr/bin/nvidia-smi", "/etc/OpenCL/vendors/nvidia.icd", "/usr/lib/libcuda.so.1")
    assert record.links == {"/usr/lib/libcuda.so.1": "libcuda.so.1.former"}
    assert record.backups == {"/etc/OpenCL/vendors/nvidia.icd": ("/var/lib/nvidia/100", 0o644, 0, 0)}
    assert record.folders == ("/etc/OpenCL/vendors", "/etc/OpenCL")


def test_records_that_were_cut_off() -> None:
    assert parse_record("", "") is None and parse_record("1.0-59", "") is None
    lines = RECORD.splitlines()
    for count in range(1, len(lines)):
        record = parse_record("\n".join(lines[:count]), "")
        assert record is not None and record.version == NEW
        assert set(record.paths) <= {"/usr/bin/nvidia-smi", "/etc/OpenCL/vendors/nvidia.icd", "/usr/lib/libcuda.so.1"}
    cut = parse_record("\n".join(lines[:2]), "")
    assert cut is not None and not cut.complete


@pytest.mark.parametrize("line", [
    "100: /etc/x\n123 rw-r--r-- 0 0", "100: /etc/x\n123 0644 root root", "100: /etc/x\n123 0644 -1 0",
    "100: /etc/x\n123 0644 4294967295 0", f"100: /etc/x\n123 0644 {'9' * 5000} 0", "100: /etc/x\n123 0644 \u00b2 0",
    "\u00b2: /etc/x\nx", f"{'9' * 5000}: /etc/x\nx", "1: etc/x\nx", "1: /usr/lib/../../etc/x\nx", "1: /etc/x\0\nx",
    "2: etc/x\nformer\nx", "2: /etc/../x\nformer\nx",
])
def test_entries_that_the_installer_cannot_have_written(line: str) -> None:
    first, *rest = RECORD.splitlines()[:2]
    record = parse_record("\n".join([first, *rest, line, "1: /usr/bin/last", "x"]), "etc\n/etc/../x\n/etc/OpenCL\n")
    assert record is not None and (record.links, record.backups) == ({}, {})
    assert set(record.paths) <= {"/usr/bin/last"} and record.folders == ("/etc/OpenCL",)


@pytest.mark.parametrize("version", ["../../etc", "x", "595", "595.x", "9" * 5000 + ".1", "5\u0663.1"])
def test_a_record_of_no_version_is_named(version: str) -> None:
    with pytest.raises(HostError, match=r"/var/lib/nvidia/log, line 1: .* is not the version of a driver"):
        parse_record(f"NVIDIA driver ({version[-150:]})\n\n1: /usr/bin/nvidia-smi\nx", "")


def put(root: Path, path: str, text: str = "") -> Path:
    where = Path(f"{root}{path}")
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(text)
    return where


def quiet(argv: t.Sequence[str], **_words: t.Any) -> Completed:
    """A runner whose commands do nothing."""
    return Completed(tuple(argv), 0, "", "")


def test_half_an_installation_is_taken_away(tmp_path: Path) -> None:
    put(tmp_path, "/var/lib/nvidia/log", RECORD)
    put(tmp_path, "/var/lib/nvidia/dirs", "/etc/OpenCL\n/etc/OpenCL/vendors\n/usr/src/nvidia-1\n")
    put(tmp_path, "/var/lib/nvidia/100", "former")
    put(tmp_path, "/usr/bin/nvidia-smi")
    put(tmp_path, "/etc/OpenCL/vendors/nvidia.icd", "ours")
    put(tmp_path, "/usr/src/nvidia-1/theirs.c")
    put(tmp_path, f"/usr/src/nvidia-{NEW}/dkms.conf")
    (tmp_path / "usr/lib").mkdir()
    (tmp_path / "usr/lib/libcuda.so.1").symlink_to(f"libcuda.so.{NEW}")
    remove_driver(quiet, Root(str(tmp_path)), [NEW], [f"/usr/src/nvidia-{NEW}"], KERNEL, "x86_64")
    assert not (tmp_path / "usr/bin/nvidia-smi").exists() and not (tmp_path / "var/lib/nvidia").exists()
    assert (tmp_path / "etc/OpenCL/vendors/nvidia.icd").read_text() == "former"
    assert os.readlink(tmp_path / "usr/lib/libcuda.so.1") == "libcuda.so.1.former"
    assert (tmp_path / "usr/src/nvidia-1/theirs.c").exists() and not (tmp_path / f"usr/src/nvidia-{NEW}").exists()


def test_foreign_files_beside_the_record_stay(tmp_path: Path) -> None:
    put(tmp_path, "/var/lib/nvidia/log", RECORD)
    put(tmp_path, "/var/lib/nvidia/dirs")
    put(tmp_path, "/var/lib/nvidia/100", "former")
    kept = [put(tmp_path, f"/var/lib/nvidia/{name}", "foreign") for name in ("101", "licence.tok", "site/notes")]
    (tmp_path / "usr/bin/nvidia-smi").mkdir(parents=True)  # somebody has put a folder in the place of a file
    (tmp_path / "etc/OpenCL/vendors").mkdir(parents=True)
    (tmp_path / "usr/lib").mkdir()
    remove_driver(quiet, Root(str(tmp_path)), [NEW], [], KERNEL, "x86_64")
    assert [path.read_text() for path in kept] == ["foreign"] * 3 and (tmp_path / "usr/bin/nvidia-smi").is_dir()
    assert sorted(path.name for path in (tmp_path / "var/lib/nvidia").iterdir()) == ["101", "licence.tok", "site"]


# -- plans


@pytest.fixture
def host(tmp_path: Path) -> t.Iterator[Host]:
    for path in ("/usr/bin/cc", "/usr/bin/make", "/usr/bin/ld", "/bin/tar", "/usr/sbin/dkms", "/usr/include/stdio.h",
                 f"/lib/modules/{KERNEL}/build/Makefile"):
        put(tmp_path, path)
    with Journal("driver", root=str(tmp_path / "journal")) as journal:
        yield Host(Spec(source="runfile", version=NEW, runfile={"src": "/srv/a.run", "checksum": f"sha256:{SHA}"}),
                   quiet, Root(str(tmp_path)), journal, check=True)


def installed(host: Host, flavour: str = "open", whole: bool = True, ours: bool = True) -> None:
    put(Path(host.root.path), "/var/lib/nvidia/log", RECORD)
    for path in ("/usr/bin/nvidia-smi", "/etc/OpenCL/vendors/nvidia.icd", "/usr/lib/libcuda.so.1"):
        put(Path(host.root.path), path)
    if ours:
        host.journal.keep("runfile", "driver", None)
        host.journal.note("runfile", "driver", {"version": NEW, "flavour": flavour, "whole": whole, "sources": []})


def actions(host: Host, now: t.Any = RUNNING, flavour: str = "open") -> list[str]:
    delivery = RunfileDelivery(host, now, None)
    return [step.action for step in delivery.plan(now, flavour)[1]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is already downloaded."""
    monkeypatch.setattr(fetching, "is_downloaded", lambda archive, digest: True)


def test_plans(host: Host, here: None) -> None:
    assert actions(host, BARE) == ["run driver installer", "install unit"]
    installed(host)
    assert actions(host) == []
    assert actions(host, flavour="proprietary") == ["run driver installer"]
    assert actions(host, replace(RUNNING, registered={})) == ["add kernel modules"]
    Path(host.root.at("/usr/bin/nvidia-smi")).unlink()
    assert actions(host) == ["run driver installer"]
    # By the branch alone the version is that of what was installed.
    spec = Spec(source="runfile", branch="595", runfile={"checksum": f"sha256:{SHA}"})
    assert actions(replace(host, spec=spec)) == ["run driver installer"]


def test_another_set_of_libraries_is_installed_again(host: Host, here: None) -> None:
    installed(host)
    wanted = replace(host, spec=replace(host.spec, installation="compute-only"))
    version, steps = RunfileDelivery(wanted, RUNNING, None).plan(RUNNING, "open")
    assert (version, [step.action for step in steps]) == (NEW, ["run driver installer"])
    assert (steps[0].reason, steps[0].data["unload"]) == ("compute-only instead of full", "its files are replaced")
    assert actions(replace(host, spec=replace(host.spec, installation="full"))) == []
    entry = host.journal.get("runfile", "driver")
    assert entry is not None
    host.journal.note("runfile", "driver", {**entry["after"], "installation": "compute-only"})
    assert actions(wanted) == actions(host) == []  # auto keeps it
    assert RunfileDelivery(host, RUNNING, None).installation == "compute-only"


def test_an_installation_that_was_cut_off_goes_first(host: Host, here: None) -> None:
    installed(host, whole=False)
    assert actions(host) == ["run driver uninstaller", "run driver installer"]
    assert RunfileDelivery(host, RUNNING, None).installed() is None


def test_another_source_displaces_ours_and_removal_takes_it(host: Host) -> None:
    assert RunfileDelivery(host, RUNNING, None).displaced() == []
    installed(host)
    host.journal.write_file(host.root.at(UNIT_FILE), b"")
    host.journal.entries[("file", UNIT_FILE)] = host.journal.entries.pop(("file", host.root.at(UNIT_FILE)))
    delivery = RunfileDelivery(host, RUNNING, None)
    assert [step.action for step in delivery.displaced()] == ["run driver uninstaller", "remove unit"]
    assert [step.action for step in delivery.absent()] == ["run driver uninstaller"]
    host.journal.keep("runfile", "archive", None)
    assert [step.action for step in delivery.absent()] == ["run driver uninstaller", "remove driver archive"]


def test_a_driver_of_somebody_else(host: Host, here: None) -> None:
    installed(host, ours=False)
    delivery = RunfileDelivery(host, RUNNING, None)
    assert delivery.installed() == NEW and actions(host) == [] and delivery.absent() == []
    assert delivery.remaining() == [f"driver {NEW} was installed before with a .run file and is kept"]
    with pytest.raises(InputError, match="installation: .* so it is not known whether it is compute-only. *") as caught:
        actions(replace(host, spec=replace(host.spec, installation="compute-only")))
    assert caught.value.hint.startswith("To keep this driver, set installation to auto.")
    assert actions(replace(host, spec=replace(host.spec, installation="full"))) == []
    for act in (delivery.displaced, lambda: actions(host, flavour="proprietary"),
                lambda: actions(host, replace(RUNNING, registered={})),
                lambda: actions(replace(host, spec=Spec(source="runfile", version=OLD)))):
        with pytest.raises(HostError, match="not by this collection.*nvidia-uninstall"):
            act()


@pytest.mark.parametrize(("change", "now", "message"), [
    ({"version": None, "runfile": None}, BARE, "The .run file to install is not known"),
    ({"version": "535.309.01"}, replace(BARE, nouveau="loaded"), "nouveau uses the GPUs"),
    ({"version": "535.309.01", "image": True}, BARE, "535.309.01 loads the modules, which needs a GPU"),
    ({"runfile": {"src": "/srv/a.run"}}, BARE, "has no digest"),
    ({"version": None, "branch": "580", "runfile": {"src": URL}}, BARE, "branch 580 is desired"),
])
def test_refused(host: Host, change: dict[str, t.Any], now: t.Any, message: str) -> None:
    with pytest.raises(GpuopsError, match=message):
        actions(replace(host, spec=replace(host.spec, **change)), now)


def test_packages_of_others_are_named(host: Host, here: None) -> None:
    put(Path(host.root.path), "/usr/lib/nvidia/alternate-install-present")

    def owned(argv: t.Sequence[str], **_words: t.Any) -> Completed:
        return Completed(tuple(argv), 0, "nvidia-kernel-support: /usr/lib/nvidia/alternate-install-present\n", "")

    theirs = replace(host, run=owned)
    with pytest.raises(HostError, match="nvidia-kernel-support has /usr/lib/nvidia/alternate-install-present"):
        actions(theirs, BARE)
    host.journal.keep("package", "nvidia-kernel-support", {"state": "absent"})
    assert actions(theirs, BARE)[0] == "run driver installer"


def test_what_the_installer_needs(host: Host) -> None:
    assert missing_packages(host, BARE, NEW) == []
    for path in ("/usr/bin/cc", "/usr/sbin/dkms", "/usr/include/stdio.h", f"/lib/modules/{KERNEL}/build/Makefile"):
        Path(host.root.at(path)).unlink()
    assert missing_packages(host, BARE, NEW) == ["gcc", "dkms", "libc6-dev", f"linux-headers-{KERNEL}"]
    with pytest.raises(HostError, match="The .run installer needs gcc, dkms"):
        actions(host, BARE)


def test_the_key_that_modules_are_signed_with(host: Host, here: None) -> None:
    secure = replace(BARE, secure_boot=True)
    assert signing_key(host, secure) is None
    with pytest.raises(HostError, match="Set module_signing.key"):
        actions(host, secure)
    assert actions(replace(host, spec=replace(host.spec, module_signing={"key": "k", "certificate": "c"})), secure)
    put(Path(host.root.path), "/var/lib/dkms/mok.key")
    put(Path(host.root.path), "/var/lib/dkms/mok.pub")
    assert signing_key(host, secure) == ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub")
    assert signing_key(host, BARE) is None
    put(Path(host.root.path), "/etc/dkms/framework.conf.d/gpuops.conf")
    assert signing_key(host, BARE) == ("/var/lib/gpuops/mok/mok.key", "/var/lib/gpuops/mok/mok.der")


def test_no_record_no_driver(tmp_path: Path) -> None:
    assert read_record(Root(str(tmp_path))) is None

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A proxy as users write it; its password is never shown."""

from __future__ import annotations

import hashlib
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import runfile_fetch
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import Archive
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages import rpm
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run

PLAIN = {"http": "http://p.example:3128", "https": "http://p.example:3128", "no_proxy": "10.0.0.0/8,.example"}


@pytest.mark.parametrize("given", [
    PLAIN,
    {**PLAIN, "no_proxy": ["10.0.0.0/8", ".example"]},
    {"HTTP_PROXY": PLAIN["http"], "HTTPS_PROXY": PLAIN["https"], "NO_PROXY": "10.0.0.0/8, .example,"},
    {"http_proxy": PLAIN["http"], "https_proxy": PLAIN["https"], "no_proxy": PLAIN["no_proxy"]},
    {**PLAIN, "HTTP_PROXY": PLAIN["http"]},
])
def test_names_that_users_know(given: dict[str, Any]) -> None:
    assert _proxy.read(given) == PLAIN


@pytest.mark.parametrize("given", [
    {"http": 10 ** 5000}, {"no_proxy": [10 ** 5000, "a b"]}, {"no_proxy": "a b" * 9999}, {"x" * 9999: ""}, [10 ** 5000],
    {"https": "http://u:secret@h:99999/" + "x" * 9999}])
def test_what_is_refused_is_shown_in_short(given: Any) -> None:
    with pytest.raises(InputError) as refused:
        _proxy.read(given)
    assert len(str(refused.value)) < 500 and "secret" not in str(refused.value)


@pytest.mark.parametrize("nothing", [None, "", {}, {"http": None, "https": "", "no_proxy": []}])
def test_none(nothing: Any) -> None:
    assert _proxy.read(nothing) == {}
    assert _proxy.variables({}) == {}


def test_programs_read_capitals_or_small_letters() -> None:
    assert _proxy.variables({"https": "http://p:1", "no_proxy": "a"}) == {
        "HTTPS_PROXY": "http://p:1", "https_proxy": "http://p:1", "NO_PROXY": "a", "no_proxy": "a"}


@pytest.mark.parametrize(("given", "message"), [
    ("p.example:3128", "proxy: p.example:3128 is not a mapping"),
    ({"http": "p.example:3128"}, "proxy.http: 'p.example:3128' is not the URL"),
    ({"https": "socks5://p:1"}, "proxy.https: 'socks5://p:1' is not the URL"),
    ({"https": "http://"}, "proxy.https: 'http://' is not the URL"),
    ({"https": "http://p:port"}, "proxy.https: 'http://p:port' is not the URL"),
    ({"https": "http://p:1 "}, "proxy.https: 'http://p:1 ' is not the URL"),
    ({"ftp": "http://p:1"}, "proxy: 'ftp' is not a key of a proxy. Write http, https, no_proxy"),
    ({"no_proxy": "http://a"}, "proxy.no_proxy: 'http://a' is not a host"),
    ({"no_proxy": "a b"}, "proxy.no_proxy: 'a b' is not a host"),
    ({"http": "http://p:1", "HTTP_PROXY": "http://q:1"}, "proxy.http: it is set twice"),
])
def test_what_cannot_be(given: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        _proxy.read(given)
    assert message in str(caught.value)


@pytest.mark.parametrize("given", [
    "http://me:s3cret@p.example:3128", {"http": "me:s3cret@p.example:3128"}, {"http": "http://me:s3cret@p:port"},
    {"http": "http://me:s3cret@p:1", "HTTP_PROXY": "http://me:s3cret2@p:1"}, {"http": "ftp://me:s3@cret@p:1"},
    {"http": "http://me:s3cret@ p:1"}, {"http": "http://me:a/s3cret@p:1"}, {"http": "http://me:a s3cret@p:1"},
    {"no_proxy": "http://me:s3cret@a"},
])
def test_no_error_has_a_password(given: Any) -> None:
    with pytest.raises(InputError) as caught:
        _proxy.read(given)
    assert "cret" not in str(caught.value.as_result())


def test_whether_there_is_a_password() -> None:
    assert _proxy.has_password(_proxy.read({"http": "http://me:s3cret@p:1"}))
    assert not _proxy.has_password(_proxy.read(PLAIN))


def test_the_process_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HTTP_PROXY": "http://old:1", "PATH": "/bin"})
    _proxy.use({"http": "http://new:1", "https": None, "no_proxy": None})
    assert os.environ == {"HTTP_PROXY": "http://new:1", "http_proxy": "http://new:1", "PATH": "/bin"}


APT = "/usr/lib/apt/apt-helper"


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """The URL of a proxy, and the addresses that were requested from it; it answers every request itself."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"data")

        def log_message(self, *_words: Any) -> None:
            pass

    for name in [*os.environ]:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()
    for name in ("HTTP_PROXY", "http_proxy"):
        os.environ.pop(name, None)


@pytest.mark.parametrize("what", ["run", "curl", "apt"])
def test_what_fetches_on_hosts_goes_through_it(what: str, proxy: tuple[str, list[str]], tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs themselves download through it: the .run file, the keys of RPM repositories, and apt."""
    url, target = f"http://nowhere.invalid/{what}", tmp_path / "got"
    if {"curl": shutil.which("curl"), "apt": os.path.exists(APT)}.get(what, True) in (None, False):
        pytest.skip(f"{what} is not here")
    _proxy.use({"http": proxy[0]})
    if what == "run":
        monkeypatch.setattr(runfile_fetch, "FOLDER", str(tmp_path))
        digest = hashlib.sha256(b"data").hexdigest()
        runfile_fetch.fetch(Archive("", url, digest), digest)
    elif what == "curl":
        rpm.fetch(run, url, str(target), {}, "dnf.conf")
    else:
        run([APT, "-o", "APT::Sandbox::User=root", "download-file", url, str(target)])
    assert proxy[1] == [url]
    assert what == "run" or target.read_text() == "data"

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads a URL with the program that apt runs for the scheme of the URL.

C(apt-helper) takes the URL as an argument, which every user of the host can see, and the query of a signed URL is a
secret. The download programs of apt read the URL from standard input. They also read the configuration of apt from
there, so they use the same proxies, certificates and passwords (apt_auth.conf(5)) as apt-helper. Source: "APT Method
Interface" in the package libapt-pkg-doc.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import threading
import typing as t
from urllib.parse import quote, urlsplit

from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, environment

METHODS = "/usr/lib/apt/methods"
SCHEMES = ("http", "https")
_LIMIT = 120.0  # maximum seconds for one request
_REDIRECTS = 10
_DONE, _FAILED, _REDIRECT = "201", "4", "103"
_SANDBOX = re.compile(r"^Config-Item: APT::Sandbox::User=(.+)$", re.MULTILINE)


def fetch(run: Runner, configuration: str, uri: str, path: str) -> str:
    """Downloads uri to path, which must not exist. Returns the reason if this fails, otherwise an empty text.

    configuration: the path of a configuration file that is read after the host's configuration.
    """
    settings = run(["apt-config", "-c", configuration, "dump", "--no-empty", "--format",
                    "Config-Item: %F=%V%n"]).stdout + "Config-Item: Acquire::Send-URI-Encoded=1\n"
    _make(path, _SANDBOX.search(settings))
    for _time in range(_REDIRECTS):
        scheme = urlsplit(uri).scheme
        if scheme not in SCHEMES:
            return f"it redirects to the scheme {scheme!r} instead of http or https"
        kind, answer = _request(f"{METHODS}/{scheme}", settings, uri, path)
        if kind != _REDIRECT:
            return "" if kind == _DONE else answer.get("Message") or "the program of apt ended without an answer"
        uri = answer.get("New-URI", "")
    return f"more than {_REDIRECTS} redirects"


def _make(path: str, sandbox: t.Optional[t.Match[str]]) -> None:
    """Creates an empty file to which the sandbox user of the program can write."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        user = pwd.getpwnam(sandbox[1]) if sandbox and os.geteuid() == 0 else None
    except KeyError:
        return  # the user does not exist, so apt downloads as root
    if user:
        os.chown(path, user.pw_uid, user.pw_gid)


def _request(program: str, settings: str, uri: str, path: str) -> tuple[str, dict[str, str]]:
    """C((number, fields)) of the last message from the program; an empty number if the program ended without a
    response."""
    wanted = quote(uri, safe="!#$%&'()*+,/:;=?@[]~")
    text = f"601 Configuration\n{settings}\n600 URI Acquire\nURI: {wanted}\nFilename: {path}\n\n"
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, errors="replace", env=environment()) as process:
        timer = threading.Timer(_LIMIT, process.kill)
        timer.start()
        try:
            return _conversation(t.cast("t.IO[str]", process.stdin), t.cast("t.IO[str]", process.stdout), text)
        except BrokenPipeError:
            return "", {}
        finally:
            timer.cancel()
            process.kill()


def _conversation(ask: t.IO[str], answers: t.IO[str], text: str) -> tuple[str, dict[str, str]]:
    ask.write(text)
    ask.flush()
    kind, fields = "", {}  # type: str, dict[str, str]
    for line in answers:
        key, _colon, value = line.strip().partition(": ")
        if not kind:
            kind = key[:3]
        elif key:
            fields[key] = value
        elif kind in (_DONE, _REDIRECT) or kind.startswith(_FAILED):
            return kind, fields
        else:
            kind, fields = "", {}
    return "", {}

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands and files of users with rootless Docker or Podman. PRIVATE to the collection.

A user can replace each file and folder in the own home by a link at any time. Therefore root does not touch them: every
command, read and write runs with the identity of the user, who can only do with it what this user can do anyway. A link
of the user, such as that of a manager of dot files, is followed with the same identity.

Journal entries: `user_file`, by path: `{user, mode, bytes, folders}` before the first run, the content as Base64, None
for no file, and the missing folders, the innermost first. Its `after` has the digests of the contents that runs have
written.
"""

from __future__ import annotations

import base64
import binascii
import pwd
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import digest
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

# Between the name of a runtime or unit and that of the user who runs it.
OF_USER = " of "
# The most bytes of a file. The controller refuses the answer of a host with a longer one.
_LONGEST = 4 * 2**20
# Seconds for a command. A home can be a file system that does not answer.
_TIMEOUT = 20
_FOLDERS = 'd=$(dirname -- "$1"); while [ ! -e "$d" ]; do echo "$d"; d=$(dirname -- "$d"); done'
# Prints the mode and the content, or `absent` and the missing folders.
_READ = f"""
if [ -h "$1" ] && [ ! -e "$1" ]; then echo "it is a link to a file that does not exist" >&2; exit 1; fi
if [ ! -e "$1" ]; then echo absent; {_FOLDERS}; exit; fi
if [ ! -f "$1" ]; then echo "it is not a file" >&2; exit 1; fi
if [ ! -r "$1" ]; then echo "permission denied" >&2; exit 1; fi
stat -Lc %a -- "$1" && head -c {_LONGEST + 1} -- "$1" | base64
"""
# Replaces the file atomically. The target of a link is replaced.
_WRITE = """
set -e
umask 022
mkdir -p -- "$(dirname -- "$1")"
file=$(readlink -f -- "$1")
rm -f -- "$file".gpuops-????????
new=$(mktemp -- "$file.gpuops-XXXXXXXX")
trap 'rm -f -- "$new"' EXIT
base64 -d > "$new"
chmod -- "$2" "$new"
sync -- "$new"
mv -fT -- "$new" "$file"
"""
_REMOVE = 'rm -f -- "$1" && shift && for d do rmdir -- "$d" 2>/dev/null || :; done'
_WRITABLE = f"""
{_FOLDERS.replace('echo "$d"', ':')}
if [ -e "$1" ]; then d=$(dirname -- "$(readlink -f -- "$1")"); fi
test -d "$d" && test -w "$d" && test -x "$d"
"""
# Prints the devices and specifications that exist and cannot be opened.
_CLOSED = """
for f in /var/run/cdi/*.yaml; do [ ! -e "$f" ] || [ -r "$f" ] || echo "$f"; done
for f in /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia[0-9]*; do
  [ ! -e "$f" ] || { [ -r "$f" ] && [ -w "$f" ]; } || echo "$f"
done
"""


class Account(t.NamedTuple):
    """A user of the host."""

    name: str
    uid: int
    gid: int
    home: str


class File(t.NamedTuple):
    """A file of a user. mode: in octal digits; mode, data: None if there is no file; folders: see `user_file`."""

    mode: t.Optional[str]
    data: t.Optional[bytes]
    folders: t.List[str]


def find(name: str) -> t.Optional[Account]:
    """The user of this name, None if there is none."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, found.pw_uid, found.pw_gid, found.pw_dir)


def checked(name: str) -> Account:
    """The user of the option. Raises InputError for an unknown one and for root."""
    found = find(name)
    if found is None or found.uid == 0 or not found.home.startswith("/"):
        why = "there is no such user on this host" if found is None else (
            "the containers of root are not rootless" if found.uid == 0 else "this user has no home")
        raise InputError(f"{why}.", "Create the user first, or omit it.", path="rootless_users", value=name,
                         allowed="names of users of the host, except root")
    return found


class Identity:
    """Runs commands as a user, without a terminal and without variables of root."""

    def __init__(self, account: Account, run: Runner) -> None:
        self.account = account
        self._run = run
        self.runtime_folder = f"/run/user/{account.uid}"

    def __call__(self, argv: t.Sequence[str], *, timeout: float = _TIMEOUT, check: bool = True,
                 stdin: t.Optional[str] = None, env: t.Optional[t.Mapping[str, str]] = None, hint: str = ""
                 ) -> Completed:
        """As L(run), without env. systemctl and journalctl use the manager of the user, and units without the name of
        the user."""
        if env:
            raise ValueError("a command of a user gets no other variables")
        name, uid, gid, home = self.account
        words = list(argv)
        if argv[0] in ("systemctl", "journalctl"):
            words = [argv[0], "--user", *[word.partition(OF_USER)[0] for word in argv[1:]]]
        # With a terminal of root, programs of the user could type into it.
        return self._run(["setsid", "--wait", "setpriv", f"--reuid={uid}", f"--regid={gid}", "--init-groups",
                          "env", "-i", f"HOME={home}", f"USER={name}", f"LOGNAME={name}", "LC_ALL=C",
                          "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                          f"XDG_RUNTIME_DIR={self.runtime_folder}", *words],
                         timeout=timeout, check=check, stdin=stdin, hint=hint)

    def _script(self, text: str, *arguments: str, stdin: t.Optional[str] = None) -> Completed:
        return self(["sh", "-c", text, "sh", *arguments], stdin=stdin, check=False)

    def config_folder(self) -> str:
        """$XDG_CONFIG_HOME of the services of the user."""
        for line in self(["systemctl", "show-environment"], check=False).stdout.splitlines():
            name, _sign, value = line.partition("=")
            if name == "XDG_CONFIG_HOME" and value.startswith("/"):
                return value.rstrip("/")
        return f"{self.account.home.rstrip('/')}/.config"

    def exists(self, path: str) -> bool:
        """Whether the user sees a file at this path."""
        return self(["test", "-e", path], check=False).rc == 0

    def closed(self) -> t.List[str]:
        """The device nodes and CDI specifications that the user cannot open."""
        return self._script(_CLOSED).stdout.splitlines()

    def read(self, path: str) -> File:
        """A file. Raises HostError if the user cannot read it."""
        done = self._script(_READ, path)
        lines = done.stdout.splitlines()
        if done.rc != 0 or not lines or not path.isprintable():
            raise self._error(path, "read", done)
        if lines[0] == "absent":
            return File(None, None, lines[1:])
        try:
            data = base64.b64decode("".join(lines[1:]), validate=True)
        except binascii.Error as error:
            raise self._error(path, "read", done) from error
        if len(data) > _LONGEST:
            raise HostError(f"{path} of {self.account.name} has more than {_LONGEST} bytes.", "Shorten it.", path=path)
        return File(lines[0], data, [])

    def check_writable(self, path: str) -> None:
        """Raises HostError if the user cannot replace a file."""
        done = self._script(_WRITABLE, path)
        if done.rc != 0:
            raise self._error(path, "write", done)

    def write(self, path: str, data: bytes, mode: str) -> None:
        """Replaces a file atomically. Creates missing folders. Raises HostError."""
        done = self._script(_WRITE, path, mode, stdin=base64.b64encode(data).decode())
        if done.rc != 0:
            raise self._error(path, "write", done)

    def remove(self, path: str, folders: t.Sequence[str]) -> None:
        """Removes a file and these folders, if they are empty. Raises HostError."""
        done = self._script(_REMOVE, path, *folders)
        if done.rc != 0:
            raise self._error(path, "remove", done)

    def _error(self, path: str, verb: str, done: Completed) -> HostError:
        reason = (done.stderr.strip().splitlines() or ["permission denied"])[-1].rstrip(".")
        return HostError(f"{self.account.name} cannot {verb} {path}: {reason}.",
                         "Files of a rootless Docker must be regular files of this user. Check the path (ls -l).",
                         path=path, user=self.account.name)


class UserFiles:
    """The journalled files of a user."""

    def __init__(self, journal: Journal, identity: Identity) -> None:
        self.journal = journal
        self.identity = identity

    def state(self, path: str, data: t.Optional[bytes]) -> str:
        """`before`, `ours` or `edited`, as of a file of root. data: the current content. There must be an entry."""
        entry = self.journal.get("user_file", path) or {}
        former = entry["before"]["bytes"]
        if data == (None if former is None else base64.b64decode(former)):
            return "before"
        return "ours" if _digest(data) in (entry["after"] or ()) else "edited"

    def write(self, path: str, data: bytes) -> None:
        """Writes a file after recording its former state."""
        found = self.identity.read(path)
        self._keep(path, found)
        ours = [_digest(found.data)] if self.state(path, found.data) == "ours" else []
        self.journal.note("user_file", path, [*ours, _digest(data)])
        self.identity.write(path, data, found.mode or "644")
        self.journal.note("user_file", path, [_digest(data)])

    def _keep(self, path: str, found: File) -> None:
        data = None if found.data is None else base64.b64encode(found.data).decode()
        self.journal.keep("user_file", path, {
            "user": self.identity.account.name, "mode": found.mode, "bytes": data, "folders": found.folders})

    def set_baseline(self, path: str, baseline: bytes) -> None:
        """Makes a removal restore the baseline: the file as edited by the user, without our part."""
        entry = self.journal.get("user_file", path)
        if entry is not None:
            entry["before"] = {**entry["before"], "bytes": base64.b64encode(baseline).decode(),
                               "mode": self.identity.read(path).mode or "644"}

    def restore(self, path: str) -> None:
        """Restores the state before the first run, and deletes the entry."""
        entry = self.journal.get("user_file", path)
        if entry is not None:
            before = entry["before"]
            if before["bytes"] is None:
                self.identity.remove(path, before["folders"])
            else:
                self.identity.write(path, base64.b64decode(before["bytes"]), before["mode"])
            self.journal.forget("user_file", path)


def _digest(data: t.Optional[bytes]) -> str:
    return "absent" if data is None else digest(data)

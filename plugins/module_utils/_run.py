# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs commands: lists of arguments, with C(LC_ALL=C) and a time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError

# Packages install programs in sbin folders, which the PATH of a non-login SSH session may lack.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Completed(t.NamedTuple):
    """The result of a command. rc: its exit code. stdout, stderr: text."""

    argv: t.Tuple[str, ...]
    rc: int
    stdout: str
    stderr: str


class Runner(t.Protocol):
    """The type of L(run). Tests pass simulated commands."""

    def __call__(self, argv: t.Sequence[str], *, timeout: float = 60, check: bool = True, stdin: str | None = None,
                 env: t.Mapping[str, str] | None = None, hint: str = "") -> Completed:
        """Runs argv; see L(run)."""


def environment(extra: t.Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of commands: that of this process, with a fixed locale and the sbin folders in PATH."""
    env = dict(os.environ)
    env.update({"LC_ALL": "C", "LANGUAGE": "C", "PATH": f"{env.get('PATH', '')}:{_PATH}".strip(":")})
    env.update(extra or {})
    return env


def run(argv: t.Sequence[str], *, timeout: float = 60, check: bool = True, stdin: str | None = None,
        env: t.Mapping[str, str] | None = None, hint: str = "") -> Completed:
    """Runs a command.

    timeout: seconds, after which the command is killed and CommandError (rc None) is raised. check: whether to raise
    CommandError for an exit code other than 0. The exit code of a missing program is 127, of one that cannot be started
    126. hint: that of the error.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, input=stdin or "", capture_output=True, text=True, errors="replace",
                              timeout=timeout, env=environment(env), check=False)
        result = Completed(tuple(words), done.returncode, done.stdout, done.stderr)
    except OSError as error:
        result = Completed(tuple(words), 127 if isinstance(error, FileNotFoundError) else 126, "", str(error))
    except subprocess.TimeoutExpired as error:
        out, err = (part.decode(errors="replace") if isinstance(part, bytes) else part or ""
                    for part in (error.stdout, error.stderr))
        raise CommandError(words, None, out, err, hint or f"The limit was {timeout:.0f} s.") from error
    if check and result.rc != 0:
        raise CommandError(words, result.rc, result.stdout, result.stderr, hint)
    return result


def which(program: str) -> str | None:
    """The path of a program, also in sbin folders, or None."""
    return shutil.which(program, path=environment()["PATH"])

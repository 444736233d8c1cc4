# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one error tree.

Every error that a user can meet is one of these; the glue of a module or action turns it into C(fail_json) in one
place. Keyword details become fields of the result, so that a playbook can react to them without parsing text.
"""

from __future__ import annotations

import errno
import typing as t

_ROOM = "Free space and inodes there (df -h, df -i), then run again."
_NEXT = {errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM,
         errno.EIO: "Its disk or file system fails: see journalctl -k.",
         errno.EBUSY: "It may be a mount point of its own: see findmnt."}
_WORD = 80  # characters of a misspelt word that are compared
_LONGEST = 8000  # characters of a message: what it quotes of a file or a document may be of any length


class GpuopsError(Exception):
    """Base of all expected errors.

    message: what is wrong, in one sentence; what is too long is cut. hint: what to do next, in one sentence.
    details: plain data for the result (never secrets).
    """

    kind = "error"

    def __init__(self, message: str, hint: str = "", **details: t.Any) -> None:
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]} ... and {len(message) - _LONGEST} more characters."
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def as_result(self) -> dict[str, t.Any]:
        """Shape: C({msg, error: {kind, message, hint, **details}})."""
        return {
            "msg": str(self),
            "error": {"kind": self.kind, "message": self.message, "hint": self.hint, **self.details},
        }


class InputError(GpuopsError):
    """A wrong value from the user, found before anything is changed.

    path: where in the document or options (C(spec.driver.version)); value: what stands there; allowed: what may.
    """

    kind = "input"

    def __init__(self, message: str, hint: str = "", path: str = "", value: t.Any = None, allowed: t.Any = None,
                 **details: t.Any) -> None:
        where = f"{path}: " if path else ""
        super().__init__(f"{where}{message}", hint, path=path, value=value, allowed=allowed, **details)


class HostError(GpuopsError):
    """The host is in a state from which the wanted one cannot be reached."""

    kind = "host"


def brief(value: t.Any, text: t.Callable[[t.Any], str] = repr, most: int = 60) -> str:
    """A value for a message, cut after most characters. text: writes it out."""
    try:
        written = text(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; data that contains itself
        return f"a {type(value).__name__} too long to show"
    return written if len(written) <= most else f"{written[:most - 3]}..."


def nearest(word: str, known: t.Iterable[str], cutoff: float = 0.6) -> str:
    """The known word that is meant by a misspelt one, in whichever letters; empty where none is near.

    cutoff: from 0, any, to 1, the same. Only the beginning of a long word counts, as to compare one takes long.
    """
    import difflib  # only where something is refused

    folded = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word[:_WORD].lower(), list(folded), 1, cutoff)
    return folded[found[0]] if found else ""


def next_step(error: OSError, otherwise: str) -> str:
    """The hint for what the system refused, where its number says more than otherwise."""
    return _NEXT.get(error.errno or 0, otherwise)


def refused(error: OSError) -> HostError:
    """What the system refused, as an error of ours."""
    return HostError(f"{error.filename or 'The system'}: {error.strerror or error}.",
                     next_step(error, "Run as root (become: true), where file systems are writable and have room."))


class RepositoryError(HostError):
    """A package repository is unreachable, not signed by the expected key, or lacks the wanted version."""

    kind = "repository"


class CommandError(HostError):
    """A command failed, could not be started or ran out of time (rc is None then)."""

    kind = "command"

    def __init__(self, argv: t.Sequence[str], rc: int | None, stdout: str, stderr: str, hint: str = "") -> None:
        tail = (stderr or stdout).strip().splitlines()[-12:]
        state = "ran out of time" if rc is None else f"failed with exit code {rc}"
        super().__init__(f"{' '.join(argv)} {state}: {' / '.join(tail) or 'it printed nothing'}.", hint,
                         argv=list(argv), rc=rc, stdout=stdout[-4000:], stderr=stderr[-4000:])
        self.rc = rc

    @property
    def output(self) -> str:
        """What the command printed, cut as in C(details): standard output, then standard error."""
        return str(self.details["stdout"]) + str(self.details["stderr"])


class DeviceError(GpuopsError):
    """NVML refused something. call: the NVML function; code: its return value; gpu: PCI address or UUID."""

    kind = "device"


class MissingLibrary(GpuopsError):
    """A Python library is not there. The action plugin then ships C(pynvml) to the host and runs the module again."""

    kind = "missing_library"

    def __init__(self, library: str, hint: str = "") -> None:
        super().__init__(f"The Python library {library} is needed and cannot be imported.", hint, library=library)
        self.library = library


class JournalError(GpuopsError):
    """The journal is locked by another run, of a newer version, or damaged."""

    kind = "journal"

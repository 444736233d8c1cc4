# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The exceptions of the collection.

All expected errors are subclasses of L(GpuopsError). One function of modules and one of actions convert them to
C(fail_json). Their details become fields of the result, so that a playbook need not parse text.
"""

from __future__ import annotations

import errno
import typing as t

_ROOM = "Free space and inodes there (df -h, df -i), then run again."
_NEXT = {errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM,
         errno.EIO: "Its disk or file system fails: see journalctl -k.",
         errno.EBUSY: "It may be a mount point of its own: see findmnt."}
_WORD = 80  # characters of a misspelt word that are compared
_LONGEST = 8000  # characters of a message, which may quote a file of any size


class GpuopsError(Exception):
    """The base class of all expected errors.

    message: what is wrong, in one sentence; a long message is truncated. hint: what to do, in one sentence. details:
    plain data for the result, without secrets.
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
        """The arguments of fail_json: C({msg, error: {kind, message, hint, **details}})."""
        return {
            "msg": str(self),
            "error": {"kind": self.kind, "message": self.message, "hint": self.hint, **self.details},
        }


class InputError(GpuopsError):
    """An invalid value from the user. Nothing was changed.

    path: its place in the document or options (C(spec.driver.version)). value: the value. allowed: allowed values.
    """

    kind = "input"

    def __init__(self, message: str, hint: str = "", path: str = "", value: object = None, allowed: object = None,
                 **details: object) -> None:
        where = f"{path}: " if path else ""
        super().__init__(f"{where}{message}", hint, path=path, value=value, allowed=allowed, **details)


class HostError(GpuopsError):
    """The state of the host prevents the desired state."""

    kind = "host"


class InUse(HostError):
    """A process uses what a step needs since the plan was made. The step has changed nothing, and is pending."""


class RebootNeeded(HostError):
    """A new mode is pending and only a reboot applies it. It is left pending, because the level allows the reboot."""


def brief(value: object, text: t.Callable[[object], str] = repr, most: int = 60) -> str:
    """A value as text for a message, truncated to most characters. text: converts it."""
    try:
        written = text(value)
    except ValueError:  # from 4,300 digits on
        return "a number with thousands of digits"
    except RecursionError:
        return "data that contains itself or is nested too deeply"
    return written if len(written) <= most else f"{written[:most - 3]}..."


def nearest(word: str, known: t.Iterable[str], cutoff: float = 0.6) -> str:
    """The known word that is most similar to a misspelt one, ignoring case; empty if none is similar.

    cutoff: the least similarity, from 0 to 1 (equal). Only the beginning of a long word is compared, to save time.
    """
    import difflib  # slow to import, and only errors need it

    folded = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word[:_WORD].lower(), list(folded), 1, cutoff)
    return folded[found[0]] if found else ""


def next_step(error: OSError, otherwise: str) -> str:
    """The hint for an error of the operating system. otherwise: the hint for errors without a specific one."""
    return _NEXT.get(error.errno or 0, otherwise)


def refused(error: OSError) -> HostError:
    """Converts an error of the operating system."""
    return HostError(f"{error.filename or 'The system'}: {error.strerror or error}.",
                     next_step(error, "Run as root (become: true). Check for read-only and full file systems."))


class RepositoryError(HostError):
    """A package repository is unreachable, not signed with the expected key, or lacks the desired version."""

    kind = "repository"


class CommandError(HostError):
    """A command failed, could not be started, or ran out of time (rc is then None)."""

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
    """A call of NVML failed. Details: call, the NVML function; code, its return value; gpu, PCI address or UUID."""

    kind = "device"


class MissingLibrary(GpuopsError):
    """A Python library is missing. The action then copies C(pynvml) to the host and runs the module again."""

    kind = "missing_library"

    def __init__(self, library: str, hint: str = "") -> None:
        super().__init__(f"The Python library {library} is needed and cannot be imported.", hint, library=library)
        self.library = library


class JournalError(GpuopsError):
    """The journal is locked by another run, has a newer format, or is damaged."""

    kind = "journal"

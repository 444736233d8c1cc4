# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The signing keys of the lab: created once and cached, so that rebuilt repositories keep their fingerprints."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.tools import cached, run_quietly

# One for each repository of the vendor's that has its own, and one that signs nothing: what a wrong key looks like.
NAMES = ("cuda", "toolkit", "rpm", "archive", "stranger")


@dataclass(frozen=True)
class Key:
    """A key pair. folder holds NAME.pub (armored), NAME.gpg (binary) and NAME.sec; fingerprint: 40 hex digits."""

    name: str
    folder: Path
    fingerprint: str

    @property
    def public(self) -> Path:
        """The armored public key."""
        return self.folder / f"{self.name}.pub"

    @property
    def binary(self) -> Path:
        """The public key as a keyring."""
        return self.folder / f"{self.name}.gpg"

    def sign(self, path: Path, clear: Path | None = None, detached: Path | None = None) -> None:
        """Sign a file: text and signature in one, a signature apart, or both."""
        with _home() as gpg:
            gpg("--import", str(self.folder / f"{self.name}.sec"))
            if clear:
                gpg("--output", str(clear), "--clear-sign", str(path))
            if detached:
                gpg("--armor", "--output", str(detached), "--detach-sign", str(path))

    def sign_rpms(self, paths: Sequence[Path]) -> None:
        """Sign RPM packages in place."""
        with _home() as gpg:
            gpg("--import", str(self.folder / f"{self.name}.sec"))
            macros = {"_gpg_name": self.fingerprint, "_gpg_path": gpg.home, "__gpg": str(shutil.which("gpg"))}
            words = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
            run_quietly(["rpmsign", *words, "--addsign", *map(str, paths)], "the signatures of the RPM packages")


class _Gpg:
    def __init__(self, home: str) -> None:
        self.home = home

    def __call__(self, *words: str) -> bytes:
        command = ["gpg", "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "", *words]
        done = subprocess.run(command, env={**os.environ, "GNUPGHOME": self.home}, capture_output=True, check=False,
                              timeout=120)
        if done.returncode:
            raise SystemExit(f"gpg {' '.join(words)} ended with {done.returncode}\n{done.stderr.decode()}")
        return done.stdout


@contextmanager
def _home() -> Iterator[_Gpg]:
    # A path of its own under /tmp: the agent's socket allows about 100 characters. The agent ends with it.
    home = tempfile.mkdtemp(prefix="gpuops-gpg-", dir="/tmp")
    try:
        yield _Gpg(home)
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, "GNUPGHOME": home}, check=False, timeout=120)
        shutil.rmtree(home, ignore_errors=True)


def _make(folder: Path) -> None:
    for name in NAMES:
        with _home() as gpg:
            gpg("--quick-generate-key", f"gpuops lab {name} <lab@example.com>", "rsa3072", "sign", "never")
            listing = gpg("--with-colons", "--list-keys").decode()
            fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
            (folder / f"{name}.pub").write_bytes(gpg("--armor", "--export"))
            (folder / f"{name}.gpg").write_bytes(gpg("--export"))
            (folder / f"{name}.sec").write_bytes(gpg("--armor", "--export-secret-keys"))
            (folder / f"{name}.fingerprint").write_text(fingerprint)


def keys() -> dict[str, Key]:
    """All keys by name; made on the first call."""
    folder = cached("signing", [b"1", *(name.encode() for name in NAMES)], _make)
    return {name: Key(name, folder, (folder / f"{name}.fingerprint").read_text()) for name in NAMES}

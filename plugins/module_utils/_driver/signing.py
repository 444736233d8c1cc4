# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secure Boot: the key that DKMS signs with, and its enrolment as a machine owner's key.

Sources: dkms(8) (mok_signing_key, mok_certificate in framework.conf.d), mokutil(1), shim's variables MokListRT
(enrolled) and MokNew (asked for at the next boot); both hold certificates whole. Keys and passwords reach no step and
no result.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import tempfile

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.dkms import read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import enrolled_keys
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

KEY = "/var/lib/gpuops/mok/mok.key"
CERTIFICATE = "/var/lib/gpuops/mok/mok.der"
FRAMEWORK = "/etc/dkms/framework.conf.d/gpuops.conf"
WRITE_KEY = "write signing key"
IMPORT = "ask for enrolment of key"
ENROL = "enrol key at the next boot"
RESIGN = "sign modules again"
_FRAMEWORK_TEXT = f"""\
# Written by gpuops.nvidia: module_signing.
mok_signing_key={KEY}
mok_certificate={CERTIFICATE}
""".encode()
# What DKMS signs with by itself, by distribution: Ubuntu; all others.
_OWN = {"ubuntu": "/var/lib/shim-signed/mok/MOK.der"}
_OWN_ELSEWHERE = "/var/lib/dkms/mok.pub"
_ASKED = "/sys/firmware/efi/efivars/MokNew-605dab50-e046-4300-abb6-3dd810dd8b23"
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.S)
_PRIVATE = re.compile(r"-----BEGIN (RSA |EC )?PRIVATE KEY-----")
_ROOT_HASH = re.compile(r"^root:\$[^:]+:", re.M)
_LIMIT = 3600


def certificate(spec: Spec) -> bytes | None:
    """The given certificate as DER, None where there is none. Raises InputError, never with a secret in it."""
    given = {key: value for key, value in (spec.module_signing or {}).items() if value}
    if ("key" in given) != ("certificate" in given):
        raise InputError("key and certificate belong together.", "Give both, or none of them.", path="module_signing")
    if "key" not in given:
        return None
    if not _PRIVATE.search(given["key"]):
        raise InputError("this is no private key in PEM without a passphrase.",
                         "Give the text from BEGIN PRIVATE KEY to END PRIVATE KEY.", path="module_signing.key")
    found = _PEM.search(given["certificate"])
    try:
        return base64.b64decode("".join(found.group(1).split() if found else "-"), validate=True)
    except binascii.Error as error:
        raise InputError("this is no certificate in PEM.", "Give the text from BEGIN CERTIFICATE to END CERTIFICATE.",
                         path="module_signing.certificate") from error


def is_enrolled(root: Root, der: bytes | None) -> bool | None:
    """Whether a certificate is in shim's list; None where the firmware shows none."""
    listed = enrolled_keys(root)
    return None if listed is None else der is not None and der in listed


def is_asked(root: Root, der: bytes | None) -> bool:
    """Whether a certificate waits for its enrolment at the next boot."""
    return der is not None and der in (root.data(_ASKED) or b"")


def key_path(spec: Spec, os_id: str) -> str:
    """Where the certificate of the key lies that DKMS signs with."""
    return CERTIFICATE if certificate(spec) else _OWN.get(os_id, _OWN_ELSEWHERE)


def key_of(root: Root, spec: Spec, os_id: str) -> bytes | None:
    """The certificate of the key that DKMS signs with, None where it has made none yet."""
    return certificate(spec) or root.data(key_path(spec, os_id))


def mok_state(root: Root, spec: Spec, now: Situation) -> dict[str, bool | None]:
    """The result C(mok): C({enrolled, pending}); enrolled is None without Secure Boot."""
    der = key_of(root, spec, now.os_id) if now.secure_boot else None
    return {"enrolled": is_enrolled(root, der) if now.secure_boot else None, "pending": is_asked(root, der)}


class Signing(Part):
    """A given key signs from the next build on; under Secure Boot nothing is loaded anew before it is enrolled."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part)."""
        given = certificate(self.host.spec)
        if not aim.dkms:
            return []
        steps: list[Phased] = []
        wrong = [path for path, data in self._files().items() if self.host.root.data(path) != data] if given else []
        # What is built in this run is signed with it at once.
        stays = aim.version in now.built and not aim.delivered
        if wrong:
            steps.append(("prepare", Step(WRITE_KEY, CERTIFICATE, "DKMS signs with it",
                                          data={"files": wrong, "stays": stays})))
        owed = stays and (bool(wrong) or self.host.journal.get("resign", "modules") is not None)
        if owed:
            steps.append(("build", Step(RESIGN, aim.version, "the key has changed", data={
                "version": aim.version, "arch": now.arch, "name": now.registered[aim.version]})))
        same = now.loaded == aim.version and now.flavour == aim.flavour
        if not now.secure_boot or same and not aim.delivered and not owed:
            return steps
        return steps + self._enrolment(now)

    def _files(self) -> dict[str, bytes]:
        key = str((self.host.spec.module_signing or {}).get("key") or "").strip() + "\n"
        return {KEY: key.encode(), CERTIFICATE: certificate(self.host.spec) or b"", FRAMEWORK: _FRAMEWORK_TEXT}

    def _enrolment(self, now: Situation) -> list[Phased]:
        der = key_of(self.host.root, self.host.spec, now.os_id)
        if is_enrolled(self.host.root, der):
            return []
        path = key_path(self.host.spec, now.os_id)
        # A driver that runs goes on running: nothing at all is done before its successor could be loaded.
        phase = "prepare" if now.modules else "load"
        if phase == "prepare" and der is None:
            raise HostError(f"Secure Boot is on, and DKMS has no key yet ({path}): what it builds would not load.",
                            "Give module_signing a key, or use a source with signed modules.", path=path)
        steps: list[Phased] = []
        if not is_asked(self.host.root, der):
            self._check_tool()
            steps.append((phase, Step(IMPORT, path, "Secure Boot is on, and the key is not enrolled")))
        whose = "the password of module_signing" if self._password() else "root's password"
        steps.append((phase, Step(ENROL, path, needs="reboot", data={
            "blocked": f"reboot the host, choose 'Enroll MOK' at its console and type {whose}; then run again"})))
        return steps

    def _password(self) -> str:
        return str((self.host.spec.module_signing or {}).get("password") or "")

    def _check_tool(self) -> None:
        if not any(self.host.root.exists(f"{folder}/mokutil") for folder in ("/usr/bin", "/usr/sbin", "/bin")):
            raise HostError("Secure Boot is on, and mokutil, which asks for a key's enrolment, is not installed.",
                            "Install mokutil, then run again.")
        if not self._password() and not _ROOT_HASH.search(self.host.root.text("/etc/shadow") or ""):
            raise HostError("Secure Boot is on, and the enrolment of a key takes a password that is typed at the "
                            "console once: root has none.", "Set module_signing.password.",
                            path="module_signing.password")

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        act = {WRITE_KEY: self._write, RESIGN: self._resign, IMPORT: self._import}.get(step.action)
        if act is not None:
            act(step)
        return act is not None

    def _write(self, step: Step) -> None:
        journal = self.host.journal
        if step.data["stays"]:
            journal.keep("resign", "modules", None)
        for path, data in self._files().items():
            if path in step.data["files"]:
                journal.write_file(path, data, 0o644 if path == FRAMEWORK else 0o600)

    def _resign(self, step: Step) -> None:
        name, version, arch = (step.data[key] for key in ("name", "version", "arch"))
        kernels = [str(entry["kernel"]) for entry in read_dkms(self.host.root, arch)
                   if (entry["name"], entry["version"], entry["state"]) == (name, version, "installed")]
        for kernel in kernels:
            for verb in ("build", "install"):
                self.host.run(["dkms", verb, "--force", "-m", name, "-v", version, "-k", kernel, "-a", arch],
                              timeout=_LIMIT)
        self.host.journal.forget("resign", "modules")

    def _import(self, step: Step) -> None:
        if self.host.root.data(step.target) is None:
            raise HostError(f"DKMS has made no key ({step.target}), so the modules are not signed.",
                            "It signs with sign-file of the kernel's headers: look at its build log.", path=step.target)
        words = ["mokutil", "--import", step.target]
        if not self._password():
            self.host.run([*words, "--root-pw"])
            return
        hashed = self.host.run(["openssl", "passwd", "-6", "-stdin"], stdin=self._password() + "\n").stdout.strip()
        handle, path = tempfile.mkstemp(prefix="gpuops-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(hashed + "\n")
            self.host.run([*words, "--hash-file", path])
        finally:
            os.unlink(path)

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secure Boot: the key with which DKMS signs modules, and its enrolment as a machine owner key (MOK).

No step and no result contains keys or passwords. Sources: dkms(8) (mok_signing_key, mok_certificate in
framework.conf.d), mokutil(1), the variables MokListRT (enrolled keys) and MokNew (requested enrolments) of shim, which
contain complete certificates.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import tempfile

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import dkms_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.dkms import read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import enrolled_keys
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

KEY = "/var/lib/gpuops/mok/mok.key"
CERTIFICATE = "/var/lib/gpuops/mok/mok.der"
FRAMEWORK = "/etc/dkms/framework.conf.d/gpuops.conf"
WRITE_KEY = "write signing key"
IMPORT = "request enrolment of key"
ENROL = "enrol key at the next boot"
RESIGN = "sign modules again"
_FRAMEWORK_TEXT = f"""\
# Written by gpuops.nvidia: module_signing.
mok_signing_key={KEY}
mok_certificate={CERTIFICATE}
""".encode()
# The default certificate of DKMS, by distribution.
_OWN = {"ubuntu": "/var/lib/shim-signed/mok/MOK.der"}
_OWN_ELSEWHERE = "/var/lib/dkms/mok.pub"
_REQUESTED = "/sys/firmware/efi/efivars/MokNew-605dab50-e046-4300-abb6-3dd810dd8b23"
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.S)
_PRIVATE = re.compile(r"-----BEGIN (RSA |EC )?PRIVATE KEY-----")
_ROOT_HASH = re.compile(r"^root:\$[^:]+:", re.M)


def certificate(spec: Spec) -> bytes | None:
    """The certificate in the options, in DER format, None if there is none. Raises InputError, without secrets."""
    given = {key: value for key, value in (spec.module_signing or {}).items() if value}
    if ("key" in given) != ("certificate" in given):
        raise InputError("key and certificate must be set together.", "Set both, or neither.", path="module_signing")
    if "key" not in given:
        return None
    if not _PRIVATE.search(given["key"]):
        raise InputError("the value is not a private key in PEM format without a passphrase.",
                         "Set the text from BEGIN PRIVATE KEY to END PRIVATE KEY.", path="module_signing.key")
    found = _PEM.search(given["certificate"])
    try:
        return base64.b64decode("".join(found.group(1).split() if found else "-"), validate=True)
    except binascii.Error as error:
        raise InputError("the value is not a certificate in PEM format.",
                         "Set the text from BEGIN CERTIFICATE to END CERTIFICATE.",
                         path="module_signing.certificate") from error


def is_enrolled(root: Root, der: bytes | None) -> bool | None:
    """Whether a certificate is enrolled; None if the firmware does not expose a list of certificates."""
    listed = enrolled_keys(root)
    return None if listed is None else der is not None and der in listed


def is_requested(root: Root, der: bytes | None) -> bool:
    """Whether an enrolment of a certificate is requested for the next boot. der: the certificate, or None."""
    return der is not None and der in (root.data(_REQUESTED) or b"")


def key_path(spec: Spec, os_id: str) -> str:
    """The path of the certificate with which DKMS signs modules. os_id: ID of os-release."""
    return CERTIFICATE if certificate(spec) else _OWN.get(os_id, _OWN_ELSEWHERE)


def key_of(root: Root, spec: Spec, os_id: str) -> bytes | None:
    """The certificate with which DKMS signs modules, None if DKMS has not created one yet."""
    return certificate(spec) or root.data(key_path(spec, os_id))


def mok_state(root: Root, spec: Spec, now: DriverState) -> dict[str, bool | None]:
    """The result C(mok): C({enrolled, pending}); enrolled is None without Secure Boot."""
    der = key_of(root, spec, now.os_id) if now.secure_boot else None
    return {"enrolled": is_enrolled(root, der) if now.secure_boot else None, "pending": is_requested(root, der)}


class Signing(Part):
    """Signs modules with the key in the options. Under Secure Boot, modules are reloaded only after the key is
    enrolled."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        if not desired.dkms:
            certificate(self.host.spec)  # raises an error for an invalid option
            return []
        given = certificate(self.host.spec)
        steps: list[Phased] = []
        wrong = [path for path, data in self._files().items() if self.host.root.data(path) != data] if given else []
        # Modules that are built in this run are signed with the new key. Existing modules must be signed again.
        stays = desired.version in now.built and not desired.delivered
        if wrong:
            steps.append(("prepare", Step(WRITE_KEY, CERTIFICATE, "DKMS signs with it",
                                          data={"files": wrong, "stays": stays})))
        owed = stays and (bool(wrong) or self.host.journal.get("resign", "modules") is not None)
        if owed:
            steps.append(("build", Step(RESIGN, desired.version, "the key has changed", data={
                "version": desired.version, "arch": now.arch, "name": now.registered[desired.version]})))
        same = now.loaded == desired.version and now.flavour == desired.flavour
        if not now.secure_boot or same and not desired.delivered and not owed:
            return steps
        return steps + self._enrolment(now)

    def _files(self) -> dict[str, bytes]:
        key = str((self.host.spec.module_signing or {}).get("key") or "").strip() + "\n"
        return {KEY: key.encode(), CERTIFICATE: certificate(self.host.spec) or b"", FRAMEWORK: _FRAMEWORK_TEXT}

    def _enrolment(self, now: DriverState) -> list[Phased]:
        der = key_of(self.host.root, self.host.spec, now.os_id)
        if is_enrolled(self.host.root, der):
            return []
        path = key_path(self.host.spec, now.os_id)
        # A loaded driver must remain until the new driver can be loaded.
        phase = "prepare" if now.modules else "load"
        if phase == "prepare" and der is None:
            raise HostError(f"Secure Boot is on, but DKMS has no key yet ({path}), so its modules would not load.",
                            "Set module_signing.key, or use a source with signed modules.", path=path)
        steps: list[Phased] = []
        if not is_requested(self.host.root, der):
            self._check_tool()
            steps.append((phase, Step(IMPORT, path, "Secure Boot is on, and the key is not enrolled")))
        password = "module_signing.password" if self._password() else "the password of root"
        steps.append((phase, Step(ENROL, path, needs="reboot", data={
            "blocked": f"reboot the host, choose 'Enroll MOK' at its console and type {password}; then run again"})))
        return steps

    def _password(self) -> str:
        return str((self.host.spec.module_signing or {}).get("password") or "")

    def _check_tool(self) -> None:
        if not any(self.host.root.exists(f"{folder}/mokutil") for folder in ("/usr/bin", "/usr/sbin", "/bin")):
            raise HostError("Secure Boot is on, but mokutil, which requests the enrolment of a key, is not installed.",
                            "Install mokutil, then run again.")
        if not self._password() and not _ROOT_HASH.search(self.host.root.text("/etc/shadow") or ""):
            raise HostError("Secure Boot is on, and the enrolment of a key needs a password, but root has none.",
                            "Set module_signing.password.", path="module_signing.password")

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
            dkms_rebuild(self.host.run, name, version, kernel, arch)
        self.host.journal.forget("resign", "modules")

    def _import(self, step: Step) -> None:
        if self.host.root.data(step.target) is None:
            raise HostError(f"DKMS has not created a key ({step.target}), so the modules are not signed.",
                            "DKMS signs with sign-file of the kernel headers: check its build log.", path=step.target)
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

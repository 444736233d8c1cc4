# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secure Boot: which key signs modules, and what happens before the key is enrolled."""

from __future__ import annotations

import base64
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.signing import (
    CERTIFICATE,
    FRAMEWORK,
    KEY,
    Signing,
    certificate,
    mok_state,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError

VERSION = "595.91.07"
DER = b"0\x82certificate of the site"
PRIVATE = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"
GIVEN = {"key": PRIVATE, "password": "typed-once", "certificate":
         f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(DER).decode()}\n-----END CERTIFICATE-----\n"}
OWN = "/var/lib/dkms/mok.pub"
VARIABLES = "/sys/firmware/efi/efivars/{}-605dab50-e046-4300-abb6-3dd810dd8b23"
WRITE, RESIGN = f"prepare/write signing key: {CERTIFICATE}", f"build/sign modules again: {VERSION}"


@pytest.fixture
def secure(made: t.Any) -> t.Any:
    made.now = replace(made.now, secure_boot=True)
    made.put(VARIABLES.format("MokListRT"), b"\6\0\0\0distributor")
    made.put("/usr/bin/mokutil")
    made.put("/etc/shadow", "root:$6$salt$hash:19000:::::\n")
    return made


def test_without_secure_boot_and_key(made: t.Any) -> None:
    assert made.ids(Signing) == []
    assert mok_state(made.part(Signing).host.root, Spec(), made.now) == {"enrolled": None, "pending": False}


def test_a_key_is_written_where_dkms_finds_it(made: t.Any) -> None:
    assert made.ids(Signing, module_signing=GIVEN) == [WRITE]
    made.do(Signing, module_signing=GIVEN)
    assert made.read(KEY) == PRIVATE + "\n"
    assert (made.folder / CERTIFICATE[1:]).read_bytes() == DER
    assert f"mok_certificate={CERTIFICATE}" in made.read(FRAMEWORK)
    assert [(made.folder / path[1:]).stat().st_mode & 0o777 for path in (KEY, CERTIFICATE, FRAMEWORK)] == [
        0o600, 0o600, 0o644]
    assert made.ids(Signing, module_signing=GIVEN) == []
    assert "c2VjcmV0" not in Path(made.journal.path).read_text(encoding="utf-8")


def test_what_is_built_already_is_signed_again(made: t.Any) -> None:
    made.works()
    assert made.ids(Signing, module_signing=GIVEN) == [WRITE, RESIGN]
    part = made.part(Signing, module_signing=GIVEN)
    part.execute(part.plan(made.now, made.desired)[0][1])
    assert made.ids(Signing, module_signing=GIVEN) == [RESIGN]  # killed in between
    made.do(Signing, module_signing=GIVEN)
    assert made.ids(Signing, module_signing=GIVEN) == []


@pytest.mark.parametrize("asked", [False, True])
def test_a_fresh_host_asks_before_it_loads(secure: t.Any, asked: bool) -> None:
    if asked:
        secure.put(VARIABLES.format("MokNew"), b"\7\0\0\0" + DER)
    steps = secure.part(Signing, module_signing=GIVEN).plan(secure.now, secure.desired)
    assert [f"{phase}/{step.action}" for phase, step in steps][1:] == [
        *([] if asked else ["load/request enrolment of key"]), "load/enrol key at the next boot"]
    assert "module_signing.password" in steps[-1][1].data["blocked"]
    assert mok_state(secure.part(Signing).host.root, Spec(module_signing=GIVEN), secure.now) == {
        "enrolled": False, "pending": asked}


def test_a_driver_that_runs_stays_until_the_next_one_can_be_loaded(secure: t.Any) -> None:
    secure.works()
    secure.desired = replace(secure.desired, version="610.57.04", delivered=True, reload="why")
    secure.put(OWN, DER)
    assert secure.ids(Signing) == [
        f"prepare/{act}: {OWN}" for act in ("request enrolment of key", "enrol key at the next boot")]
    secure.put(VARIABLES.format("MokListRT"), b"\6\0\0\0distributor" + DER)
    assert secure.ids(Signing) == []


def test_what_is_loaded_is_trusted(secure: t.Any) -> None:
    secure.works()
    assert secure.ids(Signing) == []
    assert secure.asked == []


def test_modules_that_come_signed(secure: t.Any) -> None:
    secure.desired = replace(secure.desired, dkms=False)
    assert secure.ids(Signing, module_signing=GIVEN) == []


@pytest.mark.parametrize(("given", "command"), [
    ({"password": "typed-once"}, "--hash-file"), ({}, "--root-pw"),
])
def test_the_password_is_no_argument(secure: t.Any, given: dict[str, str], command: str) -> None:
    secure.put(OWN, DER)
    secure.answers["openssl passwd"] = (0, "$6$salt$hash\n")
    secure.do(Signing, module_signing=given)
    assert secure.asked[-1][:4] == ("mokutil", "--import", OWN, command)
    assert not any("typed-once" in word for argv in secure.asked for word in argv)
    assert ("typed-once\n" in secure.inputs) is bool(given)


@pytest.mark.parametrize(("gone", "words"), [
    ("usr/bin/mokutil", "mokutil.* is not installed"), ("etc/shadow", "root has none"),
])
def test_what_enrolment_needs(secure: t.Any, gone: str, words: str) -> None:
    (secure.folder / gone).unlink()
    with pytest.raises(HostError, match=words):
        secure.ids(Signing)


def test_no_key_to_enrol(secure: t.Any) -> None:
    secure.works()
    secure.desired = replace(secure.desired, version="610.57.04", delivered=True, reload="why")
    with pytest.raises(HostError, match="DKMS has no key yet"):
        secure.ids(Signing)


@pytest.mark.parametrize(("given", "path"), [
    ({"key": PRIVATE}, "module_signing"), ({"certificate": GIVEN["certificate"]}, "module_signing"),
    ({**GIVEN, "key": "-----BEGIN ENCRYPTED PRIVATE KEY-----"}, "module_signing.key"),
    ({**GIVEN, "certificate": "nothing"}, "module_signing.certificate"),
    ({**GIVEN, "certificate": "-----BEGIN CERTIFICATE-----\n%%\n-----END CERTIFICATE-----"},
     "module_signing.certificate"),
])
def test_bad_keys(given: dict[str, str], path: str) -> None:
    with pytest.raises(InputError) as caught:
        certificate(Spec(module_signing=given))
    assert caught.value.details["path"] == path
    assert "c2VjcmV0" not in str(caught.value)

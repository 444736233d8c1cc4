# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernels are held by a file of this collection, or by words in dnf.conf, and released exactly."""

from __future__ import annotations

import typing as t
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import kernel_hold
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import PackageDelivery
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.dnf_excludes import HELD
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.kernel_hold import (
    APT_FILE,
    KIND,
    ZYPPER_FILE,
    KernelHold,
    finding_headers,
    is_held,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import source_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import PackageState
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import SETTINGS

HOSTS = {
    "debian": (APT_FILE, {"os_id": "ubuntu", "kernel": "6.8.0-50-generic"}),
    "redhat": (SETTINGS, {"os_id": "rocky", "kernel": "5.14.0-570.el9.x86_64"}),
    "suse": (ZYPPER_FILE, {"os_id": "sles", "kernel": "6.4.0-150600.23.7-default"}),
}
# With a word of the administrator.
DNF = "[main]\ngpgcheck=1\nexcludepkgs=mine kernel-core\n"


@pytest.fixture(params=sorted(HOSTS))
def host(made: t.Any, request: pytest.FixtureRequest) -> t.Any:
    """A host of each family. path: the file that holds its kernels."""
    made.path, values = HOSTS[request.param]
    made.now = replace(made.now, family=request.param, **values)
    if request.param == "redhat":
        made.put(SETTINGS, DNF)
    return made


def held(host: t.Any) -> bool:
    return is_held(Root(str(host.folder)), host.now)


def content(host: t.Any) -> str | None:
    place = host.folder / host.path[1:]
    return place.read_text() if place.exists() else None


def test_held_first_and_once(host: t.Any) -> None:
    assert not held(host)
    assert host.ids(KernelHold) == []
    assert host.ids(KernelHold, hold_kernel=True) == [f"prepare/hold kernels: {host.path}"]
    part = host.do(KernelHold, hold_kernel=True)
    assert held(host)
    assert host.ids(KernelHold, hold_kernel=True) == part.disagreements(host.now, host.desired) == []


@pytest.mark.parametrize("way", ["option", "removal"])
def test_released_exactly(host: t.Any, way: str) -> None:
    before = content(host)
    host.do(KernelHold, hold_kernel=True)
    if way == "option":
        assert host.ids(KernelHold) == [f"prepare/release kernels: {host.path}"]
        part = host.do(KernelHold)
    else:
        part = host.part(KernelHold, hold_kernel=True)
        (phase, step), = part.absent(host.now)
        assert phase == "configure" and step.data["files"] == [host.path]
        assert part.execute(step)
    assert content(host) == before and not held(host)
    assert host.journal.entries == {} and part.absent(host.now) == [] and host.ids(KernelHold) == []


def test_what_somebody_removed_comes_back(host: t.Any) -> None:
    host.do(KernelHold, hold_kernel=True)
    host.put(host.path, "[main]\nexcludepkgs=mine,kernel,later\n" if host.path == SETTINGS else "# mine\n")
    part = host.part(KernelHold, hold_kernel=True)
    assert part.disagreements(host.now, host.desired) == [
        f"upgrades can install another kernel, because {host.path} does not hold it"]
    host.do(KernelHold, hold_kernel=True)
    assert held(host)
    if host.path == SETTINGS:
        host.do(KernelHold)
        assert content(host) == "[main]\nexcludepkgs=mine,later\n"


@pytest.mark.parametrize("wish", [True, False])
def test_a_run_killed_before_the_change(host: t.Any, wish: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal has the record, and the file is unchanged."""
    before = content(host)
    with monkeypatch.context() as patch:
        patch.setattr(kernel_hold, "write_atomic", lambda *_words: None)
        host.do(KernelHold, hold_kernel=True)
    if before is None:
        (host.folder / host.path[1:]).unlink()
    host.do(KernelHold, hold_kernel=wish)
    assert held(host) == wish and (wish or content(host) == before)
    host.do(KernelHold)
    assert content(host) == before and host.journal.entries == {}


@pytest.mark.parametrize("host", ["redhat"], indirect=True)
def test_what_an_administrator_holds_stays(host: t.Any) -> None:
    host.put(SETTINGS, f"[main]\nexcludepkgs={','.join(HELD)}\n")
    assert host.ids(KernelHold, hold_kernel=True) == []
    assert host.ids(KernelHold) == [] and host.part(KernelHold).absent(host.now) == []


@pytest.mark.parametrize("host", ["redhat"], indirect=True)
def test_only_words_of_this_collection_are_released(host: t.Any) -> None:
    host.do(KernelHold, hold_kernel=True)
    assert host.journal.get(KIND, SETTINGS)["after"]["kept"] == ["kernel-core"]
    host.put(SETTINGS, host.read(SETTINGS).replace("mine", "mine,later"))
    host.do(KernelHold)
    assert host.read(SETTINGS) == "[main]\ngpgcheck=1\nexcludepkgs=mine,later,kernel-core\n"


def test_the_installation_finds_headers(host: t.Any) -> None:
    host.do(KernelHold, hold_kernel=True)
    run = finding_headers(host.run, Root(str(host.folder)))
    for program in ("dnf", "dnf4", "rpm"):
        run([program, "install", "kernel-devel-5.14.0"], timeout=5)
    options = [len(argv) - 3 for argv in host.asked]
    assert options == ([2, 2, 0] if host.path == SETTINGS else [0, 0, 0])
    assert host.asked[0][0] == "dnf" and host.asked[0][-2:] == ("install", "kernel-devel-5.14.0")


def test_apt_prefers_what_is_installed(made: t.Any) -> None:
    made.do(KernelHold, hold_kernel=True)
    assert "Pin: release a=now\nPin-Priority: 1000\n" in made.read(APT_FILE)


def test_zypper_refuses_what_is_newer_than_the_kernels_in_boot(made: t.Any) -> None:
    made.now = replace(made.now, family="suse", os_id="sles", kernel="6.4.0-150600.23.7-default")
    for name in ("6.4.0-150600.23.17-default", "6.4.0-150600.8.5-azure", "6.4.0-150600.23.7-default"):
        made.put(f"/boot/vmlinuz-{name}")
    made.do(KernelHold, hold_kernel=True)
    lines = made.read(ZYPPER_FILE).splitlines()
    assert {"conflicts:kernel-default > 6.4.0-150600.23.17.99999", "conflicts:kernel-syms > 6.4.0-150600.23.17.99999",
            "conflicts:kernel-default-devel > 6.4.0-150600.23.17.99999",
            "conflicts:kernel-azure > 6.4.0-150600.8.5.99999",
            "conflicts:kernel-devel-azure > 6.4.0-150600.8.5.99999"} < set(lines)
    assert len(lines) == len(set(lines)) == 21
    # Somebody installs a newer kernel by other means: it is kept, too.
    made.put("/boot/vmlinuz-6.4.0-150600.23.22-default")
    assert made.ids(KernelHold, hold_kernel=True) == [f"prepare/hold kernels: {ZYPPER_FILE}"]


@pytest.mark.parametrize(("family", "os_id", "path", "words"), [
    ("debian", "debian", "/run/ostree-booted", "rpm-ostree updates the system as a whole"),
    ("suse", "opensuse-microos", "/usr/sbin/transactional-update", "transactional-update updates the system"),
    ("redhat", "azurelinux", "", "it is not supported for azurelinux yet"),
    ("", "flatcar", "", "it is not supported for flatcar yet"),
    ("suse", "sles", "", r"the package of 6\.4\.0 is not known"),
])
def test_refused_by_name(made: t.Any, family: str, os_id: str, path: str, words: str) -> None:
    made.now = replace(made.now, family=family, os_id=os_id, kernel="6.4.0")
    if path:
        made.put(path)
    with pytest.raises(InputError, match=words) as caught:
        made.ids(KernelHold, hold_kernel=True)
    assert caught.value.details["path"] == "hold_kernel"
    assert made.ids(KernelHold) == []


@pytest.mark.parametrize("hold", [True, False])
def test_no_metapackage_brings_modules_of_a_kernel_that_does_not_come(made: t.Any, hold: bool) -> None:
    host: t.Any = Host(Spec(hold_kernel=hold), made.run, Root(str(made.folder)), made.journal)
    nothing: t.Any = None
    delivery = PackageDelivery(host, nothing, source_of("precompiled", "ubuntu", "24.04", "x86_64"))
    names = [f"linux-modules-nvidia-595-server-open-{kernel}" for kernel in ("6.8.0-50-generic", "generic")]
    probe: t.Any = SimpleNamespace(candidates=dict.fromkeys(names, ["1"]))
    found = delivery._modules(probe, "595.91.07", "open", ["6.8.0-50-generic"], PackageState({
        "linux-image-generic": "1"}))
    assert list(found) == (names[:1] if hold else names)


def test_a_missing_dnf_conf_is_named(made: t.Any) -> None:
    made.now = replace(made.now, family="redhat", os_id="rocky")
    with pytest.raises(HostError, match=r"/etc/dnf/dnf\.conf is missing"):
        made.ids(KernelHold, hold_kernel=True)

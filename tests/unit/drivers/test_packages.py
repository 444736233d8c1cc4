# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of a plan are those that the driver module requests: one fact, in one place."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import PackageDelivery
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import source_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import SERVICES, DriverState, Service
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import PackageState
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import INSTALL
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import run
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import packages
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import facts

NEXT = {"6.8.0-45-generic": "6.8.0-90-generic", "6.1.0-28-amd64": "6.1.0-40-amd64",
        "5.14.0-570.12.1.el9_6.x86_64": "5.14.0-611.el9_7.x86_64",
        "6.4.0-150700.51-default": "6.4.0-150700.53-default"}


# -- companions (install scripts of the vendor's driver containers, August 2026)

@pytest.mark.parametrize(("version", "arch", "system", "names"), [
    ("570.172.08", "x86_64", "ubuntu 24.04",
     "nvidia-fabricmanager-570 libnvidia-nscq-570 nvlsm libnvsdm-570 nvidia-imex-570"),
    ("570.172.08", "x86_64", "rhel 9.6", "nvidia-fabric-manager libnvidia-nscq-570 nvlsm libnvsdm-570 nvidia-imex-570"),
    ("580.82.07", "x86_64", "debian 12", "nvidia-fabricmanager libnvidia-nscq nvlsm libnvsdm nvidia-imex"),
    ("595.91.07", "aarch64", "rhel 9.6", "nvidia-fabricmanager libnvidia-nscq nvlsm nvidia-imex"),
    ("595.91.07", "aarch64", "ubuntu 24.04", "nvidia-fabricmanager libnvidia-nscq nvlsm nvidia-imex"),
    ("595.91.07", "x86_64", "sles 15.6", "nvidia-fabricmanager libnvidia-nscq nvlsm libnvsdm nvidia-imex"),
    ("550.163.01", "x86_64", "ubuntu 22.04", "nvidia-fabricmanager-550 libnvidia-nscq-550 nvidia-imex-550"),
    ("550.163.01", "x86_64", "rhel 8.10", "nvidia-fabric-manager libnvidia-nscq-550 nvlsm"),
    ("535.309.01", "x86_64", "debian 12", "nvidia-fabricmanager-535 libnvidia-nscq-535"),
])
def test_companions(version: str, arch: str, system: str, names: str) -> None:
    os_id, os_version = system.split()
    kinds = ("fabric_manager", "nscq", "nvlsm", "nvsdm", "imex")
    found = packages.companions((os_id, os_version), arch, "cuda_repository", version, kinds)
    assert " ".join(found) == names
    assert found == {name: None if name == "nvlsm" else version for name in found}, "to the last digit, but for nvlsm"


# -- the plan, and what the module asks a repository for

class Everything:
    """A package manager, and a view of a repository with only these packages."""

    def __init__(self, names: t.Iterable[str], version: str, leaders: t.Iterable[str]) -> None:
        self.version = version
        self.candidates = {name: [f"{version}-1"] for name in (*names, *leaders)}
        self.key = b""

    def __enter__(self) -> Everything:
        return self

    def __exit__(self, *exc: t.Any) -> None:
        pass

    def probe(self, _repository: t.Any) -> Everything:
        return self

    def __getattr__(self, name: str) -> t.Any:
        answers = {"read": PackageState({}), "trusts": True, "is_configured": True, "simulate": [], "files": {},
                   "lost_files": {}}
        return lambda *_arguments, **_keywords: answers[name]

    def resolve(self, name: str, _version: str | None) -> str:
        assert name in self.candidates, f"the plan has no {name}"
        return f"{self.version}-1"


LEADERS = {"ubuntu": ["libnvidia-compute", "libnvidia-compute-{branch}", "libnvidia-compute-{branch}-server"],
           "debian": ["libcuda1"], "rocky": [], "rhel": [], "amzn": [], "azurelinux": ["nvidia-driver-cuda"],
           "sles": []}
UBUNTU, ROCKY = {"os": "ubuntu24.04"}, {"os": "rocky9.6", "kernel": "5.14.0-570.12.1.el9_6.x86_64"}
SLES = {"os": "sles15.7", "kernel": "6.4.0-150700.51-default"}
CASES: dict[str, tuple[dict[str, t.Any], dict[str, t.Any]]] = {
    "Ubuntu, 595": (UBUNTU, {}),
    "Ubuntu, 580, proprietary": (UBUNTU, {"driver_version": "580.173.02", "driver_kernel_module_type": "proprietary"}),
    "Ubuntu, GDS and GDRCopy": (UBUNTU, {"driver_gds": True, "driver_gdrcopy": True}),
    "Ubuntu, archive": (UBUNTU, {"driver_source": "distribution", "driver_version": "580.173.02"}),
    "Ubuntu, signed": (UBUNTU, {"driver_source": "precompiled", "driver_version": "580.173.02"}),
    "Ubuntu, signed, proprietary": (UBUNTU, {"driver_source": "precompiled", "driver_version": "580.173.02",
                                             "driver_kernel_module_type": "proprietary"}),
    "Ubuntu, A100 board": ({**UBUNTU, "gpus": ["20b2"] * 8}, {}),
    "Ubuntu, A100 board, fabric left to others": ({**UBUNTU, "gpus": ["20b2"] * 8}, {"driver_fabric": "none"}),
    "Ubuntu, A100 board, archive": ({**UBUNTU, "gpus": ["20b2"] * 8},
                                    {"driver_source": "distribution", "driver_version": "580.173.02"}),
    "Ubuntu, B200 board, 570": ({**UBUNTU, "gpus": ["2901"] * 8}, {"driver_version": "570.211.01"}),
    "Ubuntu, GB200 tray": ({**UBUNTU, "gpus": ["2941"] * 4, "arch": "aarch64"}, {}),
    "Debian": ({"os": "debian12", "kernel": "6.1.0-28-amd64"}, {}),
    "Debian, archive": ({"os": "debian12", "kernel": "6.1.0-28-amd64"},
                        {"driver_source": "distribution", "driver_version": "535.261.03"}),
    "Debian, board": ({"os": "debian12", "kernel": "6.1.0-28-amd64", "gpus": ["2330"] * 8}, {}),
    "Rocky": (ROCKY, {}),
    "Rocky, 580, proprietary": (ROCKY, {"driver_version": "580.173.02", "driver_kernel_module_type": "proprietary"}),
    "Rocky, B200 board": ({**ROCKY, "gpus": ["2901"] * 8}, {}),
    "Rocky, GDS and GDRCopy": (ROCKY, {"driver_gds": True, "driver_gdrcopy": True}),
    "RHEL 10, kernel alone": ({"os": "rhel10.1", "kernel": "6.12.0-124.el10.x86_64"}, {}),
    "Amazon": ({"os": "amzn2023", "kernel": "6.1.115-126.197.amzn2023.x86_64"}, {}),
    "SUSE": (SLES, {}),
    "SUSE, 580, proprietary": (SLES, {"driver_version": "580.173.02", "driver_kernel_module_type": "proprietary"}),
    "SUSE, board": ({**SLES, "gpus": ["2330"] * 8}, {}),
    "Azure": ({"os": "azurelinux3.0", "kernel": "6.6.57.1-2.azl3"}, {}),
}


def planned(known: dict[str, t.Any], mine: dict[str, t.Any]) -> dict[str, t.Any]:
    chosen = releases.release("26.7.0")
    plan = resolve(formats.read(None, chosen), chosen, {"a": known}, {"a": mine})["hosts"]["a"]["driver"]
    return t.cast("dict[str, t.Any]", plan)


def asked(known: dict[str, t.Any], plan: dict[str, t.Any], root: pathlib.Path) -> tuple[PackageDelivery, set[str]]:
    """The packages that the module requests on this host for the plan that its role passes."""
    host, system = known["host"], known["host"]["os"]
    for kernel in filter(None, (host["kernel"]["release"], host["kernel"]["newest_installed"])):
        (root / "boot").mkdir(exist_ok=True)
        (root / "boot" / f"vmlinuz-{kernel}").touch()
    spec = Spec(version=plan["version"], branch=str(plan["branch"]), kernel_module_type=plan["kernel_module_type"],
                source=plan["source"], repository={"fingerprint": "0" * 40, "key": "key.pub"},
                fabric="auto" if plan["fabric"]["manager"] or plan["fabric"]["imex"] else "none",
                gds=plan["gds"], gdrcopy=plan["gdrcopy"], next_kernel=plan["next_kernel"])
    now = DriverState(
        os_id=system["id"], os_version=system["version_id"], family=system["family"], arch=host["arch"],
        kernel=host["kernel"]["release"], headers=False, secure_boot=False, gpus=(), loaded=None, flavour=None,
        library=None, modules=(), built=(), registered={}, nouveau=None,
        services=dict.fromkeys(SERVICES, Service("absent", "")), fabric=known["nvlink"]["fabric"])
    source = source_of(plan["source"], now.os_id, now.os_version, now.arch)
    leaders = [name.format(branch=plan["branch"]) for name in LEADERS[now.os_id]]
    manager: t.Any = Everything(plan["packages"], plan["version"], leaders)
    with Journal("driver", readonly=True, root=str(root / "journal")) as journal:
        delivery = PackageDelivery(Host(spec, run, Root(str(root)), journal, True), manager, source)
        _version, steps = delivery.plan(now, plan["kernel_module_type"])
    return delivery, {name for step in steps if step.action == INSTALL for name in step.data["packages"]}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("upgraded", [False, True], ids=["", "another kernel boots next"])
def test_the_plan_has_what_the_module_asks_for(case: str, upgraded: bool, tmp_path: pathlib.Path) -> None:
    given, mine = CASES[case]
    known = facts(**{"gpus": ["26b9"], **given})
    kernel = known["host"]["kernel"]
    kernel["newest_installed"] = NEXT.get(kernel["release"], kernel["release"]) if upgraded else kernel["release"]
    plan = planned(known, mine)
    delivery, found = asked(known, plan, tmp_path)
    assert found == {*plan["packages"], *plan["kernel_packages"]}
    if plan["repository"]:
        assert delivery.repository is not None
        assert f"/{plan['repository']['name']}/{plan['repository']['arch']}/" in delivery.repository.url
    assert packages.can_install((known["host"]["os"]["id"], known["host"]["os"]["version_id"]), known["host"]["arch"],
                                plan["source"])


def test_a_system_that_is_planned_and_not_installed_on() -> None:
    chosen = releases.release("26.7.0")
    found = resolve(formats.read(None, chosen), chosen, {"a": facts(["26b9"], "mariner2.0", "5.15.182.1-1.cm2")}, {})
    assert found["hosts"]["a"]["driver"]["packages"] == ["nvidia-open"]
    assert any("does not install drivers from cuda_repository on" in note for note in found["notes"])

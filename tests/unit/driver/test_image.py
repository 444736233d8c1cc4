# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images: a driver is installed on a host without a GPU, where nothing is loaded or started."""

from __future__ import annotations

import shutil
import typing as t
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import image
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.device_nodes import DeviceNodes
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric_settings import SETTINGS_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import Files
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.gpudirect import GpuDirect
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.manage import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import Services, request_restart
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Service
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER, IMEX, PERSISTENCED

from tests.unit.driver.conftest import KERNEL, VERSION, Made
from tests.unit.driver.test_switching import NEW, OLD, Model, actions, kept, place

A100, V100 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB"
NEXT = "6.1.0-31-amd64"
UNITS = [PERSISTENCED, FABRIC_MANAGER]


@dataclass
class Builder(Model):
    """A host without a GPU. enabled: its enabled services. file: the version of the module that its kernel would load,
    if that is not the one that DKMS has built. A command that needs a GPU fails the test."""

    enabled: set[str] = field(default_factory=set)
    file: str = ""

    def _answer(self, argv: list[str]) -> tuple[int, str, str]:
        assert argv[0] not in ("modprobe", "rmmod", "nvidia-smi"), argv
        if argv[0] == "modinfo":
            built = self.file or self.built or ""
            return 0, {"version": built, "license": "Dual MIT/GPL" if built else ""}[argv[4]], ""
        if argv[0] == "nv-fabricmanager":
            return 0, f"Fabric Manager version is : {self.disk}", ""
        return super()._answer(argv)

    def _systemctl(self, words: list[str]) -> tuple[int, str, str]:
        assert words[0] in ("show", "enable", "disable") and words[:2] != ["enable", "--now"], words
        if words[0] == "show":
            return 0, "\n\n".join(
                f"LoadState={'loaded' if self.disk and unit in UNITS else 'not-found'}\nActiveState=inactive\n"
                f"UnitFileState={'enabled' if unit in self.enabled else 'disabled'}"
                for unit in words if unit.endswith(".service")), ""
        (self.enabled.add if words[0] == "enable" else self.enabled.discard)(words[-1])
        return 0, "", ""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder(tmp_path)
    place(made, monkeypatch)
    made.begin(None)
    shutil.rmtree(tmp_path / "sys/bus")
    made.put("run/systemd/system/x")
    made.put(SETTINGS_FILE, "LOG_LEVEL=4\n")
    return made


def driver(builder: Builder, check: bool = False, **options: t.Any) -> Driver:
    spec = Spec(**{"version": NEW, "image": True, "image_gpus": [A100], **options})
    return Driver(spec, "never", check, builder.run, Root(str(builder.folder)))


def fails(builder: Builder, **options: t.Any) -> GpuopsError:
    with pytest.raises(GpuopsError) as caught:
        driver(builder, **options).present()
    return caught.value


def test_everything_is_installed_and_nothing_loaded_or_started(builder: Builder) -> None:
    said = driver(builder, True).present()
    result = driver(builder).present()
    assert actions(said) == actions(result) == [
        "install packages", "enable service", "enable service", "build modules"]
    assert (result["pending"], result["reasons"], result["reboot_required"]) == ([], [], False)
    assert (builder.built, builder.enabled, builder.loaded, builder.active) == (NEW, set(UNITS), {}, set())
    assert result["mok"]["enrolled"] is None and not {kind for kind, _key in kept(builder)} & {"former", "restart"}
    assert driver(builder).present()["plan"] == []


def test_the_models_choose_the_driver(builder: Builder) -> None:
    error = fails(builder, image_gpus=[A100, V100])
    assert error.message == "version: Branch 595 does not support Tesla V100-SXM2-16GB at image_gpus[1]."
    driver(builder, version=OLD, image_gpus=[]).present()
    assert builder.enabled == {PERSISTENCED}


def test_a_removal_takes_all_of_it_away(builder: Builder) -> None:
    driver(builder).present()
    driver(builder).absent()
    assert (builder.disk, builder.enabled, kept(builder)) == (None, set(), {})


def test_a_failed_installation_leaves_nothing(builder: Builder) -> None:
    builder.fails = {f"dkms {NEW}"}
    assert fails(builder).message.endswith("Everything that this run installed is removed again.")
    builder.fails, builder.file = set(), OLD
    error = fails(builder)
    assert f"would not work after a boot of the image: Kernel {KERNEL} would load nvidia {OLD} instead of" in str(error)
    assert (builder.disk, kept(builder)) == (None, {})


def test_a_failure_returns_to_the_former_driver_and_rolled_back_too(builder: Builder) -> None:
    driver(builder, version=OLD).present()
    builder.fails = {f"dkms {NEW}"}
    assert fails(builder).details["rolled_back"] == OLD and (builder.disk, builder.built) == (OLD, OLD)
    builder.fails = set()
    assert driver(builder).present()["former"]["version"] == OLD
    assert driver(builder, version=None, image_gpus=[]).rolled_back()["version"] == OLD == builder.built


def test_another_module_is_an_error_although_no_step_is_due(builder: Builder) -> None:
    driver(builder).present()
    builder.file = OLD
    assert f"would load nvidia {OLD}" in fails(builder).message and builder.disk == NEW


def test_settings_that_fail_are_restored_without_a_start(builder: Builder) -> None:
    driver(builder, fabric_manager_settings={"LOG_LEVEL": 5}).present()
    assert builder.read(SETTINGS_FILE) == "LOG_LEVEL=5\n"
    builder.file = OLD
    assert fails(builder, fabric_manager_settings={"LOG_LEVEL": 6}).message.endswith(
        "The fabric manager had new settings (LOG_LEVEL=6). The former ones are in its file again.")
    assert builder.read(SETTINGS_FILE) == "LOG_LEVEL=5\n"


@pytest.mark.parametrize(("options", "said"), [
    ({"module_signing": {"key": "k", "certificate": "c"}}, "module_signing.key: an image must not contain a secret."),
    ({"licence": {"token": "eyJ"}}, "licence.token: an image must not contain a secret."),
    ({"version": None, "image_gpus": []}, "image_gpus: nothing determines the driver of the image."),
    ({"image": False}, "This host has no NVIDIA GPU on its PCI bus."),
])
def test_what_is_refused(builder: Builder, options: dict[str, t.Any], said: str) -> None:
    assert fails(builder, **options).message == said and kept(builder) == {}


def test_hosts_on_which_no_image_is_built(builder: Builder) -> None:
    shutil.rmtree(builder.folder / "run/systemd")
    assert fails(builder).message.startswith("systemd does not run here, as in a chroot")
    builder.loaded = {"nvidia": OLD}
    builder.show()
    assert fails(builder).message.endswith("is loaded, but here nvidia is.")


@pytest.mark.parametrize(("gpus", "fabric", "modules"), [
    ([A100], "nvswitch", ["optional"]), (["2342"], "none", ["required"]), ([V100.lower()], "none", ["no"]),
    (["NVIDIA L40S", " NVIDIA B200 "], "nvlink5", ["optional", "required"]), (["26B9"], "none", ["optional"]),
    (["NVIDIA GB300"], "nvlink5_rack", ["required", "required"]), (["20b0:10de:1450"], "nvswitch", ["optional"]),
    ([], "none", [])])
def test_named_gpus(builder: Builder, gpus: list[str], fabric: str, modules: list[str]) -> None:
    now = image.read_state(Spec(image=True, image_gpus=gpus), Root(str(builder.folder)), builder.run)
    assert (now.fabric, [model.open_modules for _path, model in now.gpus if model]) == (fabric, modules)


@pytest.mark.parametrize(("name", "hint"), [
    ("B200", "Similar ones are NVIDIA B200, NVIDIA GB200. Use"),
    ("NVIDIA A100-SMX4-80GB", f"Similar ones are {A100}. Use"), ("", "Use the name"), ("ffff", "")])
def test_an_unknown_model(name: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        image.named_gpus(Spec(image_gpus=[A100, name]))
    details = caught.value.details
    assert (details["path"], details["value"]) == ("image_gpus[1]", name) and A100 in details["allowed"]
    assert caught.value.hint.startswith(hint)


def test_disagreements_of_files(made: Made) -> None:
    made.works()
    made.put(f"boot/vmlinuz-{KERNEL}")
    made.put(f"boot/vmlinuz-{NEXT}")
    made.answers = {f"modinfo -k {KERNEL} -F license": (0, "NVIDIA"), f"modinfo -k {KERNEL} -F version": (0, VERSION),
                    f"modinfo -k {NEXT} -F license": (0, "Dual MIT/GPL"), f"modinfo -k {NEXT} -F version": (0, "")}

    def differ(library: str | None = VERSION, packages: str | None = VERSION, **spec: t.Any) -> list[str]:
        return image.disagreements(made.part(Services, **spec).host, replace(made.now, library=library), made.desired,
                                   packages)

    flavour = f"the module for kernel {KERNEL} is proprietary, not open"
    assert differ() == [flavour, f"Kernel {NEXT} would load no module instead of nvidia {VERSION}"]
    assert differ(next_kernel=False) == [flavour]
    assert differ(None, "580.1", next_kernel=False) == [
        "libnvidia-ml is not installed", f"the packages are 580.1, not {VERSION}", flavour]
    assert differ("580.1", None, next_kernel=False) == [f"the libraries are 580.1, not {VERSION}", flavour]


def test_services_of_an_image(made: Made) -> None:
    made.works(persistenced="inactive", fabricmanager="inactive", imex="inactive")
    made.desired = replace(made.desired, image=True, fabric="nvswitch")
    assert made.ids(Services) == []
    services = {**made.now.services, FABRIC_MANAGER: Service("inactive", "disabled")}
    made.now = replace(made.now, services=services)
    assert made.ids(Services, persistenced=False) == [
        f"configure/disable and stop service: {PERSISTENCED}", f"configure/enable service: {FABRIC_MANAGER}"]
    part = made.do(Services)
    assert ("systemctl", "enable", FABRIC_MANAGER) in made.asked
    assert part.disagreements(made.now, made.desired) == [f"{FABRIC_MANAGER} is not enabled"]
    made.now = replace(made.now, services={**services, FABRIC_MANAGER: Service("absent", "masked")})
    with pytest.raises(HostError, match="is masked"):
        made.ids(Services)


def test_a_fabric_manager_is_disabled_where_the_image_finds_no_switches(made: Made) -> None:
    made.works(persistenced="active", fabricmanager="failed")
    made.journal.keep("service", FABRIC_MANAGER, {"state": "absent", "enabled": ""})  # as in the image
    assert made.ids(Services) == [f"interrupt/disable and stop service: {FABRIC_MANAGER}"]


def test_no_restart_is_due_after_the_first_boot(made: Made) -> None:
    request_restart(made.journal, IMEX)
    made.part(Services).tidy()
    assert made.journal.of_kind("restart")
    made.part(Services, image=True).tidy()
    assert not made.journal.of_kind("restart")


def test_other_parts(made: Made) -> None:
    made.works()
    in_image = replace(made.desired, image=True)
    host: t.Any = Host(Spec(gds=True), made.run, Root(str(made.folder)), made.journal, check=True)
    assert GpuDirect(host).disagreements(made.now, made.desired) == ["nvidia_fs is not loaded"]
    assert GpuDirect(host).disagreements(made.now, in_image) == []
    assert [phase for phase, _step in Files(host).plan(made.now, made.desired)] == ["serve"]
    assert [phase for phase, _step in Files(host).plan(made.now, in_image)] == ["configure"]
    made.now, made.desired = replace(made.now, gpus=()), replace(in_image, source="runfile")
    made.do(DeviceNodes)
    assert "nvidia-modprobe -c 0\"" in made.read("etc/udev/rules.d/60-gpuops-nvidia.rules")

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(state: gathered) of nvidia_driver: the current state as options, from hosts with and without a driver."""

from __future__ import annotations

import hashlib
import typing as t
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.action.nvidia_driver import ActionModule
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import fabric, licence, manage, module_parameters
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.manage import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.modules import nvidia_driver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions import host as host_actions

from tests.unit.driver.test_switching import MODULES, NEW, OLD, Model, place

DPKG = """Package: {name}
Status: install ok installed
Maintainer: {maintainer}
Version: {version}

"""
DOCUMENTED = yaml.safe_load(nvidia_driver.RETURN)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    made = Model(tmp_path)
    place(made, monkeypatch)
    return made


def packages(model: Model, *names: str, maintainer: str = "NVIDIA <cudatools@nvidia.com>") -> None:
    model.put("var/lib/dpkg/status", "".join(
        DPKG.format(name=name, maintainer=maintainer, version=f"{NEW}-1") for name in names))


def gathered(model: Model) -> dict[str, t.Any]:
    """The result; nothing has changed, and only systemd was asked."""
    model.lines.clear()
    before = {path: path.lstat().st_mtime_ns for path in model.folder.rglob("*")}
    result = Driver(Spec(), "never", False, model.run, Root(str(model.folder))).gathered()
    assert {path: path.lstat().st_mtime_ns for path in model.folder.rglob("*")} == before
    assert [line.split()[:2] for line in model.lines] == [["systemctl", "show"]]
    assert (result["changed"], result["plan"], result["pending"], result["diff"]) == (False, [], [], [])
    assert set(result) - {"changed", "diff"} <= set(DOCUMENTED)
    assert set(result["gathered"]) <= set(DOCUMENTED["gathered"]["contains"])
    return t.cast("dict[str, t.Any]", result)


def test_a_converged_host(model: Model) -> None:
    model.begin(NEW)
    packages(model, "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libnvidia-ml1")
    result = gathered(model)
    assert result["gathered"] == {
        "state": "present", "version": NEW, "kernel_module_type": "open", "source": "cuda_repository",
        "installation": "compute-only", "persistenced": True, "fabric": "auto", "imex_nodes": [],
        "fabric_manager_settings": {}, "peermem": False,
        "gds": False, "gdrcopy": False, "hold_kernel": False, "module_parameters": {}}
    assert result["packages"] == dict.fromkeys(("libnvidia-ml1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"),
                                               f"{NEW}-1")
    assert (result["version"], result["source"], result["reboot_required"]) == (NEW, "cuda_repository", False)
    assert result["driver"]["before"] == result["driver"]["after"] and result["driver"]["after"]["loaded"] == NEW
    assert result["services"]["nvidia-persistenced.service"] == {"state": "active", "enabled": "enabled"}
    assert result["reasons"] == []


def test_the_result_as_options_changes_nothing(model: Model) -> None:
    model.begin(NEW)
    wanted = gathered(model)["gathered"]
    assert wanted.pop("state") == "present"
    result = Driver(Spec(**wanted), "reboot", False, model.run, Root(str(model.folder))).present()
    assert (result["plan"], result["pending"], result["reasons"]) == ([], [], [])


def test_a_host_without_a_driver(model: Model) -> None:
    model.begin(None)
    result = gathered(model)
    assert result["gathered"] == {"state": "absent"}
    assert (result["version"], result["packages"], result["source"], result["reasons"]) == (None, {}, None, [])


def test_a_host_without_a_gpu_and_without_systemd(tmp_path: Path, model: Model,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_answer", lambda _argv: (127, "", "systemctl: not found"))
    assert gathered(model)["gathered"] == {"state": "absent"}


def test_a_switch_that_waits_for_a_reboot(model: Model) -> None:
    model.begin(NEW)
    model.loaded = dict.fromkeys(MODULES, OLD)
    model.show()
    result = gathered(model)
    assert (result["gathered"]["version"], result["version"], result["reboot_required"]) == (NEW, NEW, True)
    assert "mismatch" in result["reasons"][0]


@pytest.mark.parametrize(("name", "maintainer", "source"), [
    ("nvidia-kernel-source-595-server", "Ubuntu <x@lists.ubuntu.com>", "distribution"),
    ("linux-modules-nvidia-595-server-open-generic", "Canonical <x@lists.ubuntu.com>", "precompiled")])
def test_the_sources_of_ubuntu_differ_in_their_modules(model: Model, name: str, maintainer: str, source: str) -> None:
    model.begin(NEW)
    model.put("etc/os-release", 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n')
    packages(model, name, "libnvidia-compute-595-server", maintainer=maintainer)
    assert gathered(model)["gathered"]["source"] == source


def test_a_driver_container_is_no_source_of_the_module(model: Model) -> None:
    model.begin(NEW)
    model.put("run/nvidia/driver/usr/bin/nvidia-smi")
    result = gathered(model)
    assert (result["source"], result["gathered"]["source"]) == ("container", "auto")


def test_everything_that_options_can_set(model: Model) -> None:
    model.begin(NEW)
    model.active |= {"nvidia-gridd.service", "nvidia-imex.service"}
    model.loaded.update(nvidia_peermem=NEW, nvidia_fs=NEW, gdrdrv=NEW)
    model.show()
    model.put(fabric.NODES, "# nodes\n10.0.0.1\nfd00::2\n")
    model.put(licence.SETTINGS_FILE, "# ours\nServerAddress = lic.example.com\nFeatureType=1\n")
    model.put(licence.TOKEN_FILE, "secret")
    text = module_parameters.options_text({("nvidia", "NVreg_A"): "0", ("nvidia_drm", "modeset"): "1"})
    model.put(module_parameters.OPTIONS_FILE, text)
    result = gathered(model)
    found = result["gathered"]
    assert (found["imex_nodes"], found["peermem"], found["gds"], found["gdrcopy"]) == (
        ["10.0.0.1", "fd00::2"], True, True, True)
    assert found["module_parameters"] == {"nvidia": {"NVreg_A": "0"}, "nvidia_drm": {"modeset": "1"}}
    assert found["licence"] == {"feature_type": 1, "settings": {"ServerAddress": "lic.example.com"}}
    assert "secret" not in str(result)


def test_the_mirror_of_the_packages_is_an_option(model: Model) -> None:
    model.begin(NEW)
    text = "Types: deb\nURIs: https://mirror.example.com/cuda/\nSuites: /\nSigned-By: /usr/share/keyrings/k.gpg\n"
    model.put("etc/apt/sources.list.d/gpuops-cuda.sources", text)
    url = {"url": "https://mirror.example.com/cuda/"}
    assert gathered(model)["gathered"]["repository"] == url
    model.put("usr/share/keyrings/k.gpg", "no key")
    assert gathered(model)["gathered"]["repository"] == url
    body = bytes([4, 0, 0, 0, 0, 1])
    model.put("usr/share/keyrings/k.gpg", bytes([0x98, len(body)]) + body)
    fingerprint = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    assert gathered(model)["gathered"]["repository"] == {
        **url, "key": "/usr/share/keyrings/k.gpg", "fingerprint": fingerprint}
    (model.folder / "etc/apt/sources.list.d/gpuops-cuda.sources").unlink()
    model.put("etc/yum.repos.d/gpuops-driver.repo", "baseurl=file:///srv/x\ngpgkey=file:///usr/share/keyrings/k.gpg\n")
    assert gathered(model)["gathered"]["repository"] == {
        "url": "file:///srv/x", "key": "/usr/share/keyrings/k.gpg", "fingerprint": fingerprint}


def test_a_missing_fabric_manager_is_fabric_none(model: Model) -> None:
    model.begin(NEW)
    for key, value in {"vendor": "0x10de", "device": "0x1af1", "class": "0x068000"}.items():
        model.put(f"sys/bus/pci/devices/0000:08:00.0/{key}", value)
    assert gathered(model)["gathered"]["fabric"] == "none"
    model.active.add("nvidia-fabricmanager.service")
    assert gathered(model)["gathered"]["fabric"] == "auto"


def run_action(monkeypatch: pytest.MonkeyPatch, **arguments: t.Any) -> dict[str, t.Any]:
    action = object.__new__(ActionModule)
    action._task = SimpleNamespace(args=arguments, check_mode=False)
    monkeypatch.setattr(host_actions.HostAction, "run_module", lambda *_words: {"changed": False})
    return t.cast("dict[str, t.Any]", action.run_module({}))


def test_options_that_describe_a_driver_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_action(monkeypatch, state="gathered", version=NEW, branch="595", gds=None, disruption="idle")
    assert result["failed"] and result["error"]["path"] == "branch"
    assert "branch, version cannot be set with state gathered." in result["msg"]
    assert result["error"]["allowed"] == ["disruption", "lock_timeout", "proxy"]


@pytest.mark.parametrize("arguments", [{"state": "gathered", "disruption": "idle", "version": None},
                                       {"state": "present", "version": NEW}, {"version": NEW}])
def test_other_tasks_reach_the_host(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, t.Any]) -> None:
    assert run_action(monkeypatch, **arguments) == {"changed": False}


def test_manage_reads_only(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is opened without a lock, so it is not written."""
    model.begin(NEW)
    opened = []
    real = manage.Journal
    monkeypatch.setattr(manage, "Journal", lambda *words, **keys: opened.append(keys) or real(*words, **keys))
    gathered(model)
    assert opened == [{"readonly": True}]

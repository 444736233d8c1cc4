# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MIG configurations as users write them, and the path that an error names."""

from __future__ import annotations

import typing as t
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.action import mig_config
from ansible_collections.gpuops.nvidia.plugins.action.mig_config import _placed
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import config_file, profile_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import mig_document

PLAIN = """version: v1
mig-configs:
  all-1g.10gb:
    - devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7
  mixed-mig:
    - devices: all
      mig-enabled: true
      mig-devices:
        "3g.40gb": 1
        "1g.10gb": 4
"""
TIME_SLICING = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "time-slicing-config"},
                "data": {"any": "version: v1\nflags:\n  migStrategy: none\n"}}


def config_map(text: str = PLAIN) -> dict[str, t.Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mig-config", "namespace": "gpu-operator"},
            "data": {"config.yaml": text}}


def of_file(folder: Path, *documents: t.Any) -> mig_document.MigDocument:
    path = folder / "mig.yaml"
    path.write_text("---\n".join(one if isinstance(one, str) else yaml.safe_dump(one) for one in documents))
    return mig_document.from_file({"playbook_dir": str(folder)}, "mig.yaml")


def test_all_forms_are_the_same_document(tmp_path: Path) -> None:
    plain = yaml.safe_load(PLAIN)
    assert of_file(tmp_path, PLAIN).data == plain
    assert of_file(tmp_path, config_map()).data == plain
    assert of_file(tmp_path, TIME_SLICING, config_map(), {"kind": "Namespace"}).data == plain
    assert mig_document.from_data(config_map()).data == mig_document.from_data(plain).data == plain
    assert mig_document.from_options({}, None, {}) is None


def test_several_documents_are_one(tmp_path: Path) -> None:
    other = PLAIN.replace("all-1g.10gb:", "one:").replace("mixed-mig:", "two:")
    found = of_file(tmp_path, PLAIN, config_map(other))
    assert list(config_file.parse(found.data)) == ["all-1g.10gb", "mixed-mig", "one", "two"]
    path = tmp_path / "mig.yaml"
    assert found.place("mig-configs.one[0].devices") == (
        f"{path}, document 2, data['config.yaml']: mig-configs.one[0].devices")
    assert found.place("mig-configs.all-1g.10gb[0].mig-devices") == (
        f"{path}, document 1: mig-configs.all-1g.10gb[0].mig-devices")
    assert found.place("selected") == "selected"
    with pytest.raises(InputError, match="'mixed-mig' is also in .*, document 1"):
        of_file(tmp_path, PLAIN, config_map(PLAIN.replace("all-1g.10gb:", "one:")))


@pytest.mark.parametrize("documents, words", [
    ([TIME_SLICING], "has no text 'config.yaml'.* It has any"),
    ([TIME_SLICING, {"kind": "Namespace"}], "is not a MIG configuration"),
    (["- 1\n"], "is not a MIG configuration"),
    ([config_map("version: v1\nmig-configs: {]")], r"data\['config.yaml'\], line 2: not YAML"),
    ([config_map("- 1")], r"data\['config.yaml'\]: one document in mig-parted's format"),
])
def test_refusals(tmp_path: Path, documents: list[t.Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        of_file(tmp_path, *documents)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match="does not exist or cannot be read"):
        mig_document.from_file({}, "nowhere.yaml")


def test_what_the_host_says_gets_its_place() -> None:
    wrong = PLAIN.replace("devices: all", "devices: none", 1)
    document = mig_document.from_data(config_map(wrong))
    target = profile_names.Target("0000:07:00.0", 0, "20b2", "", "A100", [])
    with pytest.raises(InputError) as caught:
        config_file.resolve(config_file.parse(document.data)["all-1g.10gb"], [target], {target.pci})
    result = _placed({"failed": True, **caught.value.as_result()}, document)
    place = "config, data['config.yaml']: mig-configs.all-1g.10gb[0].devices"
    assert (result["error"]["path"], result["msg"].startswith(f"{place}: this host has no GPU 'none'")) == (place, True)
    assert _placed({"changed": False}, document) == {"changed": False}


def test_check_mode_knows_that_the_driver_role_would_reload_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[t.Any] = []
    monkeypatch.setattr(mig_config.inventory_vars, "driver_steps", lambda _variables, action: [action])
    monkeypatch.setattr(mig_config.HostAction, "run_module", lambda _self, _variables, args: asked.append(args) or {})
    for check, given in ((True, {}), (False, {}), (True, {"after_reload": False})):
        action = object.__new__(mig_config.ActionModule)
        action._task = SimpleNamespace(check_mode=check, args={"selected": "all-1g.10gb", **given})
        action.run_module({})
    assert [one.get("after_reload") for one in asked] == [True, None, False]
    assert [one.get("files_before") for one in asked] == [["install file"], None, ["install file"]]

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The format of mig-parted, and the device tables."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards, config_file, profile_names
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Profile, compute_name, profile_name


def target(index: int, device_id: str = "20b2", subsystem: str = "10de:1463") -> profile_names.Target:
    profiles = [] if device_id == "26b9" else boards.profiles_of(device_id)
    return profile_names.Target(f"0000:{index:02x}:00.0", index, device_id, subsystem, f"model {device_id}", profiles)


def document(*entries: dict[str, t.Any]) -> dict[str, t.Any]:
    return {"version": "v1", "mig-configs": {"one": list(entries)}}


def entry(**changes: t.Any) -> dict[str, t.Any]:
    found = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}
    found.update({key.replace("_", "-"): value for key, value in changes.items()})
    return {key: value for key, value in found.items() if value is not ...}


def resolve(config: dict[str, t.Any], *gpus: profile_names.Target) -> dict[str, profile_names.DesiredDevices]:
    there = gpus or (target(0),)
    entries = config_file.select(config_file.parse(config), None)[1]
    return config_file.resolve(entries, there, {gpu.pci for gpu in there})


@pytest.mark.parametrize("config, words", [
    ([], "config: it must be a mapping"),
    ({"version": "v2", "mig-configs": {}}, "config.version: 'v2'"),
    ({"version": "v1", "mig-config": {}}, "unknown key 'mig-config' (nearest: mig-configs)"),
    ({"version": "v1", "mig-configs": {}}, "config.mig-configs: it must be"),
    ({"version": "v1", "mig-configs": {"one": {}}}, "mig-configs.one: it must be a list"),
    (document({"devices": "all", "mig-enable": True}), "mig-configs.one[0]: unknown key 'mig-enable'"),
    (document(entry(mig_enabled="yes")), "mig-configs.one[0].mig-enabled: 'yes' is not true or false"),
    (document(entry(devices="none")), "mig-configs.one[0].devices: this host has no GPU 'none'"),
    (document(entry(devices=[1, "all"])), "mig-configs.one[0].devices: [1, 'all'] is neither"),
    (document(entry(devices=[420.0])), "in quotes: YAML can parse it as a number"),
    (document(entry(devices=...)), "mig-configs.one[0].devices: None is neither"),
    (document(entry(devices=[])), "mig-configs.one[0].devices: [] is neither"),
    (document(entry(devices=[True])), "mig-configs.one[0].devices: [True] is neither"),
    (document(entry(device_filter="20B2")), "mig-configs.one[0].device-filter: '20B2' is not the PCI id of a GPU"),
    (document(entry(mig_devices={"10gb": 1})), "mig-configs.one[0].mig-devices: '10gb' is not the name"),
    (document(entry(mig_devices={f"{'9' * 5000}g.10gb": 1})), "g.10gb' is not the name"),
    (document(entry(mig_devices={"4c.3g.40gb": 1})), "'4c.3g.40gb' is not the name"),
    (document(entry(mig_devices={"1g.10gb+me,me": 1})), "'1g.10gb+me,me' is not the name"),
    (document(entry(mig_devices={"1g.10gb": 0})), "mig-configs.one[0].mig-devices: all counts are 0"),
    (document(entry(mig_devices=...)), "mig-configs.one[0].mig-devices: it is required if mig-enabled is true"),
    (document(entry(mig_devices={"1g.10gb": -1})),
     "mig-configs.one[0].mig-devices.1g.10gb: -1 is not a number of devices"),
    (document(entry(mig_devices=["1g.10gb"])), "mig-configs.one[0].mig-devices: it must be a mapping"),
    (document(entry(mig_enabled=False)), "mig-configs.one[0].mig-devices: MIG devices need MIG mode"),
    (document(entry(devices=[1])), "mig-configs.one[0].devices: this host has no GPU '1'"),
    (document(entry(mig_devices={"1g.5gb": 7})), "has no profile 1g.5gb (nearest: 1g.20gb). It has 1g.10gb, 2g.20gb"),
    (document(entry(), entry(mig_devices={"2g.20gb": 3})), "has another configuration in mig-configs.one[0]"),
])
def test_refusals(config: t.Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(config)
    assert words in str(caught.value)


def test_mig_on_a_gpu_without_it_is_refused_where_it_is_named() -> None:
    """C(all) skips them, as in mig-parted."""
    gpus = [target(0), target(1, "26b9")]
    with pytest.raises(InputError, match=r"mig-configs.one\[0\]: GPU 0000:01:00.0 \(model 26b9\) does not support MIG"):
        resolve(document(entry(devices=[0, 1])), *gpus)
    assert list(resolve(document(entry()), *gpus)) == ["0000:00:00.0"]
    with pytest.raises(InputError, match="does not support MIG"):
        resolve(document(entry()), gpus[1])
    assert not resolve(document(entry(devices=[1], mig_enabled=False, mig_devices={})), *gpus)["0000:01:00.0"].enabled


@pytest.mark.parametrize("words, indices", [
    ([1], {1}), (["1", 2], {1, 2}), (1, {1}), ("GPU-b", {1}), (["gpu-A", 2], {0, 2}), (["0000:02:00.0"], {2}),
    (["00000000:01:00.0", "02:00.0"], {1, 2}), (["20b2"], {0, 1}), (["H200", "20B2"], {0, 1, 2}),
    (["nvidia h200"], {2}),
])
def test_gpus_by_any_name(words: t.Any, indices: set[int]) -> None:
    gpus = [target(0)._replace(uuid="GPU-a"), target(1)._replace(uuid="GPU-b"),
            target(2, "2335")._replace(uuid="GPU-c", model="NVIDIA H200")]
    found = resolve(document(entry(devices=words, mig_enabled=False, mig_devices={})), *gpus)
    assert {gpu.number for gpu in gpus if gpu.pci in found} == indices


def test_names_of_gpus_that_are_not_there() -> None:
    unknown = target(0)._replace(uuid="GPU-a")
    for words in (["GPU-b"], ["0000:09:00.0"], ["H100"], ["2330"]):
        with pytest.raises(InputError, match="this host has no GPU"):
            resolve(document(entry(devices=words)), unknown)
    assert resolve(document(entry(devices=["GPU-b"])), target(0)) == {}, "UUIDs are not known before a driver"
    elsewhere = entry(devices=[4], device_filter="0x233010DE")
    assert resolve(document(elsewhere, entry(mig_devices={})), target(0))["0000:00:00.0"].devices == {}


def test_names_of_devices() -> None:
    """Attributes in any order, and the long name of a compute instance that fills its GPU instance."""
    wishes = resolve(document(entry(mig_devices={"3c.3g.40gb": 1, "1c.3g.40gb": 3, "1g.10gb+me": 1})))
    assert wishes["0000:00:00.0"].devices == {("3g.40gb", 3): 1, ("3g.40gb", 1): 3, ("1g.10gb+me", 1): 1}
    both = target(0)._replace(profiles=[Profile("1g.10gb+gfx,me", 1, 7, 1, 1, 1, (0,))])
    assert resolve(document(entry(mig_devices={"1g.10gb+me,gfx": 1})), both)["0000:00:00.0"].devices == {
        ("1g.10gb+gfx,me", 1): 1}


@pytest.mark.parametrize("filters, indices", [
    ("0x20B210DE", {0, 1}), (["0x20b210de", "0x233510DE"], {0, 1, 2}), ("20B210DE", {0, 1}), ("", {0, 1, 2}),
    (0x20B210DE, {0, 1}),
    ("0x20B210DE:0x146310DE", {0}), ("0x20B210DE:0x147F10DE", {1}),
])
def test_filters(filters: t.Any, indices: set[int]) -> None:
    gpus = [target(0), target(1, subsystem="10de:147f"), target(2, "2335")]
    entries = config_file.parse(document(entry(device_filter=filters, mig_devices={})))["one"]
    assert {gpu.number for gpu in gpus if entries[0].matches(gpu)} == indices


def test_several_entries_and_untouched_gpus() -> None:
    wishes = resolve(document(entry(devices=[0, 1]), entry(devices=[2], mig_enabled=False, mig_devices=...)),
                     *[target(index) for index in range(4)])
    assert [wish.enabled for wish in wishes.values()] == [True, True, False]
    assert "0000:03:00.0" not in wishes


def test_selection() -> None:
    configs = config_file.parse({"version": "v1", "mig-configs": {"half": [entry()], "full": [entry()]}})
    with pytest.raises(InputError, match="selected: config has several.*Set selected to one of half, full"):
        config_file.select(configs, None)
    with pytest.raises(InputError, match=r"no configuration 'haff' \(nearest: half\)"):
        config_file.select(configs, "haff")


def test_generated_names_are_those_of_the_vendors_mig_manager() -> None:
    """From the generated ConfigMap of the NVIDIA GPU Operator: names on an A100 80GB and on an A30."""
    expected = {
        "20b2": {"all-1g.10gb": 7, "all-1g.10gb.me": 1, "all-1g.20gb": 4, "all-2g.20gb": 3, "all-3g.40gb": 2,
                 "all-4g.40gb": 1, "all-7g.80gb": 1},
        "20b7": {"all-1g.6gb": 4, "all-1g.6gb.me": 1, "all-2g.12gb": 2, "all-2g.12gb.me": 1, "all-4g.24gb": 1},
        "2bb5": {"all-1g.24gb-me": 4, "all-2g.48gb.gfx": 2, "all-2g.48gb.me.all": 1},
    }
    for device_id, names in expected.items():
        for name, count in names.items():
            wish = profile_names.generate(name, [target(0, device_id)])["0000:00:00.0"]
            assert list(wish.devices.values()) == [count], name


@pytest.mark.parametrize("device_id, devices", [
    ("20b2", {("1g.10gb", 1): 2, ("2g.20gb", 2): 1, ("3g.40gb", 3): 1}),
    ("20b7", {("1g.6gb", 1): 2, ("2g.12gb", 2): 1}),
    ("2941", {("1g.23gb", 1): 2, ("2g.47gb", 2): 1, ("3g.93gb", 3): 1}),
    ("2bb5", {("1g.24gb", 1): 2, ("2g.48gb", 2): 1}),
])
def test_balanced(device_id: str, devices: dict[tuple[str, int], int]) -> None:
    """As in the vendor's static configuration for these device ids."""
    assert profile_names.generate("all-balanced", [target(0, device_id)])["0000:00:00.0"].devices == devices


def test_generated_names_leave_other_gpus_alone() -> None:
    gpus = [target(0), target(1, "26b9"), target(2, "2335")]
    assert list(profile_names.generate("all-1g.18gb", gpus)) == ["0000:02:00.0"]
    assert list(profile_names.generate("all-disabled", gpus)) == ["0000:00:00.0", "0000:02:00.0"]
    assert profile_names.generate("all-disabled", [target(1, "26b9")]) == {}
    for name, words in ((None, "no configuration is selected"), ("all-1g.5gb", "'all-1g.5gb' for the GPUs"),
                        ("all-enable", "nearest: all-enabled")):
        with pytest.raises(InputError, match=words):
            profile_names.generate(name, gpus)
    with pytest.raises(InputError, match="None of these GPUs supports MIG"):
        profile_names.generate("all-enabled", [target(1, "26b9")])


def test_export_groups_as_mig_parted_does() -> None:
    seven = {"1g.10gb": 7}
    assert config_file.export([(0, True, seven), (1, True, seven)])["mig-configs"]["current"] == [
        {"devices": "all", "mig-enabled": True, "mig-devices": seven}]
    half = config_file.export([(0, False, {}), (1, True, seven)])
    assert half["mig-configs"]["current"] == [
        {"devices": [0], "mig-enabled": False, "mig-devices": {}},
        {"devices": [1], "mig-enabled": True, "mig-devices": seven}]
    assert [entry.words for entry in config_file.parse(half)["current"]] == [("0",), ("1",)]


# What nvidia-smi shows of these boards: total MiB, then for each profile its enum, slices, MiB, and its name as
# published for the board (NVIDIA MIG User Guide; mig-parted's default configuration).
@pytest.mark.parametrize("total, rows", [
    (81920, [(0, 1, 9728, "1g.10gb"), (9, 1, 19968, "1g.20gb"), (2, 3, 40192, "3g.40gb"), (4, 7, 80640, "7g.80gb"),
             (7, 1, 9728, "1g.10gb+me")]),
    (40960, [(0, 1, 4864, "1g.5gb"), (9, 1, 9856, "1g.10gb"), (4, 7, 40192, "7g.40gb")]),
    (24576, [(0, 1, 5952, "1g.6gb"), (8, 2, 11968, "2g.12gb+me"), (3, 4, 24000, "4g.24gb")]),
    (95830, [(0, 1, 11008, "1g.12gb"), (2, 3, 47488, "3g.47gb"), (4, 7, 95360, "7g.94gb")]),
    (143771, [(0, 1, 16384, "1g.18gb"), (1, 2, 33024, "2g.35gb"), (3, 4, 71168, "4g.71gb"),
              (4, 7, 143104, "7g.141gb")]),
    (183359, [(0, 1, 22528, "1g.23gb"), (0, 1, 20992, "1g.23gb"), (9, 1, 45312, "1g.45gb")]),
    (97887, [(15, 1, 24192, "1g.24gb+me.all"), (13, 1, 24192, "1g.24gb-me"), (11, 2, 48512, "2g.48gb+gfx")]),
])
def test_profile_names_follow_the_vendors_rule(total: int, rows: list[tuple[int, int, int, str]]) -> None:
    for enum, slices, memory, name in rows:
        assert profile_name(enum, slices, memory, total * 1024**2) == name


def test_device_names() -> None:
    assert compute_name("3g.40gb", 3, 3) == "3g.40gb"
    assert compute_name("3g.40gb", 3, 1) == "1c.3g.40gb"


# Profile ids and placements of one board of each family (NVIDIA MIG User Guide, output of -lgip and -lgipp).
@pytest.mark.parametrize("device_id, rows", [
    ("20b0", {"1g.5gb": (19, 7, 1, "0123456"), "1g.10gb": (15, 4, 2, "0246"), "2g.10gb": (14, 3, 2, "024"),
              "3g.20gb": (9, 2, 4, "04"), "4g.20gb": (5, 1, 4, "0"), "7g.40gb": (0, 1, 8, "0"),
              "1g.5gb+me": (20, 1, 1, "0123456")}),
    ("20b7", {"1g.6gb": (14, 4, 1, "0123"), "1g.6gb+me": (21, 1, 1, "0123"), "2g.12gb": (5, 2, 2, "02"),
              "2g.12gb+me": (6, 1, 2, "02"), "4g.24gb": (0, 1, 4, "0")}),
])
def test_tables(device_id: str, rows: dict[str, tuple[int, int, int, str]]) -> None:
    found = {profile.name: (profile.id, profile.instances, profile.size, "".join(map(str, profile.starts)))
             for profile in boards.profiles_of(device_id) or []}
    assert found == rows


def test_unknown_boards_have_no_table() -> None:
    assert boards.profiles_of("2bb3") is None

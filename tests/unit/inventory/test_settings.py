# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the fleet: the task takes precedence, then the hosts, which must have the same value, then the
default."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import settings, variable_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.settings import DEFAULTS, option_values


@pytest.mark.parametrize(("given", "hosts", "expected"), [
    ({}, {}, "hosts"),
    ({}, {"a": {"gpu_placement": "hybrid"}, "b": {}}, "hybrid"),
    ({}, {"a": {}, "b": {"gpu_placement": "hybrid"}, "c": {"gpu_placement": "hybrid"}}, "hybrid"),
    ({"placement": "cluster"}, {"a": {"gpu_placement": "hybrid"}}, "cluster"),
    ({"placement": ""}, {"a": {}}, "hosts"),
    ({"placement": "cluster"}, {"a": {"gpu_placement": ""}}, "cluster"),
    ({}, {"a": {"gpu_placement": ""}, "b": {"gpu_placement": "hybrid"}}, "hybrid"),
])
def test_precedence(given: dict[str, Any], hosts: dict[str, Any], expected: str) -> None:
    assert option_values(given, hosts, {})["placement"] == expected


def test_an_empty_level_is_refused_and_an_empty_policy_stays_empty() -> None:
    with pytest.raises(InputError, match="gpu_disruption: it is empty. Set one of never, idle, drain, reboot"):
        option_values({}, {"a": {"gpu_disruption": ""}}, {})
    with pytest.raises(InputError, match="gpu_disruption: it is empty"):
        option_values({}, {"c": {}}, {"a": {"gpu_disruption": ""}})
    assert option_values({"disruption": "idle"}, {"a": {"gpu_disruption": ""}}, {})["disruption"] == "idle"
    assert option_values({}, {"a": {"gpu_policy": ""}}, {})["policy"] == ""
    assert option_values({"policy": ""}, {"a": {}}, {})["policy"] == ""
    assert option_values({}, {"a": {"gpu_policy": ""}, "b": {"gpu_policy": "p.yml"}}, {})["policy"] == "p.yml"
    assert option_values({}, {"a": {}}, {})["policy"] is None


def test_a_variable_that_one_host_is_asked_for_is_the_same_on_all() -> None:
    """Playbooks read the startup taint on the first host of a play."""
    same = {"gpu_startup_taint": "t"}
    for hosts, others in (({"a": same, "b": same}, {}), ({"a": {}, "b": {"gpu_startup_taint": ""}}, {}),
                          ({"a": same}, {"b": {}}), ({}, {"b": same})):
        assert option_values({}, hosts, others)["placement"] == "hosts"
    with pytest.raises(InputError, match="gpu_startup_taint: it is 't', but not set on a, c. Set it once"):
        option_values({}, {"a": {}, "b": same, "c": {"gpu_startup_taint": ""}}, {})
    with pytest.raises(InputError, match="gpu_startup_taint: it is 't', but not set on a"):
        option_values({}, {"a": {}}, {"b": same})
    with pytest.raises(InputError, match="gpu_startup_taint: it is 't' on a and 'u' on b"):
        option_values({}, {"a": same, "b": {"gpu_startup_taint": "u"}}, {})


@pytest.mark.parametrize(("option", "remedy", "allowed"), [
    ("disruption", "Set one of never, idle, drain, reboot", ["never", "idle", "drain", "reboot"]),
    ("placement", "Set one of hosts, cluster, hybrid, or a mapping of components to host, cluster or none",
     ["hosts", "cluster", "hybrid"]),
    ("namespace", "Write at most 63 lowercase letters, digits and dashes",
     "at most 63 lowercase letters, digits and dashes"),
    ("image_registry", "Write a host, a port and a path such as mirror.example:5000/gpu, without https://",
     "a host, a port and a path such as mirror.example:5000/gpu, without https://"),
    ("max_unavailable", "Write 1 or more, or a percentage such as 25%", "1 or more, or a percentage such as 25%"),
    ("strict", "Write true or false", ["true", "false"]),
    ("pull_secrets", r"Write a list such as [a, b]", "a list of strings"),
    ("node_os", r"Write a list such as [a, b]", "a list of strings"),
    ("sharing", "Write a mapping, or the path of a file", "a mapping, or the path of a file"),
    ("monitoring", "Write a mapping", "a mapping"),
])
def test_an_empty_text_is_refused_where_it_would_mean_the_default(option: str, remedy: str, allowed: Any) -> None:
    for hosts, others in (({"a": {f"gpu_{option}": ""}}, {}), ({"c": {}}, {"a": {f"gpu_{option}": ""}})):
        with pytest.raises(InputError) as caught:
            option_values({}, hosts, others)
        error = caught.value
        assert str(error).startswith(f"gpu_{option}: it is empty. {remedy}, or leave the variable out.")
        assert (error.details["value"], error.details["allowed"]) == ("", allowed)


@pytest.mark.parametrize("option", ["kubeconfig", "context", "render_to", "release", "proxy"])
def test_an_empty_text_is_not_set(option: str) -> None:
    assert option_values({}, {"a": {f"gpu_{option}": ""}}, {})[option] is None


def test_an_empty_text_of_each_variable_is_decided() -> None:
    assert {*DEFAULTS} == {"policy", "kubeconfig", "context", "render_to", "release", "proxy", *settings.NEVER_EMPTY}


@pytest.mark.parametrize("name", settings.SECONDS)
@pytest.mark.parametrize(("value", "allowed"), [(-5, False), ("-5", False), ("soon", False), (1.5, False), ("", False),
                                                (True, False), (0, True), ("300", True), (120, True), (None, True)])
def test_seconds_are_a_number(name: str, value: Any, allowed: bool) -> None:
    """Whichever host has it: some of them are read of a host, others of the first host for the cluster."""
    hosts = {"a": {}, "b": {name: value}}
    if allowed:
        assert option_values({}, hosts, {})
        return
    with pytest.raises(InputError) as caught:
        option_values({}, hosts, {})
    assert str(caught.value) == (f"{name}: {value!r} of b is not a number of seconds. "
                                 "Write a whole number, 0 or more, or leave the variable out.")
    assert caught.value.details["value"] == value and caught.value.details["allowed"] == "a whole number, 0 or more"


def test_all_variables_in_seconds_are_checked() -> None:
    named = {name for name in variable_names.NAMES if name.endswith("_timeout")}
    assert named == {*settings.SECONDS, *components.SECONDS}


def test_the_default_that_playbooks_and_roles_repeat_is_the_same() -> None:
    root = pathlib.Path(__file__).parents[3]
    found = [re.findall(r"gpu_max_unavailable \| default\((\d+)", path.read_text())
             for path in (root / "playbooks" / "site.yml", root / "playbooks" / "remove.yml",
                          root / "roles" / "mig_manager" / "defaults" / "main.yml")]
    assert found == [[str(DEFAULTS["max_unavailable"])]] * 3


def test_hosts_that_disagree_are_named() -> None:
    with pytest.raises(InputError, match="gpu_disruption: it is 'idle' on a and 'drain' on b"):
        option_values({}, {"a": {"gpu_disruption": "idle"}, "b": {"gpu_disruption": "drain"}}, {})
    assert option_values({"disruption": "never"},
                         {"a": {"gpu_disruption": "idle"}, "b": {"gpu_disruption": "drain"}}, {})


@pytest.mark.parametrize(("hosts", "expected"), [({}, "own.yml"), ({"gpu_policy": "other.yml"}, "other.yml")])
def test_hosts_that_limit_leaves_out_say_what_the_others_do_not(hosts: dict[str, Any], expected: str) -> None:
    assert option_values({}, {"control": hosts}, {"a": {"gpu_policy": "own.yml"}})["policy"] == expected


def test_hosts_that_limit_leaves_out_may_disagree_where_the_others_decide() -> None:
    others = {"a": {"gpu_policy": "a.yml"}, "b": {"gpu_policy": "b.yml"}}
    assert option_values({}, {"c": {"gpu_policy": "c.yml"}}, others)["policy"] == "c.yml"
    with pytest.raises(InputError, match="gpu_policy: it is 'a.yml' on a and 'b.yml' on b"):
        option_values({}, {"c": {}}, others)


@pytest.mark.parametrize(("option", "good", "bad"), [
    ("namespace", ("gpu-operator", "g"), ("GPU_x", "-a", "a" * 64)),
    ("image_registry", ("nvcr.io", "mirror.example:5000/gpu/ops"), ("https://mirror.example", "a b", "x/")),
])
def test_what_a_server_would_refuse_is_refused_before(option: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    for value in good:
        assert option_values({}, {"a": {f"gpu_{option}": value}}, {})[option] == value
    for value in bad:
        with pytest.raises(InputError, match=f"gpu_{option}: .* is not allowed"):
            option_values({}, {"a": {f"gpu_{option}": value}}, {})


@pytest.mark.parametrize(("option", "bad", "message"), [
    ("release", 26.7, "gpu_release: a string is expected, not 26.7. Write it in quotes"),
    ("kubeconfig", ["a.conf"], "gpu_kubeconfig: a string is expected"),
    ("namespace", 2024, "gpu_namespace: a string is expected, not 2024"),
    ("disruption", True, "gpu_disruption: a string is expected, not true"),
    ("pull_secrets", "ngc", r"gpu_pull_secrets: a list of strings is expected, not 'ngc'. Write a list such as"),
    ("node_os", [22.04], r"gpu_node_os: a list of strings is expected, not \[22.04\]"),
])
def test_a_variable_of_another_type_is_refused(option: str, bad: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        option_values({}, {"a": {f"gpu_{option}": bad}}, {})


def test_hosts_that_disagree_about_a_proxy_show_no_password() -> None:
    hosts = {name: {"gpu_proxy": {"https": f"http://me:s3cret{name}@p:1"}} for name in "ab"}
    with pytest.raises(InputError, match="gpu_proxy: it is .*on a and .*on b") as caught:
        option_values({}, hosts, {})
    assert "s3cret" not in str(caught.value.as_result())

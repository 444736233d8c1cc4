# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the boot unit is wanted: the role mig_manager takes it from a plan, for the module and for the check."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLE = pathlib.Path(__file__).parents[3] / "roles" / "mig_manager"


def load(path: str) -> Any:
    return yaml.safe_load((ROLE / path).read_text(encoding="utf-8"))


def of_role(text: Any, **variables: Any) -> Any:
    """A template of the role's tasks, where a play has these variables."""
    tagged = {name: trust_as_template(value) if isinstance(value, str) else value
              for name, value in {**load("defaults/main.yml"), "inventory_hostname": "a", **variables}.items()}
    return Templar(DataLoader(), variables=tagged).template(trust_as_template(text))


@pytest.mark.parametrize(("variables", "boot"), [
    ({}, True),
    ({"gpu_plan": {"hosts": {"a": {"mig_manager": {"boot": True}}}}}, True),
    ({"gpu_plan": {"hosts": {"a": {"mig_manager": {"boot": False}}}}}, False),
    ({"gpu_plan": {"hosts": {"b": {"mig_manager": {"boot": False}}}}}, True),
    ({"gpu_plan": {"hosts": {"a": {"mig_manager": {"boot": True}}}}, "mig_manager_boot": False}, False),
    ({"mig_manager_boot": "no"}, False),
])
def test_the_boot_unit_is_that_of_the_plan_unless_a_variable_says_otherwise(
        variables: dict[str, Any], boot: bool) -> None:
    change, = load("tasks/host.yml")
    check, = load("tasks/verify.yml")
    variables = {"gpu_plan": {}, **variables}
    given = of_role(change["gpuops.nvidia.mig_config"]["boot"], **variables)
    assert given == variables.get("mig_manager_boot", boot)  # the module's option is a boolean and takes words
    assert of_role(check["gpuops.nvidia.gpu_verify"]["expected"]["mig_manager"]["boot"], **variables) is boot

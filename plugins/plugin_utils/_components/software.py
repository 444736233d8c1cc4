# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions for the components that nvidia_software installs on hosts: CUDA, DCGM, the exporters. Pure. PRIVATE."""

from __future__ import annotations

import functools
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.sources import source_for
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import HostFacts, Program
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section

FIRST_SPLIT = 4


def placed(host: component.Host, title: str) -> tuple[str, list[str]]:
    """(placement, because) of a component. If it cannot be installed on the host, adds a note with the title."""
    why = _not_installable(host) if host.place == "host" else host.why
    if why and host.place == "host":
        host.notes.append(f"{title} is not delivered: {why}.")
    return "none" if why else host.place, [f"not delivered: {why}"] if why else []


def packaged(host: component.Host, name: str, pattern: str) -> str | None:
    """The version of the package that corresponds to the version of an image in the policy or release, None for the
    newest. pattern: a regular expression that matches the tag of the image; group 1 is the version of the package."""
    section = by_name(name).section
    own = host.inputs.policy.get(f"{section}.version")
    text = str(own or host.inputs.release.components[name])
    found = re.match(pattern, text)
    if found is None:
        host.notes.append(f"{section}.version {text!r} is not the version of a package; hosts keep the installed "
                          "version, or get the newest one if there is none.")
        return None
    # The packages of DCGM 3 have other names, and there is no package of its exporter.
    if version_key(text)[0] >= FIRST_SPLIT:
        return found.group(1)
    if own and host.place == "host":
        host.notes.append(f"{section}.version {text}: no effect: hosts get the newest version, because DCGM "
                          f"{FIRST_SPLIT} is the first with these packages; to choose one, set {name}_version.")
    return None


def _not_installable(host: component.Host) -> str:
    """The reason why packages of NVIDIA's repository cannot be installed on the host, empty if they can."""
    facts, variables = host.facts, host.variables
    if facts["host"]["markers"].get("immutable"):
        return "/usr is read-only"
    system = facts["host"]["os"]
    given = ((name, str(variables.get(f"driver_repository_{name}") or "")) for name in ("url", "key", "fingerprint"))
    return _unsupported(system["id"] or "", system["version_id"] or "", facts["host"]["arch"],
                        tuple((name, value) for name, value in given if value))


@functools.lru_cache(maxsize=1024)
def _unsupported(os_id: str, version: str, arch: str, given: tuple[tuple[str, str], ...]) -> str:
    """The reason why NVIDIA's repository does not support a system, empty if it does. given: (name, value) of the
    variables that set the repository."""
    source = source_for(os_id, version, arch)
    if source is None:
        release = f"{os_id} {version}".strip()
        return f"this version of the collection cannot install packages of NVIDIA's repository on {release}"
    try:
        source.repository(Spec(repository=dict(given)))
    except InputError as error:
        # The option of the module is a variable of the host here.
        text = f"{error.message} {error.hint}".rstrip(".")
        return re.sub(r"\brepository\.(?=key|fingerprint)", "driver_repository_", text)
    return ""


def no_driver(placement: str, state: str, facts: HostFacts) -> str:
    """The reason why a host will have no driver after the run, empty if it will have one. placement, state: the values
    in the driver's plan."""
    if state == "absent":
        return "driver_state is absent"
    brought = placement == "host" or facts["driver"]["library"] is not None
    return "" if brought else "no driver is installed on the host, and the plan does not deliver one"


def check_service(name: str, want: Section, seen: component.HostState, *same: str) -> component.Result:
    """Checks a component that has a service. same: keys that must be equal in the plan and in the facts, besides the
    version."""
    have = t.cast(t.Mapping[str, Program], seen.facts["software"])[name]
    if have is None:
        return component.Result("absent", "not installed", "Run site.yml.")
    faults = [f"{key} is {have[key]}, desired is {want[key]}" for key in ("version", *same)
              if key in have and want.get(key) and have[key] != want[key]]
    if not have["running"]:
        faults.append("the service does not run")
    if faults:
        return component.Result("failed", "; ".join(faults), "Run site.yml: it repairs this.")
    return component.Result("ok", " ".join(str(have[key]) for key in ("version", *same) if key in have))

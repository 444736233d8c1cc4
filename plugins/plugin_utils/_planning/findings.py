# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings of a preflight, which detects problems before anything is changed. Pure. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import asdict, dataclass

# error: the run, or a GPU workload after it, will fail; warning: one of them may fail; info: neither will fail.
SEVERITIES = ("error", "warning", "info")
# The result of a check: (severity, text, fix).
Result = t.Tuple[str, str, str]
# A finding as gpu_policy returns it: C({host, check, severity, text, fix, detail}).
FindingDict = t.Dict[str, str]
_Mapping = t.TypeVar("_Mapping", bound=t.Mapping[str, object])


@dataclass(frozen=True)
class Finding:
    """A problem or a note that a preflight has found.

    host: a host, a Node, C(cluster) or C(policy); check: the name of the check; severity: one of L(SEVERITIES); text:
    the problem; fix: what a user should do; text and fix have no full stop; detail: what of the host has the problem,
    such as the address of a GPU. Hosts with the same problem are one row, whatever their details are.
    """

    host: str
    check: str
    severity: str
    text: str
    fix: str = ""
    detail: str = ""

    def as_dict(self) -> FindingDict:
        """C({host, check, severity, text, fix, detail})."""
        return asdict(self)


def ordered(found: t.Iterable[Finding]) -> list[Finding]:
    """The findings sorted by severity, without duplicates."""
    return sorted(dict.fromkeys(found), key=lambda one: SEVERITIES.index(one.severity))


def counts(found: t.Iterable[t.Mapping[str, object]]) -> dict[str, int]:
    """The number of findings by severity. A finding that several hosts have is counted once."""
    alike = {(one["severity"], one["check"], one["text"], one["fix"]) for one in found}
    return {severity: sum(one[0] == severity for one in alike) for severity in SEVERITIES}


def grouped(found: t.Iterable[_Mapping]) -> list[tuple[list[str], _Mapping]]:
    """(hosts, finding) for each finding, with all hosts for which it was found, in the order of the findings.

    A host has its detail after its name: C(gpu-a1 (0000:3b:00.0)).
    """
    groups: dict[tuple[str, ...], tuple[list[str], _Mapping]] = {}
    for one in found:
        key = tuple(str(one[part]) for part in ("severity", "check", "text", "fix"))
        groups.setdefault(key, ([], one))[0].append(
            f"{one['host']} ({one['detail']})" if one.get("detail") else str(one["host"]))
    return list(groups.values())

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a preflight finds, before anything is changed. Pure. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import asdict, dataclass

# error: the run, or GPU work after it, will fail; warning: it may, or later; info: worth knowing.
SEVERITIES = ("error", "warning", "info")
# What a check says of its subject: (severity, text, fix).
Said = t.Tuple[str, str, str]
Dict = t.Dict[str, t.Any]


@dataclass(frozen=True)
class Finding:
    """host: a host, a Node, C(cluster) or C(policy); check: which check; text, fix: sentences without a full stop."""

    host: str
    check: str
    severity: str
    text: str
    fix: str = ""

    def as_dict(self) -> Dict:
        """C({host, check, severity, text, fix})."""
        return asdict(self)


def ordered(found: t.Iterable[Finding]) -> list[Finding]:
    """Errors first, then as they were found; each once."""
    return sorted(dict.fromkeys(found), key=lambda one: SEVERITIES.index(one.severity))


def counts(found: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, int]:
    """C({error: 1, warning: 2, info: 0}), each sentence once however many hosts have it."""
    alike = {(one["severity"], one["check"], one["text"], one["fix"]) for one in found}
    return {severity: sum(one[0] == severity for one in alike) for severity in SEVERITIES}


def grouped(found: t.Iterable[t.Mapping[str, t.Any]]) -> list[tuple[list[str], t.Mapping[str, t.Any]]]:
    """Hosts of which the same is said together: C([(hosts, finding)]), in the order of the findings."""
    groups: dict[tuple[str, ...], tuple[list[str], t.Mapping[str, t.Any]]] = {}
    for one in found:
        key = tuple(str(one[part]) for part in ("severity", "check", "text", "fix"))
        groups.setdefault(key, ([], one))[0].append(str(one["host"]))
    return list(groups.values())

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong with a cluster. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError

Result = t.TypeVar("Result")


class ClusterError(GpuopsError):
    """The API server refused something, could not be reached, or holds what stands in the way.

    verb: what was asked (C(list), C(apply)); object: C(DaemonSet gpu-operator/x) or a kind; status: the HTTP status,
    0 where no answer came; reason: the server's word for it (C(Forbidden)); fields: the paths that the server names.
    """

    kind = "cluster"

    def __init__(self, message: str, hint: str = "", verb: str = "", object: str = "", status: int = 0,
                 reason: str = "", fields: t.Sequence[str] = (), **details: t.Any) -> None:
        super().__init__(message, hint, verb=verb, object=object, status=status, reason=reason, fields=list(fields),
                         **details)
        self.status = status
        self.reason = reason
        self.object = object


def without_errors(answers: t.Iterable[Result | GpuopsError]) -> list[Result]:
    """The answers of L(client.Client.many). Raises the first one that is an error."""
    found: list[Result] = []
    for answer in answers:
        if isinstance(answer, GpuopsError):
            raise answer
        found.append(answer)
    return found

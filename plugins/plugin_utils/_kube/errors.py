# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The error of requests to a cluster. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError

Result = t.TypeVar("Result")


class ClusterError(GpuopsError):
    """The API server refused a request or could not be reached, or the state of the cluster does not allow the run.

    verb: the verb of the request (C(list), C(apply)); object: C(DaemonSet gpu-operator/x) or a kind; status: the HTTP
    status, 0 without an answer; reason: the reason in the server's Status (C(Forbidden)) or, without a Status, a reason
    of this collection (C(NoAnswer)); fields: the paths of the fields that the server rejects; details: further keys of
    the result C(error).
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
    """The results of L(client.Client.many). Raises the first error among them."""
    results: list[Result] = []
    for answer in answers:
        if isinstance(answer, GpuopsError):
            raise answer
        results.append(answer)
    return results

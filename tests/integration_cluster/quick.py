# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sends the requests of simple kubectl commands without starting kubectl, which takes half a second of CPU time.

The requests are the same, with the same field managers. kubectl itself runs all other commands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds

from lab.controlplane import api
from tests.waiting import until

Object = dict[str, Any]
ADMISSION = "admissionregistration.k8s.io/v1"
KINDS = [*kinds.KINDS.values(), *(kinds.Kind(ADMISSION, kind, f"{plural}", False, 0) for kind, plural in (
    ("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
    ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings")))]
ROWS = {(row.api_version, row.kind): row for row in KINDS}
WORDS = {word: row for row in KINDS for word in (row.kind.lower(), row.plural)} | {
    "crd": kinds.find("apiextensions.k8s.io/v1", "CustomResourceDefinition")}
VALUED = ("--namespace", "-n", "--filename", "--output", "--field-manager", "--subresource", "--type", "--patch")
PLAIN = ("--show-managed-fields", "--overwrite", "--all", "--ignore-not-found", "--wait=false", "--server-side",
         "--force-conflicts", "--cascade=orphan", "--dry-run=server")
JSON, MERGE = "application/json", "application/merge-patch+json"


class Unknown(Exception):
    """Raised for a command that kubectl itself must run."""


@dataclass
class Command:
    """Arguments without options, and options with their values."""

    words: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: tuple[str, ...]) -> Command:
        made, left = cls(), iter(given)
        for word in left:
            if word in VALUED:
                made.options["--namespace" if word == "-n" else word] = next(left)
            elif word in PLAIN:
                made.options[word] = ""
            elif word.startswith("-"):
                raise Unknown(word)
            else:
                made.words.append(word)
        return made

    def row(self, word: str) -> kinds.Kind:
        if word not in WORDS:
            raise Unknown(word)
        return WORDS[word]

    def path(self, row: kinds.Kind, name: str | None = None) -> str:
        return row.path(name, self.options.get("--namespace", "default") if row.namespaced else None)

    def manager(self, usual: str) -> str:
        return f"?fieldManager={self.options.get('--field-manager', usual)}"


def items(command: Command, given: object) -> Iterator[tuple[kinds.Kind, Object, str, str]]:
    """For each object of the input: kind, object, the path of its list and its own path."""
    assert isinstance(given, dict) and command.options.get("--filename") == "-" and not command.words[1:]
    for item in given["items"] if given["kind"] == "List" else [given]:
        row = ROWS.get((item["apiVersion"], item["kind"]))
        if row is None:
            raise Unknown(item["kind"])
        space = item["metadata"].get("namespace") or command.options.get("--namespace", "default")
        where = row.path(None, space if row.namespaced else None)
        yield row, item, where, f"{where}/{item['metadata']['name']}"


def get(server: api.Api, command: Command, _given: object) -> str:
    _verb, word, *names = command.words
    if len(names) != 1 or command.options.get("--output", "json") != "json":
        raise Unknown("many")
    found = server.request("GET", command.path(command.row(word), names[0]),
                           missing_ok="--ignore-not-found" in command.options)
    return json.dumps(found) if found else ""


def create(server: api.Api, command: Command, given: object) -> str:
    manager = command.manager("kubectl-create") + ("&dryRun=All" if "--dry-run=server" in command.options else "")
    if given is not None:
        for _row, item, where, _own in [*items(command, given)]:
            server.request("POST", where + manager, item)
        return ""
    word, *names = command.words[1:]
    if word == "token" and len(names) == 1:
        path = command.path(command.row("serviceaccount"), names[0])
        return str(server.request("POST", f"{path}/token", {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})["status"]["token"])
    if word not in ("namespace", "serviceaccount") or len(names) != 1:
        raise Unknown(word)
    row = command.row(word)
    server.request("POST", command.path(row) + manager, {
        "apiVersion": row.api_version, "kind": row.kind, "metadata": {"name": names[0]}})
    return ""


def replace(server: api.Api, command: Command, given: object) -> str:
    for _row, item, _where, own in [*items(command, given)]:
        server.request("PUT", own + command.manager("kubectl-replace"), item)
    return ""


def apply(server: api.Api, command: Command, given: object) -> str:
    if "--server-side" not in command.options:
        raise Unknown("apply")
    force = "&force=true" if "--force-conflicts" in command.options else ""
    for _row, item, _where, own in [*items(command, given)]:
        server.request("PATCH", own + command.manager("kubectl") + force, item, api.APPLY)
    return ""


def mark(server: api.Api, command: Command, _given: object) -> str:
    """Implements label and annotate."""
    verb, word, *rest = command.words
    row, names = command.row(word), [one for one in rest if "=" not in one and not one.endswith("-")]
    if "--all" in command.options:
        names = [one["metadata"]["name"] for one in server.objects(command.path(row))]
    pairs = (one.partition("=") for one in rest if one not in names)
    values = {key if equals else key.removesuffix("-"): value if equals else None for key, equals, value in pairs}
    for name in names:
        server.request("PATCH", command.path(row, name) + command.manager(f"kubectl-{verb}"), {
            "metadata": {f"{verb}s" if verb == "label" else "annotations": values}}, MERGE)
    return ""


def patch(server: api.Api, command: Command, _given: object) -> str:
    _verb, word, name = command.words
    if command.options.get("--type") != "merge":
        raise Unknown("patch")
    part = "/status" if command.options.get("--subresource") == "status" else ""
    server.request("PATCH", command.path(command.row(word), name) + part + command.manager("kubectl-patch"),
                   json.loads(command.options["--patch"]), MERGE)
    return ""


def cordon(server: api.Api, command: Command, _given: object) -> str:
    for name in command.words[1:]:
        server.request("PATCH", command.path(WORDS["node"], name) + command.manager("kubectl-cordon"),
                       {"spec": {"unschedulable": True}}, MERGE)
    return ""


def delete(server: api.Api, command: Command, _given: object) -> str:
    """Deletes objects, and returns when they no longer exist."""
    _verb, word, *names = command.words
    policy = "Orphan" if "--cascade=orphan" in command.options else "Background"
    going = []
    for row in map(command.row, word.split(",")):
        for name in names:
            path = command.path(row, name)
            found = server.request("GET", path, missing_ok="--ignore-not-found" in command.options)
            if found:
                server.request("DELETE", path, {"propagationPolicy": policy}, missing_ok=True)
                going.append((path, found["metadata"]["uid"]))

    def gone(path: str, uid: str) -> bool:
        return (server.request("GET", path, missing_ok=True) or {"metadata": {"uid": ""}})["metadata"]["uid"] != uid

    for path, uid in going if "--wait=false" not in command.options else ():
        until(lambda path=path, uid=uid: gone(path, uid), f"{path} is gone", pause=0.1)  # type: ignore[misc]
    return ""


COMMANDS: dict[str, Callable[[api.Api, Command, object], str]] = {
    "get": get, "create": create, "replace": replace, "apply": apply, "label": mark, "annotate": mark, "patch": patch,
    "cordon": cordon, "delete": delete}


def run(server: api.Api, given: tuple[str, ...], stdin: object) -> str:
    """Returns the output of a command: for get the object as JSON, for a token the token. Raises Unknown for other
    commands."""
    command = Command.read(given)
    if command.words[0] not in COMMANDS:
        raise Unknown(command.words[0])
    try:
        return COMMANDS[command.words[0]](server, command, stdin)
    except SystemExit as refused:  # as the lab's own commands end where a request is refused
        raise AssertionError(f"kubectl {' '.join(given)}: {refused}") from None

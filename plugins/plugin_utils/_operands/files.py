# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes manifests to files, for users who apply them with other tools (GitOps). Needs no cluster. PRIVATE."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import write_atomic
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, diff_entry, outcome
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import hidden
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import load_data, load_own
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Wanted
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import diff
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER

INDEX = "kustomization.yaml"
_HEAD = "# Written by gpuops.nvidia, which removes the files listed here when they are no longer wanted.\n"


def write(folder: str, wanted: t.Sequence[Wanted], check: bool,
          components: t.Collection[str] | None = None) -> dict[str, t.Any]:
    """Writes one file for each object, and a kustomization that lists the files in order. Returns the result.

    Files of an earlier run that are no longer wanted are deleted; no other file is changed. components: the components
    that this run renders, None for all; files of other components stay. Raises InputError if the folder cannot be used,
    or if a symbolic link in the folder leads out of it.
    """
    folder = os.path.abspath(os.path.expanduser(folder))
    try:
        return _write(folder, wanted, check, components)
    except OSError as error:
        raise InputError(f"{error.filename or folder} cannot be read or written: {error.strerror}.",
                         "Set a folder that you can write; it does not have to exist.", path="render_to",
                         value=folder) from error


def _write(folder: str, wanted: t.Sequence[Wanted], check: bool,
           components: t.Collection[str] | None) -> dict[str, t.Any]:
    former = _former(folder)
    files = _files(wanted)
    kept = [name for name in former if components is not None and _component(name) not in components]
    texts: t.Dict[str, t.Optional[str]] = {name: None for name in former if name not in (*files, *kept)}
    texts.update(files)
    ranks = {component: rank for rank, component in enumerate(ORDER)}
    listed = sorted([*files, *kept], key=lambda name: ranks.get(_component(name), len(ranks)))
    resources = "".join(f"- {name}\n" for name in listed)
    texts[INDEX] = (f"{_HEAD}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
                    f"resources:\n{resources}") if listed else None
    steps, differences = [], []
    for name in texts:
        _refuse_outside(folder, os.path.join(folder, name))
    for name, text in texts.items():
        path = os.path.join(folder, name)
        before = _read(path)
        if before == text:
            continue
        steps.append(Step("remove file" if text is None else "write file", path))
        # The values of a Secret are only in its file, not in the diff.
        secret = "-secret-" in name
        differences.append(diff_entry(path, *(("", "") if secret else _shown(path, before or "", text or ""))))
        if not check:
            _put(folder, path, text, secret)
    shown = [{"object": one.label, "component": one.component, "action": "render", "reasons": [], "before": {},
              "after": diff.pair(one.manifest, None)[1]} for one in wanted]
    return outcome(steps, (), differences, objects=shown, counts={"render": len(wanted)}, server="")


def _shown(path: str, before: str, after: str) -> tuple[str, str]:
    """The former and the new text of a file, without secrets. A former text that is not valid YAML is not shown."""
    try:
        have = load_data(before, path) if before else {}
    except InputError:
        before, have = "", {}
    want = load_own(after) or {}
    if not (hidden.holds_secret(have) or hidden.holds_secret(want)):
        return before, after
    masked = diff.masked(have if isinstance(have, dict) else {}, want)
    return diff.text(masked[0]), diff.text(masked[1])


def _files(wanted: t.Sequence[Wanted]) -> dict[str, str]:
    """Maps relative paths to the texts of objects. The files of a component are numbered, such as
    C(nfd/03-daemonset-nfd-worker.yaml)."""
    found: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for one in wanted:
        number = numbers[one.component] = numbers.get(one.component, 0) + 1
        name = f"{one.component}/{number:02d}-{one.kind.kind.lower()}-{one.manifest['metadata']['name']}.yaml"
        found[name.replace(":", "-")] = diff.text(one.manifest)
    return found


def _component(name: str) -> str:
    return name.partition("/")[0]


def _former(folder: str) -> list[str]:
    """The files that an earlier run has listed. Raises InputError if the folder has a foreign kustomization."""
    path = os.path.join(folder, INDEX)
    text = _read(path)
    if text is None:
        return []
    if not text.startswith(_HEAD):
        raise InputError(f"{path} is not ours.", "Set an empty folder, or one that an earlier run has written.",
                         path="render_to", value=folder)
    listed = [str(name) for name in (load_data(text, path) or {}).get("resources") or []]
    return [name for name in listed if not os.path.isabs(name) and ".." not in name.split("/")]


def _refuse_outside(folder: str, path: str) -> None:
    """Raises InputError if a link leads the path out of the folder: others may commit such links to the repository."""
    home, real = os.path.realpath(folder), os.path.realpath(path)
    if os.path.commonpath([home, real]) != home:
        raise InputError(f"{path} is {real} by a link, which is outside of {folder}.",
                         "Remove the link. Nothing has been written.", path="render_to", value=folder)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _put(folder: str, path: str, text: str | None, secret: bool) -> None:
    if text is not None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, text.encode(), 0o600 if secret else 0o644)
        return
    os.unlink(path)
    if os.path.dirname(path) != folder and not os.listdir(os.path.dirname(path)):
        os.rmdir(os.path.dirname(path))

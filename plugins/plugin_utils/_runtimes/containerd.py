# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd: a drop-in from 2.0 on, edits of the main file in older releases. PRIVATE to the collection.

In containerd 1.x, a drop-in replaces the whole table of a plugin and would reset the user's settings of the CRI plugin.
From 2.0 on, tables are merged (containerd issues 5837 and 7982, pull request 9982). A drop-in must then use the version
and the plugin id of the main file. With different ids, 2.0 to 2.2 silently ignore one of the files (containerd issue
12891; seen on 2.2.7), and 2.3 does not start if a drop-in has a higher version.
"""

from __future__ import annotations

import pathlib
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import RUNTIME_CLASSES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import base, cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V1, V2, V3, plugin_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    Journal,
    ProgramResult,
    RuntimeState,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Document, dotted, load, render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Path, Table, Value, leaves, lookup

DROP_IN = "/etc/containerd/conf.d/99-gpuops-nvidia.toml"
# Files of 'nvidia-ctk runtime configure' and of the GPU Operator's toolkit (1.18.0: config.d, later conf.d).
VENDOR_FILES = ("/etc/containerd/conf.d/99-nvidia.toml", "/etc/containerd/config.d/99-nvidia.toml")


class Containerd(base.Runtime):
    probe = base.Probe(
        name="containerd", binary="containerd", units=["containerd.service"], config="/etc/containerd/config.toml",
        config_flags=["-c", "--config"], drop_in=DROP_IN, dump=["{binary}", "-c", "{config}", "config", "dump"],
        other_files=VENDOR_FILES, health=["ctr", "plugins", "ls"], reads_once=True)

    def read(self, state: RuntimeState) -> base.Configuration:
        effective = _effective(state)
        return cri.configuration(effective, _plugin(effective), None if _is_before_cdi(_cri(effective)) else True)

    def propose(self, state: RuntimeState, journal: Journal, options: base.Options) -> base.Proposal:
        current = _Current(state, journal, cri.read(state.text or "", state.config), _effective(state))
        path, text = state.config, state.text
        default = lookup(current.cri, cri.DEFAULT)
        former = journal.default_runtime or str(default or "runc")
        proposal = base.Proposal(previous_default=former, parts=options.parts)
        base.check_name(journal, options, cri.programs(current.cri), path)
        values = cri.desired(current.cri, options, former)
        proposal.classes = {*RUNTIME_CLASSES, *journal.classes, *options.classes}
        _warn_disabled(current.effective, proposal)
        drop_in = options.drop_in_path or DROP_IN
        if _major_version(state) == 1:
            unwanted = base.unwanted_parts(journal, options, default)
            proposal.parts = base.parts_without(unwanted, journal, options)
            changed = _edit_main_file(current, values, unwanted, proposal)
        else:
            changed = _add_drop_in(current, values, drop_in, proposal)
        baseline = None
        if text is not None and text != changed and journal.is_edited(path):
            baseline = _without_ours(text, path, journal, drop_in)
        proposal.write(path, text, changed, "main", journal, baseline)
        _check_vendor_files(state, journal, proposal)
        proposal.due_reason = base.STALE if state.stale else ""
        if proposal.changes:
            if options.cdi and _is_before_cdi(current.cri):
                proposal.warnings.append("The CRI plugin of this containerd does not support CDI (from 1.7 on). "
                                         "Pods get GPUs only through the runtime class.")
            if options.nri and current.lookup(cri.NRI) is None:
                proposal.warnings.append("This containerd does not have the current NRI, which needs containerd 1.7.")
            proposal.trials = [_trial(state, changed or "", proposal.changes)]
        return proposal

    def check_trials(self, state: RuntimeState, results: t.Sequence[ProgramResult], options: base.Options,
                     proposal: base.Proposal) -> None:
        """See Runtime. Also checks the effective configuration, because `config dump` does not detect all errors."""
        super().check_trials(state, results, options, proposal)
        path, before = state.config, _effective(state)
        after = load(results[0].stdout, "the candidate's effective configuration")
        plugin = _plugin(after)
        table = _cri(after)
        values = cri.desired(_cri(before), options, proposal.previous_default)
        ineffective = [dotted(key) for key, value in values.items() if lookup(after, plugin_path(plugin, key)) != value
                       and (key != cri.NRI or lookup(after, key) is not None)]
        if ineffective:
            others = [file for file, text in _imported(state, options.drop_in_path or DROP_IN).items()
                      if V2 in text or V3 in text]
            hint = (f"These files override the same plugin: {', '.join(others)}. Move their settings to {path}."
                    if others else "Nothing was changed. Report this with the file.")
            raise HostError(f"Settings of the candidate for {path} would have no effect: {', '.join(ineffective)}.",
                            hint, path=path)
        default = lookup(table, cri.DEFAULT)
        if default not in (lookup(table, cri.RUNTIMES) or {}):
            raise HostError(f"{path}: the default runtime '{default}' is not declared. The CRI plugin would not load.",
                            "Declare it or correct default_runtime_name.", path=path)
        ours = {plugin_path(plugin, key) for key in (*values, cri.DEFAULT, cri.CDI, cri.NRI)}
        changed = [dotted(leaf) for leaf, value in leaves(before.get("plugins", {}), ("plugins",)).items()
                   if leaf not in ours and leaf[-2:-1] != ("imports",)
                   and not (leaf[2:4] == cri.RUNTIMES and leaf[4] in proposal.classes)
                   and (lookup(after, leaf) or None) != (value or None)]
        if changed:
            raise HostError(f"The candidate for {path} would change other settings: {', '.join(changed[:5])}.",
                            "Nothing was changed. Use one configuration version and plugin id in all files.", path=path)

    def propose_removal(self, state: RuntimeState, journal: Journal) -> base.Proposal:
        proposal = base.Proposal(previous_default=journal.default_runtime or None)
        keep_import = False
        for path, record in sorted(journal.files.items(), key=lambda item: item[1].part):
            text = state.files.get(path)
            if record.state == "before":
                # An earlier removal has left the rest of this drop-in to the user, so its import is kept.
                keep_import = keep_import or record.part == "drop-in" and text is not None
            elif record.state == "ours":
                if record.part == "drop-in" or not keep_import:
                    proposal.restore(path, text, record)
            elif text is not None:
                rest = _without_ours(text, path, journal, None if keep_import else DROP_IN)
                if record.part == "drop-in" and set(load(rest, path)) <= {"version"}:
                    proposal.changes.append(base.FileChange(path, text, None, "drop-in", "it contains only our part"))
                else:
                    keep_import = keep_import or record.part == "drop-in"
                    proposal.keep_edits(path, text, rest, record.part)
        return proposal


# -- the current configuration


@dataclass(frozen=True)
class _Current:
    """The current configuration. main: the data of the main file; effective: containerd's merged configuration."""

    state: RuntimeState
    journal: Journal
    main: Table
    effective: Table

    @property
    def cri(self) -> Table:
        """The effective table of the CRI plugin."""
        return _cri(self.effective)

    def lookup(self, path: Path) -> Value:
        """The effective value at a path of `cri.py`."""
        return lookup(self.effective, plugin_path(_plugin(self.effective), path))


def _major_version(state: RuntimeState) -> int:
    """1 for containerd 1.x, 2 for containerd 2.0 and later. If the version is unknown, the dump determines it."""
    match = re.search(r"(?:^|[\s:v])(\d{1,9})\.\d+\.\d+", state.version)
    if match:
        return 1 if int(match.group(1)) < 2 else 2
    return 2 if V3 in _effective(state).get("plugins", {}) else 1


def _effective(state: RuntimeState) -> Table:
    """containerd's merged configuration. Raises HostError if containerd rejects its file."""
    dump = state.dump
    if dump is None or dump.rc != 0:
        raise HostError(f"containerd rejects {state.config}: {dump.failure if dump else 'no output'}.",
                        "Nothing was changed. Correct the file, then run again.", path=state.config)
    return load(dump.stdout, f"the effective configuration of {state.config}")


def cri_table(state: RuntimeState) -> Table:
    """The effective table of the CRI plugin. Raises HostError if containerd rejects its file."""
    return _cri(_effective(state))


def _cri(effective: Table) -> Table:
    return lookup(effective, ("plugins", _plugin(effective))) or {}


def _plugin(effective: t.Mapping[str, Value]) -> str:
    return V3 if V3 in effective.get("plugins", {}) else V2


def _imported(state: RuntimeState, drop_in: str) -> dict[str, str]:
    """Maps the path of each imported file, except this collection's drop-in, to its text."""
    paths = dict.fromkeys(path for paths in state.imports.values() for path in paths)
    return {path: text for path in paths if path not in (state.config, drop_in)
            and (text := state.files.get(path)) is not None}


def _is_before_cdi(table: t.Mapping[str, Value]) -> bool:
    """Whether the CRI plugin does not support CDI. From 2.4 on, CDI is always enabled and has no key."""
    return "sandbox_image" in table and "enable_cdi" not in table


def serves_cri(state: RuntimeState) -> bool:
    """Whether the CRI plugin is enabled, or its state is unknown. Docker's packages disable it."""
    dump = state.dump
    return dump is None or dump.rc != 0 or not _disabled(load(dump.stdout, "the effective configuration"))


def _disabled(effective: t.Mapping[str, Value]) -> set[str]:
    return {V1, V2, V3} & set(effective.get("disabled_plugins", []))


def _warn_disabled(effective: t.Mapping[str, Value], proposal: base.Proposal) -> None:
    disabled = _disabled(effective)
    if disabled:
        proposal.warnings.append(f"containerd's CRI plugin is disabled (disabled_plugins: {', '.join(disabled)}). "
                                 "Kubernetes cannot use this containerd until this entry is removed.")


def _check_vendor_files(state: RuntimeState, journal: Journal, proposal: base.Proposal) -> None:
    """Raises HostError if a file of NVIDIA's tools declares the same runtime; warns if such a file has no effect."""
    imported = _imported(state, "")
    for path in VENDOR_FILES:
        if state.files.get(path) is None or path in journal.files:
            continue
        if path not in imported:
            proposal.warnings.append(f"{path} has no effect, because {state.config} does not import it. 'nvidia-ctk "
                                     "runtime configure' or the GPU Operator has written it. Remove it.")
        elif proposal.changes:
            raise HostError(f"{path} declares the runtime differently, and {state.config} imports it. 'nvidia-ctk "
                            "runtime configure' or the GPU Operator has written it.",
                            "Leave the runtime to the GPU Operator (placement 'cluster' or 'none' for "
                            "container_toolkit), or remove this file and run again.", path=path)


# -- the desired configuration


def _edit_main_file(current: _Current, values: dict[Path, Value], unwanted: set[str], proposal: base.Proposal
                    ) -> str | None:
    """The desired text of the main file for containerd 1.x."""
    state, journal = current.state, current.journal
    path, text = state.config, state.text
    missing = {key: value for key, value in values.items() if current.lookup(key) != value}
    proposal.remove_unused_drop_ins(state, journal, None)
    rest = cri.without_parts(text, path, journal, unwanted) if text else text
    if not missing and not proposal.changes and rest == text:
        return text
    document = Document(rest or "version = 2\n", path)
    for change in proposal.changes:
        _remove_import(document, change.path)
    plugin = V1 if int(current.main.get("version", 1)) < 2 and text else V2
    cri.declare(document, plugin, missing, current.cri, proposal.previous_default or "runc")
    return document.text


def _add_drop_in(current: _Current, values: dict[Path, Value], drop_in: str, proposal: base.Proposal) -> str | None:
    """The desired text of the main file for containerd 2.0 and later. Adds the drop-in to the proposal."""
    state, journal, main = current.state, current.journal, current.main
    path, text = state.config, state.text
    for pattern in main.get("imports", []):
        if "*" not in pattern and state.imports.get(pattern) == []:
            raise HostError(f"{path} imports {pattern}, which does not exist. containerd would not start.",
                            "Remove the import or restore the file.", path=path)
    current_text = state.files.get(drop_in)
    is_configured = all(current.lookup(key) == value for key, value in values.items())
    if is_configured and current_text is None and path not in journal.files:
        return text  # foreign files contain the desired configuration
    version, plugin = _drop_in_format(state, main, drop_in)
    heading: dict[Path, Value] = {("version",): version} if version else {}
    desired = base.HEADER + render({**heading, **{plugin_path(plugin, key): value for key, value in values.items()}})
    proposal.remove_unused_drop_ins(state, journal, drop_in)
    proposal.write(drop_in, current_text, desired, "drop-in", journal)
    document = None
    if text and path in journal.files and cri.declares(main, {"nvidia", *journal.classes}) and not cri.declares(
            cri.read(journal.before(path), path), {"nvidia", *journal.classes}):
        # A run has edited the main file before containerd was upgraded to 2.x.
        document = Document(_without_ours(text, path, journal, drop_in), path)
    for change in proposal.changes:
        if change.after is None and text:
            document = document or Document(text, path)
            _remove_import(document, change.path)
    data = document.data if document else main
    if not any(_matches_import(pattern, drop_in, path) for pattern in data.get("imports", [])):
        document = document or Document(text or "version = 3\n", path)
        document.set(("imports",), [*document.data.get("imports", []), _import_pattern(drop_in)])
    return document.text if document else text


def _drop_in_format(state: RuntimeState, main: t.Mapping[str, Value], drop_in: str) -> tuple[int | None, str]:
    """The version, None for no version, and the plugin id that a drop-in needs to be merged with the other files."""
    others = [cri.read(text, path) for path, text in _imported(state, drop_in).items()]
    tables = {plugin for data in (main, *others) for plugin in data.get("plugins", {})}
    version = int(main.get("version", 0))
    if version < 2:
        # containerd 2.x ignores settings of the CRI plugin in version 1, so no setting can be lost (seen on 2.2.7). If
        # the main file has no version, the version of a drop-in must not be higher than that of the other files. If the
        # main file has version 1, the drop-in must have no version.
        versions = [int(data["version"]) for data in others if "version" in data]
        return (None if version else min([3, *versions])), V3 if V3 in tables or V2 not in tables else V2
    main_plugins = main.get("plugins", {})
    return version, V3 if version > 2 or V3 in main_plugins or (V2 not in main_plugins and V3 in tables) else V2


# -- imports


def _import_pattern(drop_in: str) -> str:
    """A pattern that matches only this collection's drop-in. With a plain path, containerd needs the file to start."""
    path = pathlib.PurePosixPath(drop_in)
    return str(path.with_name(f"{path.stem}*{path.suffix}"))


def _matches_import(pattern: str, path: str, config: str) -> bool:
    return pathlib.PurePosixPath(path).match(str(pathlib.PurePosixPath(config).parent / pattern))


def _remove_import(document: Document, drop_in: str, keep_empty: bool = False) -> None:
    imports = document.data.get("imports", [])
    rest = [pattern for pattern in imports if pattern != _import_pattern(drop_in)]
    if rest != imports and (rest or keep_empty):
        document.set(("imports",), rest)
    elif rest != imports:
        document.remove(("imports",))


def _without_ours(text: str, path: str, journal: Journal, drop_in: str | None) -> str:
    """The text with the former values of this collection's part. drop_in: the file whose import is removed."""
    former = load(journal.before(path), path)
    document = cri.without_ours(text, path, journal)
    for imported in [drop_in, *journal.files] if drop_in else []:
        if _import_pattern(imported) not in former.get("imports", []):
            _remove_import(document, imported, keep_empty="imports" in former)
    return document.text


def _trial(state: RuntimeState, main: str, changes: t.Sequence[base.FileChange]) -> base.Trial:
    """`config dump` of the candidate main file, which imports the candidate drop-ins and all other files."""
    files: dict[str, str] = {}
    candidates = {change.path: change.after for change in changes if change.part == "drop-in"}
    document = Document(main, state.config)
    patterns = document.data.get("imports", [])
    if patterns:
        paths: list[str] = []
        parent = pathlib.PurePosixPath(state.config).parent
        for pattern in patterns:
            matches = set(state.imports.get(pattern, []))
            matches |= {path for path, after in {**state.files, **candidates}.items()
                        if after is not None and _matches_import(pattern, path, state.config)}
            for path in sorted(matches) or [str(parent / pattern)]:
                if path not in candidates:
                    paths.append(path)
                elif candidates[path] is not None:
                    name = f"drop-in-{len(files)}.toml"
                    files[name] = candidates[path] or ""
                    paths.append("{dir}/" + name)
        document.remove(("imports",))
        # The main file may import itself. containerd detects this, but not if the importing file is a copy.
        unique = [path for path in dict.fromkeys(paths) if path != state.config]
        if unique:
            document.set(("imports",), unique)
    files["main.toml"] = document.text
    return base.Trial(files, [state.binary, "-c", "{dir}/main.toml", "config", "dump"])

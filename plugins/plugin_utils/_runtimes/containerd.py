# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd: a drop-in of ours from 2.0 on, a structural edit of the main file before. PRIVATE to the collection.

Why two ways: containerd 1.x lets a drop-in replace the whole table of a plugin, so that a small one would reset the
user's CRI settings; from 2.0 on tables are merged deeply (containerd issues 5837 and 7982, pull request 9982).
There the drop-in must use the version and the plugin id that the main file uses: across ids 2.0 to 2.2 silently lose
one side (containerd issue 12891; seen on 2.2.7), and 2.3 does not start with a drop-in of a higher version.
"""

from __future__ import annotations

import copy
import pathlib
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.failure_text import words_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    NAMES,
    STALE,
    FileChange,
    Options,
    Proposal,
    Trial,
    switched_off,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V1, V2, V3, place
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import (
    Document,
    Path,
    dotted,
    load,
    lookup,
    render,
)

DROP_IN = "/etc/containerd/conf.d/99-gpuops-nvidia.toml"
# Where 'nvidia-ctk runtime configure' and the GPU Operator's toolkit put theirs (1.18.0: config.d, later conf.d).
THEIRS = ("/etc/containerd/conf.d/99-nvidia.toml", "/etc/containerd/config.d/99-nvidia.toml")


class Containerd:
    """Implements C(base.Runtime)."""

    probe: t.ClassVar[t.Mapping[str, t.Any]] = {
        "name": "containerd", "binary": "containerd", "units": ["containerd.service"],
        "config": "/etc/containerd/config.toml", "config_flags": ["-c", "--config"], "drop_in": DROP_IN,
        "dump": ["{binary}", "-c", "{config}", "config", "dump"], "more": THEIRS,
        "health": ["ctr", "plugins", "ls"], "reads_once": True,
    }

    def propose(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], options: Options) -> Proposal:
        """See C(base.Runtime)."""
        effective, own = _effective(seen)
        path, text = seen["config"], seen["files"][seen["config"]]
        main = cri.read(text or "", path)
        proposal = Proposal(previous_default=_former_default(own, journal), parts=options.parts)
        values = cri.wanted(own, options, proposal.previous_default)
        _warn_disabled(effective, proposal)
        drop_in = options.drop_in_path or DROP_IN
        if _generation(seen) == 1:
            off = switched_off(journal, options, lookup(own, cri.DEFAULT))
            changed = self._edit(seen, journal, effective, main, values, off, proposal)
        else:
            changed = self._add_drop_in(seen, journal, effective, main, values, drop_in, proposal)
        if text != changed:
            baseline = None
            if text is not None and (_record(journal, path) or {}).get("is") == "edited":
                baseline = _without_ours(text, path, journal, drop_in)
            proposal.changes.append(FileChange(path, text, changed, "main", self._reason(journal, path), baseline))
        _heed_theirs(seen, journal, proposal)
        proposal.due = STALE if seen["stale"] else ""
        if proposal.changes:
            if options.cdi and _is_before_cdi(own):
                proposal.warnings.append("This containerd has no CDI in its CRI plugin (it came with 1.7): "
                                         "only the runtime class can hand out GPUs.")
            if options.nri and _lookup(effective, cri.NRI) is None:
                proposal.warnings.append("This containerd has no NRI of today's form (it came with 1.7).")
            proposal.trials = [_trial(seen, changed or "", proposal.changes)]
        return proposal

    @staticmethod
    def _reason(journal: t.Mapping[str, t.Any], path: str) -> str:
        record = _record(journal, path)
        return "it was changed by somebody since" if record and record["is"] == "edited" else ""

    def _edit(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], effective: t.Mapping[str, t.Any],
              main: dict[str, t.Any], values: dict[Path, t.Any], off: set[str], proposal: Proposal) -> str | None:
        """The main file's text for containerd 1.x."""
        path = seen["config"]
        text: str | None = seen["files"][path]
        missing = {rel: value for rel, value in values.items() if _lookup(effective, rel) != value}
        self._drop_stale(seen, journal, None, proposal)
        record = _record(journal, path)
        left = cri.take_back(text, path, record["before"] or "", off) if text and record else text
        if not missing and not proposal.changes and left == text:
            return text
        document = Document(left or "version = 2\n", path)
        for change in proposal.changes:
            document = _drop_import(document, change.path)
        own = lookup(effective, ("plugins", _plugin(effective))) or {}
        cri.declare(document, V1 if int(main.get("version", 1)) < 2 and text else V2, missing, own,
                    proposal.previous_default or "runc")
        return document.text

    def _add_drop_in(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any],
                     effective: t.Mapping[str, t.Any], main: dict[str, t.Any], values: dict[Path, t.Any],
                     drop_in: str, proposal: Proposal) -> str | None:
        """The main file's text from containerd 2.0 on; the drop-in goes into the proposal."""
        path = seen["config"]
        text: str | None = seen["files"][path]
        for pattern in main.get("imports", []):
            if "*" not in pattern and seen["imports"].get(pattern) == []:
                raise HostError(f"{path} imports {pattern}, which does not exist: containerd would not start.",
                                "Remove the import or put the file back.", path=path)
        old = seen["files"].get(drop_in)
        if (old is None and not _record(journal, path)
                and all(_lookup(effective, rel) == value for rel, value in values.items())):
            return text  # somebody has configured it already
        version, plugin = _dialect(seen, main, drop_in)
        heading: dict[Path, t.Any] = {("version",): version} if version else {}
        wanted = cri.HEADER + render({**heading, **{place(plugin, rel): value for rel, value in values.items()}})
        self._drop_stale(seen, journal, drop_in, proposal)
        if old != wanted:
            proposal.changes.append(FileChange(drop_in, old, wanted, "drop-in", self._reason(journal, drop_in)))
        record = _record(journal, path)
        document = None
        if text and record and cri.holds_ours(main) and not cri.holds_ours(cri.read(record["before"] or "", path)):
            # Edited in place by us before containerd became 2.x.
            document = Document(_without_ours(text, path, journal, drop_in), path)
        for change in proposal.changes:
            if change.after is None and text:
                document = _drop_import(document or Document(text, path), change.path)
        data = document.data if document else main
        if not any(_covers(pattern, drop_in, path) for pattern in data.get("imports", [])):
            document = document or Document(text or "version = 3\n", path)
            document.add_item(("imports",), _glob(drop_in))
        return document.text if document else text

    @staticmethod
    def _drop_stale(seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], current: str | None,
                    proposal: Proposal) -> None:
        """Drop-ins that we wrote under another name, or for a containerd that is no longer there."""
        for path, record in journal["config"].items():
            if record["part"] == "drop-in" and path != current and seen["files"].get(path) is not None:
                proposal.changes.append(FileChange(path, seen["files"][path], None, "drop-in", "no longer used"))

    def judge(self, seen: t.Mapping[str, t.Any], results: t.Sequence[t.Mapping[str, t.Any]], options: Options,
              proposal: Proposal) -> None:
        """See C(base.Runtime). Catches what C(config dump) does not: it exits 0 with a dangling default."""
        path, result = seen["config"], results[0]
        if result["rc"] != 0:
            raise HostError(f"containerd rejects the candidate for {path}: {words_of(result)}.",
                            "Nothing was changed. Report this with the file.", path=path)
        before, own = _effective(seen)
        after = load(result["stdout"], "the candidate's effective configuration")
        new = lookup(after, ("plugins", _plugin(after))) or {}
        values = cri.wanted(own, options, proposal.previous_default)
        absent = [dotted(rel) for rel, value in values.items() if _lookup(after, rel) != value
                  and (rel != cri.NRI or lookup(after, rel) is not None)]
        if absent:
            others = [file for file in _imported(seen, options.drop_in_path or DROP_IN)
                      if V2 in seen["files"][file] or V3 in seen["files"][file]]
            hint = (f"These files set the same plugin and hide it: {', '.join(others)}. Move their settings to {path}."
                    if others else "Nothing was changed. Report this with the file.")
            raise HostError(f"The candidate for {path} would not take effect: {', '.join(absent)}.", hint, path=path)
        default = lookup(new, cri.DEFAULT)
        if default not in (lookup(new, cri.RUNTIMES) or {}):
            raise HostError(f"{path}: the default runtime '{default}' is not declared, so that the CRI plugin would "
                            f"not load.", "Declare it or correct default_runtime_name.", path=path)
        ours = {place(_plugin(after), rel) for rel in (*values, cri.DEFAULT, cri.CDI, cri.NRI)}
        moved = [dotted(leaf) for leaf, value in cri.leaves(before.get("plugins", {}), ("plugins",)).items()
                 if leaf not in ours and leaf[-2:-1] != ("imports",) and not set(leaf) & set(NAMES)
                 and (lookup(after, leaf) or None) != (value or None)]
        if moved:
            raise HostError(f"The candidate for {path} would change other settings: {', '.join(moved[:5])}.",
                            "Nothing was changed. Use one configuration version and plugin id in all files.", path=path)

    def withdraw(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any]) -> Proposal:
        """See C(base.Runtime)."""
        proposal = Proposal(previous_default=(journal["default_runtime"] or None))
        keep_import = False
        for path, record in sorted(journal["config"].items(), key=lambda item: item[1]["part"]):
            text = seen["files"].get(path)
            if record["is"] == "before":
                # Of a drop-in that a former removal has left to its owner, the import stays.
                keep_import = keep_import or record["part"] == "drop-in" and text is not None
                continue
            if record["is"] == "ours":
                if record["part"] == "main" and keep_import:
                    continue
                proposal.changes.append(FileChange(path, text, record["before"], record["part"], "as it was",
                                                   restore=True))
                continue
            if text is None:
                continue  # removed by somebody: it is theirs
            rest = _without_ours(text, path, journal, None if keep_import else DROP_IN)
            if record["part"] == "drop-in":
                if set(load(rest, path)) <= {"version"}:
                    proposal.changes.append(FileChange(path, text, None, "drop-in", "only our part was left"))
                    continue
                keep_import = True
            proposal.warnings.append(f"{path} was edited since this collection wrote it: only its part was taken out.")
            if rest != text:
                proposal.changes.append(FileChange(path, text, rest, record["part"], "edited since: only our part",
                                                   baseline=rest))
        return proposal


# -- reading


def _generation(seen: t.Mapping[str, t.Any]) -> int:
    """1 or 2 (2.0 and later), from C(containerd --version); a version that cannot be read is judged by the dump."""
    match = re.search(r"(?:^|[\s:v])(\d{1,9})\.\d+\.\d+", seen["version"])
    if match:
        return 1 if int(match.group(1)) < 2 else 2
    return 2 if V3 in load(seen["dump"]["stdout"], seen["config"]).get("plugins", {}) else 1


def _effective(seen: t.Mapping[str, t.Any]) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """containerd's merged configuration and in it the CRI plugin's table."""
    dump = seen["dump"]
    if dump["rc"] != 0:
        raise HostError(f"containerd rejects {seen['config']}: {words_of(dump)}.",
                        "Correct the file first; nothing was changed.", path=seen["config"])
    data = load(dump["stdout"], f"the effective configuration of {seen['config']}")
    return data, lookup(data, ("plugins", _plugin(data))) or {}


def cri_table(seen: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The effective table of the CRI plugin. Raises HostError where containerd rejects its file."""
    return _effective(seen)[1]


def _plugin(effective: t.Mapping[str, t.Any]) -> str:
    return V3 if V3 in effective.get("plugins", {}) else V2


def _record(journal: t.Mapping[str, t.Any], path: str) -> t.Any:
    return journal["config"].get(path)


def _former_default(own: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any]) -> str:
    """The default runtime as it was before us."""
    if journal["default_runtime"]:
        return str(journal["default_runtime"])
    now = lookup(own, cri.DEFAULT)
    return str(now) if now else "runc"


def _lookup(effective: t.Mapping[str, t.Any], path: Path) -> t.Any:
    """The effective value at a path of C(cri.py)."""
    return lookup(effective, place(_plugin(effective), path))


def _imported(seen: t.Mapping[str, t.Any], drop_in: str) -> list[str]:
    """The files of others that the main file imports."""
    found = [path for paths in seen["imports"].values() for path in paths]
    return [path for path in dict.fromkeys(found)
            if path not in (seen["config"], drop_in) and seen["files"].get(path) is not None]


def _dialect(seen: t.Mapping[str, t.Any], main: t.Mapping[str, t.Any], drop_in: str) -> tuple[int | None, str]:
    """Version (None: leave it out) and plugin id that a drop-in must have to be merged with the other files."""
    others = [cri.read(seen["files"][path], path) for path in _imported(seen, drop_in)]
    tables = {plugin for one in (main, *others) for plugin in one.get("plugins", {})}
    version = int(main.get("version", 0))
    if version < 2:
        # 2.x ignores version 1 settings of the CRI plugin: there is nothing to lose (seen on 2.2.7). Where the main
        # file has no version, the lowest of those imported is the highest allowed; where it says 1, none is.
        stated = [int(one["version"]) for one in others if "version" in one]
        return (None if version else min([3, *stated])), V3 if V3 in tables or V2 not in tables else V2
    own = main.get("plugins", {})
    return version, V3 if version > 2 or V3 in own or (V2 not in own and V3 in tables) else V2


# -- what is wanted


def _is_before_cdi(own: t.Mapping[str, t.Any]) -> bool:
    """Whether the CRI plugin is older than CDI; from 2.4 on CDI is always on and the key is gone again."""
    return "sandbox_image" in own and "enable_cdi" not in own


def serves_cri(seen: t.Mapping[str, t.Any]) -> bool:
    """Whether the CRI plugin is on, as far as it is known. Docker's packages switch it off: it is Docker's own then."""
    dump = seen.get("dump")
    return dump is None or dump["rc"] != 0 or not _disabled(load(dump["stdout"], "the effective configuration"))


def _disabled(effective: t.Mapping[str, t.Any]) -> set[str]:
    return {V1, V2, V3} & set(effective.get("disabled_plugins", []))


def _warn_disabled(effective: t.Mapping[str, t.Any], proposal: Proposal) -> None:
    disabled = _disabled(effective)
    if disabled:
        proposal.warnings.append(f"containerd's CRI plugin is disabled (disabled_plugins: {', '.join(disabled)}): "
                                 "Kubernetes cannot use this containerd until that entry is removed.")


def _heed_theirs(seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], proposal: Proposal) -> None:
    """Refuses where the vendor's tool goes on writing the same settings; tells of a file that it has left behind."""
    imported = _imported(seen, "")
    for path in (path for path in THEIRS if seen["files"].get(path) is not None and not _record(journal, path)):
        if path not in imported:
            proposal.warnings.append(f"{path} was left by 'nvidia-ctk runtime configure' or the GPU Operator and has "
                                     f"no effect, as {seen['config']} does not import it: remove it.")
        elif proposal.changes:
            raise HostError(f"{path}, which {seen['config']} imports, declares the runtime in another way: it is of "
                            "'nvidia-ctk runtime configure' or the GPU Operator.",
                            "Let the operator go on (placement 'cluster' or 'none' for container_toolkit), or remove "
                            "that file and run again.", path=path)


# -- imports and our part


def _glob(drop_in: str) -> str:
    """A pattern that matches only our file: containerd does not start when a file imported by name is missing."""
    path = pathlib.PurePosixPath(drop_in)
    return str(path.with_name(f"{path.stem}*{path.suffix}"))


def _covers(pattern: str, path: str, config: str) -> bool:
    return pathlib.PurePosixPath(path).match(str(pathlib.PurePosixPath(config).parent / pattern))


def _drop_import(document: Document, drop_in: str) -> Document:
    if _glob(drop_in) in document.data.get("imports", []):
        document.drop_item(("imports",), _glob(drop_in), keep_empty=False)
    return document


def _without_ours(text: str, path: str, journal: t.Mapping[str, t.Any], drop_in: str | None) -> str:
    """The text without our part; what stood there before us returns. drop_in: whose import goes too."""
    before = (_record(journal, path) or {}).get("before") or ""
    former = load(before, path)
    document = cri.without_ours(text, path, before)
    for known in [drop_in, *journal["config"]] if drop_in else []:
        if known and _glob(known) not in former.get("imports", []):
            pattern = _glob(known)
            if pattern in document.data.get("imports", []):
                document.drop_item(("imports",), pattern, keep_empty="imports" in former)
    document.drop_bare_headers(Document(before, path).headers)
    return document.text


def _trial(seen: t.Mapping[str, t.Any], main: str, changes: t.Sequence[FileChange]) -> Trial:
    """The candidate main file with its imports spelled out, candidates in the place of the files they replace."""
    files: dict[str, str] = {}
    text = main
    candidates = {change.path: change.after for change in changes if change.part == "drop-in"}
    document = Document(main, seen["config"])
    patterns = document.data.get("imports", [])
    if patterns:
        paths: list[str] = []
        base = pathlib.PurePosixPath(seen["config"]).parent
        for pattern in patterns:
            there = list(seen["imports"].get(pattern, []))
            there += [path for path, after in {**seen["files"], **candidates}.items()
                      if after is not None and _covers(pattern, path, seen["config"])]
            for path in sorted(set(there)) or [str(base / pattern)]:
                if path not in candidates:
                    paths.append(path)
                elif candidates[path] is not None:
                    name = f"drop-in-{len(files)}.toml"
                    files[name] = candidates[path] or ""
                    paths.append("{dir}/" + name)
        # The file itself may be among its imports: containerd skips loops, a copy elsewhere is none.
        unique = [path for path in dict.fromkeys(paths) if path != seen["config"]]
        document = Document(main, seen["config"])
        document.remove(("imports",))
        if unique:
            document.set(("imports",), copy.deepcopy(unique))
        text = document.text
    files["main.toml"] = text
    return Trial(files, [seen["binary"], "-c", "{dir}/main.toml", "config", "dump"])

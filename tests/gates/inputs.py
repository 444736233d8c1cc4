# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds what a file of the checkout depends on: its imports, the files that its strings name, and the data beside it.

Strings can name paths, modules that run in another process, and what a playbook can call: roles, playbooks, plugins.
When in doubt, a dependency is assumed: an unnecessary run of a gate costs minutes, but a missing run hides a defect.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

COLLECTION = "ansible_collections.gpuops.nvidia."
RUNS_PLAYBOOKS = "tests/integration/user.py"  # what imports it runs roles and playbooks by their names
RUNNERS = {"playbook", "run"}  # functions of tests that take a playbook's name
RENDER = "plugins/plugin_utils/_operands/render.py"  # reads the templates and scripts of all roles
AFFECTS_ALL = ("requirements.txt", "tests/requirements.txt", "lab/venv.py", "pyproject.toml", "ansible.cfg",
               "galaxy.yml", "meta/")
# The lab's command line imports the commands for all that a lab has. Those beside the hosts' are inputs only of tests
# that name them: otherwise a change of the virtual machines would run every test on a host.
LAB = "lab/cli.py"
LAB_COMMANDS = {"cluster": "lab/controlplane/cli.py", "vm": "lab/vm/cli.py"}
CALLED = re.compile(r"gpuops\.nvidia\.(\w+)")
IMPORTED = re.compile(r"import_(?:role|playbook)|include_role|roles:")
MODULE = re.compile(r"\b(?:lab|tests)(?:\.\w+)+|^lab$")
LINK = re.compile(r"\]\(([^)#:]+)[^)]*\)")
MAIN = ("main", "master")
CODE = ("lab", "tests")  # a string that is just one of these says where code is; it reads none of the files there


class Tree:
    """The files of a checkout that git does not ignore, and their dependencies.

    changed: files that differ, including deleted ones, because others may still depend on them.
    """

    def __init__(self, root: Path, changed: Iterable[str] = ()) -> None:
        self.root = root
        self.changed = set(changed)
        self._closures: dict[str, frozenset[str]] = {}
        self._direct: dict[str, set[str]] = {}
        self._parsed: dict[str, list[ast.AST]] = {}
        self._texts: dict[str, tuple[set[str], set[str]]] = {}
        self._looked_at: dict[str, set[str]] = {}
        self._programs_found: dict[str, set[str]] = {}

    @cached_property
    def files(self) -> set[str]:
        """The paths of the existing files, relative to the root."""
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=self.root, check=True,
                               capture_output=True, text=True).stdout.split("\0")
        return {name for name in names if name and (self.root / name).is_file()}

    @cached_property
    def _known(self) -> set[str]:
        return self.files | self.changed

    @cached_property
    def _folders(self) -> dict[str, set[str]]:
        """Maps each folder to the files in it and in its subfolders."""
        found: dict[str, set[str]] = {}
        for name in self._known:
            for folder in _above(name)[:-1]:
                found.setdefault(folder, set()).add(name)
        return found

    @cached_property
    def _data(self) -> dict[str, set[str]]:
        """Maps each folder with Python files to the data in it and in its subfolders without Python files.

        Pages of documentation do not count, and lists of requirements count only if a string names them.
        """
        code = {_above(name)[0] for name in self._known if name.endswith(".py")}
        found: dict[str, set[str]] = {}
        for name in self._known:
            owner = next((folder for folder in _above(name)[:-1] if folder in code), None)
            if owner and not re.search(r"\.py$|\.md$|/requirements[^/]*\.txt$", name):
                found.setdefault(owner, set()).add(name)
        return found

    def below(self, folder: str) -> set[str]:
        """The files in a folder and its subfolders."""
        return self._folders.get(folder, set())

    def module(self, name: str) -> set[str]:
        """The files of a module or package with this dotted name, including those that C(python -m) runs for a
        package."""
        path = name.removeprefix(COLLECTION).replace(".", "/")
        return {f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py"} & self._known

    def program(self, argv: Sequence[str]) -> set[str]:
        """The modules of the checkout that a command runs, and their imports."""
        name = argv[argv.index("-m") + 1] if "-m" in argv else ""
        if name not in self._programs_found:
            queue = [*self.module(name)]
            found = set(queue)
            while queue:
                fresh = self._imports(queue.pop()) - found
                found |= fresh
                queue += fresh
            self._programs_found[name] = found
        return self._programs_found[name]

    def dead_links(self, names: Iterable[str]) -> set[str]:
        """The deleted files to which pages link; the text of a page does not matter otherwise."""
        if self.changed <= self.files:
            return set()
        targets = {(self.root / name).parent / link for name in names if name.endswith(".md")
                   for link in LINK.findall((self.root / name).read_text())}
        gone = {os.path.relpath(target, self.root) for target in targets if not target.exists()}
        return (gone | {path for folder in gone for path in self.below(folder)}) & self._known

    def closure(self, start: str) -> frozenset[str]:
        """A file and all its direct and indirect dependencies."""
        if start not in self._closures:
            found, followed, queue = {start}, {start}, [start]
            while queue:
                user = queue.pop()
                found |= self.direct(user)
                fresh = self.direct(user) - self._looked_at.get(user, set()) - followed
                followed |= fresh
                queue += fresh
            if RUNS_PLAYBOOKS in followed:
                found |= self._named(followed)
            self._closures[start] = frozenset(found)
        return self._closures[start]

    def direct(self, name: str) -> set[str]:
        """The direct dependencies of a file; empty for a deleted file."""
        if name not in self._direct:
            self._direct[name] = (self._find(name) & self._known) - {name} if name in self.files else set()
        return self._direct[name]

    def _find(self, name: str) -> set[str]:
        top, found = name.split("/")[0], set()
        if name.endswith(".py"):
            found |= self._imports(name) | self._data_files(name)
            loaded = ("conftest.py", "__init__.py") if name.rpartition("/")[2].startswith("test_") else ("__init__.py",)
            found |= {f"{folder}/{each}" for folder in _above(name)[:-1] for each in loaded}
            if top in CODE:
                found |= self._programs(name)
                paths = self._paths(name)
                # Code of tests that is named by a path is looked at and not run: what it needs does not matter.
                self._looked_at[name] = {path for path in paths - found if re.match(r"tests/.*\.py$", path)}
                found |= paths
            if top == "tests" and name != RUNS_PLAYBOOKS:
                found |= {path for text in self._strings(name)[0] for word in CALLED.findall(text)
                          for path in self._by_name(word)}
        if name == RENDER:
            found |= {path for path in self.below("roles") if "/templates/" in path or "/files/" in path}
        if top in ("roles", "playbooks", "examples") and name.endswith(".yml"):
            found |= self._tasks(name)
        return found

    def _nodes(self, name: str) -> list[ast.AST]:
        if name not in self._parsed:
            self._parsed[name] = list(ast.walk(ast.parse((self.root / name).read_text())))
        return self._parsed[name]

    def _strings(self, name: str) -> tuple[set[str], set[str]]:
        if name not in self._texts:
            self._texts[name] = _strings(self._nodes(name))
        return self._texts[name]

    def _imports(self, name: str) -> set[str]:
        if name not in self.files:
            return set()
        modules = set()
        for node in self._nodes(name):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found = {path for module in modules for path in self.module(module)
                 if module.endswith(".__main__") or not path.endswith("/__main__.py")}
        others = tuple(f"{_above(path)[0]}/" for path in LAB_COMMANDS.values())
        return {path for path in found if not path.startswith(others)} if name == LAB else found

    def _data_files(self, name: str) -> set[str]:
        """The data files for which this is the nearest Python file."""
        return self._data.get(_above(name)[0], set())

    def _paths(self, name: str) -> set[str]:
        """The files of the checkout whose paths the strings of a file name, from the root or relative to the file."""
        texts, joined = self._strings(name)
        here, *above = _above(name)
        found: set[str] = set()
        for path in joined:
            found |= self._at(path, (here, *above) if "/" in path else (here, ""))
        if name == RUNS_PLAYBOOKS:
            texts = set()  # it installs the whole collection; tests depend on what they name of it
        for text in texts:
            path = text.rstrip("/")
            if "/" in path or "." in path:
                found |= self._at(path, (here,))
            while path and path not in self._known and path not in self._folders:
                path = path.rpartition("/")[0]  # the part before what is filled in
            if path not in CODE:
                found |= self._at(path, ("",))
        return found

    def _at(self, path: str, folders: Iterable[str]) -> set[str]:
        """A file, or all files of a folder, at a path below the first of these folders that has it."""
        for folder in folders:
            whole = f"{folder}/{path}".strip("/")
            if path and (whole in self._known or whole in self._folders):
                return {whole} | self.below(whole)
        return set()

    def _programs(self, name: str) -> set[str]:
        """The modules of the checkout that the strings of a file name because they run in a separate process."""
        texts = self._strings(name)[0]
        found = {path for text in texts for module in MODULE.findall(text) for path in self.module(module)}
        return found | {path for word, path in LAB_COMMANDS.items()
                        if name.startswith("tests/") and {"lab", word} <= texts}

    def _tasks(self, name: str) -> set[str]:
        """The modules, actions, roles and playbooks that a file of a role or playbook names, and the files of its
        role."""
        text = (self.root / name).read_text()
        words = set(CALLED.findall(text))
        if IMPORTED.search(text):
            words |= set(re.findall(r"(?:role|name): (\w+)", text))
        found = {path for word in words for path in self._by_name(word)}
        if name.startswith("roles/"):
            found |= {path for path in self.below("/".join(name.split("/")[:2])) if "/templates/" not in path}
        return found

    def _by_name(self, word: str) -> set[str]:
        """The files that tasks, inventories and users call by this name."""
        kinds = {path.split("/")[1] for path in self.below("plugins")}
        return {*(f"plugins/{kind}/{word}.py" for kind in kinds), f"playbooks/{word}.yml",
                *(path for path in self.below(f"roles/{word}") if "/templates/" not in path)} & self._known

    def _named(self, names: set[str]) -> set[str]:
        """The files that tests run by these bare names, with their dependencies; all roles and playbooks if there are
        no names."""
        roles, playbooks, task_files = ({path.split("/")[at].removesuffix(".yml") for path in self.below(folder)
                                         if middle in path} for folder, at, middle in (
                                             ("roles", 1, "/"), ("playbooks", 1, "/"), ("roles", -1, "/tasks/")))
        modules = {Path(path).stem for path in self.below("plugins/modules")}
        words: set[str] = set()
        for name in names & self.files:
            if name.startswith("tests/") and name.endswith(".py") and name != RUNS_PLAYBOOKS:
                texts = self._strings(name)[0]
                words |= texts & (roles | modules | playbooks - task_files)
                words |= {word for text in texts for word in CALLED.findall(text)}
                words |= {word for node in self._nodes(name) for word in _playbooks_run(node)}
        if not words & (roles | playbooks):
            words |= roles | playbooks
        return {path for word in words for start in self._by_name(word) for path in self.closure(start)}


def _above(name: str) -> list[str]:
    """The folders that contain a file, from its own folder up to the root, which is the empty string."""
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts) - 1, -1, -1)]


def _constant(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _strings(nodes: Sequence[ast.AST]) -> tuple[set[str], set[str]]:
    """The strings of a file without its documentation: single strings, and those that are joined to a path.

    nodes: the syntax nodes from the outermost inwards.
    """
    used = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    joined = set()
    for node in nodes:
        chain: list[ast.AST] = []
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "join" and node.args[1:]:
            chain = [*node.args]
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and id(node) not in used:
            used.add(id(node))
            chain = [node.left, node.right, *chain[1:]]
            node = node.left
        parts: list[str] = []
        for part in chain[1:]:
            if not _constant(part):
                break
            used.add(id(part))
            parts += [_constant(part)] if _constant(part) != ".." else []
        joined.add("/".join(parts))
    return {_constant(node) for node in nodes if id(node) not in used} - {""}, joined - {""}


def _playbooks_run(node: ast.AST) -> set[str]:
    """The strings by which a node may name a playbook: arguments of a call of a runner, and defaults of a runner."""
    candidates: list[ast.expr] = []
    if isinstance(node, ast.Call):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function in RUNNERS:
            candidates += node.args
    elif isinstance(node, ast.FunctionDef) and node.name in RUNNERS:
        candidates += node.args.defaults
    return {_constant(one) for one in candidates} - {""}


def changed(root: Path, base: str = "") -> tuple[str, set[str]]:
    """(a description of the base of the comparison, the files that differ from it, are deleted or are new).

    base: a commit; without it, the last commit that this branch shares with its target branch. Raises ValueError with a
    message for the user.
    """
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    if base:
        commit = git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
        if not commit:
            raise ValueError(f"git knows no commit {base}; give one with BASE=")
        shown = base
    else:
        commit, shown = _base(git)
    listed = [subprocess.run(["git", *words, "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
              for words in (("diff", "--name-only", "--no-renames", commit), ("ls-files", "-o", "--exclude-standard"))]
    return f"{shown} ({commit[:10]})", set(filter(None, "".join(listed).split("\0")))


def _base(git: Callable[..., str]) -> tuple[str, str]:
    """The last commit that this branch shares with the main branch or its upstream branch, and a description of it."""
    here, follows = git("branch", "--show-current"), git("rev-parse", "--abbrev-ref", "@{upstream}")
    if here not in MAIN and follows.partition("/")[2] == here:
        follows = ""  # one's own branch, pushed
    for name in ("origin/HEAD", "origin/main", follows, *(name for name in MAIN if name != here)):
        commit = git("merge-base", "HEAD", name) if name else ""
        if commit:
            return commit, f"the last commit shared with {name}"
    if git("rev-parse", "--verify", "--quiet", "HEAD") and not git("remote") and git("status", "--porcelain"):
        return git("rev-parse", "HEAD"), "HEAD, as there is no remote: only what is not committed"
    raise ValueError("there is no main branch to compare with; give a commit with BASE=")

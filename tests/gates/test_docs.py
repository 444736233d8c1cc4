# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of links: files and headings that pages link to. What README.md lists, and the variables in all pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.stages import ROOT
from tests.gates.docs import anchors, dead_links

PAGE = """
# The page
## `gpu_profile`: a "name"
## See [a link](b.md#x), 2 words - more
### Twice
### Twice
```sh
# a comment
```
"""


def test_anchors() -> None:
    assert anchors(PAGE) == {"the-page", "gpu_profile-a-name", "see-a-link-2-words---more", "twice", "twice-1"}


def test_dead_links(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("## One thing", encoding="utf-8")
    page = tmp_path / "README.md"
    good = "[a](docs/b.md) [b](docs/b.md#one-thing) [c](#here) [d](docs) [e](https://example.com/#none)\n# Here\n"
    page.write_text(good, encoding="utf-8")
    assert not dead_links([page], tmp_path)
    page.write_text(good + "[f](docs/c.md) [g](docs/b.md#other) [h](#there)", encoding="utf-8")
    assert dead_links([page], tmp_path) == [
        "README.md links to docs/c.md, which is not there",
        "README.md links to docs/b.md#other, but b.md has no such heading",
        "README.md links to #there, but README.md has no such heading"]


def listed(*headers: str) -> set[str]:
    """The names in backticks in the last cells of the rows of README.md whose first cells begin with one of these."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    return {name for first, last in rows if first.startswith(headers) for name in re.findall(r"`(\w+)`", last)}


@pytest.mark.parametrize(("headers", "pattern"), [
    (("modules ",), "plugins/modules/[a-z]*.py"), (("modules ",), "plugins/action/[a-z]*.py"),
    (("roles ",), "roles/[a-z]*"), (("inventory plugin",), "plugins/inventory/[a-z]*.py"),
    (("filters ",), "plugins/filter/[a-z]*.py")])
def test_readme_lists_all_plugins_and_roles(headers: tuple[str, ...], pattern: str) -> None:
    assert listed(*headers) == {path.stem for path in ROOT.glob(pattern)}


def test_readme_lists_all_kinds_of_plugins() -> None:
    kinds = {path.name for path in (ROOT / "plugins").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert kinds == {"action", "doc_fragments", "filter", "inventory", "module_utils", "modules", "plugin_utils"}


def test_readme_lists_all_playbooks_and_pages() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    playbooks = set(re.findall(r"^\| `gpuops\.nvidia\.(\w+)` \|", text, re.M))
    assert playbooks == {path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    pages = set(re.findall(r"\| \[docs/([\w-]+)\.md\]\(docs/\1\.md\) \|", text))
    assert pages == {path.stem for path in (ROOT / "docs").glob("*.md")}


# Groups in examples.
EXAMPLES = {"gpu_guests", "gpu_state_ready", "gpu_nvidia_l40s"}


def test_pages_name_only_variables_that_exist() -> None:
    prefixes = "|".join(["gpu", "hand_back", *(path.name for path in (ROOT / "roles").iterdir())])
    known = {word for folder in ("plugins", "roles", "playbooks") for path in (ROOT / folder).rglob("*")
             if path.suffix in (".py", ".yml", ".j2") for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        words = set(re.findall(rf"(?<![\w.])(?:{prefixes})_[a-z0-9_]*[a-z0-9]\b", page.read_text(encoding="utf-8")))
        assert words <= known | EXAMPLES, page

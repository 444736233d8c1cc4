# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The excluded packages in dnf.conf: kernels are added to those of the administrator, and removed from them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.dnf_excludes import (
    _IMAGES,
    HELD,
    excluded,
    hold,
    holds,
    release,
    with_headers,
)

OURS = ",".join(HELD)
# As in a fresh Rocky Linux 9.
FRESH = "[main]\ngpgcheck=1\nbest=True\n"
REPOSITORY = "[mine]\nbaseurl=https://example.com/\nexcludepkgs=kernel*\n"
# Names in RHEL 9 and 10, Oracle Linux 9 and Amazon Linux 2023, of which dnf brings newer versions.
KERNELS = ("kernel", "kernel-core", "kernel-modules", "kernel-modules-core", "kernel-modules-extra", "kernel-devel",
           "kernel-devel-matched", "kernel-64k", "kernel-64k-core", "kernel-64k-devel-matched", "kernel-debug-core",
           "kernel-rt-core", "kernel-rt-64k-modules-core", "kernel-rt-kvm", "kernel-uek-core", "kernel-uek-devel",
           "kernel6.12", "kernel6.12-devel", "kernel6.18-modules-extra")
OTHERS = ("kernel-headers", "kernel-tools", "kernel-tools-libs-devel", "kernel-srpm-macros", "kernel-abi-stablelists",
          "kernel-livepatch-6.1.112-122.189", "kernelshark", "nvidia-driver-cuda", "kmod-nvidia-open-dkms")


def matches(words: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, word) for word in words)


def test_names() -> None:
    assert [name for name in KERNELS if not matches(HELD, name)] == []
    assert [name for name in OTHERS if matches(HELD, name)] == []
    # What this collection may install is headers and modules; each needs the kernel itself in the same version.
    assert [name for name in KERNELS if matches(_IMAGES, name)] == [
        "kernel", "kernel-core", "kernel-modules-core", "kernel-64k-core", "kernel-debug-core", "kernel-rt-core",
        "kernel-rt-64k-modules-core", "kernel-uek-core", "kernel6.12"]


@pytest.mark.parametrize(("text", "held"), [
    (FRESH, f"[main]\nexcludepkgs={OURS}\ngpgcheck=1\nbest=True\n"),
    (f"# x\n[main]\nbest=True\n\n{REPOSITORY}", f"# x\n[main]\nexcludepkgs={OURS}\nbest=True\n\n{REPOSITORY}"),
    ("[main]\nexclude = mft* kernel-mft*\nbest=1\n", f"[main]\nexclude=mft*,kernel-mft*,{OURS}\nbest=1\n"),
    ("[main]\nexcludepkgs=a,\n  b,\n\tc\nbest=1\n", f"[main]\nexcludepkgs=a,b,c,{OURS}\nbest=1\n"),
    ("[main]\nexclude=a\nexcludepkgs=b\n", f"[main]\nexclude=a\nexcludepkgs=b,{OURS}\n"),
    ("[main]\nexcludepkgs=\n", f"[main]\nexcludepkgs={OURS}\n"),
    (f"[main]\nexcludepkgs=kernel-core,mine\n{REPOSITORY}",
     f"[main]\nexcludepkgs=kernel-core,mine,{','.join(word for word in HELD if word != 'kernel-core')}\n{REPOSITORY}"),
    ("", f"[main]\nexcludepkgs={OURS}\n"),
    (REPOSITORY, f"{REPOSITORY}[main]\nexcludepkgs={OURS}\n"),
])
def test_hold_and_release(text: str, held: str) -> None:
    assert not holds(text)
    new, former, written = hold(text)
    assert new == held and holds(new)
    kept = [word for word in excluded(text) if word in HELD]
    assert release(new, kept, former, written) == text
    # Somebody has added a word since, and not in the line of this collection alone.
    other = new.replace(OURS.split(",")[-1], f"{HELD[-1]},later")
    assert set(excluded(release(other, kept, former, written))) == {*excluded(text), "later"}
    assert release(text, kept, former, written) == text  # a run that was killed before it wrote the file


def test_a_last_line_without_an_end() -> None:
    assert hold("[main]")[0] == f"[main]\nexcludepkgs={OURS}\n"
    text = "[main]\nexclude=a"
    new, former, written = hold(text)
    assert new == f"{text},{OURS}" and release(new, [], former, written) == text


def test_lines_that_somebody_has_added_to_the_list_stay() -> None:
    new, former, written = hold("[main]\ngpgcheck=1\n")
    added = release(new.replace(written, f"{written}  mine\n"), [], former, written)
    assert excluded(added) == ["mine"] and added.splitlines()[-1] == "gpgcheck=1"


def test_a_comment_ends_a_list_and_other_sections_have_their_own() -> None:
    text = f"[main]\nexcludepkgs=a\n# mine\n  best=1\n#exclude=b\n{REPOSITORY}"
    assert excluded(text) == ["a"]
    assert excluded(REPOSITORY) == []


def test_commands_of_this_collection_find_headers() -> None:
    assert with_headers(FRESH) == with_headers("[main]\nexcludepkgs=kernel*,kernel-devel*\n") == []
    held = hold("[main]\nexcludepkgs=mine,kernel-core\n")[0]
    assert with_headers(held) == ["--setopt=excludepkgs=", f"--setopt=excludepkgs=mine,{','.join(_IMAGES)}"]

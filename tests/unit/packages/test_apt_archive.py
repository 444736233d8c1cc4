# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The archive of the distribution in the sources of the host: output recorded from apt 2.6.2."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_archive import (
    ArchiveProbe,
    indexes,
    parse_matching,
    update_archive,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Archive, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

ARCHIVE = Archive("archive", "Ubuntu's archive", "", "", origin="Ubuntu", sections=("restricted",),
                  names="nvidia|libcuda")
TARGETS = """\
Ubuntu\tmain\tamd64\thttp://archive.example.com/ubuntu/\t/lists/main_Packages
Ubuntu\trestricted\tamd64\thttp://archive.example.com/ubuntu/\t/lists/restricted_Packages
NVIDIA\t\tamd64\thttp://nvidia.example.com/cuda/\t/lists/cuda_Packages
"""
PACKAGES = """\
Package: libc6
Version: 2.36-9
Depends: libnvidia-none

Package: nvidia-utils-580-server
Architecture: amd64
Conflicts: nvidia-utils
 , another
Version: 580.126.20-0ubuntu0.24.04.1
Description: Package: nvidia-fake
 Version: 1

Package: nvidia-utils-580-server
Version: 580.105.08-0ubuntu0.24.04.1

"""
OTHER_FAILS = ("W: Failed to fetch http://nvidia.example.com/cuda/InRelease  Could not connect to 10.0.0.2:80\n"
               "W: Some index files failed to download. They have been ignored, or old ones used instead.\n")
OURS_FAILS = "E: Failed to fetch http://archive.example.com/ubuntu/dists/noble/InRelease  Unable to connect to .1:9\n"


class Apt:
    """apt-get with recorded answers."""

    def __init__(self, said: str = "", rc: int = 0, targets: str = TARGETS) -> None:
        self.said, self.rc, self.targets = said, rc, targets

    def __call__(self, argv: t.Sequence[str], *, timeout: float = 60, check: bool = True, stdin: str | None = None,
                 env: t.Mapping[str, str] | None = None, hint: str = "") -> Completed:
        if "indextargets" in argv:
            return Completed(tuple(argv), 0, self.targets, "")
        return Completed(tuple(argv), self.rc, "", self.said)


def test_indexes() -> None:
    assert [(index.origin, index.component) for index in indexes(Apt())] == [
        ("Ubuntu", "main"), ("Ubuntu", "restricted"), ("NVIDIA", "")]


def test_packages_of_a_component_alone_are_read() -> None:
    assert parse_matching(PACKAGES, ARCHIVE.names) == {
        "nvidia-utils-580-server": ["580.126.20-0ubuntu0.24.04.1", "580.105.08-0ubuntu0.24.04.1"]}


@pytest.mark.parametrize("rc", [0, 100])
def test_another_source_may_fail(rc: int) -> None:
    assert [index.component for index in update_archive(Apt(OTHER_FAILS, rc), ARCHIVE)] == ["main", "restricted"]


@pytest.mark.parametrize(("said", "targets"), [
    (OURS_FAILS, TARGETS), (OTHER_FAILS + OURS_FAILS, TARGETS), (OURS_FAILS + OTHER_FAILS, TARGETS),
    (OURS_FAILS, ""),
    ("E: The list of sources could not be read.\n", TARGETS),
])
def test_what_fails_of_the_archive_is_said(said: str, targets: str) -> None:
    with pytest.raises(RepositoryError, match="Ubuntu's archive cannot be read: .*(Unable to connect|sources could)"):
        update_archive(Apt(said, 100, targets), ARCHIVE)


@pytest.mark.parametrize(("there", "said"), [
    (set(), "Ubuntu's archive .Origin Ubuntu. is not a package source"),
    ({"main", "universe"}, "do not have the components restricted; they have main, universe"),
])
def test_sources_that_lack_something(there: set[str], said: str) -> None:
    with pytest.raises(RepositoryError, match=said):
        ArchiveProbe(Apt(), ARCHIVE)._check_sections(there)


@pytest.mark.parametrize("url", ["https://someone:hunter2@mirror.example.com/cuda/", "https://token@mirror.example.com/"])
@pytest.mark.parametrize("option", ["url", "key"])
def test_secrets_in_urls_are_refused_and_not_shown(option: str, url: str) -> None:
    given = {"url": "https://mirror.example.com/", "key": "k.pub", option: url}
    with pytest.raises(InputError, match="auth.conf.d") as caught:
        Repository("cuda", given["url"], given["key"], "A" * 40)
    assert "hunter2" not in str(caught.value.as_result()) and "token" not in str(caught.value.as_result())
    assert caught.value.details["path"] == f"repository.{option}"

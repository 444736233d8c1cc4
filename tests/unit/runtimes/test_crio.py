# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folders of CRI-O: a drop-in that takes effect, copied options of the default runtime, and other writers."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
import tomllib
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.crio import DROP_IN, FOLDER, Crio, _files, _merged
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import ProgramResult
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.played import Played, shape
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPES = pathlib.Path(__file__).parent / "shapes" / "crio"
VERSION = "crio version 1.34.2\nVersion:        1.34.2\nGitCommit:      abc"
ON_PATH = "/usr/bin/runc\n/usr/libexec/crio/runc\n/usr/libexec/crio/crun\n"


def host(name: str = "", version: str = VERSION, low_level: str = ON_PATH, **files: str) -> Played:
    there = {}
    for path in sorted((SHAPES / name).iterdir()) if name else []:
        place = "/etc/crio" if path.name == "crio.conf" else FOLDER
        there[f"{place}/{path.name}"] = shape(path)
    there.update({f"{FOLDER}/{other}": text for other, text in files.items()})
    return Played(Crio(), version, "/etc/crio/crio.conf", there, unit="crio.service", command=["/usr/bin/crio"],
                  facts={"low_level": ProgramResult(0, low_level)})


def effective(one: Played) -> t.Any:
    return _merged(_files(one.seen()))


@pytest.mark.parametrize(("name", "cloned"), [
    ("", {}),
    ("01-packaged", {"runtime_root": "/run/crun", "monitor_path": "/usr/libexec/crio/conmon",
                     "allowed_annotations": ["io.containers.trace-syscall"]}),
    ("02-main-runc", {"runtime_root": "/run/runc", "privileged_without_host_devices": True}),
    ("04-leftovers", {"runtime_root": "/run/runc", "monitor_path": "/usr/libexec/crio/conmon"}),
    ("05-kata-inline-crlf", {"monitor_env": ["PATH=/usr/bin"]}),
])
def test_shape(name: str, cloned: dict[str, t.Any]) -> None:
    one = host(name)
    former = dict(one.files)
    before = effective(one)
    changed = one.converge()
    assert [change.path for change in changed.changes] == [DROP_IN]
    after = effective(one)
    assert after.default == "nvidia"
    assert after.runtimes["nvidia"] == {"runtime_path": "/usr/bin/nvidia-container-runtime", "runtime_type": "oci",
                                        **cloned}
    assert {name: table for name, table in after.runtimes.items() if name != "nvidia"} == before.runtimes
    assert (changed.action, changed.needs) == ("reload", "never")
    trial = changed.trials[0]
    texts = [trial.files[name] for name in sorted(trial.files)]
    assert texts == [text for path, text in _files(one.seen()).items() if path != one.config]
    assert trial.argv[1:3] == ["--config", one.config if one.config in former else ""]
    again = one.propose()
    assert (again.changes, again.trials, again.warnings) == ([], [], [])
    one.files[DROP_IN] = one.files[DROP_IN].replace("nvidia-container-runtime", "x")
    assert one.converge().changes[0].reason == "the file was edited after a run had written it"
    one.remove()
    assert one.files == former


def test_effect_is_that_of_nvidia_ctk() -> None:
    """nvidia-ctk 1.20.1 created the vendor's drop-in from the same packaged file."""
    theirs = effective(host("06-ctk-1.20.1"))
    one = host("01-packaged")
    one.converge()
    ours = effective(one)
    assert (ours.default, ours.runtimes) == (theirs.default, theirs.runtimes)
    assert host("06-ctk-1.20.1").propose().changes == []  # somebody has configured it already


def test_foreign_files_are_named() -> None:
    with pytest.raises(HostError, match=r"99-nvidia\.toml of the NVIDIA GPU Operator or 'nvidia-ctk"):
        host("03-foreign").propose()
    with pytest.raises(HostError, match=r"99-nvidia\.toml~, which looks like a backup of an editor, also sets"):
        host(**{"99-nvidia.toml~": '[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n'}).propose()
    with pytest.raises(HostError, match=r"zz/site\.conf also sets default_runtime and is read after"):
        host(**{"zz/site.conf": '[crio.runtime]\ndefault_runtime = "runc"\n'}).propose()
    one = host(**{"zz/site.conf": '[crio.runtime]\ndefault_runtime = "runc"\n'})
    assert one.converge(set_as_default=False).changes
    assert effective(one).default == "runc"


def test_leftovers_and_strays_are_told() -> None:
    one = host("04-leftovers")
    one.files["/etc/crio/conf.d/99-nvidia.toml"] = "[crio]\n"
    leftovers, stray = one.propose().warnings
    assert leftovers.endswith(f"{FOLDER}/10-crio.conf.rpmsave, {FOLDER}/50-site.conf~.")
    assert "/etc/crio/conf.d/99-nvidia.toml has no effect" in stray


def test_low_level_runtime_is_found() -> None:
    assert host("01-packaged").propose().settings == {}
    one = host("01-packaged", low_level="/usr/libexec/crio/runc\n/usr/libexec/crio/crun\n")
    wanted = {"nvidia-container-runtime.runtimes": ["/usr/libexec/crio/runc", "/usr/libexec/crio/crun"]}
    assert one.converge().settings == wanted
    assert one.propose().settings == wanted
    assert host("01-packaged", low_level="").propose().settings == {}


@pytest.mark.parametrize(("version", "act"), [("crio version 1.25.4", "restart"), ("crio version 1.26.0", "reload"),
                                              ("Version:  1.24.1", "restart"), ("", "reload")])
def test_act(version: str, act: str) -> None:
    assert host("01-packaged", version).propose().action == act


@pytest.mark.parametrize(("version", "default"), [("crio version 1.30.2", "runc"), ("crio version 1.31.0", "crun")])
def test_built_in_default(version: str, default: str) -> None:
    one = host(version=version)
    assert one.propose().previous_default == default
    one.files[f"{FOLDER}/10.conf"] = "".join(f'[crio.runtime.runtimes.{name}]\nruntime_root = "/run/{name}"\n'
                                             for name in ("crun", "runc"))
    one.converge()
    assert effective(one).runtimes["nvidia"]["runtime_root"] == f"/run/{default}"


def test_another_folder_is_refused() -> None:
    one = host()
    one.command = ["/usr/bin/crio", "--config-dir", "/srv/crio.d"]
    with pytest.raises(HostError, match="is started with --config-dir /srv/crio.d, so it does not read"):
        one.propose()


def test_another_place_for_our_file() -> None:
    one = host("01-packaged")
    with pytest.raises(InputError, match="drop_in_path: CRI-O does not read this file"):
        one.propose(drop_in_path="/etc/containerd/conf.d/x.toml")
    one.converge()
    changed = one.converge(drop_in_path=f"{FOLDER}/50-gpu.conf")
    assert [(change.path, change.after is None) for change in changed.changes] == [
        (DROP_IN, True), (f"{FOLDER}/50-gpu.conf", False)]
    assert effective(one).default == "nvidia"


def test_rejected_candidate() -> None:
    one = host("01-packaged")
    with pytest.raises(HostError, match="crio rejects the candidate for .*: no such thing"):
        one.runtime.check_trials(one.seen(), [ProgramResult(1, "", "level=info msg=x\nno such thing\n")],
                                 Options(True, True, "auto"), one.propose())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["10.conf", "99-a.conf", "a/b.toml", ".x", "99-h"]), st.sampled_from([
    "", "x", "[crio", "[crio.runtime]\nruntimes = 5\n", "[crio.runtime.runtimes]\nnvidia = 1\n", "crio = 1\n",
    '[crio.runtime]\ndefault_runtime = "kata"\n[crio.runtime.runtimes.kata]\nruntime_type = "vm"\n',
    '[crio.runtime.runtimes.nvidia]\nruntime_path = "/y"\n', "[crio.runtime]\ndefault_runtime = 5\n"])), max_size=4),
    st.booleans())
def test_any_files(files: list[tuple[str, str]], default: bool) -> None:
    one = host(**dict(files))
    former = dict(one.files)
    try:
        one.converge(set_as_default=default)
    except HostError:
        assert one.files == former
        return
    for text in one.files.values():
        tomllib.loads(text)
    assert effective(one).runtimes["nvidia"]["runtime_path"] == "/usr/bin/nvidia-container-runtime"
    assert one.propose(set_as_default=default).changes == []
    one.remove()
    assert one.files == former


def test_a_daemon_that_has_not_read_its_files_reads_them_again() -> None:
    one = host()
    one.converge()
    assert one.propose().due_reason == ""
    one.stale = True
    proposal = one.propose()
    assert (proposal.changes, proposal.action, proposal.due_reason) == (
        [], "reload", "its files have changed since it was started")

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs each parser of external data on random inputs. Each parser reads an input or refuses it with an error of this
collection.

C(corpus.json) has the inputs on which a parser has failed: a list of inputs for each parser; a text can be given as
C({"parts": [[text, times], ...]}). README.md describes the purpose of a run.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import parse_record
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards, checkpoint_file, planning, profile_names
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import debian_key, rpm_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import yamltext
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import compare
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_mig, sharing
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import json_text, toml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toolkit_steps import mask
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests import fuzz
from tests.fuzz import in_clusters, on_hosts
from tests.fuzz.inputs import Target, data, words

CORPUS = Path(__file__).with_name("corpus.json")
# For one input, in seconds of the processor and in bytes that the process grows by.
LIMIT, ROOM = 2.0, 200 * 2**20


def _toml_edit(text: str) -> None:
    document = toml.Document(text, "f")
    if document.text != text:
        raise AssertionError("reading has changed the text")
    document.set(("a", "b"), ["x"])
    document.remove_bare_headers([])
    document.remove(("a", "b"))


def _json_edit(text: str) -> None:
    document = json_text.Document(text, "f")
    document.set(("a", "b"), ["x"])
    document.remove(("a", "b"))


def _yaml(text: str) -> None:
    for document in yamltext.parse(text, "f"):
        sharing.read(document)


def _versions(pair: tuple[str, str]) -> None:
    for key in (debian_key, rpm_key):
        first, second = key(pair[0]), key(pair[1])
        if (first < second) + (first == second) + (first > second) != 1:
            raise AssertionError("no order")


def _gpu() -> planning.Gpu:
    profiles = boards.profiles_of("20b2") or []
    target = profile_names.Target("0000:07:00.0", 0, "20b2", "10de:0000", "A100", profiles)
    return planning.Gpu(target, Board(profiles), (True, True))


def _mig(document: Any) -> None:
    gpu = _gpu()
    if not isinstance(document, dict):
        return  # the module's options take mappings only
    for path, device in checkpoint_file.read(document).values():
        checkpoint_file.goal_of(gpu, path, device)


def _layout(entry: Any) -> None:
    goal = planning.goal_from_json(_gpu(), entry, "f")
    if not Board(boards.profiles_of("20b2") or []).holds(goal.layout):
        raise AssertionError("a layout that no GPU can have")


def _checkpoints() -> st.SearchStrategy[Any]:
    odd = data("UUID", "v1")
    number = st.one_of(st.integers(-1, 9), odd)
    instances = st.fixed_dictionaries({
        "ProfileID": number, "Placement": st.one_of(odd, st.fixed_dictionaries({"Start": number, "Size": number})),
        "ComputeInstances": st.one_of(odd, st.lists(st.fixed_dictionaries({"ProfileID": number}), max_size=8))})
    devices = st.fixed_dictionaries({"UUID": st.one_of(st.just("GPU-1"), odd), "MigMode": st.one_of(st.just(1), number),
                                     "GpuInstances": st.one_of(odd, st.lists(instances, max_size=3))})
    return st.fixed_dictionaries({"Version": st.just("v1"), "MigState": st.fixed_dictionaries({
        "Devices": st.one_of(odd, st.lists(devices, max_size=2))})})


def _entries() -> st.SearchStrategy[Any]:
    odd = data("3g.40gb", "1")
    number = st.one_of(st.integers(-1, 8), odd)
    part = st.one_of(odd, st.lists(number, min_size=2, max_size=2))
    instance = st.fixed_dictionaries({"profile": st.one_of(st.sampled_from(["1g.10gb", "3g.40gb", "7g.80gb"]), odd),
                                      "start": number, "compute": st.one_of(odd, st.lists(part, max_size=3))})
    return st.fixed_dictionaries({"enabled": st.booleans(),
                                  "instances": st.one_of(odd, st.lists(st.one_of(instance, odd), max_size=3))})


TOML = words("a", "b", "[", "]", "[[a]]\n", "[a.b]\n", "{", "}", "=", " = 1\n", ".", ",", "\n", "\r\n", '"', "'", '"""',
             "'''", "\\", "#", "9", "a = ", 'a = "x"\n', "1979-05-27", "token = ", "://u:p@h", "\ufeff")
JSON = words("{", "}", "[", "]", '"', '"a"', ":", ",", "1", "-", "e9", ".", "\\", "\\u00", "null", "\n", "//", "\ufeff")
YAML = words("a", "b: ", "\n", "\n  ", "- ", "? ", ": ", "[", "]", "{", "}", ",", "&a ", "*a", "<<: ", "!!bool ",
             "!!int ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ", "!!float ", "9", "0x", ":1", "---\n", "|", ">",
             "\t", "'", '"', "#", "%", "timeSlicing: ", "resources: ", "2026-01-01", "\x00", "{{ x }}")
TARGETS: dict[str, Target] = {
    "toml": Target(TOML, _toml_edit),
    "json": Target(JSON, _json_edit),
    "masks": Target(st.one_of(TOML, JSON), mask),
    "yaml": Target(YAML, _yaml),
    "sharing": Target(data("version", "v1", "sharing", "timeSlicing", "mps", "resources", "name", "nvidia.com/gpu",
                           "replicas", "devices", "flags", "configs", "default", "kind", "ConfigMap", "data",
                           "metadata"),
                      lambda one: sharing.read(yamltext.Document(one))),
    "MIG layouts": Target(words("mig-configs: ", "a", "off", ":", "\n", "\n  ", "- ", "? ", "[", "]", "{", "}", ",",
                                "&a ", "*a", "<<: ", "---\n", "1", "!!bool ", "'", "\x00"),
                          lambda text: cluster_mig.names_in({"config.yaml": text})),
    "versions": Target(st.tuples(*[words("1", "9", "0", ".", "-", ":", "~", "^", "+", "a", "\u0663", "\u00b2")] * 2),
                       _versions),
    "quantities": Target(st.one_of(words("1", "9", ".", "e", "E", "+", "-", "k", "Ki", "m"), data("1")),
                         compare.quantity),
    "records": Target(words("1.0 (595.1.2)\n", "x\n", "1: /a\n", "0: /a\n", "2: /a\n", "100: /a\n", "9", " ", "0644",
                            "\n", "1 100644 0 0\n", "(", ")", "..", "/", "\u00b2", "\0"),
                      lambda text: parse_record(text, text)),
    "checkpoints": Target(_checkpoints(), _mig),
    "layouts": Target(_entries(), _layout),
    "policies": Target(st.integers(10 ** 6, 2 ** 60), lambda number: fuzz.once(number, Path(on_hosts.folder().name))),
    **on_hosts.TARGETS,
    **in_clusters.TARGETS,
}


def corpus(name: str) -> list[Any]:
    """The inputs on which this parser has failed before."""
    def whole(one: Any) -> Any:
        if isinstance(one, dict):
            return "".join(text * times for text, times in one["parts"]) if set(one) == {"parts"} else {
                key: whole(value) for key, value in one.items()}
        return [whole(value) for value in one] if isinstance(one, list) else one

    return [whole(one) for one in json.loads(CORPUS.read_text(encoding="utf-8")).get(name, ())]


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """A context that raises AssertionError if its body takes more CPU time, and MemoryError if it takes more memory
    than ROOM."""
    def over(*_ignored: object) -> None:
        raise AssertionError(f"it takes more than {seconds} s of the processor")

    former, limits = signal.signal(signal.SIGPROF, over), resource.getrlimit(resource.RLIMIT_AS)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (_pages(0) + ROOM, limits[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, former)


def _pages(field: int) -> int:
    """The bytes that this process has reserved (0) or uses (1), see proc_pid_statm(5)."""
    return int(os.pread(_statm(os.getpid()), 200, 0).split()[field]) * resource.getpagesize()


@functools.cache
def _statm(process: int) -> int:
    """The open statm file of this process: opening it for each input would take a tenth of the time."""
    return os.open(f"/proc/{process}/statm", os.O_RDONLY)


def once(name: str, one: Any, seconds: float = LIMIT) -> str:
    """The result for an input: C(read) or C(refused). Raises all errors except that of the parser."""
    with limited(seconds):
        try:
            TARGETS[name].act(one)
        except TARGETS[name].refuses as error:
            if not str(error) or len(str(error)) > 20_000:
                raise AssertionError("the message is empty or without bounds") from error
            return "refused"
    return "read"


@dataclass
class Tally:
    """The results of the inputs of a parser. seconds: total CPU time; slowest: that of the slowest input; peak: growth
    of the process in bytes."""

    read: int = 0
    refused: int = 0
    rounds: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    peak: int = 0

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.read + self.refused

    def add(self, other: Tally) -> None:
        """Counts another round."""
        self.read, self.refused = self.read + other.read, self.refused + other.refused
        self.rounds, self.seconds = self.rounds + 1, self.seconds + other.seconds
        self.slowest, self.peak = max(self.slowest, other.slowest), max(self.peak, other.peak)


def search(name: str, number: int, examples: int = 1000) -> Tally:
    """Tries random inputs; the same number gives the same inputs. A failure is raised with the smallest input that
    causes it."""
    tally, base = Tally(), _pages(1)

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(TARGETS[name].inputs)
    def attempt(one: Any) -> None:
        start = time.process_time()
        came = once(name, one)
        tally.slowest = max(tally.slowest, time.process_time() - start)
        setattr(tally, came, getattr(tally, came) + 1)

    attempt()
    tally.peak = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - base, 0)
    return tally


def _failure(error: BaseException) -> str:
    """The place, the reason and the input of a failure, each shortened, because an input can be long."""
    parts = []
    for one in getattr(error, "exceptions", [error]):
        parts += ["".join(traceback.format_tb(one.__traceback__)[-3:]), f"{type(one).__name__}: {one}",
                  *getattr(one, "__notes__", ())]
    return "\n".join(part if len(part) < 2000 else f"{part[:2000]} ..." for part in parts)


def apart(name: str, number: int, examples: int) -> Tally:
    """The same as L(search) in a separate process, whose memory is measured. Raises AssertionError with the failure."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        told = {"failure": "the process ended early"}
        try:
            told = asdict(search(name, number, examples))
        except BaseException as error:
            told = {"failure": _failure(error)}
        finally:
            os.write(theirs, json.dumps(told).encode())
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        answer = json.loads(stream.read() or b'{"failure": "the process was killed"}')
    _child, _status, used = os.wait4(child, 0)
    if "failure" in answer:
        raise AssertionError(answer["failure"])
    return Tally(**{**answer, "seconds": used.ru_utime + used.ru_stime})

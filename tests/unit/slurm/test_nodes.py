# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What scontrol, sinfo and squeue print, and the mark in the reason of a node."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._slurm.nodes import (
    Job,
    Mark,
    checked_name,
    find_by_host,
    named,
    plain,
    read_jobs,
    read_node,
)

# As scontrol of Slurm 22.05 prints it.
NODE = """NodeName=n1 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=6.25
   AvailableFeatures=(null)
   Gres=gpu:a100:8
   NodeAddr=10.213.103.11 NodeHostName=gpu-1 Version=22.05.8
   OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC @0
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu
   BootTime=2026-11-27T19:38:54 SlurmdStartTime=2026-11-27T20:40:28
   CfgTRES=cpu=2,mem=1M,billing=2
{reason}
"""
RUN = "control-1/4711/81@2026-11-27T20:00:00Z"


def node_text(state: str, reason: str = "") -> str:
    """The output for a node. reason: the whole text after C(Reason=)."""
    return NODE.format(state=state, reason=f"   Reason={reason}" if reason else "")


@pytest.mark.parametrize(("state", "states"), [
    ("IDLE", {"IDLE"}), ("MIXED+DRAIN", {"MIXED", "DRAIN"}),
    ("DOWN+DRAIN+NOT_RESPONDING", {"DOWN", "DRAIN", "NOT_RESPONDING"}),
    ("IDLE*+DRAIN", {"IDLE", "DRAIN", "NOT_RESPONDING"})])
def test_states(state: str, states: set[str]) -> None:
    node = read_node(node_text(state))
    assert (node.name, node.host, node.states, node.reason) == ("n1", "gpu-1", states, "")
    assert node.drained is ("DRAIN" in states) and node.down is ("DOWN" in states)
    assert node.responds is ("NOT_RESPONDING" not in states) and node.has_jobs is ("MIXED" in states)


@pytest.mark.parametrize(("printed", "reason"), [
    ("disk 3 [root@2026-11-27T20:40:51]", "disk 3"), ("a [b] [c@d] [root@2026-11-27T20:40:51]", "a [b] [c@d]"),
    ("without a signature", "without a signature"), ("State=IDLE [root@2026-11-27T20:40:51]", "State=IDLE")])
def test_reasons(printed: str, reason: str) -> None:
    node = read_node(node_text("IDLE+DRAIN", printed))
    assert node.reason == reason and node.states == {"IDLE", "DRAIN"} and node.mark is None


def test_a_text_of_an_operator_is_no_field() -> None:
    node = read_node(node_text("IDLE+DRAIN", "first") + "   Comment=x\n   State=ALLOCATED\n   Reason=second\n")
    assert node.states == {"IDLE", "DRAIN"} and node.reason == "first"


@pytest.mark.parametrize("text", [
    "", "Node n9 not found\n", node_text("idle"), node_text("IDLE") * 2,
    node_text("IDLE").replace("=n1 ", "=n[1-2] "), node_text("IDLE").replace("State", "Stato")])
def test_another_form_is_an_error(text: str) -> None:
    with pytest.raises(HostError, match="in a form that is not known"):
        read_node(text)


def test_a_mark_is_read_as_it_was_written() -> None:
    for mark in (Mark("driver 595.91.07", RUN), Mark("apt: (it) failed", RUN, True), Mark("d", RUN, False, ""),
                 Mark("driver", RUN, True, "the fan [of rack 3] (run y)")):
        assert Mark.read(mark.text) == mark
        signed = read_node(node_text("IDLE+DRAIN", f"{mark.text} [root@2026-11-27T20:40:51]"))
        assert signed.mark == mark and read_node(node_text("IDLE", mark.text)).mark is None
    assert Mark("driver 595.91.07", RUN).text == f"gpuops: driver 595.91.07 (run {RUN})"
    quoted = Mark.read(Mark("apt (run x/1/2@y) failed", RUN, True).text)
    assert quoted == Mark("apt [run x/1/2@y) failed", RUN, True)
    assert Mark("", RUN).text == f"gpuops: a change (run {RUN})"


@pytest.mark.parametrize("reason", ["", "gpuops: by hand", "disk", f"see gpuops: driver (run {RUN})",
                                    f"gpuops: driver (run {RUN}) and more", "gpuops: driver (run a b)"])
def test_the_reason_of_somebody_else_is_no_mark(reason: str) -> None:
    assert Mark.read(reason) is None


def test_the_same_run_at_another_time() -> None:
    mark = Mark("driver", RUN)
    assert mark.is_of("control-1/4711/81@2026-11-27T21:30:00Z")
    assert not mark.is_of("control-1/4711/82@2026-11-27T20:00:00Z") and not mark.is_of("control-2/4711/81@x")


def test_texts_for_slurm_and_terminals() -> None:
    assert plain("a\nb\x1b[2J\u202e  \t c") == "a b [2J c"
    assert len(plain("x" * 1000)) == 400 and plain("x" * 1000).endswith("...")
    long = Mark("é" + "x" * 1000 + "\n", RUN, True, "y\n" * 1000)
    read = Mark.read(long.text)
    assert read is not None and read.failed and read.is_of(RUN) and len(read.what) == 400


@pytest.mark.parametrize("name", ["n[1-3]", "a,b", "-a", "", "a b", "ALL=", "n\n", "x" * 256])
def test_a_name_is_that_of_one_node(name: str) -> None:
    with pytest.raises(InputError, match="gpu_slurm_node_name"):
        checked_name(name)


def test_the_node_of_a_host() -> None:
    text = "gpu-1|n1\ngpu-2|n2\ngpu-3|n3\ngpu-3|n4\nbad\ngpu-4|n[1-2]\n"
    assert find_by_host(text, ["gpu-2.example.com", "gpu-2"]) == "n2"
    for host, found in (("gpu-9", "is no node of Slurm"), ("gpu-3", "is the nodes n3, n4 of Slurm"),
                        ("gpu-4", "is no node")):
        with pytest.raises(HostError, match=found):
            find_by_host(text, [host])


def test_jobs() -> None:
    jobs = read_jobs("12|RUNNING|trainer\n13|COMPLETING|a b\x1b[2J\nerror: x\n\n14|what|trainer@example\n15\n")
    assert jobs == [Job("12", "RUNNING", "trainer"), Job("13", "COMPLETING", "an unknown user"),
                    Job("14", "UNKNOWN", "trainer@example"), Job("15", "UNKNOWN", "an unknown user")]
    assert named(jobs[:2]) == "job 12 of trainer (running), job 13 of an unknown user (completing)"
    assert named([Job(str(one), "RUNNING", "trainer") for one in range(12)]).endswith("job 9 of trainer (running) and "
                                                                                       "2 more")

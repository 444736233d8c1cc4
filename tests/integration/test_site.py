# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of three hosts: preview, converge, converged, drift and repair, status, removal."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts
from tests.integration.converged import HOSTS, Converged, converge

MIG_HOST = "gpu-a1"
# A user's own site.yml: one line that imports ours.
EXAMPLE = "ansible_collections/gpuops/nvidia/examples/one-host/site.yml"


@pytest.fixture(scope="module")
def hosts(lab: LabHosts) -> Converged:
    """The hosts, booted from the disks after the first run."""
    found = converge(lab)
    for host in HOSTS:
        lab.reset(host, found.disks[host])
    return found


def test_the_checkout_is_not_seen() -> None:
    shown = user.ansible("ansible-galaxy", "collection", "list", "gpuops.nvidia")
    assert "0.1.0" in shown.output
    assert shown.output.count("gpuops.nvidia") == 1, shown.output


def test_check_before_the_first_run_changes_nothing(hosts: Converged) -> None:
    assert hosts.preview.rc == 0, hosts.preview.output
    for host in HOSTS:
        assert hosts.previewed[host] == hosts.untouched[host], host
    assert set(hosts.preview.steps(MIG_HOST)) == {"nvidia_driver", "container_toolkit", "mig_config",
                                                  "nvidia_software"}


def test_the_first_run_does_the_steps_that_check_named(hosts: Converged) -> None:
    for host in HOSTS:
        assert hosts.first.steps(host) == hosts.preview.steps(host), host


def test_what_the_hosts_then_are(lab: LabHosts, hosts: Converged) -> None:
    versions = lab.sh("gpu-a1", "nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    assert set(versions.split()) == {"595.91.07"}
    # Nothing was said of boots: the layout is there again after one.
    cut = lab.sh("gpu-a1", "nvidia-smi -L | grep -c 'MIG 1g.10gb'; systemctl is-enabled gpuops-mig.service")
    assert cut.split() == ["56", "enabled"]
    assert lab.sh("gpu-a2", "nvidia-smi -L | grep -c '^GPU '").strip() == "8"
    assert "MIG" not in lab.sh("gpu-a2", "nvidia-smi -L")
    assert lab.sh("gpu-l1", "nvidia-smi -L | grep -c 'L40S'").strip() == "4"
    for host in HOSTS:
        assert "nvidia" in lab.sh(host, "containerd config dump | grep -A8 'runtimes.nvidia'")
        assert lab.sh(host, "systemctl is-active containerd").strip() == "active"
    labels = hosts.first.result("gpu-a1", "gpu_labels")["labels"]
    assert labels["nvidia.com/gpu.count"] == "56"
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    assert hosts.first.result("gpu-l1", "gpu_labels")["labels"]["nvidia.com/gpu.product"] == "NVIDIA-L40S"


def test_the_second_run_changes_nothing(lab: LabHosts, hosts: Converged) -> None:
    marks = "systemctl show -p MainPID containerd; stat -c '%i %Y %n' /etc/containerd/*.toml /etc/apt/sources.list.d/*"
    before = {host: lab.sh(host, marks) for host in HOSTS}
    again = user.playbook(f"{user.collections()}/{EXAMPLE}", lab.wishes, cold=True)
    assert again.rc == 0, again.output
    for host in HOSTS:
        assert again.changed(host) == [], host
        executed = again.of(host)
        on_host = [line for line in executed if line["action"] not in user.ON_CONTROLLER]
        assert len(executed) <= 25, [line["task"] for line in executed]
        assert len(on_host) <= 8, [line["task"] for line in on_host]
        assert lab.sh(host, marks) == before[host]
    assert "gpu-a1" in again.output and "mig_manager" in again.output


def test_drift_is_repaired_exactly(lab: LabHosts, hosts: Converged) -> None:
    lab.sh("gpu-a2", "sed -i '/nvidia-container-runtime/d' /etc/containerd/config.toml")
    lab.sh("gpu-l1", "dpkg --purge --force-depends nvidia-persistenced")
    lab.sh("gpu-a1", "nvidia-smi mig -dci -i 3 -gi 9 && nvidia-smi mig -dgi -i 3 -gi 9")
    repair = user.playbook("site", lab.wishes, "--diff")
    assert repair.rc == 0, repair.output
    assert set(repair.steps("gpu-a2")) == {"container_toolkit"}
    assert set(repair.steps("gpu-l1")) == {"nvidia_driver"}
    assert any("nvidia-persistenced" in step for step in repair.steps("gpu-l1")["nvidia_driver"])
    assert set(repair.steps("gpu-a1")) == {"mig_config"}
    assert len(repair.steps("gpu-a1")["mig_config"]) == 1
    assert "1g.10gb" in repair.steps("gpu-a1")["mig_config"][0]
    assert lab.sh("gpu-a1", "nvidia-smi -L | grep -c 'MIG 1g.10gb'").strip() == "56"
    assert "nvidia-container-runtime" in lab.sh("gpu-a2", "containerd config dump")
    assert "ii" in lab.sh("gpu-l1", "dpkg -l nvidia-persistenced | tail -1")
    check = user.playbook("site", lab.wishes, "--check", "--diff")
    assert check.rc == 0, check.output
    assert [check.steps(host) for host in HOSTS] == [{}, {}, {}]


def test_what_files_and_packages_do_not_show_is_seen_and_repaired(lab: LabHosts, hosts: Converged,
                                                                  tmp_path: Path) -> None:
    library = lab.sh("gpu-l1", "readlink -f /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").strip()
    # With its number, which nodes of the lab do not have and one that is made anew has: so that it is the same again.
    lab.sh("gpu-l1", "rm /dev/nvidia2; mknod -m 666 /dev/nvidia2 c 195 2; systemctl start gpuops-cdi-refresh")
    # Not the first node, by whose closing the lab notices that somebody has let the GPUs go.
    lab.sh("gpu-l1", f"rm {library} /dev/nvidia2; chmod 000 /dev/nvidia3")
    lab.sh("gpu-a2", "rm /usr/bin/nvidia-ctk /etc/nvidia-container-runtime/config.toml; "
                     "rm /etc/modprobe.d/gpuops-nouveau.conf")
    lab.sh("gpu-a1", "touch /etc/containerd/config.toml")
    began = lab.sh("gpu-a1", "systemctl show -p MainPID --value containerd")
    verify = user.playbook("verify", lab.wishes)
    bundle = tmp_path / "support.tar.gz"
    status = user.playbook("diagnose", lab.wishes, gpu_support_bundle=str(bundle))
    assert (verify.rc != 0, status.rc) == (True, 0), status.output
    found, = [line["result"]["diagnoses"] for line in status.results if line["action"].endswith(".gpu_diagnosis")]
    first = {host: one["causes"][0] for one in found for host in one["machines"] if one["causes"]}
    assert {host: cause["concern"] for host, cause in first.items()} == {
        "gpu-a1": "container toolkit", "gpu-a2": "driver", "gpu-l1": "driver"}
    assert library in first["gpu-l1"]["cause"], found
    with tarfile.open(bundle) as archive:
        assert {f"gpu-support/hosts/{host}/{name}" for host in HOSTS for name in ("facts.json", "services.log")} <= {
            *archive.getnames()}
    for words in (library, "/dev/nvidia2: missing", "/dev/nvidia3: mode 0000", "/usr/bin/nvidia-ctk",
                  "containerd has not loaded its current configuration", "/etc/modprobe.d/gpuops-nouveau.conf"):
        assert words in verify.output, verify.output
        assert words in status.output, status.output
    drifted = {host: lab.files(host) for host in HOSTS}
    check = user.playbook("site", lab.wishes, "--check", "--diff")
    for host in HOSTS:
        assert lab.files(host) == drifted[host], host
    repair = user.playbook("site", lab.wishes, "--diff")
    assert repair.rc == 0, repair.output
    assert [repair.steps(host) for host in HOSTS] == [check.steps(host) for host in HOSTS]
    assert repair.steps("gpu-a1") == {"container_toolkit": ["restart service: containerd.service"]}
    assert "make device nodes: /dev/nvidia2 /dev/nvidia3" in repair.steps("gpu-l1")["nvidia_driver"]
    assert lab.sh("gpu-a1", "systemctl show -p MainPID --value containerd") != began
    nodes = lab.sh("gpu-l1", "stat -c %F:%a /dev/nvidia2 /dev/nvidia3")
    assert nodes.splitlines() == ["character special file:666"] * 2
    lab.sh("gpu-a2", "nvidia-ctk --version; test -s /etc/nvidia-container-runtime/config.toml")
    again = user.playbook("site", lab.wishes)
    assert [again.changed(host) for host in HOSTS] == [[], [], []]
    assert user.playbook("verify", lab.wishes).rc == 0


def test_the_health_of_gpus_is_told(lab: LabHosts, hosts: Converged, tmp_path: Path) -> None:
    """Status and verify show it and do not fail; hosts with the same problem share a row. A GPU that is lost is an
    error."""
    document = tmp_path / "report.json"
    faults = {"gpu-a2": "xid 1 95 2; gpusim fault set remap-pending 3; gpusim fault set nvlink-down 2 5",
              "gpu-l1": "xid 0 95; gpusim fault set slowdown 1 64; gpusim fault set recovery 2 1"}
    try:
        for host, words in faults.items():
            lab.sh(host, f"gpusim fault set {words}; until grep -q 'Xid.*95' /dev/kmsg; do sleep 0.1; done")
        metrics = tmp_path / "states.prom"
        status = user.playbook("status", lab.wishes, gpu_report_json=str(document),
                               gpu_status_metrics_file=str(metrics))
        verify = user.playbook("verify", lab.wishes)
        assert (status.rc, verify.rc) == (0, 0), status.output + verify.output
        found = {(one["host"], one["check"], one["severity"]): one for one in
                 json.loads(document.read_text())["findings"]}
        assert set(found) == {
            ("gpu-a2", "xid", "warning"), ("gpu-a2", "ecc", "warning"), ("gpu-a2", "nvlink", "warning"),
            ("gpu-l1", "xid", "warning"), ("gpu-l1", "slowdown", "warning"), ("gpu-l1", "gpu_recovery", "error")}
        states = json.loads(document.read_text())["states"]
        assert {host: (one["state"], one["reason"], one["drift"]) for host, one in states.items()} == {
            "gpu-a1": ("Ready", "AsPlanned", False), "gpu-a2": ("Degraded", "Xid", False),
            "gpu-l1": ("Degraded", "GpuRecovery", False)}, status.output
        assert "States: 1 Ready, 2 Degraded" in status.output
        assert 'gpuops_node_state{node="gpu-l1",state="Degraded"} 1' in metrics.read_text()
        failing = user.playbook("status", lab.wishes, gpu_status_fail_on=["NotReady", "Degraded"])
        assert failing.rc != 0 and "2 Degraded (gpu-a2, gpu-l1)." in failing.output, failing.output
        xids = [found[host, "xid", "warning"] for host in faults]
        assert xids[0]["text"] == xids[1]["text"] and "2 times until " in xids[0]["detail"]
        for words in ("Findings:", "Xid 95", "--gpu-reset", "2 times"):
            assert words in status.output and words in verify.output, status.output
        lab.sh("gpu-l1", "gpusim fault set gpu-lost 3")
        preflight = user.playbook("preflight", lab.wishes, gpu_report_json=str(document))
        lost = [one for one in json.loads(document.read_text())["findings"] if one["check"] == "gpu_lost"]
        assert preflight.rc != 0 and [(one["host"], one["severity"]) for one in lost] == [("gpu-l1", "error")]
    finally:
        for host in faults:
            lab.sh(host, "gpusim fault clear; until [ ! -s /dev/kmsg ]; do sleep 0.1; done")


def test_a_gpu_that_needs_a_reset_gets_it_once(lab: LabHosts, hosts: Converged) -> None:
    """The MIG layout of the GPU is applied again. A second reset needs a person."""
    def remediate(*words: str, **more: str) -> user.Run:
        return user.playbook("remediate", lab.wishes, *words, gpu_disruption="idle", **more)

    address = lab.sh("gpu-a1", "nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader -i 2").strip().lower()[4:]

    def resets(run: user.Run) -> bool:
        result = run.result("gpu-a1", "gpu_reset")
        return result["changed"] and [step["id"] for step in result["plan"]] == [f"reset GPU: {address}"]

    try:
        lab.sh("gpu-a1", "gpusim fault set recovery 2 1")
        before = remediate("--check")
        assert before.rc == 0 and resets(before), before.output
        done = remediate()
        assert done.rc == 0 and resets(done), done.output
        assert lab.sh("gpu-a1", "nvidia-smi -L | grep -c 'MIG 1g.10gb'").strip() == "56"
        assert lab.sh("gpu-a1", "gpusim fault list").count("recovery:") == 0
        assert not done.changed("gpu-a2") and not done.changed("gpu-l1")
        lab.sh("gpu-a1", "gpusim fault set recovery 2 1")
        refused = remediate()
        assert refused.rc != 0 and not refused.changed("gpu-a1"), refused.output
        assert "so a person has to look at it" in str(refused.errors()) and address in str(refused.errors())
        again = remediate(gpu_remediate_again="true")
        assert again.rc == 0 and resets(again), again.output
        calm = remediate()
        assert calm.rc == 0 and not calm.changed("gpu-a1"), calm.output
    finally:
        lab.sh("gpu-a1", "gpusim fault clear; rm -f /var/lib/gpuops/remedies.json")


def test_a_runtime_that_somebody_has_stopped_is_told_and_left(lab: LabHosts, hosts: Converged) -> None:
    lab.sh("gpu-a1", "systemctl disable --now containerd")
    verify = user.playbook("verify", lab.wishes)
    assert verify.rc == 0 and "containerd does not run" in verify.output, verify.output
    run = user.playbook("site", lab.wishes)
    assert run.rc == 0 and run.changed("gpu-a1") == [], run.output
    pending, = run.result("gpu-a1", "container_toolkit")["pending"]
    assert pending["id"] == "start service: containerd.service"
    lab.sh("gpu-a1", "systemctl enable --now containerd")
    assert user.playbook("verify", lab.wishes).rc == 0


def test_status_and_verify_say_what_is_there(lab: LabHosts, hosts: Converged) -> None:
    status = user.playbook("status", lab.wishes)
    assert status.rc == 0 and all(host in status.output for host in HOSTS), status.output
    assert all(not status.changed(host) for host in HOSTS)
    verify = user.playbook("verify", lab.wishes)
    assert verify.rc == 0, verify.output
    lab.sh("gpu-a1", "nvidia-smi mig -dci -i 2 -gi 9 && nvidia-smi mig -dgi -i 2 -gi 9")
    broken = user.playbook("verify", lab.wishes)
    lab.sh("gpu-a1", "nvidia-smi mig -cgi 1g.10gb -C -i 2")
    assert broken.rc != 0 and "mig" in broken.output.lower()


def test_remove_leaves_what_was_there_before(lab: LabHosts, hosts: Converged) -> None:
    removed = user.playbook("remove", lab.wishes, "--diff")
    assert removed.rc == 0, removed.output
    for host in HOSTS:
        assert lab.snapshot(host) == hosts.before[host], host
        assert "gpuops" not in lab.sh(host, "ls -A /var/lib /usr/local/lib /etc")
    again = user.playbook("remove", lab.wishes)
    assert again.rc == 0, again.output
    assert [again.changed(host) for host in HOSTS] == [[], [], []]

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi of the simulated machine: the texts and exit codes that scripts rely on, and the output of gpusim."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from tests.conformance.conftest import Machine

Make = Callable[..., Machine]


def smi(host: Machine, *words: str, status: int = 0) -> str:
    result = host.run("nvidia-smi", *words)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout


def query(host: Machine, fields: str, *words: str) -> list[str]:
    return smi(host, f"--query-gpu={fields}", "--format=csv,noheader", *words).splitlines()


def test_list_and_query(machine: Make) -> None:
    host = machine("a100-80=1", "t4=1")
    lines = smi(host, "-L").splitlines()
    assert re.fullmatch(r"GPU 0: NVIDIA A100-SXM4-80GB \(UUID: GPU-[0-9a-f-]{36}\)", lines[0])
    assert lines[1].startswith("GPU 1: Tesla T4 ")
    fields = "index,name,driver_version,memory.total,compute_cap,mig.mode.current,mig.mode.pending,pci.bus_id"
    assert query(host, fields) == [
        "0, NVIDIA A100-SXM4-80GB, 570.172.08, 81920 MiB, 8.0, Disabled, Disabled, 00000000:07:00.0",
        "1, Tesla T4, 570.172.08, 15360 MiB, 7.5, [N/A], [N/A], 00000000:17:00.0",
    ]
    whole = smi(host, "--query-gpu=name,memory.total", "--format=csv,nounits", "-i", "00000000:17:00.0")
    assert whole == "name, memory.total [MiB]\nTesla T4, 15360\n"
    uuid = query(host, "uuid", "-i", "1")[0]
    assert query(host, "index", f"--id={uuid}") == ["1"]
    assert "No devices were found" in smi(host, "-L", "-i", "7", status=6)
    assert 'Field "nonsense" is not a valid field to query.' in smi(
        host, "--query-gpu=nonsense", "--format=csv", status=2
    )


def test_whole_table(machine: Make) -> None:
    host = machine("a100-80=1", "t4=1")
    smi(host, "-mig", "1", "-i", "0")
    smi(host, "mig", "-cgi", "9,19", "-C")
    host.sim("client", "add", "--gpu", "0", "--gi", "2", "--ci", "0", "--memory", "2048", "python3")
    lines = smi(host).splitlines()
    assert {len(line) for line in lines if line.startswith(("|", "+"))} == {91}
    assert "| NVIDIA-SMI 570.172.08             Driver Version: 570.172.08     CUDA Version: 12.8     |" in lines
    assert any("MIG devices:" in line for line in lines)
    assert any(re.search(r"0\s+2\s+0\s+\d+\s+C\s+python3\s+2048MiB", line) for line in lines)


def test_mig_life(machine: Make) -> None:
    host = machine("a100-40=2")
    assert "No MIG-enabled devices found." in smi(host, "mig", "-cgi", "19", status=6)
    assert smi(host, "-mig", "1", "-i", "0") == "Enabled MIG Mode for GPU 00000000:07:00.0\nAll done.\n"
    made = smi(host, "mig", "-i", "0", "-cgi", "9,1g.5gb:3,MIG 2g.10gb:0", "-C")
    assert "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 3g.20gb (ID  9)" in made
    made_in_3 = "compute instance ID  0 on GPU  0 GPU instance ID  3 using profile MIG 2g.10gb (ID  1)"
    assert f"Successfully created {made_in_3}" in made
    result = smi(host, "mig", "-lgi")
    assert [line.split()[2:7] for line in result.splitlines() if "MIG" in line] == [
        ["MIG", "3g.20gb", "9", "2", "4:4"],
        ["MIG", "2g.10gb", "14", "3", "0:2"],
        ["MIG", "1g.5gb", "19", "10", "3:1"],
    ]


def test_mig_mode_on_a_mixed_host(machine: Make) -> None:
    host = machine("v100=1", "a30=1")
    text = smi(host, "-mig", "1")
    assert "Not Supported\nTreating as warning and moving on.\nEnabled MIG Mode for GPU" in text
    assert query(host, "mig.mode.current") == ["[N/A]", "Enabled"]
    smi(host, "-mig", "1", "-i", "0", status=3)


def test_mig_errors_end_with_nvml_s_number(machine: Make) -> None:
    host = machine("a100-40=1")
    smi(host, "-mig", "1")
    smi(host, "mig", "-cgi", "0", "-C")
    text = smi(host, "mig", "-cgi", "19", status=23)
    assert text == (
        "Unable to create a GPU instance on GPU  0 using profile 19: Insufficient Resources\n"
        "Failed to create GPU instances: Insufficient Resources\n"
    )
    assert "In use by another client" in smi(host, "mig", "-dgi", status=19)
    pending = smi(host, "-mig", "0")
    assert "Warning: MIG mode is in pending disable state for GPU 00000000:07:00.0:In use by another client" in pending
    assert query(host, "mig.mode.current,mig.mode.pending") == ["Enabled, Disabled"]
    assert "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  0" in smi(host, "mig", "-dci")
    assert smi(host, "mig", "-dgi") == "Successfully destroyed GPU instance ID  0 from GPU  0\n"
    assert "No GPU instances found: Not Found" in smi(host, "mig", "-lgi", status=6)
    assert smi(host, "-mig", "0") == "Disabled MIG Mode for GPU 00000000:07:00.0\nAll done.\n"


def test_profiles_are_printed_like_the_vendor_s(machine: Make) -> None:
    host = machine("h100-80=1")
    listing = smi(host, "mig", "-lgip")
    rows = [line.split() for line in listing.splitlines() if "MIG" in line]
    assert [row[3] for row in rows] == ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert [row[6] for row in rows] == ["9.75", "9.75", "19.62", "19.62", "39.50", "39.50", "79.25"]
    placements = smi(host, "mig", "-lgipp")
    assert "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1\n" in placements
    assert "GPU  0 Profile ID  0 Placement : {0}:8\n" in placements


def test_before_r550_profiles_are_listed_only_while_mig_is_on(machine: Make) -> None:
    host = machine("a100-80=2")
    everything = {listing: smi(host, "mig", listing) for listing in ("-lgip", "-lgipp")}
    host.sim("driver", "535.309.01")
    for listing in everything:
        assert smi(host, "mig", listing, status=6) == "No MIG-enabled devices found.\n"
    smi(host, "-mig", "1", "-i", "1")
    for listing, text in everything.items():
        assert smi(host, "mig", listing, "-i", "0", status=6) == "No MIG-enabled devices found.\n"
        host.sim("driver", "550.90.07")
        alone = smi(host, "mig", listing, "-i", "1")
        assert smi(host, "mig", listing).splitlines() != alone.splitlines()
        host.sim("driver", "535.309.01")
        assert smi(host, "mig", listing) == alone
        assert len(alone) < len(text)


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ("driver-not-loaded", 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ("lib-mismatch", 18, "Failed to initialize NVML: Driver/library version mismatch"),
        ("init-unknown", 255, "Failed to initialize NVML: Unknown Error"),
        ("gpu-lost", 15, "Unable to determine the device handle for GPU0: GPU is lost."),
    ],
)
def test_failures(fault: str, status: int, text: str, machine: Make) -> None:
    host = machine("a100-80=1")
    host.sim("fault", "set", fault)
    assert smi(host, status=status).startswith(text)


def test_without_the_library(machine: Make) -> None:
    host = machine("t4=1")
    host.environment["LD_LIBRARY_PATH"] = "/nowhere"
    assert smi(host, status=12).startswith("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.")


def test_no_gpu(machine: Make) -> None:
    host = machine("t4=1")
    host.sim("fault", "set", "off-bus")
    assert smi(host, status=6) == "No devices were found\n"


def test_compute_apps_and_persistence(machine: Make) -> None:
    host = machine("l40s=1")
    pid = host.sim("client", "add", "--memory", "100", "/usr/bin/python3").strip()
    assert (
        smi(host, "--query-compute-apps=pid,name,used_memory", "--format=csv,noheader")
        == f"{pid}, /usr/bin/python3, 100 MiB\n"
    )
    assert "Enabled persistence mode" in smi(host, "-pm", "1")
    assert query(host, "persistence_mode,memory.used") == ["Enabled, 100 MiB"]
    assert "already Enabled" in smi(host, "-pm", "1")


def test_pci_lines(machine: Make) -> None:
    host = machine("h100-80=8")
    rows = [line.split("\t") for line in host.sim("pci").splitlines()]
    assert [row[6] for row in rows] == ["gpu"] * 8 + ["nvswitch"] * 4
    assert rows[0][:8] == ["0000:1b:00.0", "0x10de", "0x2330", "0x030200", "0x10de", "0x16c1", "gpu", "0"]
    assert rows[8][1:4] == ["0x10de", "0x22a3", "0x068000"]
    assert all(len(row) == 11 for row in rows)


def test_mixed_hosts_and_seeds(machine: Make) -> None:
    host = machine("a100-80=8", "t4=2", "v100=2")
    first = host.sim("pci")
    rows = [line.split("\t") for line in first.splitlines() if "\tgpu\t" in line]
    assert len({row[0] for row in rows}) == len({row[8] for row in rows}) == 12
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert machine("a100-80=8", "t4=2", "v100=2").sim("pci") == first
    assert machine("--seed", "other", "a100-80=8", "t4=2", "v100=2").sim("pci") != first


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["init", "a100=1"], 'there is no board "a100"; known:'),
        (["init", "t4=17"], "more than 16 GPUs"),
        (["fault", "set", "nonsense"], 'there is no fault "nonsense"'),
        (["fault", "set", "slow"], "needs a VALUE"),
        (["client", "add", "--gpu", "5", "x"], "there is no GPU 5"),
        (["nonsense"], 'there is no command "nonsense"'),
    ],
)
def test_gpusim_says_what_is_wrong(words: list[str], reason: str, machine: Make) -> None:
    host = machine("t4=1")
    before = host.sim("show")
    result: subprocess.CompletedProcess[str] = host.run("gpusim", *words)
    assert result.returncode == 2
    assert reason in result.stderr
    assert host.sim("show") == before

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of gpu_info for a lab host: files of a real Debian, a real DKMS, real control groups."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.lab.conftest import HOST, Host

IDENT = "0123456789abcdef" * 4


def facts(host: Host) -> dict[str, Any]:
    """The facts as a user gathers them."""
    inventory = host.lab("inventory").stdout.strip().splitlines()[-1]
    done = subprocess.run(["ansible", HOST, "--inventory", inventory, "--module-name", "gpuops.nvidia.gpu_info"],
                          capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{"):])
    assert found["changed"] is False
    return dict(found["facts"])


def test_bare_host(host: Host) -> None:
    kernel = host.sh("uname -r")
    found = facts(host)
    assert found["host"]["kernel"] == {
        "release": kernel, "flavour": found["host"]["kernel"]["flavour"], "headers": True, "headers_available": None,
        "headers_package": f"linux-headers-{kernel}", "newest_installed": kernel}
    assert (found["host"]["vendor"], found["host"]["machine"]) == ("gpuops lab", "Lab GPU Server")
    assert (found["host"]["secure_boot"], found["host"]["mok"]) == (False, {"tool": False, "enrolled": False})
    assert found["host"]["markers"] == {"dgx": None, "kubernetes": None, "immutable": False}
    assert (found["driver"]["source"], found["driver"]["dkms"], found["clients"]) == (None, [], [])
    assert found["nvlink"]["fabric"] == ("nvswitch" if found["nvswitches"] else "none")
    assert found["runtimes"]["containerd"]["nvidia"] is False


def test_faults_show(host: Host) -> None:
    for name in ("nouveau", "secure-boot", "no-headers"):
        host.fault(name, "on")
    try:
        found = facts(host)
    finally:
        for name in ("nouveau", "secure-boot", "no-headers"):
            host.fault(name, "off")
    assert (found["modules"]["nouveau"], found["modules"]["nouveau_denied"]) == (True, False)
    assert found["host"]["secure_boot"] is True
    # The host's apt was never told of a repository, so nobody knows whether it has the headers.
    assert (found["host"]["kernel"]["headers"], found["host"]["kernel"]["headers_available"]) == (False, None)


def test_missing_headers_are_looked_up(host: Host) -> None:
    host.add_repository()
    host.sh("apt-get update -qq")
    host.fault("no-headers", "on")
    try:
        assert facts(host)["host"]["kernel"]["headers_available"] is False
    finally:
        host.fault("no-headers", "off")


@pytest.fixture
def driven(host: Host) -> Host:
    host.add_repository()
    host.install("nvidia-open")
    host.sh("modprobe nvidia-uvm && nvidia-smi && systemctl start nvidia-persistenced")
    return host


def test_driver_and_holders(driven: Host) -> None:
    kernel = driven.sh("uname -r")
    driven.sh("systemd-run --unit training sh -c 'exec sleep 600 < /dev/nvidia0'")
    driven.until_holds("training")
    driven.sh(f"systemd-run --scope --unit docker-{IDENT} sh -c 'sleep 600 < /dev/nvidia1 > /dev/null 2>&1 &'")
    driven.fault("xid:1:79:2", "on")
    driven.until("grep -q 'Xid.*79' /dev/kmsg")
    found = facts(driven)
    driven.fault("xid", "off")
    xid, = found["xids"]
    assert (xid["pci"], xid["xid"], xid["count"]) == (found["gpus"][1]["pci"], 79, 2) and xid["first"] < xid["last"]
    assert {gpu["health"]["recovery"] for gpu in found["gpus"]} == {"none"}
    driver = found["driver"]
    assert driver["source"] == "cuda_repository" and driver["loaded"] == driver["library"]
    assert driver["dkms"] == [{"name": "nvidia", "version": driver["loaded"], "kernel": kernel, "state": "installed"}]
    assert driver["services"]["nvidia-persistenced.service"]["state"] == "active"
    assert driver["services"]["nvidia-fabricmanager.service"] == {"state": "absent", "enabled": ""}
    assert found["journals"] == {"brought": [], "faults": [], "former_driver": None}
    owners = {client["name"]: (client["unit"], client["container"]) for client in found["clients"]
              if client["gpu"] in [gpu["pci"] for gpu in found["gpus"][:1]]}
    assert owners == {"sleep": ("training.service", None),
                      "nvidia-persiste": ("nvidia-persistenced.service", None)}
    assert (None, IDENT[:12]) in [(client["unit"], client["container"]) for client in found["clients"]]

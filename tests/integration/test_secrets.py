# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every secret that a user may give is in nothing that the playbooks print, return, log or leave behind.

Each stands under its own mark. Looked at are -vvvv with differences, all results with their invocations, Ansible's log,
its cache of facts, the reports, and on the host its journal, its temporary folders and everything below /etc, /var/lib
and /run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.host import lab as labs
from lab.packages import RUNFILE_PATH
from lab.packages.runfile import runfile_name
from lab.stages import ROOT
from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab

HOST, VERSION = "gpu-c1", "595.91.07"
MARK = "pl4nted"
PLAYBOOKS: tuple[tuple[str, ...], ...] = (
    ("preflight",), ("site", "--check"), ("site",), ("site",), ("verify",), ("status",), ("remove", "--check"),
    ("remove",))
TOKEN = "/etc/nvidia/ClientConfigToken/client_configuration_token_gpuops.tok"
# Where secrets were before, and where they have to be: the user's own files, the token that the guest's driver reads,
# and in the journal, for root alone, what a removal gives back.
THEIRS = ("/etc/containerd/config.toml", "/etc/apt/auth.conf.d/own.conf", TOKEN)
JOURNAL = "/var/lib/gpuops/journal/"
# A guest's service for licences, which comes with a driver that nobody may pass on; and files of the user.
PREPARE = f"""
printf '[Service]\\nExecStart=/bin/sleep infinity\\n' > /etc/systemd/system/nvidia-gridd.service
systemctl daemon-reload
mkdir -p /etc/containerd /etc/apt/auth.conf.d
cat >> /etc/containerd/config.toml <<'END'
version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."registry.example.com".auth]
  username = "me"
  password = "{MARK}-registry-password"
[plugins."io.containerd.grpc.v1.cri".registry.configs."other.example.com".auth]
  identitytoken = "{MARK}-registry-token"
END
printf 'machine mirror.example.com login me password {MARK}-apt\\n' > /etc/apt/auth.conf.d/own.conf
chmod 600 /etc/apt/auth.conf.d/own.conf
"""
# Files that hold the mark, and lines of the system's journal that do.
SEARCH = f"""
for file in $(grep -rlsaF {MARK} /var/lib/gpuops); do [ $(stat -c %a:%U $file) = 600:root ] || echo open:$file; done
grep -rlsaF {MARK} /etc /var /run /tmp /root /home /usr/local /usr/lib/nvidia /srv || true
echo ======
journalctl --no-pager --output cat | grep -aF {MARK} || true
"""


@dataclass
class Runs:
    """What was printed and returned, by playbook; files: what lay on the controller, by name; host: what SEARCH found
    after each playbook."""

    printed: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    host: dict[str, str] = field(default_factory=dict)
    changed: dict[str, list[str]] = field(default_factory=dict)


def planted(lab: LabHosts, folder: Path) -> dict[str, Any]:
    """The variables of a user with a secret in each that takes one."""
    repository = labs.load(lab.name).address("repo")
    archive = labs.load(lab.name).folder / "www" / "root" / RUNFILE_PATH.strip("/") / VERSION / runfile_name(VERSION)
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-days", "30", "-subj", "/CN=key", "-newkey",
                    "rsa:2048", "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True, capture_output=True,
                   timeout=60)
    proxy = f"http://me:{MARK}-proxy@127.0.0.1:9"
    return {
        "gpu_policy": str(ROOT / "lab" / "demo" / "policy.yml"), "gpu_disruption": "idle",
        "gpu_proxy": {"http": proxy, "https": proxy, "no_proxy": [repository]},
        "driver_source": "runfile", "driver_version": VERSION,
        "driver_runfile_src": f"http://{repository}/{RUNFILE_PATH}{VERSION}/{runfile_name(VERSION)}?sig={MARK}-query",
        "driver_runfile_checksum": f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}",
        "driver_signing_key": (folder / "key.pem").read_text(), "driver_signing_password": f"{MARK}-signing",
        "driver_signing_certificate": (folder / "cert.pem").read_text(),
        "driver_licence_token": f"{MARK}-licence"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Runs, list[str]]]:
    """All playbooks one after another on a host, and the marks and parts of keys to look for."""
    folder = tmp_path_factory.mktemp("secrets")
    with own_lab("secrets", f"{HOST}=a100-80:1") as lab:
        lab.sh(HOST, f"echo {base64.b64encode(PREPARE.encode()).decode()} | base64 -d | sh")
        variables = planted(lab, folder)
        # In a file of the inventory, as users have them: those of a command line stand in its list of processes.
        inventory = folder / "secrets.json"
        inventory.write_text(json.dumps({"all": {"vars": variables}}))
        made = Runs()
        for number, (playbook, *words) in enumerate(PLAYBOOKS):
            name = f"{number} {playbook} {' '.join(words)}"
            out = folder / str(number)
            out.mkdir()
            settings = {"ANSIBLE_LOG_PATH": str(out / "log"), "ANSIBLE_CACHE_PLUGIN": "jsonfile",
                        "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(out / "cache")}
            run = user.playbook(playbook, [*lab.hosts, inventory], "-vvvv", "--diff", *words, cold=True,
                                settings=settings, preflight_report_html=str(out / "report.html"),
                                preflight_report_json=str(out / "report.json"))
            assert run.rc == 0, run.output[-6000:]
            made.printed[name] = run.output + json.dumps(run.results)
            made.changed[name] = run.changed(HOST)
            made.files.update({f"{name}: {path.relative_to(out)}": path.read_text(errors="replace")
                               for path in sorted(out.rglob("*")) if path.is_file()})
            made.host[name] = lab.sh(HOST, SEARCH)
        yield made, [MARK, *variables["driver_signing_key"].splitlines()[1:4]]


def test_nothing_printed_or_returned(runs: tuple[Runs, list[str]]) -> None:
    made, marks = runs
    for name, text in made.printed.items():
        for mark in marks:
            at = text.find(mark)
            assert at < 0, (name, text[max(0, at - 300):at + 100])


def test_nothing_left_on_the_controller(runs: tuple[Runs, list[str]]) -> None:
    made, marks = runs
    assert {name.rpartition(": ")[2].partition("/")[0] for name in made.files} >= {"log", "report.html", "report.json"}
    assert [name for name, text in made.files.items() if any(mark in text for mark in marks)] == []


def test_nothing_on_the_host_but_where_it_has_to_be(runs: tuple[Runs, list[str]]) -> None:
    for name, found in runs[0].host.items():
        files, journal = found.split("======\n")
        assert {path for path in files.split() if not path.startswith(JOURNAL)} <= set(THEIRS), name
        assert journal == "", name


def test_the_secrets_were_used(runs: tuple[Runs, list[str]]) -> None:
    """What is not looked at cannot be seen: the runs changed the host, and the licence came and went."""
    made, _marks = runs
    names = list(made.host)
    assert all(made.changed[name] for name in (names[1], names[2], names[7]))
    assert made.changed[names[3]] == []
    assert TOKEN in made.host[names[2]].split() and TOKEN not in made.host[names[7]].split()
    assert "/etc/containerd/config.toml" in made.host[names[7]].split()

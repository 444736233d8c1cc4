# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No secret of a user is in anything that the playbooks print, return, log or leave behind.

Each secret has a mark of its own. The test searches the output of -vvvv with differences and tracebacks, all results
with their invocations, the log of Ansible, its fact cache, the reports, the command lines of all programs on the
controller and on the host, and on the host the journal, the temporary folders and everything below /etc, /var/lib and
/run. The runs in check mode write none of the user's files on the controller.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
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
from tests.integration.watched import RECORDER, Controller

HOST, VERSION = "gpu-c1", "595.91.07"
MARK = "pl4nted"
PLAYBOOKS: tuple[tuple[str, ...], ...] = (
    ("preflight",), ("preflight", "--check"), ("site", "--check"), ("site",), ("site",), ("verify",), ("status",),
    ("remove", "--check"), ("remove",))
# Tasks on the fresh host that fail for what they are given: the module and its options. {repository}: a server that has
# none of it.
FAILING: dict[str, tuple[str, dict[str, Any]]] = {
    "a .run file that is not there": ("nvidia_driver", {
        "source": "runfile", "version": VERSION, "runfile": {
            "src": f"http://{{repository}}/none/NVIDIA-Linux-x86_64-{VERSION}.run?sig={MARK}-query",
            "checksum": f"sha256:{'0' * 64}"}}),
    "a proxy that is not there": ("nvidia_driver", {
        "source": "runfile", "version": VERSION, "proxy": {"http": f"http://me:{MARK}-proxy@127.0.0.1:9"}, "runfile": {
            "src": f"http://mirror.example.com/NVIDIA-Linux-x86_64-{VERSION}.run?sig={MARK}-query",
            "checksum": f"sha256:{'0' * 64}"}}),
    "an address that is none": ("nvidia_driver", {
        "source": "runfile", "version": VERSION, "runfile": {
            "src": f"http://{{repository}}:none/NVIDIA-Linux-x86_64-{VERSION}.run?sig={MARK} query",
            "checksum": f"sha256:{'0' * 64}"}}),
    "a key that is not there": ("container_toolkit", {
        "repository": {"url": "http://{repository}/none/", "key": f"http://{{repository}}/none/key?sig={MARK}-key",
                       "fingerprint": "A" * 40}}),
    "a repository behind a proxy that is not there": ("nvidia_software", {
        "dcgm": {}, "proxy": {"http": f"http://me:{MARK}-proxy@127.0.0.1:9"},
        "repository": {"url": "http://mirror.example.com/", "fingerprint": "A" * 40}}),
    "a password in an address": ("nvidia_software", {
        "dcgm": {}, "repository": {"url": f"http://me:{MARK}-password@{{repository}}/", "fingerprint": "A" * 40}}),
    "a signing key that is none": ("nvidia_driver", {
        "version": VERSION, "module_signing": {"key": f"{MARK}-key", "certificate": "-"}}),
}
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
# cookie = "{MARK}-cookie"
# endpoint = ["https://mirror.example.com/v2?sig={MARK}-query"]
# signing_key = "{MARK}-signing-key"
# encryption-key = "{MARK}-encryption-key"
# jwt = "{MARK}-jwt"
# bearer = "{MARK}-bearer"
# -----BEGIN PRIVATE KEY-----
# {MARK}-pem
# -----END PRIVATE KEY-----
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
    """What was printed and returned, by playbook. files: the files on the controller, by name; host: the findings of
    SEARCH after each playbook. written: the files that each run in check mode wrote. errors: by the names of FAILING
    and of the failing site. programs: the command lines on the controller and on the host."""

    printed: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    host: dict[str, str] = field(default_factory=dict)
    changed: dict[str, list[str]] = field(default_factory=dict)
    written: dict[str, set[str]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)


def planted(lab: LabHosts, folder: Path) -> dict[str, Any]:
    """The variables of a user, with a secret in each variable that can have one."""
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


def refused(folder: Path, repository: str) -> Path:
    """Runs a playbook with the tasks of FAILING."""
    tasks = [{"name": name, f"gpuops.nvidia.{module}": json.loads(
        json.dumps(options).replace("{repository}", repository)), "ignore_errors": True}
        for name, (module, options) in FAILING.items()]
    path = folder / "refused.yml"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "become": True, "tasks": tasks}]))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Runs, list[str]]]:
    """Runs the failing tasks, then all playbooks one after another on a host; returns also the marks and parts of keys
    to search for."""
    folder, controller = tmp_path_factory.mktemp("inputs"), Controller(tmp_path_factory.mktemp("secrets"))
    with own_lab("secrets", f"{HOST}=a100-80:1") as lab:
        lab.sh(HOST, f"echo {base64.b64encode(PREPARE.encode()).decode()} | base64 -d | sh")
        variables = planted(lab, folder)
        # In a file of the inventory, as users have them: those of a command line stand in its list of processes.
        inventory, other = folder / "secrets.json", folder / "other.json"
        python = {"ansible_python_interpreter": lab.put_python(HOST, RECORDER)}
        inventory.write_text(json.dumps({"all": {"vars": variables, "hosts": {HOST: python}}}))
        repository = labs.load(lab.name).address("repo")
        source = variables["driver_runfile_src"].replace(RUNFILE_PATH, "/none/")
        other.write_text(json.dumps({"all": {"hosts": {HOST: {"driver_runfile_src": source}}}}))
        made = Runs()

        def run(name: str, playbook: str, *words: str, more: Sequence[Path] = ()) -> user.Run:
            before = controller.files()
            done = controller.run(playbook, [*lab.hosts, inventory, *more], *words,
                                  gpu_report_html=f"{name}.html", gpu_report_json=f"{name}.json")
            made.printed[name] = done.output + json.dumps(done.results)
            made.host[name] = lab.sh(HOST, SEARCH)
            if "--check" in words:
                made.written[name] = controller.written(before)
            return done

        done = run("refused", str(refused(folder, repository)))
        made.errors = {name: [line["result"]["msg"] for line in done.results if line["task"] == name]
                       for name in FAILING}
        made.errors["site"] = run("failed", "site", more=[other]).errors()
        for number, (playbook, *words) in enumerate(PLAYBOOKS):
            name = f"{number} {playbook} {' '.join(words)}"
            done = run(name, playbook, *words)
            assert done.rc == 0, done.output[-6000:]
            made.changed[name] = done.changed(HOST)
        made.files = controller.texts()
        made.programs = {"controller": controller.programs(), "host": lab.sh(HOST, "cat /opt/recorder/acts")}
        yield made, [MARK, *variables["driver_signing_key"].splitlines()[1:4]]


def test_nothing_printed_or_returned(runs: tuple[Runs, list[str]]) -> None:
    made, marks = runs
    for name, text in made.printed.items():
        for mark in marks:
            at = text.find(mark)
            assert at < 0, (name, text[max(0, at - 300):at + 100])


def test_nothing_left_on_the_controller(runs: tuple[Runs, list[str]]) -> None:
    made, marks = runs
    assert {"log", "3 site .html", "0 preflight .json"} <= made.files.keys()
    assert any(name.startswith("cache/") for name in made.files)
    assert [name for name, text in made.files.items() if any(mark in text for mark in marks)] == []


def test_nothing_in_a_command_line(runs: tuple[Runs, list[str]]) -> None:
    """Every user of a machine can see the command lines of all processes."""
    made, marks = runs
    for name, programs in made.programs.items():
        assert [line for line in programs.splitlines() if any(mark in line for mark in marks)] == [], name
    assert "ssh" in made.programs["controller"] and "NVIDIA-Linux-x86_64" in made.programs["host"]


def test_check_mode_writes_nothing_on_the_controller(runs: tuple[Runs, list[str]]) -> None:
    assert set(map(frozenset, runs[0].written.values())) == {frozenset()}, runs[0].written
    assert len(runs[0].written) == sum("--check" in words for words in PLAYBOOKS)


def test_what_was_to_fail_has_failed(runs: tuple[Runs, list[str]]) -> None:
    for name, errors in runs[0].errors.items():
        assert errors and not any("odule f" in error.lower() for error in errors), (name, errors)
    assert "404" in str(runs[0].errors["site"]), runs[0].errors["site"]


def test_nothing_on_the_host_but_where_it_has_to_be(runs: tuple[Runs, list[str]]) -> None:
    for name, found in runs[0].host.items():
        files, journal = found.split("======\n")
        assert {path for path in files.split() if not path.startswith(JOURNAL)} <= set(THEIRS), name
        assert journal == "", name


def test_the_secrets_were_used(runs: tuple[Runs, list[str]]) -> None:
    """Proves that the search had something to find: the runs changed the host, and the licence was added and
    removed."""
    made, _marks = runs
    names = list(made.changed)
    assert all(made.changed[name] for name in (names[2], names[3], names[8]))
    assert made.changed[names[4]] == []
    assert TOKEN in made.host[names[3]].split() and TOKEN not in made.host[names[8]].split()
    assert "/etc/containerd/config.toml" in made.host[names[8]].split()

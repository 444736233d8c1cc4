# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fuzz targets for the parsers of files on hosts and of the output of their programs."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.module_utils import _cdi, _kernels, _proxy, _units
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import failures, module_parameters, runfile_options
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import (
    clients,
    device_nodes,
    gpus,
    installed_packages,
    mig_boot,
    package_files,
    pci,
    runtimes,
    unit_files,
    xids,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import (
    system as system_module,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import nfd, sharing_config
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.slurm_files import SlurmFiles
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import config_file, profile_names
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages import (
    apt_archive,
    apt_probe,
    apt_tools,
    dnf_tools,
    openpgp,
    rpm,
    zypper_tools,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings import declared
from ansible_collections.gpuops.nvidia.plugins.module_utils._slurm import nodes as slurm_nodes
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import read
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import settings_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import ProgramResult, SettingsState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.registry import RUNTIMES
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.played import Played
from hypothesis import strategies as st

from tests.fuzz.inputs import Target, data, fields, lines, words

NAME = words("nvidia-driver", "cuda", "libnvidia", "kernel", "a", "-", ":", " ", "x86_64")
VERSION = words("1", "9", ".", ":", "-", "~", "^", "+", "595.91.07-1", "(none)")
ARCH = st.sampled_from(["amd64", "x86_64", "noarch", "all", "", "i386"])


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder that is deleted when this process ends."""
    return tempfile.TemporaryDirectory(prefix="gpuops-fuzz-")


def tree(path: str, content: str | bytes) -> Root:
    """A host with only this file."""
    there = Path(folder().name + path)
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return Root(folder().name)


def written(document: Any) -> str | bytes:
    """The document as JSON text, or the document itself if it already is a text."""
    return document if isinstance(document, (bytes, str)) else json.dumps(document, default=str, skipkeys=True)


def prints(text: str) -> Runner:
    """A runner that runs no command and returns this text as output."""
    return lambda *_words, **_options: Completed((), 0, text, "")


def shaped(fact: str, value: Any) -> None:
    """Checks that the controller accepts what a host reads from an invalid file. fact: the name of a fact; a dot
    selects a part."""
    shape: Any = answer_shapes.FACTS
    for name in fact.split("."):
        shape = shape.needed[name]
    fault = shape.fault(json.loads(json.dumps(value)))
    if fault is not None:
        raise AssertionError(f"{fact}{fault.path} is {fault.value} (allowed: {fault.allowed})")


def _journal(document: Any) -> None:
    tree("/journal/x.json", written(document))
    with Journal("x", f"{folder().name}/journal", readonly=True) as journal:
        for kind in ("file", "directory", "package"):
            journal.of_kind(kind)


def _mig_boot_file(document: Any) -> None:
    shaped("mig_boot", mig_boot.read_mig_boot(tree(mig_boot.STATE, written(document))))


def _settings(document: Any) -> None:
    gpu = profile_names.Target("0000:1b:00.0", 0, "2330", "10de:16c1", "NVIDIA H100 80GB HBM3", (), _UUID)
    entries = declared.parse(document)
    declared.near_misses(entries, [gpu])
    for one in declared.resolve(entries, [gpu]).values():
        for name, wanted in one.items():
            declared.text(name, wanted.value)


def _kernel_log(text: str) -> None:
    shaped("xids", xids.read_xids(tree("/dev/kmsg", text), prints("")))
    shaped("xids", xids.read_xids(tree("/dev/kmsg", ""), prints(text)))


def _release(text: str) -> None:
    system = system_module.system_of(system_module.os_release(tree("/etc/os-release", text)))
    if system["family"] not in ("debian", "redhat", "suse", "other"):
        raise AssertionError(system)


def _names_of_kernels(given: tuple[str, str | None, str | None]) -> None:
    _kernels.flavour_of(given[0], given[1])
    _kernels.headers_package(*given)


def _unit_states(text: str) -> None:
    found = _units.read_units(prints(text), ["a.service", "b.service"])
    if set(found) != {"a.service", "b.service"}:
        raise AssertionError(found)
    (Path(folder().name) / "run/systemd/system").mkdir(parents=True, exist_ok=True)
    for unit in (*runtimes.shown_units(Root(folder().name), prints(text), ["a.service"]).values(),
                 *read._units(["a.service"], prints(text)).values()):
        unit_files.is_stale(["/"], unit)
        unit_files.at_boot(unit)


def _lost(family: str, said: str = "") -> None:
    shaped("driver.missing_files",
           (package_files.lost_files(Root(folder().name), prints(said), family, ["a"]) or {}).get("a", []))


def _dpkg_files(given: tuple[str, str, str]) -> None:
    for path, text in zip(("diversions", "info/a.list", "info/a.md5sums"), given):
        tree(f"/var/lib/dpkg/{path}", text)
    tree("/usr/bin/a", "x")
    _lost("debian")


def _cgroup(text: str) -> None:
    root = tree("/proc/7/cgroup", text)
    tree("/var/log/pods/space_pod_01234567-0123-0123-0123-0123456789ab/x", "")
    owner = clients.owner_of(root, 7)
    shaped("clients", [{"pid": 7, "name": "a", "gpu": None, "instance": None, **owner}])
    clients.pod_of(root, 7)
    clients.stoppable(root, [{"pid": 7, **owner}])


def _module_parameters(given: tuple[str, str]) -> None:
    root = tree("/sys/module/nvidia/parameters/NVreg_A", given[0])
    tree("/proc/driver/nvidia/params", given[1])
    tree("/proc/driver/nvidia/gpus/0000:07:00.0/information", given[1])
    for name in ("NVreg_A", "NVreg_RestrictProfilingToAdminUsers"):
        module_parameters.same(module_parameters.loaded_value(root, "nvidia", name) or "", "1")
    shaped("driver.nodes", device_nodes.node_faults(root))
    gpus.minors(root, [{"minor": None, "pci": "0000:07:00.0"}])


def _config_space(space: bytes) -> None:
    found = pci.vgpu_host_driver(space)
    shaped("vgpu", dict(zip(("version", "branch"), found)) if found else None)


def _keys(content: bytes | str) -> None:
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    for one in openpgp.keys(content).values():
        openpgp.without_unsigned_subkeys(one)


def _slurm(text: str) -> None:
    tree("/slurm/gres.conf", text)
    with Journal("slurm", f"{folder().name}/none", readonly=True) as journal:
        SlurmFiles(journal, f"{folder().name}/slurm", lambda _path: True).plan_present(
            ["Name=gpu File=/dev/nvidia0"], "gpu12")


def _slurm_node(text: str) -> None:
    node = slurm_nodes.read_node(text)
    mark = node.mark
    if mark and slurm_nodes.Mark.read(mark.text) is None:
        raise AssertionError(mark)


def _slurm_lists(text: str) -> None:
    slurm_nodes.named(slurm_nodes.read_jobs(text))
    slurm_nodes.find_by_host(text, ["n1"])


def _runtime(name: str) -> Callable[[tuple[str, str, str]], None]:
    def act(given: tuple[str, str, str]) -> None:
        config, drop_in, version = given
        runtime = RUNTIMES[name]
        files = {runtime.probe.config: config}
        if runtime.probe.drop_in:
            files[runtime.probe.drop_in] = drop_in
        said = ProgramResult(0, drop_in, version)
        facts = dict.fromkeys(runtime.probe.facts, said)
        played = Played(runtime, version, runtime.probe.config, files, facts)
        played.dump = said if runtime.probe.dump else None
        played.propose()
        played.remove()

    return act


def _setting(text: str) -> None:
    settings_file.plan({"nvidia-container-runtime.debug": "x"}, SettingsState(text), False)
    settings_file.warnings({}, text)


def _digests(text: str) -> None:
    runfile_options.parse_digest(text)
    runfile_options.version_in(text)


TOML = words("a", "version = 2\n", "[plugins]\n", '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n',
             'runtime_type = "io.containerd.runc.v2"\n', "[crio.runtime]\n", 'default_runtime = "x"\n', "imports = [",
             '"/etc/x"', "]", "{", "}", "=", " = 1\n", ".", "\n", "\r\n", '"', "'", '"""', "#", "enable_cdi = ",
             "true\n", '[engine.runtimes]\nnvidia = ["', "{{ template \"base\" . }}\n", "\ufeff")
JSON = words("{", "}", "[", "]", '"', '"runtimes": ', '"default-runtime": ', '"features": ', '"cdi"', ":", ",", "true",
             "null", "1", "{}", "\\", "\n", "//", "\ufeff")
RELEASE = words("1.7.27", "2.2.0", "v1.31.0", "29.1.3", "containerd github.com/containerd/containerd ", "crio version ",
                "Docker version ", ".", " ", "9")
_UUID = "GPU-00000000-0000-4000-8000-000000000000"
_ODD = data("v1", "pci", "enabled", "instances")
_PACKET = st.tuples(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=300)).map(
    lambda parts: bytes(parts[:2]) + parts[2])
_PATH = words("/usr", "/bin/", "/lib64/", "/lib/", "a", ".so.1", ".ko", "\0", "..", " ")
_NUMBER = st.one_of(st.just("0"), words("1", "9", "-", "."))
_PARAMETERS = "ModifyDeviceFiles: 1\nDeviceFileUID: {}\nDeviceFileGID: {}\nDeviceFileMode: {}\nDevice Minor: \t {}\n"
_DIGEST = st.sampled_from(["", "9dd4e461268c8034f5c8564e155c67a6", "0", "(none)"])
_CAPABILITY = st.tuples(st.sampled_from([9, 1, 0x10]), st.sampled_from([0, 0x40, 0x48, 0x60, 0xfc]),
                        st.sampled_from([0, 3, 27, 255]), st.sampled_from([b"VF", b"VF", b""]),
                        st.lists(st.binary(max_size=24).map(lambda one: bytes([0, len(one)]) + one), max_size=2),
                        ).map(lambda one: bytes(one[:3]) + one[3] + b"".join(one[4]))
TARGETS: dict[str, Target] = {
    "kernel log": Target(words("3,7,", "5000000", ",-;", "1700000000", ".1 gpu-1 kernel: ", "NVRM: Xid (PCI:0000:3b:00",
                               "NVRM: Xid (PCI:0000:3b:00): 79, ", "NVRM: Xid (", "PCI:", "ffffffff:", "3b:", "00",
                               " GPU-I:05", "): ", "79", ", ", "\n", "\n ", "9"), _kernel_log),
    "dpkg status": Target(words("Package: ", "nvidia-driver", "\n", "\n\n", "Status: install ok installed\n",
                                "Version: ", "Maintainer: ", " ", "1", ": "),
                          lambda text: installed_packages.parse_dpkg_status(text.encode("utf-8", "surrogatepass"))),
    "rpm list": Target(lines(NAME, VERSION, words("NVIDIA", "Red Hat")), installed_packages.parse_rpm_list),
    "rpm files": Target(lines(st.sampled_from(["a", "b"]), words("0", "1"), words("0", "64", "9", "-", "(none)"), _PATH,
                              words("1", "0", "9", ".", "-", "e"), words("8", "1", "(none)"), _DIGEST),
                        lambda text: _lost("redhat", text)),
    "dpkg files": Target(st.tuples(lines(_PATH), lines(_PATH), lines(_DIGEST, _PATH, separator="  ")), _dpkg_files),
    "dpkg-query": Target(lines(NAME, ARCH, VERSION, st.sampled_from(["ii ", "rc ", "iHR", "", "un "])),
                         lambda text: apt_tools.parse_state(text, "amd64")),
    "apt-get -s": Target(words("Inst ", "Remv ", "Purg ", "nvidia-driver ", "[", "]", "(", "1.2", ")", " ", "\n"),
                         apt_tools.parse_simulation),
    "apt index": Target(words("Package: ", "Package:", "nvidia-driver", "Version: ", "Version:", "1", "\n", "\n\n",
                              " x\n", "Depends: a\n"), apt_probe.parse_packages),
    "apt index, matched": Target(words("Package: ", "nvidia-driver\n", "Version: ", "1\n", "\n", " x\n",
                                        "Depends: a\n"), lambda text: apt_archive.parse_matching(text, "nvidia|cuda")),
    "rpm -qa": Target(lines(NAME, ARCH, VERSION), rpm.parse_state),
    "dnf decisions": Target(words("---> Package ", "nvidia", ".", "x86_64", " ", "1:2-3", " will be ", "installed",
                                  "erased", "an upgrade", "\n"), lambda text: dnf_tools.parse_decisions(text, {})),
    "dnf candidates": Target(lines(NAME, ARCH, st.sampled_from(["0", "3", ""]), VERSION), dnf_tools.parse_candidates),
    "zypper": Target(words("<stream>", "</stream>", "<install-summary>", "</install-summary>", "<to-remove>",
                           "</to-remove>", '<solvable type="package" name="a" edition="1" arch="x86_64"/>', "<", ">",
                           "/", "&lt;", "&x;", '<!DOCTYPE a [<!ENTITY x "', '">]>', "<?xml", "?>", "a", "\n"),
                     lambda text: (zypper_tools.parse_changes(text), zypper_tools.parse_candidates(text))),
    "OpenPGP keys": Target(st.one_of(st.binary(max_size=64), st.lists(_PACKET, max_size=6).map(b"".join), words(
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n", "-----END PGP PUBLIC KEY BLOCK-----", "\n", "mQEN", "=abcd\n", "BGE",
        "a", "Version: 1\n").map(lambda text: text.encode("utf-8", "surrogatepass"))), _keys, ValueError),
    "journals": Target(st.one_of(words("{", "}", '"', "[", "]", ",").map(lambda text: text.encode("utf-8", "replace")),
                                 fields({"version": st.just(1), "unfinished": st.none(), "entries": st.lists(fields({
                                     "kind": st.sampled_from(["file", "directory", "package"]),
                                     "key": st.sampled_from(["/a", "a", ""]), "after": _ODD,
                                     "before": fields({"state": st.sampled_from(["absent", "file"])}, _ODD)}, _ODD),
                                     max_size=3)}, _ODD), _ODD), _journal),
    "mig.json": Target(st.one_of(words("{", "}", '"', "gpus", ":"), _ODD, fields({
        "version": st.just(1), "gpus": st.dictionaries(st.sampled_from([_UUID, "a", "\u0130"]), fields({
            "pci": st.just("0000:07:00.0"), "enabled": st.booleans(), "instances": st.lists(fields({
                "profile": st.just("1g.10gb"), "start": st.integers(-2, 2 ** 60), "compute": st.lists(
                    st.lists(st.integers(-1, 2 ** 60), max_size=9), max_size=2)}, _ODD), max_size=2)}, _ODD),
            max_size=2)}, _ODD)), _mig_boot_file),
    "MIG documents": Target(st.one_of(_ODD, fields({
        "version": st.just("v1"), "mig-configs": st.dictionaries(st.sampled_from(["a", "", "all-1g"]), st.one_of(
            _ODD, st.lists(fields({"devices": st.sampled_from(["all", [0], "x", [True]]),
                                   "mig-enabled": st.booleans(), "device-filter": st.sampled_from(["0x20B210DE", []]),
                                   "mig-devices": st.dictionaries(st.sampled_from(["1g.10gb", "1c.1g.10gb+me", "x"]),
                                                                  st.integers(-1, 9), max_size=2)}, _ODD),
                           max_size=2)), max_size=2)}, _ODD)), config_file.parse),
    "GPU settings": Target(st.one_of(_ODD, st.lists(fields({
        "gpus": st.sampled_from(["all", ["0"], ["all", 1], [True], ["H100", _UUID], ["00:1b:0.0"]]),
        "power_limit": st.sampled_from([300, 0.5, float("nan"), float("inf"), 10 ** 400, "9"]),
        "application_clocks": fields({"memory": st.integers(-1, 2 ** 60), "graphics": st.integers(-1, 9)}, _ODD),
        "locked_memory_clocks": fields({"min": st.integers(-1, 2 ** 60), "max": st.integers(-1, 9)}, _ODD),
        "compute_mode": st.sampled_from(["default", "", "x"]), "ecc": st.booleans()}, _ODD), max_size=3)), _settings),
    "os-release": Target(words("ID=", "ID_LIKE=", "VERSION_ID=", "debian", "ubuntu", '"', "'", "\\", "\n", "#", "=",
                               "24.04"), _release),
    "kernels": Target(st.tuples(words("6.8.0", "-", "generic", ".el9", "+64k", ".amzn2023.", "uek", "1"),
                                st.sampled_from(["debian", "redhat", "suse", "other", None]),
                                st.sampled_from(["amzn", "ubuntu", None])), _names_of_kernels),
    "systemctl show": Target(words("LoadState=", "loaded", "masked", "\n", "\n\n", "ActiveState=active", "=",
                                   "UnitFileState=", "Id=", "a.service", "StateChangeTimestampMonotonic=", "9"),
                             _unit_states),
    "control groups": Target(words("0::", "1:name=systemd:", "/", "system.slice", "a.service", "docker-", "_", "\n",
                                   ":", "0123456789abcdef" * 4, ".scope", "kubepods", "pod", "user.slice",
                                   "01234567-0123-0123-0123-0123456789ab"), _cgroup),
    "module parameters": Target(st.tuples(
        words("1", "0x", "f", "Y", '"', "-", "_"),
        st.one_of(words("ModifyDeviceFiles: 1\n", "Device Minor: ", "438", "9", "\n", "A: ", "RmProfilingAdminOnly: "),
                  st.lists(_NUMBER, min_size=4, max_size=4).map(
                      lambda numbers: _PARAMETERS.format(*numbers)))), _module_parameters),
    "PCI configuration": Target(st.tuples(st.sampled_from([0, 0x10]), st.sampled_from([0, 0x40, 0x41, 0xff]), st.one_of(
        st.lists(_CAPABILITY, max_size=3).map(b"".join), st.binary(max_size=200))).map(
            lambda one: bytes([0] * 6 + [one[0]] + [0] * 45 + [one[1]] + [0] * 11) + one[2]), _config_space),
    "feature files": Target(words("nvidia.com/gpu.count", "=", "8", "\n", "#", " "), nfd.parse),
    "proxies": Target(data("http", "https", "no_proxy", "HTTP_PROXY", "http://u:p@h:3128", "http://[", "http://h:99999",
                           "http://h:x"), _proxy.read),
    "CDI": Target(words("{", "}", '"devices": [', '{"name": "', '0"}', "]", "\n", "- name: ", "all", '"', "libcuda.so.",
                        "595.91.07", "cdiVersion: 0.5.0\n"), _cdi.parse),
    "kernel messages": Target(words("NVRM: ", "Xid (", "PCI:0000", "): 79", "due to ", "alternate driver installation",
                                    "kernel headers for kernel ", " cannot be found", "Module nvidia", " is in use",
                                    "\n", "could not insert '", "is not supported by the NVIDIA "), failures.explain),
    "digests": Target(words("0123456789abcdef", "  ", "*", "NVIDIA-Linux-x86_64-595.91.07.run", "\n", "?", "/"),
                      _digests),
    "gres.conf": Target(words("Name=gpu ", "NodeName=", "gpu", "[", "]", "1", "-", ",", "a", "File=/dev/nvidia0", "\n",
                              "\\\n", "#", "Include ", "/etc/x", " "), _slurm),
    "scontrol show node": Target(words("NodeName=n1 ", "\n", "   NodeAddr=a NodeHostName=b ", "   State=IDLE", "+DRAIN",
                                       "*", " ", "   Reason=", "gpuops: ", "failed: ", "driver", " (run a/1/2@3)",
                                       " was down: ", " [root@1]", "x"), _slurm_node),
    "squeue and sinfo": Target(words("12", "|", "RUNNING", "trainer", "n1", "n2", "\n", " ", "*", "[1-2]"),
                               _slurm_lists),
    "GFD sharing": Target(data("version", "v1", "sharing", "timeSlicing", "mps", "resources", "name", "nvidia.com/gpu",
                               "replicas", "flags", "renameByDefault").filter(lambda one: isinstance(one, dict)),
                          sharing_config.parse_sharing),
    "toolkit settings": Target(TOML, _setting),
    **{name: Target(st.tuples(JSON if name == "docker" else TOML, TOML, RELEASE), _runtime(name)) for name in RUNTIMES},
}

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's driver packages for EL 9, as stand-ins, built by rpmbuild into a repository made by createrepo_c.

Names, epoch and relations: NVIDIA/yum-packaging-nvidia-driver, -nvidia-kmod-common and -dkms-nvidia; streams of the
module: NVIDIA/yum-packaging-nvidia-driver, README. Of the dependencies of the vendor's packages on other repositories,
only dkms is kept.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lab.packages.content import MODULES, Driver, dkms_conf, script, text
from lab.packages.deb import Files, Link, lay_out
from lab.packages.driver_debs import ALTERNATE, ALTERNATE_TEXT, DENIED, FABRIC
from lab.packages.keys import Key
from lab.tools import run_quietly

KEY_FILE = "D42D0685.pub"
VENDOR = "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64"
LDCONFIG = {"post": "/sbin/ldconfig\n", "postun": "/sbin/ldconfig\n"}
REPO_FILE = f"""\
[cuda-rhel9-x86_64]
name=cuda-rhel9-x86_64
baseurl={VENDOR}
enabled=1
gpgcheck=1
gpgkey={VENDOR}/{KEY_FILE}
"""
SPEC = """\
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
Name: {name}
{epoch}Version: {version}
Release: {release}
Summary: Stand-in of the lab
License: GPL-3.0-or-later
AutoReqProv: no
{relations}
%description
Stand-in of the lab of gpuops.nvidia; nothing in it comes from NVIDIA.
%install
cp -a {root}/. %{{buildroot}}/
{scripts}
%files
{files}
"""
MODULE = """\
---
document: modulemd
version: 2
data:
  name: nvidia-driver
  stream: "{stream}"
  version: 20261121000000
  context: "{context}"
  arch: x86_64
  summary: Stand-in of the lab
  description: >-
    Stand-in of the lab
  license:
    module:
    - GPL-3.0-or-later
  profiles:
    default:
      rpms:
      - nvidia-driver
  artifacts:
    rpms:
{artifacts}
...
"""
MODULE_DEFAULT = """\
---
document: modulemd-defaults
version: 1
data:
  module: nvidia-driver
  stream: "latest-dkms"
  profiles:
    latest-dkms: [default]
...
"""
# The vendor's packages ignore what becomes of the module's build.
DKMS_POST = """\
dkms add -m nvidia -v {version} -q --rpm_safe_upgrade || :
dkms build -m nvidia -v {version} -q || :
dkms install -m nvidia -v {version} -q --force || :
"""
DKMS_PREUN = "dkms remove -m nvidia -v {version} -q --all --rpm_safe_upgrade || :\n"
UNIT_POST = "[ ! -d /run/systemd/system ] || systemctl preset nvidia-persistenced.service || :\n"
UNIT_PREUN = """\
[ $1 -ne 0 ] || [ ! -d /run/systemd/system ] || systemctl disable --now nvidia-persistenced.service || :
"""


@dataclass(frozen=True)
class Rpm:
    """One package of a release. relations: lines of the spec; scripts: section name to shell text.

    folders: those that the package owns. epoch: 0 is none.
    """

    name: str
    relations: tuple[str, ...] = ()
    files: Files = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    epoch: int = 3
    release: str = "1.el9"

    def nevra(self, version: str) -> str:
        """The package as modules list it."""
        return f"{self.name}-{self.epoch}:{version}-{self.release}.x86_64"


def write_el_repository(drivers: list[Driver], folder: Path, key: Key) -> None:
    """The repository of EL 9, with its module's streams and its repository file."""
    write_rpm_repository([(rpm, driver.version) for driver in drivers for rpm in driver_rpms(driver)], folder, key,
                         module_streams(drivers))
    shutil.copy(key.public, folder / KEY_FILE)
    (folder / "cuda-rhel9.repo").write_text(REPO_FILE, encoding="utf-8")


def write_rpm_repository(packages: list[tuple[Rpm, str]], folder: Path, key: Key, modules: str = "") -> None:
    """Packages with their versions, signed, and repodata with its signature. modules: text of a modules.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        for job in [pool.submit(write_rpm, rpm, version, folder) for rpm, version in packages]:
            job.result()
    key.sign_rpms(sorted(folder.glob("*.rpm")))
    run_quietly(["createrepo_c", "--quiet", "--no-database", str(folder)], "the RPM repository")
    if modules:
        with tempfile.TemporaryDirectory(prefix="gpuops-rpm-") as temporary:
            path = Path(temporary) / "modules.yaml"
            path.write_text(modules)
            run_quietly(["modifyrepo_c", "--mdtype=modules", str(path), str(folder / "repodata")], "the RPM modules")
    key.sign(folder / "repodata" / "repomd.xml", detached=folder / "repodata" / "repomd.xml.asc")


def module_streams(drivers: list[Driver]) -> str:
    """The module nvidia-driver: a stream for each branch and flavour, two for the newest, one of them default."""
    streams: dict[str, set[str]] = {}
    for driver in drivers:
        for rpm in driver_rpms(driver):
            for flavour, rival in (("open", "latest-dkms"), ("dkms", "open-dkms")):
                if not rpm.name.endswith(rival):
                    follows = "open-dkms" if flavour == "open" else "latest-dkms"
                    for stream in (f"{driver.branch}-{flavour}", follows):
                        streams.setdefault(stream, set()).add(rpm.nevra(driver.version))
    documents = [MODULE.format(stream=stream, context=f"{index:08x}",
                               artifacts="\n".join(f"    - {nevra}" for nevra in sorted(rpms)))
                 for index, (stream, rpms) in enumerate(sorted(streams.items()))]
    return "".join([*documents, MODULE_DEFAULT])


def write_rpm(rpm: Rpm, version: str, folder: Path) -> None:
    """Build one package file into a folder."""
    with tempfile.TemporaryDirectory(prefix="gpuops-rpm-") as temporary:
        work = Path(temporary)
        (work / "root").mkdir()
        lay_out(rpm.files, work / "root")
        (work / "spec").write_text(SPEC.format(
            name=rpm.name, version=version, release=rpm.release, root=work / "root",
            epoch=f"Epoch: {rpm.epoch}\n" if rpm.epoch else "", relations="\n".join(rpm.relations),
            scripts="".join(f"%{name}\n{body}" for name, body in rpm.scripts.items()),
            files="\n".join([*(f"%dir /{path}" for path in rpm.folders),
                             *(f"{'%config(noreplace) ' if path.startswith('etc/') else ''}/{path}"
                               for path in rpm.files)])), encoding="utf-8")
        macros = {"_topdir": f"{work}/top", "_rpmdir": str(folder),
                  "_rpmfilename": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm"}
        words = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
        run_quietly(["rpmbuild", "--quiet", "-bb", "--target", "x86_64", *words, str(work / "spec")],
                    f"the RPM package {rpm.name}")


def driver_rpms(driver: Driver) -> list[Rpm]:
    """All packages of one driver release."""
    def need(*names: str) -> tuple[str, ...]:
        return tuple(f"Requires: {name} = 3:{driver.version}" for name in names)

    return [
        Rpm("nvidia-open", need("nvidia-driver", "nvidia-driver-cuda", "kmod-nvidia-open-dkms")),
        Rpm("cuda-drivers", need("nvidia-driver", "nvidia-driver-cuda", "kmod-nvidia-latest-dkms")),
        Rpm("nvidia-driver", (*need("nvidia-driver-libs", "nvidia-kmod-common"), "Conflicts: xorg-x11-drv-nvidia")),
        Rpm("nvidia-driver-libs", need("libnvidia-ml")),
        Rpm("nvidia-driver-cuda", need("nvidia-driver-cuda-libs", "nvidia-kmod-common", "nvidia-persistenced"),
            {"usr/bin/nvidia-smi": driver.nvml / "nvidia-smi"}),
        Rpm("nvidia-driver-cuda-libs", need("libnvidia-ml"),
            {**library(driver, "libcuda", driver.built / "libcuda.so"),
             **library(driver, "libnvidia-ptxjitcompiler", driver.built / "libnvidia-ptxjitcompiler.so")}, LDCONFIG),
        Rpm("libnvidia-ml", (), library(driver, "libnvidia-ml", driver.nvml / "libnvidia-ml.so.1"), LDCONFIG),
        Rpm("nvidia-kmod-common", (*need("nvidia-kmod"), "Requires: nvidia-modprobe"), {
            **{f"usr/lib/firmware/nvidia/{driver.version}/gsp_{chip}.bin": f"stand-in {driver.version}\n"
               for chip in ("tu10x", "ga10x")},
            "usr/lib/modprobe.d/nvidia.conf": DENIED, ALTERNATE: ALTERNATE_TEXT,
            "etc/modprobe.d/nvidia-modeset.conf": "# options nvidia-drm modeset=1\n"},
            folders=(f"usr/lib/firmware/nvidia/{driver.version}", "usr/lib/firmware/nvidia", "usr/lib/nvidia")),
        _kmod(driver, "open", "kmod-nvidia-latest-dkms"),
        _kmod(driver, "latest", "kmod-nvidia-open-dkms"),
        Rpm("nvidia-modprobe", (), {"usr/bin/nvidia-modprobe": script("nvidia-modprobe.sh")}),
        Rpm("nvidia-persistenced", (), {
            "usr/bin/nvidia-persistenced": driver.built / "persistenced",
            "usr/lib/systemd/system/nvidia-persistenced.service": text("nvidia-persistenced.service"),
            "usr/lib/systemd/system-preset/70-nvidia-driver-cuda.preset": "enable nvidia-persistenced.service\n"},
            {"post": UNIT_POST, "preun": UNIT_PREUN}),
        *_fabric(driver),
    ]


def _fabric(driver: Driver) -> list[Rpm]:
    """A package without an epoch that is built for no distribution; the names lost the number of the branch, or a dash,
    at 580."""
    old = driver.branch < 580
    return [
        Rpm("nvidia-fabric-manager" if old else "nvidia-fabricmanager", (), {
            "usr/bin/nv-fabricmanager": driver.built / "fabricmanager",
            "usr/lib/systemd/system/nvidia-fabricmanager.service": text("nvidia-fabricmanager.service"),
            "usr/share/nvidia/nvswitch/fabricmanager.cfg": FABRIC},
            folders=("usr/share/nvidia/nvswitch", "usr/share/nvidia"), epoch=0, release="1"),
        Rpm(f"libnvidia-nscq-{driver.branch}" if old else "libnvidia-nscq", (), {
            f"usr/lib64/libnvidia-nscq.so.{driver.version}": driver.built / "libnvidia-nscq.so",
            "usr/lib64/libnvidia-nscq.so.2.0": Link(f"libnvidia-nscq.so.{driver.version}")}, LDCONFIG, epoch=0,
            release="1"),
    ]


def library(driver: Driver, stem: str, source: Path) -> Files:
    """A shared library and its link."""
    return {f"usr/lib64/{stem}.so.{driver.version}": source,
            f"usr/lib64/{stem}.so.1": Link(f"{stem}.so.{driver.version}")}


def _kmod(driver: Driver, kind: str, rival: str) -> Rpm:
    flavour = "open" if kind == "open" else "proprietary"
    source = f"usr/src/nvidia-{driver.version}"
    return Rpm(f"kmod-nvidia-{kind}-dkms",
               (f"Provides: nvidia-kmod = 3:{driver.version}", f"Requires: nvidia-kmod-common = 3:{driver.version}",
                f"Conflicts: {rival}", "Requires: dkms"),
               {f"{source}/dkms.conf": dkms_conf(driver.version),
                **{f"{source}/prebuilt/{module}.ko": driver.module(flavour, module) for module in MODULES}},
               {"post": DKMS_POST.format(version=driver.version), "preun": DKMS_PREUN.format(version=driver.version)},
               folders=(source, f"{source}/prebuilt"))

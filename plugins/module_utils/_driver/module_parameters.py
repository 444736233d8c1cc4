# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets parameters of kernel modules, and the list of modules that are loaded at boot.

If several files set a parameter, the value in the last file applies (modprobe.d(5)). Therefore, the file has a name
that sorts after those of distributions and driver packages. Source: nv-reg.h of NVIDIA/open-gpu-kernel-modules
(parameters and their names in /proc/driver/nvidia/params).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.gpudirect import wanted_modules
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import IN_INITRAMFS, request_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

OPTIONS_FILE = "/etc/modprobe.d/zz-gpuops-nvidia.conf"
BOOT_FILE = "/etc/modules-load.d/gpuops-nvidia.conf"
WRITE_OPTIONS = "write module parameters"
WRITE_BOOT = "list modules for boot"
# Modules that can have parameters.
MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_fs", "gdrdrv")
# Modules for compute work. They are loaded at boot, so that device nodes exist before the first GPU client starts.
_AT_BOOT = ("nvidia", "nvidia-uvm", "nvidia-modeset")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_VALUE = re.compile(r"[^\s\"'#\\]*\Z")
_LINE = re.compile(r"^options (\S+) (.+)$", re.M)
_LISTED = re.compile(r"^(\w+): (.*)$", re.M)
# Parameters whose names in /proc/driver/nvidia/params differ.
_LISTED_AS = {"RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}

Parameters = t.Dict[t.Tuple[str, str], str]


def parameters(spec: Spec) -> Parameters:
    """The option module_parameters as C({(module, parameter): value}). Raises InputError."""
    found: Parameters = {}
    for module, values in (spec.module_parameters or {}).items():
        name, path = str(module).replace("-", "_"), f"module_parameters.{module}"
        if name not in MODULES:
            raise InputError(f"'{module}' is not a module of the driver.", f"Use one of {', '.join(MODULES)}.",
                             path=path, value=module, allowed=list(MODULES))
        if values is None:
            continue
        if not isinstance(values, dict):
            raise InputError("the parameters of a module must be a mapping.", "Write 'name: value' for each parameter.",
                             path=path, value=values)
        for key, value in values.items():
            if value is None:
                continue
            text = str(int(value)) if isinstance(value, bool) else str(value)
            if not _NAME.match(str(key)) or not _VALUE.match(text) or not text:
                raise InputError(f"'{key}={text}' is not a module parameter.",
                                 "Names consist of letters, digits and _. Values contain no spaces, quotes or #.",
                                 path=f"{path}.{key}", value=value)
            found[name, str(key)] = text
    return found


def options_text(wanted: Parameters) -> bytes:
    """The content of the file for modprobe, empty if there are no parameters."""
    lines = []
    for module in MODULES:
        own = [f"{name}={value}" for (owner, name), value in sorted(wanted.items()) if owner == module]
        if own:
            lines.append(f"options {module} {' '.join(own)}\n")
    return ("# Written by gpuops.nvidia: module_parameters.\n" + "".join(lines)).encode() if lines else b""


def written(text: str) -> Parameters:
    """The parameters in a file that L(options_text) has written."""
    return {(module, word.partition("=")[0]): word.partition("=")[2]
            for module, words in _LINE.findall(text) for word in words.split()}


def loaded_value(root: Root, module: str, name: str) -> str | None:
    """The current value of a parameter of a loaded module, None if the kernel does not expose the value."""
    shown = root.text(f"/sys/module/{module}/parameters/{name}")
    if shown is not None or module != "nvidia":
        return shown
    listed = dict(_LISTED.findall(root.text("/proc/driver/nvidia/params") or ""))
    key = name[len("NVreg_"):] if name.startswith("NVreg_") else name
    return listed.get(key, listed.get(_LISTED_AS.get(key, key)))


def same(left: str, right: str) -> bool:
    """Whether two values of a parameter are equal, as unsigned 32-bit numbers, or as text if they are not numbers. Y is
    1, N is 0."""
    def plain(value: str) -> int | str:
        value = {"Y": "1", "N": "0"}.get(value, value.strip('"'))
        try:
            return int(value, 0) % (1 << 32)
        except ValueError:
            return value
    return plain(left) == plain(right)


def boot_text(spec: Spec, fabric: str) -> bytes:
    """The content of the systemd-modules-load file: modules that nothing else loads at boot. NVLSM needs ib_umad."""
    names = [*_AT_BOOT, *(["ib_umad"] if fabric == "nvlink5" else []),
             *(module.replace("_", "-") for module in wanted_modules(spec))]
    return ("# Written by gpuops.nvidia.\n" + "".join(f"{name}\n" for name in names)).encode()


class ModuleParameters(Part):
    """Writes the parameters and the list of modules for boot. Requests a reload of modules that were loaded with other
    values."""

    def reload(self, now: DriverState) -> str:
        """See L(Part)."""
        wanted = parameters(self.host.spec)
        former = written(self.host.root.text(OPTIONS_FILE) or "")
        for key in sorted({*wanted, *former}):
            module, name = key
            if module not in now.modules:
                continue
            if key not in wanted:
                return f"{module} was loaded with {name}={former[key]}, which is no longer set"
            value = loaded_value(self.host.root, module, name)
            if value is None and former.get(key) != wanted[key] or value is not None and not same(value, wanted[key]):
                return f"{module} has {name}={'?' if value is None else value}, but {wanted[key]} is desired"
        return ""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        wanted = parameters(self.host.spec)
        if now.loaded == desired.version and not desired.delivered:
            self._check_names(now, wanted)
        steps: list[Phased] = []
        text = options_text(wanted)
        owned = bool(text) or self.host.journal.get("file", OPTIONS_FILE) is not None
        if owned and (self.host.root.data(OPTIONS_FILE) or b"") != text:
            names = " ".join(f"{module}.{name}={value}" for (module, name), value in sorted(wanted.items()))
            steps.append(("configure", Step(WRITE_OPTIONS, OPTIONS_FILE, names or "no parameter is set",
                                            data={IN_INITRAMFS: True, "text": text})))
        boot = boot_text(self.host.spec, desired.fabric)
        if self.host.root.data(BOOT_FILE) != boot:
            steps.append(("configure", Step(WRITE_BOOT, BOOT_FILE, "device nodes must exist at boot",
                                            data={"text": boot})))
        return steps

    def _check_names(self, now: DriverState, wanted: Parameters) -> None:
        """Raises InputError for parameters that a loaded module does not have.

        /sys and /proc expose only some parameters of a module, so modinfo is run for the others.
        """
        for module, name in wanted:
            if module in now.modules and loaded_value(self.host.root, module, name) is None:
                known = self.host.run(["modinfo", "-F", "parm", module], check=False).stdout
                names = [line.partition(":")[0] for line in known.splitlines()]
                if name not in names:
                    raise InputError(f"{module} {now.loaded} has no parameter {name}.",
                                     f"Use one of the parameters that modinfo -F parm {module} lists.",
                                     path=f"module_parameters.{module}.{name}", allowed=names)

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action == WRITE_OPTIONS:
            request_rebuild(self.host.journal)
            if step.data["text"]:
                self.host.journal.write_file(step.target, step.data["text"])
            else:
                self.host.journal.restore_file(step.target)
        elif step.action == WRITE_BOOT:
            self.host.journal.write_file(step.target, step.data["text"])
        else:
            return False
        return True

    def disagreements(self, now: DriverState, desired: DesiredDriver) -> list[str]:
        """See L(Part)."""
        found = []
        for (module, name), value in sorted(parameters(self.host.spec).items()):
            if module in now.modules:
                shown = loaded_value(self.host.root, module, name)
                if shown is not None and not same(shown, value):
                    found.append(f"{module} was loaded with {name}={shown} instead of {value}: another file of "
                                 "modprobe.d or the kernel command line sets the parameter")
        return found

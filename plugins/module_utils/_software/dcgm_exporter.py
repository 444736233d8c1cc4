# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The DCGM exporter as a service of the host.

Source: NVIDIA/dcgm-exporter (packaging/config-files/systemd, its command line). The command line in NVIDIA's unit
contains the path of the counters file and overrides the environment, so a drop-in file replaces the command line.
"""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import EXPORTER_ADDRESS
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import dcgm, unit_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import (
    Desired,
    Host,
    Options,
    check_version,
)

UNIT = "nvidia-dcgm-exporter.service"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/gpuops.conf"
PACKAGE = "datacenter-gpu-manager-exporter"
COUNTERS = "/etc/dcgm-exporter/gpuops-counters.csv"
_VENDORS_COUNTERS = "/etc/dcgm-exporter/default-counters.csv"
_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]*):(\d{1,5})\Z")
_ENGINE = "localhost:5555"
_PATH = re.compile(r"/[^\s\"'\\%$]*\Z")
_DROP_IN_TEXT = """\
# Written by gpuops.nvidia.
[Service]
{environment}ExecStart=
ExecStart=/usr/bin/dcgm-exporter --address {listen} --collectors {counters} --remote-hostengine-info {engine}{more}
"""


class DcgmExporter:
    """Implements C(base.Component)."""

    name = "dcgm_exporter"
    unit = UNIT

    @staticmethod
    def desired(options: Options, host: Host) -> Desired:
        """See L(base.Component). listen: an address such as C(:9400), which is checked here. counters: the content of a
        file of counters, which is written to COUNTERS as it is and not checked: only the exporter reads it. args, env:
        further arguments and variables of the exporter. job_mapping, web_config: paths on the host."""
        version, counters = options.get("version") or None, options.get("counters")
        check_version("dcgm_exporter", version)
        listen = str(options.get("listen") or EXPORTER_ADDRESS)
        match = _LISTEN.match(listen)
        if match is None or not 0 < int(match.group(2)) < 65536:
            raise InputError(f"'{listen}' is not a listen address.",
                             f"Set {EXPORTER_ADDRESS} or 127.0.0.1{EXPORTER_ADDRESS}, for example.",
                             path="dcgm_exporter.listen", value=listen)
        files = {COUNTERS: counters.rstrip("\n").encode("utf-8") + b"\n"} if counters else {}
        text = _DROP_IN_TEXT.format(listen=listen, counters=COUNTERS if counters else _VENDORS_COUNTERS, engine=_ENGINE,
                                    environment=unit_text.environment(options.get("env") or {}, "dcgm_exporter.env"),
                                    more=_arguments(options))
        if "dcgm" not in host.selected and f"{dcgm.DCGM_3}-4-core" not in host.packages:
            raise InputError("The exporter needs DCGM 4, which is not installed.",
                             "Also set dcgm; an empty mapping is sufficient.", path="dcgm_exporter")
        address = match.group(1).strip("[]")
        return Desired(packages={PACKAGE: version}, files={**files, DROP_IN: text.encode()}, unit=UNIT,
                       address=(address if address not in ("", "0.0.0.0", "::") else "127.0.0.1", int(match.group(2))),
                       needs_driver=True)


def _arguments(options: Options) -> str:
    """The arguments at the end of the command line. Raises InputError for what a command line cannot contain."""
    found = []
    for option, flag in (("job_mapping", "--hpc-job-mapping-dir"), ("web_config", "--web-config-file")):
        path = str(options.get(option) or "")
        if path and not _PATH.match(path):
            raise InputError(f"{path!r} is not the path of a file or folder.", "Write an absolute path without spaces.",
                             path=f"dcgm_exporter.{option}", value=path)
        found += [flag, path] if path else []
    return "".join(f" {one}" for one in found) + unit_text.arguments(options.get("args") or (), "dcgm_exporter.args")

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The DCGM exporter as a service of the host.

Source: NVIDIA/dcgm-exporter (packaging/config-files/systemd, its command line). NVIDIA's unit names the file of
counters on the command line, which takes precedence over the environment, so a drop-in replaces the command.
"""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import EXPORTER_ADDRESS
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import dcgm
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
_DROP_IN_TEXT = """\
# Written by gpuops.nvidia.
[Service]
ExecStart=
ExecStart=/usr/bin/dcgm-exporter --address {listen} --collectors {counters} --remote-hostengine-info localhost:5555
"""


class DcgmExporter:
    """Implements C(base.Component)."""

    name = "dcgm_exporter"
    unit = UNIT

    @staticmethod
    def desired(options: Options, host: Host) -> Desired:
        """See L(base.Component). listen: C(:9400) or C(127.0.0.1:9400); counters: the text of a file of counters."""
        version, counters = options.get("version") or None, options.get("counters")
        check_version("dcgm_exporter", version)
        listen = str(options.get("listen") or EXPORTER_ADDRESS)
        where = _LISTEN.match(listen)
        if where is None or not 0 < int(where.group(2)) < 65536:
            raise InputError(f"'{listen}' is not a listen address.",
                             f"Set {EXPORTER_ADDRESS} or 127.0.0.1{EXPORTER_ADDRESS}, for example.",
                             path="dcgm_exporter.listen", value=listen)
        files = {COUNTERS: counters.rstrip("\n").encode("utf-8") + b"\n"} if counters else {}
        text = _DROP_IN_TEXT.format(listen=listen, counters=COUNTERS if counters else _VENDORS_COUNTERS)
        if "dcgm" not in host.wanted and f"{dcgm.FORMER}-4-core" not in host.packages:
            raise InputError("DCGM 4, which the exporter needs, is not installed.",
                             "Set dcgm, too; an empty mapping is sufficient.", path="dcgm_exporter")
        reach = where.group(1).strip("[]")
        return Desired(packages={PACKAGE: version}, files={**files, DROP_IN: text.encode()}, unit=UNIT,
                       address=(reach if reach not in ("", "0.0.0.0", "::") else "127.0.0.1", int(where.group(2))),
                       needs_driver=True)

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The DCGM exporter as a service of the host.

Source: NVIDIA/dcgm-exporter (packaging/config-files/systemd, its command line). The vendor's unit names the file of
counters on its command line, which wins over the environment: so our drop-in replaces the command.
"""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import dcgm
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import Host, Options, Wish, check_version

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
    def wish(options: Options, host: Host) -> Wish:
        """See L(base.Component). listen: C(:9400) or C(127.0.0.1:9400); counters: the text of a file of counters."""
        version, counters = options.get("version") or None, options.get("counters")
        check_version("dcgm_exporter", version)
        listen = str(options.get("listen") or ":9400")
        where = _LISTEN.match(listen)
        if where is None or not 0 < int(where.group(2)) < 65536:
            raise InputError(f"'{listen}' is no address to listen on.", "Give one such as :9400 or 127.0.0.1:9400.",
                             path="dcgm_exporter.listen", value=listen)
        files = {COUNTERS: counters.rstrip("\n").encode("utf-8") + b"\n"} if counters else {}
        text = _DROP_IN_TEXT.format(listen=listen, counters=COUNTERS if counters else _VENDORS_COUNTERS)
        if "dcgm" not in host.wanted and f"{dcgm.FORMER}-4-core" not in host.packages:
            raise InputError("DCGM 4 is not on this host, and the exporter asks its service.",
                             "Set dcgm too; an empty mapping will do.", path="dcgm_exporter")
        reach = where.group(1).strip("[]")
        return Wish(packages={PACKAGE: version}, files={**files, DROP_IN: text.encode()}, unit=UNIT, needs_driver=True,
                    address=(reach if reach not in ("", "0.0.0.0", "::") else "127.0.0.1", int(where.group(2))))

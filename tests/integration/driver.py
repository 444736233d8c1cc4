# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host of a lab and the role driver on it, as tests of package managers use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.integration import user
from tests.integration.conftest import LabHosts


@dataclass(frozen=True)
class DriverHost:
    """A host by its name in a lab."""

    lab: LabHosts
    name: str

    def sh(self, script: str) -> str:
        """Runs a shell script as root; returns what it prints."""
        return self.lab.sh(self.name, script)

    def snapshot(self) -> list[str]:
        """/etc, units and packages, a line each."""
        return self.lab.snapshot(self.name)

    def role(self, *words: str, tasks: str = "host", **variables: object) -> user.Run:
        """Runs a task file of the role."""
        return user.playbook(user.role("driver", tasks), self.lab.hosts, "--limit", self.name, *words,
                             driver_disruption="idle", **variables)

    def plan(self, run: user.Run) -> list[str]:
        """The steps that a run took or would take."""
        return [step["id"] for step in run.result(self.name, "nvidia_driver")["plan"]]

    def switch(self, tasks: str = "host", **variables: object) -> list[str]:
        """Check, then run: the same steps, which are returned."""
        check = self.role("--check", tasks=tasks, **variables)
        assert check.rc == 0, check.output
        run = self.role(tasks=tasks, **variables)
        assert run.rc == 0, run.output
        assert self.plan(run) == self.plan(check) != []
        return self.plan(run)

    def untouched(self, run: user.Run) -> bool:
        """Whether a run did nothing."""
        assert run.rc == 0, run.output
        return run.changed(self.name) == [] and self.plan(run) == []

    def brought(self) -> dict[str, str]:
        """The vendor's packages: name to version, which is one for all of them."""
        lines = self.sh("rpm -qa --qf '%{NAME} %{VERSION}\\n' | grep -e nvidia").splitlines()
        return dict(line.split() for line in lines)

    @contextmanager
    def killed_in_transaction(self, version: str, *programs: str) -> Iterator[None]:
        """Within, the module and these programs die when the scriptlet of NVML's package of a version is run."""
        self.sh(f"""mv /sbin/ldconfig /sbin/ldconfig.real; cat > /sbin/ldconfig <<'END'
#!/bin/sh
[ -e /usr/lib64/libnvidia-ml.so.{version} ] && pkill -9 -x '{'|'.join(("python3", *programs))}'
exec /sbin/ldconfig.real "$@"
END
chmod 755 /sbin/ldconfig""")
        try:
            yield
        finally:
            self.sh("mv /sbin/ldconfig.real /sbin/ldconfig")

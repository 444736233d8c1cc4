# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host of a lab and the role driver on it, as tests of the driver's sources use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from lab import cli
from lab.host import lab as labs
from lab.host import snapshot
from tests.integration import user
from tests.integration.conftest import LabHosts
from tests.integration.series import Done, Play, series

FRESH = "fresh"


@dataclass(frozen=True)
class Refused:
    """Runs that failed on one host, by case, and the host's state before and after all of them."""

    runs: dict[str, Done]
    before: list[str]
    after: list[str]


@dataclass
class DriverHost:
    """A host by its name in a lab. Each test starts it from a state that is kept: no test needs another one.

    more: a script that prints what belongs to a state beside the snapshot.
    """

    lab: LabHosts
    name: str
    more: str = ""
    saved: dict[str, str] = field(default_factory=lambda: {FRESH: ""})
    current: str = FRESH

    def sh(self, script: str) -> str:
        """Runs a shell script as root; returns what it prints."""
        return self.lab.sh(self.name, script)

    @property
    def state_script(self) -> str:
        """A script that prints the host's state."""
        return f"{snapshot.SCRIPT}{self.more}"

    def state(self) -> list[str]:
        """/etc, units and packages, a line each, and what else belongs to it."""
        return self.sh(self.state_script).splitlines()

    def fresh_state(self) -> list[str]:
        """The state of the host as it is at first."""
        self.start()
        state = self.state()
        self.left()
        return state

    def start(self, name: str = FRESH) -> None:
        """Brings the host to a kept state, unless the last test has left it there. Then the host is the test's."""
        if self.current != name:
            self.lab.reset(self.name, self.saved[name])
        self.current = ""

    def left(self, name: str = FRESH) -> None:
        """Says at the end of a test that the host is in this state still."""
        self.current = name

    def save(self, name: str = FRESH) -> None:
        """Keeps the host's state by a name."""
        self.saved[name] = self.lab.save(self.name)
        self.current = name

    def role(self, *words: str, tasks: str = "host", **variables: object) -> user.Run:
        """Runs a task file of the role, with words of the command line."""
        return user.playbook(user.role("driver", tasks), self.lab.hosts, "--limit", self.name, *words,
                             driver_disruption="idle", **variables)

    def run(self, *plays: Play) -> list[Done]:
        """Task files of the role, one after another; idle is the disruption that they may cause."""
        return series(self.lab, self.name, "driver",
                      [replace(play, variables={"driver_disruption": "idle", **play.variables}) for play in plays])

    def steps(self, run: user.Run) -> list[str]:
        """The steps that a run took or would take, and that ended well."""
        assert run.rc == 0, run.output
        return [step["id"] for step in run.result(self.name, "nvidia_driver")["plan"]]

    def switch(self, tasks: str = "host", twice: bool = False, **variables: object) -> list[str]:
        """Check, then run: the same steps, which are returned. twice: then once more, which finds nothing to do."""
        play = Play(variables, tasks)
        check, run, *rest = self.run(replace(play, check=True), *[play] * (1 + twice))
        assert self.steps(run) == self.steps(check) != []
        for again in rest:
            self.untouched(again)
        return self.steps(run)

    def untouched(self, run: user.Run) -> None:
        """A run did nothing."""
        assert self.steps(run) == [] and run.changed(self.name) == [], run.output

    def refused(self, run: user.Run) -> str:
        """The one error of a run that failed."""
        assert run.rc != 0 and len(run.errors()) == 1, run.output
        assert "Traceback" not in run.output and "MODULE FAILURE" not in run.output, run.output
        return run.errors()[0]

    def run_each(self, cases: Mapping[str, Play]) -> dict[str, Done]:
        """The same by name."""
        return dict(zip(cases, self.run(*cases.values()), strict=True))

    def brought(self) -> dict[str, str]:
        """The vendor's packages: name to version, which is one for all of them."""
        lines = self.sh("rpm -qa --qf '%{NAME} %{VERSION}\\n' | grep -e nvidia").splitlines()
        return dict(line.split() for line in lines)

    @contextmanager
    def fault(self, name: str, host: str = "repo") -> Iterator[None]:
        """Within, the repositories or a host have a fault."""
        cli.fault(labs.load(self.lab.name), host, name, "on")
        try:
            yield
        finally:
            cli.fault(labs.load(self.lab.name), host, name, "off")

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

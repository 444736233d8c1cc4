# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host of a lab and the role driver on it, for the tests of the sources of the driver."""

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
    """Runs that failed on one host, by case, and the state of the host before and after all of them."""

    runs: dict[str, Done]
    before: list[str]
    after: list[str]


@dataclass
class DriverHost:
    """A host of a lab, by name. Each test starts from a saved state of the host, so no test depends on another one.

    more: a script that prints further lines of the state, in addition to the snapshot.
    """

    lab: LabHosts
    name: str
    more: str = ""
    saved: dict[str, str] = field(default_factory=lambda: {FRESH: ""})
    current: str = FRESH

    def sh(self, script: str) -> str:
        """Runs a shell script as root; returns its output."""
        return self.lab.sh(self.name, script)

    @property
    def state_script(self) -> str:
        """A script that prints the host's state."""
        return f"{snapshot.SCRIPT}{self.more}"

    def state(self) -> list[str]:
        """The state of the host: /etc, units and packages, one line each, and the output of L(more)."""
        return self.sh(self.state_script).splitlines()

    def fresh_state(self) -> list[str]:
        """The initial state of the host."""
        self.start()
        state = self.state()
        self.left()
        return state

    def start(self, name: str = FRESH) -> None:
        """Restores a saved state of the host, unless the last test has left the host in this state. The test then owns
        the host."""
        if self.current != name:
            self.lab.reset(self.name, self.saved[name])
        self.current = ""

    def left(self, name: str = FRESH) -> None:
        """Notes at the end of a test that the host is still in this state."""
        self.current = name

    def save(self, name: str = FRESH) -> None:
        """Saves the state of the host under a name."""
        self.saved[name] = self.lab.save(self.name)
        self.current = name

    def role(self, *words: str, tasks: str = "host", **variables: object) -> user.Run:
        """Runs a task file of the role, with these arguments of the command line."""
        return user.playbook(user.role("driver", tasks), self.lab.hosts, "--limit", self.name, *words,
                             driver_disruption="idle", **variables)

    def run(self, *plays: Play) -> list[Done]:
        """Runs task files of the role, one after another. The default disruption is idle."""
        return series(self.lab, self.name, "driver",
                      [replace(play, variables={"driver_disruption": "idle", **play.variables}) for play in plays])

    def steps(self, run: user.Run) -> list[str]:
        """The steps that a successful run executed or previewed."""
        assert run.rc == 0, run.output
        return [step["id"] for step in run.result(self.name, "nvidia_driver")["plan"]]

    def switch(self, tasks: str = "host", twice: bool = False, **variables: object) -> list[str]:
        """Runs the role in check mode, then without it; returns the steps, which are the same. twice: runs it once
        more, which finds nothing to do."""
        play = Play(variables, tasks)
        check, run, *rest = self.run(replace(play, check=True), *[play] * (1 + twice))
        assert self.steps(run) == self.steps(check) != []
        for again in rest:
            self.untouched(again)
        return self.steps(run)

    def untouched(self, run: user.Run) -> None:
        """Checks that a run did nothing."""
        assert self.steps(run) == [] and run.changed(self.name) == [], run.output

    def refused(self, run: user.Run) -> str:
        """The only error of a failed run."""
        assert run.rc != 0 and len(run.errors()) == 1, run.output
        assert "Traceback" not in run.output and "MODULE FAILURE" not in run.output, run.output
        return run.errors()[0]

    def run_each(self, cases: Mapping[str, Play]) -> dict[str, Done]:
        """Runs each case; returns the runs by name."""
        return dict(zip(cases, self.run(*cases.values()), strict=True))

    def brought(self) -> dict[str, str]:
        """Maps the driver packages of the vendor to their version, which is the same for all of them."""
        lines = self.sh("rpm -qa --qf '%{NAME} %{VERSION}\\n' | grep -e nvidia").splitlines()
        return dict(line.split() for line in lines)

    @contextmanager
    def fault(self, name: str, host: str = "repo") -> Iterator[None]:
        """A context in which the repositories or a host have a fault."""
        cli.fault(labs.load(self.lab.name), host, name, "on")
        try:
            yield
        finally:
            cli.fault(labs.load(self.lab.name), host, name, "off")

    @contextmanager
    def killed_in_transaction(self, version: str, *programs: str) -> Iterator[None]:
        """A context in which the module and these programs are killed when the scriptlet of the NVML package of a
        version runs."""
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

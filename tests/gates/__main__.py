# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All gates: C(python3 -m tests.gates [NAME ...]); without names, all of them. C(make test) and CI call this.

C(python3 -m tests.gates --check [BASE]) runs those that the working tree's change affects (C(make check)).
"""

from __future__ import annotations

import signal
import sys
from dataclasses import replace

from lab import runs
from lab.stages import ROOT, Stage, Stages
from tests.gates import inputs, table
from tests.gates.schedule import Schedule
from tests.gates.table import BASES, GATES, ONLY_WHEN_NAMED, Gate


def main(words: list[str]) -> int:
    """Runs the given gates (default: all but those of ONLY_WHEN_NAMED). Returns the exit code."""
    checking = words[:1] == ["--check"]
    if checking and words[2:]:
        print(f"--check takes one commit to compare with, not {' '.join(words[1:])}")
        return 2
    known = {gate.name: gate for gate in GATES}
    wrong = [] if checking else [word for word in words if word not in known]
    if wrong:
        print(f"No gate named {', '.join(wrong)}; there are: {', '.join(known)}")
        return 2
    try:
        base, names = inputs.changed(ROOT, "".join(words[1:])) if checking else ("", set())
    except ValueError as problem:
        print(problem)
        return 2
    tree = inputs.Tree(ROOT, names)
    unclaimed = table.unclaimed(tree.files)
    if unclaimed:
        print(f"No gate runs {', '.join(unclaimed)}: name them in tests/gates/table.py")
        return 2
    if checking:
        wanted = affected_gates(tree, base)
    else:
        wanted = [known[word] for word in words] or [gate for gate in GATES if gate.name not in ONLY_WHEN_NAMED]
    print("Gates: " + (", ".join(gate.name for gate in wanted) or "none"), flush=True)
    if not words:
        print(f"Run only when named: {', '.join(ONLY_WHEN_NAMED)}", flush=True)
    return run(wanted, tree, "check" if checking else "bench" if words == ["bench"] else "test") if wanted else 0


def affected_gates(tree: inputs.Tree, base: str) -> list[Gate]:
    """The gates that the change of the tree affects, each limited to its affected tests. Prints why each gate runs or
    not."""
    shown = ", ".join(sorted(tree.changed)[:8])
    print(f"{len(tree.changed)} files differ from {base}: {shown}{' ...' if len(tree.changed) > 8 else ''}")
    chosen = []
    for gate in GATES:
        choice, why = choose(gate, tree, tree.changed)
        if choice:
            chosen.append(choice)
        print(f"  {gate.name:<22} {why}")
    return chosen


def choose(gate: Gate, tree: inputs.Tree, names: set[str]) -> tuple[Gate | None, str]:
    """The gate, limited to what a change of these files affects, or None; and the reason."""
    if gate.name in ONLY_WHEN_NAMED:
        return None, "left out: runs only when named"
    everything = [name for name in sorted(names) if name.startswith(inputs.AFFECTS_ALL)]
    if everything:
        return gate, f"runs: everything depends on {everything[0]}"
    # Of a test that is gone nothing is left to run, but what the others cover together may have changed.
    whole = sorted({*table.files(gate.inputs, names), *tree.program(gate.argv) & names,
                    *tree.dead_links(table.files(gate.inputs, tree.files)) & names,
                    *table.tests(gate.tests, names - tree.files)})
    if whole:
        return gate, f"runs: {whole[0]}{f' and {len(whole) - 1} more' if whole[1:] else ''}"
    tests = table.tests(gate.tests, tree.files)
    reached = names - set(table.files(gate.ignores, names))
    about = {name: table.nearest_tests(gate, name) for name in reached}
    reasons, others = {}, 0
    for test in tests:
        on = reached & ({test} if gate.only_own_tests else tree.closure(test))
        found = {name for name in on if about[name] is None or test in about[name]}
        others += bool(on) and not found
        reasons.update({test: found} if found else {})
    rest = f"{others} test files use it and are not about it" if others else ""
    if not reasons:
        return None, f"left out: {gate.only_own_tests or rest or 'nothing that it depends on has changed'}"
    first = min(next(iter(reasons.values())))
    if len(reasons) == len(tests):
        return gate, f"runs all {len(tests)} test files; {first} has changed"
    return (replace(gate, tests=tuple(reasons)),
            f"runs {len(reasons)} of {len(tests)} test files; {first} has changed{rest and f'; {rest}'}")


def run(gates: list[Gate], tree: inputs.Tree, title: str) -> int:
    """Runs gates and the gates that they need, and prints the table. Returns the exit code."""
    runs.begin()
    table.link_checkout()
    stages = Stages(title)
    needed = {name for gate in gates for name in gate.needs}
    schedule = Schedule(stages, [gate for gate in BASES if gate.name in needed] + [
        replace(gate, argv=(*gate.argv, *arguments(gate, tree))) for gate in gates])
    signal.signal(signal.SIGTERM, lambda *_ignored: sys.exit(143))  # what runs is stopped, too
    try:
        schedule.run()
    finally:
        stages.stop()
    print(f"\n{stages.table()}\n")
    for name, why in schedule.left_out.items():
        print(f"{name}: not run, as {why}")
    failed = [*stages.failed, *schedule.left_out]
    if failed:
        print(f"Failed: {', '.join(failed)}. Logs: {stages.logs.relative_to(ROOT)}")
        print("\n".join(line for stage in stages.done if stage.rc for line in why_failed(stage)))
    print(f"{len(stages.done) - len(stages.failed)} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


def why_failed(stage: Stage) -> list[str]:
    """The lines in the log of a failed gate that name the failures and their causes, at most 12; if the gate has no
    tests, the last lines."""
    lines = stage.log.read_text(errors="replace").splitlines()
    named = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    reasons = [line for line in lines if line.startswith("E   ")]
    return [f"  {stage.name}: {line[:300]}" for line in [*named[:6], *reasons[:6]] or lines[-6:]]


def arguments(gate: Gate, tree: inputs.Tree) -> list[str]:
    """The tests of a gate as arguments of pytest, or the folder if all of its tests run."""
    if gate.name == "unit" and gate.tests == ("tests/unit/*",):
        return []  # it measures what all of them cover
    return [path for pattern in gate.tests
            for path in ([pattern[:-2]] if pattern.endswith("/*") else table.files([pattern], tree.files))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

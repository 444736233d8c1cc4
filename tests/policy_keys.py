# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page docs/policy-keys.md. C(python -m tests.policy_keys) writes it."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import key_effects

PAGE = Path(__file__).resolve().parent.parent / "docs" / "policy-keys.md"
HEAD = """# What each key of a policy does

Each key of a policy changes something, or a run prints a note that names the key and the reason, or the run is refused
before anything is changed. The paths are those of a ClusterPolicy and of the chart's values. For an NVIDIADriver, read
`driver.` before the path. `*` stands for any keys. The first row that matches a path applies.

There is no note if a document sets a key to its default or disables a component, or if the component is not delivered
for another reason, which the plan names. A value that the chart writes counts as the default. If `gpu_placement` also
delivers something in the cluster, a key of no single component, such as `daemonsets.labels`, gets a note only if
nothing that is delivered there uses it.

With NVIDIADrivers, the keys of the sections `driver`, `gds` and `gdrcopy` of a ClusterPolicy or of the chart's values
have no effect, and a note names them. A run also names NVIDIADrivers that are not used.

A test sets each key of each format to another value, and compares the plans of hosts, the objects in a cluster, and the
notes with this table. Another one does this for mappings of `gpu_placement`, where no key may be without an effect, a
note and a refusal.

| keys | on hosts | in a cluster |
|---|---|---|
"""
WORDS = {"effect": "", "note": "no effect: ", "noted": "no effect: ", "refused": "refused: "}


def page() -> str:
    """The text of the page."""
    return HEAD + "".join(
        f"| {', '.join(f'`{key}`' for key in keys)} | {_cell(keys[0], 'hosts')} | {_cell(keys[0], 'cluster')} |\n"
        for keys in key_effects.rows())


def _cell(key: str, placement: str) -> str:
    effect = key_effects.of_key(key, placement)
    return WORDS[effect.kind] + effect.text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the generated C parts of the simulated NVML: the device tables and the stubs of calls that are not simulated.

``python -m lab.nvml.tables boards boards.json OUT.c`` turns the device tables into C.
``python -m lab.nvml.tables stubs symbols.txt OUT.c SOURCE.c...`` writes a stub for each symbol that no SOURCE defines.
"""
from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ARCHITECTURES = {"Volta": 5, "Turing": 6, "Ampere": 7, "Ada": 8, "Hopper": 9, "Blackwell": 10}
DEFINITION = re.compile(r"^(?:(?:API|\w+_CALL)\(|.*visibility.* const char \*)(nvml\w+)", re.MULTILINE)
LOOKUPS = """
const unsigned board_count = sizeof boards / sizeof *boards;

const Board *board_by_model(const char *model) {
    for (unsigned i = 0; i < board_count; i++)
        if (!strcmp(boards[i].model, model)) return &boards[i];
    return NULL;
}

const Board *board_by_name(const char *name) {
    for (unsigned i = 0; i < board_count; i++)
        if (!strcmp(boards[i].name, name)) return &boards[i];
    return NULL;
}

const Profile *profile_by_id(const Board *board, unsigned id) {
    for (unsigned i = 0; i < board->profile_count; i++)
        if (board->profiles[i].id == id) return &board->profiles[i];
    return NULL;
}

const Profile *profile_by_enum(const Board *board, unsigned enum_value) {
    for (unsigned i = 0; i < board->profile_count; i++)
        if (board->profiles[i].enum_value == enum_value) return &board->profiles[i];
    return NULL;
}

unsigned board_max_slices(const Board *board) {
    unsigned most = 0;
    for (unsigned i = 0; i < board->profile_count; i++)
        if (board->profiles[i].slices > most) most = board->profiles[i].slices;
    return most;
}
"""


def numbers(values: list[int]) -> str:
    """C initialiser of a list of numbers."""
    return "{" + ", ".join(str(value) for value in values) + "}"


def profile_row(profile: dict[str, Any]) -> str:
    """C initialiser of one ``Profile``."""
    keys = ("enum", "id", "slices", "instances", "memory_mib", "sm", "ce", "dec", "enc", "jpeg", "ofa")
    first = [profile[key] for key in keys]
    starts = profile["starts"]
    return (
        f'    {{"{profile["name"]}", {", ".join(map(str, first))}, {len(starts)}, {numbers(starts)}, '
        f'{profile["size"]}, {profile["ci"]}}},'
    )


def boards_source(boards: list[dict[str, Any]]) -> str:
    """The C source of the device tables."""
    arrays: list[str] = []
    rows: list[str] = []
    for number, board in enumerate(boards):
        buses = [int(bus, 16) for bus in board["buses"]]
        switch = board["nvswitch"] or {"device": "0", "buses": []}
        switch_buses = [int(bus, 16) for bus in switch["buses"]]
        arrays.append(f"static const unsigned buses_{number}[] = {numbers(buses)};")
        arrays.append(f"static const unsigned switches_{number}[] = {numbers(switch_buses or [0])};")
        clocks = board["clocks"]
        applications = clocks["applications"] or [0, 0]
        arrays.append(f"static const unsigned memory_{number}[] = {numbers(clocks['memory'])};")
        arrays.append(f"static const Profile profiles_{number}[] = {{")
        arrays += [profile_row(profile) for profile in board["profiles"]] or ["    {0},"]
        arrays.append("};")
        vendor, subsystem = board["subsystem"].split(":")
        major, minor = board["compute_capability"]
        rows.append(
            f'    {{"{board["model"]}", "{board["name"]}", 0x{board["device"]}, 0x{subsystem}, 0x{vendor},\n'
            f'     {ARCHITECTURES[board["architecture"]]}, {major}, {minor}, {board["memory_mib"]}, {board["brand"]}, '
            f'{board["power_limit_w"]}, {board["power_min_w"]}, memory_{number}, {len(clocks["memory"])}, '
            f'{", ".join(map(str, [*clocks["graphics"], *applications]))}, "{board["vbios"]}", buses_{number},\n'
            f'     0x{switch["device"]}, switches_{number}, {len(switch_buses)}, {int(board["fabric"])}, '
            f'{board["units"]}, {int(board["swapped"])}, profiles_{number}, {len(board["profiles"])}}},'
        )
    table = "\n".join([*arrays, "", "const Board boards[] = {", *rows, "};"])
    return f'/* Generated from boards.json. */\n#include "boards.h"\n#include <string.h>\n\n{table}\n{LOOKUPS}'


def stubs_source(symbols: list[str], sources: list[Path]) -> str:
    """C source of a stub for each symbol that no source defines."""
    defined: set[str] = set()
    for source in sources:
        defined.update(DEFINITION.findall(source.read_text(encoding="utf-8")))
    unknown = sorted(defined - set(symbols))
    if unknown:
        raise SystemExit(f"symbols.txt lacks {', '.join(unknown)}: add the names there, the export test reads it")
    stubs = [f'API({name})(void) {{ return unsimulated("{name}"); }}' for name in symbols if name not in defined]
    return '/* Generated from symbols.txt. */\n#include "lib.h"\n\n' + "\n".join(stubs) + "\n"


def main(arguments: list[str]) -> None:
    """Entry point, see the module's text."""
    if len(arguments) >= 3 and arguments[0] == "boards":
        boards = json.loads(Path(arguments[1]).read_text(encoding="utf-8"))["boards"]
        text = boards_source(boards)
    elif len(arguments) >= 4 and arguments[0] == "stubs":
        symbols = Path(arguments[1]).read_text(encoding="utf-8").split()
        text = stubs_source(symbols, [Path(name) for name in arguments[3:]])
    else:
        raise SystemExit(__doc__)
    Path(arguments[2]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

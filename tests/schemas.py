# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON schemas in the folder schemas: what they shall be, and C(python -m tests.schemas), which writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import format_schemas, json_schema

FOLDER = Path(__file__).resolve().parent.parent / "schemas"


def wanted() -> dict[str, dict[str, Any]]:
    """By name of the file its content."""
    found = {f"{kind.lower()}.json": json_schema.of_format(kind) for kind in format_schemas.FORMS}
    return {**found, "policy.json": json_schema.of_any()}


def text(schema: dict[str, Any]) -> str:
    """As the file has it."""
    return json.dumps(schema, indent=1) + "\n"


def main() -> None:
    """Writes all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, schema in wanted().items():
        (FOLDER / name).write_text(text(schema))


if __name__ == "__main__":
    main()

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The types of data that others define: policies, ConfigMaps, objects of the API server, JSON Schema. PRIVATE."""

from __future__ import annotations

import typing as t

Value = t.Any
Data = t.Dict[str, Value]
Section = t.Mapping[str, Value]

# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tests of a checkout always have the same result: Hypothesis uses the same examples in every run. tests.fuzz
searches for others."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("gates", derandomize=True, deadline=None)
settings.load_profile("gates")

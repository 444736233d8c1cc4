# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For all tests: a test that is skipped counts as failed, except those in the list here, which is printed with the
reasons.

A file that is skipped during collection always counts as failed.
"""

from __future__ import annotations

import pytest

# Part of a test's id: why it may skip.
MAY_SKIP: dict[str, str] = {
    "python38/test_modules.py::test_unit_tests_of_modules":
    "where there is no Python 3.8, the tests of grammar and library beside it have to do",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):  # type: ignore[no-untyped-def]
    """Turns an unlisted skip into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = next((why for part, why in MAY_SKIP.items() if part in item.nodeid), None)
        if reason is None:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} skipped, which counts as failed: {report.longrepr}"
        else:
            print(f"may skip: {item.nodeid}: {reason}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):  # type: ignore[no-untyped-def]
    """Turns a file that is skipped as a whole (C(importorskip), C(allow_module_level)) into a failure."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skipped, which counts as failed: {report.longrepr}"
    return report

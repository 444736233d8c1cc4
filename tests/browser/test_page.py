# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of the report in a browser: search, sorting, drawings of GPUs, on a phone, and what it must not run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import webpage
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import NodeState, Report
from ansible_collections.gpuops.nvidia.tests.unit.simulated.samples import facts
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

# Without them, a browser looks for its vendor's services.
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync")
HOSTS = 1000
LAYOUT = (("3g.40gb", 4, 4), ("1g.10gb", 0, 1), ("1g.10gb", 2, 1))
Open = Callable[..., Chrome]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for option in OPTIONS:
        options.add_argument(option)
    with Chrome(options, Service("/usr/bin/chromedriver")) as started:
        yield started


@pytest.fixture
def opened(browser: Chrome, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of a report of these hosts. At the end, the browser must have nothing to complain about."""
    def go(hosts: dict[str, Any], findings: Sequence[dict[str, str]] = ()) -> Chrome:
        states = [NodeState(name, "Ready" if number % 100 else "Degraded", "Checked" if number % 100 else "GpuLost",
                            "words") for number, name in enumerate(hosts)]
        document = {"plan": None, "problem": None, "findings": findings, "hosts": {
            name: {"facts": one, "checks": None, "steps": {}, "pending": {}} for name, one in hosts.items()}}
        report = Report.of(document)
        path = tmp_path / "report.html"
        path.write_text(webpage.page(Report(**{**vars(report), "states": states})), encoding="utf-8")
        browser.get(path.as_uri())
        return browser

    browser.get_log("browser")
    yield go
    assert browser.get_log("browser") == []


def fleet() -> dict[str, Any]:
    plain, cut = facts("A100", "A100", driver="595.91.07"), facts("A100", driver="595.91.07")
    cut["gpus"][0]["mig"] = {"enabled": True, "pending": True, "instances": [
        {"gi": number, "profile": profile, "profile_id": 0, "start": start, "size": size, "uuids": []}
        for number, (profile, start, size) in enumerate(LAYOUT)]}
    return {f"gpu{number}": cut if number == 421 else plain for number in range(1, HOSTS + 1)}


def table(page: Chrome, title: str) -> list[list[str]]:
    """The visible rows of the first table after a title, each with its cells."""
    return page.execute_script("""
        const title = [...document.querySelectorAll("h2, summary")].find((one) => one.textContent === arguments[0]);
        let next = title.nextElementSibling;
        return [...next.querySelectorAll("tbody tr")].filter((row) => row.checkVisibility())
            .map((row) => [...row.cells].map((cell) => cell.innerText));""", title)


def test_search(opened: Open) -> None:
    page = opened(fleet())
    assert len(table(page, "Hosts")) == HOSTS and table(page, "Each host and Node") == []
    field = page.find_element(By.ID, "search")
    field.send_keys("GPU421")
    assert [row[0] for row in table(page, "Hosts")] == ["gpu421"]
    assert [row[0] for row in table(page, "Each host and Node")] == ["gpu421"], "it opens to show what was found"
    # The rows of groups have the name only in short: "990: gpu[2-100,...]".
    assert [row[0] for row in table(page, "States")] == ["Ready"] and len(table(page, "GPUs")) == 1
    assert page.find_element(By.ID, "found").text == f"4 of {2 * HOSTS + 4} rows"
    page.refresh()
    assert [row[0] for row in table(page, "Hosts")] == ["gpu421"], "the address has the words"
    page.find_element(By.ID, "search").send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    assert len(table(page, "Hosts")) == HOSTS and page.find_element(By.ID, "found").text == ""
    page.find_element(By.ID, "search").send_keys("degraded gpulost gpu301")
    assert [row[0] for row in table(page, "Each host and Node")] == ["gpu301"] and table(page, "Hosts") == []
    page.execute_script("location.hash = 'gpu%20421'")
    WebDriverWait(page, 30).until(lambda _page: field_value(page) == "gpu 421")
    assert [row[0] for row in table(page, "Hosts")] == ["gpu421"]


def field_value(page: Chrome) -> str:
    return str(page.find_element(By.ID, "search").get_attribute("value"))


def test_findings_are_found_by_each_of_their_hosts(opened: Open) -> None:
    """The row names only the first ones."""
    page = opened(dict(list(fleet().items())[:50]), [
        {"host": f"gpu{number}", "check": "x", "severity": "error", "text": "broken", "fix": "", "detail": ""}
        for number in range(1, 51)])
    assert "gpu37" not in table(page, "Findings")[0][1]
    page.find_element(By.ID, "search").send_keys("gpu37")
    assert len(table(page, "Findings")) == 1


def test_sorting(opened: Open) -> None:
    page = opened(fleet())
    heading = page.find_element(By.XPATH, "//h2[text()='Hosts']/following::th[1]")
    button = heading.find_element(By.TAG_NAME, "button")
    numbers = [f"gpu{number}" for number in range(1, HOSTS + 1)]
    for order, expected in (("ascending", numbers), ("descending", numbers[::-1]), ("ascending", numbers)):
        button.click()
        assert heading.get_attribute("aria-sort") == order
        assert [row[0] for row in table(page, "Hosts")] == expected
    page.find_element(By.XPATH, "//h2[text()='Hosts']/following::th[5]/button").click()
    assert heading.get_attribute("aria-sort") is None
    assert [row[0] for row in table(page, "Hosts")][0] == "gpu421", "its MIG layout comes first"


def test_gpus_are_drawn(opened: Open) -> None:
    page = opened(fleet())
    bars = page.find_elements(By.CSS_SELECTOR, ".bar")
    assert [bar.get_attribute("aria-label") for bar in bars] == [
        "GPU 0: MIG off", "GPU 1: MIG off",
        "GPU 0: 1g.10gb, 1 of 8 memory slices free, 1g.10gb, 1 of 8 memory slices free, 3g.40gb"]
    parts = bars[-1].find_elements(By.TAG_NAME, "span")
    assert [part.text for part in parts] == ["1g", "", "1g", "", "3g.40gb"]
    assert [round(8 * part.rect["width"] / bars[-1].rect["width"]) for part in parts] == [1, 1, 1, 1, 4]
    assert [round(8 * (part.rect["x"] - bars[-1].rect["x"]) / bars[-1].rect["width"]) for part in parts] == [
        0, 1, 2, 3, 4]


def test_on_a_phone(opened: Open) -> None:
    page = opened(dict(list(fleet().items())[415:425]))
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                         {"width": 390, "height": 844, "deviceScaleFactor": 3, "mobile": True})
    try:
        assert page.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        page.find_element(By.ID, "search").send_keys("gpu420")
        assert [row[0] for row in table(page, "Hosts")] == ["gpu420"]
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_only_its_own_script_runs(browser: Chrome, opened: Open) -> None:
    hosts = {"gpu1": facts("A100"), "<script>document.title='evil'</script>": copy.deepcopy(facts("A100"))}
    page = opened(hosts)
    assert page.title == "GPU hosts" and "<script>" in table(page, "Hosts")[1][0]
    page.execute_script("""
        document.body.append(Object.assign(document.createElement("script"), {textContent: "document.title='evil'"}));
        document.body.insertAdjacentHTML(
            "beforeend", `<img src="http://127.0.0.1:9/x" onerror="document.title='evil'">`);
    """)
    refused = [entry["message"] for entry in browser.get_log("browser")]
    assert page.title == "GPU hosts"
    assert sum("Content Security Policy" in text for text in refused) >= 2, refused

// Copyright: gpuops.nvidia contributors
// GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
// Search and sorting of a report. Without it, the page is complete, but cannot be searched or sorted.
"use strict";
(() => {
  // A click on the head of a column sorts the rows of its table, a second click in the opposite order.
  const compare = new Intl.Collator("en", { numeric: true, sensitivity: "base" }).compare;
  const sort = (table, heading, column) => {
    const ascending = heading.getAttribute("aria-sort") !== "ascending";
    const rows = [...table.tBodies[0].rows].map((row) => [row.cells[column]?.textContent.trim() ?? "", row]);
    rows.sort(([one], [other]) => compare(one, other) * (ascending ? 1 : -1));
    table.tBodies[0].append(...rows.map(([, row]) => row));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  };
  for (const table of document.querySelectorAll("table")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, heading, column));
      heading.append(button);
    });
  }

  // The search hides the rows without its words. data-names has the names that a row shows only in short.
  const texts = [...document.querySelectorAll("tbody tr")].map(
    (row) => [row, `${row.dataset.names ?? ""} ${row.textContent}`.toLowerCase()]);
  const field = document.getElementById("search");
  const found = document.getElementById("found");
  const folded = document.getElementById("each");
  const search = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const [row, text] of texts) {
      row.hidden = !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    found.textContent = words.length ? `${count} of ${texts.length} rows` : "";
    if (folded && words.length) folded.open = true;
  };
  const follow = () => {
    try {
      field.value = decodeURIComponent(location.hash.slice(1));
    } catch {
      field.value = "";
    }
    search();
  };
  field.parentElement.hidden = false;
  field.addEventListener("input", () => {
    search();
    const words = field.value && `#${encodeURIComponent(field.value)}`;
    history.replaceState(null, "", location.pathname + location.search + words);
  });
  addEventListener("hashchange", follow);
  if (location.hash) follow();
})();

"""What a page can do where scripts run: tables sort, images open large. One script in every page, known by its hash."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

# Without it a page is complete: headings are text, images are shown. It adds buttons, and fetches nothing.
SCRIPT: Final = r"""
"use strict";
(() => {
  const make = (tag, kind, words) => {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    if (words) element.textContent = words;
    if (tag === "button") element.type = "button";
    return element;
  };

  // ---- tables: a click on a heading sorts all rows, those that are folded away too ----
  const cellText = (row, column) => row.cells[column].textContent.trim();
  const isMissing = (words) => words === "" || words === "\u2013";
  const asNumber = (words) => /^[-+\u2212]?[\d.]/.test(words)
    ? parseFloat(words.replace(/,/g, "").replace("\u2212", "-")) : NaN;

  const sortRows = (tables, column, down) => {
    const bodies = tables.map((table) => table.tBodies[0]);
    const rows = bodies.flatMap((body) => [...body.rows].filter((row) => !row.classList.contains("fixed")));
    const keyed = rows.map((row) => {
      const words = cellText(row, column);
      return { row, words, value: asNumber(words), missing: isMissing(words) };
    });
    const numeric = keyed.every((each) => each.missing || !Number.isNaN(each.value));
    keyed.sort((one, other) => {
      if (one.missing || other.missing) return one.missing - other.missing;
      const apart = (numeric && one.value - other.value)
        || one.words.localeCompare(other.words, undefined, { numeric: true });
      return down ? -apart : apart;
    });
    const counts = bodies.map((body) => [...body.rows].filter((row) => !row.classList.contains("fixed")).length);
    let next = 0;
    bodies.forEach((body, place) => {
      for (const each of keyed.slice(next, next + counts[place])) body.append(each.row);
      next += counts[place];
    });
    for (const table of tables) {
      [...table.tHead.rows[0].cells].forEach((heading, place) => {
        if (heading.querySelector("button")) {
          heading.setAttribute("aria-sort", place !== column ? "none" : down ? "descending" : "ascending");
        }
      });
    }
  };

  for (const box of document.querySelectorAll(".table")) {
    const tables = [...box.querySelectorAll("table")];
    if (tables.reduce((sum, table) => sum + table.tBodies[0].rows.length, 0) < 2) continue;
    for (const table of tables) {
      [...table.tHead.rows[0].cells].forEach((heading, column) => {
        const words = heading.textContent.trim();
        if (!words) return;
        const button = make("button", "sort", words);
        heading.textContent = "";
        heading.append(button);
        heading.setAttribute("aria-sort", "none");
        button.addEventListener("click", () => {
          sortRows(tables, column, heading.getAttribute("aria-sort") === "ascending");
        });
      });
    }
  }

  // ---- what is wider than its frame fades at the edge, as long as there is more to the right ----
  for (const box of document.querySelectorAll(".scroll")) {
    const mark = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    box.addEventListener("scroll", mark);
    new ResizeObserver(mark).observe(box);
  }

  // ---- images: each opens large; the arrows go on to the next of its section, Escape closes ----
  const dialog = make("dialog", "large");
  const stage = make("div", "stage");
  const caption = make("p");
  const keys = make("div", "keys");
  const [before, after, close] = ["\u2039 Previous", "Next \u203a", "Close"].map((words) => make("button", "", words));
  keys.append(before, after, close);
  dialog.append(stage, caption, keys);
  dialog.setAttribute("aria-label", "Enlarged image");
  stage.tabIndex = 0;
  stage.setAttribute("role", "region");
  stage.setAttribute("aria-label", "The image at full size");
  const sources = [];
  let shown = []; // those of one section
  let current = 0;

  const show = (place) => {
    current = (place + shown.length) % shown.length;
    const source = shown[current];
    const copy = source.cloneNode(true);
    copy.removeAttribute("loading");
    copy.removeAttribute("style");
    if (source.tagName === "IMG") {
      const ratio = source.naturalWidth / source.naturalHeight || 1;
      copy.style.width = `min(100%, ${(74 * ratio).toFixed(2)}vh, ${Math.max(source.naturalWidth, 640)}px)`;
    } else {
      const { width, height } = source.viewBox.baseVal;
      copy.style.width = `min(max(100%, ${width}px), ${(70 * width / height).toFixed(2)}vh)`;
      copy.style.minWidth = source.style.minWidth;
    }
    stage.replaceChildren(copy);
    stage.scrollTo(0, 0);
    const words = (source.closest("figure.plate") ?? source.closest("figure"))?.querySelector(":scope > figcaption");
    caption.replaceChildren(...[...(words?.cloneNode(true).childNodes ?? [])]);
    before.hidden = after.hidden = shown.length < 2;
  };
  const open = (source) => {
    const section = source.closest("section");
    shown = sources.filter((each) => each.closest("section") === section);
    show(shown.indexOf(source));
    dialog.showModal();
    close.focus();
  };

  for (const image of document.querySelectorAll("main figure img")) {
    const button = make("button", "open");
    button.setAttribute("aria-label", `Enlarge: ${image.alt}`);
    image.replaceWith(button);
    button.append(image);
    sources.push(image);
    button.addEventListener("click", () => open(image));
  }
  for (const chart of document.querySelectorAll("main figure.chart.wide svg.plot")) {
    const button = make("button", "enlarge", "Enlarge");
    button.setAttribute("aria-label", `Enlarge: ${chart.getAttribute("aria-label")}`);
    chart.closest("figure").append(button);
    sources.push(chart);
    button.addEventListener("click", () => open(chart));
  }
  if (sources.length) document.body.append(dialog);
  before.addEventListener("click", () => show(current - 1));
  after.addEventListener("click", () => show(current + 1));
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft" && document.activeElement !== stage) show(current - 1);
    if (event.key === "ArrowRight" && document.activeElement !== stage) show(current + 1);
  });
})();
"""

# A page allows the script of this hash and no other, so a name that holds markup can run nothing.
SCRIPT_HASH: Final = f"sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}"

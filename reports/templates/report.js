// Sorting and filtering of tables that are whole and readable without it.
"use strict";

function sortValue(row, column) {
  const cell = row.cells[column];
  const exact = cell.dataset.s;
  const text = exact === undefined ? cell.textContent.trim() : exact;
  if (text === "–" || text === "") return null;
  const number = Number(text);
  return Number.isNaN(number) ? text.toLowerCase() : number;
}

function compare(left, right) {
  if (typeof left === typeof right) return left < right ? -1 : left > right ? 1 : 0;
  return typeof left === "number" ? -1 : 1;
}

function sortTable(table, column) {
  const heads = table.tHead.rows[0].cells;
  const falling = heads[column].getAttribute("aria-sort") === "ascending";
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", falling ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row, place) => [sortValue(row, column), place, row]);
  rows.sort((left, right) => {
    // What was not measured stays at the end in either direction.
    if (left[0] === null || right[0] === null)
      return (left[0] === null) - (right[0] === null) || left[1] - right[1];
    const order = compare(left[0], right[0]);
    return (falling ? -order : order) || left[1] - right[1];
  });
  body.append(...rows.map((entry) => entry[2]));
}

function addSorting(table) {
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortTable(table, column));
    head.append(button);
  });
}

function addFilter(table) {
  const rows = Array.from(table.tBodies[0].rows);
  const bar = document.createElement("div");
  bar.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "filter: words, all must occur";
  input.setAttribute("aria-label", "filter rows of the table " + table.dataset.title);
  const count = document.createElement("span");
  count.setAttribute("aria-live", "polite");
  const texts = rows.map((row) => row.textContent.toLowerCase());
  function apply() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      if (!row.hidden) shown += 1;
    });
    count.textContent = shown + " of " + rows.length + " rows";
  }
  input.addEventListener("input", apply);
  apply();
  bar.append(input, count);
  table.parentElement.before(bar);
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let part = target.parentElement; part; part = part.parentElement)
    if (part.tagName === "DETAILS") part.open = true;
  target.hidden = false;
  target.scrollIntoView();
}

for (const table of document.querySelectorAll("table.data")) {
  addSorting(table);
  if (table.tBodies[0].rows.length > 8) addFilter(table);
}
window.addEventListener("hashchange", openTarget);
openTarget();

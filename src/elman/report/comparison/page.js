"use strict";
// Pointing at a row of a table or the legend shows its curves alone; a click on the legend keeps them.
(function () {
  var kept = new Set();
  function show(rows) {
    document.body.classList.toggle("chosen", rows.size !== 0);
    document.querySelectorAll(".plot [data-row]").forEach(function (part) {
      part.classList.toggle("on", rows.has(part.dataset.row));
    });
  }
  document.querySelectorAll("tr[data-row], button[data-row]").forEach(function (entry) {
    var row = entry.dataset.row;
    entry.addEventListener("mouseenter", function () { show(new Set([row].concat(Array.from(kept)))); });
    entry.addEventListener("mouseleave", function () { show(kept); });
    if (entry.tagName.toLowerCase() === "button") {
      entry.addEventListener("click", function () {
        if (!kept.delete(row)) { kept.add(row); }
        entry.setAttribute("aria-pressed", String(kept.has(row)));
        show(kept);
      });
    }
  });
  // A head sorts its table: numbers by size, the rest by letter, what is missing last.
  function value(cell) {
    var text = cell.textContent.trim();
    var number = parseFloat(text.replace(/,/g, ""));
    if (text === "" || text === "-") { return null; }
    return /^[-+]?[\d,]*\.?\d/.test(text) ? number : text.toLowerCase();
  }
  function before(a, b) {
    if (typeof a === typeof b) { return b > a ? -1 : a > b ? 1 : 0; }
    return typeof a === "number" ? -1 : 1;
  }
  function sort(head) {
    var at = Array.from(head.parentNode.children).indexOf(head);
    var down = head.getAttribute("aria-sort") === "ascending";
    var body = head.closest("table").tBodies[0];
    var lines = Array.from(body.rows).map(function (line) { return [value(line.cells[at]), line]; });
    lines.sort(function (a, b) {
      if (a[0] === null || b[0] === null) { return (a[0] === null) - (b[0] === null); }
      return down ? before(b[0], a[0]) : before(a[0], b[0]);
    });
    lines.forEach(function (pair) { body.appendChild(pair[1]); });
    head.parentNode.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }
  document.querySelectorAll("table.sorted thead th").forEach(function (head) {
    var button = document.createElement("button");
    button.type = "button";
    while (head.firstChild) { button.appendChild(head.firstChild); }
    head.appendChild(button);
    button.addEventListener("click", function () { sort(head); });
  });
})();

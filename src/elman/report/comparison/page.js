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
})();

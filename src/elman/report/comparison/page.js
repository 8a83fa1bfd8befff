"use strict";
// Picking rows, sorting and filtering tables, and reloading the page of a sweep that runs.
(function () {
  var all = function (query, inside) { return Array.from((inside || document).querySelectorAll(query)); };
  var store = { get: function () { return {}; }, put: function () {} };
  try { // a browser may forbid it
    var key = "elman:" + location.pathname;
    sessionStorage.getItem(key);
    store.get = function () { return JSON.parse(sessionStorage.getItem(key) || "{}"); };
    store.put = function (name, value) {
      var held = store.get();
      held[name] = value;
      sessionStorage.setItem(key, JSON.stringify(held));
    };
  } catch (error) { /* then a reload forgets */ }

  // Pointing at a row shows its curves alone; a click on the legend keeps them.
  var kept = new Set();
  function show(rows) {
    document.body.classList.toggle("chosen", rows.size !== 0);
    all(".plot [data-row]").forEach(function (part) {
      part.classList.toggle("on", rows.has(part.dataset.row));
    });
  }
  // An entry of a legend may stand for several rows: those of a model on all tasks.
  function rowsOf(entry) { return entry.dataset.row.split(" "); }
  function isKept(entry) { return rowsOf(entry).every(function (row) { return kept.has(row); }); }
  all("tr[data-row], button[data-row]").forEach(function (entry) {
    entry.addEventListener("mouseenter", function () { show(new Set(rowsOf(entry).concat(Array.from(kept)))); });
    entry.addEventListener("mouseleave", function () { show(kept); });
    if (entry.tagName.toLowerCase() === "button") {
      entry.addEventListener("click", function () {
        var drop = isKept(entry);
        rowsOf(entry).forEach(function (row) { if (drop) { kept.delete(row); } else { kept.add(row); } });
        all("button[data-row]").forEach(function (other) {
          other.setAttribute("aria-pressed", String(isKept(other)));
        });
        show(kept);
      });
    }
  });

  // A head sorts its table: numbers by size, the rest by letter, what is missing last.
  function value(cell) {
    var text = cell.textContent.trim();
    if (text === "" || text === "-") { return null; }
    return /^[-+]?[\d,]*\.?\d/.test(text) ? parseFloat(text.replace(/,/g, "")) : text.toLowerCase();
  }
  function before(a, b) {
    if (typeof a === typeof b) { return b > a ? -1 : a > b ? 1 : 0; }
    return typeof a === "number" ? -1 : 1;
  }
  function sort(head, down) {
    var at = Array.from(head.parentNode.children).indexOf(head);
    var body = head.closest("table").tBodies[0];
    var lines = Array.from(body.rows).map(function (line) { return [value(line.cells[at]), line]; });
    lines.sort(function (a, b) {
      if (a[0] === null || b[0] === null) { return (a[0] === null) - (b[0] === null); }
      return down ? before(b[0], a[0]) : before(a[0], b[0]);
    });
    lines.forEach(function (pair) { body.appendChild(pair[1]); });
    all("th", head.parentNode).forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }
  all("table.sorted").forEach(function (table, number) {
    var heads = all("thead th", table), name = "sort" + number, held = store.get()[name];
    heads.forEach(function (head, at) {
      var button = document.createElement("button");
      button.type = "button";
      while (head.firstChild) { button.appendChild(head.firstChild); }
      head.appendChild(button);
      button.addEventListener("click", function () {
        var down = head.getAttribute("aria-sort") === "ascending";
        sort(head, down);
        store.put(name, [at, down]);
      });
    });
    if (held && heads[held[0]]) { sort(heads[held[0]], held[1]); }
  });

  // The filter: words that a row or one of its runs must have, -words that it must not have, and
  // limits such as loss<1.3. What it leaves out leaves the plots too.
  var main = document.querySelector("table.sorted");
  var names = main ? all("thead th", main).map(function (head) {
    return head.textContent.replace(/\s/g, "").toLowerCase();
  }) : [];
  function holds(line, text, word) {
    var limit = /^([^<>]+)([<>])([-\d.e]+)$/.exec(word), at = limit ? names.indexOf(limit[1]) : -1;
    if (at >= 0) {
      var found = value(line.cells[at]);
      if (typeof found !== "number") { return false; }
      return limit[2] === "<" ? found < parseFloat(limit[3]) : found > parseFloat(limit[3]);
    }
    var without = word.length > 1 && word[0] === "-";
    return text.includes(without ? word.slice(1) : word) !== without;
  }
  function filter(typed) {
    var words = typed.toLowerCase().split(/\s+/).filter(Boolean), out = new Set(), count = 0;
    var lines = Array.from(main.tBodies[0].rows), texts = {};
    all("tr[data-row]").forEach(function (line) {
      if (line.closest(".differences")) { return; }  // its words are of two rows
      texts[line.dataset.row] = (texts[line.dataset.row] || "") + " " + line.textContent.toLowerCase();
    });
    lines.forEach(function (line) {
      var text = texts[line.dataset.row] || line.textContent.toLowerCase();
      var good = words.every(function (word) { return holds(line, text, word); });
      line.classList.toggle("out", !good);
      count += good;
      if (!good && line.dataset.row) { out.add(line.dataset.row); }
    });
    all("[data-row]").forEach(function (part) {
      part.classList.toggle("out", out.has(part.dataset.row) || part.classList.contains("out") && !part.dataset.row);
    });
    return words.length ? count + " of " + lines.length + " rows" : "";
  }
  var field = document.createElement("input");
  if (main && main.tBodies[0].rows.length > 1) {
    var box = document.createElement("p"), said = document.createElement("output");
    box.className = "filter";
    field.type = "search";
    field.placeholder = "filter rows: words, -words, loss<1.3";
    field.setAttribute("aria-label", field.placeholder);
    box.append(field, said);
    main.closest("section").querySelector("h2").after(box);
    field.addEventListener("input", function () {
      said.textContent = filter(field.value);
      store.put("filter", field.value);
    });
    if (store.get().filter) {
      field.value = store.get().filter;
      said.textContent = filter(field.value);
    }
  }

  // The page of a sweep that runs is rewritten each minute; nobody is disturbed while typing.
  if (document.body.classList.contains("living")) {
    setInterval(function () {
      if (document.activeElement !== field && !document.querySelector(".tip:not([hidden])")) { location.reload(); }
    }, 60000);
  }
})();

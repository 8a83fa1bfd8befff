// The values of a plot: where the pointer is, or from point to point with the arrow keys.
(function () {
  var tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.appendChild(tip);

  // Each plot has lists of places [x, y, text]: one list for each curve, one for all its dots.
  function listsOf(svg) {
    var ends = svg.dataset.ends.split(" ").map(Number), box = svg.dataset.box.split(" ").map(Number);
    // A place in the picture knows four digits, and that steps are whole.
    function shown(number, whole) {
      var known = Number(number.toPrecision(4));
      return (whole ? Math.round(known) : known).toLocaleString("en-US", { maximumFractionDigits: 9 });
    }
    // The value at a share of an axis, which may be logarithmic.
    function at(share, low, high, log) { return log ? low * Math.pow(high / low, share) : low + (high - low) * share; }
    var whole = /steps|bytes$/.test(svg.dataset.x), log = svg.dataset.log || "";
    var lists = Array.from(svg.querySelectorAll(".line:not(.out) polyline")).map(function (line) {
      return Array.from(line.points).filter(function (p) { return p.y >= box[2] - 1; }).map(function (p) {
        var x = at((p.x - box[0]) / (box[1] - box[0]), ends[0], ends[1], log.includes("x"));
        var y = at((box[3] - p.y) / (box[3] - box[2]), ends[2], ends[3], log.includes("y"));
        return [p.x, p.y, line.dataset.name + "\n" + svg.dataset.y + ": " + shown(y) + "\n" + svg.dataset.x + ": " + shown(x, whole)];
      });
    });
    var dots = Array.from(svg.querySelectorAll("circle[data-name], g[data-name]")).filter(function (dot) { return !dot.closest(".out"); });
    lists.push(dots.map(function (dot) {
      var at = (dot.dataset.at || dot.getAttribute("cx") + " " + dot.getAttribute("cy")).split(" ").map(Number);
      return [at[0], at[1], dot.dataset.tip || dot.dataset.name];
    }));
    return lists.filter(function (list) { return list.length; });
  }
  function nearest(list, x, y) {
    var best = 0, least = Infinity;
    list.forEach(function (place, at) {
      var far = Math.pow(place[0] - x, 2) + (y === null ? 0 : Math.pow(place[1] - y, 2));
      if (far < least) { least = far; best = at; }
    });
    return [best, least];
  }

  document.querySelectorAll("svg.plot").forEach(function (svg) {
    var ring = document.createElementNS(svg.namespaceURI, "circle"), lists = null, list = 0, at = 0;
    // The browser's own tips would cover ours.
    svg.querySelectorAll("title").forEach(function (title) {
      if (title.parentNode === svg) {
        svg.removeAttribute("aria-labelledby");
        svg.setAttribute("aria-label", title.textContent + ": the arrow keys read its values");
      }
      title.parentNode.dataset.name = title.textContent;
      title.remove();
    });
    ring.setAttribute("class", "here");
    ring.setAttribute("r", "6");
    svg.setAttribute("tabindex", "0");

    function show() {
      var place = lists[list][at], frame = svg.getBoundingClientRect();
      var scale = frame.width / svg.viewBox.baseVal.width;
      ring.setAttribute("cx", place[0]);
      ring.setAttribute("cy", place[1]);
      svg.appendChild(ring);
      tip.textContent = place[2];
      tip.hidden = false;
      var left = frame.left + place[0] * scale + 14, top = frame.top + place[1] * scale + 14;
      if (left + tip.offsetWidth > innerWidth - 8) { left = Math.max(8, left - tip.offsetWidth - 28); }
      if (top + tip.offsetHeight > innerHeight - 8) { top = Math.max(8, top - tip.offsetHeight - 28); }
      tip.style.left = left + "px";
      tip.style.top = top + "px";
    }
    function hide() {
      tip.hidden = true;
      ring.remove();
      lists = null;
    }
    svg.addEventListener("mousemove", function (event) {
      var frame = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / frame.width;
      var x = (event.clientX - frame.left) * scale, y = (event.clientY - frame.top) * scale, least = 900;
      lists = lists || listsOf(svg);
      var found = lists.some(function () { return true; }) && lists.reduce(function (any, places, number) {
        var best = nearest(places, x, y);
        if (best[1] >= least) { return any; }
        least = best[1];
        list = number;
        at = best[0];
        return true;
      }, false);
      if (found) { show(); } else { hide(); }
    });
    svg.addEventListener("mouseleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", function (event) {
      var along = { ArrowLeft: -1, ArrowRight: 1 }[event.key], across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (event.key === "Escape") { hide(); }
      if (!along && !across) { return; }
      event.preventDefault();
      if (!lists) {
        lists = listsOf(svg);
        list = at = 0;
      } else if (along || lists.length === 1) {
        // A curve is read in some fifty steps.
        var step = Math.ceil(lists[list].length / 50);
        at = Math.min(lists[list].length - 1, Math.max(0, at + step * (along || across)));
      } else {
        var x = lists[list][at][0];
        list = (list + across + lists.length) % lists.length;
        at = nearest(lists[list], x, null)[0];
      }
      if (lists.length) { show(); }
    });
  });
})();

// The viewer's keys, and the way from a chart to the attempts of a step.
(function () {
  "use strict";
  var rows = Array.prototype.slice.call(document.querySelectorAll("#rows tbody tr")), at = -1;
  var readout = document.getElementById("readout"), help = document.getElementById("help"), chord = "";
  function go(selector) {
    var found = document.querySelector(selector);
    if (found) found.click();
    return !!found;
  }
  function mark(next) {
    if (!rows.length) return;
    if (at >= 0) rows[at].classList.remove("on");
    at = Math.max(0, Math.min(rows.length - 1, next));
    rows[at].classList.add("on");
    rows[at].scrollIntoView({ block: "nearest" });
  }
  function fold() {
    var all = Array.prototype.slice.call(document.querySelectorAll("main details"));
    var open = all.some(function (d) { return !d.open; });
    all.forEach(function (d) { d.open = open; });
  }
  var filters = document.querySelector("details.filters");
  if (filters && innerWidth < 860) filters.open = false;
  document.querySelectorAll("[data-steps] svg[data-chart]").forEach(function (svg) {
    if (!svg.querySelector(".hit")) svg.addEventListener("click", function () {
      var step = (readout.textContent.match(/^step (\d+)/) || [])[1];
      if (step) location.href = svg.closest("[data-steps]").dataset.steps + "?step=" + step; });
  });
  document.querySelectorAll("button[data-copy]").forEach(function (button) {
    button.addEventListener("click", function () {
      if (navigator.clipboard) navigator.clipboard.writeText(button.dataset.copy).then(function () {
        button.textContent = "Copied"; }); });
  });
  document.getElementById("keys").addEventListener("click", function () { help.showModal(); });
  document.addEventListener("keydown", function (event) {
    var typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing) { if (event.key === "Escape") event.target.blur(); return; }
    var key = chord + event.key, done = true;
    chord = "";
    if (key === "j") { if (rows.length) mark(at + 1); else go("a[rel=next]"); }
    else if (key === "k") { if (rows.length) mark(at - 1); else go("a[rel=prev]"); }
    else if (key === "o" || (key === "Enter" && event.target === document.body)) {
      var first = at >= 0 && rows[at].querySelector("a"); if (first) first.click(); }
    else if (key === "u") go("a[data-up]");
    else if (key === "n") go("a[rel=next]");
    else if (key === "p") history.back();
    else if (key === "e") fold();
    else if (key === "g") chord = "g";
    else if (/^g[rave]$/.test(key)) go("a[data-go=" + key[1] + "]");
    else if (key === "?") help.showModal();
    else if (key === "/") {
      var search = document.querySelector("input[type=search]");
      if (search) { var fold_ = search.closest("details"); if (fold_) fold_.open = true;
        search.focus(); search.select(); } else go("a[data-go=a]"); }
    else done = false;
    if (done) event.preventDefault();
  });
})();

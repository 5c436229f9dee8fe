// Reads the values behind a chart out at the pointer. It writes text nodes only.
(function () {
  var readout = document.getElementById("readout");
  document.querySelectorAll("svg[data-chart]").forEach(function (svg) {
    var chart = JSON.parse(svg.dataset.chart), cross = svg.querySelector(".cross"), x = chart.x;
    function hide() { cross.classList.remove("on"); readout.style.visibility = "hidden"; }
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", function (event) {
      var box = svg.getBoundingClientRect();
      var at = (event.clientX - box.left) * 400 / box.width;
      var step = x[0] + (at - x[2]) / (x[3] - x[2]) * (x[1] - x[0]), best = null;
      chart.series.forEach(function (s) { s.p.forEach(function (p) {
        if (best === null || Math.abs(p[0] - step) < Math.abs(best - step)) best = p[0];
      }); });
      var lines = ["step " + Math.round(best)];
      chart.series.forEach(function (s) { s.p.forEach(function (p) {
        if (p[0] === best) lines.push(s.n + "  " + p[1]);
      }); });
      var place = x[2] + (best - x[0]) / (x[1] - x[0]) * (x[3] - x[2]);
      cross.setAttribute("x1", place); cross.setAttribute("x2", place); cross.classList.add("on");
      readout.textContent = lines.join("\n"); readout.style.visibility = "visible";
      var left = event.clientX + 14, width = readout.offsetWidth;
      if (left + width > innerWidth - 8) left = Math.max(4, event.clientX - width - 14);
      readout.style.left = left + "px"; readout.style.top = event.clientY + 14 + "px";
    });
  });
})();

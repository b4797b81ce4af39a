// Draws the two heat maps from the numbers in #heat-data, and says what is under the pointer.
"use strict";
(function () {
  var source = document.getElementById("heat-data"), box = document.getElementById("heat");
  if (!source || !box) return;
  var data = JSON.parse(source.textContent);
  var LEFT, RIGHT, BOTTOM = 28, TOP = 6;
  // The room beside the map is that beside charts, narrower on narrow pages.
  var room = function () {
    var style = getComputedStyle(document.documentElement);
    LEFT = parseFloat(style.getPropertyValue("--left")), RIGHT = parseFloat(style.getPropertyValue("--right"));
  };
  var rows = data.rows.length, columns = data.times_s.length;
  var dark = matchMedia("(prefers-color-scheme: dark)");
  // Marks of the scale: 1, 10, 100, 1k, ..., 84M.
  var short = function (n) {
    var units = ["", "k", "M", "G", "T"], at = 0;
    while (n >= 999.5 && at < units.length - 1) n /= 1000, at++;
    return Math.round(n) + units[at];
  };
  var group = function (n) { return Math.round(n).toLocaleString("en-US"); };
  var element = function (name, parent, className) {
    var made = document.createElement(name);
    if (className) made.className = className;
    parent.appendChild(made);
    return made;
  };
  var rate = function (row, column) {
    var reads = data.reads_per_s[row][column];
    return reads < 0 ? -1 : reads + data.writes_per_s[row][column];
  };
  var most = 1;
  for (var r = 0; r < rows; r++) for (var c = 0; c < columns; c++) most = Math.max(most, rate(r, c));

  var mix = function (stops, share) {
    var at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    var part = at - low, a = stops[low], b = stops[low + 1];
    return "rgb(" + [0, 1, 2].map(function (i) { return Math.round(a[i] + (b[i] - a[i]) * part); }).join(",") + ")";
  };
  var HEAT = { light: [[243, 240, 232], [251, 209, 132], [240, 128, 60], [176, 32, 40], [74, 4, 32]],
               dark: [[32, 38, 45], [92, 40, 60], [190, 66, 46], [247, 158, 62], [255, 246, 205]] };
  var PLACE = { light: [[217, 130, 43], [236, 214, 190], [31, 111, 178]], dark: [[240, 163, 90], [70, 74, 80], [90, 169, 230]] };
  var stops = function (ramp) { return ramp[dark.matches ? "dark" : "light"]; };
  // Logarithmic: one access a second and the hottest row are both visible.
  var heatShare = function (n) { return n < 1 ? 0 : (1 + Math.log(n)) / (1 + Math.log(most)); };
  var heatColour = function (row, column) {
    var n = rate(row, column);
    return n < 0 ? null : mix(stops(HEAT), heatShare(n));
  };
  var placeColour = function (row, column) {
    var share = data.fast_permille[row][column];
    return share < 0 ? null : mix(stops(PLACE), share / 1000);
  };
  // A recording has no tiers; there, how many of the accesses are stores.
  var recording = !data.fast_permille;
  var WAY = { light: [[31, 111, 178], [200, 205, 205], [217, 130, 43]], dark: [[90, 169, 230], [90, 92, 96], [240, 163, 90]] };
  var wayColour = function (row, column) {
    var all = rate(row, column);
    return all < 1 ? null : mix(stops(WAY), data.writes_per_s[row][column] / all);
  };

  // Each column reaches to the next one, the last to the end of what was recorded.
  var end = data.end_s || 1, edges = data.times_s.concat([end]);
  var maps = [];
  var map = function (name, colour, height) {
    var canvas = element("canvas", box);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", name);
    canvas.style.height = height + "px";
    var draw = function () {
      room();
      var width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
      canvas.width = width * scale;
      canvas.height = height * scale;
      var pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      var style = getComputedStyle(document.documentElement);
      var soft = style.getPropertyValue("--soft"), grid = style.getPropertyValue("--grid"), card = style.getPropertyValue("--card");
      var w = width - LEFT - RIGHT, h = height - TOP - BOTTOM;
      var edge = function (column) { return LEFT + w * edges[column] / end; };
      pen.fillStyle = grid;
      pen.fillRect(LEFT, TOP, w, h);
      for (var r = 0; r < rows; r++) {
        var y0 = TOP + h - Math.round(h * (r + 1) / rows), y1 = TOP + h - Math.round(h * r / rows);
        for (var c = 0; c < columns; c++) {
          var fill = colour(r, c);
          if (!fill) continue;
          pen.fillStyle = fill;
          var x0 = Math.round(edge(c)), x1 = Math.round(edge(c + 1));
          pen.fillRect(x0, y0, Math.max(x1 - x0, 1), Math.max(y1 - y0, 1));
        }
      }
      // A line where addresses jump.
      pen.fillStyle = card;
      for (r = 1; r < rows; r++) {
        var before = data.rows[r - 1], here = data.rows[r];
        var behind = BigInt("0x" + before[1]) + BigInt(before[2]) * BigInt(data.page_size_bytes);
        if (before[0] !== here[0] || behind !== BigInt("0x" + here[1])) pen.fillRect(LEFT, TOP + h - Math.round(h * r / rows) - 1, w, 2);
      }
      pen.fillStyle = soft;
      pen.font = "12px system-ui, sans-serif";
      // Addresses may be long and the room for them small: all have the size at which the longest fits.
      var longest = data.rows.reduce(function (most, row) { return Math.max(most, pen.measureText(row[1]).width); }, 1);
      pen.font = Math.max(7, Math.min(12, 12 * (LEFT - 10) / longest)) + "px system-ui, sans-serif";
      pen.textAlign = "right";
      var shown = -1e9;
      for (r = 0; r < rows; r++) {
        var start = r === 0 || data.rows[r - 1][0] !== data.rows[r][0] ||
          BigInt("0x" + data.rows[r - 1][1]) + BigInt(data.rows[r - 1][2]) * BigInt(data.page_size_bytes) !== BigInt("0x" + data.rows[r][1]);
        var y = TOP + h - h * r / rows;
        if (!start || Math.abs(y - shown) < 15) continue;
        shown = y;
        pen.fillText(data.rows[r][1], LEFT - 8, Math.max(y, TOP + 10));
      }
      pen.font = "12px system-ui, sans-serif";
      pen.textAlign = "center";
      var free = -1e9;
      data.time_labels.forEach(function (label) {
        var middle = LEFT + w * label[0], half = pen.measureText(label[1]).width / 2;
        if (middle - half < free) return;
        free = middle + half + 12;
        pen.fillText(label[1], Math.min(middle, width - 1 - half), height - 9);
      });
    };
    canvas.addEventListener("pointermove", function (event) {
      var spot = canvas.getBoundingClientRect();
      var fx = (event.clientX - spot.left - LEFT) / (spot.width - LEFT - RIGHT);
      var fy = 1 - (event.clientY - spot.top - TOP) / (height - TOP - BOTTOM);
      if (fx < 0 || fx >= 1 || fy < 0 || fy >= 1) { now.textContent = ""; return; }
      var column = 0;
      while (column + 1 < columns && edges[column + 1] <= fx * end) column++;
      if (fx * end < edges[0]) { now.textContent = ""; return; }
      tell(Math.floor(fy * rows), column);
    });
    maps.push(draw);
    return canvas;
  };
  var tell = function (row, column) {
    var at = data.rows[row], reads = data.reads_per_s[row][column], fast = recording ? -1 : data.fast_permille[row][column];
    var text = data.times_s[column].toPrecision(3) + " s · process " + at[0] + " · 0x" + at[1] + " + " + group(at[2]) + " pages";
    if (reads < 0) text += " · not mapped then";
    else text += " · a page: " + group(reads) + " reads/s, " + group(data.writes_per_s[row][column]) + " writes/s" +
      (recording ? "" : "; the hottest " + group(data.hottest_per_s[row][column]) + "/s") + (fast < 0 ? "" : " · " + (fast / 10).toFixed(0) + "% in the fast tier");
    now.textContent = text;
  };
  var ramp = function (parent, ramps) {
    var bar = element("span", parent, "ramp");
    maps.push(function () {
      var list = [];
      for (var i = 0; i <= 16; i++) list.push(mix(stops(ramps), i / 16));
      bar.style.background = "linear-gradient(90deg," + list.join(",") + ")";
    });
    return bar;
  };
  var word = function (parent, text) { element("span", parent).textContent = text; };

  map("Accesses a second by address and time", heatColour, Math.max(240, Math.min(360, rows * 4)));
  var scale = element("div", box, "scale");
  var bar = ramp(scale, HEAT);
  for (var step = 1; step <= most; step *= most > 1e6 ? 100 : 10) {
    if (heatShare(step) > (most > 1e6 ? 0.8 : 0.9) && step !== most) continue;
    var mark = element("b", bar);
    mark.textContent = short(step);
    mark.style.left = 100 * heatShare(step) + "%";
  }
  var hottest = element("b", bar);
  hottest.textContent = short(most);
  hottest.style.left = "100%";
  word(scale, "accesses/s to a page (logarithmic)");
  var second = recording ? ["Share of stores by address and time", wayColour, "only loads", WAY, "only stores"]
    : ["Share of pages in the fast tier by address and time", placeColour, "slower tiers", PLACE, "fast tier"];
  map(second[0], second[1], Math.max(160, Math.min(240, rows * 2)));
  scale = element("div", box, "scale");
  word(scale, second[2]);
  ramp(scale, second[3]).classList.add("plain");
  word(scale, second[4]);
  var now = element("div", box, "now");
  now.textContent = "Point at a cell to read its figures.";
  var drawAll = function () { maps.forEach(function (draw) { draw(); }); box.dataset.drawn = maps.length; };
  drawAll();
  dark.addEventListener("change", drawAll);
  window.addEventListener("resize", drawAll);
  window.addEventListener("beforeprint", drawAll);
})();

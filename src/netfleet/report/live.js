// Draws the report's curves so that they can be hidden, zoomed and read; without it the page shows its pictures.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("live-data").textContent), at = (id) => document.getElementById(id);
  const hidden = new Set(), HEIGHT = 220, LEFT = 58, RIGHT = 8, TOP = 8, BOTTOM = 24;
  let view = null; // the part of the horizontal axis that is shown; null: all
  const make = (name, attributes, parent) => {
    const made = document.createElementNS(at("live-space").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  };
  const short = (v) => (v === 0 ? "0" : Math.abs(v) >= 1e-3 && Math.abs(v) < 1e6 ? Number(v.toPrecision(5)).toLocaleString("en", { maximumFractionDigits: 6 }) : v.toExponential(2));
  const words = () => at("live-x").selectedOptions[0].textContent;
  const x = () => at("live-x").value, gaps = () => at("live-what").value === "gap";
  const shownMethods = () => data.methods.filter((m) => !hidden.has(m.label) && m.xs[x()]);

  function rows(method, k) { // [x, value, low, high] of a panel's curve
    const c = method.curves[k], values = gaps() ? c.gap : c.mean;
    return method.xs[x()].map((place, i) => {
      const v = values[i], h = gaps() ? c.half[i] : 0;
      return [place, v, gaps() ? v - h : c.low[i] ?? v, gaps() ? v + h : c.high[i] ?? v];
    }).filter(([place, v]) => place != null && v != null);
  }

  function range(values, log) {
    const kept = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
    if (!kept.length) return log ? [0.1, 1] : [0, 1];
    let low = kept.reduce((a, b) => Math.min(a, b)), high = kept.reduce((a, b) => Math.max(a, b));
    if (low === high) return log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    return [low, high];
  }

  function ticks(low, high, log) {
    if (log) {
      const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9), step = Math.max(1, Math.ceil((last - first) / 5));
      const found = [];
      for (let e = first; e <= last; e += step) found.push(10 ** e);
      return found.length > 1 ? found : [low, Math.sqrt(low * high), high];
    }
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((s) => s * power >= rough) * power;
    const found = [];
    for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
    return found;
  }

  const panels = data.panels.map((panel, k) => {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    const svg = make("svg", { role: "img", tabindex: "0" });
    figure.append(caption, svg);
    at("live-cards").append(figure);
    return { panel, k, figure, caption, svg, cursor: null };
  });

  function draw(one) {
    const { panel, k, svg } = one, log = panel.log && !gaps(), width = svg.clientWidth || 400;
    one.curves = shownMethods().map((m) => [m, rows(m, k).filter(([, v]) => !log || v > 0)]).filter(([, r]) => r.length);
    one.figure.hidden = !data.methods.some((m) => (gaps() ? m.curves[k].gap : m.curves[k].mean).some((v) => v != null));
    one.caption.textContent = gaps() ? `${panel.title}: difference to ${data.first}` : panel.title;
    svg.setAttribute("aria-label", `${one.caption.textContent} (${panel.words}) against ${words()}; arrow keys tell the values`);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.replaceChildren();
    const sound = one.curves.filter(([m]) => !m.lost), counted = sound.length ? sound : one.curves;
    const whole = range(counted.flatMap(([, r]) => r.map(([p]) => p)), false), [x0, x1] = view || whole;
    const seen = counted.flatMap(([, r]) => r.filter(([p]) => p >= x0 && p <= x1).flatMap(([, v, l, h]) => [v, l, h]));
    const [y0, y1] = range(seen, log), f = log ? Math.log10 : (v) => v;
    one.whole = whole;
    one.px = (p) => LEFT + ((p - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    one.place = (px) => x0 + ((px - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0);
    const py = (v) => TOP + (1 - (f(Math.max(v, log ? y0 : -Infinity)) - f(y0)) / (f(y1) - f(y0))) * (HEIGHT - TOP - BOTTOM);
    one.py = py;
    const text = (label, px, y, anchor) => { make("text", { x: px, y, "text-anchor": anchor, "font-size": 11, fill: "#555" }, svg).textContent = label; };
    for (const v of ticks(y0, y1, log)) {
      make("line", { x1: LEFT, x2: width - RIGHT, y1: py(v), y2: py(v), stroke: "#e4e4e4" }, svg);
      text(panel.percent ? short(100 * v) + (gaps() ? " pts" : " %") : short(v), LEFT - 5, py(v) + 4, "end");
    }
    for (const v of ticks(x0, x1, false)) {
      make("line", { x1: one.px(v), x2: one.px(v), y1: TOP, y2: HEIGHT - BOTTOM, stroke: "#f0f0f0" }, svg);
      text(v >= 1e5 ? v.toExponential(1) : short(v), one.px(v), HEIGHT - 8, one.px(v) > width - 20 ? "end" : "middle");
    }
    const box = [LEFT, TOP - 2, width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM + 4]; // what is outside is not drawn
    const inside = make("svg", { x: box[0], y: box[1], width: box[2], height: box[3], viewBox: box.join(" ") }, svg);
    if (gaps() && y0 < 0 && y1 > 0) make("line", { x1: LEFT, x2: width - RIGHT, y1: py(0), y2: py(0), stroke: "#777" }, inside);
    for (const [m, r] of one.curves) {
      const edge = [...r.map(([p, , , h]) => [p, h]), ...r.map(([p, , l]) => [p, l]).reverse()];
      if (r.some(([, , l, h]) => l !== h)) make("polygon", { points: edge.map(([p, v]) => `${one.px(p).toFixed(1)},${py(v).toFixed(1)}`).join(" "), fill: m.color, opacity: 0.15 }, inside);
    }
    for (const [m, r] of one.curves) {
      const points = r.map(([p, v]) => `${one.px(p).toFixed(1)},${py(v).toFixed(1)}`).join(" ");
      make("polyline", { points, fill: "none", stroke: m.color, "stroke-width": m.width, "stroke-dasharray": m.dashes, "data-label": m.label }, inside);
    }
    one.mark = make("g", {}, svg);
    one.brush = make("rect", { y: TOP, height: HEIGHT - TOP - BOTTOM, fill: "#888", opacity: 0.25, width: 0 }, svg);
  }

  let told = null; // the panel whose values are told

  function drawAll() {
    panels.forEach(draw);
    at("live-at").textContent = ""; // it may tell of curves that are hidden now
    if (told && told.place(LEFT) <= told.cursor && told.px(told.cursor) <= (told.svg.clientWidth || 400) - RIGHT + 1e-6) tell(told, told.cursor);
  }

  function tell(one, place) { // the values of every curve at the evaluation that is nearest
    const near = one.curves.map(([m, r]) => [m, r.reduce((a, b) => (Math.abs(b[0] - place) < Math.abs(a[0] - place) ? b : a))]);
    one.mark.replaceChildren();
    if (!near.length) return;
    const nearest = near.map(([, r]) => r[0]).reduce((a, b) => (Math.abs(b - place) < Math.abs(a - place) ? b : a));
    one.cursor = nearest;
    told = one;
    make("line", { x1: one.px(nearest), x2: one.px(nearest), y1: TOP, y2: HEIGHT - BOTTOM, stroke: "#777", "stroke-dasharray": "3 3" }, one.mark);
    for (const [m, [p, v]] of near) make("circle", { cx: one.px(p), cy: one.py(v), r: 3.5, fill: m.color }, one.mark);
    const value = (v) => (one.panel.percent ? short(100 * v) + (gaps() ? " points" : " %") : short(v));
    const values = near.map(([m, [, v, l, h]]) => `${m.label} ${value(v)}` + (l === h ? "" : ` [${value(l)} to ${value(h)}]`));
    at("live-at").textContent = `${one.caption.textContent} at ${short(nearest)} ${words()}: ${values.join("; ")}`;
  }

  function zoom(low, high) {
    const [first, last] = range(panels.flatMap((one) => one.whole), false);
    view = high - low >= last - first ? null : [Math.max(low, first), Math.min(high, last)];
    drawAll();
  }

  function scale(factor) {
    const [low, high] = view || range(panels.flatMap((one) => one.whole), false), middle = (low + high) / 2;
    zoom(middle - (factor * (high - low)) / 2, middle + (factor * (high - low)) / 2);
  }

  for (const one of panels) {
    let from = null;
    const px = (event) => event.clientX - one.svg.getBoundingClientRect().left;
    one.svg.addEventListener("pointerdown", (event) => { from = px(event); });
    one.svg.addEventListener("pointermove", (event) => {
      tell(one, one.place(px(event)));
      if (from === null) return;
      one.brush.setAttribute("x", Math.min(from, px(event)));
      one.brush.setAttribute("width", Math.abs(px(event) - from));
    });
    one.svg.addEventListener("pointerup", (event) => {
      const [a, b] = [from, px(event)].sort((p, q) => p - q);
      from = null;
      if (b - a > 8) zoom(one.place(a), one.place(b));
      else one.brush.setAttribute("width", 0);
    });
    one.svg.addEventListener("pointerleave", () => { from = null; one.brush.setAttribute("width", 0); });
    one.svg.addEventListener("dblclick", () => { view = null; drawAll(); });
    one.svg.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way || !one.curves.length) return;
      event.preventDefault();
      const places = [...new Set(one.curves.flatMap(([, r]) => r.map(([p]) => p)))].sort((a, b) => a - b);
      const now = one.cursor === null ? (way > 0 ? -1 : places.length) : places.findIndex((p) => p >= one.cursor);
      tell(one, places[Math.min(Math.max(now + way, 0), places.length - 1)]);
    });
  }
  for (const m of data.methods) {
    const item = document.createElement("li"), label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => { box.checked ? hidden.delete(m.label) : hidden.add(m.label); drawAll(); });
    const swatch = make("svg", { width: 30, height: 8, "aria-hidden": "true" });
    make("line", { x1: 0, x2: 30, y1: 4, y2: 4, stroke: m.color, "stroke-width": m.width * 1.4, "stroke-dasharray": m.dashes }, swatch);
    label.append(box, " ", swatch, " " + m.label);
    item.append(label);
    at("live-keys").append(item);
  }
  for (const [value, words] of data.quantities) at("live-x").append(new Option(words, value));
  at("live-what").append(new Option("values", "value"));
  if (data.methods.some((m) => m.curves.some((c) => c.gap.length))) at("live-what").append(new Option(`paired differences to ${data.first}`, "gap"));
  at("live-x").addEventListener("change", () => {
    view = told = null;
    for (const one of panels) one.cursor = null; // a place on the axis before
    drawAll();
  });
  at("live-what").addEventListener("change", drawAll);
  at("live-in").addEventListener("click", () => scale(0.5));
  at("live-out").addEventListener("click", () => scale(2));
  at("live").hidden = data.methods.length === 0;
  addEventListener("resize", drawAll);
  drawAll();
})();

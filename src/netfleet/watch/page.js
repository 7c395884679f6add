// The script of the page of `netfleet watch`: asks for news once a second, and fills tables and figures.
"use strict";
const PAUSE = 1000, ROWS = 2000;
const at = (id) => document.getElementById(id);
const store = new Map(); // of each series: { epoch, stride, columns, last }
const hidden = new Set(); // series without a curve, by the reader's choice
let models = {}, news = null, picture = null, pictureOf = null, chosen = "", index = null, asking = 0, lost = false;

// ---- numbers and tables ----

const shortNumber = (value) => {
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? String(Number(value.toPrecision(5))) : value.toExponential(3);
};

function cell(value, head) {
  const made = document.createElement(head ? "th" : "td");
  if (head) made.scope = "row";
  if (typeof value === "number") {
    made.textContent = shortNumber(value);
    made.dataset.value = made.title = String(value);
  } else made.textContent = value === null || value === "" ? "–" : value;
  return made;
}

function fill(table, grid) {
  const key = JSON.stringify(grid);
  if (table.key === key) return;
  table.key = key;
  const heads = document.createElement("tr");
  for (const text of grid.heads) {
    const head = document.createElement("th");
    head.scope = "col";
    head.textContent = text;
    heads.append(head);
  }
  table.tHead.replaceChildren(heads);
  const rows = grid.rows.slice(0, ROWS).map((values) => {
    const row = document.createElement("tr");
    row.append(...values.map((value, i) => cell(value, i === 0)));
    return row;
  });
  table.tBodies[0].replaceChildren(...rows);
  table.hidden = grid.rows.length === 0;
}

// ---- figures ----

async function embed() {
  const items = await (await fetch("figures.json")).json();
  for (const [name, item] of Object.entries(items)) {
    await Bokeh.embed.embed_item(item, at("plot-" + name));
    const made = Bokeh.documents[Bokeh.documents.length - 1];
    models[name] = (what) => made.get_model_by_name(what);
  }
  paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
}

function paint() { // the figures have the page's colours, light or dark
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = ["--muted", "--line"].map((name) => style.getPropertyValue(name).trim());
  for (const [name, model] of Object.entries(models)) {
    const drawn = model("figure " + name);
    drawn.outline_line_color = line;
    for (const axis of [...drawn.left, ...drawn.below]) {
      for (const part of ["axis_line_color", "major_tick_line_color", "minor_tick_line_color"]) axis[part] = line;
      axis.major_label_text_color = axis.axis_label_text_color = ink;
    }
    for (const grid of drawn.center) if ("grid_line_color" in grid) grid.grid_line_color = line;
    const bar = name === "graph" ? model("bar") : null;
    if (bar) bar.major_label_text_color = bar.title_text_color = ink;
  }
  drawGraph();
}

const color = (id) => news.series.find((each) => each.id === id).colour;

function keep(curves) { // adds what is new to what the page has
  for (const id of store.keys()) if (!(id in curves)) store.delete(id);
  for (const [id, curve] of Object.entries(curves)) {
    const known = store.get(id);
    if (!known || curve.start === 0) {
      store.set(id, { ...curve, count: Math.max(0, ...Object.values(curve.columns).map((c) => c.length)) });
      continue;
    }
    const more = (curve.columns.round || []).length;
    for (const name of new Set([...Object.keys(known.columns), ...Object.keys(curve.columns)])) {
      const old = known.columns[name] || Array(known.count).fill(null);
      known.columns[name] = old.concat(curve.columns[name] || Array(more).fill(null));
    }
    known.count += more;
    known.last = curve.last;
  }
}

function points(series, column, axis) {
  const thinned = (series.columns.round || []).at(-1) !== series.last.round; // then the newest is not among them
  const all = (name) => [...(series.columns[name] || []), ...(thinned ? [series.last[name] ?? null] : [])];
  const [xs, ys] = [all(axis), all(column)], log = !!models[column]("figure " + column).y_scale.type?.includes("Log");
  const good = (x, y) => x != null && y != null && (!log || y > 0);
  const kept = xs.map((x, i) => [x, ys[i]]).filter(([x, y]) => good(x, y));
  return [kept.map(([x]) => x), kept.map(([, y]) => y)];
}

function drawCurves() {
  const axis = at("axis").value;
  for (const column of Object.keys(models).filter((name) => name !== "graph")) {
    const shown = [...store].filter(([id]) => !hidden.has(id));
    const has = [...store.values()].some((s) => (s.columns[column] || []).some((v) => v != null) || s.last[column] != null);
    const box = document.querySelector(`[data-column="${column}"]`);
    box.hidden = !has || !news.captions[column];
    if (box.hidden) continue;
    setText(box.querySelector("figcaption"), news.captions[column]);
    const lines = shown.map(([id, series]) => [id, ...points(series, column, axis)]).filter(([, xs]) => xs.length);
    const label = (id) => news.series.find((each) => each.id === id).label;
    const model = models[column];
    model("data " + column).data = {
      xs: lines.map(([, xs]) => xs), ys: lines.map(([, , ys]) => ys),
      color: lines.map(([id]) => color(id)), label: lines.map(([id]) => label(id)),
    };
    model("ends " + column).data = {
      x: lines.map(([, xs]) => xs.at(-1)), y: lines.map(([, , ys]) => ys.at(-1)),
      color: lines.map(([id]) => color(id)), label: lines.map(([id]) => label(id)),
    };
    model("figure " + column).below[0].axis_label = at("axis").selectedOptions[0].textContent;
    model("marker " + column).data = { x: axis === "round" && index !== null ? [news.round] : [] };
  }
}

function drawGraph() {
  if (!picture || !models.graph || !news) return;
  const { colours } = news, model = models.graph, style = getComputedStyle(document.documentElement);
  const [ink, bad, line] = ["--ink", "--bad", "--muted"].map((name) => style.getPropertyValue(name).trim());
  const values = colours.nodes[at("colour").value] || picture.labels.map(() => null);
  const known = values.filter((value) => value != null), mapper = model("mapper");
  const low = known.length ? Math.min(...known) : 0, high = known.length ? Math.max(...known) : 1;
  const around = low < high ? 0 : Math.abs(low) / 100 || 1; // of equal values: a scale with them in its middle
  mapper.setv({ low: low - around, high: high + around });
  model("bar").visible = known.length > 0;
  const m = picture.labels.length, size = Math.max(5, Math.min(26, (m > 200 ? 300 : 420) / Math.sqrt(m)));
  const shown = (i) => Object.entries(colours.nodes).map(([name, each]) => `${name} ${each[i] == null ? "–" : shortNumber(each[i])}`);
  model("nodes").data = {
    x: picture.x, y: picture.y, size: picture.labels.map(() => size),
    value: picture.labels.map((_, i) => (values[i] == null ? NaN : values[i])),
    line: picture.labels.map((_, i) => (colours.node_marks[i] ? bad : m > 200 ? "transparent" : ink)),
    label: picture.labels.map((name, i) => name + (colours.node_marks[i] ? `: ${colours.node_marks[i]}` : "")),
    shown: picture.labels.map((_, i) => shown(i).join(", ")),
  };
  const weights = colours.links[at("width").value] || [], most = Math.max(...weights.map((value) => value || 0), 0);
  const thin = picture.ends.length > 500 ? 0.5 : 1.2;
  const words = (j) => Object.entries(colours.links).map(([name, each]) => `${name} ${each[j] == null ? "–" : shortNumber(each[j])}`);
  const place = (end, axis) => picture.ends.map((ends) => picture[axis][ends[end]]);
  model("links").data = {
    x0: place(0, "x"), y0: place(0, "y"), x1: place(1, "x"), y1: place(1, "y"),
    color: picture.ends.map((_, j) => (colours.link_marks[j] ? bad : line)),
    alpha: picture.ends.map((_, j) => (colours.link_marks[j] ? 1 : Math.min(1, Math.max(0.08, 300 / picture.ends.length)))),
    width: picture.ends.map((_, j) => (most ? 0.5 + (5 * (weights[j] || 0)) / most : thin) + (colours.link_marks[j] ? 1.5 : 0)),
    label: picture.ends.map(([a, b], j) => [`${picture.labels[a]} – ${picture.labels[b]}`, colours.link_marks[j], ...words(j)].filter(Boolean).join("; ")),
  };
}

// ---- the page ----

function choices(select, names) {
  if (select.key === names.join()) return;
  const before = select.value;
  select.key = names.join();
  select.replaceChildren(...names.map(([value, text]) => new Option(text, value)));
  if (names.some(([value]) => value === before)) select.value = before;
}

function showKeys() {
  const list = at("keys"), key = news.series.map((each) => each.id + each.label).join();
  if (list.key === key) return;
  list.key = key;
  list.replaceChildren(...news.series.map((each) => {
    const item = document.createElement("li"), label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.checked = !hidden.has(each.id);
    box.addEventListener("change", () => { box.checked ? hidden.delete(each.id) : hidden.add(each.id); drawCurves(); });
    const swatch = document.createElement("span");
    swatch.innerHTML = `<svg width="18" height="8" aria-hidden="true"><rect y="2" width="18" height="4" fill="${color(each.id)}"/></svg>`;
    label.append(box, " ", swatch, each.label);
    item.append(label);
    return item;
  }));
}

function setText(element, text) { // unchanged text is not read out again
  if (element.textContent !== text) element.textContent = text;
}

function show() {
  document.title = `${news.title}: ${news.state}`;
  setText(at("title"), news.title);
  setText(at("status"), news.words[0] || news.state);
  at("status").className = "status " + news.state;
  const words = news.words.slice(1);
  if (at("words").key !== words.join()) {
    at("words").key = words.join();
    at("words").replaceChildren(...words.map((text) => Object.assign(document.createElement("p"), { className: "note", textContent: text })));
  }
  const slider = at("place"), round = news.round === null ? "–" : `round ${news.round.toLocaleString("en")}`;
  slider.max = Math.max(news.count - 1, 0);
  if (index === null) slider.value = slider.max;
  slider.setAttribute("aria-valuetext", round);
  setText(at("round"), round);
  at("newest").setAttribute("aria-pressed", String(index === null));
  choices(at("series"), news.series.map((each) => [each.id, each.label]));
  at("series").value = news.selected;
  choices(at("colour"), Object.keys(news.colours.nodes).map((name) => [name, name]));
  choices(at("width"), Object.keys(news.colours.links).map((name) => [name, name]));
  at("links-control").hidden = Object.keys(news.colours.links).length === 0;
  fill(at("moment"), news.moment);
  fill(at("nodes"), news.nodes);
  const when = news.colours.round === null ? "" : `Nodes after round ${news.colours.round}. `;
  setText(at("graph-words"), when + (picture ? picture.words : ""));
  showKeys();
  drawCurves();
  drawGraph();
}

async function showPicture() {
  if (news.graph === pictureOf) return;
  pictureOf = news.graph;
  const id = news.graph, found = await (await fetch("graph.json?id=" + encodeURIComponent(id))).json();
  if (id !== pictureOf) return;
  picture = found;
  show();
}

async function ask() {
  const mine = ++asking, have = {};
  for (const [id, s] of store) have[id] = [s.epoch, s.stride, s.count];
  const given = new URLSearchParams({ series: chosen, have: JSON.stringify(have), ...(index === null ? {} : { index }) });
  try {
    const answer = await (await fetch("news.json?" + given)).json();
    if (mine !== asking) return; // a later question is on its way, with the same curves
    news = answer;
    keep(news.curves);
    lost = false;
  } catch (error) {
    if (mine !== asking) return;
    if (!lost) setText(at("status"), (news ? news.words[0] + " — " : "") + "the page is no longer served; this is the last that it showed");
    at("status").classList.add("lost");
    lost = true;
    return;
  }
  show();
  if (news.graph) showPicture().catch(() => { pictureOf = null; });
  document.body.dataset.ready = "yes";
}

async function follow() {
  if (!document.hidden) await ask();
  setTimeout(follow, PAUSE);
}

at("place").addEventListener("input", () => {
  index = at("place").value === at("place").max ? null : Number(at("place").value);
  ask();
});
at("newest").addEventListener("click", () => { index = null; ask(); });
at("series").addEventListener("change", () => { chosen = at("series").value; index = null; ask(); });
at("axis").addEventListener("change", () => drawCurves());
for (const id of ["colour", "width"]) at(id).addEventListener("change", drawGraph);
embed().then(follow);

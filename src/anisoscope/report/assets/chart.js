// Lines, bands and bars of one figure, in panels that share their axes.
"use strict";

function visibleSeries(figure, state) {
  return (figure.series || []).filter((s) => {
    for (const control of figure.choose || []) {
      const tag = s.tags[control.key];
      if (tag !== undefined && tag !== state.chosen[control.key]) return false;
    }
    for (const control of figure.toggle || []) {
      const tag = s.tags[control.key];
      if (tag !== undefined && state.hidden[control.key].has(tag)) return false;
    }
    return true;
  });
}

function valuesOf(figure, key) {
  const control = [...(figure.toggle || []), ...(figure.choose || [])].find((c) => c.key === key);
  if (control) return control.values;
  return [...new Set((figure.series || []).map((s) => s.tags[key]).filter((v) => v !== undefined))];
}

function panelsOf(figure, series, state) {
  const names = figure.panel ? valuesOf(figure, figure.panel).filter((v) => series.some((s) => s.tags[figure.panel] === v)) : [null];
  return names.map((name) => {
    const mine = series.filter((s) => name === null || s.tags[figure.panel] === undefined || s.tags[figure.panel] === name);
    const tags = Object.assign({}, state.chosen, name === null ? {} : { [figure.panel]: name });
    const references = (figure.references || []).filter((r) => Object.entries(r.when || {}).every(([k, v]) => tags[k] === v));
    return { name, series: mine, references };
  });
}

// Single seeds are drawn where few lines share a panel; `report/summary.py` has the same number.
const CROWD = 10;
function seedsShown(panel) { return panel.series.length <= CROWD; }

// The range of values and references; intervals widen it, but not beyond what keeps the values readable.
function domain(panels, log, place) {
  let low = Infinity, high = -Infinity, lowest = Infinity, highest = -Infinity;
  const usable = (v) => v !== null && v !== undefined && (!log || v > 0);
  for (const panel of panels) {
    for (const s of panel.series) {
      for (const p of s.points) {
        if (usable(p[place])) { low = Math.min(low, p[place]); high = Math.max(high, p[place]); }
        if (place === 1) {
          if (seedsShown(panel)) for (const [v, from, to] of p[6] || []) {
            if (usable(v)) { low = Math.min(low, v); high = Math.max(high, v); }
            if (usable(from)) lowest = Math.min(lowest, from);
            if (usable(to)) highest = Math.max(highest, to);
          }
          if (usable(p[2])) lowest = Math.min(lowest, p[2]);
          if (usable(p[3])) highest = Math.max(highest, p[3]);
        }
      }
    }
    if (place === 1) for (const r of panel.references) if (usable(r.y)) { low = Math.min(low, r.y); high = Math.max(high, r.y); }
  }
  if (low > high) return null;
  if (place === 1) {
    const room = log ? Math.max(Math.pow(high / low, 0.4), 1.5) : (high - low || Math.abs(high) || 1) * 0.35;
    low = Math.max(Math.min(low, lowest), log ? low / room : low - room);
    high = Math.min(Math.max(high, highest), log ? high * room : high + room);
    if (log) { const pad = Math.max(Math.pow(high / low, 0.04), 1.04); low /= pad; high *= pad; }
    else { const pad = (high - low || Math.abs(high) || 1) * 0.05; low -= low >= 0 && low - pad < 0 ? low : pad; high += pad; }
  } else if (low === high) { low = log ? low / 2 : low - 0.5; high = log ? high * 2 : high + 0.5; }
  return [low, high];
}

function axisLabel(figure, state, axis) {
  const key = axis.by && axis.by.key;
  const label = key && state.chosen[key] && figure.id !== "ranks" ? state.chosen[key] : axis.label;
  return figure.id === "ranks" && axis.by && state.chosen.measure === "energy" ? "energy share" : label;
}

function drawChart(figure, state, box) {
  const width = Math.max(Math.floor(box.clientWidth), 260);
  const series = visibleSeries(figure, state);
  const panels = panelsOf(figure, series, state).filter((p) => p.series.length);
  const svg = node("svg", { tabindex: "0", role: "img", "aria-label": figure.alt, class: "chart" });
  const marks = [];
  const yRange = domain(panels, state.ylog, 1);
  if (!panels.length || !yRange) {
    svg.setAttribute("viewBox", `0 0 ${width} 90`);
    svg.append(node("text", { x: 12, y: 48, class: "empty" }, "No rows for this choice; choose another."));
    return { svg, marks };
  }
  const categories = figure.x.categories;
  const hasZero = panels.some((p) => p.series.some((s) => s.points.some((q) => q[0] <= 0)));
  const xRange = categories ? [-0.5, categories.length - 0.5] : domain(panels, state.xlog, 0) || [0, 1];
  const columns = panels.length > 1 && width >= 620 ? 2 : 1;
  const gap = 22, each = (width - gap * (columns - 1)) / columns;
  const tight = categories && each / categories.length < 118;
  const margin = { top: figure.panel ? 40 : 24, right: 12, bottom: tight ? 96 : 42, left: 50 };
  const inner = Math.min(Math.max(each * 0.5, 190), columns === 1 && width > 620 ? 330 : 270);
  const height = inner + margin.top + margin.bottom;
  const rows = Math.ceil(panels.length / columns);
  svg.setAttribute("viewBox", `0 0 ${width} ${rows * height}`);
  const dashes = figure.dash ? valuesOf(figure, figure.dash) : [];
  panels.forEach((panel, index) => {
    const x0 = (index % columns) * (each + gap), y0 = Math.floor(index / columns) * height;
    const g = node("g", { transform: `translate(${x0} ${y0})` });
    svg.append(g);
    const right = each - margin.right, bottom = margin.top + inner;
    const x = scale(xRange[0], xRange[1], margin.left + 6, right - 6, state.xlog && !categories, hasZero);
    const y = scale(yRange[0], yRange[1], bottom, margin.top, state.ylog, false);
    if (panel.name !== null) g.append(node("text", { x: margin.left, y: 15, class: "title" }, named(figure.panel, panel.name)));
    const scaleWord = state.ylog ? ", log scale" : "";
    g.append(node("text", { x: 4, y: margin.top - 9 }, axisLabel(figure, state, figure.y) + scaleWord));
    for (const t of y.ticks(6)) {
      const at = y.at(t);
      if (at < margin.top - 1 || at > bottom + 1) continue;
      g.append(node("line", { x1: margin.left, x2: right, y1: at, y2: at, class: "grid" }));
      g.append(node("text", { x: margin.left - 7, y: at + 4, "text-anchor": "end" }, shown(t)));
    }
    g.append(node("line", { x1: margin.left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
    drawZones(g, figure.zones || [], { x, range: xRange, hasZero, top: margin.top, bottom });
    const places = [...new Set(panels.flatMap((p) => p.series.flatMap((s) => s.points.map((q) => q[0]))))];
    drawXAxis(g, figure, state, { x, places, categories, tight, bottom, left: margin.left, right });
    const clip = `clip-${figure.id}-${index}`;
    const clipPath = node("clipPath", { id: clip });
    clipPath.append(node("rect", { x: margin.left, y: margin.top - 4, width: right - margin.left + 8, height: inner + 8 }));
    g.append(clipPath);
    const levels = node("g"), body = node("g", { "clip-path": `url(#${clip})` });
    g.append(levels, body);
    panel.series.forEach((s, i) => {
      const value = s.tags[figure.colour];
      const colour = value === undefined ? "currentColor" : colourOf(figure.colour, value, valuesOf(figure, figure.colour));
      const dash = s.null ? 1 : Math.max(dashes.indexOf(s.tags[figure.dash]), 0);
      const shift = categories ? (i - (panel.series.length - 1) / 2) * Math.min(13, (each / categories.length) * Math.min(0.14, 0.8 / panel.series.length)) : 0;
      drawSeries(body, s, { x, y, colour, dash, shift, categories, ylog: state.ylog, x0, y0, panel: index, marks, crowded: !seedsShown(panel) });
    });
    drawReferences(g, levels, panel.references, { y, margin, right, bottom, near: marks.filter((m) => m.panel === index && m.x - x0 > right - 130).map((m) => m.y - y0) });
  });
  return { svg, marks };
}

function drawXAxis(g, figure, state, at) {
  if (at.categories) {
    at.categories.forEach((name, i) => {
      const place = { x: at.x.at(i), y: at.bottom + 16, "text-anchor": at.tight ? "end" : "middle" };
      if (at.tight) place.transform = `rotate(-40 ${place.x} ${place.y})`;
      g.append(node("text", place, name));
    });
  } else {
    const whole = figure.x.label.startsWith("layer");
    let last = -Infinity;
    // A few places, as ranks are, are all named; a continuum has round numbers.
    const few = state.xlog && at.places.length <= 8;
    const ticks = few ? at.places.sort((a, b) => a - b) : at.x.ticks((at.right - at.left) / 70);
    for (const t of ticks) {
      const x = at.x.at(t);
      const text = shown(t);
      // A label keeps its distance from the one before it.
      if ((whole && t !== Math.round(t)) || x < at.left - 1 || x > at.right + 1 || x - last < text.length * 7 + 6) continue;
      last = x;
      g.append(node("line", { x1: x, x2: x, y1: at.bottom, y2: at.bottom + 4, class: "axis" }));
      g.append(node("text", { x, y: at.bottom + 16, "text-anchor": "middle" }, text));
    }
  }
  const word = state.xlog && !at.categories ? ", log scale" : "";
  const y = at.bottom + (at.tight ? 90 : 34);
  g.append(node("text", { x: at.right, y, "text-anchor": "end" }, figure.x.label + word));
}

// Windows of training, as far as the axis reaches into them.
function drawZones(g, zones, at) {
  for (const zone of zones) {
    const low = Math.max(zone.low, at.hasZero ? 0 : at.range[0]), high = Math.min(zone.high, at.range[1]);
    if (!(high > low)) continue;
    const from = at.x.at(low), to = at.x.at(high);
    g.prepend(node("rect", { x: from, y: at.top, width: Math.max(to - from, 0), height: at.bottom - at.top, class: "zone" }));
    if (to - from > 34) g.append(node("text", { x: from + 4, y: at.top + 11, class: "zone-label" }, zone.label));
  }
}

// The label of a null stands above or below its line, wherever fewer points are in its way.
function drawReferences(g, levels, references, { y, margin, right, bottom, near }) {
  for (const r of references) {
    const at = y.at(r.y);
    if (!(at >= margin.top - 2 && at <= bottom + 2)) continue;
    levels.append(node("line", { x1: margin.left, x2: right, y1: at, y2: at, class: "null" }));
    const crowd = (from, to) => near.filter((v) => v > from && v < to).length;
    const above = at - margin.top > 16 && (bottom - at < 16 || crowd(at - 20, at) <= crowd(at, at + 20));
    g.append(node("text", { x: right - 3, y: above ? at - 5 : at + 13, "text-anchor": "end", class: "null-label" }, r.label));
  }
}

// A small dot a seed, through it a thin line: the interval within that seed. Beside the large mark of a category.
function drawSeeds(g, points, o, at) {
  for (const p of points) {
    const seeds = (p[6] || []).filter(([v]) => v !== null && (!o.ylog || v > 0));
    seeds.forEach(([v, from, to], i) => {
      const x = o.x.at(p[0]) + o.shift + (o.categories ? 6 + 1.5 * i : (i - (seeds.length - 1) / 2) * 2.5);
      if (from !== null && from !== undefined && to !== null && to !== undefined) {
        g.append(node("line", { x1: x, x2: x, y1: at(from), y2: at(to), stroke: o.colour, class: "within" }));
      }
      g.append(node("circle", { cx: x.toFixed(1), cy: at(v).toFixed(1), r: 1.4, fill: o.colour, class: "seed" }));
    });
  }
}

function drawSeries(body, s, o) {
  const known = s.points.filter((p) => p[1] !== null && (!o.ylog || p[1] > 0));
  const at = known.map((p) => [o.x.at(p[0]) + o.shift, o.y.at(p[1])]);
  const g = node("g", { class: s.null ? "series null-series" : "series" });
  body.append(g);
  const end = (v) => o.y.at(o.ylog && v <= 0 ? 1e-300 : v);
  const barred = known.filter((p) => p[2] !== null && p[2] !== undefined && p[3] !== null && p[3] !== undefined);
  const clamp = (v) => Math.max(-4000, Math.min(4000, v));
  if (!s.null && barred.length) {
    if (o.categories || barred.length === 1) {
      for (const p of barred) {
        const x = o.x.at(p[0]) + o.shift;
        g.append(node("line", { x1: x, x2: x, y1: clamp(end(p[2])), y2: clamp(end(p[3])), stroke: o.colour, class: "bar" }));
      }
    } else {
      const up = barred.map((p) => `${o.x.at(p[0]).toFixed(1)},${clamp(end(p[3])).toFixed(1)}`);
      const down = barred.map((p) => `${o.x.at(p[0]).toFixed(1)},${clamp(end(p[2])).toFixed(1)}`).reverse();
      g.append(node("polygon", { points: up.concat(down).join(" "), fill: o.colour, class: o.crowded ? "band crowded" : "band" }));
    }
  }
  if (!s.null && !o.crowded) drawSeeds(g, known, o, (v) => clamp(end(v)));
  if (!o.categories && !s.scattered && at.length > 1) {
    const path = at.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    const strong = s.tags.layer === "median" ? " strong" : "";
    const line = node("path", { d: path, stroke: o.colour, class: "line" + strong });
    if (DASHES[o.dash % DASHES.length]) line.setAttribute("stroke-dasharray", DASHES[o.dash % DASHES.length]);
    if (s.null) line.setAttribute("opacity", "0.65");
    g.append(line);
  }
  known.forEach((p, i) => {
    if (!s.null) {
      const dot = node("circle", { cx: at[i][0].toFixed(1), cy: at[i][1].toFixed(1), r: o.categories ? 4.5 : 2.5, class: "mark" });
      const hollow = o.dash > 0;
      dot.setAttribute("fill", hollow ? "var(--raised)" : o.colour);
      dot.setAttribute("stroke", o.colour);
      dot.setAttribute("stroke-width", o.categories ? 2 : 1.2);
      g.append(dot);
    }
    o.marks.push({ series: s, point: p, x: at[i][0] + o.x0, y: at[i][1] + o.y0, panel: o.panel, group: g });
  });
}

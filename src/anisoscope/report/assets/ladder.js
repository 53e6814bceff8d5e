// Ladders of nulls: a line from the left to the last null that a claim passes.
"use strict";

function drawLadder(figure, state, box) {
  const width = Math.max(Math.floor(box.clientWidth), 260);
  const only = state.only && state.only.model;
  const fits = (t) => Object.entries(state.chosen).every(([key, value]) => t.tags[key] === undefined || t.tags[key] === value);
  const tracks = figure.tracks.filter((t) => fits(t) && (!only || only === ALL.model || t.tags.model === only));
  if (!tracks.length) {
    const svg = node("svg", { tabindex: "0", role: "img", "aria-label": figure.alt, class: "chart ladder", viewBox: `0 0 ${width} 90` });
    svg.append(node("text", { x: 12, y: 48, class: "empty" }, "No rows for this choice; choose another."));
    return { svg, marks: [] };
  }
  const most = Math.max(...tracks.map((t) => t.nodes.length));
  const narrow = width < 620;
  const left = narrow ? 24 : 168, right = width - (narrow ? 30 : 60);
  const rise = narrow ? 6 : 11, row = (narrow ? 98 : 82) + rise * most;
  const svg = node("svg", { tabindex: "0", role: "img", "aria-label": figure.alt, class: "chart ladder" });
  svg.setAttribute("viewBox", `0 0 ${width} ${tracks.length * row + 12}`);
  const marks = [];
  tracks.forEach((track, i) => {
    const base = i * row + row - 34;
    const at = track.nodes.map((_, k) => [left + ((right - left) * k) / Math.max(most - 1, 1), base - k * rise]);
    if (i) svg.append(node("line", { x1: 0, x2: width, y1: i * row + 6, y2: i * row + 6, class: "grid" }));
    svg.append(node("text", { x: 4, y: narrow ? i * row + 24 : base + 4, class: "title" }, track.label));
    svg.append(node("polyline", { points: at.map((p) => p.join(",")).join(" "), class: "track", fill: "none" }));
    const reached = track.nodes.findIndex((n) => n.null === track.last);
    if (reached >= 0) {
      const start = [left - (narrow ? 12 : 26), base];
      const path = [start, ...at.slice(0, reached + 1)].map((p) => p.join(",")).join(" ");
      svg.append(node("polyline", { points: path, class: "climb" }));
    }
    track.nodes.forEach((n, k) => {
      const [x, y] = at[k];
      const kind = n.status.replace(" ", "-") + (k > reached ? " beyond" : "");
      const size = narrow ? 7 : 8;
      const outcome = VOCABULARY.outcomes[n.status] || {};
      const mark = outcome.mark === "triangle"
        ? node("path", { d: `M${x - size} ${y - size + 1}H${x + size}L${x} ${y + size}Z`, class: `mark node ${kind}` })
        : node("circle", { cx: x, cy: y, r: size, class: `mark node ${kind}` });
      svg.append(mark);
      if (outcome.glyph) svg.append(node("text", { x, y: y + 4, "text-anchor": "middle" }, outcome.glyph));
      const parts = (VOCABULARY.named.short[n.null] || n.null).split(" ");
      parts.forEach((word, j) => {
        svg.append(node("text", { x, y: y - 15 - (parts.length - 1 - j) * 12, "text-anchor": "middle" }, word));
      });
      const value = n.value === null ? "–" : `${shown(n.value)}×`;
      svg.append(node("text", { x, y: y + 24, "text-anchor": "middle", class: "value" }, value));
      marks.push({ track, node: n, x, y, panel: i, group: mark, series: track });
    });
  });
  return { svg, marks };
}

function saidOfNode(mark) {
  const n = mark.node;
  const range = n.low !== null && n.high !== null ? ` [${shown(n.low)}, ${shown(n.high)}]` : "";
  return `${mark.track.label}, ${mark.track.tags.view} view\nover ${named("null", n.null)}: ${shown(n.value)}${range}\n${n.status}: ${n.why || ""}`;
}

// Controls, read-outs, keys and downloads around one drawing.
"use strict";

function ranged([y, low, high]) {
  const hasRange = low !== null && low !== undefined && high !== null && high !== undefined;
  return `${shown(y)}${hasRange ? ` [${shown(low)}, ${shown(high)}]` : ""}`;
}

function saidOfPoint(figure, state, mark) {
  const [x, y, low, high, n, q, seeds] = mark.point;
  const where = figure.x.categories ? figure.x.categories[x] : `${figure.x.label.split(" (")[0]} ${shown(x)}`;
  const chosen = Object.entries(state.chosen).filter(([key]) => key in mark.series.tags).map(([key, value]) => (key === "null" ? `over ${named(key, value)}` : named(key, value)));
  const lines = [mark.series.label, ...(chosen.length ? [chosen.join("; ")] : []), where];
  lines.push(seeds ? `mean ${ranged([y, low, high])}` : ranged([y, low, high]));
  if (seeds) lines.push(`seeds: ${seeds.map(ranged).join("; ")}`);
  const more = [];
  if (n !== null && n !== undefined) more.push(`n = ${shown(n)}`);
  if (q !== null && q !== undefined) more.push(`q = ${shown(q)}`);
  if (more.length) lines.push(more.join(", "));
  return lines.join("\n");
}

// Series come packed: words by their place in a list.
function unpacked(figure) {
  const tagged = (tags) => Object.fromEntries(figure.keys.map((key, i) => [key, figure.words[tags[i]]]).filter(([, word]) => word !== undefined));
  if (figure.tracks) {
    const nodeOf = ([name, status, why, value, low, high]) => ({ null: figure.words[name], status: figure.words[status], why: figure.words[why], value, low, high });
    figure.tracks = figure.tracks.map(([label, tags, last, nodes]) => ({ label: figure.words[label], tags: tagged(tags), last: figure.words[last], nodes: nodes.map(nodeOf) }));
    return figure;
  }
  figure.series = figure.series.map(([label, tags, points, isNull, isScattered]) => ({
    label: figure.words[label],
    tags: tagged(tags),
    points, null: Boolean(isNull), scattered: Boolean(isScattered),
  }));
  return figure;
}

class Plot {
  constructor(holder, figure) {
    this.figure = unpacked(figure);
    this.isLadder = Boolean(figure.tracks);
    this.state = { chosen: {}, hidden: {}, xlog: Boolean(figure.x && figure.x.log), ylog: Boolean(figure.y && figure.y.log) };
    for (const c of figure.choose || []) this.state.chosen[c.key] = c.selected;
    for (const c of figure.toggle || []) this.state.hidden[c.key] = new Set();
    this.controls = holder.querySelector(".controls");
    this.box = holder.querySelector(".plot");
    this.spoken = holder.querySelector(".spoken");
    this.tip = element("div", { class: "tip", "aria-hidden": "true" });
    this.focus = -1;
    holder.querySelector(".csv").addEventListener("click", () => this.download());
    this.selects = [];
    this.chips = [];
    this.chipsOf = [];
    this.build();
    this.draw();
    new ResizeObserver(() => { if (this.box.clientWidth !== this.width) this.draw(); }).observe(this.box);
  }

  build() {
    for (const control of this.figure.choose || []) {
      if (control.page) continue;
      const group = element("label", { class: "group" });
      group.append(element("span", { class: "name" }, control.label));
      if (control.words) { this.slider(control, group); continue; }
      const select = element("select", { "data-key": control.key });
      for (const value of control.values) select.append(element("option", { value }, named(control.key, value)));
      select.value = control.selected;
      select.addEventListener("change", () => { this.state.chosen[control.key] = select.value; this.draw(); });
      group.append(select);
      this.controls.append(group);
      this.selects.push([control, select]);
    }
    for (const control of this.figure.toggle || []) {
      if (control.values.length > 1) this.controls.append(this.chipGroup(control));
    }
    if (this.isLadder) return;
    const scales = element("span", { class: "group" });
    for (const axis of ["y", "x"]) {
      if (this.figure[axis].categories || this.figure[axis].fixed) continue;
      const button = element("button", { type: "button", class: "plain", "data-scale": axis, "aria-pressed": String(this.state[axis + "log"]) }, `log ${axis}`);
      button.addEventListener("click", () => {
        this.state[axis + "log"] = !this.state[axis + "log"];
        button.setAttribute("aria-pressed", String(this.state[axis + "log"]));
        this.draw();
      });
      scales.append(button);
    }
    this.controls.append(scales);
  }

  // One slider moves all of its key, wherever they are on the page.
  slider(control, group) {
    const range = element("input", { type: "range", min: 0, max: control.values.length - 1, step: 1, "data-key": control.key });
    const said = element("output", { class: "slid" });
    range.value = control.values.indexOf(control.selected);
    const told = () => { said.textContent = control.words[range.value]; range.setAttribute("aria-valuetext", control.words[range.value]); };
    range.addEventListener("input", () => document.dispatchEvent(new CustomEvent("slid", { detail: [control.key, range.value] })));
    document.addEventListener("slid", (event) => {
      if (event.detail[0] !== control.key) return;
      range.value = event.detail[1];
      this.state.chosen[control.key] = control.values[range.value];
      told();
      this.draw();
    });
    told();
    group.classList.add("sliding");
    group.append(range, said);
    this.controls.append(group);
  }

  chipGroup(control) {
    const group = element("span", { class: "group", role: "group", "aria-label": control.label });
    group.append(element("span", { class: "name" }, control.label));
    const members = [];
    control.values.forEach((value, i) => {
      const chip = element("button", { type: "button", class: "chip", title: "Shift-click: only this one, or all again", "data-key": control.key, "aria-pressed": "true" });
      const isColour = this.figure.colour === control.key, isDash = this.figure.dash === control.key;
      if (isColour || isDash) {
        const sample = node("svg", { width: 18, height: 10, "aria-hidden": "true" });
        const line = node("line", { x1: 1, x2: 17, y1: 5, y2: 5, "stroke-width": 2.5, stroke: "currentColor" });
        if (isDash && DASHES[i % DASHES.length]) line.setAttribute("stroke-dasharray", DASHES[i % DASHES.length]);
        sample.append(line);
        chip.append(sample);
        if (isColour) this.chips.push([line, control, value]);
      }
      chip.append(element("span", {}, named(control.key, value)));
      chip.addEventListener("click", (event) => {
        const hidden = this.state.hidden[control.key];
        const alone = event.shiftKey && !(hidden.size === control.values.length - 1 && !hidden.has(value));
        if (event.shiftKey) control.values.forEach((v) => (alone && v !== value ? hidden.add(v) : hidden.delete(v)));
        else if (hidden.has(value)) hidden.delete(value);
        else hidden.add(value);
        for (const [other, name] of members) other.setAttribute("aria-pressed", String(!hidden.has(name)));
        this.draw();
      });
      members.push([chip, value]);
      this.chipsOf.push([chip, control.key, value]);
      group.append(chip);
    });
    return group;
  }

  // Of one seed a curve has the values of that seed, with the interval within it.
  ofSeed() {
    if (this.isLadder || !this.seed || this.seed === ALL.seed) return this.figure;
    const alone = (p) => {
      const own = p[6].find(([, , , number]) => `seed ${number}` === this.seed);
      return own ? [p[0], own[0], own[1], own[2], p[4]] : null;
    };
    const series = this.figure.series.map((s) => Object.assign({}, s, { points: s.points.map((p) => (p[6] ? alone(p) : p)).filter((p) => p) }));
    return Object.assign({}, this.figure, { series });
  }

  // What a reader has chosen here, and the same after the page was read anew.
  kept() {
    const hidden = Object.fromEntries(Object.entries(this.state.hidden).map(([key, values]) => [key, [...values]]));
    return { chosen: this.state.chosen, hidden, xlog: this.state.xlog, ylog: this.state.ylog };
  }

  restore(kept) {
    if (kept) {
      this.set(kept.chosen);
      for (const key of Object.keys(this.state.hidden)) this.state.hidden[key] = new Set(kept.hidden[key] || []);
      for (const [chip, key, value] of this.chipsOf) chip.setAttribute("aria-pressed", String(!this.state.hidden[key].has(value)));
      this.state.xlog = kept.xlog;
      this.state.ylog = kept.ylog;
      for (const axis of ["x", "y"]) {
        const button = this.controls.querySelector(`[data-scale=${axis}]`);
        if (button) button.setAttribute("aria-pressed", String(this.state[`${axis}log`]));
      }
    }
    this.draw();
  }

  // Choices from elsewhere on the page: those that this figure has.
  set(choices) {
    for (const control of this.figure.choose || []) {
      const wanted = choices[control.key];
      if (wanted === undefined || (!control.page && !control.values.includes(wanted))) continue;
      this.state.chosen[control.key] = wanted;
      const own = this.selects.find(([c]) => c === control);
      if (own) own[1].value = wanted;
    }
    for (const control of this.figure.toggle || []) {
      if (choices[control.key] === undefined) continue;
      this.state.hidden[control.key] = new Set(control.values.filter((v) => choices[control.key] !== ALL[control.key] && v !== choices[control.key]));
      for (const [chip, key, value] of this.chipsOf) if (key === control.key) chip.setAttribute("aria-pressed", String(!this.state.hidden[key].has(value)));
    }
    this.seed = choices.seed === undefined ? this.seed : choices.seed;
    if (choices.model !== undefined) this.state.only = { model: choices.model };
    this.draw();
  }

  // Options that no row answers to are switched off, so that a choice never leads nowhere unannounced.
  mark_options() {
    if (this.isLadder) return;
    for (const [control, select] of this.selects) {
      for (const option of select.options) {
        const asked = { chosen: Object.assign({}, this.state.chosen, { [control.key]: option.value }), hidden: {} };
        for (const c of this.figure.toggle || []) asked.hidden[c.key] = new Set();
        option.disabled = option.value !== select.value && !visibleSeries(this.figure, asked).some((s) => !s.null);
      }
    }
  }

  // In a fold that is closed there is no room yet: it is drawn when the fold opens.
  draw() {
    this.width = this.box.clientWidth;
    if (!this.width) return;
    const had = document.activeElement === this.svg;
    const figure = this.ofSeed();
    const { svg, marks } = this.isLadder ? drawLadder(figure, this.state, this.box) : drawChart(figure, this.state, this.box);
    svg.setAttribute("aria-label", this.alt());
    for (const [line, control, value] of this.chips) line.setAttribute("stroke", colourOf(control.key, value, control.values));
    this.mark_options();
    this.svg = svg;
    this.marks = marks;
    this.focus = -1;
    this.halo = node("circle", { r: 7, class: "halo", visibility: "hidden" });
    svg.append(this.halo);
    this.box.replaceChildren(svg, this.tip);
    this.hide();
    svg.addEventListener("pointermove", (event) => this.point(event));
    svg.addEventListener("pointerdown", (event) => this.point(event));
    svg.addEventListener("pointerleave", () => this.hide());
    svg.addEventListener("keydown", (event) => this.key(event));
    svg.addEventListener("blur", () => this.hide());
    if (had) svg.focus();
  }

  // What the drawing shows in words: those of the page as it begins, or what was chosen instead.
  alt() {
    const other = (this.figure.choose || []).filter((c) => this.state.chosen[c.key] !== c.selected).map((c) => named(c.key, this.state.chosen[c.key]));
    const hidden = Object.values(this.state.hidden).some((values) => values.size);
    if (this.seed && this.seed !== ALL.seed) other.push(this.seed);
    if (!other.length && !hidden) return this.figure.alt;
    return `${this.figure.title}${other.length ? `; chosen: ${other.join(", ")}` : ""}${hidden ? "; some lines are switched off" : ""}. Use the arrow keys to read values.`;
  }

  point(event) {
    const area = this.svg.getBoundingClientRect();
    const factor = this.svg.viewBox.baseVal.width / area.width;
    const x = (event.clientX - area.left) * factor, y = (event.clientY - area.top) * factor;
    let best = -1, nearest = 55 * 55;
    this.marks.forEach((m, i) => {
      const distance = (m.x - x) ** 2 + (m.y - y) ** 2;
      if (distance < nearest) { nearest = distance; best = i; }
    });
    if (best < 0) this.hide(); else this.show(best, false);
  }

  key(event) {
    if (!this.marks.length) return;
    const now = this.focus < 0 ? null : this.marks[this.focus];
    const mine = now ? this.marks.filter((m) => m.series === now.series && m.panel === now.panel) : [];
    const place = now ? mine.indexOf(now) : 0;
    const firsts = this.marks.filter((m, i) => i === 0 || m.series !== this.marks[i - 1].series || m.panel !== this.marks[i - 1].panel);
    const line = now ? firsts.findIndex((m) => m.series === now.series && m.panel === now.panel) : -1;
    let next = null;
    if (event.key === "Escape") { this.hide(); return; }
    if (["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key) && !now) next = this.marks[0];
    else if (event.key === "ArrowRight") next = mine[Math.min(place + 1, mine.length - 1)];
    else if (event.key === "ArrowLeft") next = mine[Math.max(place - 1, 0)];
    else if (event.key === "Home") next = mine[0];
    else if (event.key === "End") next = mine[mine.length - 1];
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const other = firsts[(line + (event.key === "ArrowDown" ? 1 : firsts.length - 1)) % firsts.length];
      const theirs = this.marks.filter((m) => m.series === other.series && m.panel === other.panel);
      next = theirs[Math.min(place, theirs.length - 1)];
    }
    if (!next) return;
    event.preventDefault();
    this.show(this.marks.indexOf(next), true);
  }

  show(index, aloud) {
    const mark = this.marks[index];
    this.focus = index;
    const text = this.isLadder ? saidOfNode(mark) : saidOfPoint(this.figure, this.state, mark);
    // The same layer, null or model stays bright in every panel.
    const key = this.figure.colour, alike = (m) => m.series.tags[key] === mark.series.tags[key] && !m.series.null;
    for (const m of this.marks) m.group.classList.toggle("dim", !this.isLadder && m.group !== mark.group && !alike(m));
    this.halo.setAttribute("cx", mark.x);
    this.halo.setAttribute("cy", mark.y);
    this.halo.setAttribute("r", this.isLadder ? 12 : 7);
    this.halo.setAttribute("visibility", "visible");
    this.tip.textContent = text;
    const factor = this.svg.getBoundingClientRect().width / this.svg.viewBox.baseVal.width;
    const x = mark.x * factor, y = mark.y * factor;
    this.tip.style.visibility = "visible";
    const wide = this.tip.offsetWidth, tall = this.tip.offsetHeight;
    const leftwards = x + wide + 16 > this.box.clientWidth;
    this.tip.style.left = `${Math.max(0, leftwards ? x - wide - 12 : x + 12)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(y - tall / 2, this.box.clientHeight - tall))}px`;
    if (aloud) this.spoken.textContent = text;
  }

  hide() {
    for (const m of this.marks || []) m.group.classList.remove("dim");
    if (!this.svg) return;
    if (this.halo) this.halo.setAttribute("visibility", "hidden");
    this.tip.style.visibility = "hidden";
    this.focus = -1;
  }

  table() {
    if (this.isLadder) {
      const keys = [...new Set(this.figure.tracks.flatMap((t) => Object.keys(t.tags)))];
      const head = ["label", ...keys, "null", "status", "value", "low", "high", "why", "last"];
      const rows = this.figure.tracks.flatMap((t) => t.nodes.map((n) => [t.label, ...keys.map((k) => t.tags[k]), n.null, n.status, n.value, n.low, n.high, n.why, t.last]));
      return [head, ...rows];
    }
    const keys = [...new Set(this.figure.series.flatMap((s) => Object.keys(s.tags)))];
    const names = this.figure.x.categories;
    const rows = this.figure.series.flatMap((s) => s.points.map((p) => [
      s.label, ...keys.map((k) => s.tags[k]), s.null ? "null" : "data", names ? names[p[0]] : p[0], p[1], p[2], p[3], p[4], p[5], (p[6] || []).map(ranged).join("; "),
    ]));
    return [["label", ...keys, "kind", "x", "y", "low", "high", "n", "q", "seeds"], ...rows];
  }

  download() {
    const link = element("a", { download: `${this.figure.id}.csv` });
    link.href = URL.createObjectURL(new Blob([this.table().map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" }));
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
}

// Text that a spreadsheet would take for a formula is quoted as text.
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

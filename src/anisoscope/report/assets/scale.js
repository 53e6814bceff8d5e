// Scales, ticks, colours and numbers. Text from runs only ever becomes textContent.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "6 4", "2 3", "9 3 2 3", "1 4"];
const RAMPS = {
  light: ["#46206f", "#31688e", "#1b9184", "#58a634", "#b8960a"],
  dark: ["#a58bea", "#67aee6", "#3ccab4", "#93dd63", "#fbe34a"],
};
const HUES = {
  light: ["#0b62a4", "#c8501a", "#00855f", "#9a4f96", "#8a6d00", "#4d5560", "#00809c", "#a3263f"],
  dark: ["#6db6f2", "#f39a5a", "#4fcf9f", "#d79bd3", "#e0c04d", "#b4bcc6", "#57c8e0", "#f08396"],
};
const VOCABULARY = JSON.parse(document.getElementById("vocabulary").textContent);

// A value of a tag in words, where rows and options know it by an identifier.
function named(key, value) {
  return (VOCABULARY.named.keys.includes(key) && VOCABULARY.named.words[value]) || value;
}

function node(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function element(name, attributes, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function isDark() {
  const said = document.documentElement.dataset.theme;
  if (matchMedia("print").matches) return false;
  return said ? said === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function mixed(a, b, t) {
  const part = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  return "#" + [0, 1, 2].map((i) => Math.round(part(a, i) * (1 - t) + part(b, i) * t).toString(16).padStart(2, "0")).join("");
}

function ramp(t) {
  const stops = RAMPS[isDark() ? "dark" : "light"];
  const place = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(place), stops.length - 2);
  return mixed(stops[i], stops[i + 1], place - i);
}

// Layers run through one sequence of hues; models and nulls have hues of their own.
function colourOf(key, value, values) {
  const hues = HUES[isDark() ? "dark" : "light"];
  if (key === "layer") {
    if (value === "median") return isDark() ? "#f2f4f6" : "#111417";
    const layers = values.filter((v) => v !== "median");
    return ramp(layers.length < 2 ? 0.3 : layers.indexOf(value) / (layers.length - 1));
  }
  // Models of several runs ("run · Decoder") have the colour of their role in every run.
  const role = (v) => (key === "model" ? String(v).split(" · ").pop() : v);
  const i = key === "null" ? VOCABULARY.nulls.indexOf(value) : [...new Set(values.map(role))].indexOf(role(value));
  return hues[(i < 0 ? 0 : i) % hues.length];
}

function shown(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  let text;
  if (size >= 1e7 || (size > 0 && size < 1e-3)) {
    const [mantissa, exponent] = value.toExponential(1).split("e");
    const raised = [...String(Number(exponent))].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)])).join("");
    text = `${mantissa.replace(/\.0$/, "")}·10${raised}`;
  } else if (size >= 1000) text = Math.round(value).toLocaleString("en-GB");
  else text = String(Number(value.toPrecision(3)));
  return text.replace("-", "−");
}

function linearTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) || power;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) found.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return found;
}

function logTicks(low, high, wanted) {
  if (high / low < 3.5) return linearTicks(low, high, Math.min(wanted, 5)).filter((t) => t > 0);
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
  for (const leads of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let e = from; e <= to; e++) for (const m of leads) found.push(m * 10 ** e);
    const inside = found.filter((t) => t >= low * 0.999 && t <= high * 1.001);
    if (inside.length <= wanted && (inside.length >= 2 || leads.length === 9)) return inside;
  }
  const stride = Math.max(1, Math.ceil((to - from) / Math.max(wanted, 1)));
  const found = [];
  for (let e = from; e <= to; e += stride) found.push(10 ** e);
  return found.filter((t) => t >= low * 0.999 && t <= high * 1.001);
}

// A scale maps values to pixels. On a logarithmic axis 0 keeps a place of its own, left of the smallest value.
function scale(low, high, from, to, log, hasZero) {
  if (!log) {
    const at = (v) => from + ((v - low) / (high - low || 1)) * (to - from);
    return { at, ticks: (wanted) => linearTicks(low, high, wanted) };
  }
  const start = hasZero ? from + (to - from) * 0.07 : from;
  const span = Math.log(high / low) || 1;
  const at = (v) => (v <= 0 ? (hasZero ? from : start - (to - from)) : start + (Math.log(v / low) / span) * (to - start));
  const ticks = (wanted) => (hasZero ? [0] : []).concat(logTicks(low, high, wanted));
  return { at, ticks };
}

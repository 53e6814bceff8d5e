// A page whose run is still going reads itself anew, and comes back as it was left: scroll, folds, choices, theme.
"use strict";

const MEMORY = `anisoscope ${location.pathname}`;

function remember(state) {
  const text = JSON.stringify({ memory: MEMORY, state });
  try { sessionStorage.setItem(MEMORY, text); } catch { window.name = text; }
}

function recalled() {
  let text = null;
  try { text = sessionStorage.getItem(MEMORY); sessionStorage.removeItem(MEMORY); } catch { text = window.name; window.name = ""; }
  try { const found = JSON.parse(text); return found && found.memory === MEMORY ? found.state : null; } catch { return null; }
}

function stateOf(plots, choices) {
  return {
    scroll: scrollY,
    theme: document.documentElement.dataset.theme,
    open: [...document.querySelectorAll("details")].map((d) => [foldKey(d), d.open]),
    choices: choices.read(),
    plots: plots.map((p) => [p.figure.id, p.kept()]),
    focus: document.activeElement && document.activeElement.id ? document.activeElement.id : null,
  };
}

// A fold by its section and its place there: both stay when rows are added.
function foldKey(details) {
  const section = details.closest("section");
  const inside = section ? [...section.querySelectorAll("details")] : [];
  return `${section ? section.id : ""} ${inside.indexOf(details)} ${details.querySelector("summary").textContent.slice(0, 20)}`;
}

function bringBack(state, plots, choices) {
  history.scrollRestoration = "manual";
  if (state.theme) document.documentElement.dataset.theme = state.theme;
  const open = new Map(state.open);
  const unfold = () => { for (const d of document.querySelectorAll("details")) if (open.has(foldKey(d))) d.open = open.get(foldKey(d)); };
  unfold();
  const scroll = () => scrollTo({ top: state.scroll, behavior: "instant" });
  Promise.resolve(choices.set(state.choices)).then(() => { unfold(); scroll(); });  // words may come a moment later
  const kept = new Map(state.plots);
  for (const plot of plots) plot.restore(kept.get(plot.figure.id));
  if (state.focus && document.getElementById(state.focus)) document.getElementById(state.focus).focus({ preventScroll: true });
  scroll();
}

function startLive(plots, choices) {
  const state = recalled();
  if (state) bringBack(state, plots, choices);
  const seconds = Number(document.documentElement.dataset.live);
  if (!seconds) return Boolean(state);
  let busy = 0;
  for (const kind of ["pointerdown", "keydown", "input"]) addEventListener(kind, () => { busy = Date.now(); }, { capture: true });
  setInterval(() => {
    const selected = String(getSelection()).length > 0;
    if (document.hidden || selected || Date.now() - busy < 3000) return;
    remember(stateOf(plots, choices));
    location.reload();
  }, seconds * 1000);
  return Boolean(state);
}

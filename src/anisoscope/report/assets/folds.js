// Folds, the index that follows the scroll, and links that open what they lead to.
"use strict";

function folds() { return [...document.querySelectorAll("details.fold")]; }

function openTo(target) {
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  const inner = target.querySelector(":scope > details.fold");
  if (inner) inner.open = true;
}

// "null=haar|view=weight" as an object.
function choicesOf(text) {
  return Object.fromEntries((text || "").split("|").filter(Boolean).map((part) => part.split("=")));
}

// An address may say choices too: #figure-emergence~null=targets|view=weight
function follow(hash, plots) {
  let name, choices;
  try { [name, choices] = decodeURIComponent(hash.slice(1)).split("~"); } catch { return false; }
  const target = name && document.getElementById(name);
  if (!target) return false;
  openTo(target);
  const plot = plots.find((p) => `figure-${p.figure.id}` === name);
  if (plot) { plot.draw(); plot.set(choicesOf(choices)); }
  target.scrollIntoView();
  const focus = target.querySelector("summary, svg.chart");
  if (focus) focus.focus({ preventScroll: true });
  return true;
}

function startFolds(plots) {
  const button = document.querySelector(".unfold");
  const isOpen = () => folds().every((f) => f.open);
  const name = () => { button.textContent = isOpen() ? "Fold all" : "Expand all"; button.setAttribute("aria-pressed", String(isOpen())); };
  button.hidden = false;
  button.addEventListener("click", () => { const open = !isOpen(); for (const f of folds()) f.open = open; name(); });
  for (const fold of folds()) fold.addEventListener("toggle", name);
  name();
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link || event.metaKey || event.ctrlKey) return;
    const set = link.dataset.set ? `~${link.dataset.set}` : "";
    const hash = link.getAttribute("href") + set;
    if (!follow(hash, plots)) return;
    event.preventDefault();
    history.pushState(null, "", hash);
  });
  addEventListener("hashchange", () => follow(location.hash, plots));
  addEventListener("popstate", () => follow(location.hash, plots));
  followScroll();
}

// The entry of the index whose section reaches furthest up under the top of the window.
function followScroll() {
  const links = [...document.querySelectorAll("nav a")];
  const sections = links.map((a) => document.getElementById(a.getAttribute("href").slice(1)));
  const mark = () => {
    let now = -1;
    sections.forEach((s, i) => { if (s.getBoundingClientRect().top < innerHeight * 0.35) now = i; });
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2 && scrollY > 0;
    if (atEnd) now = sections.length - 1;
    links.forEach((a, i) => { if (i === now) a.setAttribute("aria-current", "true"); else a.removeAttribute("aria-current"); });
  };
  addEventListener("scroll", mark, { passive: true });
  addEventListener("resize", mark);
  for (const fold of folds()) fold.addEventListener("toggle", mark);
  mark();
}

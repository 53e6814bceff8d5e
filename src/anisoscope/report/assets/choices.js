// Choices for the whole page: they bring up all that was written for them beforehand, and set every figure.
"use strict";

const ALL = { model: "all models", seed: "all seeds" };
const SPOKEN = JSON.parse(document.getElementById("words").textContent);

// The words of all choices, which lie deflated in the page until the first choice is made.
let words = null;
function wordsOf() {
  if (!words) {
    const bytes = Uint8Array.from(atob(SPOKEN.words), (c) => c.charCodeAt(0));
    words = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  }
  return words;
}

// Every place whose words may change, with what it says when the page begins.
function slotsOf() {
  return [...document.querySelectorAll("[data-slot]")].map((place) => {
    const begins = document.createElement("template");
    begins.content.append(...[...place.childNodes].map((n) => n.cloneNode(true)));
    return { place, name: place.dataset.slot, begins, shows: null };
  });
}

function spokenOf(all, text) {
  const made = document.createElement("template");
  made.innerHTML = all.texts[text].map((piece) => all.pieces[piece]).join("");
  return made;
}

// What stands in a slot now; details that were open stay open.
function speak(slot, all, text) {
  if (slot.shows === text) return;
  const open = [...slot.place.querySelectorAll("details")].map((d) => d.open);
  slot.place.replaceChildren((text === null ? slot.begins : spokenOf(all, text)).content.cloneNode(true));
  slot.place.querySelectorAll("details").forEach((d, i) => { d.open = Boolean(open[i]); });
  slot.shows = text;
}

function startChoices(plots) {
  const form = document.querySelector(".choices");
  if (!form) return { read: () => ({}), set: () => {} };
  const selects = [...form.querySelectorAll("select")];
  const slots = slotsOf();
  const read = () => Object.fromEntries(selects.map((s) => [s.dataset.page, s.value]));
  const start = read();
  // Parts of a combination that the page does not offer, for there is one value only, are those it began with.
  const keyOf = (now) => {
    const all = Object.assign({}, choicesOf(SPOKEN.begins), now);
    return Object.keys(all).sort().map((key) => `${key}=${all[key]}`).join("|");
  };
  const known = new Set(SPOKEN.for);
  const has = (now) => known.has(keyOf(now));
  let asked = 0;
  const apply = async (now) => {
    for (const plot of plots) plot.set(now);
    form.classList.toggle("changed", JSON.stringify(now) !== JSON.stringify(start));
    const mine = ++asked, key = keyOf(now);
    const all = key === SPOKEN.begins ? null : await wordsOf();
    if (mine !== asked) return;
    const found = all ? all.at[key] : {};
    for (const slot of slots) {
      const text = found && found[all ? all.slots.indexOf(slot.name) : -1];
      speak(slot, all, text === undefined ? null : text);
    }
    if (!found) for (const slot of slots.filter((s) => s.name === "answer")) {
      slot.place.replaceChildren(element("p", { class: "said open headline told" }, "This page has no text for these choices; choose others."));
      slot.shows = undefined;
    }
    document.dispatchEvent(new CustomEvent("spoken"));
  };
  // Combinations that nothing was written for are switched off.
  const mark = (now) => {
    for (const select of selects) {
      for (const option of select.options) option.disabled = option.value !== select.value && !has(Object.assign({}, now, { [select.dataset.page]: option.value }));
    }
  };
  const set = (wanted) => {
    for (const select of selects) {
      const value = wanted[select.dataset.page];
      if (value !== undefined && [...select.options].some((o) => o.value === value)) select.value = value;
    }
    mark(read());
    return apply(read());
  };
  form.addEventListener("change", () => { mark(read()); apply(read()); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  mark(start);
  return { read, set, start };
}

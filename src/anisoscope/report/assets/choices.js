// Choices for the whole page: they bring up the first screen that was made for them, and set every figure.
"use strict";

const ALL = { model: "all models", seed: "all seeds" };

function startChoices(plots) {
  const form = document.querySelector(".choices");
  if (!form) return { read: () => ({}), set: () => {} };
  const selects = [...form.querySelectorAll("select")];
  const kept = new Map();
  const first = document.querySelector(".front > .shown");
  if (first) {
    const begins = document.createElement("template");
    begins.content.append(...[...first.childNodes].map((n) => n.cloneNode(true)));
    kept.set(first.dataset.choices, begins);
    for (const template of document.querySelectorAll("template.front")) kept.set(template.dataset.choices, template);
  }
  const read = () => Object.fromEntries(selects.map((s) => [s.dataset.page, s.value]));
  const start = read();
  // Parts of a combination that the page does not offer, for there is one value only, are those it began with.
  const keyOf = (now) => {
    const all = Object.assign({}, choicesOf(first.dataset.choices), now);
    delete all.model;
    return Object.keys(all).sort().map((key) => `${key}=${all[key]}`).join("|");
  };
  const apply = (now) => {
    if (first) {
      const found = kept.get(keyOf(now));
      if (found) first.replaceChildren(found.content.cloneNode(true));
      else first.replaceChildren(element("p", { class: "said open headline told" }, "The rows have no observations for these choices; choose others."));
      const only = now.model;
      if (only && only !== ALL.model) for (const row of first.querySelectorAll(".marks tbody tr")) row.hidden = !row.querySelector("th").textContent.startsWith(only);
    }
    for (const plot of plots) plot.set(now);
    form.classList.toggle("changed", JSON.stringify(now) !== JSON.stringify(start));
  };
  // Combinations without rows are switched off.
  const mark = (now) => {
    for (const select of selects) {
      if (!first || select.dataset.page === "model") continue;
      for (const option of select.options) option.disabled = option.value !== select.value && !kept.has(keyOf(Object.assign({}, now, { [select.dataset.page]: option.value })));
    }
  };
  const set = (wanted) => {
    for (const select of selects) {
      const value = wanted[select.dataset.page];
      if (value !== undefined && [...select.options].some((o) => o.value === value)) select.value = value;
    }
    mark(read());
    apply(read());
  };
  form.addEventListener("change", () => { mark(read()); apply(read()); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  mark(start);
  return { read, set, start };
}

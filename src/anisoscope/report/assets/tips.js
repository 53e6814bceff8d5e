// Explanations of words and read-outs of signs: on hover, on focus, and on tap.
"use strict";

function startTips() {
  const tip = element("div", { class: "tip floating", role: "tooltip", id: "tip" });
  document.body.append(tip);
  let owner = null;
  const hide = () => { if (owner) owner.removeAttribute("aria-describedby"); owner = null; tip.style.visibility = "hidden"; };
  const show = (target) => {
    const term = target.dataset.term;
    const text = target.dataset.tip === "" ? target.getAttribute("aria-label") : (term && VOCABULARY.terms[term]);
    if (!text) return;
    if (owner && owner !== target) hide();
    owner = target;
    tip.textContent = term ? `${named("null", term)}: ${text}` : text;
    if (term) target.setAttribute("aria-describedby", "tip");
    tip.style.visibility = "visible";
    const at = target.getBoundingClientRect(), wide = tip.offsetWidth, tall = tip.offsetHeight;
    const below = at.bottom + 8 + tall < innerHeight || at.top < tall + 8;
    tip.style.left = `${Math.max(4, Math.min(at.left, document.documentElement.clientWidth - wide - 4))}px`;
    tip.style.top = `${below ? at.bottom + 8 : at.top - tall - 8}px`;
  };
  const of = (event) => event.target.closest ? event.target.closest("[data-tip], [data-term]") : null;
  document.addEventListener("pointerover", (event) => { const t = of(event); if (t) show(t); else if (owner && owner !== document.activeElement) hide(); });
  document.addEventListener("focusin", (event) => { const t = of(event); if (t) show(t); else hide(); });
  document.addEventListener("click", (event) => { const t = of(event); if (t) show(t); else hide(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true });
}

// The page as a whole: all drawings, the theme, print.
"use strict";

function startTheme(redraw) {
  const button = document.querySelector(".theme");
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `${isDark() ? "Light" : "Dark"} colours`); };
  button.hidden = false;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    name();
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); redraw(); });
  name();
}

function start() {
  const figures = JSON.parse(document.getElementById("data").textContent);
  const plots = figures.map((figure) => new Plot(document.getElementById(`figure-${figure.id}`), figure));
  const redraw = () => { for (const plot of plots) plot.draw(); };
  startTheme(redraw);
  startFolds(plots);
  const choices = startChoices(plots);
  startTips();
  // On paper everything is open.
  const unfold = () => { for (const d of document.querySelectorAll("details")) d.open = true; redraw(); };
  matchMedia("print").addEventListener("change", (event) => { if (event.matches) unfold(); else redraw(); });
  addEventListener("beforeprint", unfold);
  if (!startLive(plots, choices) && location.hash) follow(location.hash, plots);
  document.documentElement.dataset.drawn = String(plots.length);
}

start();

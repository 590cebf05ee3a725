// Light or dark: as the system has it, until somebody chooses; and colours for heat maps.
const THEMES = ["automatic", "light", "dark"];
const systemDark = matchMedia("(prefers-color-scheme: dark)");
let theme = "automatic";
try {
  theme = THEMES.includes(localStorage.getItem("fedtailor-theme")) ? localStorage.getItem("fedtailor-theme") : theme;
} catch { /* a page from disk may not be allowed to remember */ }

const isDark = () => document.documentElement.dataset.theme === "dark";
function applyTheme() {
  const dark = theme === "dark" || (theme === "automatic" && systemDark.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = `Theme: ${theme}`;
  tell("theme");
}
systemDark.addEventListener("change", applyTheme);
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("fedtailor-theme", theme); } catch { /* see above */ }
  applyTheme();
});
// paper is white whatever the screen is
let beforePrint = null;
addEventListener("beforeprint", () => {
  beforePrint = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  tell("theme");
});
addEventListener("afterprint", () => {
  if (beforePrint) document.documentElement.dataset.theme = beforePrint;
  tell("theme");
});

const RAMPS = {
  light: {
    one: [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]],
    two: [[127, 59, 8], [224, 130, 20], [253, 208, 162], [250, 250, 250], [178, 210, 235], [67, 133, 190], [8, 48, 107]],
  },
  dark: {
    one: [[26, 30, 34], [28, 62, 92], [38, 106, 158], [96, 172, 226], [214, 238, 255]],
    two: [[255, 190, 130], [226, 126, 50], [110, 66, 36], [32, 36, 40], [32, 72, 104], [62, 138, 196], [182, 224, 255]],
  },
};
/** Colour of a share between 0 and 1, on a scale of one sign or (`two`) of both. */
function heat(share, two) {
  const ramp = RAMPS[isDark() ? "dark" : "light"][two ? "two" : "one"];
  const at = Math.min(0.99999, Math.max(0, share)) * (ramp.length - 1);
  const [a, b] = [ramp[Math.floor(at)], ramp[Math.floor(at) + 1]];
  return a.map((part, i) => Math.round(part + (b[i] - part) * (at % 1)));
}
/** Where a value lies on the scale: 0 to 1, with `centre` in the middle. */
function onScale(value, low, high, centre) {
  if (centre === null) return (value - low) / (high - low || 1);
  return value < centre ? 0.5 * ((value - low) / (centre - low || 1)) : 0.5 + 0.5 * ((value - centre) / (high - centre || 1));
}
/** Black or white, whichever can be read on a colour. */
const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#14171a" : "#ffffff");
const heatTable = (two) => Array.from({ length: 255 }, (_, code) => heat(code / 254, two));

/** The scale of a heat map. `centre` is what has no colour: 0 between signs, or an equal share. */
function heatScale(low, high, centre = null) {
  const two = centre !== null;
  const strip = el("canvas", { width: 128, height: 1, "aria-hidden": "true" });
  const draw = () => {
    const pen = strip.getContext("2d");
    for (let i = 0; i < 128; i++) {
      pen.fillStyle = `rgb(${heat(i / 127, two)})`;
      pen.fillRect(i, 0, 1, 1);
    }
  };
  draw();
  when("theme", draw);
  return el("div", { class: "scale" }, strip,
    el("div", {}, [low, ...(two ? [centre] : []), high].map((v) => el("span", {}, short(v)))));
}

// What models say of test rows: ROC curves and calibration, residuals, survival by predicted risk.

/** An empty chart with both axes; gives scales to draw with. */
function plane(width, height, [x0, x1], [y0, y1], { xName, yName, label, left = 46, bottom = 40, format = short, xTicks = null }) {
  const frame = { left, right: width - 10, top: 10, bottom: height - bottom };
  const x = linear([x0, x1], [frame.left, frame.right]), y = linear([y0, y1], [frame.bottom, frame.top]);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label} The same as numbers below.` });
  for (const v of ticks(y0, y1, 5)) {
    root.append(svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y(v), y2: y(v) }),
      svg("text", { x: frame.left - 8, y: y(v) + 4, "text-anchor": "end" }, format(v)));
  }
  for (const v of xTicks || ticks(x0, x1, Math.max(2, Math.floor((frame.right - frame.left) / 70)))) {
    root.append(svg("text", { x: x(v), y: frame.bottom + 16, "text-anchor": "middle" }, format(v)));
  }
  root.append(svg("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }),
    svg("text", { x: frame.right, y: frame.bottom + 32, "text-anchor": "end" }, xName));
  if (yName) root.append(svg("text", { x: 11, y: frame.top, "text-anchor": "end", transform: `rotate(-90 11 ${frame.top})` }, yName));
  return { root, x, y, frame };
}

function testedChart(box, draw) {
  box.classList.add("chart");
  return keepDrawn(box, (width) => {
    box.querySelector("svg")?.remove();
    box.prepend(draw(width));
  });
}

/** A choice among methods that have what is shown; the recommended one first. */
function methodChoice(place, id, found, again) {
  const there = RANKED.filter((i) => found[i]);
  const best = there.find((i) => LABELS[i] === DATA.decision?.method) ?? there[0];
  const select = el("select", { id }, there.map((i) => el("option", { value: i, selected: i === best }, LABELS[i])));
  select.addEventListener("change", () => again());
  byId(place).append(el("label", {}, "Method ", select));
  return () => Number(select.value);
}

function startRoc() {
  const { classes, two, roc, calibration } = DATA.tested;
  let chosen = 0;
  const drawn = () => shown().filter((i) => roc[i]);
  const caption = () => {
    byId("roc-caption").textContent = two ? `ROC: ${classes[0]} against the other class` : `ROC: ${classes[chosen]} against the rest`;
    byId("calibration-caption").textContent = two ? `Calibration: probability of ${classes[0]}` : "Calibration: of the answer, how often it is right";
  };
  const square = (width, names) => plane(width, Math.min(width, 420) + 20, [0, 1], [0, 1], names);
  const diagonal = ({ root, x, y }) => root.append(svg("line", { class: "diagonal", x1: x(0), x2: x(1), y1: y(0), y2: y(1) }));
  const again = [
    testedChart(byId("roc-chart"), (width) => {
      const on = square(width, { xName: "1 − specificity", yName: "sensitivity", label: "ROC curves." });
      diagonal(on);
      const line = (points) => path(points.map(([p, q]) => [on.x(p), on.y(q)]));
      for (const i of drawn()) for (const { points } of roc[i][chosen].clients) on.root.append(svg("path", { class: "thin", d: line(points), style: `stroke:${colour(i)}` }));
      for (const i of drawn()) on.root.append(svg("path", { class: "line", d: line(roc[i][chosen].all), "stroke-dasharray": dash(i) || null, style: `stroke:${colour(i)}` }));
      return on.root;
    }),
    testedChart(byId("calibration-chart"), (width) => {
      const on = square(width, { xName: two ? "said probability" : "how sure", yName: two ? "share where it is true" : "share of right answers", label: "Calibration curves." });
      diagonal(on);
      for (const i of drawn()) {
        const points = calibration[i], most = Math.max(...points.map((p) => p[2]));
        on.root.append(svg("path", { class: "line", d: path(points.map(([p, q]) => [on.x(p), on.y(q)])), "stroke-dasharray": dash(i) || null, style: `stroke:${colour(i)};stroke-width:1.2` }));
        on.root.append(...points.map(([p, q, n]) => svg("circle", { cx: on.x(p), cy: on.y(q), r: 1.5 + 5 * Math.sqrt(n / most), style: `fill:${colour(i)};fill-opacity:.8` }, svg("title", {}, `${LABELS[i]}: ${plural(n, "row")}`))));
      }
      return on.root;
    }),
  ];
  const all = () => {
    caption();
    again.forEach((draw) => draw());
  };
  if (classes.length > 1) {
    const select = el("select", { id: "roc-class" }, classes.map((name, k) => el("option", { value: k }, name)));
    select.addEventListener("change", () => {
      chosen = Number(select.value);
      all();
    });
    byId("roc-choices").append(el("label", {}, "Class ", select));
  }
  byId("roc-chart").after(numbersBelow("Areas below the curves", () => ({
    head: ["method", ...classes], body: RANKED.filter((i) => roc[i]).map((i) => [LABELS[i], ...roc[i].map((one) => inWords(one.area, 3))]),
  })));
  byId("calibration-chart").after(numbersBelow("Numbers", () => ({
    head: ["method", "said", "true", "rows"], body: RANKED.filter((i) => calibration[i]).flatMap((i) => calibration[i].map(([p, q, n]) => [LABELS[i], inWords(p, 3), inWords(q, 3), String(n)])),
  })));
  when("methods", all);
  caption();
}

function startResiduals() {
  const found = DATA.tested.residuals;
  const again = [];
  const method = methodChoice("residuals-choices", "residuals-method", found, () => again.forEach((draw) => draw()));
  const [low, high] = extent(Object.values(found).flatMap((one) => one.pairs.flat()));
  const pad = (high - low || 1) * 0.03, range = [low - pad, high + pad];
  again.push(testedChart(byId("residuals-chart"), (width) => {
    const on = plane(width, Math.min(width, 440), range, range, { xName: "true", yName: "predicted", label: "Predicted against true." });
    on.root.append(svg("line", { class: "diagonal", x1: on.x(low), x2: on.x(high), y1: on.y(low), y2: on.y(high) }));
    const d = found[method()].pairs.map(([p, q]) => markPath("circle", +on.x(p).toFixed(1), +on.y(q).toFixed(1), 2.2)).join("");
    on.root.append(svg("path", { d, style: `fill:${colour(method())};fill-opacity:.4` }));
    return on.root;
  }));
  again.push(testedChart(byId("errors-chart"), (width) => {
    const rows = found[method()].spread, rise = rows.length <= 60 ? 22 : Math.max(1.4, 900 / rows.length), named = rise >= 12;
    const letters = Math.min(18, Math.max(...rows.map((one) => DATA.clients[one.client].length)));
    const [least, most] = extent([0, ...Object.values(found).flatMap((one) => one.spread.flatMap((s) => s.at))]);
    const height = Math.max(120, rows.length * rise + 50), ink = colour(method());
    const on = plane(width, height, [least - (most - least) * 0.03, most + (most - least) * 0.03], [0, 1], { xName: "predicted − true", label: "Errors by client.", left: named ? 14 + 6.6 * letters : 30, format: (v) => short(v) });
    on.root.querySelectorAll(".grid").forEach((line) => line.nextSibling.remove()); // the height means nothing here
    on.root.querySelectorAll(".grid").forEach((line) => line.remove());
    on.root.append(svg("line", { class: "axis", x1: on.x(0), x2: on.x(0), y1: on.frame.top, y2: on.frame.bottom }));
    rows.forEach(({ client, at }, k) => {
      const y = on.frame.top + (k + 0.5) * rise, [a, b, c, d, e] = at.map(on.x);
      on.root.append(svg("path", { d: `M${a} ${y}L${e} ${y}`, style: `stroke:${ink};stroke-width:${named ? 1.2 : 0.5}` }),
        svg("path", { d: `M${b} ${y}L${d} ${y}`, style: `stroke:${ink};stroke-width:${Math.min(9, rise * 0.6)};stroke-opacity:.55` }));
      if (!named) return;
      on.root.append(svg("circle", { cx: c, cy: y, r: 3, style: `fill:var(--ground);stroke:${ink};stroke-width:1.4` }),
        svg("text", { class: "name", x: on.frame.left - 10, y: y + 4, "text-anchor": "end" }, shorten(DATA.clients[client], letters)));
    });
    return on.root;
  }));
  byId("errors-chart").after(numbersBelow("Numbers", () => ({
    head: ["client", ...DATA.tested.quantiles.map((q) => `${100 * q} %`)],
    body: found[method()].spread.slice(0, 500).map((one) => [DATA.clients[one.client], ...one.at.map(short)]),
  })));
}

const RISK_COLOURS = { "low risk": "var(--m1)", middle: "var(--faint)", "high risk": "var(--m2)" };
const RISK_DASHES = { "low risk": "", middle: "6 3", "high risk": "9 3 2 3" };
function startSurvival() {
  const found = DATA.tested.survival, box = byId("survival-chart");
  const again = [];
  const method = methodChoice("survival-choices", "survival-method", found, () => again.forEach((draw) => draw()));
  again.push(testedChart(box, (width) => {
    const { moments, groups } = found[method()];
    const below = 40 + 18 * groups.length + 8, end = Math.max(...Object.values(found).flatMap((one) => one.groups.map((g) => g.steps.at(-1)[0])), 1e-9);
    const on = plane(width, 330 + below, [0, end], [0, 1], { xName: "time", yName: "share without the event", label: "Survival by predicted risk.", bottom: below, left: 84, xTicks: moments });
    groups.forEach(({ name, steps, at_risk: counts }, k) => {
      const ink = RISK_COLOURS[name];
      const points = steps.flatMap(([t, share], n) => (n ? [[t, steps[n - 1][1]], [t, share]] : [[t, share]]));
      on.root.append(svg("path", { class: "line", d: path(points.map(([t, share]) => [on.x(t), on.y(share)])), "stroke-dasharray": RISK_DASHES[name] || null, style: `stroke:${ink}` }));
      const y = on.frame.bottom + 50 + 18 * k;
      on.root.append(svg("text", { class: "name", x: 0, y, style: `fill:${ink}` }, name));
      moments.forEach((t, n) => on.root.append(svg("text", { x: on.x(t), y, "text-anchor": "middle" }, String(counts[n]))));
    });
    on.root.append(svg("text", { x: 0, y: on.frame.bottom + 32 }, "rows at risk"));
    return on.root;
  }));
  box.after(numbersBelow("Numbers", () => {
    const { moments, groups } = found[method()];
    const at = (steps, t) => steps.findLast(([when]) => when <= t)[1];
    return { head: ["time", ...groups.flatMap((g) => [`${g.name}: share`, "rows at risk"])],
      body: moments.map((t, n) => [short(t), ...groups.flatMap((g) => [inWords(at(g.steps, t), 3), String(g.at_risk[n])])]) };
  }));
}

function startTested() {
  if (!DATA.tested) return;
  ({ classification: startRoc, regression: startResiduals, survival: startSurvival })[DATA.task]();
}

// The table of methods, learning curves, and what it costs.
const MEASURES = {
  mean: "mean over clients",
  bottom5: "worst-off 5 % of clients",
  weighted: "mean over test rows",
  post: "right after local training",
  global: "global model",
};

function startTable() {
  const table = byId("method-table");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const text = row.cells[column].dataset.value;
    return text === undefined ? null : column === 0 ? text : Number(text);
  };
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const low = column === 0 || button.dataset.low;
      const way = before ? (before === "ascending" ? "descending" : "ascending") : low ? "ascending" : "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way);
      const sign = way === "ascending" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => {
        const [p, q] = [value(a, column), value(b, column)];
        if (p === null || q === null) return (p === null) - (q === null); // what is missing goes last
        return sign * (column === 0 ? p.localeCompare(q) : p - q);
      });
      body.append(...rows);
      byId("sort-told").textContent = `Sorted by ${button.textContent}, ${way}.`;
    });
    const trained = [...body.rows].filter((row) => row.dataset.method); // a fixed answer wins nothing
    if (column === 0 || trained.length < 2) return;
    const known = trained.map((row) => value(row, column)).filter((v) => v !== null);
    const best = Math[button.dataset.low ? "min" : "max"](...known);
    const winners = trained.filter((row) => value(row, column) === best);
    const telling = button.dataset.contest && winners.length <= trained.length / 2;
    if (telling) winners.forEach((row) => row.cells[column].classList.add("best"));
  });
  table.querySelectorAll(".swatch").forEach((mark) => {
    mark.style.background = colour(Number(mark.dataset.colour));
  });
}

function startLegends() {
  const draw = () => {
    for (const box of document.querySelectorAll(".legend")) {
      const focused = [...box.children].indexOf(document.activeElement);
      box.replaceChildren(...RANKED.map((i) =>
        el("button", { type: "button", "aria-pressed": String(!state.hidden.has(i)), onclick: () => {
          if (!state.hidden.delete(i)) state.hidden.add(i);
          tell("methods");
        } },
        svg("svg", { width: 20, height: 8, "aria-hidden": "true" },
          svg("line", { x1: 1, x2: 19, y1: 4, y2: 4, "stroke-width": 2.5, "stroke-dasharray": dash(i) || null, style: `stroke:${colour(i)}` })),
        LABELS[i])));
      if (focused >= 0) box.children[focused].focus();
    }
  };
  draw();
  listeners.methods.unshift(draw);
  if (METHODS.length > MANY) {
    byId("curves").querySelector(".controls").before(el("p", { class: "hint" }, `The ${MANY - 1} best of ${METHODS.length} methods${ALONE === null ? "" : ", and training alone,"} are drawn; the others can be switched on, here and in the sections below.`));
  }
}

/** Curves of the methods shown; `from` leaves out that share of the rounds at the beginning. */
function curveSeries(measure, times = 1, from = 0) {
  return shown().filter((i) => DATA.curves[i][measure]).map((i) => {
    const found = DATA.curves[i], first = from * found.round.at(-1);
    const late = (_, k) => found.round[k] >= first;
    const scaled = (values) => values.filter(late).map((v) => (isNumber(v) ? v * times : null));
    return { label: LABELS[i], colour: colour(i), dash: dash(i), x: found.round.filter(late), method: i,
      y: scaled(found[measure].mid), low: scaled(found[measure].low), high: scaled(found[measure].high) };
  });
}

function curveTable(measure, times, digits) {
  const series = curveSeries(measure, times);
  const rounds = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const step = Math.max(1, Math.ceil(rounds.length / 25));
  const kept = rounds.filter((_, i) => i % step === 0 || i === rounds.length - 1);
  return { head: ["round", ...series.map((s) => s.label)],
    body: kept.map((r) => [String(r), ...series.map((s) => inWords(s.y[s.x.indexOf(r)], digits))]) };
}

function startCurves() {
  const choice = byId("measure"), stretch = byId("window");
  const from = () => Number(stretch.value);
  for (const [name, words] of Object.entries(MEASURES)) {
    if (DATA.curves.some((c) => c[name])) choice.append(el("option", { value: name }, words));
  }
  // real sites tell few scores but those right after training: what is known at most rounds comes first
  const known = (name) => Math.max(0, ...DATA.curves.filter((c, i) => i !== ALONE && c[name]).map((c) => c[name].mid.filter(isNumber).length));
  choice.value = [...choice.options].map((o) => o.value).reduce((a, b) => (known(b) > known(a) ? b : a), choice.value);
  const caption = () => (byId("score-caption").textContent = `${METRIC.axis} of personal models on test rows, ${MEASURES[choice.value]}`.replace("personal models on test rows, global model", "the global model on test rows"));
  const redraw = [
    lineChart(byId("score-chart"), () => curveSeries(choice.value, TIMES, from()),
      { label: `${METRIC.axis} by round.`, format: onAxis, floor: FLOOR, ceiling: CEILING, less: !METRIC.higher }),
    lineChart(byId("loss-chart"), () => curveSeries("loss", 1, from()), { label: "Loss by round.", less: true }),
  ];
  byId("score-chart").after(numbersBelow("Numbers", () => curveTable(choice.value, TIMES, METRIC.digits + 1)));
  byId("loss-chart").after(numbersBelow("Numbers", () => curveTable("loss", 1, 4)));
  const all = () => {
    caption();
    redraw.forEach((draw) => draw());
  };
  choice.addEventListener("change", all);
  stretch.addEventListener("change", all);
  when("methods", all);
  caption();
}

function startCost() {
  const box = byId("bytes-chart");
  const spending = (i) => DATA.curves[i].sent.some((v) => v > 0);
  const series = () => curveSeries("mean", TIMES).filter((s) => spending(s.method))
    .map((s) => ({ ...s, x: DATA.curves[s.method].sent, low: null, high: null, dots: true }));
  const free = METHODS.map((_, i) => i).filter((i) => !spending(i) && DATA.curves[i].mean);
  const level = free.length ? {
    y: TIMES * DATA.curves[free[0]].mean.mid.at(-1), colour: colour(free[0]),
    label: `${LABELS[free[0]]} sends nothing`,
  } : null;
  const draw = lineChart(box, series, { label: `Mean ${METRIC.word} against bytes sent.`, height: 280, level, format: onAxis, less: !METRIC.higher,
    xFormat: inBytes, xName: "sent", loose: true, zero: true, nearEnds: true, floor: FLOOR, ceiling: CEILING });
  when("methods", draw);
  box.after(numbersBelow("Numbers", () => ({
    head: ["method", `mean ${METRIC.axis}`, "up", "down", "together"],
    body: RANKED.map((i) => [LABELS[i], inMetric(METHODS[i].score.mean?.mean, 1), inBytes(METHODS[i].up), inBytes(METHODS[i].down), inBytes(METHODS[i].up + METHODS[i].down)]),
  })));

  const simulated = byId("simulated-chart");
  if (simulated) {
    const clock = (i) => DATA.curves[i].simulated;
    when("methods", lineChart(simulated, () => curveSeries("mean", TIMES).filter((s) => clock(s.method))
      .map((s) => ({ ...s, x: clock(s.method), low: null, high: null, dots: true })),
    { label: `Mean ${METRIC.word} against simulated time.`, height: 280, format: onAxis, less: !METRIC.higher,
      xFormat: (v) => inWords(v, 1), xName: "simulated time", loose: true, zero: true, nearEnds: true, floor: FLOOR, ceiling: CEILING }));
    simulated.after(numbersBelow("Numbers", () => ({
      head: ["method", `mean ${METRIC.axis}`, "simulated time", "dropped out", "missed the deadline"],
      body: RANKED.filter(clock).map((i) => [LABELS[i], inMetric(METHODS[i].score.mean?.mean, 1), inWords(clock(i).at(-1), 1), String(METHODS[i].dropped), String(METHODS[i].stragglers)]),
    })));
  }

  const longest = Math.max(...METHODS.map((m) => m.seconds), 1e-9);
  const rows = METHODS.map((m, i) => ({ m, i })).sort((a, b) => a.m.seconds - b.m.seconds);
  byId("time-chart").append(el("table", { class: "bars" }, el("thead", { class: "visually-hidden" }, el("tr", {},
    ["method", "bar", "seconds", "of them training"].map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, rows.map(({ m, i }) => el("tr", {},
    el("th", { scope: "row" }, m.label),
    el("td", { class: "track" }, el("div", { class: "bar", "aria-hidden": "true" },
      el("i", { style: `width:${(100 * m.train_seconds) / longest}%;background:${colour(i)}` }),
      el("i", { class: "rest", style: `width:${(100 * Math.max(0, m.seconds - m.train_seconds)) / longest}%;background:${colour(i)}` }))),
    el("td", { class: "number" }, inWords(m.seconds, 1)),
    el("td", { class: "number spread" }, inWords(m.train_seconds, 1)))))));
}

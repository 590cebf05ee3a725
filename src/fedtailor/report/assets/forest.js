// Gains over training alone with their intervals: the mean on top, then every client, best first.
const ANSWERS = {
  helps: { words: "it helps here", colour: "var(--gain3)", shape: "circle", filled: true },
  harms: { words: "it harms here", colour: "var(--loss3)", shape: "square", filled: true },
  "no difference": { words: "no difference that matters", colour: "var(--ink)", shape: "diamond", filled: false },
  "cannot tell": { words: "it cannot be told", colour: "var(--faint)", shape: "circle", filled: false },
};
const FOREST_MOST = 600; // rows; of more clients, evenly chosen ones

function markPath(shape, x, y, r) {
  if (shape === "square") return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (shape === "diamond") return `M${x} ${y - 1.3 * r}L${x + 1.3 * r} ${y}L${x} ${y + 1.3 * r}L${x - 1.3 * r} ${y}Z`;
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
}
const markStyle = (a) => `fill:${a.filled ? a.colour : "var(--ground)"};stroke:${a.colour};stroke-width:1.4`;

function forestKey(decisions) {
  byId("forest-key").append(...Object.entries(ANSWERS).filter(([name]) => decisions.some((d) => d.answer === name)).map(([name, a]) =>
    el("span", {}, svg("svg", { width: 26, height: 12, "aria-hidden": "true" },
      svg("line", { x1: 1, x2: 25, y1: 6, y2: 6, style: `stroke:${a.colour};stroke-width:1.6` }),
      svg("path", { d: markPath(a.shape, 13, 6, 4), style: markStyle(a) })), name)));
}

function startForest() {
  const box = byId("forest-chart"), decision = DATA.decision;
  if (!box) return;
  const order = DATA.clients.map((_, c) => c).filter((c) => isNumber(DATA.client_decisions[c]?.gain))
    .sort((a, b) => DATA.client_decisions[b].gain - DATA.client_decisions[a].gain || a - b);
  const step = Math.max(1, order.length / FOREST_MOST);
  const rows = order.filter((_, k) => Math.floor(k / step) !== Math.floor((k - 1) / step));
  const all = [decision, ...rows.map((c) => DATA.client_decisions[c])];
  const [least, most] = extent([0, -decision.margin, decision.margin, ...all.flatMap((d) => [d.gain, ...d.interval])]);
  const inRange = (d) => fromTo(d.interval);
  box.classList.add("chart");
  const told = el("p", { class: "hint", "aria-live": "polite" });
  const resting = rows.length < order.length ? `${rows.length} of ${plural(order.length, "client")} are drawn, evenly chosen.` : "Point at a line to read it.";
  const lost = DATA.clients.length - order.length;
  told.textContent = resting;
  forestKey(all);
  keepDrawn(box, (width) => {
    box.querySelector("svg")?.remove();
    const rise = rows.length <= 60 ? 21 : Math.max(1.4, 900 / rows.length), named = rise >= 12;
    const wide = width >= 620;
    const letters = Math.min(wide ? 24 : 12, Math.max(...rows.map((c) => DATA.clients[c].length), 14));
    const left = named ? 14 + 6.6 * letters : 110, right = width - (wide ? 200 : 8);
    const top = 34, first = top + 30, height = first + rows.length * rise + 34;
    const pad = (most - least) * 0.03;
    const x = linear([least - pad, most + pad], [left, right]);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
      "aria-label": `Gain of ${decision.method} over training alone with intervals: the mean and ${plural(order.length, "client")}. Arrow keys read them, Enter opens a client.` });
    root.append(svg("rect", { class: "margin", x: x(-decision.margin), width: Math.max(0, x(decision.margin) - x(-decision.margin)), y: 12, height: height - 38 }));
    for (const v of ticks(TIMES * (least - pad), TIMES * (most + pad), Math.max(3, Math.floor((right - left) / 80)))) {
      root.append(svg("line", { class: v === 0 ? "axis" : "grid", x1: x(v / TIMES), x2: x(v / TIMES), y1: 12, y2: height - 26 }),
        svg("text", { x: x(v / TIMES), y: height - 9, "text-anchor": "middle" }, (v > 0 ? "+" : "") + short(v)));
    }
    const at = (k) => (k < 0 ? top : first + (k + 0.5) * rise);
    const lines = new Map(), marks = new Map(); // one path per answer: quick with many clients
    const draw = (d, k) => {
      const y = at(k), r = k < 0 ? 6 : Math.min(4.2, Math.max(1, rise * 0.4));
      const ends = d.interval.map((v, side) => (v === null ? [left, right][side] : x(v)));
      const arrows = d.interval.map((v, side) => (v === null && named ? `M${ends[side] + (side ? -5 : 5)} ${y - 4}L${ends[side]} ${y}l${side ? -5 : 5} 4` : "")).join("");
      const line = `M${ends[0].toFixed(1)} ${y.toFixed(1)}L${ends[1].toFixed(1)} ${y.toFixed(1)}${arrows}`;
      if (k < 0) {
        const a = ANSWERS[d.answer];
        root.append(svg("path", { d: line, style: `stroke:${a.colour};stroke-width:3.5;fill:none` }),
          svg("path", { d: markPath("diamond", x(d.gain), y, r), style: markStyle(a) }));
        return;
      }
      lines.set(d.answer, (lines.get(d.answer) || "") + line);
      marks.set(d.answer, (marks.get(d.answer) || "") + markPath(ANSWERS[d.answer].shape, +x(d.gain).toFixed(1), +y.toFixed(1), r));
    };
    all.forEach((d, k) => draw(d, k - 1));
    for (const [answer, d] of lines) root.append(svg("path", { d, style: `stroke:${ANSWERS[answer].colour};stroke-width:${named ? 1.6 : 0.7};fill:none` }));
    for (const [answer, d] of marks) root.append(svg("path", { class: "marks", d, style: named ? markStyle(ANSWERS[answer]) : `fill:${ANSWERS[answer].filled ? ANSWERS[answer].colour : "var(--ink)"}` }));
    const words = (k, name, d, strong) => {
      root.append(svg("text", { class: "name", x: left - 12, y: at(k) + 4, "text-anchor": "end", style: strong ? "font-weight:650" : null }, svg("title", {}, name), shorten(name, letters)));
      if (wide) root.append(svg("text", { x: width, y: at(k) + 4, "text-anchor": "end", style: strong ? "font-weight:650;fill:var(--ink)" : null }, `${signed(d.gain)}  (${inRange(d)})`));
    };
    words(-1, `mean of ${decision.clients}`, decision, true);
    if (named) rows.forEach((c, k) => words(k, DATA.clients[c], DATA.client_decisions[c], false));
    const mark = svg("rect", { x: 0, width, height: Math.max(rise, 3), visibility: "hidden", style: "fill:var(--ink);fill-opacity:.07" });
    root.append(mark);
    let here = -1;
    const point = (k) => {
      here = Math.min(rows.length - 1, Math.max(0, k));
      const client = rows[here], d = DATA.client_decisions[client];
      told.textContent = `${DATA.clients[client]}: ${signed(d.gain)}${GAIN_UNIT}, 95 % interval ${inRange(d)}; ${ANSWERS[d.answer].words}: ${d.reason}.`;
      mark.setAttribute("y", at(here) - rise / 2);
      mark.setAttribute("visibility", "visible");
    };
    const leave = () => {
      told.textContent = resting;
      mark.setAttribute("visibility", "hidden");
    };
    const open = () => {
      if (here < 0) return;
      chooseClient(rows[here]);
      byId("explorer").scrollIntoView();
    };
    root.addEventListener("pointermove", (event) => {
      const edge = root.getBoundingClientRect();
      const y = ((event.clientY - edge.top) / edge.height) * height;
      if (rows.length && y >= first) point(Math.floor((y - first) / rise));
    });
    root.addEventListener("pointerleave", leave);
    root.addEventListener("blur", leave);
    root.addEventListener("click", open);
    root.addEventListener("keydown", (event) => {
      const move = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Enter") open();
      else if (move !== undefined && rows.length) {
        event.preventDefault();
        point(here + move);
      }
    });
    box.prepend(root);
  });
  box.append(told, lost ? el("p", { class: "hint" }, `${plural(lost, "client")} without a gain left out; Client by client says why.`) : "",
    numbersBelow("Numbers", () => ({
      head: ["client", `gain${METRIC.percent ? ", points" : ""}`, "95 % interval", "p, corrected", "answer"],
      body: order.slice(0, 500).map((c) => {
        const d = DATA.client_decisions[c];
        return [DATA.clients[c], signed(d.gain), inRange(d), short(d.p), d.answer];
      }),
    })));
}

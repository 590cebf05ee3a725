// How the metric is spread over clients, and what each client gains over training alone.
const DOTS = 80; // up to so many clients every one is a dot; above, a histogram

function quantile(sorted, share) {
  const at = share * (sorted.length - 1), low = Math.floor(at);
  return sorted[low] + ((sorted[low + 1] ?? sorted[low]) - sorted[low]) * (at - low);
}
const known = (values) => values.filter(isNumber);

/** From where to where clients are drawn: a share up to all of it, anything else as far as it goes. */
function spreadRange(all) {
  if (!all.length) return [0, TIMES];
  const [low, high] = extent(all), step = 0.05 * TIMES;
  if (METRIC.higher && low >= 0) return [Math.max(0, Math.min(0.95 * TIMES, Math.floor((low - 1e-4 * TIMES) / step) * step)), Math.max(TIMES, high)];
  const pad = (high - low || Math.abs(high) || 1) * 0.04;
  return [Math.max(FLOOR ?? -Infinity, low - pad), high + pad];
}

function startSpread() {
  const box = byId("spread-chart");
  const few = DATA.clients.length <= DOTS;
  byId("spread-caption").textContent = few
    ? `Every dot is a client, by its ${METRIC.word}${METRIC.percent ? " (%)" : ""} at the end; the tick is the mean.`
    : `How many clients have which ${METRIC.word}${METRIC.percent ? " (%)" : ""} at the end; the tick is the mean.`;
  box.classList.add("chart");
  const [floor, ceiling] = spreadRange(METHODS.flatMap((m) => known(m.per_client)).map((v) => TIMES * v));
  const draw = (width) => {
    box.querySelector("svg")?.remove();
    const rows = RANKED.filter((i) => !state.hidden.has(i));
    const narrow = width < 560;
    const left = narrow ? 84 : Math.min(190, 26 + 6.8 * Math.max(6, ...rows.map((i) => Math.min(LABELS[i].length, 22))));
    const right = width - (narrow ? 52 : 170);
    const rise = few ? 44 : 50, top = 24;
    const height = top + rows.length * rise + 26;
    const x = linear([floor, ceiling], [left, right]);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${METRIC.axis} of ${plural(DATA.clients.length, "client")} for each method. The same as numbers below.` });
    for (const v of ticks(floor, ceiling, narrow ? 4 : 8)) {
      root.append(svg("line", { class: "grid", x1: x(v), x2: x(v), y1: top - 8, y2: height - 22 }),
        svg("text", { x: x(v), y: height - 6, "text-anchor": "middle" }, short(v)));
    }
    if (!narrow) root.append(svg("text", { x: width, y: 11, "text-anchor": "end" }, "worst 5 %"), svg("text", { x: width - 88, y: 11, "text-anchor": "end" }, "mean"));
    else root.append(svg("text", { x: width, y: 11, "text-anchor": "end" }, "mean"));
    const bins = Math.max(10, Math.min(40, Math.floor((right - left) / (few ? 9 : 12))));
    const filled = rows.map((i) => {
      const counts = new Array(bins).fill(0);
      for (const v of known(METHODS[i].per_client)) {
        counts[Math.min(bins - 1, Math.max(0, Math.floor(((TIMES * v - floor) / (ceiling - floor)) * bins)))]++;
      }
      return counts;
    });
    const most = Math.max(1, ...filled.flat());
    rows.forEach((i, k) => {
      const base = top + (k + 1) * rise - 6;
      root.append(svg("line", { class: "grid", x1: left, x2: right, y1: base, y2: base }),
        svg("text", { class: "name", x: left - 12, y: base - 4, "text-anchor": "end" }, shorten(LABELS[i], narrow ? 10 : 22)));
      const step = (right - left) / bins;
      if (few) {
        const rising = Math.min(8.4, (rise - 12) / most), size = Math.min(3.9, step / 2.2);
        filled[k].forEach((count, b) => {
          for (let n = 0; n < count; n++) {
            root.append(svg("circle", { cx: left + (b + 0.5) * step, cy: base - 5 - n * rising, r: size, style: `fill:${colour(i)};fill-opacity:.8` }));
          }
        });
      } else {
        let d = `M${left} ${base}`;
        filled[k].forEach((count, b) => {
          const y = base - (count / most) * (rise - 8);
          d += `L${(left + b * step).toFixed(1)} ${y.toFixed(1)}L${(left + (b + 1) * step).toFixed(1)} ${y.toFixed(1)}`;
        });
        root.append(svg("path", { d: `${d}L${right} ${base}Z`, style: `fill:${colour(i)};fill-opacity:.55;stroke:${colour(i)};stroke-width:.8` }));
      }
      const summed = METHODS[i].score;
      if (!summed.mean) return;
      root.append(svg("line", { x1: x(TIMES * meanOf(i)), x2: x(TIMES * meanOf(i)), y1: base - 3, y2: base + 7, style: "stroke:var(--ink);stroke-width:2.2" }),
        svg("text", { class: "name", x: narrow ? width : width - 88, y: base - 4, "text-anchor": "end" }, inMetric(meanOf(i))));
      if (!narrow) root.append(svg("text", { class: "name", x: width, y: base - 4, "text-anchor": "end" }, inMetric(summed.bottom5.mean)));
    });
    box.prepend(root);
  };
  const again = keepDrawn(box, draw);
  when("methods", again);
  box.after(numbersBelow("Numbers", () => ({
    head: ["method", "least", "10 %", "median", "90 %", "largest"],
    body: RANKED.filter((i) => known(METHODS[i].per_client).length).map((i) => {
      const sorted = known(METHODS[i].per_client).sort((a, b) => a - b);
      return [LABELS[i], ...[0, 0.1, 0.5, 0.9, 1].map((q) => inMetric(quantile(sorted, q), 1))];
    }),
  })));
}

// the margin, below which a difference does not matter; without one, a twentieth of the largest gain
const GAIN_STEP = DATA.decision?.margin || Math.max(...METHODS.flatMap((m) => (m.gain || []).map((g) => Math.abs(g ?? 0))), 1e-12) / 20;
function gainColour(value) {
  const size = Math.abs(value) >= 10 * GAIN_STEP ? 3 : Math.abs(value) >= 3 * GAIN_STEP ? 2 : 1;
  return `var(--${value >= 0 ? "gain" : "loss"}${size})`;
}

const GAIN_LEFT = 42;
function gainPanel(i, low, high) {
  const row = METHODS[i];
  const order = row.gain.map((g, c) => c).filter((c) => isNumber(row.gain[c])).sort((a, b) => row.gain[b] - row.gain[a] || a - b);
  const summary = `${row.better_off} better off, ${row.worse_off} worse off`;
  const told = el("p", { class: "told", "aria-live": "polite" }, summary);
  const box = el("div", { class: "chart" });
  let height = 150;
  let at = -1, mark = null, x = null, width = 0;
  const point = (place) => {
    at = place;
    const client = order[place];
    told.textContent = `${DATA.clients[client]}: ${signed(row.gain[client])}${GAIN_UNIT} (${inMetric(row.per_client[client])}${UNIT})`;
    mark.setAttribute("x", x(place));
    mark.setAttribute("visibility", "visible");
  };
  const leave = () => {
    told.textContent = summary;
    mark.setAttribute("visibility", "hidden");
  };
  const open = () => {
    if (at < 0) return;
    chooseClient(order[at]);
    byId("explorer").scrollIntoView();
  };
  keepDrawn(box, (wide) => {
    width = wide;
    box.replaceChildren();
    const step = (width - GAIN_LEFT) / order.length;
    const letters = Math.min(12, Math.max(...order.map((c) => DATA.clients[c].length), 1));
    const flat = step >= 6.5 * letters + 4;
    const names = flat ? 14 : step >= 13 ? 10 + 6 * letters : 0; // room below the bars, where names fit
    height = 150 + names;
    const y = linear([low, high], [144, 8]);
    x = linear([0, order.length], [GAIN_LEFT, width]);
    const bar = Math.max(0.6, step - (order.length > 150 ? 0 : 1));
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img",
      "aria-label": `${row.label}: gain over training alone of ${plural(order.length, "client")}, sorted: ${summary}. Arrow keys read clients, Enter opens one.` });
    for (const v of ticks(TIMES * low, TIMES * high, 4)) {
      root.append(svg("line", { class: v === 0 ? "axis" : "grid", x1: GAIN_LEFT, x2: width, y1: y(v / TIMES), y2: y(v / TIMES) }),
        svg("text", { x: GAIN_LEFT - 6, y: y(v / TIMES) + 4, "text-anchor": "end" }, (v > 0 ? "+" : "") + short(v)));
    }
    const paths = new Map(); // one path per colour: quick with a thousand bars
    order.forEach((client, place) => {
      const value = row.gain[client], ink = gainColour(value), left = x(place).toFixed(2);
      const [from, to] = [y(Math.max(0, value)), y(Math.min(0, value))];
      if (to - from > 0.01) paths.set(ink, (paths.get(ink) || "") + `M${left} ${from.toFixed(1)}h${bar.toFixed(2)}v${(to - from).toFixed(1)}h${(-bar).toFixed(2)}z`);
    });
    for (const [ink, d] of paths) root.append(svg("path", { d, style: `fill:${ink}` }));
    if (names) order.forEach((client, place) => {
      const middle = x(place) + bar / 2, turned = { x: middle + 4, y: 152, transform: `rotate(-90 ${middle + 4} 152)`, "text-anchor": "end" };
      root.append(svg("text", { ...(flat ? { x: middle, y: 160, "text-anchor": "middle" } : turned), style: "font-size:10.5px" }, shorten(DATA.clients[client], 12)));
    });
    mark = svg("rect", { y: 4, height: 142, width: Math.max(bar, 2), visibility: "hidden", style: "fill:var(--ink);fill-opacity:.14" });
    root.append(mark);
    root.addEventListener("pointermove", (event) => {
      const edge = root.getBoundingClientRect();
      const where = (((event.clientX - edge.left) / edge.width) * width - GAIN_LEFT) / (width - GAIN_LEFT);
      point(Math.min(order.length - 1, Math.max(0, Math.floor(where * order.length))));
    });
    root.addEventListener("pointerleave", leave);
    root.addEventListener("blur", leave);
    root.addEventListener("click", open);
    root.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Enter") open();
      else if (move !== undefined) {
        event.preventDefault();
        point(Math.min(order.length - 1, Math.max(0, at + move)));
      }
    });
    box.append(root);
  });
  const head = el("h3", {}, el("span", { class: "swatch", style: `background:${colour(i)}` }), row.label);
  return el("div", { class: "panel", "data-method": i }, head, told, box, numbersBelow("Numbers", () => ({
    head: ["client", `gain${METRIC.percent ? ", points" : ""}`, METRIC.axis, "alone"],
    body: order.slice(0, 500).map((c) => [DATA.clients[c], signed(row.gain[c]), inMetric(row.per_client[c]), inMetric(METHODS[ALONE].per_client[c])]),
  })));
}

function startGain() {
  if (ALONE === null || METHODS.length < 2) return;
  const compared = RANKED.filter((i) => i !== ALONE);
  const [low, high] = extent(compared.flatMap((i) => METHODS[i].gain));
  const pad = Math.max(0.01 * (METRIC.percent ? 1 : Math.abs(high - low)), (high - low) * 0.05) || 0.01;
  const boxes = byId("gain-charts");
  const draw = () => boxes.replaceChildren(...compared.filter((i) => !state.hidden.has(i))
    .map((i) => gainPanel(i, Math.min(0, low) - pad, Math.max(0, high) + pad)));
  draw();
  when("methods", draw);
}

// One client at a time: its class mix, its curves, its mistakes, whom it learnt from.
const CLASSES = DATA.classes;
const counts = unpack(DATA.class_counts);
const share = counts && DATA.clients.map((_, c) => {
  const own = CLASSES.map((_, k) => counts.at(c * CLASSES.length + k));
  const sum = own.reduce((a, b) => a + b, 0) || 1;
  return own.map((v) => v / sum);
});
const federationMix = counts && (() => {
  const sums = CLASSES.map((_, k) => DATA.clients.reduce((a, _, c) => a + counts.at(c * CLASSES.length + k), 0));
  const all = sums.reduce((a, b) => a + b, 0) || 1;
  return sums.map((v) => v / all);
})();
/** How much of two clients' class mixes is the same: 0 to 1. */
const overlap = (a, b) => share[a].reduce((sum, v, k) => sum + Math.min(v, share[b][k]), 0);
/** A client's main classes in words. */
function mostly(client) {
  if (!share) return "";
  const top = share[client].map((v, k) => [v, k]).filter(([v]) => v > 0.1).sort((a, b) => b[0] - a[0]).slice(0, 3);
  return top.length ? `mostly ${top.map(([, k]) => CLASSES[k]).join(", ")}` : "";
}

/** The methods that are best for a client, and what they reach. */
function bestFor(client) {
  const values = METHODS.map((m) => m.per_client[client]).filter(isNumber);
  if (!values.length) return { top: null, best: [] };
  const top = METRIC.higher ? Math.max(...values) : Math.min(...values);
  return { top, best: RANKED.filter((i) => m9(METHODS[i].per_client[client], top)) };
}
const m9 = (a, b) => isNumber(a) && Math.abs(a - b) < 1e-9;

function bestInWords(client) {
  const { top, best } = bestFor(client);
  if (top === null && DATA.rows.test[client] === null) return "This site keeps its scores and its numbers of rows to itself.";
  if (top === null) return DATA.rows.test[client] ? `It has no ${METRIC.word} with any method: ${whyUndefined(METRIC.name, client)}.` : "It has no test rows, so no method can be judged here.";
  const alone = ALONE === null ? null : METHODS[ALONE].per_client[client];
  const reached = `${inMetric(top)}${UNIT}`;
  const against = isNumber(alone) ? `, ${signed(UP * (top - alone))}${GAIN_UNIT} against training alone` : "";
  if (METHODS.length === 1) return `${LABELS[0]} has ${inMetric(top)}${UNIT} (${METRIC.word}) here.`;
  const names = best.length === METHODS.length ? "All methods" : joined(best.map((i) => LABELS[i]));
  if (best.length > 1) return `${names} are equally good here: ${reached}${against && !best.includes(ALONE) ? against : ""}.`;
  if (best[0] === ALONE) return `Training alone is best here: ${reached}.`;
  return `${names} is best here: ${reached}${against}.`;
}

function barRow(name, ink, width, text, more) {
  return el("tr", {}, el("th", { scope: "row" }, name),
    el("td", { class: "track" }, el("div", { class: "bar", "aria-hidden": "true" }, el("i", { style: `width:${100 * width}%;background:${ink};border-radius:2px` }))),
    el("td", { class: "number" }, text), more === undefined ? null : el("td", { class: "number spread" }, more));
}

function scoreCard(client) {
  const value = (i) => METHODS[i].per_client[client];
  const rows = RANKED.filter((i) => isNumber(value(i))).sort((a, b) => UP * (value(b) - value(a)));
  if (!rows.length) return null;
  const most = METRIC.percent || METRIC.most === 1 ? 1 : Math.max(...rows.map((i) => value(i)), 1e-12);
  const gain = (i) => (ALONE === null ? undefined : i === ALONE ? "" : signed(METHODS[i].gain[client]));
  const gained = ALONE === null ? "" : `; grey: against training alone, + is better`;
  return el("figure", {}, el("h4", {}, `${METRIC.axis} by method`),
    el("figcaption", {}, `at the end${METRIC.higher ? "" : "; less is better"}${gained}`),
    el("table", { class: "bars" }, el("tbody", {}, rows.map((i) => barRow(LABELS[i], colour(i), Math.max(0, value(i) / most), inMetric(value(i)), gain(i))))));
}

const metricsShown = DATA.all_metrics.names;
/** Why a client has no value of a metric. */
const whyUndefined = (name, client) => (DATA.all_metrics.undefined[name] || {})[client] || "it has none";

/** All metrics of a client, with every method. */
function metricsCard(client) {
  if (metricsShown.length < 2) return null;
  const value = (i, name) => DATA.all_metrics.values[i][name][client];
  const columns = RANKED;
  const row = (m) => {
    const known = columns.map((i) => value(i, m.name)).filter(isNumber);
    const top = m.higher === null || known.length < 2 ? null : Math[m.higher ? "max" : "min"](...known);
    const telling = known.filter((v) => v === top).length <= known.length / 2;
    return el("tr", { class: m.name === METRIC.name ? "judged" : null }, el("th", { scope: "row" }, m.title + (m.percent ? " (%)" : ""), el("span", { class: "spread" }, m.higher === false ? " ↓" : "")),
      columns.map((i) => {
        const v = value(i, m.name);
        if (!isNumber(v)) return el("td", { class: "number", title: whyUndefined(m.name, client) }, "–");
        return el("td", { class: telling && v === top ? "number best" : "number" }, inWords(m.percent ? 100 * v : v, m.digits));
      }));
  };
  return el("figure", { class: "whole" }, el("h4", {}, "All metrics"),
    el("figcaption", {}, "on its test rows at the end; bold name: what the verdict goes by; ↓: less is better; –: not defined here, point at it for the reason"),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "All metrics of this client" },
      el("table", { class: "metrics" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "metric"), columns.map((i) => el("th", { scope: "col", class: "number" }, i === ALONE ? "alone" : LABELS[i])))),
        el("tbody", {}, metricsShown.map(row)))));
}

/** What may be said of this client alone, from the verdict. */
function clientAnswer(client) {
  const found = DATA.client_decisions?.[client];
  if (!found) return "";
  if (found.gain === null) return `${DATA.decision.method} against training alone: ${ANSWERS[found.answer].words}, as ${found.reason}.`;
  return `${DATA.decision.method} against training alone: ${ANSWERS[found.answer].words} (${signed(found.gain)}${GAIN_UNIT}, 95 % interval ${fromTo(found.interval)}).`;
}

function mixCard(client) {
  if (!share) return el("figure", {}, el("h4", {}, "Class mix"), el("p", { class: "empty" }, "These runs kept no class counts."));
  let order = CLASSES.map((_, k) => k);
  if (order.length > 24) order = order.sort((a, b) => share[client][b] - share[client][a]).slice(0, 24);
  const most = Math.max(...order.map((k) => Math.max(share[client][k], federationMix[k])));
  const box = el("div", { class: "chart" });
  keepDrawn(box, (width) => {
    const height = 190, bottom = height - 22, step = (width - 34) / order.length;
    const y = linear([0, most], [bottom, 8]);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Share of each class, this client beside the federation. The same as numbers below." });
    for (const v of ticks(0, 100 * most, 4)) {
      root.append(svg("line", { class: v ? "grid" : "axis", x1: 34, x2: width, y1: y(v / 100), y2: y(v / 100) }), svg("text", { x: 28, y: y(v / 100) + 4, "text-anchor": "end" }, short(v)));
    }
    order.forEach((k, place) => {
      const left = 34 + place * step;
      const bar = (value, from, wide, ink) => svg("rect", { x: left + from * step, width: wide * step, y: y(value), height: Math.max(0, bottom - y(value)), style: `fill:${ink}` });
      root.append(bar(share[client][k], 0.12, 0.42, "var(--m1)"), bar(federationMix[k], 0.56, 0.32, "var(--faint)"));
      const letters = Math.max(1, Math.floor(step / 6.5));
      root.append(svg("text", { x: left + step / 2, y: height - 6, "text-anchor": "middle" }, svg("title", {}, CLASSES[k]), shorten(CLASSES[k], letters)));
    });
    box.replaceChildren(root);
  });
  return el("figure", {}, el("h4", {}, "Class mix"),
    el("figcaption", {}, el("span", { class: "swatch", style: "background:var(--m1);margin-right:.3rem" }), "this client, ", el("span", { class: "swatch", style: "background:var(--faint);margin:0 .3rem" }), "whole federation; % of rows",
      order.length < CLASSES.length ? `; its ${order.length} main classes of ${CLASSES.length}` : ""),
    box, numbersBelow("Numbers", () => ({
      head: ["class", "rows", "% of rows", "% in federation"],
      body: order.map((k) => [CLASSES[k], String(counts.at(client * CLASSES.length + k)), perCent(share[client][k]), perCent(federationMix[k])]),
    })));
}

function curvesCard(client) {
  const box = el("div", {});
  const series = () => shown().map((i) => {
    const { round, values } = DATA.client_curves[i], found = unpack(values), count = round.length;
    const y = round.map((_, k) => found.at(client * count + k)).map((v) => (isNumber(v) ? TIMES * v : null));
    return { label: LABELS[i], colour: colour(i), dash: dash(i), x: round, y };
  });
  clientCurvesAgain = lineChart(box, series, { label: `This client's ${METRIC.word} by round.`, height: 220, floor: FLOOR, ceiling: CEILING, less: !METRIC.higher, format: onAxis });
  return el("figure", {}, el("h4", {}, `${METRIC.axis} by round`), el("figcaption", {}, `on its test rows${METHODS.some((m) => m.seeds.length > 1) ? ", mean over seeds" : ""}`), box,
    numbersBelow("Numbers", () => {
      const found = series(), rounds = [...new Set(found.flatMap((s) => s.x))].sort((a, b) => a - b);
      return { head: ["round", ...found.map((s) => s.label)], body: rounds.map((r) => [String(r), ...found.map((s) => inWords(s.y[s.x.indexOf(r)], METRIC.digits))]) };
    }));
}
let clientCurvesAgain = null;
let confusionOf = null; // the method whose mistakes are shown; stays when the client changes

function confusionTable(client, method) {
  const kept = DATA.confusion[method];
  const start = unpack(kept.start), cells = unpack(kept.cells);
  const found = new Map(), used = new Map();
  for (let k = start.at(client); k < start.at(client + 1); k++) {
    const [truth, said, count] = [cells.at(3 * k), cells.at(3 * k + 1), cells.at(3 * k + 2)];
    found.set(`${truth},${said}`, count);
    for (const c of [truth, said]) used.set(c, (used.get(c) || 0) + count);
  }
  const classes = [...used].sort((a, b) => b[1] - a[1]).slice(0, 24).map(([c]) => c).sort((a, b) => a - b);
  if (!classes.length) return el("p", { class: "empty" }, "It has no test rows.");
  const most = Math.max(...found.values());
  const name = (c) => CLASSES[c] ?? String(c);
  const cell = (truth, said) => {
    const count = found.get(`${truth},${said}`) || 0;
    const rgb = heat(0.9 * Math.sqrt(count / most), false);
    return el("td", { class: truth === said ? "right" : null, style: count ? `background:rgb(${rgb});color:${inkOn(rgb)}` : null }, count ? String(count) : "");
  };
  const rest = used.size - classes.length;
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Confusion matrix" },
    rest > 0 ? el("p", { class: "hint" }, `${plural(rest, "rarer class", "rarer classes")} left out.`) : null,
    el("table", { class: "matrix" },
      el("thead", {}, el("tr", {}, el("th", {}), classes.map((c) => el("th", { scope: "col", title: name(c) }, shorten(name(c), 8))))),
      el("tbody", {}, classes.map((truth) => el("tr", {}, el("th", { scope: "row", title: name(truth) }, shorten(name(truth), 14)), classes.map((said) => cell(truth, said)))))));
}

function confusionCard(client) {
  const kept = RANKED.filter((i) => DATA.confusion[i]);
  if (!kept.length) return el("figure", {}, el("h4", {}, "Confusion"), el("p", { class: "empty" }, "No confusion counts: a run keeps them at its end, and too many are left out of a page."));
  if (!kept.includes(confusionOf)) confusionOf = kept.includes(bestFor(client).best[0]) ? bestFor(client).best[0] : kept[0];
  const place = el("div", {}, confusionTable(client, confusionOf));
  const choice = el("select", { id: "confusion-method", "aria-label": "Whose mistakes" }, kept.map((i) => el("option", { value: i, selected: i === confusionOf }, LABELS[i])));
  choice.addEventListener("change", () => {
    confusionOf = Number(choice.value);
    place.replaceChildren(confusionTable(client, confusionOf));
  });
  const over = DATA.confusion[confusionOf].seeds;
  return el("figure", {}, el("h4", {}, "What its model takes rows for ", choice),
    el("figcaption", {}, `Rows: true class; columns: what the model says. Counts of test rows${over > 1 ? `, over ${over} seeds` : ""}.`), place);
}

function donorCards(client) {
  return DATA.learnt.flatMap(({ method, records }) => records.filter((r) => r.kind === "between").map((record) => {
    const who = record.donors[client], weight = record.donor_weight[client], own = record.own_weight[client];
    const most = Math.max(...weight.map((w) => Math.abs(w ?? 0)), 1e-12);
    return el("figure", {}, el("h4", {}, `Whom it learnt from: ${LABELS[method]}`),
      el("figcaption", {}, `${recordWords(record).donors}${record.centre === 0 && weight.every((w) => !(w > 0)) ? " No other model helped it in sum." : ""} Own weight ${short(own)}.${share ? " Grey: how much of the class mixes is the same." : ""}`),
      el("table", { class: "bars" }, el("tbody", {}, who.map((other, k) => barRow(
        el("button", { type: "button", class: "quiet", title: DATA.clients[other], onclick: () => chooseClient(other) }, DATA.clients[other]),
        weight[k] < 0 ? "var(--loss2)" : colour(method), Math.abs(weight[k] ?? 0) / most, short(weight[k]), share ? `${perCent(overlap(client, other), 0)} %` : undefined)))));
  }));
}

function showClient() {
  const client = state.client;
  const rows = DATA.rows;
  const held = DATA.held_out.includes(client) ? " It never took part in training." : "";
  const network = DATA.networks[client] ? ` Its network: ${DATA.networks[client]}.` : "";
  byId("client-view").replaceChildren(
    el("div", { class: "client-head" }, el("h3", {}, DATA.clients[client]),
      el("p", { class: "lead" }, bestInWords(client)),
      clientAnswer(client) ? el("p", {}, clientAnswer(client)) : null,
      rows.train[client] === null ? null : el("p", { class: "hint" }, `${plural(rows.train[client], "row")} to train on, ${rows.val[client]} to validate, ${rows.test[client]} to test${share ? `; ${mostly(client) || "no main class"}` : ""}.${network}${held}`)),
    el("div", { class: "cards" }, scoreCard(client), CLASSES.length ? mixCard(client) : null, curvesCard(client), CLASSES.length ? confusionCard(client) : null, metricsCard(client), ...donorCards(client)));
}

function chooseClient(client) {
  state.client = client;
  tell("client");
}

/** An order by some value of clients; those without one come last. */
const byValue = (value, sign) => (a, b) => {
  const [p, q] = [value(a), value(b)];
  if (!isNumber(p) || !isNumber(q)) return isNumber(q) - isNumber(p);
  return sign * (p - q);
};

function startExplorer() {
  const search = byId("client-search"), sort = byId("client-sort"), list = byId("client-list");
  const best = RANKED.find((i) => i !== ALONE) ?? RANKED[0];
  const orders = {
    name: ["as numbered", (a, b) => a - b],
    low: [`worst first (${LABELS[best]})`, byValue((c) => METHODS[best].per_client[c], UP)],
    rows: ["fewest training rows first", (a, b) => DATA.rows.train[a] - DATA.rows.train[b]],
  };
  if (ALONE !== null && best !== ALONE) {
    orders.gain = [`largest gain first (${LABELS[best]})`, byValue((c) => METHODS[best].gain[c], -1)];
    orders.loss = [`largest loss first (${LABELS[best]})`, byValue((c) => METHODS[best].gain[c], 1)];
  }
  for (const [name, [words]] of Object.entries(orders)) sort.append(el("option", { value: name }, words));
  const refill = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = DATA.clients.map((_, c) => c).filter((c) => DATA.clients[c].toLowerCase().includes(wanted)).sort(orders[sort.value][1]);
    list.replaceChildren(...found.map((c) => el("option", { value: c, selected: c === state.client }, DATA.clients[c])));
    byId("client-count").textContent = wanted ? `${plural(found.length, "client")} of ${DATA.clients.length}` : plural(found.length, "client");
    return found;
  };
  search.addEventListener("input", () => {
    const found = refill();
    if (found.length && !found.includes(state.client)) chooseClient(found[0]);
  });
  sort.addEventListener("change", refill);
  list.addEventListener("change", () => chooseClient(Number(list.value)));
  refill();
  when("client", () => {
    if (![...list.options].some((option) => Number(option.value) === state.client)) {
      search.value = "";
      refill();
    }
    list.value = String(state.client);
    showClient();
  });
  when("theme", showClient);
  when("methods", () => clientCurvesAgain?.());
  showClient();
}

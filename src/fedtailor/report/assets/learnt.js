// What methods noted while they learnt: who learns from whom, block by block and round by round.
const WORDS = {
  affinity: {
    title: "Affinity P: who helps whom",
    text: "Row: the client that learns. Column: whose model it tried. Positive: that model lowered its validation loss, so it is downloaded again; negative: it did harm.",
    donors: "Largest affinity after the last round.",
  },
  aggregation_weights: {
    title: "Aggregation weights, block by block",
    text: "Row: the client whose model is put together. Column: whose block goes into it, and with what share. A row sums to 1.",
    donors: "Largest share of its model, mean over blocks, after the last round.",
  },
  mix_degree: { title: "Mixing degree λ by block", text: "How much of the global block is taken over at download: 0 keeps the own block, 1 takes the global one. Mean over clients." },
  mix_factor: { title: "Mix factor μ", text: "Sets how steeply mixing changes from block to block. Mean over clients; the band holds the middle 80 % of them." },
  global_accuracy: { title: "Accuracy that mixing is steered by", text: "Of the global model, on the clients' validation rows." },
  ala_weight: { title: "Weights of adaptive local aggregation", text: "How much of the global model's head the client takes over: 1 all, 0 nothing. Mean over a block's weights and over clients; the band holds the middle 80 % of clients." },
  ala_loss: { title: "Loss at the end of adaptive aggregation", text: "On the sampled training rows. Mean over clients; the band holds the middle 80 %." },
  ala_epochs: { title: "Passes of adaptive aggregation", text: "Many at first, until the loss settles, then one. Mean over clients." },
  score: { title: "Personalisation scores by block", text: "How far the client's block has moved from the global one, relative to the others (mean 1). Large scores stay personal. Mean over clients." },
  personal_block: { title: "Blocks kept personal", text: "Share of clients that keep the block for themselves." },
};
const ABOUT_DONORS = "Largest weights after the last round.";
function recordWords(record) {
  return { title: record.name.replaceAll("_", " ").replaceAll("/", ", "), text: "", donors: ABOUT_DONORS, ...WORDS[record.name] };
}

/** Who stands behind row or column `k` of a map: one client, or several that were averaged. */
function membersOf(record, k, order) {
  const count = DATA.clients.length;
  const from = Math.round((k * count) / record.width), to = Math.round(((k + 1) * count) / record.width);
  return order.slice(from, to);
}
function memberWords(members) {
  const one = members[0];
  const extra = mostly(one);
  if (members.length === 1) return DATA.clients[one] + (extra ? ` (${extra})` : "");
  return `${plural(members.length, "client")}, ${DATA.clients[one]} … ${DATA.clients[members.at(-1)]}${extra ? ` (${extra})` : ""}`;
}

function betweenView(method, record) {
  const maps = unpack(record.maps), width = record.width, blocks = record.blocks.length;
  const centre = record.centre, whole = width === DATA.clients.length;
  const canvas = el("canvas", { width, height: width, tabindex: 0, role: "img",
    "aria-label": `${recordWords(record).title} of ${LABELS[method]}: a map of ${width} by ${width} cells. Arrow keys read cells.` });
  const cursor = el("div", { class: "cursor", hidden: true });
  const seen = el("p", { class: "seen", "aria-live": "polite" }, "Point at a cell to read it.");
  const uid = `map-${method}-${record.name.replace(/\W/g, "-")}`;
  const slider = el("input", { type: "range", id: `${uid}-round`, min: 0, max: record.rounds.length - 1, value: record.rounds.length - 1, step: 1, class: "round-slider" });
  const roundTold = el("output", { for: slider.id });
  const block = el("select", { id: `${uid}-block` }, blocks > 1 ? el("option", { value: -1 }, "mean of all blocks") : null, record.blocks.map((name, b) => el("option", { value: b }, name)));
  const clustered = el("input", { type: "checkbox", id: `${uid}-order`, checked: true });
  let place = [0, 0];
  // position in the stored map (cluster order) of what is drawn at k
  const rank = whole ? DATA.order.map((_, k) => k).sort((a, b) => DATA.order[a] - DATA.order[b]) : null;
  const stored = (k) => (clustered.checked || !whole ? k : rank[k]);
  const value = (row, column) => {
    const at = (b) => ((Number(slider.value) * blocks + b) * width + stored(row)) * width + stored(column);
    const b = blocks > 1 ? Number(block.value) : 0;
    if (b >= 0) return maps.at(at(b));
    let sum = 0;
    for (let k = 0; k < blocks; k++) sum += maps.at(at(k)) ?? 0;
    return sum / blocks;
  };
  const names = whole && width <= 24 ? el("div", { class: "names", "aria-hidden": "true" }) : null;
  const draw = () => {
    names?.replaceChildren(...DATA.order.map((_, k) => el("span", {}, shorten(DATA.clients[DATA.order[stored(k)]], 14))));
    const pen = canvas.getContext("2d"), image = pen.createImageData(width, width), colours = heatTable(centre !== null);
    for (let row = 0, k = 0; row < width; row++) {
      for (let column = 0; column < width; column++, k += 4) {
        const found = value(row, column);
        if (!isNumber(found)) continue;
        const rgb = colours[Math.max(0, Math.min(254, Math.round(254 * onScale(found, maps.low, maps.high, centre))))];
        image.data[k] = rgb[0];
        image.data[k + 1] = rgb[1];
        image.data[k + 2] = rgb[2];
        image.data[k + 3] = 255;
      }
    }
    pen.putImageData(image, 0, 0);
    roundTold.textContent = String(record.rounds[Number(slider.value)]);
    slider.setAttribute("aria-valuetext", `round ${roundTold.textContent}`);
    canvas.dataset.shown = roundTold.textContent;
  };
  const point = (row, column) => {
    place = [row, column].map((v) => Math.min(width - 1, Math.max(0, v)));
    const size = canvas.clientWidth / width;
    cursor.hidden = false;
    const edge = Math.max(size, 5);
    cursor.style.cssText = `left:${1 + (place[1] + 0.5) * size - edge / 2}px;top:${1 + (place[0] + 0.5) * size - edge / 2}px;width:${edge}px;height:${edge}px`;
    const [learner, giver] = place.map((k) => memberWords(membersOf(record, stored(k), DATA.order)));
    const found = value(...place);
    const edgeSign = found >= maps.high - 1e-12 ? "≥ " : found <= maps.low + 1e-12 ? "≤ " : "";
    seen.textContent = `${learner} from ${giver}: ${edgeSign}${short(found)}`;
  };
  const leave = () => (cursor.hidden = true);
  canvas.addEventListener("pointermove", (event) => {
    const edge = canvas.getBoundingClientRect();
    point(Math.floor(((event.clientY - edge.top) / edge.height) * width), Math.floor(((event.clientX - edge.left) / edge.width) * width));
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("click", () => {
    chooseClient(membersOf(record, stored(place[0]), DATA.order)[0]);
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    point(place[0] + move[0], place[1] + move[1]);
  });
  slider.addEventListener("input", draw);
  block.addEventListener("change", draw);
  clustered.addEventListener("change", draw);
  when("theme", draw);
  draw();
  const words = recordWords(record);
  const merged = whole ? "" : ` With ${plural(DATA.clients.length, "client")}, a cell is the mean over about ${Math.round((DATA.clients.length / width) ** 2)} pairs of neighbours.`;
  return el("div", { class: "heat", "data-record": record.name }, el("div", { class: "stage" }, names, el("div", { class: "field" }, canvas, cursor)), el("div", { class: "side" },
    el("h4", {}, words.title), el("p", {}, words.text + (centre > 0 ? " What has no colour is an equal share." : "") + merged),
    record.rounds.length > 1 ? el("div", {}, el("label", { for: slider.id }, "Round "), roundTold, slider) : el("p", {}, `After round ${record.rounds[0]}.`),
    blocks > 1 ? el("div", {}, el("label", { for: block.id }, "Block "), block) : null,
    whole && share ? el("div", {}, clustered, el("label", { for: clustered.id }, " clients with like class mixes side by side")) : null,
    heatScale(maps.low, maps.high, centre), seen));
}

function blocksView(method, record) {
  const words = recordWords(record);
  const [least, most] = extent(record.mid.flat());
  const low = Math.min(0, least), high = Math.max(most, low + 1e-9), centre = low < 0 && high > 0 ? 0 : null;
  const count = record.blocks.length, rounds = record.rounds.length, edge = Math.min(30, Math.max(9, 300 / count));
  const canvas = el("canvas", { width: rounds, height: count, style: `height:${count * edge}px`, role: "img", "aria-label": `${words.title} by round. The same as numbers below.` });
  const seen = el("p", { class: "hint seen" }, "Point at a cell to read it.");
  const draw = () => {
    const pen = canvas.getContext("2d");
    record.mid.forEach((row, b) => row.forEach((v, r) => {
      if (!isNumber(v)) return;
      pen.fillStyle = `rgb(${heat(onScale(v, low, high, centre), centre !== null)})`;
      pen.fillRect(r, b, 1, 1);
    }));
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const b = Math.min(count - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * count)));
    const r = Math.min(rounds - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * rounds)));
    seen.textContent = `${record.blocks[b]}, round ${record.rounds[r]}: ${short(record.mid[b][r])} (middle 80 % of clients: ${short(record.low[b][r])} to ${short(record.high[b][r])})`;
  });
  draw();
  when("theme", draw);
  const step = Math.max(1, Math.ceil(rounds / 25));
  return el("figure", { "data-record": record.name }, el("h4", {}, words.title), el("figcaption", {}, words.text),
    el("div", { class: "blocks" }, el("div", { class: "names" }, record.blocks.map((name) => el("span", {}, shorten(name, 24)))), canvas,
      el("div", { class: "ends" }, el("span", {}, `round ${record.rounds[0]}`), el("span", {}, `round ${record.rounds.at(-1)}`))),
    heatScale(low, high, centre), seen,
    numbersBelow("Numbers", () => ({
      head: ["round", ...record.blocks],
      body: record.rounds.map((r, k) => [k, String(r)]).filter(([k]) => k % step === 0 || k === rounds - 1).map(([k, r]) => [r, ...record.mid.map((row) => short(row[k]))]),
    })));
}

function seriesView(method, record) {
  const words = recordWords(record);
  const box = el("div", {});
  const figure = el("figure", { "data-record": record.name }, el("h4", {}, words.title), el("figcaption", {}, words.text), box,
    numbersBelow("Numbers", () => ({
      head: ["round", "mean", ...(record.low ? ["10 %", "90 %"] : [])],
      body: record.rounds.map((r, k) => [String(r), short(record.mid[0][k]), ...(record.low ? [short(record.low[0][k]), short(record.high[0][k])] : [])]),
    })));
  lineChart(box, () => [{ label: LABELS[method], colour: colour(method), x: record.rounds, y: record.mid[0], low: record.low?.[0], high: record.high?.[0] }],
    { label: `${words.title} by round.`, height: 200 });
  return figure;
}

function startLearnt() {
  const place = byId("learnt-view");
  if (!place) return;
  for (const { method, records } of DATA.learnt) {
    const maps = records.filter((r) => r.kind === "between").map((r) => betweenView(method, r));
    const weight = (r) => (Object.keys(WORDS).indexOf(r.name) + 99) % 99; // unknown records come last
    const rest = records.filter((r) => r.kind !== "between").sort((a, b) => weight(a) - weight(b)).map((r) => (r.kind === "blocks" ? blocksView : seriesView)(method, r));
    const seeds = METHODS[method].seeds;
    place.append(el("div", { class: "learnt-method" },
      el("h3", {}, el("span", { class: "swatch", style: `background:${colour(method)}` }), LABELS[method], seeds.length > 1 ? el("span", { class: "hint" }, ` seed ${seeds[0]}`) : null),
      ...maps, rest.length ? el("div", { class: "pair" }, ...rest) : null));
  }
}

// Losses around models: contour maps, the line between two models, and a model's way over rounds.
const ROWS_TOLD = { own: "the client's own test rows", all: "all clients' test rows" };
const MODEL_TOLD = { global: "Global model", personal: "Personal model" };
const LEVELS = 10;
const accuracyTold = (value) => (isNumber(value) ? `, accuracy ${perCent(value)} %` : "");

/** Pieces of the lines on which a surface has some value, in places of the grid. */
function contour(values, level) {
  const pieces = [];
  const cut = (p, q) => {
    const share = (level - p.v) / (q.v - p.v);
    return [p.x + (q.x - p.x) * share, p.y + (q.y - p.y) * share];
  };
  for (let i = 0; i + 1 < values.length; i++) {
    for (let j = 0; j + 1 < values[i].length; j++) {
      const corners = [[j, i], [j + 1, i], [j + 1, i + 1], [j, i + 1]].map(([x, y]) => ({ x, y, v: values[y][x] }));
      if (!corners.every((c) => isNumber(c.v))) continue;
      const ends = [];
      corners.forEach((p, k) => {
        const q = corners[(k + 1) % 4];
        if (p.v < level !== q.v < level) ends.push(cut(p, q));
      });
      for (let k = 0; k + 1 < ends.length; k += 2) pieces.push([ends[k], ends[k + 1]]);
    }
  }
  return pieces;
}

/** A surface between its grid's points. */
function between(values, x, y) {
  const i = Math.min(values.length - 2, Math.floor(y)), j = Math.min(values[0].length - 2, Math.floor(x));
  const a = x - j, b = y - i;
  const corners = [values[i][j], values[i][j + 1], values[i + 1][j], values[i + 1][j + 1]];
  if (!corners.every(isNumber)) return null;
  return corners[0] * (1 - a) * (1 - b) + corners[1] * a * (1 - b) + corners[2] * (1 - a) * b + corners[3] * a * b;
}

/** The range of losses on a logarithmic scale; a loss of 0 has no logarithm. */
function lossRange(surfaces) {
  const [least, most] = extent(surfaces.flat(2));
  const low = Math.max(least, 1e-4);
  return [low, Math.max(most, low * 1.01)];
}

/**
 * A contour map. options: x, y (the axes' values), loss (rows of y), range ([low, high]), xName, yName,
 * label (for screen readers), told (row, column) -> words, over (pen, x, y): draws on top, pale.
 */
function contourMap(options) {
  const { x: xs, y: ys, range: [low, high] } = options;
  const logs = options.loss.map((row) => row.map((v) => (isNumber(v) ? Math.log(Math.max(v, low)) : null)));
  const fine = 4, wide = (xs.length - 1) * fine + 1, tall = (ys.length - 1) * fine + 1;
  const canvas = el("canvas", { width: wide, height: tall, "aria-hidden": "true" });
  const seen = el("p", { class: "hint seen", "aria-live": "polite" }, "Point at the map, or focus it and use the arrow keys, to read values.");
  const box = el("div", { class: `contours${options.over ? " pale" : ""}` }, canvas);
  let place = [Math.floor(ys.length / 2), Math.floor(xs.length / 2)];

  const paint = () => {
    const pen = canvas.getContext("2d"), image = pen.createImageData(wide, tall), colours = heatTable(false);
    for (let row = 0, k = 0; row < tall; row++) {
      for (let column = 0; column < wide; column++, k += 4) {
        const found = between(logs, column / fine, (tall - 1 - row) / fine); // up is up
        if (found === null) continue;
        const share = onScale(found, Math.log(low), Math.log(high), null);
        const rgb = colours[Math.max(0, Math.min(254, Math.round(254 * share)))];
        image.data.set([...rgb, 255], k);
      }
    }
    pen.putImageData(image, 0, 0);
  };

  const draw = (width) => {
    box.querySelector("svg")?.remove();
    const side = Math.min(width - 62, 430), frame = { left: 50, top: 8, right: 50 + side, bottom: 8 + side };
    const height = frame.bottom + 36;
    canvas.style.cssText = `left:${frame.left}px;top:${frame.top}px;width:${side}px;height:${side}px`;
    const x = linear([xs[0], xs.at(-1)], [frame.left, frame.right]), y = linear([ys[0], ys.at(-1)], [frame.bottom, frame.top]);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
      "aria-label": `${options.label} Arrow keys read values.` });
    const across = linear([0, xs.length - 1], [frame.left, frame.right]), up = linear([0, ys.length - 1], [frame.bottom, frame.top]);
    for (let k = 1; k < LEVELS; k++) {
      const level = Math.log(low) + ((Math.log(high) - Math.log(low)) * k) / LEVELS;
      const lines = contour(logs, level).map((piece) => path(piece.map(([a, b]) => [across(a), up(b)]))).join("");
      if (lines) root.append(svg("path", { class: "contour", d: lines }));
    }
    root.append(svg("rect", { class: "edge", x: frame.left, y: frame.top, width: side, height: side }));
    for (const v of ticks(xs[0], xs.at(-1), 5)) root.append(svg("text", { x: x(v), y: frame.bottom + 15, "text-anchor": "middle" }, short(v)));
    for (const v of ticks(ys[0], ys.at(-1), 5)) root.append(svg("text", { x: frame.left - 6, y: y(v) + 4, "text-anchor": "end" }, short(v)));
    root.append(svg("text", { x: frame.right, y: frame.bottom + 31, "text-anchor": "end" }, options.xName));
    root.append(svg("text", { transform: `translate(12 ${frame.top}) rotate(-90)`, "text-anchor": "end" }, options.yName));
    if (options.over) options.over(root, x, y);
    else root.append(svg("circle", { class: "middle", cx: x(0), cy: y(0), r: 4 }));
    const cursor = svg("circle", { class: "spot", r: 6, visibility: "hidden" });
    root.append(cursor);
    const point = (row, column) => {
      place = [Math.min(ys.length - 1, Math.max(0, row)), Math.min(xs.length - 1, Math.max(0, column))];
      cursor.setAttribute("cx", x(xs[place[1]]));
      cursor.setAttribute("cy", y(ys[place[0]]));
      cursor.setAttribute("visibility", "visible");
      seen.textContent = options.told(...place);
    };
    root.addEventListener("pointermove", (event) => {
      const edge = root.getBoundingClientRect();
      const inside = (event.clientX - edge.left) * (width / edge.width), down = (event.clientY - edge.top) * (height / edge.height);
      point(Math.round(((frame.bottom - down) / side) * (ys.length - 1)), Math.round(((inside - frame.left) / side) * (xs.length - 1)));
    });
    const hide = () => cursor.setAttribute("visibility", "hidden");
    root.addEventListener("pointerleave", hide);
    root.addEventListener("blur", hide);
    root.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      point(place[0] + move[0], place[1] + move[1]);
    });
    box.append(root);
  };
  paint();
  when("theme", () => canvas.isConnected && paint());
  keepDrawn(box, draw);
  return el("div", {}, box, seen);
}

// --- landscape ---
function surfaceNumbers(axis, found) {
  const few = axis.map((_, k) => k).filter((k) => k % Math.max(1, Math.ceil(axis.length / 11)) === 0);
  return numbersBelow("Losses as numbers", () => ({
    head: ["second \\ first", ...few.map((j) => short(axis[j]))],
    body: few.slice().reverse().map((i) => [short(axis[i]), ...few.map((j) => short(found.loss[j][i]))]),
  }));
}

function startLandscape() {
  const place = byId("landscape-view");
  if (!place) return;
  const all = DATA.landscape, names = [...new Set(all.flatMap((one) => one.clients.map((c) => c.client)))];
  const choose = (id, label, entries) => {
    const select = el("select", { id }, entries.map(([value, text]) => el("option", { value }, text)));
    select.addEventListener("change", () => show());
    return { select, label: el("label", { for: id }, label, " ", select) };
  };
  const method = choose("landscape-method", "Method", all.map((one, k) => [k, LABELS[one.method]]));
  const client = choose("landscape-client", "Client", names.map((name) => [name, name]));
  const rows = choose("landscape-rows", "Loss on", Object.entries(ROWS_TOLD));
  const maps = el("div", { class: "pair" }), sharp = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "How sharp the loss is" });
  const ofClient = (one) => one.clients.find((c) => c.client === client.select.value);
  const models = (told) => Object.keys(MODEL_TOLD).filter((which) => told[which]);

  const drawMaps = () => {
    const one = all[Number(method.select.value)], told = ofClient(one), part = rows.select.value;
    if (!told) {
      maps.replaceChildren(el("p", { class: "empty" }, "Not measured for this client."));
      return;
    }
    const range = lossRange(models(told).map((which) => told[which][part].loss));
    maps.replaceChildren(...models(told).map((which) => {
      const found = told[which][part], axis = one.axis, middle = (axis.length - 1) / 2;
      const upright = axis.map((_, i) => axis.map((_, j) => found.loss[j][i])); // the first direction goes across
      const title = models(told).length > 1 ? MODEL_TOLD[which] : "The client's model";
      return el("figure", { "data-model": which }, el("h4", {}, title),
        el("figcaption", {}, `Loss ${short(found.sharpness.centre)}${accuracyTold(found.accuracy[middle][middle])} in the middle.`),
        contourMap({ x: axis, y: axis, loss: upright, range, xName: "first direction", yName: "second direction",
          label: `${title}: loss on ${ROWS_TOLD[part]} around it.`,
          told: (i, j) => `${short(axis[j])} along the first, ${short(axis[i])} along the second direction: loss ${short(found.loss[j][i])}${accuracyTold(found.accuracy[j][i])}` }),
        heatScale(range[0], range[1]), surfaceNumbers(axis, found));
    }));
  };
  const drawSharp = () => {
    const part = rows.select.value;
    const body = all.flatMap((one) => {
      const told = ofClient(one);
      return told ? models(told).map((which) => [one.method, which, told[which][part].sharpness]) : [];
    });
    sharp.replaceChildren(el("table", {}, el("caption", {}, `${client.select.value}, ${ROWS_TOLD[part]}: how much the loss rises within a radius of ${short(all[0].radius)}`),
      el("thead", {}, el("tr", {}, ["Method", "Model", "Loss", "Highest rise", "Mean rise"].map((t, i) => el("th", { scope: "col", class: i > 1 ? "number" : null }, t)))),
      el("tbody", {}, body.map(([m, which, s]) => el("tr", {}, el("th", { scope: "row" }, el("span", { class: "swatch", style: `background:${colour(m)}` }), LABELS[m]),
        el("td", {}, which), [s.centre, s.highest, s.mean].map((v) => el("td", { class: "number" }, short(v))))))));
  };

  const classes = all.some((one) => one.clients.some((c) => c.line && isNumber(c.line.own?.accuracy?.[0])));
  const lossBox = el("div", {}), accuracyBox = el("div", {});
  const lines = el("div", { class: "pair" },
    el("figure", {}, el("figcaption", {}, "Loss on the straight line from the global (0) to the personal model (1)"), lossBox),
    classes ? el("figure", {}, el("figcaption", {}, "Accuracy on it, in %"), accuracyBox) : null);
  const series = (kind, scale) => () => all.filter((one) => ofClient(one)?.line).map((one) => {
    const { t, [rows.select.value]: found } = ofClient(one).line;
    return { label: LABELS[one.method], colour: colour(one.method), dash: dash(one.method), x: t, y: found[kind].map((v) => (isNumber(v) ? v * scale : null)) };
  });
  const wording = { xFormat: short, xName: "t", height: 240 };
  const again = all.some((one) => one.clients.some((c) => c.line)) ? [
    lineChart(lossBox, series("loss", 1), { ...wording, label: "Loss between global and personal model." }),
    ...(classes ? [lineChart(accuracyBox, series("accuracy", 100), { ...wording, label: "Accuracy between global and personal model." })] : []),
  ] : [];
  const lineNumbers = numbersBelow("Numbers of the line", () => ({
    head: ["t", ...series("loss", 1)().map((s) => `loss, ${s.label}`), ...(classes ? series("accuracy", 100)().map((s) => `accuracy %, ${s.label}`) : [])],
    body: (series("loss", 1)()[0]?.x || []).map((t, k) => [short(t), ...series("loss", 1)().map((s) => short(s.y[k])), ...(classes ? series("accuracy", 100)().map((s) => short(s.y[k])) : [])]),
  }));
  const show = () => {
    drawMaps();
    drawSharp();
    lineNumbers.open = false;
    again.forEach((draw) => draw());
  };
  place.append(el("div", { class: "controls" }, el("div", { class: "choices" }, all.length > 1 ? method.label : null, client.label, rows.label)),
    sharp, maps);
  if (again.length) place.append(lines, lineNumbers);
  show();
  again.forEach((draw) => draw()); // their boxes have a width only now
}

// --- trajectory ---
const WHEN_TOLD = { before: "before training", after: "after training" };
/** The head of an arrow that ends a little before `to`; none where there is no room for one. */
function arrowHead([a, b], [c, d]) {
  const long = Math.hypot(c - a, d - b);
  if (long < 9) return "";
  const [ux, uy] = [(c - a) / long, (d - b) / long];
  const tip = [c - 3 * ux, d - 3 * uy], foot = [c - 9 * ux, d - 9 * uy];
  return path([tip, [foot[0] - 3 * uy, foot[1] + 3 * ux], [foot[0] + 3 * uy, foot[1] - 3 * ux]]) + "Z";
}
function wayOf(root, run, x, y, ink) {
  const at = (stop) => [x(stop.x), y(stop.y)];
  for (let k = 0; k + 1 < run.stops.length; k++) {
    const [from, to] = [run.stops[k], run.stops[k + 1]];
    const training = from.when === "before" && to.when === "after" && from.round === to.round;
    const d = path([at(from), at(to)]);
    root.append(svg("path", { class: "way under", d }),
      svg("path", { class: "way", d, "stroke-dasharray": training ? null : "2 3", style: `stroke:${ink}` }));
    if (training) root.append(svg("path", { d: arrowHead(at(from), at(to)), style: `fill:${ink}` }));
  }
  for (const stop of run.stops) {
    const [a, b] = at(stop);
    root.append(stop.when === "before" ? svg("rect", { class: "stop", x: a - 3, y: b - 3, width: 6, height: 6, style: `fill:${ink}` })
      : svg("circle", { class: "stop hollow", cx: a, cy: b, r: 3.2, style: `stroke:${ink}` }));
  }
  const last = run.stops.at(-1);
  const far = x(last.x) > 300; // no room to the right of it
  root.append(svg("text", { class: "name halo", x: x(last.x) + (far ? 4 : 8), y: y(last.y) - 17, "text-anchor": far ? "end" : "start", style: `fill:${ink}` }, `${shorten(run.label, 18)}, round ${last.round}`));
}

function startTrajectory() {
  const place = byId("trajectory-view");
  if (!place) return;
  for (const found of DATA.trajectory) {
    const runs = found.runs.filter((run) => run.stops.length);
    const inks = runs.map((run, k) => (isNumber(run.method) ? colour(run.method) : `var(--m${1 + (k % 7)})`));
    const nearestStop = (i, j) => runs.flatMap((run) => run.stops.map((stop) => ({ run, stop, far: Math.hypot(stop.x - found.x[j], stop.y - found.y[i]) })))
      .reduce((a, b) => (b.far < a.far ? b : a));
    const map = contourMap({ x: found.x, y: found.y, loss: found.loss, range: lossRange([found.loss]),
      xName: `C1 (${perCent(found.shares[0], 0)} % of the variance)`, yName: `C2 (${perCent(found.shares[1], 0)} %)`,
      label: `Training loss of ${found.client} on the plane of its models, and their way in ${joined(runs.map((r) => r.label))}.`,
      over: (root, x, y) => runs.forEach((run, k) => wayOf(root, run, x, y, inks[k])),
      told: (i, j) => {
        const { run, stop } = nearestStop(i, j);
        return `Loss ${short(found.loss[i][j])} here. Nearest: ${run.label}, round ${stop.round} ${WHEN_TOLD[stop.when]}, loss ${short(stop.loss)}`;
      } });
    const box = el("div", {});
    const rounds = el("figure", {}, el("figcaption", {}, "Training loss of the models themselves: before (dotted) and after training"), box,
      numbersBelow("Numbers", () => ({
        head: ["run", "round", "", "C1", "C2", "loss"],
        body: runs.flatMap((run) => run.stops.map((s) => [run.label, String(s.round), WHEN_TOLD[s.when], short(s.x), short(s.y), short(s.loss)])),
      })));
    const series = () => runs.flatMap((run, k) => ["before", "after"].map((when) => {
      const stops = run.stops.filter((s) => s.when === when);
      return { label: `${run.label} ${when}`, colour: inks[k], dash: when === "before" ? "2 3" : "", x: stops.map((s) => s.round), y: stops.map((s) => s.loss) };
    }));
    place.append(el("div", { class: "pair trajectory" }, el("figure", {}, el("h4", {}, found.client), map, heatScale(...lossRange([found.loss]))), rounds));
    lineChart(box, series, { label: `Training loss of ${found.client} by round.`, height: 300 });
  }
}

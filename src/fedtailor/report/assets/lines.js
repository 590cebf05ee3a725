// Lines over rounds (or bytes), with bands, labels at their ends and a read-out under the pointer.

/** Moves labels apart that would overlap, as little as needed and within bounds. */
function apart(wanted, gap, low, high) {
  const order = wanted.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y);
  for (let k = 0; k < order.length; k++) {
    order[k].y = Math.max(order[k].y, k ? order[k - 1].y + gap : low);
  }
  for (let k = order.length - 1; k >= 0; k--) {
    order[k].y = Math.min(order[k].y, k < order.length - 1 ? order[k + 1].y - gap : high);
  }
  const out = [];
  order.forEach(({ y, i }) => (out[i] = y));
  return out;
}

function path(points) {
  let text = "", pen = false;
  for (const [x, y] of points) {
    if (!isNumber(x) || !isNumber(y)) pen = false;
    else {
      text += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    }
  }
  return text;
}

function nearest(values, wanted) {
  let best = 0;
  values.forEach((v, i) => {
    if (Math.abs(v - wanted) < Math.abs(values[best] - wanted)) best = i;
  });
  return best;
}

function shorten(text, letters) {
  return text.length > letters ? text.slice(0, letters - 1) + "…" : text;
}

/**
 * A line chart. `series()` gives what is to be drawn now:
 *   { label, colour, dash, x, y, low, high } with arrays of the same length.
 * options: label (for screen readers), height, format, xFormat, xName, floor (least y), level
 * ({ y, label }: a horizontal line), zero (x begins at 0), less (less is better: read out first).
 */
function lineChart(box, series, options) {
  box.classList.add("chart");
  const readout = el("div", { class: "readout", hidden: true });
  const spoken = el("p", { class: "visually-hidden", "aria-live": "polite" });
  const format = options.format || short, xFormat = options.xFormat || short;
  let drawn = null, at = -1;
  box.append(readout, spoken);

  function draw(width) {
    const all = series().filter((s) => s.y.some(isNumber));
    const height = options.height || 260;
    box.querySelector("svg, .empty")?.remove();
    if (!all.length) {
      box.prepend(el("p", { class: "empty" }, "Nothing to show."));
      drawn = null;
      return;
    }
    const longest = Math.max(...all.map((s) => s.label.length));
    const right = width < 330 || all.length === 1 ? 12 : Math.min(width * 0.34, 18 + 6.6 * Math.min(longest, 22));
    const frame = { left: 44, right: width - right, top: 10, bottom: height - 34 };
    const [x0, x1] = extent(all.flatMap((s) => s.x));
    const levels = options.level ? [options.level.y] : [];
    let [y0, y1] = extent([...all.flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]), ...levels]);
    const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
    y0 = Math.max(options.floor ?? -Infinity, y0 - pad);
    y1 = Math.min(options.ceiling ?? Infinity, y1 + pad);
    const x = linear([options.zero ? 0 : x0, x1 > x0 ? x1 : x0 + 1], [frame.left, frame.right]);
    const y = linear([y0, y1], [frame.bottom, frame.top]);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
      "aria-label": `${options.label} Lines: ${joined(all.map((s) => s.label))}. Arrow keys read values.` });
    for (const v of ticks(y0, y1, 5)) {
      root.append(svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y(v), y2: y(v) }),
        svg("text", { x: frame.left - 8, y: y(v) + 4, "text-anchor": "end" }, format(v)));
    }
    root.append(svg("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }));
    const whole = options.xFormat ? () => true : Number.isInteger;
    for (const v of ticks(options.zero ? 0 : x0, x1, Math.max(2, Math.floor((frame.right - frame.left) / 80))).filter(whole)) {
      root.append(svg("text", { x: x(v), y: frame.bottom + 16, "text-anchor": "middle" }, xFormat(v)));
    }
    root.append(svg("text", { x: frame.right, y: height - 4, "text-anchor": "end" }, options.xName || "round"));
    if (options.level) {
      const { y: value, label, colour: ink } = options.level;
      root.append(svg("line", { x1: frame.left, x2: frame.right, y1: y(value), y2: y(value), "stroke-dasharray": "5 3", style: `stroke:${ink};stroke-width:1.5` }),
        svg("text", { class: "halo", x: frame.right - 4, y: y(value) - 5, "text-anchor": "end" }, label));
    }
    for (const s of all) {
      if (!s.low || s.low.every((v, i) => v === s.high[i])) continue;
      const there = s.x.map((_, i) => i).filter((i) => isNumber(s.low[i]) && isNumber(s.high[i]));
      const edge = [...there.map((i) => [x(s.x[i]), y(s.low[i])]), ...there.reverse().map((i) => [x(s.x[i]), y(s.high[i])])];
      root.append(svg("path", { class: "band", d: path(edge) + "Z", style: `fill:${s.colour}` }));
    }
    const ends = all.map((s) => {
      const last = s.y.findLastIndex(isNumber);
      root.append(svg("path", { class: "line", d: path(s.x.map((v, i) => [x(v), isNumber(s.y[i]) ? y(s.y[i]) : null])), "stroke-dasharray": s.dash || null, style: `stroke:${s.colour}` }));
      s.y.forEach((v, i) => {
        const single = isNumber(v) && !isNumber(s.y[i - 1]) && !isNumber(s.y[i + 1]); // which no line goes through
        if (single || (s.dots && i === last)) root.append(svg("circle", { cx: x(s.x[i]), cy: y(v), r: 3.5, style: `fill:${s.colour}` }));
      });
      return { x: x(s.x[last]), y: y(s.y[last]) };
    });
    if (right > 12) {
      // labels compete for room only with those that stand in the same column
      const columns = options.nearEnds ? ends.map((e) => Math.round(e.x / 90)) : ends.map(() => 0);
      const places = [];
      for (const column of new Set(columns)) {
        const members = ends.map((_, k) => k).filter((k) => columns[k] === column);
        apart(members.map((k) => ends[k].y), 14, frame.top + 4, frame.bottom).forEach((place, m) => (places[members[m]] = place));
      }
      all.forEach((s, k) => {
        const left = options.nearEnds ? ends[k].x : frame.right;
        const far = left - ends[k].x > 12 || Math.abs(places[k] - ends[k].y) > 3;
        if (far) root.append(svg("path", { class: "leader", d: `M${ends[k].x + 3} ${ends[k].y}L${left + 7} ${places[k]}` }));
        root.append(svg("text", { class: "name halo", x: left + 9, y: places[k] + 4, style: `fill:${s.colour}` }, shorten(s.label, Math.floor((right - 12) / 6.2))));
      });
    }
    const guide = svg("line", { class: "guide", y1: frame.top, y2: frame.bottom, visibility: "hidden" });
    root.append(guide);
    drawn = { all, x, frame, guide, width, steps: [...new Set(all.flatMap((s) => s.x))].sort((a, b) => a - b) };
    root.addEventListener("pointermove", (event) => {
      const edge = root.getBoundingClientRect();
      const where = ((event.clientX - edge.left) / edge.width) * width;
      read(nearest(drawn.steps.map(x), where), false);
    });
    root.addEventListener("pointerleave", clear);
    root.addEventListener("blur", clear);
    root.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      const last = drawn.steps.length - 1;
      read(Math.min(last, Math.max(0, at < 0 ? (move > 0 && move < 2 ? 0 : last) : at + move)), true);
    });
    box.prepend(root);
  }

  function clear() {
    readout.hidden = true;
    at = -1;
    drawn?.guide.setAttribute("visibility", "hidden");
  }

  function read(step, aloud) {
    if (!drawn) return;
    at = step;
    const value = drawn.steps[step];
    const rows = drawn.all.map((s) => ({ s, y: s.y[options.loose ? nearest(s.x, value) : s.x.indexOf(value)] }))
      .filter((r) => isNumber(r.y)).sort((a, b) => (options.less ? a.y - b.y : b.y - a.y));
    const title = `${options.xName || "round"} ${xFormat(value)}`;
    readout.replaceChildren(el("strong", {}, title), el("table", {}, rows.map((r) =>
      el("tr", {}, el("td", {}, el("span", { class: "swatch", style: `background:${r.s.colour}` }), r.s.label), el("td", { class: "number" }, format(r.y))))));
    readout.hidden = false;
    const where = drawn.x(value);
    drawn.guide.setAttribute("x1", where);
    drawn.guide.setAttribute("x2", where);
    drawn.guide.setAttribute("visibility", "visible");
    const scale = box.clientWidth / drawn.width;
    const left = where * scale + 12 + readout.offsetWidth > box.clientWidth ? where * scale - 12 - readout.offsetWidth : where * scale + 12;
    readout.style.left = `${Math.max(0, left)}px`;
    if (aloud) spoken.textContent = `${title}: ${rows.map((r) => `${r.s.label} ${format(r.y)}`).join(", ")}`;
  }
  return keepDrawn(box, draw);
}

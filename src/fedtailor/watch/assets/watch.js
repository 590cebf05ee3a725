"use strict";
// Asks every two seconds whether there is a new page. If so, it is loaded behind the one that is
// being read, brought to the same place (client, sliders, order, what is open, how far down), and
// only then put in front.
const CALM = 700; // milliseconds without a touch before a page may be changed under the reader
const byId = (id) => document.getElementById(id);
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
let current = null, shownPage = 0, touched = 0, pressed = false;

// --- the reader's place ---
const sectionsOf = (doc) => [...doc.querySelectorAll("main > section")];
const tell = (node, event) => node.dispatchEvent(new Event(event, { bubbles: true }));
const chosenText = (select) => select.selectedOptions[0]?.textContent ?? null;

function placeOf(doc) {
  const sections = sectionsOf(doc);
  const top = sections.findLast((s) => s.getBoundingClientRect().top <= 1) ?? null;
  const sorted = doc.querySelector("#method-table th[aria-sort]");
  return {
    down: top ? { id: top.id, by: -top.getBoundingClientRect().top } : { id: null, by: doc.defaultView.scrollY },
    hidden: [...doc.querySelectorAll(".legend button")].map((b) => [b.textContent, b.getAttribute("aria-pressed")]),
    sort: sorted && [sorted.textContent.trim(), sorted.getAttribute("aria-sort")],
    selects: [...doc.querySelectorAll("select[id]")].map((s) => [s.id, chosenText(s)]),
    search: doc.getElementById("client-search")?.value ?? "",
    checks: [...doc.querySelectorAll("input[type=checkbox][id]")].map((c) => [c.id, c.checked]),
    sliders: [...doc.querySelectorAll("input[type=range][id]")].map((s) => ({
      id: s.id, last: s.value === s.max, share: s.max > 0 ? s.value / s.max : 1,
      told: doc.querySelector(`output[for="${CSS.escape(s.id)}"]`)?.textContent ?? null,
    })),
    open: sections.map((s) => [s.id, [...s.querySelectorAll("details")].map((d) => d.open)]),
    focus: doc.activeElement?.id || null,
  };
}

function restoreSelect(doc, id, text) {
  const select = doc.getElementById(id);
  if (!select || chosenText(select) === text) return;
  const at = [...select.options].findIndex((option) => option.textContent === text);
  if (at < 0) return;
  select.selectedIndex = at;
  tell(select, "change");
}

function restoreSlider(doc, kept) {
  const slider = doc.getElementById(kept.id);
  if (!slider || kept.last) return; // who looked at the last round goes on doing so
  const told = () => doc.querySelector(`output[for="${CSS.escape(kept.id)}"]`)?.textContent ?? null;
  for (let at = 0; at <= Number(slider.max); at++) {
    slider.value = at;
    tell(slider, "input");
    if (told() === kept.told) return;
  }
  slider.value = Math.round(kept.share * slider.max); // that round is no longer among those shown
  tell(slider, "input");
}

function restorePlace(doc, place) {
  for (const [label, was] of place.hidden) {
    const button = [...doc.querySelectorAll(".legend button")].find((b) => b.textContent === label);
    if (button && button.getAttribute("aria-pressed") !== was) button.click();
  }
  if (place.sort) {
    const head = [...doc.querySelectorAll("#method-table th")].find((h) => h.textContent.trim() === place.sort[0]);
    for (let tries = 0; head && tries < 2 && head.getAttribute("aria-sort") !== place.sort[1]; tries++) {
      head.querySelector("button")?.click();
    }
  }
  if (place.search) {
    const search = doc.getElementById("client-search");
    search.value = place.search;
    tell(search, "input");
  }
  // the client last of all: its view holds further choices, which are made after it
  const later = (id) => (id === "confusion-method" ? 2 : id === "client-list" ? 1 : 0);
  for (const [id, text] of [...place.selects].sort((a, b) => later(a[0]) - later(b[0]))) restoreSelect(doc, id, text);
  for (const [id, was] of place.checks) {
    const box = doc.getElementById(id);
    if (box && box.checked !== was) box.click();
  }
  for (const kept of place.sliders) restoreSlider(doc, kept);
  for (const [id, open] of place.open) {
    const found = doc.getElementById(id)?.querySelectorAll("details") ?? [];
    open.forEach((was, k) => { if (was && found[k]) found[k].open = true; });
  }
}

function scrollBack(doc, place) {
  const section = place.down.id && doc.getElementById(place.down.id);
  const view = doc.defaultView;
  const top = section ? view.scrollY + section.getBoundingClientRect().top + place.down.by : place.down.by;
  view.scrollTo({ top, behavior: "instant" });
}

// --- frames ---
function noteTouches(view) {
  const note = () => { touched = performance.now(); };
  for (const event of ["pointerdown", "pointermove", "keydown", "input", "wheel", "touchmove"]) view.addEventListener(event, note, { passive: true });
  view.addEventListener("pointerdown", () => { pressed = true; });
  for (const event of ["pointerup", "pointercancel", "blur"]) view.addEventListener(event, () => { pressed = false; });
}
async function calm() {
  while (pressed || performance.now() - touched < CALM) await pause(100);
}

async function loaded(number) {
  const frame = document.createElement("iframe");
  frame.className = "coming";
  frame.title = "Report";
  frame.src = `/page?${number}`;
  const there = new Promise((done, fail) => {
    frame.addEventListener("load", done);
    frame.addEventListener("error", fail);
  });
  byId("frames").append(frame);
  await there;
  for (let tries = 0; frame.contentDocument?.documentElement.dataset.ready !== "yes"; tries++) {
    if (tries > 100) {
      frame.remove();
      throw new Error("the page did not start");
    }
    await pause(50);
  }
  return frame;
}

function mirrorTheme(doc) {
  const copy = () => { document.documentElement.dataset.theme = doc.documentElement.dataset.theme; };
  new MutationObserver(copy).observe(doc.documentElement, { attributeFilter: ["data-theme"] });
  copy();
}

async function show(number) {
  const coming = await loaded(number);
  if (current) await calm();
  const doc = coming.contentDocument;
  const hadFocus = document.activeElement === current;
  if (current) {
    const place = placeOf(current.contentDocument);
    restorePlace(doc, place);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    scrollBack(doc, place);
    coming.className = "";
    if (hadFocus) {
      coming.contentWindow.focus();
      (place.focus && doc.getElementById(place.focus))?.focus({ preventScroll: true });
    }
    current.remove();
  }
  coming.className = "";
  byId("empty").hidden = true;
  current = coming;
  shownPage = number;
  pressed = false;
  noteTouches(coming.contentWindow);
  mirrorTheme(doc);
  document.documentElement.dataset.page = number;
}

// --- asking ---
function say(words, state) {
  if (byId("words").textContent !== words) byId("words").textContent = words;
  document.title = `${words} · FedTailor`;
  document.documentElement.dataset.state = state;
}

function showState(state) {
  say(state.words, state.finished ? "finished" : "running");
  byId("failed").hidden = !state.failed;
  byId("failed").textContent = state.failed;
  byId("each").hidden = state.runs.length < 2;
  byId("runs").replaceChildren(...state.runs.map((run) => {
    const item = document.createElement("li");
    item.textContent = `${run.name}: ${run.words}`;
    return item;
  }));
}

async function watch() {
  for (;;) {
    let wait = 2000;
    try {
      const answer = await fetch("/state.json", { cache: "no-store" });
      const state = await answer.json();
      showState(state);
      if (state.page && state.page !== shownPage) await show(state.page);
      if (state.finished && state.page === shownPage) return; // nothing will change any more
      wait = 1000 * (state.poll ?? 2);
    } catch (error) {
      say(`${byId("words").textContent.replace(/ \(no answer.*/, "")} (no answer: was it stopped?)`, "lost");
      wait = 5000;
    }
    await pause(wait);
  }
}
watch();

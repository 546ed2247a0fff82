"use strict";
// Caption page: the image with brightness by attention, word by word.

const data = JSON.parse(document.getElementById("data").textContent);
const find = (selector) => document.querySelector(selector);
const MEAN = 0; // layers and heads count from 1; 0 is the average
const WIDEST = 720, SMALL = 160, TEMPO = 900;
const [rows, columns] = data.grid, places = rows * columns, [high, wide] = data.size, [top_, left, bottom, right] = data.region;
const layers = data.layers.map((layer) => ({ ...layer, shares: Uint8Array.from(atob(layer.bytes), (sign) => sign.charCodeAt(0)) }));
const state = { word: 0, layer: MEAN, head: MEAN, view: "light", timer: null };
const picture = new Image();
const still = matchMedia("(prefers-reduced-motion: reduce)");

const made = (tag, className, text) => Object.assign(document.createElement(tag), { className: className || "", textContent: text ?? "" });
const clamp = (value, low, top) => Math.min(Math.max(value, low), top);
const percent = (share) => { const whole = 100 * share; return (whole >= 9.95 || whole === 0 ? whole.toFixed(0) : whole < 0.05 ? "< 0.1" : whole.toFixed(1)) + " %"; };
const headsOf = (layer) => layer === MEAN ? Math.min(...layers.map((one) => one.heads)) : layers[layer - 1].heads;

// Attention of a word over the image, averaged over the selected layers and heads.
function map(word) {
  const sum = new Float64Array(places), some = state.layer === MEAN ? layers : [layers[state.layer - 1]];
  for (const layer of some) {
    const heads = state.head === MEAN ? [...Array(layer.heads).keys()] : [state.head - 1];
    for (const head of heads) {
      const at = head * data.words.length + word, times = layer.most[at] / 255 / heads.length / some.length;
      for (let place = 0; place < places; place++) sum[place] += times * layer.shares[at * places + place];
    }
  }
  return sum;
}

const bright = (grid) => Math.max(...grid, Math.min(data.look.even / places, 1));

// The four neighboring cells of each pixel along one side, with interpolation weights (bicubic, as in Pillow). The cells
// cover the side from `start` to `end`; pixels outside have no cells.
function taps(many, pixels, start, end) {
  const cubic = (x) => { x = Math.abs(x); return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0; };
  return Array.from({ length: pixels }, (_, pixel) => {
    const share = ((pixel + 0.5) / pixels - start) / (end - start), at = share * many - 0.5, low = Math.floor(at) - 1;
    if (share < 0 || share >= 1) return [];
    const near = [0, 1, 2, 3].map((step) => low + step).filter((place) => place >= 0 && place < many);
    const parts = near.map((place) => cubic(at - place)), whole = parts.reduce((a, b) => a + b, 0);
    return near.map((place, number) => [place, parts[number] / whole]);
  });
}

const kept = new Map();
const tapsOf = (...of) => { const key = of.join(); if (!kept.has(key)) kept.set(key, taps(...of)); return kept.get(key); };

function light(canvas, grid, most) {
  const { width, height } = canvas, across = tapsOf(columns, width, left, right), down = tapsOf(rows, height, top_, bottom);
  const part = new Float64Array(rows * width);
  for (let row = 0; row < rows; row++) for (let x = 0; x < width; x++) {
    let sum = 0;
    for (const [place, times] of across[x]) sum += times * grid[row * columns + place];
    part[row * width + x] = sum / most;
  }
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const frame = pen.getImageData(0, 0, width, height), p = frame.data, { dark, warm, tint } = data.look;
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
    let share = 0;
    for (const [row, times] of down[y]) share += times * part[row * width + x];
    share = clamp(share, 0, 1);
    const faint = down[y].length && across[x].length ? 1 : data.outside;
    const at = 4 * (y * width + x), grey = (p[at] + p[at + 1] + p[at + 2]) / 3;
    for (let i = 0; i < 3; i++) {
      const own = p[at + i], low = dark * (0.6 * own + 0.4 * grey);
      p[at + i] = faint * (low + share * (own + tint * share * (warm[i] - own) - low));
    }
  }
  pen.putImageData(frame, 0, 0);
}

function paint(canvas, width, grid) {
  canvas.width = width;
  canvas.height = Math.max(1, Math.round(width * high / wide));
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.imageSmoothingQuality = "high";
  pen.imageSmoothingEnabled = Math.max(high, wide) >= 40; // pixels of tiny images stay visible
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  if (grid) light(canvas, grid, bright(grid));
}

function shownName() {
  const { layer, head } = state, many = layers.length, heads = headsOf(layer);
  const first = layer === MEAN ? `average over ${many} layers` : layers[layer - 1].name;
  const second = head === MEAN ? `average over ${heads} heads` : `head ${head} of ${heads}`;
  return [...(many > 1 ? [first] : []), ...(heads > 1 ? [second] : [])].join(", ");
}

function strongest(grid) {
  const at = grid.indexOf(Math.max(...grid));
  return `maximum in row ${Math.floor(at / columns) + 1} of ${rows}, column ${at % columns + 1} of ${columns}: ${percent(grid[at])}`;
}

function showWord() {
  const { word, view } = state, said = data.words[word], grid = map(word);
  paint(find("#large"), WIDEST, view === "light" ? grid : null);
  find("#large").setAttribute("aria-label", `${data.how} for ‘${said.word}’, ${strongest(grid)}`);
  find("#heading").textContent = said.word;
  find("#shown").textContent = [`Probability ${percent(said.chance)}`, shownName()].filter(Boolean).join("; ");
  find("#most").textContent = `${percent(bright(grid))} of total ${data.how}`;
  find("#at").value = word + 1;
  find("#count").textContent = `${word + 1} of ${data.words.length}`;
  find("#likely").replaceChildren(...said.likely.map(([name, chance]) => {
    const line = made("li", name === said.word ? "said" : ""), bar = made("i");
    bar.style.setProperty("--share", `${100 * chance}%`);
    line.append(made("b", "", name), bar, made("span", "", percent(chance)));
    return line;
  }));
  find("#likely").parentElement.hidden = !said.likely.length;
  for (const box of ["#said", "#film"]) [...find(box).children].forEach((button, at) => button.setAttribute("aria-pressed", at === word));
  for (const button of find("#views").children) button.setAttribute("aria-pressed", button.dataset.view === view);
}

function showFilm() {
  [...find("#film").children].forEach((button, word) => paint(button.querySelector("canvas"), SMALL, map(word)));
  find("#words ol").replaceChildren(...data.words.map((said, word) => {
    const line = made("li");
    line.append(made("b", "", said.word), made("span", "", ` → ${strongest(map(word))}`));
    return line;
  }));
}

function choices(box, many, current, pick) {
  box.parentElement.hidden = many < 2;
  if (box.childElementCount !== many + 1) {
    box.replaceChildren(...Array.from({ length: many + 1 }, (_, at) => {
      const button = made("button", "", at === MEAN ? "average" : at);
      button.type = "button";
      button.addEventListener("click", () => pick(at));
      return button;
    }));
  }
  [...box.children].forEach((button, at) => button.setAttribute("aria-pressed", at === current));
}

function choose(change) {
  Object.assign(state, change);
  if (state.head > headsOf(state.layer)) state.head = MEAN;
  choices(find("#layers"), layers.length, state.layer, (layer) => choose({ layer }));
  choices(find("#heads"), headsOf(state.layer), state.head, (head) => choose({ head }));
  const hash = new URLSearchParams({ word: state.word + 1, layer: state.layer || "mean", head: state.head || "mean" });
  history.replaceState(null, "", `#${hash}`);
  showWord();
  if ("layer" in change || "head" in change) showFilm();
}

const go = (word) => choose({ word: clamp(word, 0, data.words.length - 1) });

function play(on) {
  clearInterval(state.timer);
  const last = data.words.length - 1;
  if (on && state.word === last) go(0);
  state.timer = on ? setInterval(() => (state.word < last ? go(state.word + 1) : play(false)), still.matches ? 2 * TEMPO : TEMPO) : null;
  find("#play").textContent = on ? "Pause" : "Play";
  find("#play").setAttribute("aria-pressed", Boolean(on));
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typed = event.target.tagName, last = data.words.length - 1;
  const words = { ArrowLeft: state.word - 1, ArrowRight: state.word + 1, Home: 0, End: last };
  if (event.key in words && typed !== "INPUT") { play(false); go(words[event.key]); }
  else if (event.key === " " && !["BUTTON", "SUMMARY"].includes(typed)) play(!state.timer);
  else if (["ArrowUp", "ArrowDown"].includes(event.key) && headsOf(state.layer) > 1 && event.target.closest?.("#deck") && typed !== "INPUT") {
    const many = headsOf(state.layer) + 1;
    choose({ head: (state.head + (event.key === "ArrowDown" ? 1 : many - 1)) % many });
  } else return;
  event.preventDefault();
}

function over(event) {
  const box = find("#large").getBoundingClientRect(), grid = map(state.word);
  const y = (event.clientY - box.top) / box.height, x = (event.clientX - box.left) / box.width;
  const row = Math.floor((y - top_) / (bottom - top_) * rows), column = Math.floor((x - left) / (right - left) * columns);
  if (row < 0 || column < 0 || row >= rows || column >= columns) return;
  find("#shown").textContent = `Row ${row + 1} of ${rows}, column ${column + 1} of ${columns}: ${percent(grid[row * columns + column])}`;
}

function readHash() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const count = (name, most) => { const number = Math.floor(Number(asked.get(name))); return number >= 1 && number <= most ? number : 0; };
  state.word = Math.max(count("word", data.words.length) - 1, 0);
  state.layer = count("layer", layers.length);
  state.head = count("head", headsOf(state.layer));
}

function start() {
  find("#turns").hidden = headsOf(MEAN) < 2;
  find("#views").firstElementChild.textContent = data.how[0].toUpperCase() + data.how.slice(1);
  data.words.forEach((said, word) => {
    const button = made("button", "", said.word), frame = made("button"), name = made("span");
    button.type = frame.type = "button";
    button.style.setProperty("--chance", said.chance);
    button.title = percent(said.chance);
    name.append(made("b", "", said.word), made("small", "", percent(said.chance)));
    frame.append(name, made("canvas"));
    frame.setAttribute("aria-label", `${said.word}, ${percent(said.chance)}`);
    for (const one of [button, frame]) one.addEventListener("click", () => { play(false); go(word); });
    find("#said").append(button);
    find("#film").append(frame);
  });
  if (data.words.length < 6) find("#film").classList.add("alone");
  find("#at").max = data.words.length;
  find("#at").addEventListener("input", (event) => { play(false); go(event.target.value - 1); });
  find("#back").addEventListener("click", () => { play(false); go(state.word - 1); });
  find("#on").addEventListener("click", () => { play(false); go(state.word + 1); });
  find("#play").addEventListener("click", () => play(!state.timer));
  find("#views").addEventListener("click", (event) => event.target.dataset.view && choose({ view: event.target.dataset.view }));
  find("#large").addEventListener("pointermove", over);
  find("#large").addEventListener("pointerleave", showWord);
  find(".ramp").style.background = `linear-gradient(90deg, rgb(0 0 0 / ${1 - data.look.dark}), transparent) #fff`;
  find("#large").style.setProperty("--ratio", wide / high);
  document.addEventListener("keydown", pressed);
  addEventListener("hashchange", () => { readHash(); choose({ layer: state.layer }); });
  const words = find("#words");
  let open = false;
  addEventListener("beforeprint", () => { open = words.open; words.open = true; });
  addEventListener("afterprint", () => { words.open = open; });
  readHash();
  choose({ layer: state.layer });
}

picture.onload = start;
picture.src = data.picture;

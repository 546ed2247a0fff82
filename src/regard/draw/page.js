// Selected map, layer, head and view, and the event handlers that change the selection.

const state = { map: 0, layer: maps[0].layers, head: MEAN, view: "grid", least: null };
let seen = { weights: null, grid: null, tiles: null, most: 1 };
const chosen = () => maps[state.map];

function readHash() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const at = maps.findIndex((map) => map.name === asked.get("map"));
  if (at >= 0) state.map = at;
  const count = (text, most, otherwise) => {
    const number = Math.floor(Number(text));
    return text === "mean" ? MEAN : number >= 1 && number <= most ? number : otherwise;
  };
  state.layer = count(asked.get("layer"), chosen().layers, Math.min(state.layer, chosen().layers));
  state.head = count(asked.get("head"), chosen().heads, state.head > chosen().heads ? MEAN : state.head);
  if (["grid", "arcs"].includes(asked.get("view"))) state.view = asked.get("view");
}

function writeHash() {
  const hash = new URLSearchParams({ map: chosen().name, layer: state.layer || "mean", head: state.head || "mean", view: state.view });
  history.replaceState(null, "", `#${hash}`);
}

function choose(change) {
  Object.assign(state, change);
  if (state.layer > chosen().layers) state.layer = chosen().layers;
  if (state.head > chosen().heads) state.head = MEAN;
  writeHash();
  show("map" in change);
}

function buttons(box, many, current, pick) {
  if (box.childElementCount !== many + 1) {
    box.replaceChildren(...Array.from({ length: many + 1 }, (_, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = at === MEAN ? "average" : at;
      button.addEventListener("click", () => pick(at));
      return button;
    }));
  }
  [...box.children].forEach((button, at) => button.setAttribute("aria-pressed", at === current));
}

function showTabs() {
  for (const [at, tab] of [...find("#tabs").children].entries()) {
    tab.setAttribute("aria-selected", at === state.map);
    tab.tabIndex = at === state.map ? 0 : -1;
  }
}

function shownName() {
  const { layer, head } = state, map = chosen();
  const one = layer === MEAN ? `average over ${map.layers} layers` : `layer ${layer} of ${map.layers}`;
  const first = map.by === "layers" ? "all layers" : one;
  if (map.heads === 1) return first;
  return `${first}, ${head === MEAN ? `average over ${map.heads} heads` : `head ${head} of ${map.heads}`}`;
}

function showWords() {
  const map = chosen(), across = map.keys.length;
  find("#words ol").replaceChildren(...map.rows.map((label, row) => {
    const line = document.createElement("li"), name = document.createElement("b"), rest = document.createElement("span");
    const shares = [...seen.weights.slice(row * across, (row + 1) * across)].map((weight, key) => ({ weight, key }));
    const strongest = shares.sort((a, b) => b.weight - a.weight).slice(0, 3).filter((one) => one.weight >= 0.01);
    name.textContent = label;
    rest.textContent = " → " + (strongest.map((one) => `${map.columns[one.key]} ${percent(one.weight)}`).join(", ") || "none");
    line.append(name, rest);
    return line;
  }));
}

function showRing() {
  const { gutter, gap, wide, high } = seen.tiles, map = chosen(), ring = find(".ring");
  const [column, across] = state.head === MEAN ? [0, map.heads] : [state.head - 1, 1];
  const [row, down] = state.layer === MEAN ? [0, map.layers] : [state.layer - 1, 1];
  ring.style.left = `${gutter + column * wide + gap / 2}px`;
  ring.style.top = `${gutter + row * high + gap / 2}px`;
  ring.style.width = `${across * wide - gap}px`;
  ring.style.height = `${down * high - gap}px`;
}

// Default: weights above uniform, and at most four arcs per query on average.
function bound() {
  if (state.least !== null) return state.least;
  const { queries, keys } = chosen();
  const fifth = seen.weights.slice().sort().at(-4 * queries.length - 1) ?? 0;
  return Math.min(Math.ceil(200 * Math.max(fifth, 1 / keys.length)) / 200, seen.most);
}

function showView() {
  const map = chosen(), arcs = state.view === "arcs";
  find("#grid").hidden = arcs;
  find("#arcs").hidden = !arcs;
  find(".least").hidden = !arcs;
  find("#deck .legend").hidden = arcs;
  for (const button of find("#views").children) button.setAttribute("aria-pressed", button.dataset.view === state.view);
  if (arcs) {
    const least = bound();
    find("#least").value = least * 100;
    find("#bound").textContent = percent(least);
    find("#arcs").classList.remove("alone");
    return drawArcs(map, seen.weights, seen.most, least);
  }
  seen.grid = drawGrid(map, seen.weights, seen.most);
  find("#grid canvas").setAttribute("aria-label", `${map.title}, ${shownName()}: attention matrix with ${map.rows.length} rows and ${map.columns.length} columns`);
  find("#deck .ramp").style.background = `linear-gradient(90deg, ${stopsOf(data).join(", ")})`;
  find("#most").textContent = `${map.depends ? "fraction of the gradient norm" : "attention weight"} (max ${percent(seen.most)})${map.rooted ? ", √ scale" : ""}`;
}

function show(everything) {
  const map = chosen();
  hideTip();
  showTabs();
  find("#heading").textContent = map.title;
  const single = map.layers === 1 && map.heads === 1;
  find("#deck").classList.toggle("single", single);
  find("#deck .choose").hidden = find(".overview").hidden = single;
  find("#layers").parentElement.hidden = map.by === "layers";
  find("#heads").parentElement.hidden = map.heads === 1;
  find("#sideways").hidden = map.heads === 1;
  const how = state.view === "grid" ? map.description : "Hover over a token to show only its arcs.";
  find("#shown").textContent = single ? how : `${shownName()[0].toUpperCase()}${shownName().slice(1)}. ${how}`;
  buttons(find("#layers"), map.layers, state.layer, (layer) => choose({ layer }));
  buttons(find("#heads"), map.heads, state.head, (head) => choose({ head }));
  seen.weights = matrix(map, state.layer, state.head);
  seen.most = strongest(map, seen.weights);
  showView();
  if (everything) paintStrip();
  if (everything) paintWhy();
  if (everything) paintThoughts();
  if (everything && !single) seen.tiles = drawOverview(map);
  if (!single) showRing();
  if (find("#words").open) showWords();
}

function tip(event, lines) {
  const box = find("#tip");
  box.replaceChildren(...lines);
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const right = event.clientX + 16 + width > innerWidth, low = event.clientY + 18 + height > innerHeight;
  box.style.left = `${Math.max(6, right ? event.clientX - width - 12 : event.clientX + 16)}px`;
  box.style.top = `${Math.max(6, low ? event.clientY - height - 12 : event.clientY + 18)}px`;
}

function hideTip() {
  find("#tip").hidden = true;
  for (const node of document.querySelectorAll(".band.on, #grid text.on, .tokens .on")) node.classList.remove("on");
}

function bold(text) {
  const made = document.createElement("b");
  made.textContent = text;
  return made;
}

function markRow(row) {
  const band = find(".band.row"), { high } = seen.grid;
  band.style.cssText = `top:${row * high}px;height:${high}px;width:100%`;
  for (const node of [band, find("#grid .down").children[row]]) node.classList.add("on");
}

function overGrid(event) {
  const map = chosen(), { wide, high } = seen.grid;
  const box = find("#grid canvas").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / wide), row = Math.floor((event.clientY - box.top) / high);
  hideTip();
  if (row < 0 || column < 0 || row >= map.rows.length || column >= map.columns.length) return;
  markRow(row);
  const down = find(".band.column");
  down.style.cssText = `left:${column * wide}px;width:${wide}px;height:100%`;
  for (const node of [down, find("#grid .across").children[column]]) node.classList.add("on");
  const share = document.createElement("span");
  share.className = "big";
  share.textContent = `${(seen.weights[row * map.columns.length + column] * 100).toFixed(1)} %`;
  tip(event, [bold(map.rows[row]), " → ", bold(map.columns[column]), share]);
}

// Layer and head under the pointer; the margins select the average.
function tileAt(event) {
  const { gutter, wide, high } = seen.tiles, box = find(".tiles canvas").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - gutter) / wide) + 1;
  const row = Math.floor((event.clientY - box.top - gutter) / high) + 1;
  return { layer: clamp(row, MEAN, chosen().layers), head: clamp(column, MEAN, chosen().heads) };
}

function overTiles(event) {
  const { layer, head } = tileAt(event);
  tip(event, [`${layer === MEAN ? "average over layers" : `layer ${layer}`}, ${head === MEAN ? "average over heads" : `head ${head}`}`]);
}

const TURNS = { ArrowLeft: ["head", -1], ArrowRight: ["head", 1], ArrowUp: ["layer", -1], ArrowDown: ["layer", 1] };

function turnTab(event) {
  const to = { ArrowLeft: state.map - 1, ArrowRight: state.map + 1, Home: 0, End: maps.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  choose({ map: (to + maps.length) % maps.length });
  find("#tabs").children[state.map].focus();
}

function pressed(event) {
  const at = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (at.closest?.("#tabs")) return turnTab(event);
  const turn = TURNS[event.key];
  const scrolls = at.id === "grid" && (at.scrollWidth > at.clientWidth || at.scrollHeight > at.clientHeight);
  if (!turn || at.tagName === "INPUT" || scrolls) return;
  const [what, by] = turn;
  if (what === "layer" && !at.closest?.("#deck")) return; // elsewhere ↑ and ↓ scroll the page
  event.preventDefault();
  const many = (what === "layer" ? chosen().layers : chosen().heads) + 1;
  choose({ [what]: (state[what] + by + many) % many });
  const box = at.closest?.("#layers, #heads");
  if (box) find(`#${what}s`).children[state[what]].focus();
}

// Hides the tooltip, except if the grid scrolls to the row of the token under the pointer.
function scrolled(event) {
  if (event.target.id !== "grid" || !find(".tokens .on")) hideTip();
}

function start() {
  startStrip();
  startWhy();
  startThoughts();
  find("#tabs").hidden = maps.length === 1;
  find("#tabs").append(...maps.map((map, at) => {
    const tab = document.createElement("button");
    Object.assign(tab, { type: "button", role: "tab", textContent: map.by === "layers" ? "By layer" : map.name[0].toUpperCase() + map.name.slice(1) });
    tab.setAttribute("aria-controls", "deck");
    tab.addEventListener("click", () => choose({ map: at }));
    return tab;
  }));
  find("#views").addEventListener("click", (event) => event.target.dataset.view && choose({ view: event.target.dataset.view }));
  find("#least").addEventListener("input", (event) => choose({ least: event.target.value / 100 }));
  for (const kind of ["pointermove", "pointerdown"]) find(".cells").addEventListener(kind, overGrid);
  find(".cells").addEventListener("pointerleave", hideTip);
  find(".tiles").addEventListener("pointermove", overTiles);
  find(".tiles").addEventListener("pointerleave", hideTip);
  find(".tiles").addEventListener("click", (event) => choose(tileAt(event)));
  const arcs = find("#arcs");
  const only = (event) => isolate(event.target.closest(".token"), seen.weights, chosen().keys.length);
  for (const kind of ["pointerover", "focusin"]) arcs.addEventListener(kind, only);
  for (const kind of ["pointerleave", "focusout"]) arcs.addEventListener(kind, () => isolate(null));
  const words = find("#words");
  words.addEventListener("toggle", () => words.open && showWords());
  document.addEventListener("keydown", pressed);
  document.addEventListener("scroll", scrolled, { passive: true, capture: true });
  addEventListener("hashchange", () => { readHash(); show(true); });
  let open = false;
  addEventListener("beforeprint", () => { printing = true; open = words.open; words.open = true; show(true); });
  addEventListener("afterprint", () => { printing = false; words.open = open; show(true); });
  night.addEventListener("change", () => show(true));
  let width = innerWidth; // on phones, the address bar triggers resize events
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; show(true); } });
  readHash();
  show(true);
}

start();

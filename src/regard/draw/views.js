"use strict";
// The three views of a page: grid, arcs, and overview of all layers and heads.

const data = JSON.parse(document.getElementById("data").textContent);
const MEAN = 0; // layers and heads count from 1; 0 is the average
const find = (selector) => document.querySelector(selector);
const SVG = find("svg").namespaceURI;
const MANY_ARCS = 4000;
let printing = false;

const maps = data.maps.map((map) => ({
  ...map,
  weights: Float32Array.from(map.weights.flat(3), (whole) => whole / data.scale),
  layers: map.weights.length,
  heads: map.weights[0].length,
  rows: map.queries.map(visible),
  columns: map.keys.map(visible),
}));

function visible(token) {
  if (token.trim() === "" && !/[\n\r\t]/.test(token)) return "␣".repeat(Math.min(token.length, 16)) || "∅";
  const shown = token.replace(/[\n\u2028\u2029]/g, "↵").replace(/\r/g, "␍").replace(/\t/g, "⇥")
    .replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "").replace(/\p{Cc}|\p{Cs}/gu, "\ufffd");
  const letters = [...shown];
  return letters.length > 18 ? letters.slice(0, 17).join("") + "…" : shown;
}

function percent(weight) {
  const whole = weight * 100;
  return (whole >= 9.95 || whole === 0 ? whole.toFixed(0) : whole.toFixed(1)) + " %";
}

// Upper end of the color scale: the largest weight of a single key (the first key may be the sum of keys not shown), or EVEN
// times the uniform weight if larger, so that uniform attention looks uniform.
const EVEN = 4;
function strongest(map, weights) {
  let most = 0;
  for (let at = 0; at < weights.length; at++) if (!map.gathered || at % map.keys.length) most = Math.max(most, weights[at]);
  return map.gathered || most > 1 ? most || 1 : Math.min(Math.max(most, EVEN / map.keys.length), 1);
}

// Average over the selected layers and heads, as one flat array of queries × keys.
function matrix(map, layer, head) {
  const size = map.queries.length * map.keys.length;
  const layers = layer === MEAN ? [...Array(map.layers).keys()] : [layer - 1];
  const heads = head === MEAN ? [...Array(map.heads).keys()] : [head - 1];
  const sum = new Float64Array(size);
  for (const l of layers) for (const h of heads) {
    const from = (l * map.heads + h) * size;
    for (let at = 0; at < size; at++) sum[at] += map.weights[from + at];
  }
  return sum.map((value) => value / (layers.length * heads.length));
}

const night = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => night.matches && !printing;
// Canvas colors, because style sheets do not apply to a canvas: lines, numbers, and values on weak and strong cells.
const INKS = {
  light: { line: "#e1e5eb", quiet: "#5c6675", weak: "#1c2430", strong: "#ffffff", cut: "#c8501e" },
  dark: { line: "#2c303b", quiet: "#9ba5b4", weak: "#c9d0dc", strong: "#10131a", cut: "#f0935f" },
};
const inks = () => (isDark() ? INKS.dark : INKS.light);

function bytes(hex) { return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)); }

const stopsOf = (ramps) => (isDark() ? ramps.dark : ramps.light);

// 256 colors [r, g, b] between the stops.
function palette(ramps = data) {
  const stops = stopsOf(ramps).map(bytes);
  return Array.from({ length: 256 }, (_, at) => {
    const place = (at / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return stops[low].map((value, channel) => Math.round(value + (stops[low + 1][channel] - value) * (place - low)));
  });
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const pen = document.createElement("canvas").getContext("2d");
function widest(labels, size) {
  pen.font = `600 ${size}px system-ui, sans-serif`;
  return Math.ceil(labels.reduce((most, label) => Math.max(most, pen.measureText(label).width), 0));
}

// Sets the size of a canvas in CSS pixels, at the resolution of the screen or printer.
function sharp(canvas, width, height) {
  const wanted = printing ? 3 : Math.max(1, window.devicePixelRatio || 1);
  const ratio = Math.min(wanted, Math.sqrt(16e6 / (width * height))); // larger canvases fail on phones
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const room = (node) => (printing ? 660 : node.clientWidth);

// Width of rotated labels beyond the last column.
function overhang(labels, size, wide) {
  const reach = labels.map((label, at) => widest([label], size) * Math.SQRT1_2 + size - (labels.length - at - 0.5) * wide);
  return Math.max(0, Math.ceil(Math.max(...reach)));
}

// Size of cells and labels for the available width; on screen, the grid scrolls if cells would be narrower than 11 pixels.
function measure(map) {
  const space = room(find("#grid")) - 4, many = map.columns.length;
  let size = 15, left, over, wide;
  do {
    size--;
    left = widest(map.rows, size) + 12;
    const evenly = (space - left) / many;
    over = overhang(map.columns, size, Math.min(evenly, 62));
    wide = Math.floor((space - left - over) / many);
  } while (wide < size * 1.55 && size > 10);
  const long = widest(map.columns, size);
  const angle = long <= wide - 8 ? 0 : wide >= size * 1.55 ? 45 : 90;
  if (angle !== 45) [over, wide] = [0, Math.floor((space - left) / many)];
  wide = wide >= 11 ? Math.min(wide, 62) : printing ? Math.max(wide, 3) : clamp(Math.floor(4000 / Math.max(many, map.rows.length)), 4, 15);
  const top = angle === 0 ? size + 14 : Math.ceil(long * (angle === 45 ? Math.SQRT1_2 : 1)) + size + 4;
  return { size: Math.min(size, wide), left, wide, high: Math.min(wide, 40), angle, over, top };
}

function drawLabels(map, m) {
  const across = find("#grid .across"), down = find("#grid .down"), corner = find("#grid .corner");
  corner.style.cssText = `width:${m.left}px;height:${m.top}px`;
  across.setAttribute("width", map.columns.length * m.wide + m.over);
  across.setAttribute("height", m.top);
  down.setAttribute("width", m.left);
  down.setAttribute("height", map.rows.length * m.high);
  across.replaceChildren(...map.columns.map((label, at) => {
    const x = (at + 0.5) * m.wide + (m.angle === 90 ? m.size * 0.35 : 0), y = m.top - 7;
    const anchor = m.angle === 0 ? "middle" : "start";
    return element("text", { transform: `translate(${x} ${y}) rotate(${-m.angle})`, "font-size": m.size, "text-anchor": anchor }, label);
  }));
  down.replaceChildren(...map.rows.map((label, at) => element("text", {
    x: m.left - 8, y: (at + 0.5) * m.high + m.size * 0.35, "font-size": m.size, "text-anchor": "end",
  }, label)));
}

function drawGrid(map, weights, most) {
  const m = measure(map), colours = palette();
  const [many, across] = [map.rows.length, map.columns.length];
  drawLabels(map, m);
  const context = sharp(find("#grid canvas"), across * m.wide, many * m.high);
  const ink = inks();
  const written = m.wide >= 32 && m.high >= 20;
  const gap = m.wide >= 11 ? 1 : 0;
  context.fillStyle = gap ? ink.line : "transparent";
  context.fillRect(0, 0, across * m.wide, many * m.high);
  context.font = `${Math.min(12, m.wide * 0.32)}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = 0; row < many; row++) for (let column = 0; column < across; column++) {
    const weight = weights[row * across + column], share = map.rooted ? Math.sqrt(weight / most) : weight / most;
    context.fillStyle = `rgb(${colours[Math.round(255 * clamp(share, 0, 1))]})`;
    context.fillRect(column * m.wide, row * m.high, m.wide - gap, m.high - gap);
    if (written && weight >= 0.005) {
      context.fillStyle = share > 0.45 ? ink.strong : ink.weak;
      context.fillText(Math.round(weight * 100), (column + 0.5) * m.wide, (row + 0.53) * m.high);
    }
  }
  context.fillStyle = ink.cut; // boundary between two texts
  for (const cut of map.cuts) {
    context.fillRect(cut * m.wide - 1, 0, 1.5, many * m.high);
    context.fillRect(0, cut * m.high - 1, across * m.wide, 1.5);
  }
  return m;
}

function arcPath(from, to, left, right) {
  const bend = (right - left) * 0.45;
  return `M${left} ${from}C${left + bend} ${from} ${right - bend} ${to} ${right} ${to}`;
}

function arcToken(label, number, kind, x, y, edge, width, size, high) {
  const anchor = kind === "query" ? "end" : "start";
  const group = element("g", { class: "token", tabindex: 0, "data-kind": kind, "data-at": number, role: "img", "aria-label": label });
  const rect = { x: kind === "query" ? edge - width : edge, y: y - high / 2, width, height: high, rx: 5 };
  group.append(element("rect", rect), element("text", { x, y: y + size * 0.35, "font-size": size, "text-anchor": anchor }));
  group.lastChild.append(element("tspan", {}, label));
  return group;
}

function drawArcs(map, weights, most, least) {
  const svg = find("#arcs svg");
  const counts = [map.rows.length, map.columns.length];
  const step = clamp(520 / Math.max(...counts), 19, 36), size = clamp(step * 0.6, 12, 15);
  const share = 52, pad = 10;
  const widths = [map.rows, map.columns].map((labels) => widest(labels, size) + share + pad);
  const width = clamp(room(find(".stage")) - 2, widths[0] + widths[1] + 90, widths[0] + widths[1] + 460);
  const top = 30, height = Math.max(...counts) * step;
  const [left, right] = [widths[0], width - widths[1]];
  const place = (side, at) => top + ((at + 0.5) * height) / counts[side];
  let arcs = [...weights.keys()].filter((at) => weights[at] >= least && weights[at] > 0);
  arcs = arcs.sort((a, b) => weights[b] - weights[a]).slice(0, MANY_ARCS).reverse();
  const paths = arcs.map((at) => {
    const query = Math.floor(at / counts[1]), key = at % counts[1], strength = Math.min(weights[at] / most, 1);
    return element("path", {
      d: arcPath(place(0, query), place(1, key), left + 2, right - 2), "data-query": query, "data-key": key,
      "stroke-width": (0.5 + (step * 0.34) * strength).toFixed(2), "stroke-opacity": (0.1 + 0.8 * strength).toFixed(3),
    });
  });
  const tokens = [
    ...map.rows.map((label, at) => arcToken(label, at, "query", left - pad, place(0, at), left, widths[0], size, height / counts[0])),
    ...map.columns.map((label, at) => arcToken(label, at, "key", right + pad, place(1, at), right, widths[1], size, height / counts[1])),
  ];
  const sides = [
    element("text", { class: "side", x: left - pad, y: 14, "text-anchor": "end" }, map.depends ? "Output" : "Query"),
    element("text", { class: "side", x: right + pad, y: 14 }, map.depends ? "Input" : "Key"),
  ];
  const middle = { class: "none", x: (left + right) / 2, y: top + height / 2, "text-anchor": "middle" };
  if (!paths.length) sides.push(element("text", middle, "no weight above the limit"));
  svg.setAttribute("width", width);
  svg.setAttribute("height", top + height + 6);
  svg.replaceChildren(...sides, ...paths, ...tokens);
}

// Shows only the arcs of one token, with the weight at the other end; all arcs if there is no token.
function isolate(token, weights, keys) {
  const box = find("#arcs");
  box.classList.toggle("alone", Boolean(token));
  const kind = token?.dataset.kind, at = Number(token?.dataset.at);
  for (const path of box.querySelectorAll("path")) path.classList.toggle("on", Boolean(token) && Number(path.dataset[kind]) === at);
  for (const other of box.querySelectorAll(".token")) {
    const there = Number(other.dataset.at);
    const weight = !token || other.dataset.kind === kind ? 0 : kind === "query" ? weights[at * keys + there] : weights[there * keys + at];
    other.classList.toggle("chosen", other === token);
    other.classList.toggle("on", weight >= 0.01);
    const text = other.querySelector("text");
    text.querySelector(".share")?.remove();
    if (weight < 0.01) continue;
    const share = element("tspan", { class: "share" }, kind === "query" ? `  ${percent(weight)}` : `${percent(weight)}  `);
    share.setAttribute("style", "white-space: pre");
    if (kind === "query") text.append(share); else text.prepend(share);
  }
}

// Draws one layer and head with one pixel per weight, on a square root scale so that small weights are visible.
function paintTile(tile, weights, most, colours) {
  const image = new ImageData(tile.width, tile.height);
  for (let at = 0; at < weights.length; at++) {
    const [red, green, blue] = colours[Math.round(255 * Math.sqrt(clamp(weights[at] / most, 0, 1)))];
    image.data[4 * at] = red;
    image.data[4 * at + 1] = green;
    image.data[4 * at + 2] = blue;
    image.data[4 * at + 3] = 255;
  }
  tile.getContext("2d").putImageData(image, 0, 0);
}

// Draws all tiles on one canvas. Returns the tile layout, used to locate clicks.
function drawOverview(map) {
  const canvas = find(".tiles canvas"), colours = palette(), ink = inks();
  const [many, across] = [map.rows.length, map.columns.length];
  const gutter = 20, gap = 4, size = many * across;
  const wide = clamp((room(find(".overview")) - gutter - 4) / map.heads, 12, 72), high = wide * clamp(many / across, 0.5, 2);
  const context = sharp(canvas, gutter + wide * map.heads, gutter + high * map.layers);
  const most = strongest(map, map.weights);
  const tile = Object.assign(document.createElement("canvas"), { width: across, height: many });
  context.font = "10.5px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.imageSmoothingQuality = "high";
  context.imageSmoothingEnabled = wide * (window.devicePixelRatio || 1) < across * 1.5;
  context.strokeStyle = ink.line;
  context.fillStyle = ink.quiet;
  for (let layer = 0; layer < map.layers; layer++) for (let head = 0; head < map.heads; head++) {
    const from = (layer * map.heads + head) * size;
    const [x, y] = [gutter + head * wide + gap / 2, gutter + layer * high + gap / 2];
    paintTile(tile, map.weights.subarray(from, from + size), most, colours);
    context.drawImage(tile, x, y, wide - gap, high - gap);
    context.strokeRect(x, y, wide - gap, high - gap);
  }
  for (let head = 0; head < map.heads; head++) context.fillText(head + 1, gutter + (head + 0.5) * wide, gutter / 2);
  for (let layer = 0; layer < map.layers; layer++) context.fillText(layer + 1, gutter / 2, gutter + (layer + 0.5) * high);
  canvas.setAttribute("aria-label", `Overview of ${map.layers} layers by ${map.heads} heads; the buttons select a layer and a head`);
  return { gutter, gap, wide, high };
}

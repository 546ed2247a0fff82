// Attention of a point to its neighbors. Buttons select the layer; a click selects a query point with stored attention.

const said = data.said && numbers(data.said, Uint16Array), palette = data.palette.map(rgb), glow = ramp(data.glow);
const levels = data.levels.map((text) => numbers(text, Uint32Array));
const layers = data.layers.map((layer) => ({
  ...layer, keys: numbers(layer.keys, Uint32Array), shares: bytes(layer.shares), most: numbers(layer.most, Float32Array),
  // row of attention weights by index of the query point
  rows: new Map(Array.from(layer.queries ? numbers(layer.queries, Uint32Array) : levels[layer.level].keys(), (query, row) => [levels[layer.level][query], row])),
}));
const origins = data.origins && numbers(data.origins, Uint32Array), numbersOf = (n) => origins ? origins[n] : n;
const state = { layer: data.layer, chosen: data.chosen, classes: false };
const dark = matchMedia("(prefers-color-scheme: dark)"), paper = () => dark.matches ? [16, 17, 22] : [245, 246, 248];
const far = (a, b) => Math.hypot(...[0, 1, 2].map((axis) => packed[3 * a + axis] - packed[3 * b + axis]));

// Query point of the layer: the selected point, or the nearest point with stored attention.
function asked(layer) {
  if (layer.rows.has(state.chosen)) return state.chosen;
  let best = -1, least = Infinity;
  for (const point of layer.rows.keys()) { const off = far(point, state.chosen); if (off < least) { least = off; best = point; } }
  return best;
}
// Key points with weights, largest weight first. Weights of repeated keys are added.
function looked(layer, point) {
  const row = layer.rows.get(point), found = new Map();
  for (let column = 0; column < layer.columns; column++) {
    const key = layer.keys[row * layer.columns + column], share = layer.most[row] * layer.shares[row * layer.columns + column] / 255;
    if (key < 0xffffffff) found.set(levels[layer.level][key], (found.get(levels[layer.level][key]) || 0) + share);
  }
  return [...found].sort((one, other) => other[1] - one[1]);
}
let now = [], from = -1, ringed = -1;
// Upper end of the color scale: the largest weight.
const bright = () => now[0][1] || 1;
const shade = (share) => glow(data.faint + (1 - data.faint) * share);
// `near`: minimum distance of the camera; null keeps the camera.
function show(near = null) {
  const layer = layers[state.layer], ground = paper(), colours = new Uint8Array(4 * many);
  from = asked(layer); now = looked(layer, from);
  const put = (n, colour, part, large) => { for (let channel = 0; channel < 3; channel++) colours[4 * n + channel] = ground[channel] + part * (colour[channel] - ground[channel]); colours[4 * n + 3] = PLAIN * large; };
  const plain = dark.matches ? [120, 130, 148] : [126, 138, 156], own = (n) => state.classes ? palette[said[n]] : plain;
  for (let n = 0; n < many; n++) put(n, own(n), 0.3, 0.7);
  for (const n of levels[layer.level]) put(n, own(n), state.classes ? 0.5 : 0.7, 1);
  const most = bright();
  for (const [n, share] of [...now].reverse()) put(n, shade(share / most), 1, 1.25 + 0.5 * share / most);
  stage.meant = [from, ...now.map(([n]) => n)];
  if (near !== null) stage.frame(near);
  if (near === 0) { stage.usual = clamp(0.08 + 0.2 * stage.far, 0.2, 0.6); sized(); } // similar point size at every camera distance
  stage.paint(colours);
  find("#heading").textContent = `${data.method[0].toUpperCase()}${data.method.slice(1)} of point ${numbersOf(from)}`;
  find("#shown").textContent = `${layer.name}: ${counted(now.length, "neighbor")} among ${counted(levels[layer.level].length, "point")}` + (from === state.chosen ? "" : "; nearest available point to the selected point");
  for (const button of document.querySelectorAll("#layers button")) button.setAttribute("aria-pressed", +button.dataset.layer === state.layer);
  for (const button of find("#ways").children) button.setAttribute("aria-pressed", button.dataset.on === String(state.classes));
  kinds.hidden = !state.classes;
  find("#scale .last").textContent = percent(most);
  find("#near").replaceChildren(...now.slice(0, 12).map(([n, share]) => {
    const item = made("li"), bar = made("i");
    bar.style.setProperty("--share", `${100 * share / most}%`);
    item.append(made("b", "", (n === from ? "itself" : `${numbersOf(n)}`) + (said ? ` · ${data.labels[said[n]]}` : "")), bar, made("span", "", percent(share)));
    item.onmouseenter = () => { ringed = n; stage.draw(); }; item.onmouseleave = () => { ringed = -1; stage.draw(); };
    return item;
  }));
  find("#words ol").replaceChildren(...now.map(([n, share]) => { const item = made("li"); item.append(made("b", "", `point ${numbersOf(n)}`), made("span", "", ` ${percent(share)}, at ${coordinates(n)}`)); return item; }));
}

const box = made("div", "group"), names = made("div", "");
names.id = "layers";
box.append(made("span", "name", "Layer"), names);
levels.forEach((points, level) => {
  const some = layers.map((layer, number) => [layer, number]).filter(([layer]) => layer.level === level);
  if (!some.length) return;
  const row = made("div", "buttons");
  for (const [layer, number] of some) option(row, layer.brief, () => { state.layer = number; show(0); }).dataset.layer = number;
  names.append(made("small", "level", counted(points.length, "point")), row);
});
const near = made("div", "group"), list = made("ol", "chances");
list.id = "near"; near.append(made("span", "name", "Top neighbors"), list);
// Legend of the classes that occur, most frequent first.
const kinds = made("div", "group"), swatches = made("ol", "classes plain");
if (said) {
  const many = data.labels.map(() => 0);
  for (const number of said) many[number]++;
  for (const number of [...many.keys()].filter((one) => many[one]).sort((one, other) => many[other] - many[one])) {
    const item = made("li");
    item.style.setProperty("--own", data.palette[number]); item.append(made("i"), made("b", "", data.labels[number]), made("small", "", percent(many[number] / said.length)));
    swatches.append(item);
  }
}
kinds.append(made("span", "name", "Classes"), swatches);
find("#choose").append(box, kinds, near, made("p", "hint", data.hint));
find("#scale").hidden = false; find("#scale .first").textContent = "0"; find("#scale .ramp").style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((share) => `rgb(${shade(share)})`).join(", ")})`;

stage.chose = (n) => { if (n >= 0 && data.choosing) { state.chosen = n; show(stage.far); } };
stage.pointed = (n, event) => {
  if (n < 0) return told(event, []);
  const share = now.find(([point]) => point === n);
  told(event, [`point ${numbersOf(n)}` + (said ? ` · ${data.labels[said[n]]}` : ""), ...(share ? [`${data.method} ${percent(share[1])}`] : []), coordinates(n)]);
};
stage.after = (pen, at) => {
  if (from < 0) return;
  const [x, y] = at(from), most = bright();
  for (const [n, share] of now) {
    if (n === from) continue;
    const [toX, toY] = at(n);
    pen.strokeStyle = `rgba(${shade(share / most)}, ${0.25 + 0.6 * share / most})`; pen.lineWidth = 0.6 + 1.6 * share / most;
    pen.beginPath(); pen.moveTo(x, y); pen.lineTo(toX, toY); pen.stroke();
  }
  ring(pen, x, y, 9);
  if (ringed >= 0) ring(pen, ...at(ringed).slice(0, 2), 6);
};
dark.addEventListener("change", () => show());
if (said) for (const [name, on] of [["Attention", false], ["Classes", true]]) option(find("#ways"), name, () => { state.classes = on; show(); }).dataset.on = on;
stage.part = 0.55; stage.least = 0.7; show(0);

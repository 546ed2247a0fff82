// Point cloud colored by predicted class, label, error, original color, height or confidence.

const said = numbers(data.said, Uint16Array), right = data.right && numbers(data.right, Uint16Array);
const sure = data.sure && bytes(data.sure), own = data.colours && bytes(data.colours);
const NONE = 65535, palette = data.palette.map(rgb), grey = rgb(data.blank), [fine, fault] = data.faults.map(rgb);
const hidden = new Set(), state = { way: data.ways[0] };
const upright = { x: 0, y: 1, z: 2 }[data.up], highest = data.sides[upright] || 1;
const ramps = { height: ramp(data.ramps.height), certainty: ramp(data.ramps.certainty) };

const WAYS = {
  class: { title: "Prediction", of: (n) => palette[said[n]] },
  truth: { title: "Label", of: (n) => right[n] === NONE ? grey : palette[right[n]] },
  wrong: { title: "Errors", of: (n) => right[n] === NONE ? grey : right[n] === said[n] ? fine : fault, large: (n) => right[n] !== NONE && right[n] !== said[n] ? 1.4 : 1 },
  colours: { title: "Original color", of: (n) => [own[3 * n], own[3 * n + 1], own[3 * n + 2]] },
  height: { title: "Height", of: (n) => ramps.height(packed[3 * n + upright] / 65535 / highest), ends: () => { const low = data.low[upright]; return [low, low + 65535 * data.step * highest].map((value) => Number(value.toPrecision(3))); } },
  certainty: { title: "Confidence", of: (n) => ramps.certainty(sure[n] / 255), ends: () => ["0 %", "100 %"] },
};
const listed = data.shares.map(([number]) => number);
const kindOf = (n) => state.way === "truth" ? right[n] : said[n];

function paint() {
  const { of, large } = WAYS[state.way], colours = new Uint8Array(4 * many);
  for (let n = 0; n < many; n++) {
    if (hidden.has(kindOf(n))) continue;
    colours.set(of(n), 4 * n); colours[4 * n + 3] = PLAIN * (large ? large(n) : 1);
  }
  stage.paint(colours);
}
function show() {
  const way = WAYS[state.way], scale = find("#scale");
  find("#heading").textContent = way.title;
  for (const button of find("#ways").children) button.setAttribute("aria-pressed", button.dataset.way === state.way);
  scale.hidden = !way.ends;
  if (way.ends) {
    [scale.querySelector(".first").textContent, scale.querySelector(".last").textContent] = way.ends();
    scale.querySelector(".ramp").style.background = `linear-gradient(90deg, ${data.ramps[state.way].join(", ")})`;
  }
  for (const button of document.querySelectorAll(".classes button")) {
    const number = +button.dataset.number, share = state.way === "truth" ? data.truths[number] : data.shares[listed.indexOf(number)][1];
    button.setAttribute("aria-pressed", !hidden.has(number));
    button.style.setProperty("--share", `${100 * share}%`); button.querySelector("small").textContent = percent(share);
  }
  find("#of").textContent = state.way === "truth" ? "(label)" : data.truths ? "(prediction)" : "";
  const left = listed.filter((number) => !hidden.has(number)).length;
  find("#shown").textContent = left < listed.length ? `${left} of ${listed.length} classes shown` : state.way === "wrong" ? data.mistakes : "";
  paint();
}
for (const name of data.ways) option(find("#ways"), WAYS[name].title, () => { state.way = name; show(); }).dataset.way = name;
find("#ways").hidden = data.ways.length < 2;

const group = made("div", "group"), list = made("ol", "classes");
const name = made("span", "name", "Classes "), of = made("small");
of.id = "of"; name.append(of); group.append(name, list);
for (const number of listed) {
  const item = made("li"), button = option(item, "", () => { hidden.has(number) ? hidden.delete(number) : hidden.add(number); show(); });
  button.dataset.number = number; button.title = "Show or hide";
  button.style.setProperty("--own", `rgb(${palette[number]})`);
  button.append(made("i"), made("b", "", data.labels[number]), made("small"), made("u"));
  button.ondblclick = () => { hidden.clear(); for (const other of listed) if (other !== number) hidden.add(other); show(); };
  list.append(item);
}
const whole = made("div", "buttons whole");
option(whole, "All", () => { hidden.clear(); show(); });
option(whole, "None", () => { for (const number of listed) hidden.add(number); show(); });
group.append(whole, made("p", "hint", "Click to show or hide a class, double-click to show only this class."));
find("#choose").append(group);

let ringed = -1;
stage.pointed = (n, event) => {
  if (n !== ringed) { ringed = n; stage.draw(); }
  if (n < 0) return told(event, []);
  const lines = [data.labels[said[n]] + (sure ? ` · ${percent(sure[n] / 255)}` : "")];
  if (right) lines.push(right[n] === NONE ? "no label" : right[n] === said[n] ? "correct" : `label: ${data.labels[right[n]]}`);
  told(event, [...lines, coordinates(n)]);
};
stage.after = (pen, at) => {
  if (ringed < 0) return;
  const [x, y] = at(ringed);
  ring(pen, x, y, 8);
};
for (const [number, share] of data.shares) {
  const item = made("li");
  item.append(made("b", "", data.labels[number]), made("span", "", ` ${percent(share)} of the points${data.truths ? `, label ${percent(data.truths[number])}` : ""}${data.overlap ? `, IoU ${data.overlap[number] === null ? "–" : percent(data.overlap[number])}` : ""}`));
  find("#words ol").append(item);
}
show();

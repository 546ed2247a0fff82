// Candidate probabilities, and tokens colored by attribution.

const decided = data.decided;
const why = { title: "", way: "" };
const current = () => decided.counted.find((one) => one.title === why.title && one.way === why.way);

const distinct = (key) => [...new Set(decided.counted.map((one) => one[key]))];

function pick(change) {
  Object.assign(why, change);
  if (!current()) why.way = decided.counted.find((one) => one.title === why.title).way;
  fillWhy();
  paintWhy();
  if (chosen().by === "tokens" && state.map !== current().map) choose({ map: current().map });
}

// One button per option; hidden if there is only one option.
function options(box, names, now, choose) {
  box.hidden = names.length < 2;
  box.replaceChildren(...names.map((name) => {
    const button = made("button", "", name);
    button.type = "button";
    button.setAttribute("aria-pressed", name === now);
    button.addEventListener("click", () => choose(name));
    return button;
  }));
}

function fillChances() {
  find("#asked").textContent = decided.asked;
  find("#asked").hidden = find("#why .chances").hidden = !decided.chances.length;
  find("#why .chances").replaceChildren(...decided.chances.map(([name, chance]) => {
    const line = made("li", name === decided.said ? "said" : ""), bar = made("i", "");
    bar.style.setProperty("--share", `${100 * chance}%`);
    line.append(made("b", "", name), bar, made("span", "", `${(100 * chance).toFixed(1)} %`));
    return line;
  }));
  if (decided.more) find("#why .chances").append(made("li", "more", decided.more));
}

function counts(share) {
  return share > 0 && share < 0.0995 ? `${Number((100 * share).toPrecision(2))} %` : percent(share);
}

// Token elements. A number is the count of omitted tokens, null precedes the second text.
function fillTokens(one) {
  find("#why .tokens").replaceChildren(...one.tokens.flatMap((token, number) => {
    if (token === null) return made("span", "apart");
    if (typeof token === "number") return made("span", "gap", ` … ${token.toLocaleString("en")} tokens … `);
    const [piece, share, special, , at] = token;
    const text = running(piece) + (special ? ` ${counts(share)}` : ""), span = made("span", "token", text.trimStart()); // leading spaces are not colored
    if (special) span.classList.add("sign");
    if (one.at.includes(at) && one.at.length < 9) span.classList.add("read");
    Object.assign(span.dataset, { at });
    span.tabIndex = -1;
    span.setAttribute("role", "img");
    span.setAttribute("aria-label", `${visible(piece)}: ${counts(share)}`);
    return text.startsWith(" ") && Array.isArray(one.tokens[number - 1]) ? [" ", span] : span;
  }));
  const first = find("#why .token");
  if (first) first.tabIndex = 0;
}

function fillWhy() {
  const one = current();
  options(find("#titles"), distinct("title"), why.title, (title) => pick({ title }));
  const ways = distinct("way").filter((way) => decided.counted.some((other) => other.title === why.title && other.way === way));
  options(find("#ways"), ways, why.way, (way) => pick({ way }));
  find("#why-name").textContent = one.heading;
  find("#why .about").textContent = one.description;
  find("#why .how").textContent = one.note;
  find("#why .most").textContent = `${counts(one.most)} ${one.unit} (per word)`;
  find("#why .profile").hidden = !one.profile;
  fillTokens(one);
}

// Bar chart of a long text, one bar per segment.
function paintProfile(one, colour) {
  if (!one.profile) return;
  const canvas = find("#why .profile canvas"), wide = room(find("#why .profile")), high = 56;
  const context = sharp(canvas, wide, high), most = Math.max(...one.profile) || 1, step = wide / one.profile.length;
  context.fillStyle = inks().line;
  context.fillRect(0, high - 1, wide, 1);
  context.fillStyle = `rgb(${colour})`;
  one.profile.forEach((value, at) => context.fillRect(at * step, high - 1 - (value / most) * (high - 4), Math.max(step - 1, 1), (value / most) * (high - 4)));
  canvas.setAttribute("aria-label", `${one.profile.length} segments of the text; maximum ${counts(most)}`);
  find("#why .profile figcaption").textContent =
    `Whole text, ${one.stretch.toLocaleString("en")} tokens per bar; maximum ${counts(most)}. Below: the passages with the largest values.`;
}

function paintWhy() {
  if (!decided) return;
  const one = current(), ramps = decided.ramps[one.way], colours = palette(ramps);
  const shares = new Map(one.tokens.filter(Array.isArray).map((token) => [token[4], token[5]]));
  for (const span of document.querySelectorAll("#why .token:not(.sign)")) {
    const share = clamp(shares.get(Number(span.dataset.at)) / one.most, 0, 1);
    span.style.backgroundColor = `rgb(${colours[Math.round(255 * share)]})`;
  }
  find("#why .ramp").style.background = `linear-gradient(90deg, ${stopsOf(ramps).join(", ")})`;
  paintProfile(one, colours[255]);
}

function overCounted(span, point) {
  leaveStrip();
  const one = current(), at = Number(span.dataset.at);
  const shown = one.tokens.filter(Array.isArray), token = shown.find((other) => other[4] === at);
  const word = shown.filter((other) => other[3] === token[3]);
  for (const other of document.querySelectorAll("#why .token")) {
    if (word.some((part) => part[4] === Number(other.dataset.at))) other.classList.add("on");
  }
  const rank = shown.filter((other) => other[1] > token[1]).length + 1;
  const bare = (text) => visible(text.replace(/^␣+(?=[^␣])/, ""));
  const lines = [made("b", "", bare(token[0])), made("span", "big", counts(token[1]))];
  lines.push(`rank ${rank.toLocaleString("en")} of ${shown.length.toLocaleString("en")} tokens`);
  if (word.length > 1) {
    lines.push(document.createElement("br"), `${bare(word.map((part) => part[0]).join(""))}: ${counts(word.reduce((sum, part) => sum + part[1], 0))}`);
  }
  if (state.map === one.map && one.all === chosen().rows.length) pointRow(at);
  tip(point, lines);
}

function startWhy() {
  find("#why").hidden = !decided;
  if (!decided) return;
  Object.assign(why, { title: decided.counted[0].title, way: decided.counted[0].way });
  fillChances();
  fillWhy();
  listen(find("#why .tokens"), overCounted);
}

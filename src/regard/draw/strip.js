// Tokens colored by surprisal. A tooltip shows the most likely tokens at the same position.

const reading = data.reading;
const tokens = reading ? reading.tokens : [];
const ENDS = /[⏎↵]$/;

// Displayed text of a token: spaces are visible symbols only if the token has no other characters.
function running(piece) {
  return /^␣*$/.test(piece) ? piece : piece.replaceAll("␣", " ");
}

function chanceOf(chance) {
  if (chance >= 0.0005 || chance === 0) return percent(chance);
  return `${chance >= 1e-7 ? Number((chance * 100).toPrecision(2)) : (chance * 100).toExponential(0)} %`;
}

function made(name, className, text) {
  const node = Object.assign(document.createElement(name), { className });
  if (text !== undefined) node.textContent = text;
  return node;
}

function place(token) {
  return `rank ${token.rank.toLocaleString("en")}`;
}

function fillStrip() {
  find("#text").hidden = !reading;
  if (!reading) return;
  find("#text .tokens").append(...tokens.flatMap((token, at) => {
    const span = made("span", at === reading.given && at ? "token asked" : "token", running(token.piece));
    if (/^[␣⏎↵]+$/.test(token.piece)) span.classList.add("sign");
    Object.assign(span.dataset, { at });
    span.tabIndex = at ? -1 : 0;
    span.setAttribute("role", "img");
    span.setAttribute("aria-label", `${visible(token.piece)}: ${chanceOf(token.chance)}, ${place(token)}`);
    return ENDS.test(token.piece) ? [span, document.createElement("br")] : [span];
  }));
  const even = `uniform over ${reading.vocabulary.toLocaleString("en")} tokens: ${reading.evenly.toFixed(1)} bits`;
  find("#text .even").textContent = even;
}

function paintStrip() {
  if (!reading) return;
  const colours = palette(reading);
  for (const span of document.querySelectorAll("#text .token")) {
    const share = clamp(tokens[span.dataset.at].bits / reading.evenly, 0, 1);
    span.style.backgroundColor = `rgb(${colours[Math.round(255 * share)]})`;
  }
  find("#text .ramp").style.background = `linear-gradient(90deg, ${stopsOf(reading).join(", ")})`;
}

// The most likely tokens; the actual token is added if missing.
function likelyList(token) {
  const rows = token.likeliest.map(([piece, chance], at) => ({ piece, chance, own: at === token.rank - 1 }));
  if (token.rank > rows.length) rows.push({ piece: token.piece, chance: token.chance, own: true });
  const list = made("ol", "likely"), most = rows[0].chance || 1;
  list.append(...rows.map((row) => {
    const line = made("li", row.own ? "own" : ""), bar = made("i", "");
    bar.style.width = `${(64 * row.chance) / most}px`;
    line.append(made("b", "", visible(row.piece)), bar, made("span", "", chanceOf(row.chance)));
    return line;
  }));
  return list;
}

function overToken(span, point) {
  leaveStrip();
  const at = Number(span.dataset.at), token = tokens[at];
  span.classList.add("on");
  pointRow(at + reading.row);
  const expected = `${place(token)} of ${reading.vocabulary.toLocaleString("en")} · ${token.bits.toFixed(1)} bits`;
  tip(point, [made("b", "", visible(token.piece)), made("span", "big", chanceOf(token.chance)), expected, likelyList(token)]);
}

function leaveStrip() {
  hideTip();
  if (state.view === "arcs") isolate(null);
}

// Highlights the row of a token in the map; early tokens of a long text have no row.
function pointRow(row) {
  if (row < 0 || row >= chosen().rows.length) return;
  if (state.view === "arcs") {
    isolate(find(`#arcs .token[data-kind=query][data-at="${row}"]`), seen.weights, chosen().keys.length);
    return;
  }
  markRow(row);
  const box = find("#grid"), { high, top } = seen.grid;
  const room = Math.min(box.clientHeight, innerHeight - box.getBoundingClientRect().top) - top; // visible height
  if (room < high) return;
  if (row * high < box.scrollTop) box.scrollTop = row * high;
  if ((row + 1) * high > box.scrollTop + room) box.scrollTop = (row + 1) * high - room;
}

function stepStrip(event) {
  const spans = [...event.currentTarget.querySelectorAll(".token")], from = spans.indexOf(event.target);
  const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: spans.length - 1 }[event.key];
  if (from < 0 || to === undefined) return;
  event.preventDefault();
  event.stopPropagation(); // elsewhere these keys change the head
  const next = spans[clamp(to, 0, spans.length - 1)];
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function startStrip() {
  fillStrip();
  listen(find("#text .tokens"), overToken);
}

// Calls `over` for the token under the pointer, touch or keyboard focus.
function listen(box, over) {
  const under = (event) => event.target.closest(".token");
  for (const kind of ["pointerover", "pointerdown"]) {
    box.addEventListener(kind, (event) => (under(event) ? over(under(event), event) : leaveStrip()));
  }
  box.addEventListener("pointerleave", leaveStrip);
  box.addEventListener("focusin", (event) => {
    const { left, bottom } = event.target.getBoundingClientRect();
    if (event.target.matches(":focus-visible")) over(event.target, { clientX: left, clientY: bottom });
  });
  box.addEventListener("focusout", leaveStrip);
  box.addEventListener("keydown", stepStrip);
}

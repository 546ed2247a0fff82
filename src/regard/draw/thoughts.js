// Tokens colored by the number of computation steps (ACT).

const thoughts = data.thoughts || [];

function startThoughts() {
  find("#steps").hidden = !thoughts.length;
  find("#steps .texts").append(...thoughts.map((thought) => {
    const box = made("div", "thought"), tokens = made("div", "tokens");
    tokens.append(...thought.tokens.map(([piece, steps]) => {
      const span = made("span", "token", running(piece));
      span.dataset.steps = steps;
      span.append(made("sub", "", String(steps)));
      span.setAttribute("role", "img");
      span.setAttribute("aria-label", `${visible(piece)}: ${steps} ${steps === 1 ? "step" : "steps"}`);
      return span;
    }));
    box.append(made("h2", "", thought.title), made("p", "", thought.note), tokens);
    return box;
  }));
  if (thoughts.length) find("#steps .most").textContent = `${thoughts[0].most} steps (maximum)`;
}

function paintThoughts() {
  if (!thoughts.length) return;
  const ramps = thoughts[0], colours = palette(ramps);
  for (const span of document.querySelectorAll("#steps .token")) {
    const share = clamp(Number(span.dataset.steps) / ramps.most, 0, 1);
    span.style.backgroundColor = `rgb(${colours[Math.round(255 * share)]})`;
  }
  find("#steps .ramp").style.background = `linear-gradient(90deg, ${stopsOf(ramps).join(", ")})`;
}

"use strict";
// Rotatable point cloud, drawn with WebGL, or on a 2D canvas if WebGL is not available.

const data = JSON.parse(document.getElementById("data").textContent);
const find = (selector) => document.querySelector(selector);
const made = (tag, className, text) => Object.assign(document.createElement(tag), { className: className || "", textContent: text ?? "" });
const clamp = (value, low, top) => Math.min(Math.max(value, low), top);
const bytes = (text) => { const signs = atob(text), found = new Uint8Array(signs.length); for (let n = 0; n < signs.length; n++) found[n] = signs.charCodeAt(n); return found; };
const numbers = (text, kind) => new kind(bytes(text).buffer);
const rgb = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
const PLAIN = 64; // alpha value of a point of normal size; larger values enlarge the point, 0 hides the point
const FOCAL = 3, NEAR = 0.02, REACH = 14, BEFORE = 0.15;

// Colors for values from 0 to 1, interpolated between evenly spaced stops.
function ramp(stops) {
  const colors = stops.map(rgb);
  return (share) => {
    const at = clamp(share, 0, 1) * (colors.length - 1), low = Math.min(Math.floor(at), colors.length - 2), part = at - low;
    return colors[low].map((value, channel) => value + part * (colors[low + 1][channel] - value));
  };
}

const VERTEX = `#version 300 es
in vec3 place; in vec4 color;
uniform mat3 turned; uniform vec3 center; uniform vec3 lens; uniform float size; uniform vec2 depths;
out vec3 shade;
void main() {
  vec3 seen = turned * (place - center); seen.z += lens.z;
  float part = color.a * 255.0 / ${PLAIN}.0;
  shade = color.rgb;
  if (part == 0.0 || seen.z <= depths.x) { gl_Position = vec4(2, 2, 2, 1); gl_PointSize = 1.0; return; }
  float z = part > 1.2 ? max(seen.z - ${BEFORE}, depths.x) : seen.z; // selected points are in front of their neighbors
  float deep = ((depths.y + depths.x) * z - 2.0 * depths.x * depths.y) / (depths.y - depths.x) / z;
  gl_Position = vec4(lens.xy * seen.xy, deep * seen.z, seen.z);
  gl_PointSize = clamp(size * part / seen.z, 1.5, 60.0);
}`;
const FRAGMENT = `#version 300 es
precision highp float; in vec3 shade; out vec4 seen;
void main() { vec2 at = gl_PointCoord - 0.5; if (dot(at, at) > 0.25) discard; seen = vec4(shade, 1); }`;
const WHOLE = `#version 300 es
void main() { gl_Position = vec4(vec2(gl_VertexID & 1, gl_VertexID >> 1) * 4.0 - 1.0, 0, 1); }`;
// Darkens pixels next to nearer pixels, because points have no normals for shading.
const EDGES = `#version 300 es
precision highp float; uniform sampler2D colors, deep; uniform vec2 depths; uniform vec3 paper; uniform int wide; out vec4 seen;
float far(ivec2 at) {
  float z = texelFetch(deep, clamp(at, ivec2(0), textureSize(deep, 0) - 1), 0).r;
  return z == 1.0 ? 0.0 : log2(2.0 * depths.x * depths.y / (depths.y + depths.x - (2.0 * z - 1.0) * (depths.y - depths.x)));
}
void main() {
  ivec2 at = ivec2(gl_FragCoord.xy);
  if (texelFetch(deep, at, 0).r == 1.0) { seen = vec4(paper, 1); return; }
  float own = far(at), sum = 0.0;
  ivec2 steps[8] = ivec2[8](ivec2(1, 0), ivec2(-1, 0), ivec2(0, 1), ivec2(0, -1), ivec2(1, 1), ivec2(-1, 1), ivec2(1, -1), ivec2(-1, -1));
  for (int n = 0; n < 8; n++) {
    ivec2 there = at + wide * steps[n];
    if (texelFetch(deep, clamp(there, ivec2(0), textureSize(deep, 0) - 1), 0).r < 1.0) sum += max(0.0, own - far(there));
  }
  seen = vec4(texelFetch(colors, at, 0).rgb * (0.35 + 0.65 * exp(-9.0 * sum)), 1);
}`;

// Renderer with WebGL 2.
class Glass {
  constructor(canvas, places) {
    const gl = this.gl = canvas.getContext("webgl2", { antialias: false, alpha: false, preserveDrawingBuffer: true });
    if (!gl) throw new Error("no WebGL");
    this.points = this.program(VERTEX, FRAGMENT); this.edges = this.program(WHOLE, EDGES);
    this.buffers = ["place", "color"].map((name) => {
      const at = gl.getAttribLocation(this.points, name), buffer = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer); gl.enableVertexAttribArray(at);
      if (name === "place") { gl.bufferData(gl.ARRAY_BUFFER, places, gl.STATIC_DRAW); gl.vertexAttribPointer(at, 3, gl.FLOAT, false, 0, 0); }
      else gl.vertexAttribPointer(at, 4, gl.UNSIGNED_BYTE, true, 0, 0);
      return buffer;
    });
    this.many = places.length / 3;
    this.frame = gl.createFramebuffer(); this.maps = [gl.createTexture(), gl.createTexture()];
    if (gl.getError()) throw new Error("no WebGL");
  }
  program(vertex, fragment) {
    const gl = this.gl, whole = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const part = gl.createShader(kind); gl.shaderSource(part, text); gl.compileShader(part);
      if (!gl.getShaderParameter(part, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(part));
      gl.attachShader(whole, part);
    }
    gl.linkProgram(whole);
    if (!gl.getProgramParameter(whole, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(whole));
    return whole;
  }
  resize(wide, high) {
    const gl = this.gl;
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.frame);
    const forms = [[gl.RGBA8, gl.RGBA, gl.UNSIGNED_BYTE, gl.COLOR_ATTACHMENT0], [gl.DEPTH_COMPONENT24, gl.DEPTH_COMPONENT, gl.UNSIGNED_INT, gl.DEPTH_ATTACHMENT]];
    forms.forEach(([inside, outside, kind, place], n) => {
      gl.bindTexture(gl.TEXTURE_2D, this.maps[n]);
      gl.texImage2D(gl.TEXTURE_2D, 0, inside, wide, high, 0, outside, kind, null);
      for (const side of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, side, gl.NEAREST);
      gl.framebufferTexture2D(gl.FRAMEBUFFER, place, gl.TEXTURE_2D, this.maps[n], 0);
    });
    gl.viewport(0, 0, wide, high);
  }
  paint(colors) { const gl = this.gl; gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[1]); gl.bufferData(gl.ARRAY_BUFFER, colors, gl.DYNAMIC_DRAW); }
  draw(view, paper) {
    const gl = this.gl, put = (program, name) => gl.getUniformLocation(program, name);
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.frame); gl.useProgram(this.points);
    gl.enable(gl.DEPTH_TEST); gl.clearColor(0, 0, 0, 1); gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    const [r, u, f] = view.axes;
    gl.uniformMatrix3fv(put(this.points, "turned"), false, [r[0], u[0], f[0], r[1], u[1], f[1], r[2], u[2], f[2]]);
    gl.uniform3fv(put(this.points, "center"), view.center); gl.uniform3f(put(this.points, "lens"), FOCAL / view.ratio, FOCAL, view.far);
    gl.uniform1f(put(this.points, "size"), view.size); gl.uniform2f(put(this.points, "depths"), ...view.depths);
    gl.drawArrays(gl.POINTS, 0, this.many);
    gl.bindFramebuffer(gl.FRAMEBUFFER, null); gl.useProgram(this.edges); gl.disable(gl.DEPTH_TEST);
    this.maps.forEach((map, n) => { gl.activeTexture(gl.TEXTURE0 + n); gl.bindTexture(gl.TEXTURE_2D, map); gl.uniform1i(put(this.edges, ["colors", "deep"][n]), n); });
    gl.activeTexture(gl.TEXTURE0);
    gl.uniform2f(put(this.edges, "depths"), ...view.depths); gl.uniform3fv(put(this.edges, "paper"), paper.map((value) => value / 255));
    gl.uniform1i(put(this.edges, "wide"), Math.max(1, Math.round(view.dots)));
    gl.drawArrays(gl.TRIANGLES, 0, 3);
  }
}

// Renderer for a 2D canvas without WebGL: nearer points cover farther points.
class Pencil {
  constructor(canvas, places) { this.pen = canvas.getContext("2d"); this.places = places; }
  resize(wide, high) { this.sheet = this.pen.createImageData(wide, high); this.deep = new Float32Array(wide * high); }
  paint(colors) { this.colors = colors; }
  draw(view, paper) {
    const { width, height, data: out } = this.sheet, deep = this.deep.fill(Infinity), ink = new Uint32Array(out.buffer);
    ink.fill(0xff000000 | paper[2] << 16 | paper[1] << 8 | paper[0]);
    for (let n = 0; n < this.places.length / 3; n++) {
      const large = this.colors[4 * n + 3] / PLAIN;
      if (!large) continue;
      const at = view.seen(n), x = at[0], y = at[1], z = at[2], order = z - (large > 1.2 ? BEFORE : 0);
      if (z <= view.depths[0]) continue;
      const side = clamp(view.size * large / z, 1, 40) | 0 || 1, left = Math.round(x * width - side / 2), top = Math.round(y * height - side / 2);
      const dark = 1 - 0.5 * clamp((z - view.far) / 2 + 0.3, 0, 1), from = 4 * n, c = this.colors;
      const own = 0xff000000 | (c[from + 2] * dark) << 16 | (c[from + 1] * dark) << 8 | (c[from] * dark);
      for (let row = Math.max(top, 0); row < Math.min(top + side, height); row++)
        for (let column = Math.max(left, 0); column < Math.min(left + side, width); column++) {
          const pixel = row * width + column;
          if (order < deep[pixel]) { deep[pixel] = order; ink[pixel] = own; }
        }
    }
    this.pen.putImageData(this.sheet, 0, 0);
  }
}

class Stage {
  constructor(box, places, spacing) {
    this.box = box; this.places = places; this.spacing = spacing; this.many = places.length / 3; this.grain = this.usual = 1; this.meant = null; this.part = 0.86; this.least = 0.25;
    this.canvas = box.querySelector("canvas"); this.over = box.querySelector(".over");
    try { this.hand = new Glass(this.canvas, places); } catch (_) {
      const fresh = this.canvas.cloneNode(); this.canvas.replaceWith(fresh); this.canvas = fresh; this.hand = new Pencil(fresh, places);
    }
    this.fallen = this.hand instanceof Pencil; this.dirty = false; this.after = () => {}; this.chose = () => {}; this.pointed = () => {};
    this.reset(); this.listen(); this.fit(); this.reset();
    new ResizeObserver(() => this.fit()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }
  // Default view, as in the figures.
  reset() { this.turn = -0.9; this.tilt = data.tilt; this.frame(); }
  // Moves the camera until the selected points (default: all points) fill the view.
  frame(near = 0) {
    const least = Math.max(this.least, near);
    this.far = 3.3; this.center = this.meant ? [0, 1, 2].map((axis) => this.places[3 * this.meant[0] + axis]) : [0, 0, 0];
    const many = this.meant ? this.meant.length : this.many, step = Math.ceil(many / 5000);
    for (let times = 0; times < 4 && this.wide; times++) {
      const view = this.view(), low = [Infinity, Infinity], top = [-Infinity, -Infinity];
      for (let n = 0; n < many; n += step) { const at = view.seen(this.meant ? this.meant[n] : n); for (const axis of [0, 1]) { low[axis] = Math.min(low[axis], at[axis]); top[axis] = Math.max(top[axis], at[axis]); } }
      this.move(...[this.wide, this.high].map((side, axis) => side * (0.5 - (low[axis] + top[axis]) / 2)));
      const extent = Math.max(top[0] - low[0], top[1] - low[1]);
      if (extent > 0) this.zoom(clamp(Math.max(extent / this.part, least / this.far), 0.3, 3));
    }
    this.draw();
  }
  fit() {
    const ratio = this.fallen ? 1 : Math.min(devicePixelRatio || 1, 2), { width, height } = this.box.getBoundingClientRect();
    if (!width || !height) return;
    this.wide = width; this.high = height; this.dots = ratio;
    this.canvas.width = Math.round(width * ratio); this.canvas.height = Math.round(height * ratio);
    this.hand.resize(this.canvas.width, this.canvas.height);
    this.over.width = Math.round(width * 2); this.over.height = Math.round(height * 2);
    this.now();
  }
  view() {
    const { turn, tilt, far, center } = this, flat = Math.cos(tilt);
    const f = [-flat * Math.cos(turn), -flat * Math.sin(turn), -Math.sin(tilt)], r = [-Math.sin(turn), Math.cos(turn), 0];
    const u = [r[1] * f[2] - r[2] * f[1], r[2] * f[0] - r[0] * f[2], r[0] * f[1] - r[1] * f[0]];
    const ratio = this.wide / this.high, narrow = Math.min(ratio, 1), p = this.places;
    const size = 1.1 * this.grain * this.spacing * FOCAL * this.canvas.height / 2 * narrow, view = { axes: [r, u, f], center, far, ratio, size, dots: this.dots, depths: [NEAR, far + REACH] };
    if (narrow < 1) view.far = far / narrow, view.size = size / narrow, view.depths = [NEAR, view.far + REACH];
    // Fractions of width and height, and depth; the array is reused for every point.
    const found = new Float64Array(3);
    view.seen = (n) => {
      const x = p[3 * n] - center[0], y = p[3 * n + 1] - center[1], z = p[3 * n + 2] - center[2], deep = f[0] * x + f[1] * y + f[2] * z + view.far;
      found[0] = 0.5 + FOCAL / ratio * (r[0] * x + r[1] * y + r[2] * z) / deep / 2; found[1] = 0.5 - FOCAL * (u[0] * x + u[1] * y + u[2] * z) / deep / 2; found[2] = deep;
      return found;
    };
    return view;
  }
  paint(colors) { this.colors = colors; this.hand.paint(colors); this.draw(); }
  draw() { if (!this.dirty) { this.dirty = true; requestAnimationFrame(() => this.now()); } }
  now() {
    this.dirty = false;
    if (!this.colors || !this.wide) return;
    const paper = getComputedStyle(this.box).backgroundColor.match(/[\d.]+/g).slice(0, 3).map(Number);
    this.hand.draw(this.view(), paper);
    const pen = this.over.getContext("2d");
    pen.setTransform(2, 0, 0, 2, 0, 0); pen.clearRect(0, 0, this.wide, this.high);
    const view = this.view();
    this.after(pen, (n) => { const [x, y, z] = view.seen(n); return [x * this.wide, y * this.high, z]; });
  }
  // Point close to a screen position and to the camera, or -1.
  nearest(x, y, allowed = () => true) {
    const view = this.view(), { places: p, colors, wide, high } = this;
    let best = -1, least = Infinity;
    for (let n = 0; n < this.many; n++) {
      if (!colors[4 * n + 3] || !allowed(n)) continue;
      const at = view.seen(n), across = at[0] * wide - x, down = at[1] * high - y, deep = at[2], reach = clamp(view.size / this.dots / deep / 2, 2, 12);
      if (deep <= view.depths[0] || Math.abs(across) > 24 || Math.abs(down) > 24) continue;
      const off = Math.hypot(across, down);
      if (off > 12 + reach) continue;
      const cost = deep + Math.max(0, off - reach) * 0.4;
      if (cost < least) { least = cost; best = n; }
    }
    return best;
  }
  zoom(times) { this.far = clamp(this.far * times, 0.25, 14); this.draw(); }
  move(x, y) {
    const [r, u] = this.view().axes, step = 2 * this.view().far / FOCAL / this.high;
    this.center = this.center.map((value, axis) => value - step * (x * r[axis] - y * u[axis])); this.draw();
  }
  spin(x, y) { this.turn -= 0.0085 * x; this.tilt = clamp(this.tilt + 0.0085 * y, -1.55, 1.55); this.draw(); }
  listen() {
    const box = this.box, held = new Map();
    let far = 0, moved = 0, waiting = null;
    const place = (event) => { const around = box.getBoundingClientRect(); return [event.clientX - around.left, event.clientY - around.top]; };
    const middle = () => { const all = [...held.values()]; return [0, 1].map((axis) => all.reduce((sum, at) => sum + at[axis], 0) / all.length); };
    const apart = () => { const [a, b] = [...held.values()]; return b ? Math.hypot(a[0] - b[0], a[1] - b[1]) : 0; };
    box.addEventListener("pointerdown", (event) => { if (event.target.closest("button")) return; held.set(event.pointerId, place(event)); far = apart(); moved = 0; box.setPointerCapture(event.pointerId); box.classList.add("held"); });
    box.addEventListener("pointermove", (event) => {
      if (!held.has(event.pointerId)) { if (event.pointerType !== "touch") { waiting ??= requestAnimationFrame(() => { waiting = null; this.pointed(this.nearest(...this.at), event); }); this.at = place(event); } return; }
      const before = middle(); held.set(event.pointerId, place(event)); const after = middle(), x = after[0] - before[0], y = after[1] - before[1];
      moved += Math.abs(x) + Math.abs(y);
      if (moved > 3) this.pointed(-1, event);
      if (held.size > 1) { this.move(x, y); if (far && apart()) this.zoom(far / apart()); far = apart(); moved += 9; }
      else if (event.shiftKey || event.buttons & 6) this.move(x, y);
      else this.spin(x, y);
    });
    const leave = (event) => {
      if (held.delete(event.pointerId) && event.type === "pointerup" && moved < 4 && !held.size) { const at = this.nearest(...place(event)); this.chose(at, event); if (event.pointerType === "touch") this.pointed(at, event); }
      far = apart(); if (!held.size) box.classList.remove("held");
    };
    for (const name of ["pointerup", "pointercancel"]) box.addEventListener(name, leave);
    box.addEventListener("pointerleave", (event) => this.pointed(-1, event));
    box.addEventListener("wheel", (event) => { event.preventDefault(); this.zoom(Math.exp(clamp(event.deltaY * (event.deltaMode ? 16 : 1), -240, 240) * 0.0016)); }, { passive: false });
    box.addEventListener("dblclick", () => this.reset());
    box.addEventListener("contextmenu", (event) => event.preventDefault());
    box.addEventListener("keydown", (event) => {
      const known = { ArrowLeft: () => this.spin(-24, 0), ArrowRight: () => this.spin(24, 0), ArrowUp: () => this.spin(0, -24), ArrowDown: () => this.spin(0, 24), "+": () => this.zoom(0.85), "-": () => this.zoom(1 / 0.85), 0: () => this.reset() }[event.key];
      if (known) { event.preventDefault(); known(); }
    });
  }
}

// Coordinates are packed as 16-bit integers relative to the longest side. Unpacked coordinates are centered, with z up and a
// bounding box with half diagonal 1.
const packed = numbers(data.places, Uint16Array), many = packed.length / 3;
function unpacked() {
  const found = new Float32Array(3 * many), middle = [0, 1, 2].map((axis) => data.sides[axis] / 2), scale = 2 / (Math.hypot(...data.sides) || 1); // a single point has no extent
  const turned = { x: [1, 2, 0], y: [2, 0, 1], z: [0, 1, 2] }[data.up]; // cyclic, because other orders would reflect the point cloud
  for (let n = 0; n < many; n++) for (let axis = 0; axis < 3; axis++) { const own = turned[axis]; found[3 * n + axis] = scale * (packed[3 * n + own] / 65535 - middle[own]); }
  return found;
}
const digits = clamp(Math.ceil(-Math.log10(data.step)) - 1, 0, 9);
const coordinates = (n) => [0, 1, 2].map((axis) => (data.low[axis] + data.step * packed[3 * n + axis]).toFixed(digits)).join(", ");
const counted = (many, what) => `${many.toLocaleString("en")} ${what}${many === 1 ? "" : "s"}`;
const percent = (share) => { const whole = 100 * share; return (whole >= 9.95 || whole === 0 ? whole.toFixed(0) : whole < 0.05 ? "< 0.1" : whole.toFixed(1)) + " %"; };
// Draws a ring that is visible on light and dark backgrounds.
function ring(pen, x, y, radius) {
  const style = getComputedStyle(document.documentElement);
  for (const [color, wide] of [["--card", 4], ["--ink", 1.8]]) { pen.strokeStyle = style.getPropertyValue(color); pen.lineWidth = wide; pen.beginPath(); pen.arc(x, y, radius, 0, 7); pen.stroke(); }
}
const tip = find("#tip");
function told(event, lines) {
  tip.hidden = !lines.length;
  if (!lines.length) return;
  tip.replaceChildren(...lines.map((line, number) => made("span", number ? "line" : "big", line)));
  const around = tip.getBoundingClientRect(), below = event.clientY + 16;
  const top = below + around.height > innerHeight ? event.clientY - around.height - 12 : below;
  tip.style.transform = `translate(${clamp(event.clientX + 16, 4, innerWidth - around.width - 4)}px, ${top}px)`;
}
function option(box, name, act) {
  const button = made("button", "", name);
  button.type = "button"; button.onclick = act; box.append(button);
  return button;
}
const stage = new Stage(find("#room"), unpacked(), data.spacing);
function sized() { stage.grain = stage.usual * 2 ** +find("#grain").value; stage.draw(); }
find("#grain").oninput = sized;
find("#home").onclick = () => stage.reset();
find("#plain").hidden = !stage.fallen;

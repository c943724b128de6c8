"use strict";
// Draws the graphs that Python has laid out, and lets a person move, zoom, search and compare them.
const graphs = JSON.parse(document.getElementById("graphs").textContent);
const HALF = 13; // half the height of a node
const FAR = 0.45; // below this zoom labels cannot be read and are not drawn
const SVG = "http://www.w3.org/2000/svg";
const BAND = 1024; // height of a piece of the graph: what is in sight is drawn first, what is not is not laid out
const SLICE = 12; // milliseconds of drawing at a time, while a person may already move and click
const panes = [];
const escaped = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

// One path through the points of an edge: each piece leaves and enters upright.
function curve(line) {
  let d = "";
  for (let i = 0; i < line.length; i++) {
    const [x, y] = [line[i][0], line[i][1] + (i === 0 ? HALF : i === line.length - 1 ? -HALF : 0)];
    if (i === 0) { d = `M${x} ${y}`; continue; }
    const [px, py] = [line[i - 1][0], line[i - 1][1] + (i === 1 ? HALF : 0)];
    const middle = (py + y) / 2;
    d += `C${px} ${middle} ${x} ${middle} ${x} ${y}`;
  }
  return d;
}

function kindOf(node, taken) {
  if (node.rule) return "fused";
  if (node.op === "input" || node.op === "output") return "end";
  return marksOf(node).some((m) => taken.has(m)) ? "gone" : "";
}

// What a node and its counterpart have in common: values, and the names of nodes, which stay where a region of images
// runs channels last and no value is the original's.
function marksOf(node) {
  const names = node.nodes ? node.nodes.filter(Boolean) : node.op === "input" || node.op === "output" ? [] : [node.name];
  return [...node.values, ...names.map((name) => `node ${name}`)];
}

// The graph cut into pieces from top to bottom; an edge belongs to the piece that it begins in, and may reach further.
function bands(graph) {
  const found = new Map();
  const at = (y) => {
    const index = Math.floor(y / BAND);
    if (!found.has(index)) found.set(index, { index, nodes: [], lines: [], top: Infinity, bottom: -Infinity });
    return found.get(index);
  };
  const reach = (band, top, bottom) => {
    band.top = Math.min(band.top, top - HALF);
    band.bottom = Math.max(band.bottom, bottom + HALF);
  };
  graph.nodes.forEach((node, i) => { const band = at(node.y); band.nodes.push(i); reach(band, node.y, node.y); });
  graph.lines.forEach((line) => {
    const band = at(line[0][1]);
    band.lines.push(line);
    reach(band, line[0][1], line[line.length - 1][1]);
  });
  return [...found.values()].sort((a, b) => a.index - b.index);
}

class Pane {
  constructor(box) {
    this.box = box;
    this.number = box.dataset.graph;
    this.side = box.dataset.side;
    this.graph = graphs[this.number][this.side];
    const after = graphs[this.number].after;
    const taken = new Set(this.side === "before" && after ? after.nodes.flatMap((n) => n.rule ? marksOf(n) : []) : []);
    this.kinds = this.graph.nodes.map((node) => kindOf(node, taken));
    this.bands = bands(this.graph);
    this.height = box.clientHeight;
    box.innerHTML = `<svg xmlns="${SVG}"><g>${"<g></g>".repeat(this.bands.length)}</g></svg>`;
    this.world = box.firstChild.firstChild;
    this.bands.forEach((band, i) => { band.group = this.world.children[i]; });
    this.items = []; // by the number of the node, once it is drawn
    this.fit();
    this.listen();
  }

  fit() {
    const { clientWidth: w, clientHeight: h } = this.box;
    this.zoom = Math.min(1, w / Math.max(this.graph.width, 1));
    this.x = (w - this.graph.width * this.zoom) / 2;
    this.y = Math.max(8, (h - this.graph.height * this.zoom) / 2);
    this.place();
  }

  place() {
    this.world.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.zoom})`);
    this.world.classList.toggle("far", this.zoom < FAR);
    const [top, bottom] = [-this.y / this.zoom, (this.height - this.y) / this.zoom];
    for (const band of this.bands) {
      const seen = band.bottom >= top && band.top <= bottom;
      if (seen) this.draw(band);
      band.group.style.display = seen ? "" : "none";
    }
  }

  draw(band) {
    if (band.drawn) return;
    band.drawn = true;
    const edges = band.lines.map((line) => `<path d="${curve(line)}"/>`).join("");
    const nodes = band.nodes.map((i) => {
      const n = this.graph.nodes[i];
      return `<g class="${this.kinds[i]}" data-i="${i}">`
        + `<rect x="${n.x - n.w / 2}" y="${n.y - HALF}" width="${n.w}" height="${2 * HALF}"/>`
        + `<text x="${n.x}" y="${n.y + 4}">${escaped(n.op)}</text></g>`;
    }).join("");
    band.group.innerHTML = edges + nodes;
    for (const item of band.group.querySelectorAll("g[data-i]")) this.items[item.dataset.i] = item;
  }

  // Draw what is not in sight for some milliseconds; true where nothing is left to draw.
  drawMore(until) {
    for (const band of this.bands) {
      if (performance.now() > until) return false;
      this.draw(band);
    }
    return true;
  }

  listen() {
    let held = null;
    let moved = false;
    this.box.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = this.box.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      const zoom = Math.min(4, Math.max(0.01, this.zoom * Math.exp(-event.deltaY / 400)));
      this.x = px - (px - this.x) * zoom / this.zoom;
      this.y = py - (py - this.y) * zoom / this.zoom;
      this.zoom = zoom;
      this.place();
    }, { passive: false });
    this.box.addEventListener("pointerdown", (event) => {
      held = [event.clientX - this.x, event.clientY - this.y, event.clientX, event.clientY];
      moved = false;
    });
    window.addEventListener("pointermove", (event) => {
      if (!held) return;
      moved = moved || Math.hypot(event.clientX - held[2], event.clientY - held[3]) > 4;
      [this.x, this.y] = [event.clientX - held[0], event.clientY - held[1]];
      if (moved) this.place();
    });
    window.addEventListener("pointerup", () => { held = null; });
    this.box.addEventListener("click", (event) => {
      const item = event.target.closest("g[data-i]");
      if (item && !moved) choose(this, this.graph.nodes[item.dataset.i]);
    });
  }

  // Mark the nodes that `test` picks and bring the first of them to the middle.
  mark(test) {
    this.drawMore(Infinity);
    let first = null;
    this.items.forEach((item, i) => {
      const hit = test(this.graph.nodes[i]);
      item.classList.toggle("marked", hit);
      if (hit && first === null) first = this.graph.nodes[i];
    });
    if (first) this.show(first);
    return first;
  }

  show(node) {
    this.zoom = Math.max(this.zoom, 0.8);
    this.x = this.box.clientWidth / 2 - node.x * this.zoom;
    this.y = this.box.clientHeight / 2 - node.y * this.zoom;
    this.place();
  }
}

const others = (number) => panes.filter((p) => p.number === number);

// A node and what became of it: the fused op that took it, or the nodes that a fused op took.
function choose(pane, node) {
  const marks = new Set(marksOf(node));
  for (const other of others(pane.number)) {
    if (other === pane) {
      other.items.forEach((item, i) => item.classList.toggle("marked", other.graph.nodes[i] === node));
    } else {
      other.mark((n) => marksOf(n).some((m) => marks.has(m)));
    }
  }
  const facts = [`<b>${escaped(node.op)}</b> ${escaped(node.name)}`];
  if (node.rule) facts.push(`rule ${escaped(node.rule)}: ${escaped(node.body.join(" + "))}`);
  if (node.nodes) facts.push(`in place of ${escaped(node.nodes.filter(Boolean).join(", ") || node.values.join(", "))}`);
  if (node.outputs.length) facts.push(escaped(node.outputs.join(", ")));
  document.querySelector(`[data-details="${pane.number}"]`).innerHTML = facts.join("<br>");
}

document.querySelectorAll(".pane").forEach((box) => panes.push(new Pane(box)));
document.querySelectorAll("[data-fit]").forEach((button) => button.addEventListener("click", () =>
  others(button.dataset.fit).forEach((pane) => pane.fit())));
document.querySelectorAll("[data-find]").forEach((field) => field.addEventListener("input", () => {
  const words = field.value.toLowerCase();
  others(field.dataset.find).forEach((pane) => pane.mark((n) => words !== ""
    && `${n.op} ${n.name} ${(n.nodes || []).join(" ")}`.toLowerCase().includes(words)));
}));
document.querySelectorAll("tr[data-rule]").forEach((row) => row.addEventListener("click", () => {
  document.querySelectorAll("tr.chosen").forEach((other) => other.classList.remove("chosen"));
  row.classList.add("chosen");
  panes.forEach((pane) => pane.mark((n) => n.rule === row.dataset.rule));
}));
document.querySelectorAll("[data-show]").forEach((button) => button.addEventListener("click", () => {
  for (const pane of others(button.dataset.show)) {
    const node = pane.mark((n) => n.values.includes(button.dataset.value));
    if (node && pane.side === "after") choose(pane, node);
    pane.box.scrollIntoView({ block: "center" });
  }
}));
document.body.dataset.ready = String(Math.round(performance.now()));

function drawRest() {
  const until = performance.now() + SLICE;
  if (panes.every((pane) => pane.drawMore(until))) document.body.dataset.drawn = String(Math.round(performance.now()));
  else setTimeout(drawRest);
}
setTimeout(drawRest);

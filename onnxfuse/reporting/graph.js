// Draws a graph that Python has laid out: what is in sight alone, fused ops folded or unfolded, and lets a person move
// and zoom it. Positions are the layout's until something is unfolded: then its row grows, and what is below moves down.
const HALF = 13; // half the height of a node
const ROW = 64; // distance of two rows of the layout
const TITLE = 28; // of an unfolded op, above what is in it
const PAD = 10;
const BETWEEN = 14; // least distance of what is pushed aside by an unfolded op
const FAR = 0.45; // below this zoom labels cannot be read: nodes are boxes of one path for each colour
const TILE = 1024; // side of a piece of the graph: what is not in sight is not drawn
const STEPS = 8; // of the colours for bytes and time
const SVG = "http://www.w3.org/2000/svg";
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const isEnd = (node) => node.op === "input" || node.op === "output";

// What a node and its counterpart have in common: values, and the names of nodes, which stay where a region of images
// runs channels last and no value is the original's.
function marksOf(node) {
  const names = node.nodes ? node.nodes.filter(Boolean) : isEnd(node) ? [] : [node.name];
  return [...node.values, ...names.map((name) => `node ${name}`)];
}

// Boxes of the nodes and points of the edges, where the nodes of the set `open` are unfolded.
function arrange(graph, open) {
  const boxes = graph.nodes.map((n) => ({ x: n.x, y: n.y, w: n.w, h: 2 * HALF }));
  const lines = graph.lines.map((line) => line.map(([x, y]) => ({ x, y, half: 0 })));
  const rowOf = (y) => Math.floor(y / ROW);
  const tall = new Map();
  for (const i of open) {
    const inner = graph.ops[graph.nodes[i].fused];
    boxes[i].w = Math.max(graph.nodes[i].w + 24, inner.width + 2 * PAD);
    boxes[i].h = TITLE + inner.height + PAD;
    const row = rowOf(boxes[i].y);
    tall.set(row, Math.max(tall.get(row) || 0, boxes[i].h));
  }
  if (tall.size) {
    const crowd = new Map([...tall.keys()].map((row) => [row, []]));
    boxes.forEach((box, i) => { const all = crowd.get(rowOf(box.y)); if (all) all.push({ at: box, w: box.w, open: open.has(i) }); });
    for (const line of lines) {
      for (const point of line.slice(1, -1)) {
        const row = rowOf(point.y);
        if (tall.has(row)) { point.half = tall.get(row) / 2; crowd.get(row).push({ at: point, w: 4, open: false }); }
      }
    }
    for (const all of crowd.values()) {
      all.sort((a, b) => a.at.x - b.at.x);
      const from = all.findIndex((one) => one.open);
      for (let i = from + 1; i < all.length; i++) {
        all[i].at.x = Math.max(all[i].at.x, all[i - 1].at.x + (all[i - 1].w + all[i].w) / 2 + BETWEEN);
      }
      for (let i = from - 1; i >= 0; i--) {
        all[i].at.x = Math.min(all[i].at.x, all[i + 1].at.x - (all[i + 1].w + all[i].w) / 2 - BETWEEN);
      }
    }
    const down = [0]; // by row: how far it moves
    for (let row = 0; row <= rowOf(graph.height); row++) down.push(down[row] + (tall.has(row) ? tall.get(row) - 2 * HALF : 0));
    const moved = (y) => (down[rowOf(y)] + down[rowOf(y) + 1]) / 2;
    for (const box of boxes) box.y += moved(box.y);
    for (const line of lines) for (const point of line) point.y += moved(point.y);
  }
  lines.forEach((line, k) => {
    const [start, end] = graph.edges[k];
    Object.assign(line[0], boxes[start], { half: boxes[start].h / 2 });
    Object.assign(line[line.length - 1], boxes[end], { half: boxes[end].h / 2 });
  });
  return { boxes, lines };
}

// A path through the points of an edge: each piece leaves and enters upright, and passes what is unfolded upright.
function curve(line) {
  let d = `M${line[0].x} ${line[0].y + line[0].half}`;
  for (let i = 1; i < line.length; i++) {
    const [p, q] = [line[i - 1], line[i]];
    const [above, below] = [p.y + p.half, q.y - q.half];
    const middle = (above + below) / 2;
    d += `C${p.x} ${middle} ${q.x} ${middle} ${q.x} ${below}`;
    if (q.half && i < line.length - 1) d += `V${q.y + q.half}`;
  }
  return d;
}

const straight = (line) => line.map((p, i) => `${i ? "L" : "M"}${p.x} ${p.y}`).join("");
const boxPath = (b) => `M${b.x - b.w / 2} ${b.y - b.h / 2}h${b.w}v${b.h}h${-b.w}z`;

function around(boxes) {
  const [left, right] = [Math.min(...boxes.map((b) => b.x - b.w / 2)), Math.max(...boxes.map((b) => b.x + b.w / 2))];
  const [top, bottom] = [Math.min(...boxes.map((b) => b.y - b.h / 2)), Math.max(...boxes.map((b) => b.y + b.h / 2))];
  return { left, right, top, bottom };
}

class Pane {
  constructor(work, box) {
    this.work = work;
    this.box = box;
    this.side = box.dataset.side;
    this.graph = work.graphs[this.side];
    this.open = new Set();
    this.marked = new Map(); // node -> class of its mark
    this.byMark = new Map();
    this.graph.nodes.forEach((node, i) => {
      for (const mark of marksOf(node)) {
        if (!this.byMark.has(mark)) this.byMark.set(mark, []);
        this.byMark.get(mark).push(i);
      }
    });
    this.owner = []; // of a node of `before`: the fused op of `after` that it went into
    box.tabIndex = 0;
    box.setAttribute("role", "application");
    box.setAttribute("aria-label", `graph ${this.side}: arrows go along edges, Enter unfolds, + and - zoom, 0 shows all`);
    const layers = ["regions", "edges", "nodes", "marks"].map((name) => `<g class="${name}"></g>`).join("");
    box.innerHTML = `<svg xmlns="${SVG}"><g>${layers}</g></svg>`;
    this.world = box.firstChild.firstChild;
    [this.regionLayer, this.edgeLayer, this.nodeLayer, this.markLayer] = this.world.children;
    this.strip = box.appendChild(document.createElement("canvas"));
    this.strip.className = "strip";
    this.listen();
  }

  begin() {
    this.lay();
    this.fit();
  }

  // Find all positions anew, and forget what was drawn.
  lay() {
    Object.assign(this, arrange(this.graph, this.open));
    this.size = this.boxes.length ? around(this.boxes) : { left: 0, right: 1, top: 0, bottom: 1 };
    this.redraw();
  }

  redraw() {
    for (const layer of [this.regionLayer, this.edgeLayer, this.nodeLayer]) layer.replaceChildren();
    const found = new Map();
    const at = (x, y) => {
      const key = `${Math.floor(x / TILE)} ${Math.floor(y / TILE)}`;
      if (!found.has(key)) found.set(key, { nodes: [], lines: [], left: Infinity, right: -Infinity, top: Infinity, bottom: -Infinity, shown: "" });
      return found.get(key);
    };
    const reach = (tile, x, y, w, h) => {
      tile.left = Math.min(tile.left, x - w); tile.right = Math.max(tile.right, x + w);
      tile.top = Math.min(tile.top, y - h); tile.bottom = Math.max(tile.bottom, y + h);
    };
    this.boxes.forEach((b, i) => { const tile = at(b.x, b.y); tile.nodes.push(i); reach(tile, b.x, b.y, b.w / 2, b.h / 2); });
    for (const line of this.lines) {
      const tile = at(line[0].x, line[0].y);
      tile.lines.push(line);
      for (const p of line) reach(tile, p.x, p.y, 0, p.half);
    }
    this.tiles = [...found.values()];
    this.regions = this.findRegions();
    this.drawStrip();
    this.drawMarks();
    if (this.zoom) this.place();
  }

  // The nodes that went into one fused op, with the edges between them: drawn as one shape.
  findRegions() {
    const found = new Map();
    this.owner.forEach((owner, i) => {
      if (owner === undefined) return;
      if (!found.has(owner)) found.set(owner, { nodes: [], lines: [], owner });
      found.get(owner).nodes.push(i);
    });
    if (found.size) {
      this.graph.edges.forEach(([start, end], k) => {
        const owner = this.owner[start];
        if (owner !== undefined && owner === this.owner[end]) found.get(owner).lines.push(this.lines[k]);
      });
    }
    return [...found.values()].map((r) => ({ ...r, ...around(r.nodes.map((i) => this.boxes[i])), element: null }));
  }

  // The upper end, as large as what is in sight then allows.
  fit() {
    const [w, h] = [this.box.clientWidth, this.box.clientHeight];
    const { left, right, top, bottom } = this.size;
    let sight = { left, right };
    for (this.zoom = 1; this.zoom > 0.2; this.zoom *= 0.85) {
      const seen = this.boxes.filter((b) => b.y < top + h / this.zoom);
      if (seen.length) sight = around(seen);
      if ((sight.right - sight.left) * this.zoom < w - 50) break;
    }
    this.x = (w - 14 - (sight.left + sight.right) * this.zoom) / 2;
    this.y = Math.max(16 - top * this.zoom, (h - (top + bottom) * this.zoom) / 2);
    this.place();
  }

  // All of it, however small.
  whole() {
    const { left, right, top, bottom } = this.size;
    this.look(left, right, top, bottom, 0.005);
  }

  look(left, right, top, bottom, least) {
    const [w, h] = [this.box.clientWidth, this.box.clientHeight];
    const room = Math.min((w - 80) / (right - left), (h - 60) / (bottom - top));
    this.zoom = Math.min(Math.max(this.zoom, 0.9), 1.5, Math.max(room, least));
    this.x = w / 2 - (left + right) / 2 * this.zoom;
    // What does not fit begins at the top.
    this.y = room < least ? 40 - top * this.zoom : h / 2 - (top + bottom) / 2 * this.zoom;
    this.place();
  }

  place() {
    const [w, h] = [this.box.clientWidth, this.box.clientHeight];
    this.world.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.zoom})`);
    const far = this.zoom < FAR;
    this.world.classList.toggle("far", far);
    const sight = { left: -this.x / this.zoom, right: (w - this.x) / this.zoom, top: -this.y / this.zoom, bottom: (h - this.y) / this.zoom };
    const seen = (b) => b.bottom >= sight.top && b.top <= sight.bottom && b.right >= sight.left && b.left <= sight.right;
    for (const tile of this.tiles) {
      const wanted = !seen(tile) ? "" : far ? "far" : "near";
      if (tile.shown === wanted) continue;
      if (tile.shown) for (const group of tile[tile.shown]) group.style.display = "none";
      if (wanted && !tile[wanted]) tile[wanted] = this.draw(tile, far);
      else if (wanted) for (const group of tile[wanted]) group.style.display = "";
      tile.shown = wanted;
    }
    for (const region of this.regions) {
      const wanted = !far && seen(region);
      if (wanted && !region.element) region.element = this.drawRegion(region);
      else if (region.element) region.element.style.display = wanted ? "" : "none";
    }
    const [top, bottom] = [this.size.top, Math.max(this.size.bottom, this.size.top + 1)];
    const strip = this.box.clientHeight / (bottom - top);
    this.window = [Math.max((sight.top - top) * strip, 0), Math.min((sight.bottom - top) * strip, h)];
    this.drawWindow();
  }

  group(layer, html) {
    const group = document.createElementNS(SVG, "g");
    group.innerHTML = html;
    layer.appendChild(group);
    return group;
  }

  draw(tile, far) {
    if (far) {
      const paths = new Map();
      for (const i of tile.nodes) {
        const kind = this.kind(i);
        paths.set(kind, (paths.get(kind) || "") + boxPath(this.boxes[i]));
      }
      const nodes = [...paths].map(([kind, d]) => `<path class="${kind}" d="${d}"/>`).join("");
      return [this.group(this.edgeLayer, `<path d="${tile.lines.map(straight).join("")}"/>`), this.group(this.nodeLayer, nodes)];
    }
    const nodes = tile.nodes.map((i) => this.nodeText(i)).join("");
    return [this.group(this.edgeLayer, `<path d="${tile.lines.map(curve).join("")}"/>`), this.group(this.nodeLayer, nodes)];
  }

  nodeText(i) {
    const [node, b] = [this.graph.nodes[i], this.boxes[i]];
    const open = this.open.has(i);
    const [left, top] = [b.x - b.w / 2, b.y - b.h / 2];
    const sign = node.fused ? `<text class="sign" x="${left + 13}" y="${top + 18}">${open ? "−" : "+"}</text>` : "";
    const inner = open ? this.innerText(node, b) : "";
    return `<g class="${this.kind(i)}${open ? " open" : ""}" data-i="${i}"><title>${escaped(node.name)}</title>`
      + `<rect x="${left}" y="${top}" width="${b.w}" height="${b.h}"/>${sign}`
      + `<text x="${b.x + (node.fused ? 8 : 0)}" y="${top + 17}">${escaped(node.op)}</text>${inner}</g>`;
  }

  // Where what is in an unfolded op begins.
  innerPlace(node, b) {
    const inner = this.graph.ops[node.fused];
    return [b.x - inner.width / 2, b.y - b.h / 2 + TITLE];
  }

  innerText(node, b) {
    const inner = this.graph.ops[node.fused];
    const [x, y] = this.innerPlace(node, b);
    const lines = arrange(inner, new Set()).lines.map(curve).join("");
    const nodes = inner.nodes.map((n, k) => `<g class="inner" data-inner="${k}"><title>${escaped(node.members[k] || n.name)}</title>`
      + `<rect x="${n.x - n.w / 2}" y="${n.y - HALF}" width="${n.w}" height="${2 * HALF}"/>`
      + `<text x="${n.x}" y="${n.y + 4}">${escaped(n.op)}</text></g>`).join("");
    return `<g class="body" transform="translate(${x} ${y})"><path d="${lines}"/>${nodes}</g>`;
  }

  drawRegion(region) {
    const rects = region.nodes.map((i) => this.boxes[i]).map((b) =>
      `<rect x="${b.x - b.w / 2 - 9}" y="${b.y - b.h / 2 - 9}" width="${b.w + 18}" height="${b.h + 18}"/>`).join("");
    const path = region.lines.map(curve).join("");
    const group = this.group(this.regionLayer, `<path d="${path}"/>${rects}`);
    group.setAttribute("class", `region r${this.work.hueOf(region.owner)}`);
    return group;
  }

  // The classes of a node, which give it its colour: by rule, or by how much it costs.
  kind(i) {
    const node = this.graph.nodes[i];
    if (isEnd(node)) return "end";
    const owner = this.owner[i];
    const hue = node.rule ? this.work.hue(node.rule) : owner === undefined ? -1 : this.work.hueOf(owner);
    const made = node.rule ? "fused" : owner === undefined ? "plain" : "gone";
    if (this.work.colour === "rules") return hue < 0 ? made : `${made} r${hue}`;
    const cost = this.work.cost(node);
    if (cost === null) return `${made} unknown`;
    return `${made} heat h${cost > 0 ? 1 + Math.floor(Math.sqrt(cost / this.work.most) * (STEPS - 0.001)) : 0}`;
  }

  drawMarks() {
    this.markLayer.innerHTML = [...this.marked].map(([i, kind]) => {
      const b = this.boxes[i];
      return `<rect class="${kind}" data-i="${i}" x="${b.x - b.w / 2 - 4}" y="${b.y - b.h / 2 - 4}" width="${b.w + 8}" height="${b.h + 8}"/>`;
    }).join("") + this.innerMark();
  }

  innerMark() {
    const chosen = this.chosenInner;
    if (!chosen || !this.open.has(chosen[0])) return "";
    const node = this.graph.nodes[chosen[0]];
    const [x, y] = this.innerPlace(node, this.boxes[chosen[0]]);
    const n = this.graph.ops[node.fused].nodes[chosen[1]];
    return `<rect class="chosen" x="${x + n.x - n.w / 2 - 4}" y="${y + n.y - HALF - 4}" width="${n.w + 8}" height="${2 * HALF + 8}"/>`;
  }

  // Mark these nodes, and bring them into sight where they are not.
  mark(nodes, kind, move = true) {
    this.marked = new Map(nodes.map((i) => [i, kind]));
    this.chosenInner = null;
    this.drawMarks();
    this.drawStrip();
    if (move && nodes.length) this.show(nodes);
  }

  show(nodes) {
    const { left, right, top, bottom } = around(nodes.map((i) => this.boxes[i]));
    const [w, h] = [this.box.clientWidth, this.box.clientHeight];
    const inside = left * this.zoom + this.x > 0 && right * this.zoom + this.x < w && top * this.zoom + this.y > 0 && bottom * this.zoom + this.y < h;
    if (inside && this.zoom >= FAR) return;
    const [first] = nodes;
    const wide = { ...this.boxes[first] };
    const b = (bottom - top) * 0.5 > h ? { left: wide.x - wide.w / 2, right: wide.x + wide.w / 2, top: wide.y - wide.h / 2, bottom: wide.y + wide.h / 2 } : { left, right, top, bottom };
    this.look(b.left, b.right, b.top, b.bottom, 0.5);
  }

  toggle(i, open = !this.open.has(i)) {
    if (!this.graph.nodes[i].fused || open === this.open.has(i)) return;
    const before = this.boxes[i];
    const [x, y] = [before.x * this.zoom + this.x, (before.y - before.h / 2) * this.zoom + this.y];
    if (open) this.open.add(i); else this.open.delete(i);
    Object.assign(this, arrange(this.graph, this.open));
    const now = this.boxes[i]; // its upper edge stays where it is
    [this.x, this.y] = [x - now.x * this.zoom, y - (now.y - now.h / 2) * this.zoom];
    const [left, right] = [now.x - now.w / 2, now.x + now.w / 2].map((side) => side * this.zoom + this.x);
    if (right > this.box.clientWidth - 26) this.x -= right - this.box.clientWidth + 26;
    if (left < 12) this.x += 12 - left;
    this.lay();
  }

  toggleAll(open) {
    this.open = new Set(open ? this.graph.nodes.flatMap((n, i) => n.fused ? [i] : []) : []);
    this.lay();
  }

  // The node under a point of the screen: its number, what of its body, and whether the sign.
  under(event) {
    const at = this.box.getBoundingClientRect();
    const [x, y] = [(event.clientX - at.left - this.x) / this.zoom, (event.clientY - at.top - this.y) / this.zoom];
    const i = this.boxes.findIndex((b) => Math.abs(x - b.x) <= b.w / 2 && Math.abs(y - b.y) <= b.h / 2);
    if (i < 0) return null;
    const [node, b] = [this.graph.nodes[i], this.boxes[i]];
    const sign = node.fused && x < b.x - b.w / 2 + 24 && y < b.y - b.h / 2 + 26;
    if (!this.open.has(i)) return { i, inner: -1, sign };
    const [left, top] = this.innerPlace(node, b);
    const inner = this.graph.ops[node.fused].nodes.findIndex((n) => Math.abs(x - left - n.x) <= n.w / 2 && Math.abs(y - top - n.y) <= HALF);
    return { i, inner, sign };
  }

  zoomBy(factor, px = this.box.clientWidth / 2, py = this.box.clientHeight / 2) {
    const zoom = Math.min(4, Math.max(0.005, this.zoom * factor));
    this.x = px - (px - this.x) * zoom / this.zoom;
    this.y = py - (py - this.y) * zoom / this.zoom;
    this.zoom = zoom;
    this.place();
  }

  listen() {
    let held = null;
    let moved = false;
    let waiting = false;
    const soon = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; this.place(); });
    };
    this.box.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = this.box.getBoundingClientRect();
      this.zoomBy(Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    this.box.addEventListener("pointerdown", (event) => {
      if (event.target === this.strip) return;
      held = [event.clientX - this.x, event.clientY - this.y, event.clientX, event.clientY];
      moved = false;
    });
    window.addEventListener("pointermove", (event) => {
      if (!held) return;
      moved = moved || Math.hypot(event.clientX - held[2], event.clientY - held[3]) > 4;
      if (moved) { [this.x, this.y] = [event.clientX - held[0], event.clientY - held[1]]; soon(); }
    });
    window.addEventListener("pointerup", () => { held = null; });
    window.addEventListener("pointercancel", () => { held = null; });
    this.box.addEventListener("click", (event) => {
      const hit = moved || event.target === this.strip ? null : this.under(event);
      if (!hit) return;
      if (hit.sign) this.toggle(hit.i);
      this.work.choose(this, hit.i, hit.sign ? -1 : hit.inner);
    });
    this.box.addEventListener("dblclick", (event) => {
      const hit = this.under(event);
      if (hit && !hit.sign && hit.inner < 0) this.toggle(hit.i);
    });
    this.strip.addEventListener("pointerdown", (event) => {
      const go = (e) => {
        const part = (e.clientY - this.box.getBoundingClientRect().top) / this.box.clientHeight;
        this.y = this.box.clientHeight / 2 - (this.size.top + part * (this.size.bottom - this.size.top)) * this.zoom;
        soon();
      };
      go(event);
      this.strip.setPointerCapture(event.pointerId);
      this.strip.onpointermove = go;
      this.strip.onpointerup = () => { this.strip.onpointermove = null; };
    });
    this.box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => { if (this.zoom) { this.drawStrip(); this.place(); } }).observe(this.box);
  }

  key(event) {
    const chosen = this.work.chosen && this.work.chosen.pane === this ? this.work.chosen.i : -1;
    const along = (from, to) => this.graph.edges.filter((e) => e[from] === chosen).map((e) => e[to]);
    const beside = (step) => {
      const row = this.boxes.flatMap((b, i) => Math.floor(this.graph.nodes[i].y / ROW) === Math.floor(this.graph.nodes[chosen].y / ROW) ? [[b.x, i]] : []).sort((a, b) => a[0] - b[0]);
      const place = row.findIndex(([, i]) => i === chosen) + step;
      return place >= 0 && place < row.length ? [row[place][1]] : [];
    };
    const go = {
      ArrowDown: () => along(0, 1), ArrowUp: () => along(1, 0),
      ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
    }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (go) {
      const next = chosen < 0 ? [0] : go();
      if (next.length && this.graph.nodes.length) { this.work.choose(this, next[0], -1); this.show([next[0]]); }
    } else if ((event.key === "Enter" || event.key === " ") && chosen >= 0) this.toggle(chosen);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.25);
    else if (event.key === "-") this.zoomBy(0.8);
    else if (event.key === "0") this.whole();
    else return;
    event.preventDefault();
  }

  // The whole graph at the right edge, a line for each node in its colour: where it costs is seen at once.
  drawStrip() {
    const [w, h, dots] = [14, this.box.clientHeight, window.devicePixelRatio || 1];
    if (!h || !this.boxes) return;
    this.lines14 = document.createElement("canvas");
    [this.lines14.width, this.lines14.height] = [w * dots, h * dots];
    const pen = this.lines14.getContext("2d");
    const { top, bottom } = this.size;
    const style = getComputedStyle(this.box);
    const colours = new Map();
    const colour = (kind) => {
      if (!colours.has(kind)) {
        const probe = this.world.parentNode.appendChild(document.createElementNS(SVG, "g"));
        probe.innerHTML = `<g class="nodes"><g class="${kind}"><rect/></g></g>`;
        const found = getComputedStyle(probe.querySelector("rect"));
        colours.set(kind, kind.startsWith("plain") && !kind.includes("heat") ? "" : kind === "end" ? "" : kind.startsWith("gone r") ? found.stroke : found.fill);
        probe.remove();
      }
      return colours.get(kind);
    };
    const scale = h * dots / Math.max(bottom - top, 1);
    this.boxes.forEach((b, i) => {
      const fill = colour(this.kind(i));
      if (!fill) return;
      pen.fillStyle = fill;
      pen.fillRect(3 * dots, (b.y - b.h / 2 - top) * scale, (w - 6) * dots, Math.max(b.h * scale, dots));
    });
    pen.fillStyle = style.getPropertyValue("--mark");
    for (const i of this.marked.keys()) pen.fillRect(0, (this.boxes[i].y - top) * scale - dots, w * dots, 2 * dots);
    this.drawWindow();
  }

  drawWindow() {
    const strip = this.strip;
    if (!this.lines14 || !this.window) return;
    [strip.width, strip.height] = [this.lines14.width, this.lines14.height];
    const [pen, dots] = [strip.getContext("2d"), window.devicePixelRatio || 1];
    pen.drawImage(this.lines14, 0, 0);
    const style = getComputedStyle(this.box);
    pen.strokeStyle = style.getPropertyValue("--ink");
    pen.globalAlpha = 0.65;
    pen.strokeRect(0.5, this.window[0] * dots + 0.5, strip.width - 1, Math.max((this.window[1] - this.window[0]) * dots - 1, 4));
  }
}

// The page around the graphs: search, colours, what is known of a node, and an address for what is chosen.
const data = JSON.parse(document.getElementById("graphs").textContent);
// What a server adds that made this page: it can be asked. `archs`: GPUs to see kernels for, `arch`: the first of them,
// `pending`: whether the model is still being optimized, and this page is of it as it came.
const served = data.served || null;
const FOUND = 60; // rows of a search
const works = new Map();

// An element with text in it, never markup: names come from files that anyone may have written.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// A name in pieces between which a line may break.
const broken = (name) => name.split(/(?<=[./_])/).flatMap((piece) => [piece, document.createElement("wbr")]);

function amount(value, unit) {
  for (const [size, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${prefix}${unit}`;
  }
  return `${Math.round(value)} ${unit}`;
}
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;
const microseconds = (us) => us >= 1e5 ? `${(us / 1e3).toFixed(0)} ms` : us >= 1000 ? `${(us / 1e3).toPrecision(3)} ms` : `${us.toPrecision(3)} µs`;
const MEASURES = {
  bytes: { of: (c) => c.reads === undefined ? null : c.reads + c.writes, text: (v) => amount(v, "B"), how: "bytes read and written, by estimate" },
  time: { of: (c) => c.us === undefined ? null : c.us, text: microseconds, how: "time of one run, measured" },
};

// A kernel's source in the files that it is made of: what was written for this op, and the kernel itself, are open.
function pieces(text) {
  const parts = text.split(/^#line 1 "(.*)"\n/m);
  return parts.slice(1).flatMap((name, k) => k % 2 ? [] : [element("details", name.endsWith(".cuh") ? {} : { open: "" },
    element("summary", {}, `${name} `, element("small", {}, counted(parts[k + 2].trimEnd().split("\n").length, "line"))), element("pre", {}, parts[k + 2].trimEnd()))]);
}

function copying(text) {
  const button = element("button", { class: "fold" }, "copy all");
  button.addEventListener("click", () => navigator.clipboard.writeText(text).then(() => { button.textContent = "copied"; }, () => { button.textContent = "the browser refused"; }));
  return button;
}

class Work {
  constructor(root) {
    this.root = root;
    this.number = root.dataset.work;
    this.graphs = data.graphs[this.number];
    this.near = (data.near || {})[this.number] || [];
    this.colour = "rules";
    this.chosen = null;
    this.rules = [];
    for (const graph of Object.values(this.graphs)) for (const n of graph.nodes) if (n.rule && !this.rules.includes(n.rule)) this.rules.push(n.rule);
    this.panes = [...root.querySelectorAll(".pane")].map((box) => new Pane(this, box));
    const [before, after] = ["before", "after"].map((side) => this.panes.find((p) => p.side === side));
    if (before && after) {
      after.graph.nodes.forEach((node, k) => {
        if (!node.rule) return;
        for (const mark of marksOf(node)) for (const i of before.byMark.get(mark) || []) if (!isEnd(before.graph.nodes[i]) && before.owner[i] === undefined) before.owner[i] = k;
      });
    }
    this.details = root.querySelector("[data-details]");
    this.known = Object.fromEntries(Object.entries(MEASURES).map(([name, measure]) => {
      const costs = this.panes.flatMap((p) => p.graph.nodes.map((n) => n.cost ? measure.of(n.cost) : null)).filter((c) => c !== null);
      return [name, costs.length ? Math.max(...[0].concat(costs.length > 50000 ? [costs.reduce((a, b) => Math.max(a, b), 0)] : costs), Number.MIN_VALUE) : 0];
    }));
    this.panes.forEach((pane) => pane.begin());
    this.tools();
    this.search();
    this.paint(this.known.time ? "time" : "rules");
  }

  pane(side) { return this.panes.find((p) => p.side === side); }
  hue(rule) { return this.rules.indexOf(rule) % 8; }
  hueOf(owner) { return this.hue(this.graphs.after.nodes[owner].rule); }
  cost(node) { return node.cost ? MEASURES[this.colour].of(node.cost) : null; }
  get most() { return this.known[this.colour]; }

  tools() {
    for (const button of this.root.querySelectorAll("[data-colour]")) {
      const known = button.dataset.colour === "rules" || this.known[button.dataset.colour];
      button.disabled = !known;
      if (!known && button.dataset.colour === "time") button.title = "no times: onnxfuse view MODEL --profile FILE, of onnxfuse profile --json";
      button.addEventListener("click", () => this.paint(button.dataset.colour));
    }
    for (const button of this.root.querySelectorAll("[data-show-side]")) {
      button.addEventListener("click", () => this.sides(button.dataset.showSide));
    }
    this.root.querySelector("[data-fit]").addEventListener("click", () => this.panes.forEach((pane) => pane.fit()));
    const all = this.root.querySelector("[data-unfold]");
    if (all) all.addEventListener("click", () => {
      const open = all.getAttribute("aria-pressed") !== "true";
      all.setAttribute("aria-pressed", open);
      all.textContent = open ? "fold all" : "unfold all";
      this.panes.forEach((pane) => { pane.toggleAll(open); pane.fit(); });
    });
  }

  sides(wanted) {
    this.root.querySelectorAll("[data-show-side]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.showSide === wanted));
    for (const pane of this.panes) pane.box.closest("figure").hidden = wanted !== "both" && pane.side !== wanted;
    for (const pane of this.panes) if (pane.box.clientWidth) { pane.redraw(); if (pane.marked.size) pane.show([...pane.marked.keys()]); else pane.fit(); }
  }

  paint(colour) {
    this.colour = colour;
    this.root.querySelectorAll("[data-colour]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.colour === colour));
    this.root.dataset.painted = colour;
    this.panes.forEach((pane) => pane.redraw());
    const legend = this.root.querySelector(".legend");
    legend.replaceChildren();
    if (colour === "rules") {
      const counts = this.rules.map((rule) => [rule, this.panes.flatMap((p) => p.graph.nodes).filter((n) => n.rule === rule).length]);
      for (const [rule, count] of counts.sort((a, b) => b[1] - a[1])) {
        const row = element("button", { class: `swatch r${this.hue(rule)}`, title: "mark all of them" }, element("i"), `${rule} ${count}`);
        row.addEventListener("click", () => this.markRule(rule));
        legend.append(row);
      }
    } else {
      const measure = MEASURES[colour];
      const scale = element("span", { class: "scale" });
      for (let step = 0; step <= STEPS; step++) scale.append(element("i", { class: `h${step}` }));
      const sums = this.panes.map((p) => {
        const costs = p.graph.nodes.map((n) => n.cost ? measure.of(n.cost) : null);
        const known = costs.filter((c) => c !== null);
        const nodes = p.graph.nodes.filter((n) => !isEnd(n)).length;
        return `${p.side} ${measure.text(known.reduce((a, b) => a + b, 0))}${known.length < nodes ? ` in ${known.length} of ${counted(nodes, "node")}` : ""}`;
      });
      const lost = colour === "time" && sums.some((sum) => sum.includes(" in ")) ? "; the others ONNX Runtime merged, or ran under other names" : "";
      legend.append("0", scale, `${measure.text(this.most)} a node`, element("span", { class: "hint" }, `${measure.how}: ${sums.join(", ")}${lost}`));
    }
  }

  markRule(rule) {
    for (const pane of this.panes) {
      pane.mark(pane.graph.nodes.flatMap((n, i) => n.rule === rule || (pane.owner[i] !== undefined && this.graphs.after.nodes[pane.owner[i]].rule === rule) ? [i] : []), "marked");
    }
  }

  // The nodes of a pane that are the same as this one of another pane, that it went into, or that went into it.
  counterparts(pane, i, other, inner) {
    const node = pane.graph.nodes[i];
    if (inner >= 0) {
      const same = other.byMark.get(`node ${node.members[inner]}`);
      if (same) return same;
    }
    if (other.side === "before" && node.rule) {
      const owned = other.owner.flatMap((owner, k) => owner === i ? [k] : []);
      if (owned.length) return owned;
    }
    if (pane.side === "before" && pane.owner[i] !== undefined && other.side === "after") return [pane.owner[i]];
    return [...new Set(marksOf(node).flatMap((m) => other.byMark.get(m) || []))].filter((k) => isEnd(other.graph.nodes[k]) === isEnd(node));
  }

  choose(pane, i, inner = -1, { address = true, move = false } = {}) {
    const node = pane.graph.nodes[i];
    if (inner >= 0) pane.toggle(i, true);
    this.chosen = { pane, i, inner };
    pane.mark([i], inner >= 0 ? "marked" : "chosen", move);
    if (inner >= 0) { pane.chosenInner = [i, inner]; pane.drawMarks(); }
    for (const other of this.panes) if (other !== pane) other.mark(this.counterparts(pane, i, other, inner), "marked", other.box.clientHeight > 0);
    this.tell(pane, i, inner);
    if (address) history.replaceState(null, "", this.address(pane, node, inner));
  }

  address(pane, node, inner = -1) {
    const words = [this.number, pane.side, node.name, ...(inner >= 0 ? [inner] : [])];
    return `#node=${words.map(encodeURIComponent).join("/")}`;
  }

  link(pane, i, text) {
    const node = pane.graph.nodes[i];
    return element("a", { href: this.address(pane, node) }, ...broken(text || node.name));
  }

  // The side panel.
  tell(pane, i, inner) {
    const node = pane.graph.nodes[i];
    const shown = inner >= 0 ? pane.graph.ops[node.fused].nodes[inner] : node;
    const others = this.panes.filter((p) => p !== pane);
    const rows = [];
    const row = (name, ...values) => { if (values.length && values.some((v) => v !== "")) rows.push(element("dt", {}, name), element("dd", {}, ...values)); };
    const list = (values) => element("ul", {}, ...values.map((v) => element("li", {}, v)));
    // "name: type": hierarchical names are long, and break at their dots and slashes.
    const tensors = (name, values) => values && values.length ? element("details", { open: "" }, element("summary", {}, name), element("ul", { class: "tensors" }, ...values.map((v) => {
      const at = v.lastIndexOf(": ");
      const [value, type] = at < 0 ? [v, ""] : [v.slice(0, at), v.slice(at + 2)];
      return element("li", {}, ...broken(value), element("small", {}, type));
    }))) : null;
    const title = element("h3", { class: inner >= 0 ? "plain" : pane.kind(i) }, element("i"), shown.op);
    const name = inner >= 0 ? node.members[inner] || shown.name : node.name;
    const parts = [title, element("p", { class: "name" }, ...broken(name))];
    if (inner >= 0) row("inside", this.link(pane, i, node.op));
    else if (node.fused) {
      const fold = element("button", { class: "fold", "aria-pressed": pane.open.has(i) }, pane.open.has(i) ? "fold" : "unfold");
      fold.addEventListener("click", () => { pane.toggle(i); this.choose(pane, i); });
      parts.push(fold);
      row("rule", node.rule);
      row("computes", node.body.join(" + "));
      row("kernel", `${pane.graph.ops[node.fused].template}: ${node.fused}`);
    } else if (node.domain) row("domain", node.domain);
    const owner = pane.owner[i];
    if (owner !== undefined && inner < 0) row("went into", this.link(others[0], owner, others[0].graph.nodes[owner].op), ` by rule ${others[0].graph.nodes[owner].rule}`);
    const reason = !isEnd(node) && !node.fused && owner === undefined && inner < 0 ? element("dd", { class: "why" }) : null;
    const gone = reason && pane.side === "before" && others.length > 0 && !this.counterparts(pane, i, others[0], -1).length;
    if (reason) this.reason(reason, node, rows, gone);
    const cost = inner < 0 ? node.cost : null;
    if (cost) {
      if (cost.us !== undefined) row("time", microseconds(cost.us));
      if (cost.reads !== undefined) row("memory", `${amount(cost.reads + cost.writes, "B")}: ${amount(cost.reads, "B")} read, ${amount(cost.writes, "B")} written`);
      if (cost.flops) row("work", amount(cost.flops, "FLOP"));
      if (cost.launches !== undefined) row("launches", cost.launches ? node.fused ? "1 or more: see its kernel" : "1" : "none");
      if (node.fused && others.length) {
        const taken = this.counterparts(pane, i, others[0], -1).map((k) => others[0].graph.nodes[k].cost).filter(Boolean);
        const sum = (f) => taken.reduce((a, c) => a + (f(c) || 0), 0);
        const was = [];
        if (taken.some((c) => c.us !== undefined)) was.push(microseconds(sum((c) => c.us)));
        if (taken.some((c) => c.reads !== undefined)) was.push(amount(sum((c) => c.reads + c.writes), "B"), counted(sum((c) => c.launches), "launch"));
        if (was.length) row("before", was.join(", "));
      }
    }
    if (shown.attributes && shown.attributes.length) row("attributes", list(shown.attributes));
    if (node.fused && inner < 0) {
      const links = node.members.map((member, k) => {
        const there = others.length ? others[0].byMark.get(`node ${member}`) : null;
        const what = pane.graph.ops[node.fused].nodes[k];
        const label = `${what ? what.op : ""} `;
        return element("li", {}, label, there ? this.link(others[0], there[0], member) : member);
      });
      row("in place of", element("ul", {}, ...links));
    }
    parts.push(element("dl", {}, ...rows));
    const op = inner >= 0 ? null : node.fused ? [pane, node] : owner !== undefined ? [others[0], others[0].graph.nodes[owner]] : null;
    if (op) {
      const [there, fused] = op;
      const of = fused === node ? "" : " of what it went into";
      parts.push(this.source(fused, of), element("details", {}, element("summary", {}, `body${of}`), element("pre", {}, there.graph.ops[fused.fused].text)));
    }
    // What is inside has the types of the node that it was, where that is known.
    const was = inner >= 0 && others.length ? (others[0].byMark.get(`node ${name}`) || [])[0] : undefined;
    const typed = was === undefined ? shown : others[0].graph.nodes[was];
    parts.push(tensors("inputs", typed.inputs), tensors("outputs", typed.outputs));
    this.details.replaceChildren(...parts.filter(Boolean));
    this.details.scrollTop = 0;
  }

  // Why a plain node is one: the server knows, or what nearly fused does.
  reason(place, node, rows, gone) {
    rows.push(element("dt", {}, gone ? "is gone" : "stays plain"), place);
    const near = this.near.find((n) => n.node === node.name || n.root === `${node.op} ${node.name}`);
    if (near && !served) place.textContent = `${near.rule}: ${near.reason}${near.hint ? ` → ${near.hint}` : ""}`;
    else if (!served) place.textContent = `onnxfuse explain --at '${node.name}' says why`;
    else {
      place.textContent = "…";
      ask("why", { node: node.name }).then((found) => { place.textContent = gone && found.why.startsWith("no rule") ? "folded or removed by a built-in pass: onnxfuse rules lists them" : found.why; }, (error) => { place.textContent = error.message; });
    }
  }

  // The CUDA source of a fused op, made by the server when it is unfolded.
  source(node, of) {
    const place = element("div", {});
    const part = element("details", { class: "source" }, element("summary", {}, `CUDA source${of}`), place);
    if (!served) {
      place.append(element("p", { class: "hint" }, "onnxfuse view shows it, and optimize --dump writes it."));
      return part;
    }
    const choice = element("select", { "aria-label": "GPU" }, ...served.archs.map((name) => element("option", { value: name }, name)));
    choice.value = Work.arch || served.arch;
    const text = element("div", {});
    place.append(choice, text);
    const load = () => {
      Work.arch = choice.value;
      text.replaceChildren(element("p", { class: "hint" }, "making it …"));
      ask("kernel", { op: node.fused, value: node.values[0], arch: choice.value }).then((found) => {
        const blocks = found.launches.flatMap((one, k) => [
          element("p", { class: "hint" }, `${found.launches.length > 1 ? `launch ${k + 1} of ${found.launches.length}: ` : ""}${one.entry}, grid ${one.grid.join("×")}, block ${one.block.join("×")}, `
            + `${amount(one.shared, "B")} shared${one.scratch ? `, ${amount(one.scratch, "B")} scratch` : ""}`),
          copying(one.text),
          ...pieces(one.text),
        ]);
        const at = found.inputs ? `at ${found.inputs.map((s) => `[${s.join(",")}]`).join(" ")}` : "";
        const note = [found.note, at].filter(Boolean).join(" ");
        text.replaceChildren(element("p", { class: "hint" }, note), ...blocks, ...(found.library ? [element("pre", {}, found.library)] : []));
      }, (error) => text.replaceChildren(element("p", { class: "hint" }, error.message)));
    };
    choice.addEventListener("change", load);
    part.addEventListener("toggle", () => { Work.opened = part.open; if (part.open && !text.childNodes.length) load(); });
    if (Work.opened) part.open = true;
    return part;
  }

  search() {
    const field = this.root.querySelector("[data-find]");
    const rows = this.root.querySelector(".found");
    let index = null;
    let found = [];
    let active = 0;
    const build = () => this.panes.flatMap((pane) => pane.graph.nodes.map((n, i) => {
      const tensors = [...(n.inputs || []), ...n.outputs];
      return { pane, i, name: n.name.toLowerCase(), text: [n.op, n.name, ...(n.rule ? [n.rule] : []), ...(n.nodes || []), ...(n.body || []), ...n.values, ...tensors].join("\n").toLowerCase() };
    }));
    const close = () => { rows.hidden = true; field.setAttribute("aria-expanded", "false"); };
    const point = (k) => {
      active = k;
      [...rows.querySelectorAll("li[role=option]")].forEach((row, j) => { row.setAttribute("aria-selected", j === k); if (j === k) { row.scrollIntoView({ block: "nearest" }); field.setAttribute("aria-activedescendant", row.id); } });
    };
    const jump = (k) => {
      if (!found[k]) return;
      close();
      const { pane, i } = found[k];
      if (!pane.box.clientWidth) this.sides(pane.side);
      this.choose(pane, i, -1, { move: true });
    };
    const look = () => {
      const words = field.value.trim().toLowerCase();
      index = index || build();
      const hits = words ? index.filter((one) => one.text.includes(words)) : [];
      const rank = (one) => one.name === words ? 0 : one.name.startsWith(words) ? 1 : one.name.includes(words) ? 2 : 3;
      found = hits.map((one) => [rank(one), one]).sort((a, b) => a[0] - b[0]).slice(0, FOUND).map(([, one]) => one);
      for (const pane of this.panes) pane.mark(hits.filter((one) => one.pane === pane).map((one) => one.i), "marked", pane.box.clientHeight > 0);
      rows.replaceChildren(...found.map(({ pane, i, name }, k) => {
        const node = pane.graph.nodes[i];
        const tensor = name.includes(words) || node.op.toLowerCase().includes(words) ? null : [...(node.inputs || []), ...node.outputs, ...(node.nodes || [])].find((t) => t.toLowerCase().includes(words));
        const row = element("li", { role: "option", id: `f${this.number}-${k}` }, element("b", {}, node.op), ` ${node.name} `, element("small", {}, tensor ? `${pane.side}, ${tensor}` : pane.side));
        row.addEventListener("mousedown", (event) => { event.preventDefault(); jump(k); });
        return row;
      }));
      if (words) rows.append(element("li", { class: "hint" }, hits.length ? `${hits.length} found${hits.length > found.length ? `, the first ${found.length} are listed` : ""}` : "nothing is called so"));
      rows.hidden = !words;
      field.setAttribute("aria-expanded", String(Boolean(words)));
      point(0);
    };
    field.addEventListener("input", look);
    field.addEventListener("focus", () => { if (field.value) rows.hidden = false; });
    field.addEventListener("blur", close);
    field.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") point(Math.min(active + 1, found.length - 1));
      else if (event.key === "ArrowUp") point(Math.max(active - 1, 0));
      else if (event.key === "Enter") jump(active);
      else if (event.key === "Escape") { field.value = ""; look(); field.blur(); }
      else return;
      event.preventDefault();
    });
  }
}

async function ask(word, question) {
  let answer;
  try {
    answer = await fetch(`${word}?${new URLSearchParams(question)}`);
  } catch {
    throw new Error("onnxfuse view is not running any more");
  }
  const found = await answer.json().catch(() => ({ error: `the server answers ${answer.status}` }));
  if (!answer.ok) throw new Error([found.error, found.hint].filter(Boolean).join(" "));
  return found;
}

// What the address chooses.
function visit() {
  if (!location.hash.startsWith("#node=")) return;
  let words;
  try { words = location.hash.slice(6).split("/").map(decodeURIComponent); } catch { return; }
  const work = works.get(words[0]);
  const pane = work && work.pane(words[1]);
  if (!pane) return;
  const i = pane.graph.nodes.findIndex((n) => n.name === words[2]);
  if (i < 0) return;
  const inner = words[3] !== undefined && pane.graph.nodes[i].fused && pane.graph.ops[pane.graph.nodes[i].fused].nodes[Number(words[3])] ? Number(words[3]) : -1;
  if (!pane.box.clientWidth) work.sides(pane.side);
  work.choose(pane, i, inner, { address: false, move: true });
  if (!document.body.classList.contains("view")) work.root.scrollIntoView({ block: "nearest" });
}

// While the model is optimized: the step at hand, then the page of both.
async function follow() {
  const told = document.querySelector("header").appendChild(element("span", { class: "pending", role: "status" }));
  for (;;) {
    let state;
    try { state = await ask("state", {}); } catch (error) { state = { step: "", failed: error.message }; }
    if (state.failed) { told.textContent = state.failed; told.classList.add("failed"); return; }
    if (!state.step) { location.reload(); return; }
    told.textContent = `optimizing: ${state.step} …`;
    await new Promise((done) => setTimeout(done, 500));
  }
}

document.querySelectorAll("[data-work]").forEach((root) => works.set(root.dataset.work, new Work(root)));
document.querySelectorAll("tr[data-rule]").forEach((row) => row.addEventListener("click", () => {
  document.querySelectorAll("tr.chosen").forEach((other) => other.classList.remove("chosen"));
  row.classList.add("chosen");
  works.forEach((work) => work.markRule(row.dataset.rule));
}));
document.querySelectorAll("[data-show]").forEach((button) => button.addEventListener("click", () => {
  const work = works.get(button.dataset.show);
  const pane = work.pane("after") || work.panes[0];
  const i = pane.graph.nodes.findIndex((n) => n.values.includes(button.dataset.value));
  if (i >= 0) work.choose(pane, i, -1, { move: true });
  work.root.scrollIntoView({ block: "center" });
}));
window.addEventListener("hashchange", visit);
window.addEventListener("keydown", (event) => {
  const field = document.querySelector("[data-find]");
  if (event.key === "/" && field && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); field.focus(); field.select(); }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => works.forEach((work) => work.panes.forEach((pane) => pane.drawStrip())));
visit();
if (served && served.pending) follow();
document.body.dataset.ready = String(Math.round(performance.now()));

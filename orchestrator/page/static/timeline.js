"use strict";
// The timeline and the bars: what each second was spent on, on canvas, told apart by colour and by pattern.

orch.STATES = {
  training: { word: "training", light: "#002c76", dark: "#88b5fc", pattern: "solid", rank: 1 },
  lost: { word: "trained, lost", light: "#002c76", dark: "#88b5fc", pattern: "slash", rank: 2 },
  start: { word: "starting", light: "#9f9424", dark: "#fdd447", pattern: "vertical", rank: 3 },
  warmup: { word: "warm-up", light: "#9f9424", dark: "#fdd447", pattern: "vertical", rank: 3 },
  restore: { word: "restoring", light: "#9f9424", dark: "#fdd447", pattern: "vertical", rank: 3 },
  connect: { word: "connecting", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  backoff: { word: "waiting", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  host: { word: "waiting for a host", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  unseen: { word: "unseen: nobody watched", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  save: { word: "saving", light: "#9f9424", dark: "#fdd447", pattern: "vertical", rank: 3 },
  room: { word: "waiting for room", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  stop: { word: "stopping", light: "#945ec2", dark: "#874ea7", pattern: "horizontal", rank: 5 },
  stall: { word: "stalled", light: "#ab5313", dark: "#f38620", pattern: "dots", rank: 6 },
  failed: { word: "failed", light: "#98031f", dark: "#c1310a", pattern: "cross", rank: 7 },
};
orch.colour = (state) => orch.STATES[state][orch.isDark() ? "dark" : "light"];

// Paint a span with its pattern.
orch.paint = (pen, state, x, y, width, height) => {
  const kind = orch.STATES[state] || orch.STATES.connect;
  const colour = kind[orch.isDark() ? "dark" : "light"];
  pen.save();
  pen.beginPath();
  pen.rect(x, y, Math.max(width, 1), height);
  pen.clip();
  pen.fillStyle = pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.globalAlpha = kind.pattern === "solid" ? 1 : 0.25;
  if (kind.pattern !== "outline") pen.fillRect(x, y, width, height);
  pen.globalAlpha = 1;
  const lines = (step, draw) => { pen.beginPath(); for (let at = Math.floor(x / step) * step - height; at < x + width + height; at += step) draw(at); pen.stroke(); };
  if (kind.pattern === "slash" || kind.pattern === "cross") lines(7, (at) => { pen.moveTo(at, y + height); pen.lineTo(at + height, y); });
  if (kind.pattern === "cross") lines(7, (at) => { pen.moveTo(at, y); pen.lineTo(at + height, y + height); });
  if (kind.pattern === "vertical") lines(5, (at) => { pen.moveTo(at, y); pen.lineTo(at, y + height); });
  if (kind.pattern === "horizontal") for (let at = y + 3; at < y + height; at += 5) pen.fillRect(x, at, width, 1.5);
  if (kind.pattern === "dots") for (let at = x; at < x + width; at += 6) pen.fillRect(at, y + height / 2 - 1.5, 3, 3);
  if (kind.pattern !== "solid") pen.strokeRect(x + 0.75, y + 0.75, Math.max(width - 1.5, 0), height - 1.5);
  pen.restore();
};

// A canvas that is as sharp as the screen; null where it has no size now.
orch.pen = (canvas, height) => {
  const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  if (!width) return null;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return { pen, width };
};

orch.swatch = (state) => {
  const canvas = orch.h("canvas", { width: 32, height: 24, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  pen.scale(2, 2);
  orch.paint(pen, state, 0, 0, 16, 12);
  return canvas;
};

// How each class of time is called, and how it is drawn.
orch.CLASSES = [["kept", "training", "training that counts"], ["lost", "lost", "trained again"], ["connect", "connect", "connecting"],
  ["start", "start", "starting"], ["restore", "restore", "restoring"], ["warmup", "warmup", "warm-up"], ["save", "save", "saving"], ["stall", "stall", "stalled"], ["stop", "stop", "stopping"],
  ["backoff", "backoff", "waiting"], ["host", "host", "waiting for a host"], ["room", "room", "waiting for room"], ["unseen", "unseen", "unseen: nobody watched"]];

orch.goodputBar = (canvas, told) => {
  const found = orch.pen(canvas, 22);
  if (!found || !told) return;
  const spent = { ...told.badput, kept: told.kept_s };
  const all = Object.values(spent).reduce((sum, each) => sum + each, 0) || 1;
  let x = 0;
  for (const [name, state] of orch.CLASSES) {
    const width = ((spent[name] || 0) / all) * found.width;
    if (width > 0) orch.paint(found.pen, state, x, 0, width, 22);
    x += width;
  }
};

// ---------------------------------------------------------------- the timeline

const ROW = 22, LEFT = 96, AXIS = 20;

orch.Timeline = class {
  constructor(open) {
    this.open = open; // called with what was clicked
    this.canvas = orch.h("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline; the table below says the same" });
    this.tip = orch.h("div", { class: "tip", hidden: true });
    this.element = orch.h("div", { class: "timeline" }, this.canvas, this.tip);
    this.highlight = null;
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("pointerdown", (event) => { this.began = event.offsetX; });
    this.canvas.addEventListener("pointerup", (event) => this.released(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  // `told`: the document `/history`; `causes`: of `why`; `range`: Unix times, or null for all.
  show(told, causes, range) {
    this.told = told;
    this.causes = causes;
    this.all = [told.begin, Math.max(told.end, told.begin + 1)];
    this.range = range || this.all;
    this.rows = [{ name: "run", spans: [] }];
    for (const one of told.generations) {
      for (const [state, from, to] of one.spans) this.rows[0].spans.push({ state, from: told.begin + from, to: told.begin + to, generation: one.generation, one });
    }
    const differ = new Map();
    for (const cause of causes) {
      if (!cause.task || !cause.time) continue;
      if (!differ.has(cause.task)) differ.set(cause.task, []);
      differ.get(cause.task).push(cause);
    }
    for (const [task, of] of [...differ].slice(0, 12)) {
      const spans = this.rows[0].spans.filter((span) => ["training", "lost"].includes(span.state));
      const failed = of.map((cause) => ({ state: "failed", from: cause.time, to: cause.time + 0.5, generation: cause.generation, cause }));
      this.rows.push({ name: task, spans: [...spans, ...failed] });
    }
    this.draw();
  }

  x(at) { return LEFT + ((at - this.range[0]) / (this.range[1] - this.range[0])) * (this.width - LEFT - 8); }
  at(x) { return this.range[0] + ((x - LEFT) / (this.width - LEFT - 8)) * (this.range[1] - this.range[0]); }

  draw() {
    if (!this.told) return;
    const found = orch.pen(this.canvas, this.rows.length * (ROW + 4) + AXIS + 14);
    if (!found) return;
    const { pen, width } = found;
    this.width = width;
    const style = getComputedStyle(document.documentElement);
    const [fg, dim] = [style.getPropertyValue("--fg"), style.getPropertyValue("--dim")];
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.rows.forEach((row, i) => {
      const y = 14 + i * (ROW + 4);
      pen.fillStyle = fg;
      pen.fillText(row.name.slice(0, 14), 0, y + ROW / 2);
      this.row(pen, row, y);
    });
    this.ticks(pen, fg);
    this.axis(pen, dim, 14 + this.rows.length * (ROW + 4));
  }

  // Where spans are narrower than a pixel, the worst of them is seen.
  row(pen, row, y) {
    const worst = new Map();
    for (const span of row.spans) {
      const [from, to] = [Math.max(this.x(span.from), LEFT), Math.min(this.x(span.to), this.width)];
      if (to < LEFT || from > this.width) continue;
      if (this.highlight && span.state !== this.highlight) pen.globalAlpha = 0.25;
      if (to - from >= 1.5) orch.paint(pen, span.state, from, y, to - from, ROW);
      else {
        const pixel = Math.round(from), rank = (orch.STATES[span.state] || {}).rank || 0;
        if (rank > (worst.get(pixel)?.rank || 0)) worst.set(pixel, { rank, state: span.state });
      }
      pen.globalAlpha = 1;
    }
    for (const [pixel, { state }] of worst) orch.paint(pen, state, pixel, y, state === "failed" ? 3 : 1.5, ROW);
  }

  ticks(pen, fg) {
    pen.fillStyle = fg;
    const bottom = 14 + ROW;
    for (const [at] of this.told.checkpoints) {
      const x = this.x(this.told.begin + at);
      if (x >= LEFT && x <= this.width) pen.fillRect(x - 1, bottom, 2, 4);
    }
    let before = -100, count = 0;
    pen.textAlign = "center";
    const marks = this.causes.filter((cause) => cause.time).map((cause) => this.x(cause.time)).filter((x) => x >= LEFT && x <= this.width);
    for (const x of [...marks.sort((a, b) => a - b), Infinity]) {
      if (x - before < 14) { count += 1; continue; }
      if (count) {
        pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bad");
        pen.fillText(count > 1 ? `✕${count}` : "✕", before, 7);
      }
      [before, count] = [x, 1];
    }
    pen.textAlign = "left";
  }

  axis(pen, dim, y) {
    pen.fillStyle = pen.strokeStyle = dim;
    const count = Math.max(2, Math.floor((this.width - LEFT) / 130));
    for (let i = 0; i <= count; i += 1) {
      const at = this.range[0] + ((this.range[1] - this.range[0]) * i) / count;
      pen.textAlign = i === count ? "right" : i ? "center" : "left";
      pen.fillText(orch.time(at), Math.min(this.x(at), this.width - 2), y + 10);
    }
    pen.textAlign = "left";
  }

  under(event) {
    const row = this.rows?.[Math.floor((event.offsetY - 14) / (ROW + 4))];
    const at = this.at(event.offsetX);
    const slack = (this.range[1] - this.range[0]) / (this.width || 1) * 3;
    const spans = (row?.spans || []).filter((span) => at >= span.from - (span.cause ? slack : 0) && at <= span.to + (span.cause ? slack : 0));
    return { row, at, span: spans.at(-1) };
  }

  hover(event) {
    const { row, at, span } = this.under(event);
    this.tip.hidden = !span;
    if (!span) return;
    orch.text(this.tip, `${row.name}: ${orch.STATES[span.state]?.word || span.state}, generation ${span.generation}, `
      + `${orch.duration(span.to - span.from)}, ${orch.time(at)}${span.cause ? `: ${span.cause.sentence}` : ""}`);
    this.tip.style.left = `${Math.min(event.offsetX + 12, Math.max(0, this.width - 240))}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }

  released(event) {
    const [a, b] = [this.began, event.offsetX].sort((one, other) => one - other);
    if (b - a > 8) { orch.zoomTo([this.at(Math.max(a, LEFT)), this.at(b)]); return; }
    const { row, span } = this.under(event);
    if (span) this.open(row.name === "run" ? null : row.name, span);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const turn = Math.sign(event.deltaY || event.deltaX);
    if (event.ctrlKey) this.zoom(turn > 0 ? 1.3 : 0.77, this.at(event.offsetX)); else this.pan(turn * 0.15);
  }

  zoom(factor, centre = (this.range[0] + this.range[1]) / 2) {
    const range = this.range.map((each) => centre + (each - centre) * factor);
    orch.zoomTo(range[1] - range[0] >= this.all[1] - this.all[0] ? null : range);
  }

  pan(part) {
    const by = (this.range[1] - this.range[0]) * part;
    orch.zoomTo(this.range.map((each) => each + by));
  }

  // Go to the next cause, or the one before.
  step(direction) {
    const centre = (this.range[0] + this.range[1]) / 2;
    const times = this.causes.map((cause) => cause.time).filter(Boolean).sort((a, b) => a - b);
    const found = direction > 0 ? times.find((at) => at > centre + 1) : times.findLast((at) => at < centre - 1);
    if (found === undefined) return;
    const half = Math.min(60, (this.all[1] - this.all[0]) / 4);
    orch.zoomTo([found - half, found + half]);
  }
};

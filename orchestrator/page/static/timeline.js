// The timeline and the bars: what each second was spent on, drawn on canvas in colours and patterns.

import {
  announce,
  countText,
  durationText,
  h,
  isDark,
  onGestures,
  setText,
  timeText,
  zoomTo,
} from "./base.js";

export const STATES = {
  training: { word: "training", light: "#002c76", dark: "#88b5fc", pattern: "solid", rank: 1 },
  risk: { word: "training, not verified yet", light: "#002c76", dark: "#88b5fc", pattern: "pale", rank: 1 },
  lost: { word: "trained, lost", light: "#002c76", dark: "#88b5fc", pattern: "slash", rank: 2 },
  start: { word: "starting", light: "#9f9424", dark: "#fdd447", pattern: "vertical", rank: 3 },
  warmup: { word: "warm-up", light: "#9f9424", dark: "#fdd447", pattern: "vertical", rank: 3 },
  restore: { word: "restoring", light: "#9f9424", dark: "#fdd447", pattern: "vertical", rank: 3 },
  connect: { word: "connecting", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  backoff: { word: "waiting", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  host: { word: "waiting for a host", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  room: { word: "waiting for room", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  queue: { word: "waiting in the queue", light: "#5f646c", dark: "#878e96", pattern: "outline", rank: 4 },
  save: { word: "saving", light: "#3d9578", dark: "#85fed8", pattern: "horizontal", rank: 2 },
  unseen: { word: "nobody watched", light: "#002c76", dark: "#88b5fc", pattern: "dashed", rank: 2 },
  rescue: { word: "rescuing", light: "#3d9578", dark: "#85fed8", pattern: "horizontal", rank: 2 },
  stop: { word: "stopping", light: "#945ec2", dark: "#874ea7", pattern: "horizontal", rank: 5 },
  stall: { word: "stalled", light: "#ab5313", dark: "#f38620", pattern: "dots", rank: 6 },
  failed: { word: "failed", light: "#98031f", dark: "#c1310a", pattern: "cross", rank: 7 },
  done: { word: "ended", light: "#c3c6ca", dark: "#4a4f55", pattern: "solid", rank: 0 },
};
const kindOf = (state) => STATES[state] || STATES.connect; // a newer server may know more states
export const colourOf = (state) => kindOf(state)[isDark() ? "dark" : "light"];

// Paint a span with its pattern.
const paintState = (pen, state, x, y, width, height, strength = 1) => {
  const kind = kindOf(state);
  const colour = kind[isDark() ? "dark" : "light"];
  pen.save();
  pen.beginPath();
  pen.rect(x, y, Math.max(width, 1), height);
  pen.clip();
  pen.fillStyle = pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.globalAlpha = strength * ({ solid: 1, pale: 0.6 }[kind.pattern] || 0.25);
  if (!["outline", "dashed"].includes(kind.pattern)) pen.fillRect(x, y, width, height);
  pen.globalAlpha = strength;
  const lines = (step, draw) => {
    pen.beginPath();
    for (let at = Math.floor(x / step) * step - height; at < x + width + height; at += step) draw(at);
    pen.stroke();
  };
  if (kind.pattern === "slash" || kind.pattern === "cross")
    lines(7, (at) => {
      pen.moveTo(at, y + height);
      pen.lineTo(at + height, y);
    });
  if (kind.pattern === "cross")
    lines(7, (at) => {
      pen.moveTo(at, y);
      pen.lineTo(at + height, y + height);
    });
  if (kind.pattern === "vertical")
    lines(5, (at) => {
      pen.moveTo(at, y);
      pen.lineTo(at, y + height);
    });
  if (kind.pattern === "horizontal")
    for (let at = y + 3; at < y + height; at += 5) pen.fillRect(x, at, width, 1.5);
  if (kind.pattern === "dots")
    for (let at = x; at < x + width; at += 6) pen.fillRect(at, y + height / 2 - 1.5, 3, 3);
  if (kind.pattern === "dashed") pen.setLineDash([5, 3]);
  if (!["solid", "pale"].includes(kind.pattern))
    pen.strokeRect(x + 0.75, y + 0.75, Math.max(width - 1.5, 0), height - 1.5);
  pen.restore();
};

// A canvas that is as sharp as the screen; null where it has no size now.
export const penOf = (canvas, height) => {
  const width = canvas.clientWidth,
    ratio = window.devicePixelRatio || 1;
  if (!width) return null;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return { pen, width };
};

export const swatch = (state) => {
  const canvas = h("canvas", { width: 32, height: 24, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  pen.scale(2, 2);
  paintState(pen, state, 0, 0, 16, 12);
  return canvas;
};

// The name of each class of time, and how it is drawn.
export const CLASSES = [
  ["kept", "training", "training that counts"],
  ["risk", "risk", "training, not verified yet"],
  ["lost", "lost", "trained, lost"],
  ["connect", "connect", "connecting"],
  ["start", "start", "starting"],
  ["restore", "restore", "restoring"],
  ["warmup", "warmup", "warm-up"],
  ["save", "save", "saving"],
  ["stall", "stall", "stalled"],
  ["rescue", "rescue", "rescuing"],
  ["stop", "stop", "stopping"],
  ["backoff", "backoff", "waiting"],
  ["host", "host", "waiting for a host"],
  ["room", "room", "waiting for room"],
  ["queue", "queue", "waiting in the queue"],
  ["unseen", "unseen", "nobody watched"],
];

// The seconds of each class. Training that no checkpoint holds yet counts as useful, and has a class of its own.
export const spentByClass = (account) => {
  const risk = Math.min(account?.risk_s || 0, account?.kept_s || 0);
  return { ...account?.badput, kept: (account?.kept_s || 0) - risk, risk };
};
// What the newest generation has trained since its last checkpoint is a span of its own. Returns its seconds.
export const atRiskSeconds = (history) => {
  const saved = history.checkpoints.at(-1)?.[0] ?? 0;
  let risk = 0;
  for (const one of history.generations.filter((each) => each.at_risk)) {
    one.spans = one.spans.flatMap(([state, from, to]) => {
      if (state === "risk") risk += to - from; // a report's document was cut before
      if (state !== "training" || to <= saved) return [[state, from, to]];
      const cut = Math.max(from, saved);
      risk += to - cut;
      return [
        ["training", from, cut],
        ["risk", cut, to],
      ].filter(([, begin, end]) => end > begin);
    });
  }
  return risk;
};

export const goodputBar = (canvas, account) => {
  const drawing = penOf(canvas, 22);
  if (!drawing || !account) return;
  const spent = spentByClass(account);
  const all = Object.values(spent).reduce((sum, each) => sum + each, 0) || 1;
  let x = 0;
  for (const [name, state] of CLASSES) {
    const width = ((spent[name] || 0) / all) * drawing.width;
    if (width > 0) paintState(drawing.pen, state, x, 0, width, 22);
    x += width;
  }
};

// ---------------------------------------------------------------- the timeline

// Above the rows are first causes ✕ and injected faults ⚡; below the first one checkpoints, pinned ones as ◆.
export const ROWS_MAX = 100; // as many tasks have a row
const DIFFER_MAX = 12; // and so many that differ, where not all are asked for
const OWN_FATE = { "task-lost": true, "restart-alone": true };
const ROW = 22,
  LEFT = 96,
  AXIS = 20,
  ABOVE = 18,
  BELOW = 10,
  NEAR = 9;

export class Timeline {
  constructor(open) {
    this.open = open; // called with the task, the span or cause, and the time of what was clicked
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "img",
      "aria-label": "Timeline; the table below says the same",
    });
    this.tip = h("div", { class: "tip", hidden: true });
    this.element = h("div", { class: "timeline" }, this.canvas, this.tip);
    this.highlight = null;
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    this.canvas.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.enter();
    });
    onGestures(this.canvas, {
      zoom: (factor, x) => this.soon(this.around(factor, this.at(x))),
      pan: (pixels) => this.soon(this.moved(pixels / Math.max(1, this.width - LEFT))),
      select: (from, to) => zoomTo([this.at(Math.max(from, LEFT)), this.at(to)]),
      tap: (event) => this.tapped(event),
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  // `history`: of `/history`; `causes`: of `why`; `range`: Unix times, or null for all; `more`: pins and faults.
  show(history, causes, range, more = {}) {
    this.history = history;
    this.causes = causes;
    this.all = [history.begin, Math.max(history.end, history.begin + 1)];
    this.range = range || this.all;
    const spans = history.generations.flatMap((one) =>
      one.spans.map(([state, from, to]) => ({
        state,
        from: history.begin + from,
        to: history.begin + to,
        generation: one.generation,
        one,
      })),
    );
    this.rows = [
      { name: "run", spans },
      ...this.taskRows(causes, more.events || [], more.tasks || [], spans),
    ];
    this.marks = [
      ...causes
        .filter((cause) => cause.time)
        .map((cause) => ({ at: cause.time, glyph: "✕", words: `first cause: ${cause.sentence}`, cause })),
      ...(more.events || [])
        .filter((event) => event.kind === "chaos")
        .map((event) => ({
          at: Date.parse(event.time) / 1000,
          glyph: "⚡",
          words: event.message,
          cause: { task: event.task, generation: event.generation },
        })),
    ].sort((a, b) => a.at - b.at);
    const pinned = new Set(
      (more.checkpoints || []).filter((one) => one.pinned).map((one) => one.global_step),
    );
    this.saved = history.checkpoints.map(([at, step]) => ({
      at: history.begin + at,
      pinned: pinned.has(step),
      words:
        `checkpoint ${step === null ? "of an unknown step" : `of step ${countText(step)}`}, verified` +
        (pinned.has(step) ? ", pinned" : ""),
    }));
    this.draw();
  }

  // The tasks that had another fate than the run: who failed first, was given up, or was restarted alone; and `all`
  // that one wants to see. All were in the gang, and their rows are the run's, with what was theirs alone.
  taskRows(causes, events, all, spans) {
    const own = new Map(all.slice(0, ROWS_MAX).map((task) => [task, []]));
    const odd = [
      ...causes.map((cause) => ({ task: cause.task, at: cause.time, generation: cause.generation, cause })),
      ...events
        .filter((event) => OWN_FATE[event.kind])
        .map((event) => ({
          task: event.task,
          at: Date.parse(event.time) / 1000,
          generation: event.generation,
          cause: { task: event.task, generation: event.generation, sentence: event.message },
        })),
    ];
    for (const { task, at, generation, cause } of odd) {
      if (!task || !at) continue;
      if (!own.has(task)) {
        if (own.size >= all.length + DIFFER_MAX) continue;
        own.set(task, []);
      }
      own.get(task).push({ state: "failed", from: at, to: at + 0.5, generation, cause });
    }
    return [...own].map(([name, failed]) => ({ name, spans: [...spans, ...failed], own: failed }));
  }

  x(at) {
    return LEFT + ((at - this.range[0]) / (this.range[1] - this.range[0])) * (this.width - LEFT - 8);
  }
  at(x) {
    return this.range[0] + ((x - LEFT) / (this.width - LEFT - 8)) * (this.range[1] - this.range[0]);
  }
  y(row) {
    return ABOVE + row * (ROW + 4) + (row ? BELOW : 0);
  }
  isSeen(x) {
    return x >= LEFT && x <= this.width;
  }

  draw() {
    if (!this.history) return;
    const drawing = penOf(this.canvas, this.y(this.rows.length) + AXIS);
    if (!drawing) return;
    const { pen, width } = drawing;
    this.width = width;
    const style = getComputedStyle(document.documentElement);
    const [fg, dim, bad] = ["--fg", "--dim", "--bad"].map((name) => style.getPropertyValue(name));
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.rows.forEach((row, i) => {
      pen.fillStyle = fg;
      pen.fillText(row.name.slice(0, 14), 0, this.y(i) + ROW / 2);
      if (i && row.own) this.copied(pen, this.y(i));
      this.row(pen, row.own || row.spans, this.y(i));
    });
    pen.textAlign = "center";
    this.checkpoints(pen, fg);
    this.above(pen, fg, bad);
    this.axis(pen, dim, this.y(this.rows.length));
  }

  // Of spans that are narrower than a pixel, the worst is drawn.
  row(pen, spans, y) {
    const worst = new Map();
    for (const span of spans) {
      const [from, to] = [Math.max(this.x(span.from), LEFT), Math.min(this.x(span.to), this.width)];
      if (to < LEFT || from > this.width) continue;
      pen.globalAlpha = 1;
      if (to - from >= 1.5) {
        paintState(
          pen,
          span.state,
          from,
          y,
          to - from,
          ROW,
          this.highlight && span.state !== this.highlight ? 0.2 : 1,
        );
        continue;
      }
      const pixel = Math.round(from),
        rank = (STATES[span.state] || {}).rank || 0;
      if (rank > (worst.get(pixel)?.rank || 0)) worst.set(pixel, { rank, state: span.state });
    }
    for (const [pixel, { state }] of worst)
      paintState(
        pen,
        state,
        pixel,
        y,
        state === "failed" ? 3 : 1.5,
        ROW,
        this.highlight && state !== this.highlight ? 0.2 : 1,
      );
  }

  // What a task has in common with the run is painted once: there may be a hundred rows of a thousand spans.
  copied(pen, y) {
    const ratio = this.canvas.width / this.width,
      wide = this.width - LEFT;
    pen.globalAlpha = 1;
    pen.drawImage(
      this.canvas,
      LEFT * ratio,
      this.y(0) * ratio,
      wide * ratio,
      ROW * ratio,
      LEFT,
      y,
      wide,
      ROW,
    );
  }

  checkpoints(pen, fg) {
    pen.fillStyle = fg;
    const y = ABOVE + ROW;
    let before = -9;
    for (const one of this.saved) {
      const x = this.x(one.at);
      if (!this.isSeen(x)) continue;
      if (one.pinned) pen.fillText("◆", x, y + 8);
      else if (x - before >= 3) {
        pen.fillRect(x - 1, y + 2, 2, 6);
        before = x;
      }
    }
  }

  // Causes, faults and restarts that are too near to each other to be told apart are one mark with their number.
  above(pen, fg, bad) {
    const marks = this.marks.map(({ at, glyph }) => ({ x: this.x(at), glyph, count: 1 }));
    const starts = this.history.generations
      .filter((one) => one.generation > 1 && one.spans.length)
      .map((one) => this.x(this.history.begin + one.spans[0][1]));
    const narrow = mergedMarks(
      starts.map((x) => ({ x, glyph: "", count: 1 })),
      4,
    ).filter((one) => one.count > 1);
    for (const one of mergedMarks(
      [...marks, ...narrow].sort((a, b) => a.x - b.x),
      32,
    )) {
      if (!this.isSeen(one.x)) continue;
      pen.fillStyle = one.glyph.includes("✕") ? bad : fg;
      pen.fillText(
        `${one.glyph}${one.count > 1 ? `×${one.count}` : ""}`,
        Math.min(Math.max(one.x, LEFT + 6), this.width - 16),
        ABOVE / 2,
      );
    }
  }

  axis(pen, dim, y) {
    pen.fillStyle = pen.strokeStyle = dim;
    const count = Math.max(2, Math.floor((this.width - LEFT) / 130));
    for (let i = 0; i <= count; i += 1) {
      const at = this.range[0] + ((this.range[1] - this.range[0]) * i) / count;
      pen.textAlign = i === count ? "right" : i ? "center" : "left";
      pen.fillText(timeText(at), Math.min(this.x(at), this.width - 2), y + 10);
    }
    pen.textAlign = "left";
  }

  // What is under the pointer: a mark, or a span of a row.
  under(event) {
    const { offsetX, offsetY } = event;
    const lane =
      offsetY < ABOVE ? this.marks : offsetY >= ABOVE + ROW && offsetY < this.y(1) ? this.saved : [];
    const mark = (lane || [])
      .map((one) => [Math.abs(this.x(one.at) - offsetX), one])
      .filter(([far]) => far < NEAR)
      .sort((a, b) => a[0] - b[0])[0]?.[1];
    const row = this.rows?.find((_, i) => offsetY >= this.y(i) && offsetY < this.y(i) + ROW);
    const at = this.at(offsetX),
      slack = ((this.range[1] - this.range[0]) / (this.width || 1)) * 3;
    const spans = (row?.spans || []).filter(
      (span) => at >= span.from - (span.cause ? slack : 0) && at <= span.to + (span.cause ? slack : 0),
    );
    return { row, at, mark, span: spans.at(-1) };
  }

  hover(event) {
    if (!this.history) return;
    const { row, at, span, mark } = this.under(event);
    this.tip.hidden = !span && !mark;
    if (this.tip.hidden) return;
    const steps =
      span && ["training", "risk", "lost"].includes(span.state) && span.one.last_step !== null
        ? `, up to step ${countText(span.one.last_step)}`
        : "";
    setText(
      this.tip,
      mark
        ? `${timeText(mark.at)} ${mark.words}`
        : `${row.name}: ${STATES[span.state]?.word || span.state}, generation ${span.generation}, ` +
            `${durationText(span.to - span.from)}${steps}, ${timeText(at)}` +
            (span.cause ? `: ${span.cause.sentence}` : ""),
    );
    this.tip.style.left = `${Math.max(0, Math.min(event.offsetX + 12, this.width - 260))}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }

  tapped(event) {
    if (!this.history) return;
    const { row, span, mark, at } = this.under(event);
    if (mark?.cause) this.open(mark.cause.task, mark.cause, null);
    else if (span) this.open(row.name === "run" ? null : row.name, span, span.cause ? null : at);
  }

  // By keyboard, where `n` and `p` have led: the log of that cause, else of the middle of what is seen.
  enter() {
    if (!this.history) return;
    const centre = (this.range[0] + this.range[1]) / 2,
      reach = (this.range[1] - this.range[0]) / 20;
    const mark = this.marks.find((one) => Math.abs(one.at - centre) < reach);
    if (mark?.cause) this.open(mark.cause.task, mark.cause, null);
    else this.open(null, {}, centre);
  }

  around(factor, centre) {
    return this.within(this.range.map((each) => centre + (each - centre) * factor));
  }
  moved(part) {
    return this.within(this.range.map((each) => each + (this.range[1] - this.range[0]) * part));
  }

  // A stretch that is not longer than a second, and lies in the run's time.
  within([from, to]) {
    const long = Math.min(Math.max(to - from, 1), this.all[1] - this.all[0]),
      middle = (from + to) / 2;
    const begin = Math.min(Math.max(middle - long / 2, this.all[0]), this.all[1] - long);
    return [begin, begin + long];
  }

  // Show it at once, and tell the other views when the pointer rests.
  soon(range) {
    if (!this.history) return;
    this.range = range;
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.go(range), 200);
  }

  go(range) {
    zoomTo(range[1] - range[0] >= (this.all[1] - this.all[0]) * 0.999 ? null : range);
  }
  zoom(factor, centre = (this.range[0] + this.range[1]) / 2) {
    this.go(this.around(factor, centre));
  }
  pan(part) {
    this.go(this.moved(part));
  }

  // Go to the next cause, or the one before.
  step(direction) {
    const centre = (this.range[0] + this.range[1]) / 2;
    const marks = this.marks.filter((mark) => mark.glyph === "✕");
    const half = Math.min(60, (this.all[1] - this.all[0]) / 4);
    // At an end of the run's time a cause cannot stand in the middle: there it is the one that was gone to.
    const here =
      this.steppedTo &&
      Math.abs(this.within([this.steppedTo.at - half, this.steppedTo.at + half])[0] - this.range[0]) < 0.2
        ? this.steppedTo.at
        : centre;
    const nearest =
      direction > 0
        ? marks.find((mark) => mark.at > here + 0.05)
        : marks.findLast((mark) => mark.at < here - 0.05);
    if (!nearest) return;
    this.steppedTo = nearest;
    announce(`${timeText(nearest.at)} ${nearest.words}`);
    this.go(this.within([nearest.at - half, nearest.at + half]));
  }
}

// Marks that lie nearer to each other than `apart` pixels, as one with their number.
export const mergedMarks = (marks, apart) => {
  const made = [];
  for (const mark of marks) {
    const into = made.at(-1);
    if (into && mark.x - into.x < apart) {
      into.of[mark.glyph] = (into.of[mark.glyph] || 0) + mark.count;
      into.count = Math.max(...Object.values(into.of)); // a fault and what it caused are two glyphs, and one of each
      if (!into.glyph.includes(mark.glyph)) into.glyph += mark.glyph;
    } else made.push({ ...mark, of: { [mark.glyph]: mark.count } });
  }
  return made;
};

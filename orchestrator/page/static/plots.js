"use strict";
// The plots: each value over its step or the time, one line for each generation, on uPlot.

orch.PLOTS_MAX = 10;
orch.TITLES = { steps_per_s: "steps/s", cpu_percent: "CPU (%)", memory_percent: "memory (%)", rss_bytes: "memory (bytes)" };

// The names to plot of the run itself: loss and what belongs to it, the pace, then the other metrics.
orch.plotNames = (series) => {
  const names = series.filter((one) => !one.task).map((one) => one.name);
  const first = ["loss", "steps_per_s"].filter((name) => names.includes(name));
  return [...first, ...names.filter((name) => !first.includes(name) && !name.startsWith("val_")).sort()];
};

// One line for each generation, as columns over a common axis, which uPlot wants.
const columns = (lines) => {
  const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, i) => [x, i]));
  return [xs, ...lines.map((line) => {
    // Between two points of a line, those of other lines are no gap: undefined is spanned, null is a gap.
    const ys = new Array(xs.length).fill(undefined);
    line.x.forEach((x, i) => { ys[place.get(x)] = line.y[i]; });
    return ys;
  })];
};

// By step, what was trained again is another line, dimmed.
const split = (line, kept) => {
  if (kept === null || kept === undefined || line.x.at(-1) <= kept) return [{ ...line, lost: false }];
  const at = line.x.findIndex((x) => x > kept);
  const part = (from, to, lost) => ({ ...line, x: line.x.slice(from, to), y: line.y.slice(from, to), lost });
  return [part(0, at, false), part(Math.max(0, at - 1), undefined, true)].filter((each) => each.x.length);
};

const HUES = { light: ["#002c76", "#ab5313", "#3d7a5f", "#945ec2"], dark: ["#88b5fc", "#f38620", "#85fed8", "#d5a6f5"] };

orch.Plot = class {
  constructor(name, { byStep = true, log = false } = {}) {
    this.name = name;
    this.byStep = byStep;
    this.log = log;
    this.value = orch.h("span", { class: "value dim" });
    this.area = orch.h("div", { "aria-hidden": "true" });
    this.element = orch.h("div", { class: "plot" }, orch.h("h3", {}, this.value, orch.TITLES[name] || name), this.area);
    this.size = new ResizeObserver(() => this.resize());
    this.size.observe(this.area);
  }

  // `lines`: of `/series`, also of `val_NAME`; `kept`: by generation, the step up to which it counts.
  show(lines, kept, range) {
    this.lines = lines.flatMap((line) => (this.byStep ? split(line, kept[line.generation]) : [line])).filter((line) => line.x.length);
    this.range = range;
    const newest = lines.filter((line) => !line.name.startsWith("val_")).at(-1);
    const value = newest?.y.findLast((each) => each !== null);
    orch.text(this.value, value === undefined ? "" : orch.number(value));
    this.draw();
  }

  // Take in what the stream has told, without asking for all again.
  add(x, y, generation) {
    const line = this.lines?.findLast((each) => !each.name.startsWith("val_"));
    if (!line || line.generation !== generation || line.lost || !(x > line.x.at(-1))) return;
    line.x.push(x);
    line.y.push(y);
    orch.text(this.value, orch.number(y));
    this.plot?.setData(columns(this.lines));
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    const width = this.area.clientWidth;
    if (!width || !this.lines?.length) { orch.put(this.area, this.lines?.length ? "" : orch.h("p", { class: "dim" }, "nothing measured yet")); return; }
    orch.put(this.area);
    this.plot = new uPlot(this.options(width), columns(this.lines), this.area);
  }

  options(width) {
    const style = getComputedStyle(document.documentElement);
    const [dim, line, hues] = [style.getPropertyValue("--dim"), style.getPropertyValue("--line"), HUES[orch.isDark() ? "dark" : "light"]];
    const generations = [...new Set(this.lines.map((each) => each.generation))];
    const axis = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, font: "11px system-ui" };
    const time = (u, values) => values.map((each) => orch.time(each));
    const count = (u, values) => values.map((each) => (each === null ? "" : orch.number(each)));
    return {
      width, height: 190, ms: 1, legend: { show: false }, cursor: { sync: { key: this.byStep ? "step" : "time" }, drag: { x: !this.byStep, y: false, setScale: false } },
      scales: { x: { time: false, ...(this.range && !this.byStep ? { range: () => this.range } : {}) }, y: this.log ? { distr: 3 } : {} },
      axes: [{ ...axis, values: this.byStep ? count : time, space: 70, size: 30, label: this.byStep ? "step" : "", labelSize: this.byStep ? 16 : 0, labelFont: "11px system-ui" },
        { ...axis, values: count, size: 56 }],
      series: [{}, ...this.lines.map((each) => ({
        stroke: hues[(each.name.startsWith("val_") ? 1 : 0) + 2 * (this.byStep ? 0 : generations.indexOf(each.generation) % 2)],
        width: 1.5, alpha: each.lost ? 0.3 : 1, dash: each.name.startsWith("val_") ? [6, 4] : each.lost ? [3, 3] : undefined,
        points: { show: each.x.length < 3, size: 4 }, spanGaps: false,
      }))],
      hooks: {
        drawClear: [(u) => this.bands(u, generations, dim)],
        setCursor: [(u) => this.hover(u)],
        setSelect: [(u) => { if (u.select.width > 8) orch.zoomTo([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]); }],
      },
    };
  }

  // A dashed line where a generation begins.
  bands(u, generations, dim) {
    u.ctx.save();
    u.ctx.strokeStyle = dim;
    u.ctx.setLineDash([4, 4]);
    for (const generation of generations.slice(1)) {
      const x = u.valToPos(this.lines.find((line) => line.generation === generation).x[0], "x", true);
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
    }
    u.ctx.restore();
  }

  hover(u) {
    const { idx } = u.cursor;
    if (idx === null || idx === undefined) return;
    const found = this.lines.map((line, i) => [line, u.data[i + 1][idx]]).filter(([, y]) => y !== undefined && y !== null);
    if (!found.length) return;
    const x = this.byStep ? `step ${orch.count(u.data[0][idx])}` : orch.time(u.data[0][idx]);
    orch.text(this.value, `${x}: ${found.map(([line, y]) => (line.name.startsWith("val_") ? "val " : "") + orch.number(y)).join(" / ")}`);
  }

  resize() {
    const width = this.area.clientWidth;
    if (!width) return;
    if (this.plot && Math.abs(this.plot.width - width) > 1) this.plot.setSize({ width, height: 190 });
    else if (!this.plot && this.lines?.length) this.draw();
  }

  destroy() { this.size.disconnect(); this.plot?.destroy(); }
};

// A small line without axes.
orch.sparkline = (canvas, values) => {
  const found = orch.pen(canvas, 24);
  const known = values.filter((each) => each !== null);
  if (!found || known.length < 2) return;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  found.pen.strokeStyle = orch.colour("training");
  found.pen.lineWidth = 1.5;
  found.pen.beginPath();
  known.forEach((each, i) => {
    const [x, y] = [(i / (known.length - 1)) * found.width, 22 - ((each - low) / (high - low || 1)) * 20];
    if (i) found.pen.lineTo(x, y); else found.pen.moveTo(x, y);
  });
  found.pen.stroke();
};

// The plots: each value over its step or the time, one line for each generation, on uPlot.

import {
  countText,
  durationText,
  h,
  isDark,
  numberText,
  onGestures,
  page,
  put,
  setText,
  timeText,
} from "./base.js";
import { MEASURES } from "./measures.js";
import { colourOf, mergedMarks, penOf } from "./timeline.js";

export const PLOTS_MAX = 10;
export const COMPARED_MAX = 50; // runs over each other: more tell nothing
export const LINES_MAX = 12; // more lines than these are shown as a band
const UNITS = { percent: " (%)", bytes: " (GiB)", bytes_per_s: " (MiB/s)", watts: " (W)", celsius: " (°C)" };
export const TITLES = Object.fromEntries(
  Object.values(MEASURES).flatMap((rows) => rows.map(({ name, label, unit }) => [name, label + (UNITS[unit] || "")])),
);
const NOT_FINITE = { nan: "NaN", inf: "Inf", "-inf": "−Inf" };
const RATES = new Set(
  Object.values(MEASURES).flatMap((rows) => rows.flatMap(({ name, unit }) => (unit === "bytes_per_s" ? [name] : []))),
);
const scaled = (name, ys) => {
  const unit = name.endsWith("_bytes") ? 2 ** 30 : RATES.has(name) ? 2 ** 20 : 1;
  return unit === 1 ? ys : ys.map((y) => (y === null ? null : y / unit));
};

// The names to plot of the run itself: loss and what belongs to it, the pace, then the other metrics.
export const plotNames = (series) => {
  const names = series.filter((one) => !one.task).map((one) => one.name);
  const first = ["loss", "steps_per_s"].filter((name) => names.includes(name));
  return [...first, ...names.filter((name) => !first.includes(name) && !name.startsWith("val_")).sort()];
};

// One line for each generation, as columns over a common axis, which uPlot wants.
const columns = (lines, more = []) => {
  const xs = [...new Set([...lines.flatMap((line) => line.x), ...more])].sort((a, b) => a - b);
  const place = new Map(xs.map((x, i) => [x, i]));
  return [
    xs,
    ...lines.map((line) => {
      // Between two points of a line, those of other lines are no gap: undefined is spanned, null is a gap.
      const ys = new Array(xs.length).fill(undefined);
      line.x.forEach((x, i) => {
        ys[place.get(x)] = line.y[i];
      });
      return ys;
    }),
  ];
};

// By step, steps that were trained again are a line of their own, dimmed.
const split = (line, kept) => {
  if (kept === null || kept === undefined || line.x.at(-1) <= kept) return [{ ...line, lost: false }];
  const at = line.x.findIndex((x) => x > kept);
  const part = (from, to, lost) => ({
    ...line,
    x: line.x.slice(from, to),
    y: line.y.slice(from, to),
    means: line.means?.filter(([x]) => x > kept === lost),
    lost,
  });
  return [part(0, at, false), part(Math.max(0, at - 1), undefined, true)].filter((each) => each.x.length);
};

const HUES = {
  light: ["#002c76", "#ab5313", "#3d7a5f", "#945ec2"],
  dark: ["#88b5fc", "#f38620", "#85fed8", "#d5a6f5"],
};

// More lines than there are colours of ours have others, as far from each other as they go round.
export const hueOf = (line) =>
  HUES[isDark() ? "dark" : "light"][line] ?? `hsl(${(line * 137) % 360} 65% ${isDark() ? 70 : 38}%)`;

// What a plot may be drawn over, and what it is called.
export const AXES = { step: "step", epoch: "epoch", time: "time", relative: "time since the start" };
export const isByStep = (axis) => axis === "step" || axis === "epoch";
// Where a step or a Unix time stands on an axis, and back. `epochSteps`: how many steps an epoch has.
export const scaleOf = (axis, epochSteps, begin) => {
  const [shift, unit] = axis === "epoch" ? [0, epochSteps] : [axis === "relative" ? begin : 0, 1];
  const known = (convert) => (x) => (x === null || x === undefined ? null : convert(x));
  return { place: known((x) => (x - shift) / unit), back: known((x) => x * unit + shift) };
};
// Stretches of time between two ticks that people count in, in seconds.
const MINUTE = [1, 2, 5, 10, 15, 30];
const TIME_STEPS = [
  ...[0.001, 0.01, 0.1].flatMap((unit) => [1, 2, 5].map((count) => count * unit)),
  ...MINUTE,
  ...MINUTE.map((count) => count * 60),
  ...[1, 2, 3, 6, 12].map((count) => count * 3600),
  ...[1, 2, 5, 10, 20, 50, 100].map((count) => count * 86400),
];
const AS_IT_IS = scaleOf("step");
const [HEIGHT, LARGE] = [190, 460];

// The exponential mean of a line: of all its values, not of those that are drawn. A gap stays a gap.
const smoothed = (line, weight) => {
  const means = line.means || line.x.map((x, i) => [x, line.y[i], 1]);
  let [sum, count] = [0, 0];
  const ys = means.map(([, y, n]) => {
    if (y === null || y === undefined) return y;
    [sum, count] = [weight * sum + n * y, weight * count + n];
    return sum / count;
  });
  return { ...line, x: means.map(([x]) => x), y: ys, isSmooth: true };
};

// The values without the outermost hundredth at either end.
const clipped = (lines) => {
  const all = lines.flatMap((line) => line.y).filter((y) => y !== null && y !== undefined);
  all.sort((a, b) => a - b);
  const [low, high] = [all[Math.floor(all.length / 100)], all[Math.ceil((all.length * 99) / 100) - 1]];
  const rest = (high - low) / 20 || 1;
  return [low - rest, high + rest];
};

// The points of lines as comma-separated values.
const csvOf = (lines, axis) => {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
  const rows = lines
    .filter((line) => !line.isSmooth)
    .flatMap((line) => {
      const whose = [line.task || "", line.name, line.generation].map((each) => quoted(String(each)));
      return line.x.map((x, i) => [...whose, x, line.y[i] ?? ""].join(","));
    });
  return `task,name,generation,${axis},value\n${rows.join("\n")}\n`;
};

// A plot as it is drawn, as a picture of lines: `uplot` knows where its ticks and points are.
const svgOf = (uplot, title, styles) => {
  const NS = "http://www.w3.org/2000/svg";
  const made = (tag, attributes, text) => {
    const element = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    return element;
  };
  const { width, height } = uplot;
  const ratio = window.devicePixelRatio || 1;
  const [left, top, wide, high] = ["left", "top", "width", "height"].map((side) => uplot.bbox[side] / ratio);
  const style = getComputedStyle(document.documentElement);
  const [bg, fg, line] = ["--bg", "--fg", "--line"].map((name) => style.getPropertyValue(name));
  const font = { "font-family": "system-ui, sans-serif", "font-size": 11, fill: fg };
  const svg = made("svg", { xmlns: NS, viewBox: `0 -20 ${width} ${height + 20}`, width, height: height + 20 });
  const inner = made("svg", { x: left, y: top, width: wide, height: high, viewBox: `${left} ${top} ${wide} ${high}` });
  svg.append(made("rect", { y: -20, width, height: height + 20, fill: bg }));
  svg.append(made("text", { ...font, x: left, y: -6, "font-weight": 600 }, title));
  // oxlint-disable-next-line no-underscore-dangle
  const [across, up] = uplot.axes.map(({ _splits: at, _values: words }) => at.map((one, i) => [one, words[i]]));
  for (const [at, word] of across) {
    const x = left + uplot.valToPos(at, "x");
    svg.append(made("line", { x1: x, x2: x, y1: top, y2: top + high, stroke: line }));
    svg.append(made("text", { ...font, x, y: top + high + 16, "text-anchor": "middle" }, word));
  }
  for (const [at, word] of up.filter((each) => each[1])) {
    const y = top + uplot.valToPos(at, "y");
    svg.append(made("line", { x1: left, x2: left + wide, y1: y, y2: y, stroke: line }));
    svg.append(made("text", { ...font, x: left - 6, y: y + 4, "text-anchor": "end" }, word));
  }
  const label = uplot.axes[0].label || "";
  svg.append(made("text", { ...font, x: left + wide / 2, y: height - 2, "text-anchor": "middle" }, label), inner);
  const [xs, ...lines] = uplot.data;
  lines.forEach((ys, i) => {
    let [path, isDown] = ["", false];
    ys.forEach((y, at) => {
      if (y === undefined) return; // a point of another line
      if (y !== null) {
        const [px, py] = [left + uplot.valToPos(xs[at], "x"), top + uplot.valToPos(y, "y")];
        path += `${isDown ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`;
      }
      isDown = y !== null;
    });
    const { stroke, width: thick, alpha, dash } = styles[i];
    const drawn = { d: path, fill: "none", stroke, "stroke-width": thick, "stroke-opacity": alpha };
    if (path) inner.append(made("path", dash ? { ...drawn, "stroke-dasharray": dash.join(" ") } : drawn));
  });
  return new XMLSerializer().serializeToString(svg);
};

export class Plot {
  // `axis`: of `AXES`; `zoom`: what to do with a stretch of it that was drawn, or with null for all.
  constructor(name, { axis = "step", title = "", zoom } = {}) {
    this.name = name;
    this.axis = axis;
    this.byStep = isByStep(axis);
    this.scale = AS_IT_IS;
    // `smooth`: 0, or how much of each smoothed value is the one before; `clip`: leave out the outermost hundredths.
    Object.assign(this, { log: false, smooth: 0, clip: false });
    this.zoom = zoom;
    this.height = HEIGHT;
    this.value = h("span", { class: "value dim" });
    this.odd = [];
    this.area = h("div", { "aria-hidden": "true" });
    this.words = h("p", { class: "odd" });
    this.element = h(
      "div",
      { class: "plot" },
      h(
        "h3",
        {},
        this.value,
        title || TITLES[name] || name,
        " ",
        this.enlarger(title || TITLES[name] || name),
        this.saver("PNG", title || TITLES[name] || name),
        this.saver("SVG", title || TITLES[name] || name),
        this.saver("CSV", title || TITLES[name] || name),
      ),
      this.area,
      this.words,
    );
    const shift =
      (does) =>
      (at, ...rest) => {
        if (this.plot && this.axis === "time") does(page.timeline, at, ...rest);
      };
    onGestures(this.area, {
      zoom: shift((timeline, factor, x) =>
        timeline?.soon(timeline.around(factor, this.plot.posToVal(x - this.plot.over.offsetLeft, "x"))),
      ),
      pan: shift((timeline, pixels) => timeline?.soon(timeline.moved(pixels / this.plot.over.clientWidth))),
    });
    this.size = new ResizeObserver(() => this.resize());
    this.size.observe(this.area);
  }

  enlarger(title) {
    const toggle = ({ target }) => {
      const isLarge = this.element.classList.toggle("large");
      target.setAttribute("aria-pressed", String(isLarge));
      this.height = isLarge ? LARGE : HEIGHT;
      this.draw();
    };
    return h(
      "button",
      {
        type: "button",
        class: "link",
        "aria-pressed": "false",
        "aria-label": `Enlarge ${title}`,
        onclick: toggle,
      },
      "⤢",
    );
  }

  // What is drawn, as a picture or as a table, in a file.
  saver(kind, title) {
    const save = (blob) => {
      const file = `${this.name.replace(/\W/g, "-")}.${kind.toLowerCase()}`;
      const link = h("a", { href: URL.createObjectURL(blob), download: file });
      document.body.append(link);
      link.click();
      link.remove();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    };
    const picture = () => {
      const { canvas } = this.plot.ctx;
      const made = h("canvas", { width: canvas.width, height: canvas.height });
      const pen = made.getContext("2d");
      pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bg");
      pen.fillRect(0, 0, made.width, made.height);
      pen.drawImage(canvas, 0, 0);
      made.toBlob(save);
    };
    const styles = () =>
      this.plot.series.slice(1).map((each, i) => ({ ...each, stroke: this.strokeOf(this.lines[i]) }));
    const does = {
      PNG: picture,
      SVG: () => save(new Blob([svgOf(this.plot, title, styles())], { type: "image/svg+xml" })),
      CSV: () => save(new Blob([csvOf(this.lines, this.axis)], { type: "text/csv" })),
    };
    const act = () => this.plot && does[kind]();
    const label = `Save ${title} as ${kind}`;
    return h("button", { type: "button", class: "link", "aria-label": label, onclick: act }, kind);
  }

  // `lines`: of `/series`, also of `val_NAME`, each with its `scale` if it is not that of the plot; `kept`: by
  // generation, the step up to which it counts; `range`: of the axis; `marks`: checkpoints, causes, and where
  // generations begin, each by time and by step.
  show(lines, kept, range, marks = {}) {
    this.band = null;
    this.marks = marks;
    this.lines = lines
      .filter((line) => line.x.length)
      .flatMap((line) => (this.byStep ? split(line, kept[line.generation]) : [line]))
      .map((line) => {
        const { place } = line.scale || this.scale;
        return {
          ...line,
          x: line.x.map(place),
          y: scaled(line.name, line.y),
          means: line.means?.map(([x, y, n]) => [place(x), scaled(line.name, [y])[0], n]),
        };
      });
    // What was reported stays behind what is smoothed.
    if (this.smooth)
      this.lines = this.lines.flatMap((line) => [
        { ...line, isBehind: true },
        smoothed(line, this.smooth),
      ]);
    this.range = range;
    this.odd = lines.flatMap((line) =>
      (line.nonfinite || []).map(([step, value, at]) => ({
        x: (line.scale || this.scale).place(this.byStep ? step : at),
        step,
        word: NOT_FINITE[value] || value,
        line,
      })),
    );
    put(
      this.words,
      this.odd.map(({ step, word, line }) =>
        h(
          "span",
          {},
          `✕ ${line.name.startsWith("val_") ? "val " : ""}${word} first at step ${countText(step)}, ` +
            `generation ${line.generation}`,
        ),
      ),
    );
    const newest = lines.filter((line) => !line.name.startsWith("val_")).at(-1);
    const at = newest ? newest.y.findLastIndex((each) => each !== null) : -1;
    const odd = this.odd.find((one) => one.line === newest && !(newest.x[at] > one.x));
    const value = odd ? odd.word : at < 0 ? "" : numberText(newest.y[at]);
    setText(this.value, newest?.task ? "" : value);
    this.draw();
  }

  // `band`: of `/band`: the middle, four fifths of all around it, and those that are furthest away.
  showBand(band, range) {
    const xs = band.x.map(this.scale.place);
    const line = (name, y, more) => ({ name, x: xs, y: scaled(this.name, y), generation: 0, ...more });
    this.range = range;
    this.marks = {};
    this.band = band;
    this.lines = band.x.length
      ? [
          line("90 %", band.high, { edge: true }),
          line("10 %", band.low, { edge: true }),
          line("median", band.middle, {}),
          ...band.outliers.map((one, i) => line(one.called, one.y, { hue: i + 1 })),
        ]
      : [];
    this.words.className = "odd band";
    put(
      this.words,
      h("span", {}, `median and 10–90 % of ${band.members}; furthest from it: `),
      band.outliers.map((one, i) => {
        const name = h("strong", {}, `${one.called} `);
        name.style.color = hueOf(i + 1);
        return name;
      }),
    );
    setText(this.value, "");
    this.draw();
  }

  // Add the values of the stream, without asking for all again.
  add(at, y, generation) {
    const x = this.scale.place(at);
    const line = this.lines?.findLast((each) => !each.name.startsWith("val_") && !each.isSmooth);
    if (!line || line.generation !== generation || line.lost || !(x > line.x.at(-1))) return;
    line.x.push(x);
    line.y.push(y);
    setText(this.value, numberText(y));
    this.plot?.setData(
      columns(
        this.lines,
        this.odd.map((one) => one.x),
      ),
    );
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    const width = this.area.clientWidth;
    if (!width || !this.lines?.length) {
      put(
        this.area,
        this.lines?.length
          ? ""
          : h("p", { class: "dim" }, this.odd.length ? "no finite value" : "nothing measured yet"),
      );
      return;
    }
    put(this.area);
    this.plot = new uPlot(
      this.options(width),
      columns(
        this.lines,
        this.odd.map((one) => one.x),
      ),
      this.area,
    );
  }

  options(width) {
    const style = getComputedStyle(document.documentElement);
    const [dim, line] = [style.getPropertyValue("--dim"), style.getPropertyValue("--line")];
    const generations = [...new Set(this.lines.map((each) => each.generation))].sort((a, b) => a - b);
    const axis = {
      stroke: dim,
      grid: { stroke: line, width: 1 },
      ticks: { stroke: line },
      font: "11px system-ui",
    };
    const count = (u, values) => values.map((each) => (each === null ? "" : numberText(each)));
    const across = (u, values) => values.map((each) => this.placeText(each));
    return {
      width,
      height: this.height,
      ms: 1,
      legend: { show: false },
      cursor: {
        sync: { key: this.axis },
        drag: { x: Boolean(this.zoom), y: false, setScale: false },
        bind: { dblclick: () => () => this.zoom?.(null) },
      },
      scales: {
        x: { time: false, ...(this.range ? { range: () => this.range } : {}) },
        y: this.log ? { distr: 3 } : this.clip && !this.band ? { range: () => clipped(this.lines) } : {},
      },
      axes: [
        {
          ...axis,
          values: this.byStep ? count : across,
          ...(this.byStep ? {} : { incrs: TIME_STEPS }),
          space: this.axis === "relative" ? 90 : 70,
          size: 30,
          label: this.axis === "time" ? "" : AXES[this.axis],
          labelSize: this.axis === "time" ? 0 : 16,
          labelFont: "11px system-ui",
        },
        { ...axis, values: count, size: 56 },
      ],
      bands: this.band ? [{ series: [1, 2], fill: `${hueOf(0)}33` }] : [],
      series: [
        {},
        ...this.lines.map((each) => ({
          stroke: this.strokeOf(each),
          width: each.isMean ? 2.5 : 1.5,
          alpha: each.lost || each.isBehind ? 0.3 : 1,
          dash: each.name.startsWith("val_") ? [6, 4] : each.lost ? [3, 3] : undefined,
          points: { show: each.x.length < 3, size: 4 },
          spanGaps: false,
        })),
      ],
      hooks: {
        drawClear: [(u) => this.bands(u, generations, dim)],
        draw: [(u) => this.marked(u, style.getPropertyValue("--bad"), dim)],
        setCursor: [(u) => this.hover(u)],
        setSelect: [
          (u) => {
            if (u.select.width > 8)
              this.zoom?.([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
          },
        ],
      },
    };
  }

  strokeOf(line) {
    if (line.edge) return `${hueOf(0)}66`;
    const indexOf = (key) => [...new Set(this.lines.map((each) => each[key]))].sort().indexOf(line[key]);
    const own = line.name.startsWith("val_") ? 1 : 0;
    const ofGeneration = this.byStep ? 0 : 2 * (indexOf("generation") % 2);
    return hueOf(line.hue ?? (line.task ? indexOf("task") % 4 : own + ofGeneration));
  }

  // A place of the axis in words.
  placeText(x) {
    if (this.axis === "time") return timeText(x);
    return this.axis === "relative" ? durationText(x) : this.axis === "epoch" ? numberText(x) : countText(x);
  }

  // Where something is that has a time and a step; null if that one is not known.
  at(pair) {
    return pair ? this.scale.place(pair[this.byStep ? 1 : 0]) : null;
  }

  // A dashed line where a generation begins.
  bands(u, generations, dim) {
    u.ctx.save();
    u.ctx.strokeStyle = dim;
    u.ctx.setLineDash([4, 4]);
    for (const generation of generations.slice(1)) {
      const begin = this.at(this.marks?.begins?.get(generation));
      const first = this.lines.find((line) => line.generation === generation).x[0];
      const x = u.valToPos(Math.max(begin ?? first, u.scales.x.min), "x", true);
      if (!this.byStep && generation % 2 === 0) {
        // by time they follow each other: each second one on a ground of its own
        const last = Math.max(
          ...this.lines.filter((line) => line.generation === generation).map((line) => line.x.at(-1)),
        );
        u.ctx.fillStyle = `${HUES[isDark() ? "dark" : "light"][0]}12`;
        u.ctx.fillRect(x, u.bbox.top, u.valToPos(last, "x", true) - x, u.bbox.height);
      }
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
    }
    u.ctx.restore();
  }

  // Checkpoints are ticks at the bottom, first causes ✕ at the top; a value that was no number has a line and a word.
  marked(u, bad, dim) {
    const { left, top, width, height } = u.bbox,
      ratio = window.devicePixelRatio || 1;
    const seen = (at) => {
      const x = at === null || at === undefined ? NaN : u.valToPos(at, "x", true);
      return x >= left && x <= left + width ? x : null;
    };
    u.ctx.save();
    u.ctx.fillStyle = dim;
    for (const pair of this.marks?.checkpoints || []) {
      const x = seen(this.at(pair));
      if (x !== null) u.ctx.fillRect(x - ratio / 2, top + height - 6 * ratio, ratio, 6 * ratio);
    }
    u.ctx.fillStyle = bad;
    u.ctx.font = `${11 * ratio}px system-ui`;
    u.ctx.textAlign = "center";
    const causes = (this.marks?.causes || [])
      .map((pair) => seen(this.at(pair)))
      .filter((x) => x !== null)
      .sort((a, b) => a - b);
    for (const { x } of mergedMarks(
      causes.map((each) => ({ x: each, glyph: "✕", count: 1 })),
      14 * ratio,
    ))
      u.ctx.fillText("✕", x, top + 10 * ratio);
    for (const one of this.odd) {
      const x = seen(one.x);
      if (x === null) continue;
      u.ctx.fillRect(x - ratio, top, 2 * ratio, height);
      u.ctx.textAlign = x > left + width - 40 * ratio ? "right" : "left";
      u.ctx.fillText(` ✕ ${one.word} `, x, top + 24 * ratio);
    }
    u.ctx.restore();
  }

  hover(u) {
    const { idx } = u.cursor;
    if (idx === null || idx === undefined) return;
    // A smoothed line has points of its own: between two of them it is at the one before.
    const valueOf = (line, ys) => {
      let at = idx;
      while (line.isSmooth && at > 0 && ys[at] === undefined) at--;
      return ys[at];
    };
    const points = this.lines
      .map((line, i) => [line, valueOf(line, u.data[i + 1])])
      .filter(([, y]) => y !== undefined && y !== null);
    if (!points.length) return;
    const x = (this.byStep ? `${this.axis} ` : "") + this.placeText(u.data[0][idx]);
    const called = (line) =>
      line.isSmooth
        ? "smoothed "
        : this.band
          ? `${line.name} `
          : line.task
            ? `${line.task.replace("host:", "")} `
            : line.name.startsWith("val_")
              ? "val "
              : "";
    const shown = points.slice(0, 6).map(([line, y]) => called(line) + numberText(y));
    setText(this.value, `${x}: ${shown.join(" / ")}${points.length > 6 ? " …" : ""}`);
  }

  resize() {
    const width = this.area.clientWidth;
    if (!width) return;
    if (this.plot && Math.abs(this.plot.width - width) > 1) this.plot.setSize({ width, height: this.height });
    else if (!this.plot && this.lines?.length) this.draw();
  }

  destroy() {
    this.size.disconnect();
    this.plot?.destroy();
  }
}

// Whose series it is, and of which kind: as `family` of bands.py.
export const familyOf = ({ task, name }) =>
  !task.startsWith("host:")
    ? ["task", name]
    : /^gpu\d+_/.test(name)
      ? ["gpu", name.replace(/^gpu\d+_/, "")]
      : ["host", name];
export const FAMILIES = { task: "tasks", host: "hosts", gpu: "GPUs" };

// The values of all generations, without those that a later one trained again.
export const keptOnce = (series) =>
  series.flatMap((line, i) =>
    line.y.filter((y, at) => series.slice(i + 1).every((later) => !(later.x[0] <= line.x[at]))),
  );
// A small line without axes.
export const sparkline = (canvas, values) => {
  const drawing = penOf(canvas, 24);
  const known = values.filter((each) => each !== null);
  if (!drawing || known.length < 2) return;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  drawing.pen.strokeStyle = colourOf("training");
  drawing.pen.lineWidth = 1.5;
  drawing.pen.beginPath();
  known.forEach((each, i) => {
    const [x, y] = [(i / (known.length - 1)) * drawing.width, 22 - ((each - low) / (high - low || 1)) * 20];
    if (i) drawing.pen.lineTo(x, y);
    else drawing.pen.moveTo(x, y);
  });
  drawing.pen.stroke();
};

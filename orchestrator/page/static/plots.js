// The plots: each value over its step or the time, one line for each generation, on uPlot.

import {
  countText,
  h,
  isDark,
  numberText,
  onGestures,
  page,
  put,
  setText,
  timeText,
  zoomTo,
} from "./base.js";
import { MEASURES } from "./measures.js";
import { colourOf, mergedMarks, penOf } from "./timeline.js";

export const PLOTS_MAX = 10;
export const LINES_MAX = 12; // more lines than these are shown as a band
const UNITS = { percent: " (%)", bytes: " (GiB)", watts: " (W)", celsius: " (°C)" };
export const TITLES = Object.fromEntries(
  Object.values(MEASURES).flatMap((rows) => rows.map(({ name, label, unit }) => [name, label + (UNITS[unit] || "")])),
);
const NOT_FINITE = { nan: "NaN", inf: "Inf", "-inf": "−Inf" };
const scaled = (name, ys) =>
  name.endsWith("_bytes") ? ys.map((y) => (y === null ? null : y / 2 ** 30)) : ys;

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

export const hueOf = (line) => HUES[isDark() ? "dark" : "light"][line];
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
const csvOf = (lines, byStep) => {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
  const rows = lines
    .filter((line) => !line.isSmooth)
    .flatMap((line) => {
      const whose = [line.task || "", line.name, line.generation].map((each) => quoted(String(each)));
      return line.x.map((x, i) => [...whose, x, line.y[i] ?? ""].join(","));
    });
  return `task,name,generation,${byStep ? "step" : "time"},value\n${rows.join("\n")}\n`;
};

export class Plot {
  // `zoomSteps`: what to do with a range of steps that was drawn, or with null for all.
  constructor(name, { byStep = true, title = "", zoomSteps } = {}) {
    this.name = name;
    this.byStep = byStep;
    // `smooth`: 0, or how much of each smoothed value is the one before; `clip`: leave out the outermost hundredths.
    Object.assign(this, { log: false, smooth: 0, clip: false });
    this.zoom = byStep ? zoomSteps : zoomTo;
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
        this.saver("CSV", title || TITLES[name] || name),
      ),
      this.area,
      this.words,
    );
    const shift =
      (does) =>
      (at, ...rest) => {
        if (this.plot && !this.byStep) does(page.timeline, at, ...rest);
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
    const table = () => save(new Blob([csvOf(this.lines, this.byStep)], { type: "text/csv" }));
    const act = () => this.plot && (kind === "PNG" ? picture() : table());
    const label = `Save ${title} as ${kind}`;
    return h("button", { type: "button", class: "link", "aria-label": label, onclick: act }, kind);
  }

  // `lines`: of `/series`, also of `val_NAME`; `kept`: by generation, the step up to which it counts;
  // `marks`: checkpoints, causes, and where generations begin.
  show(lines, kept, range, marks = {}) {
    this.band = null;
    this.marks = marks;
    this.lines = lines
      .filter((line) => line.x.length)
      .flatMap((line) => (this.byStep ? split(line, kept[line.generation]) : [line]))
      .map((line) => ({
        ...line,
        y: scaled(line.name, line.y),
        means: line.means?.map(([x, y, n]) => [x, scaled(line.name, [y])[0], n]),
      }));
    // What was reported stays behind what is smoothed.
    if (this.smooth)
      this.lines = this.lines.flatMap((line) => [
        { ...line, isBehind: true },
        smoothed(line, this.smooth),
      ]);
    this.range = range;
    this.odd = lines.flatMap((line) =>
      (line.nonfinite || []).map(([step, value, at]) => ({
        x: this.byStep ? step : at,
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
    const line = (name, y, more) => ({ name, x: band.x, y: scaled(this.name, y), generation: 0, ...more });
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
    const hues = HUES[isDark() ? "dark" : "light"];
    this.words.className = "odd band";
    put(
      this.words,
      h("span", {}, `median and 10–90 % of ${band.members}; furthest from it: `),
      band.outliers.map((one, i) => {
        const name = h("strong", {}, `${one.called} `);
        name.style.color = hues[i + 1];
        return name;
      }),
    );
    setText(this.value, "");
    this.draw();
  }

  // Add the values of the stream, without asking for all again.
  add(x, y, generation) {
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
    const [dim, line, hues] = [
      style.getPropertyValue("--dim"),
      style.getPropertyValue("--line"),
      HUES[isDark() ? "dark" : "light"],
    ];
    const generations = [...new Set(this.lines.map((each) => each.generation))].sort((a, b) => a - b);
    const tasks = [...new Set(this.lines.map((each) => each.task))];
    const axis = {
      stroke: dim,
      grid: { stroke: line, width: 1 },
      ticks: { stroke: line },
      font: "11px system-ui",
    };
    const time = (u, values) => values.map((each) => timeText(each));
    const count = (u, values) => values.map((each) => (each === null ? "" : numberText(each)));
    return {
      width,
      height: this.height,
      ms: 1,
      legend: { show: false },
      cursor: {
        sync: { key: this.byStep ? "step" : "time" },
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
          values: this.byStep ? count : time,
          space: 70,
          size: 30,
          label: this.byStep ? "step" : "",
          labelSize: this.byStep ? 16 : 0,
          labelFont: "11px system-ui",
        },
        { ...axis, values: count, size: 56 },
      ],
      bands: this.band ? [{ series: [1, 2], fill: `${hues[0]}33` }] : [],
      series: [
        {},
        ...this.lines.map((each) => ({
          stroke: each.edge
            ? `${hues[0]}66`
            : hues[
                each.hue ??
                  (each.task
                    ? tasks.indexOf(each.task) % 4
                    : (each.name.startsWith("val_") ? 1 : 0) +
                      2 * (this.byStep ? 0 : generations.indexOf(each.generation) % 2))
              ],
          width: 1.5,
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

  // A dashed line where a generation begins.
  bands(u, generations, dim) {
    u.ctx.save();
    u.ctx.strokeStyle = dim;
    u.ctx.setLineDash([4, 4]);
    for (const generation of generations.slice(1)) {
      const begin = this.marks?.begins?.get(generation)?.[this.byStep ? 1 : 0];
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
    for (const [at, step] of this.marks?.checkpoints || []) {
      const x = seen(this.byStep ? step : at);
      if (x !== null) u.ctx.fillRect(x - ratio / 2, top + height - 6 * ratio, ratio, 6 * ratio);
    }
    u.ctx.fillStyle = bad;
    u.ctx.font = `${11 * ratio}px system-ui`;
    u.ctx.textAlign = "center";
    const causes = (this.marks?.causes || [])
      .map(([at, step]) => seen(this.byStep ? step : at))
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
    const x = this.byStep ? `step ${countText(u.data[0][idx])}` : timeText(u.data[0][idx]);
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

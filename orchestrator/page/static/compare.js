// Runs over each other, chosen from the list of runs: #/compare?run=A,B,…&group=PARAMETER.

import {
  countText,
  durationText,
  getDocument,
  h,
  linkTo,
  numberText,
  page,
  put,
  route,
  seriesName,
} from "./base.js";
import { Table, goodputText, now, phaseMark, section } from "./parts.js";
import { PLOTS_MAX, Plot, hueOf, isByStep, plotNames, scaleOf } from "./plots.js";
import {
  axisOf,
  axisSelector,
  choose,
  drawnAs,
  epochSteps,
  rangeOf,
  selector,
  smoothingSelector,
  toggle,
} from "./run_plots.js";


const ROWS = [
  ["outcome", (run) => phaseMark(run.phase)],
  ["strategy", (run) => run.strategy || ""],
  ["steps", (run) => countText(run.global_step)],
  ["lasted", (run) => (run.started_at ? durationText((run.ended_at || now()) - run.started_at) : "–")],
  ["goodput", (run) => goodputText(run.time_use)],
  ["restarts", (run) => countText(run.restarts)],
  ["first cause", (run) => run.first_cause?.sentence || "none"],
];

// The parameters that are not the same in all of these runs.
export const differing = (runs) => {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.parameters || {})))].sort();
  return names.filter((name) => new Set(runs.map((run) => run.parameters?.[name])).size > 1);
};

// The mean of lines over all places that any of them has; between two points a line goes straight.
export const meanLine = (lines) => {
  const at = lines.map((line) => {
    const known = line.x.map((x, i) => [x, line.y[i]]).filter(([, y]) => y !== null);
    return known.sort(([a], [b]) => a - b);
  });
  const xs = [...new Set(at.flatMap((points) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const places = at.map(() => 0);
  const ys = xs.map((x) => {
    let [sum, count] = [0, 0];
    at.forEach((points, i) => {
      while (places[i] < points.length - 1 && points[places[i] + 1][0] <= x) places[i] += 1;
      const [before, after] = [points[places[i]], points[places[i] + 1]];
      if (!before || before[0] > x || (!after && before[0] < x)) return; // it has not begun, or has ended
      const part = after ? (x - before[0]) / (after[0] - before[0]) : 0;
      sum += before[1] + part * ((after?.[1] ?? 0) - before[1]) * (after ? 1 : 0);
      count += 1;
    });
    return count ? sum / count : null;
  });
  return { x: xs, y: ys };
};

export class CompareView {
  constructor(runs) {
    this.runs = runs;
    this.plots = [];
    this.outcome = h("div");
    this.area = h("div", { class: "plots" }, h("p", { class: "dim" }, "Loading…"));
    this.tools = h("div", { class: "tools" });
    this.legend = h("p", { class: "legend" });
    this.differs = h("div");
    const titles = runs.map((run, i) => [i ? " and " : "", this.title(run, i)]);
    this.element = h(
      "div",
      {},
      h("h1", {}, runs.length > 2 ? `${runs.length} runs` : titles),
      section("Outcome", this.outcome),
      section("Plots", this.legend, this.area, this.tools),
      section("What differs", this.differs),
    );
    this.load();
  }

  // A run's name has the colour of its lines.
  title(run, i) {
    const link = h("a", { href: linkTo(["r", run]) }, run);
    link.style.color = hueOf(i);
    return link;
  }

  get known() {
    return this.runs.map((run) => page.state.runs[run] || { run_id: run });
  }

  async load() {
    try {
      this.histories = await Promise.all(this.runs.map((run) => getDocument(run, "history")));
      await this.loadPlots();
      const [first, ...others] = this.runs;
      const told = await Promise.all(others.map((other) => getDocument(first, "compare", { with: other })));
      const titles = others.map((other) => (others.length > 1 ? `${first} → ${other}` : ""));
      put(this.differs, told.map((one, i) => this.differences(one, titles[i])));
    } catch (error) {
      put(this.area, h("p", {}, error.message));
    }
    this.element.dataset.loaded = "yes";
  }

  update() {
    const known = this.runs.map((run) => page.state.runs[run]).filter(Boolean);
    if (known.length < 2) return;
    const metrics = [...new Set(known.flatMap((run) => Object.keys(run.metrics || {})))];
    const rows = [
      ...ROWS,
      ...differing(known).map((name) => [name, (run) => run.parameters?.[name] ?? "–"]),
      ...metrics.map((name) => [name, (run) => numberText(run.metrics?.[name])]),
    ];
    this.table ??= new Table(
      [
        { name: "of", value: ([name]) => name },
        ...known.map(({ run_id: id }) => ({
          name: id,
          class: "wrap",
          value: ([, of]) => of(page.state.runs[id]),
          key: ([name, of]) => [
            name,
            String(of(page.state.runs[id])?.textContent ?? of(page.state.runs[id])),
          ],
        })),
      ],
      "Outcome",
    );
    if (!this.table.element.isConnected) put(this.outcome, this.table.element);
    this.table.show(rows, ([name]) => name);
  }

  get hasEpochs() {
    return this.known.every(epochSteps);
  }

  // Each run is a line of its own colour, or of its group's; what it trained again is part of it.
  async loadPlots() {
    const kept = this.histories.flatMap((history) => history.series);
    const all = [...new Set(plotNames(kept))];
    const names = route().query.all === "yes" ? all : all.slice(0, PLOTS_MAX);
    const axis = axisOf(this.hasEpochs);
    const [zoomed, byStep] = [rangeOf(route().query.zoom), isByStep(axis)];
    const measured = new Set(kept.map(({ name }) => name));
    const shown = names.flatMap((name) => [name, `val_${name}`]).filter((name) => measured.has(name));
    const scales = this.known.map((run, i) => scaleOf(axis, epochSteps(run), this.histories[i].begin));
    const asked = { names: shown.map((name) => seriesName({ name })).join(","), x: byStep ? "step" : "time" };
    const answers = await Promise.all(
      this.runs.map((run, i) => {
        const [low, high] = zoomed?.map(scales[i].back) || [];
        const [from, to] = low === undefined ? [] : [Math.max(0, Math.floor(low)), Math.ceil(high)];
        const part = byStep ? { from_step: from, to_step: to } : { from: low, to: high };
        return getDocument(run, "series", { ...asked, ...part, buckets: 600 });
      }),
    );
    this.series = answers.map(({ series }, i) => series.map((line) => ({ ...line, scale: scales[i] })));
    const key = JSON.stringify([axis, names]);
    if (key !== this.plotKey) {
      this.plotKey = key;
      this.destroy();
      const zoom = (range) =>
        choose({ zoom: range && range.map((each) => Number(each.toPrecision(9))).join("~") }, { keeps: false });
      this.plots = names.map((name) => new Plot(name, { axis, zoom }));
      put(this.area, names.length ? this.plots.map((plot) => plot.element) : "Nothing was measured.");
    }
    this.showPlots(all.length - names.length, axis);
  }

  // By run its colour and whose it is: with a group, of its value of the parameter.
  grouped() {
    const group = route().query.group || "";
    const values = this.known.map((run, i) => (group ? (run.parameters?.[group] ?? "–") : this.runs[i]));
    const order = [...new Set(values)];
    if (group) order.sort((a, b) => a - b || a.localeCompare(b, "en", { numeric: true })); // as numbers if they are
    return { group, order, hues: values.map((value) => order.indexOf(value)) };
  }

  showPlots(left, axis) {
    const { group, order, hues } = this.grouped();
    const choices = differing(this.known);
    const names = choices.includes(group) || !group ? choices : [...choices, group];
    const groups = [["", "each run its colour"], ...names.map((name) => [name, `grouped by ${name}`])];
    const asked = (changes) => () => choose(changes, { keeps: false });
    put(
      this.tools,
      axisSelector(axis, this.hasEpochs),
      names.length ? selector("Group", group, groups, (to) => asked({ group: to || null })()) : null,
      toggle("log", "log y"),
      toggle("clip", "clip outliers"),
      smoothingSelector(),
      left ? h("button", { type: "button", onclick: asked({ all: "yes" }) }, `Show ${left} more plots`) : null,
      h("span", { class: "dim" }, "Dashed: validation. Drag: zoom, all plots together; double click: all."),
    );
    const label = (value, i) => {
      const count = hues.filter((each) => each === i).length;
      const made = group ? h("strong", {}, `${group} ${value} (${count})`) : this.title(value, i);
      made.style.color = hueOf(i);
      return made;
    };
    put(this.legend, order.length > 2 || group ? order.map(label) : null);
    for (const plot of this.plots) {
      Object.assign(plot, drawnAs(plot));
      const lines = this.series.flatMap((of, run) => {
        const its = of.filter((line) => [plot.name, `val_${plot.name}`].includes(line.name));
        return its.map((line) => ({ ...line, task: this.runs[run], hue: hues[run], isBehind: Boolean(group) }));
      });
      plot.show(group ? [...lines, ...this.means(lines, order)] : lines, {}, rangeOf(route().query.zoom));
    }
  }

  // Of each group the mean of its runs, over which the runs stand faint.
  means(lines, order) {
    return order.flatMap((value, hue) =>
      [...new Set(lines.map((line) => line.name))].flatMap((name) => {
        const its = lines.filter((line) => line.hue === hue && line.name === name);
        const placed = its.map((line) => ({ ...line, x: line.x.map(line.scale.place) }));
        const mean = { name, task: `mean of ${value}`, generation: 0, hue, isMean: true, scale: scaleOf("step") };
        return its.length ? [{ ...mean, ...meanLine(placed) }] : [];
      }),
    );
  }

  routed() {
    if (this.histories) this.loadPlots();
  }

  differences({ spec, code, packages }, title) {
    const list = (of, changes, words) => [
      h("h3", {}, of),
      changes === null
        ? h("p", { class: "dim" }, "not known")
        : changes.length
          ? h(
              "ul",
              {},
              changes.map((one) => h("li", {}, words(one))),
            )
          : h("p", { class: "dim" }, "nothing"),
    ];
    const change = (one) => `${one.old ?? "none"} → ${one.new ?? "none"}`;
    const counts = (one) => (one.added === null ? "" : `, +${one.added} −${one.removed}`);
    const lists = [
      list("Spec", spec, (one) => `${one.key}: ${change(one)}`),
      list("Code", code, (one) => `${one.path}: ${one.change}${counts(one)}`),
      list("Packages", packages, (one) => `${one.host} ${one.package}: ${change(one)}`),
    ];
    return title ? h("details", {}, h("summary", {}, title), lists) : lists;
  }

  destroy() {
    for (const plot of this.plots) plot.destroy();
  }
}

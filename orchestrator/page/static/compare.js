// #/compare?run=A&run=B: two runs over each other, chosen from the list of runs.

import {
  countText,
  durationText,
  getDocument,
  h,
  linkTo,
  numberText,
  page,
  put,
  seriesName,
  setting,
} from "./base.js";
import { Table, goodputText, now, phaseMark, section } from "./parts.js";
import { Plot, hueOf, plotNames } from "./plots.js";

const ROWS = [
  ["outcome", (run) => phaseMark(run.phase)],
  ["strategy", (run) => run.strategy || ""],
  ["steps", (run) => countText(run.global_step)],
  ["lasted", (run) => (run.started_at ? durationText((run.ended_at || now()) - run.started_at) : "–")],
  ["goodput", (run) => goodputText(run.time_use)],
  ["restarts", (run) => countText(run.restarts)],
  ["first cause", (run) => run.first_cause?.sentence || "none"],
];

export class CompareView {
  constructor(runs) {
    this.runs = runs;
    this.plots = [];
    this.range = null;
    this.outcome = h("div");
    this.area = h("div", { class: "plots" }, h("p", { class: "dim" }, "Loading…"));
    this.tools = h("div", { class: "tools" });
    this.differs = h("div");
    const titles = runs.map((run, i) => [i ? " and " : "", this.title(run, i)]);
    this.element = h(
      "div",
      {},
      h("h1", {}, titles),
      section("Outcome", this.outcome),
      section("Plots", this.area, this.tools),
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

  async load() {
    try {
      this.histories = await Promise.all(this.runs.map((run) => getDocument(run, "history")));
      await this.loadPlots();
      this.showDifferences(await getDocument(this.runs[0], "compare", { with: this.runs[1] }));
    } catch (error) {
      put(this.area, h("p", {}, error.message));
    }
    this.element.dataset.loaded = "yes";
  }

  update() {
    const known = this.runs.map((run) => page.state.runs[run]).filter(Boolean);
    if (known.length < 2) return;
    const metrics = [...new Set(known.flatMap((run) => Object.keys(run.metrics || {})))];
    const rows = [...ROWS, ...metrics.map((name) => [name, (run) => numberText(run.metrics?.[name])])];
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

  // Each run is a line of its own colour; what it trained again is part of it.
  async loadPlots() {
    const names = plotNames(this.histories.flatMap((history) => history.series)).filter(
      (name, i, all) => all.indexOf(name) === i,
    );
    const all = new Set(this.histories.flatMap((history) => history.series.map(({ name }) => name)));
    const shown = names.flatMap((name) => [name, `val_${name}`]).filter((name) => all.has(name));
    const asked = { names: shown.map((name) => seriesName({ name })).join(","), x: "step", buckets: 600 };
    this.series = await Promise.all(this.runs.map((run) => getDocument(run, "series", asked)));
    const zoomSteps = (range) => {
      this.range = range;
      this.showPlots();
    };
    this.plots = names.map((name) => new Plot(name, { zoomSteps }));
    put(this.area, names.length ? this.plots.map((plot) => plot.element) : "Nothing was measured.");
    this.showPlots();
  }

  showPlots() {
    const isSet = (name) => setting(name) === "yes";
    const toggle = (name, words) => {
      const onclick = () => {
        setting(name, isSet(name) ? "no" : "yes");
        this.showPlots();
      };
      return h("button", { type: "button", "aria-pressed": String(isSet(name)), onclick }, words);
    };
    put(
      this.tools,
      toggle("log", "log y"),
      toggle("clip", "clip outliers"),
      h("span", { class: "dim" }, "Dashed: validation. Drag: zoom, all plots together; double click: all."),
    );
    for (const plot of this.plots) {
      Object.assign(plot, { log: isSet("log") && plot.name !== "steps_per_s", clip: isSet("clip") });
      const lines = this.series.flatMap(({ series: of }, run) => {
        const its = of.filter((line) => [plot.name, `val_${plot.name}`].includes(line.name));
        return its.map((line) => ({ ...line, task: this.runs[run], hue: run }));
      });
      plot.show(lines, {}, this.range);
    }
  }

  showDifferences({ spec, code, packages }) {
    const list = (title, changes, words) => [
      h("h3", {}, title),
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
    put(
      this.differs,
      list("Spec", spec, (one) => `${one.key}: ${change(one)}`),
      list("Code", code, (one) => `${one.path}: ${one.change}${counts(one)}`),
      list("Packages", packages, (one) => `${one.host} ${one.package}: ${change(one)}`),
    );
  }

  destroy() {
    for (const plot of this.plots) plot.destroy();
  }
}

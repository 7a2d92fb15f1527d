// The plots of a run: loss, pace and metrics; and, where one asks, what its tasks, hosts and GPUs use.

import { getDocument, go, h, put, route, seriesName, setting } from "./base.js";
import { FAMILIES, LINES_MAX, PLOTS_MAX, Plot, TITLES, familyOf, plotNames } from "./plots.js";
import { now, section } from "./parts.js";

const LEGEND =
  "solid: training; dashed: validation, and where a generation begins; ticks below: checkpoints; ✕: a first cause; " +
  "faint: trained again. Drag: zoom, all plots together; double click: all.";
const NARROW_MAX = 2; // on a phone the tasks are to be near

// How the plots are drawn: as the address says, else as this browser was told last.
const viewed = (name) => route().query[name] ?? setting(name);
const stepsOf = (text) => {
  const range = (text || "").split("-").map(Number);
  return range.length === 2 && range.every(Number.isFinite) && range[0] < range[1] ? range : null;
};

export class RunPlots {
  constructor(view) {
    // a RunView
    this.view = view;
    this.plots = new Map();
    this.uses = new Map();
    this.plotArea = h("div", { class: "plots" });
    this.moreArea = h("div", { class: "tools" });
    this.legend = h("p", { class: "dim" }, LEGEND);
    this.element = section("Plots", this.plotArea, this.legend, this.moreArea);
  }

  // What is chosen is in the address, so that a link shows the same. A zoom is a step back, and nothing to keep.
  choose(changes, { keeps = true } = {}) {
    const { parts, query } = route();
    if (keeps) for (const [name, value] of Object.entries(changes)) setting(name, value);
    go(parts, { ...query, ...changes }, keeps);
  }

  get stepRange() {
    return stepsOf(route().query.steps);
  }

  async show() {
    const all = plotNames(this.view.history.series);
    const byStep = viewed("x") !== "time";
    const wanted = (route().query.plots || "").split(",").filter(Boolean);
    const most = matchMedia("(max-width: 700px)").matches ? NARROW_MAX : PLOTS_MAX;
    const names = [...new Set([...all.slice(0, most), ...wanted])].filter((name) => all.includes(name));
    const asked = names.flatMap((name) => [
      name,
      ...(this.view.history.series.some((one) => one.name === `val_${name}`) ? [`val_${name}`] : []),
    ]);
    const [from, to] = (!byStep && this.view.window) || [];
    const { series } = await getDocument(this.view.id, "series", {
      names: asked.map((name) => seriesName({ name })).join(","),
      x: byStep ? "step" : "time",
      from,
      to,
      from_step: byStep && this.stepRange ? Math.floor(this.stepRange[0]) : null,
      to_step: byStep && this.stepRange ? Math.ceil(this.stepRange[1]) : null,
      buckets: 600,
    });
    // Nothing of the newest generation was trained again.
    const earlier = this.view.history.generations.slice(0, -1);
    const kept = Object.fromEntries(earlier.map((one) => [one.generation, one.kept_to]));
    const log = viewed("log") === "yes";
    const [smooth, clip] = [Number(viewed("smooth") || 0), viewed("clip") === "yes"];
    const zoomSteps = (range) => {
      const steps = range && `${Math.max(0, Math.floor(range[0]))}-${Math.ceil(range[1])}`;
      this.choose({ steps }, { keeps: false });
    };
    const key = JSON.stringify([names, byStep]);
    if (key !== this.plotKey) {
      this.plotKey = key;
      for (const plot of this.plots.values()) plot.destroy();
      this.plots = new Map(names.map((name) => [name, new Plot(name, { byStep, zoomSteps })]));
      put(
        this.plotArea,
        [...this.plots.values()].map((plot) => plot.element),
      );
    }
    const marks = this.marks();
    for (const [name, plot] of this.plots) {
      Object.assign(plot, { log: log && name !== "steps_per_s", smooth, clip });
      plot.show(
        series.filter((line) => line.name === name || line.name === `val_${name}`),
        kept,
        byStep ? this.stepRange : this.view.window,
        marks,
      );
    }
    if (this.useArea) this.showUse();
    this.plotTools(all, names, byStep, log);
    if (!names.length)
      put(
        this.plotArea,
        h(
          "p",
          { class: "dim" },
          "Nothing measured yet. `runtime.report(step, loss=…)` and Keras's fit tell what to plot.",
        ),
      );
  }

  plotTools(all, names, byStep, log) {
    const set = (name, value, words, on) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(on),
          onclick: () => this.choose({ [name]: value }),
        },
        words,
      );
    const rest = all.filter((name) => !names.includes(name));
    const pick = rest.length
      ? h(
          "select",
          {
            "aria-label": "Another plot",
            onchange: (event) => {
              const { parts, query } = route();
              go(
                parts,
                { ...query, plots: [query.plots, event.target.value].filter(Boolean).join(",") },
                true,
              );
              this.show();
            },
          },
          h("option", { value: "" }, `${rest.length} more…`),
          rest.map((name) => h("option", { value: name }, name)),
        )
      : null;
    put(
      this.moreArea,
      set("x", byStep ? "time" : "step", "over time", !byStep),
      set("log", log ? "no" : "yes", "log y", log),
      set("clip", viewed("clip") === "yes" ? "no" : "yes", "clip outliers", viewed("clip") === "yes"),
      this.smoothing(),
      byStep && this.stepRange
        ? h(
            "button",
            {
              type: "button",
              onclick: () => this.choose({ steps: null }, { keeps: false }),
            },
            "all steps",
          )
        : null,
      pick,
    );
    this.moreTasks ??= h(
      "button",
      { type: "button", "aria-expanded": "false", onclick: () => this.toggleUse() },
      "What tasks, hosts and GPUs use",
    );
    if (this.view.history.series.some((one) => one.task)) this.moreArea.append(this.moreTasks);
  }

  smoothing() {
    const chosen = viewed("smooth") || "0";
    const option = ([value, words]) => h("option", { value, selected: value === chosen }, words);
    const choices = [
      ["0", "not smoothed"],
      ["0.6", "smoothed a little"],
      ["0.9", "smoothed"],
      ["0.98", "smoothed much"],
    ];
    const change = (event) => this.choose({ smooth: event.target.value });
    return h("select", { "aria-label": "Smoothing", onchange: change }, choices.map(option));
  }

  // Where checkpoints were verified, generations began and tasks failed first: [Unix time, step].
  marks() {
    const { history } = this.view,
      of = new Map(history.generations.map((one) => [one.generation, one]));
    return {
      checkpoints: history.checkpoints.map(([at, step]) => [history.begin + at, step]),
      begins: new Map(
        history.generations.map((one) => [
          one.generation,
          [history.begin + (one.spans[0]?.[1] ?? 0), one.resumed_from],
        ]),
      ),
      causes: this.view.causes.map((cause) => [cause.time, of.get(cause.generation)?.last_step ?? null]),
    };
  }

  toggleUse() {
    const shown = !this.useArea;
    this.moreTasks.setAttribute("aria-expanded", String(shown));
    if (!shown) {
      for (const plot of this.uses.values()) plot.destroy();
      this.uses.clear();
      this.useArea.remove();
      this.useArea = null;
      return;
    }
    this.useArea = h("div", { class: "plots" });
    this.moreArea.after(this.useArea);
    this.showUse();
  }

  // What tasks, hosts and GPUs use, over the time: a line for each, and of more than a dozen what most of them do.
  async showUse() {
    const families = new Map();
    for (const one of this.view.history.series.filter((each) => each.task)) {
      const [of, name] = familyOf(one),
        key = `${of}/${name}`;
      if (!families.has(key)) families.set(key, { of, name, members: [] });
      families.get(key).members.push(one);
    }
    const [from, to] = this.view.window || [];
    for (const [key, { of, name, members }] of families) {
      if (!this.useArea) return;
      if (!this.uses.has(key)) {
        this.uses.set(
          key,
          new Plot(name, { byStep: false, title: `${TITLES[name] || name} of ${FAMILIES[of]}` }),
        );
        this.useArea.append(this.uses.get(key).element);
      }
      const plot = this.uses.get(key);
      if (members.length > LINES_MAX) {
        plot.showBand(
          await getDocument(this.view.id, "band", { of, name, from, to, buckets: 300 }),
          this.view.window,
        );
        continue;
      }
      const { series } = await getDocument(this.view.id, "series", {
        names: members.map(seriesName).join(","),
        x: "time",
        from,
        to,
        buckets: 300,
      });
      plot.show(
        series.map((line) => ({
          ...line,
          task: of === "gpu" ? `${line.task} GPU ${/^gpu(\d+)/.exec(line.name)[1]}` : line.task,
        })),
        {},
        this.view.window,
        this.marks(),
      );
    }
  }

  // Take in what the stream sends.
  add(run) {
    if (run.phase !== "RUNNING") return;
    for (const [name, value] of [["steps_per_s", run.steps_per_s], ...Object.entries(run.metrics || {})]) {
      const plot = this.plots.get(name),
        at = plot?.byStep ? run.global_step : now();
      if (plot && at) plot.add(at, value, run.generation);
    }
  }

  destroy() {
    this.useArea = null;
    for (const plot of [...this.plots.values(), ...this.uses.values()]) plot.destroy();
  }
}

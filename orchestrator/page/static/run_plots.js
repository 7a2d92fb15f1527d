// The plots of a run: loss, pace and metrics; and, where one asks, what its tasks, hosts and GPUs use.

import { getDocument, go, h, put, route, seriesName, setting, zoomTo } from "./base.js";
import {
  AXES,
  FAMILIES,
  LINES_MAX,
  PLOTS_MAX,
  Plot,
  TITLES,
  familyOf,
  isByStep,
  plotNames,
  scaleOf,
} from "./plots.js";
import { now, section } from "./parts.js";

const LEGEND =
  "solid: training; dashed: validation, and where a generation begins; ticks below: checkpoints; ✕: a first cause; " +
  "faint: trained again. Drag: zoom, all plots together; double click: all.";
const NARROW_MAX = 2; // on a phone the tasks are to be near

// How the plots are drawn: as the address says, else as this browser was told last.
export const viewed = (name) => route().query[name] ?? setting(name);
// What is chosen is in the address, so that a link shows the same. A zoom is a step back, and nothing to keep.
export const choose = (changes, { keeps = true } = {}) => {
  const { parts, query } = route();
  if (keeps) for (const [name, value] of Object.entries(changes)) if (value !== null) setting(name, value);
  go(parts, { ...query, ...changes }, keeps);
};
export const rangeOf = (text) => {
  const range = (text || "").split(text?.includes("~") ? "~" : "-").map(Number);
  return range.length === 2 && range.every(Number.isFinite) && range[0] < range[1] ? range : null;
};
// How many steps an epoch of a run has; null if nothing says so.
export const epochSteps = (run) =>
  run?.steps_total && run.training_epochs ? run.steps_total / run.training_epochs : null;
// The axis that is chosen. Without epochs there is no axis of them.
export const axisOf = (hasEpochs) => {
  const chosen = viewed("x");
  return chosen in AXES && (chosen !== "epoch" || hasEpochs) ? chosen : "step";
};
export const selector = (label, chosen, pairs, change) => {
  const option = ([value, words]) => h("option", { value, selected: value === chosen }, words);
  return h("select", { "aria-label": label, onchange: ({ target }) => change(target.value) }, pairs.map(option));
};
export const axisSelector = (axis, hasEpochs) => {
  const pairs = Object.entries(AXES).filter(([name]) => name !== "epoch" || hasEpochs);
  const words = pairs.map(([name, called]) => [name, `over the ${called}`]);
  return selector("Axis", axis, words, (x) => choose({ x, steps: null }));
};
export const smoothingSelector = () => {
  const choices = [
    ["0", "not smoothed"],
    ["0.6", "smoothed a little"],
    ["0.9", "smoothed"],
    ["0.98", "smoothed much"],
  ];
  return selector("Smoothing", viewed("smooth") || "0", choices, (smooth) => choose({ smooth }));
};
export const toggle = (name, words) => {
  const on = viewed(name) === "yes";
  const onclick = () => choose({ [name]: on ? "no" : "yes" });
  return h("button", { type: "button", "aria-pressed": String(on), onclick }, words);
};
// How a plot is drawn that is not the pace, whose zero tells something.
export const drawnAs = (plot) => ({
  log: viewed("log") === "yes" && plot.name !== "steps_per_s",
  smooth: Number(viewed("smooth") || 0),
  clip: viewed("clip") === "yes",
});

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

  get axis() {
    return axisOf(epochSteps(this.view.run));
  }

  get scale() {
    return scaleOf(this.axis, epochSteps(this.view.run), this.view.history.begin);
  }

  // The stretch of steps or of time that is shown; null for all.
  get range() {
    return isByStep(this.axis) ? rangeOf(route().query.steps) : this.view.window;
  }

  // What the server is asked for, of these series, at the stretch that is shown.
  query(names, buckets) {
    const byStep = isByStep(this.axis);
    const [from, to] = this.range || [];
    return {
      names,
      x: byStep ? "step" : "time",
      from: byStep ? null : from,
      to: byStep ? null : to,
      from_step: byStep && this.range ? Math.max(0, Math.floor(from)) : null,
      to_step: byStep && this.range ? Math.ceil(to) : null,
      buckets,
    };
  }

  plotOf(name, title) {
    const { axis } = this;
    const zoom = (shown) => {
      const range = shown?.map((each) => Math.max(0, this.scale.back(each))) ?? null;
      const steps = range && `${Math.floor(range[0])}-${Math.ceil(range[1])}`;
      if (isByStep(axis)) choose({ steps }, { keeps: false });
      else zoomTo(range);
    };
    return new Plot(name, { axis, title, zoom });
  }

  async show() {
    const all = plotNames(this.view.history.series);
    const wanted = (route().query.plots || "").split(",").filter(Boolean);
    const most = matchMedia("(max-width: 700px)").matches ? NARROW_MAX : PLOTS_MAX;
    const names = [...new Set([...all.slice(0, most), ...wanted])].filter((name) => all.includes(name));
    const asked = names.flatMap((name) => [
      name,
      ...(this.view.history.series.some((one) => one.name === `val_${name}`) ? [`val_${name}`] : []),
    ]);
    const asking = asked.map((name) => seriesName({ name })).join(",");
    const { hash } = location;
    const { series } = await getDocument(this.view.id, "series", this.query(asking, 600));
    if (location.hash !== hash) return; // another axis or stretch by now: its own answer is on the way
    // Nothing of the newest generation was trained again.
    const earlier = this.view.history.generations.slice(0, -1);
    const kept = Object.fromEntries(earlier.map((one) => [one.generation, one.kept_to]));
    const key = JSON.stringify([names, this.axis]);
    if (key !== this.plotKey) {
      this.plotKey = key;
      for (const plot of this.plots.values()) plot.destroy();
      this.plots = new Map(names.map((name) => [name, this.plotOf(name)]));
      put(
        this.plotArea,
        [...this.plots.values()].map((plot) => plot.element),
      );
    }
    const marks = this.marks();
    for (const [name, plot] of this.plots) {
      Object.assign(plot, { ...drawnAs(plot), scale: this.scale });
      plot.show(
        series.filter((line) => line.name === name || line.name === `val_${name}`),
        kept,
        this.range?.map(this.scale.place),
        marks,
      );
    }
    if (this.useArea) this.showUse();
    this.plotTools(all, names);
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

  plotTools(all, names) {
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
      axisSelector(this.axis, epochSteps(this.view.run)),
      toggle("log", "log y"),
      toggle("clip", "clip outliers"),
      smoothingSelector(),
      isByStep(this.axis) && this.range
        ? h("button", { type: "button", onclick: () => choose({ steps: null }, { keeps: false }) }, "all steps")
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
      this.clearUse();
      this.useArea.remove();
      this.useNote.remove();
      this.useArea = null;
      return;
    }
    this.useArea = h("div", { class: "plots" });
    this.useNote = h("p", { class: "dim" }, "The kernel counts what goes over the network by host, not by task.");
    this.moreArea.after(this.useNote, this.useArea);
    this.showUse();
  }

  // What tasks, hosts and GPUs use, on the axis of the other plots: a line for each, and of more than a dozen what most
  // of them do, which is known by time only.
  async showUse() {
    const families = new Map();
    for (const one of this.view.history.series.filter((each) => each.task)) {
      const [of, name] = familyOf(one),
        key = `${of}/${name}`;
      if (!families.has(key)) families.set(key, { of, name, members: [] });
      families.get(key).members.push(one);
    }
    if (this.useAxis !== this.axis) this.clearUse();
    this.useAxis = this.axis;
    const [from, to] = this.view.window || [];
    for (const [key, { of, name, members }] of families) {
      if (!this.useArea) return;
      const isMany = members.length > LINES_MAX;
      if (!this.uses.has(key)) {
        const title = `${TITLES[name] || name} of ${FAMILIES[of]}`;
        const made = isMany && isByStep(this.axis) ? new Plot(name, { axis: "time", title, zoom: zoomTo }) : null;
        this.uses.set(key, made || this.plotOf(name, title));
        this.useArea.append(this.uses.get(key).element);
      }
      const plot = this.uses.get(key);
      plot.scale = plot.byStep === isByStep(this.axis) ? this.scale : scaleOf("time");
      if (isMany) {
        const band = await getDocument(this.view.id, "band", { of, name, from, to, buckets: 300 });
        plot.showBand(band, this.view.window?.map(plot.scale.place));
        continue;
      }
      const asked = this.query(members.map(seriesName).join(","), 300);
      const { series } = await getDocument(this.view.id, "series", asked);
      const named = (line) => (of === "gpu" ? `${line.task} GPU ${/^gpu(\d+)/.exec(line.name)[1]}` : line.task);
      const lines = series.map((line) => ({ ...line, task: named(line) }));
      plot.show(lines, {}, this.range?.map(this.scale.place), this.marks());
    }
  }

  clearUse() {
    for (const plot of this.uses.values()) plot.destroy();
    this.uses.clear();
    put(this.useArea);
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

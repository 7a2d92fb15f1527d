// #/: all runs, and below them the hosts of those that go on.

import { getDocument, h, isDark, linkTo, memo, page, put } from "./base.js";
import { keptOnce, sparkline } from "./plots.js";
import {
  ENDED,
  Table,
  goodputText,
  hostCard,
  isStale,
  lostText,
  nonfiniteWords,
  now,
  phaseMark,
  progressParts,
  runSentence,
  section,
} from "./parts.js";

export class RunsView {
  constructor() {
    this.sparks = new Map();
    this.list = h("div");
    this.chosen = [];
    this.tools = h("div", { class: "tools", hidden: true });
    this.hosts = h("div");
    this.element = h("div", {}, h("h1", {}, "Runs"), this.tools, this.list, this.hosts);
    this.table = new Table(
      [
        {
          name: "run",
          value: (run) => h("a", { href: linkTo(["r", run.run_id]) }, run.run_id),
          key: (run) => run.run_id,
        },
        { name: "phase", value: (run) => phaseMark(run.phase), key: (run) => [run.phase, isStale()] },
        {
          name: "state",
          class: "wrap wide",
          value: (run) => this.stateOf(run),
          key: (run) => this.stateOf(run).map((each) => each.textContent ?? each),
        },
        {
          name: "progress",
          class: "wide",
          value: (run) => h("div", { class: "head" }, progressParts(run)),
          key: (run) => [run.global_step, run.steps_total, run.eta_s, Math.floor(now() / 5)],
        },
        {
          name: "goodput",
          num: true,
          value: (run) =>
            h(
              "div",
              {},
              goodputText(run.time_use),
              lostText(run.time_use) && h("div", { class: "dim" }, lostText(run.time_use)),
            ),
          key: (run) => [goodputText(run.time_use), lostText(run.time_use)],
        },
        { name: "loss", value: (run) => this.spark(run), key: (run) => run.run_id },
        { name: "restarts", num: true, value: (run) => run.restarts },
        { name: "compare", value: (run) => this.chooser(run), key: (run) => run.run_id },
      ],
      "Runs",
    );
    this.update();
  }

  // What is wrong, and what comes next.
  stateOf(run) {
    const odd = nonfiniteWords(run);
    const cause = run.phase === "FAILED" && run.first_cause ? `${run.first_cause.sentence}: ` : "";
    return [odd && h("div", { class: "slow" }, odd), `${cause}${runSentence(run)}`];
  }

  // Two runs are chosen by their boxes, and a link leads to both.
  chooser(run) {
    const choose = (event) => {
      const rest = this.chosen.filter((id) => id !== run.run_id);
      this.chosen = event.target.checked ? [...rest, run.run_id].slice(-2) : rest;
      for (const box of this.list.querySelectorAll("input[name=compare]"))
        box.checked = this.chosen.includes(box.value);
      const [a, b] = this.chosen;
      this.tools.hidden = !a;
      const both = h("a", { href: linkTo(["compare"], { run: `${a},${b}` }) }, `Compare ${a} and ${b}`);
      put(this.tools, b ? both : "Choose one more run to compare with.");
    };
    return h("input", {
      type: "checkbox",
      name: "compare",
      value: run.run_id,
      "aria-label": `Compare ${run.run_id}`,
      onchange: choose,
    });
  }

  spark(run) {
    if (!this.sparks.has(run.run_id)) {
      const canvas = h("canvas", {
        width: 120,
        height: 24,
        role: "img",
        "aria-label": "Loss over the steps",
      });
      canvas.style.width = "120px";
      this.sparks.set(run.run_id, canvas);
      if (this.sparks.size <= 20) this.load(run.run_id, canvas);
    }
    return this.sparks.get(run.run_id);
  }

  async load(run, canvas) {
    try {
      const { series } = await getDocument(run, "series", { names: "loss", x: "step", buckets: 40 });
      sparkline(canvas, keptOnce(series));
    } catch {
      /* no history: no line */
    }
  }

  update() {
    const runs = Object.values(page.state.runs).reverse();
    runs.sort((a, b) => ENDED.includes(a.phase) - ENDED.includes(b.phase));
    if (!runs.length) {
      memo(this.list, "none", () =>
        put(
          this.list,
          h(
            "p",
            { class: "dim" },
            page.loaded ? "There are no runs yet. `orch up cluster.yaml` starts one." : "Loading…",
          ),
        ),
      );
      return;
    }
    memo(this.list, "some", () => put(this.list, this.table.element));
    this.table.show(runs, (run) => run.run_id);
    const hosts = Object.entries(page.state.hosts || {});
    memo(this.hosts, [hosts.map(([, host]) => host), isDark()], () =>
      put(
        this.hosts,
        hosts.length
          ? section(
              "Hosts",
              h(
                "div",
                { class: "grid" },
                hosts.map(([name, host]) => hostCard(name, host)),
              ),
            )
          : null,
      ),
    );
  }

  destroy() {}
}

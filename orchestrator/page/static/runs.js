"use strict";
// #/: all runs, and below them the hosts of those that go on.

orch.RunsView = class {
  constructor() {
    this.sparks = new Map();
    this.list = orch.h("div");
    this.hosts = orch.h("div");
    this.element = orch.h("div", {}, orch.h("h1", {}, "Runs"), this.list, this.hosts);
    this.table = new orch.Table([
      { name: "run", value: (run) => orch.h("a", { href: orch.link(["r", run.run_id]) }, run.run_id), key: (run) => run.run_id },
      { name: "phase", value: (run) => orch.phase(run.phase), key: (run) => run.phase },
      { name: "state", class: "wrap wide", value: (run) => orch.sentence(run) },
      { name: "progress", class: "wide", value: (run) => orch.h("div", { class: "head" }, progressParts(run)), key: (run) => [run.global_step, run.steps_total, run.eta_s, Math.floor(now() / 5)] },
      { name: "goodput", num: true, value: (run) => orch.h("div", {}, goodputText(run.time_use), lostText(run.time_use) && orch.h("div", { class: "dim" }, lostText(run.time_use))), key: (run) => [goodputText(run.time_use), lostText(run.time_use)] },
      { name: "loss", value: (run) => this.spark(run), key: (run) => run.run_id },
      { name: "restarts", num: true, value: (run) => run.restarts },
    ], "Runs");
    this.update();
  }

  spark(run) {
    if (!this.sparks.has(run.run_id)) {
      const canvas = orch.h("canvas", { width: 120, height: 24, role: "img", "aria-label": "Loss over the steps" });
      canvas.style.width = "120px";
      this.sparks.set(run.run_id, canvas);
      if (this.sparks.size <= 20) this.load(run.run_id, canvas);
    }
    return this.sparks.get(run.run_id);
  }

  async load(run, canvas) {
    try {
      const { series } = await orch.get(run, "series", { names: "loss", x: "step", buckets: 40 });
      orch.sparkline(canvas, series.flatMap((line) => line.y));
    } catch { /* no history: no line */ }
  }

  update() {
    const runs = Object.values(orch.state.runs).reverse();
    runs.sort((a, b) => ENDED.includes(a.phase) - ENDED.includes(b.phase));
    if (!runs.length) { orch.memo(this.list, "none", () => orch.put(this.list, orch.h("p", { class: "dim" }, orch.loaded ? "There are no runs yet. `orch up cluster.yaml` starts one." : "Loading…"))); return; }
    orch.memo(this.list, "some", () => orch.put(this.list, this.table.element));
    this.table.show(runs, (run) => run.run_id);
    const hosts = Object.entries(orch.state.hosts || {});
    orch.memo(this.hosts, [hosts.map(([, host]) => host), orch.isDark()], () => orch.put(this.hosts, hosts.length ? section("Hosts", orch.h("div", { class: "grid" }, hosts.map(([name, host]) => hostCard(name, host)))) : null));
  }

  destroy() {}
};

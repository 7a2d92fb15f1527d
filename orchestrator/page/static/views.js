"use strict";
// The views: runs, a run, its logs, its plan. Each has `element`, `update()` for what the stream told, and `destroy()`.

const TONES = { RUNNING: "good", SUCCEEDED: "good", FAILED: "bad", STOPPING: "warn", BACKOFF: "warn", UNREACHABLE: "bad", EXITED: "dim", LOST: "bad" };
const GLYPHS = { PENDING: "◌", RENDEZVOUS: "◔", RUNNING: "▶", STOPPING: "■", BACKOFF: "◷", SUCCEEDED: "✓", FAILED: "✕", KILLED: "⏹" };
const TASKS_MAX = 100; // each has a dozen elements
const ENDED = ["SUCCEEDED", "FAILED", "KILLED"];

orch.phase = (phase) => orch.h("span", { class: `phase ${TONES[phase] || ""}` }, `${GLYPHS[phase] || "●"} ${phase}`);
const now = () => (orch.report ? orch.report.made : Date.now() / 1000);

const progressParts = (run) => {
  const [done, total] = [run.global_step, run.steps_total];
  const parts = [];
  if (total && done !== null) {
    const part = Math.min(1, done / total);
    parts.push(orch.h("progress", { max: "1", value: String(part), "aria-label": "Steps done" }), orch.h("span", {}, `${orch.count(done)} / ${orch.count(total)} (${Math.floor(part * 100)}%)`));
  } else if (done !== null && done !== undefined) parts.push(orch.h("span", {}, `step ${orch.count(done)}`));
  if (run.training_epochs && run.training_epoch !== null) parts.push(orch.h("span", {}, `epoch ${run.training_epoch + 1}/${run.training_epochs}`));
  if (run.eta_s !== null && run.eta_s !== undefined) parts.push(orch.h("span", {}, `ETA ${orch.duration(run.eta_s)}`));
  if (run.started_at) parts.push(orch.h("span", { class: "dim" }, `${orch.duration((run.ended_at || now()) - run.started_at)}`));
  return parts;
};

const goodputText = (told) => (told?.value === null || told?.value === undefined ? "–" : `${(told.value * 100).toFixed(told.value > 0.995 ? 0 : 1)}%`);

// A table that changes cell by cell, so that nothing under the pointer or the focus goes away.
orch.Table = class {
  constructor(columns, label) {
    this.columns = columns;
    this.rows = new Map();
    this.body = orch.h("tbody");
    const heads = columns.map((column) => orch.h("th", { class: column.num ? "num" : null, scope: "col" }, column.name));
    this.element = orch.h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, a table` },
      orch.h("table", { class: "cards" }, orch.h("caption", { class: "hidden" }, label), orch.h("thead", {}, orch.h("tr", {}, heads)), this.body));
  }

  show(items, keyOf) {
    const keys = items.map(keyOf);
    for (const [key, row] of this.rows) if (!keys.includes(key)) { row.remove(); this.rows.delete(key); }
    items.forEach((item, i) => {
      const key = keys[i];
      if (!this.rows.has(key)) this.rows.set(key, orch.h("tr", {}, this.columns.map((column) => orch.h("td", { class: column.class || (column.num ? "num" : null), "data-name": column.name }))));
      const row = this.rows.get(key);
      if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] || null);
      this.columns.forEach((column, c) => {
        const cell = row.children[c], value = column.value(item);
        if (value instanceof Node || Array.isArray(value)) orch.memo(cell, [column.key ? column.key(item) : key], () => orch.put(cell, value));
        else orch.text(cell, value ?? "–");
        if (column.tone) cell.classList.toggle("slow", column.tone(item));
      });
    });
  }
};

// What was trained again, in hours of one GPU: what it cost.
const lostText = (told) => (told?.lost_gpu_hours ? `${orch.number(told.lost_gpu_hours)} GPU-h trained again` : "");

// A host's GPUs as small bars: full is busy, the tick is its memory. The words beside it say what they draw.
const gaugeBars = (canvas, gpus) => {
  const found = orch.pen(canvas, 26);
  if (!found) return;
  const { pen, width } = found, wide = Math.min(14, width / Math.max(1, gpus.length));
  const style = getComputedStyle(document.documentElement);
  gpus.forEach(([, used, memory], i) => {
    const x = i * wide;
    pen.strokeStyle = style.getPropertyValue("--dim");
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, 0.5, wide - 3, 25);
    pen.fillStyle = orch.colour("training");
    if (used) pen.fillRect(x + 1, 25 - (used / 100) * 24, wide - 4, (used / 100) * 24);
    if (memory !== null) { pen.fillStyle = style.getPropertyValue("--fg"); pen.fillRect(x - 1, 25 - (memory / 100) * 24, wide, 2); }
  });
};
const hostCard = (name, host) => {
  const known = host.gpus.filter(([, used]) => used !== null);
  const mean = known.length ? known.reduce((sum, [, used]) => sum + used, 0) / known.length : null;
  const watts = host.gpus.reduce((sum, gpu) => sum + (gpu[3] || 0), 0);
  const words = host.gpus.length ? [`${host.gpus.length} GPU${host.gpus.length > 1 ? "s" : ""}`, mean === null ? "" : orch.percent(mean), watts ? `${orch.number(watts)} W` : ""].filter(Boolean).join(" ")
    : `CPU ${orch.percent(host.cpu_percent)}, memory ${orch.percent(host.memory_percent)}`;
  const bars = host.gpus.length ? orch.h("canvas", { role: "img", "aria-label": host.gpus.map(([index, used, memory, power]) => `GPU ${index}: ${orch.percent(used)}, memory ${orch.percent(memory)}, ${power ?? "–"} W`).join("; ") }) : null;
  if (bars) new ResizeObserver(() => gaugeBars(bars, host.gpus)).observe(bars);
  const isFine = ["ready", "spare"].includes(host.state);
  return orch.h("div", { class: `host${isFine ? "" : " unfit"}`, title: host.reason || null }, orch.h("strong", {}, name), orch.h("span", { class: isFine ? "dim" : "slow" }, host.state), bars, orch.h("span", {}, words),
    orch.h("span", { class: "dim" }, host.runs.map((run, i) => [i ? ", " : "", orch.h("a", { href: orch.link(["r", run]) }, run)])));
};

// Of each GPU a small bar with its words: one that waits shows 100% at low power.
const gauges = (gpus) => (gpus.length ? gpus.map((gpu) => orch.h("div", { class: "gauge" },
  orch.h("span", {}, `${gpu.index} `), orch.h("progress", { max: "100", value: String(gpu.utilization_percent ?? 0), "aria-label": `Use of GPU ${gpu.index}` }),
  orch.h("span", {}, ` ${orch.percent(gpu.utilization_percent)} ${gpu.power_w === null ? "" : `${Math.round(gpu.power_w)} W`} ${orch.bytes(gpu.memory_used_bytes)}/${orch.bytes(gpu.memory_total_bytes)} ${gpu.temperature_c === null ? "" : `${Math.round(gpu.temperature_c)} °C`}`))) : ["–"]);

const section = (title, ...children) => orch.h("section", { "aria-label": title }, orch.h("h2", {}, title), ...children);

// ---------------------------------------------------------------- #/

orch.RunsView = class {
  constructor() {
    this.sparks = new Map();
    this.list = orch.h("div");
    this.hosts = orch.h("div");
    this.element = orch.h("div", {}, orch.h("h1", {}, "Runs"), this.list, this.hosts);
    this.table = new orch.Table([
      { name: "run", value: (run) => orch.h("a", { href: orch.link(["r", run.run_id]) }, run.run_id) },
      { name: "phase", value: (run) => orch.phase(run.phase), key: (run) => run.phase },
      { name: "state", class: "wrap", value: (run) => run.reason || run.reason_rest || "" },
      { name: "progress", value: (run) => orch.h("div", { class: "head" }, progressParts(run)), key: (run) => [run.global_step, run.steps_total, run.eta_s, Math.floor(now() / 5)] },
      { name: "goodput", num: true, value: (run) => orch.h("div", {}, goodputText(run.time_use), lostText(run.time_use) && orch.h("div", { class: "dim" }, lostText(run.time_use))), key: (run) => [goodputText(run.time_use), lostText(run.time_use)] },
      { name: "loss", value: (run) => this.spark(run) },
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

// ---------------------------------------------------------------- #/r/RUN

orch.RunView = class {
  constructor(run, query) {
    this.id = run;
    this.query = query;
    this.plots = new Map();
    this.head = orch.h("div", { class: "head" });
    this.sentence = orch.h("p", { class: "sentence" });
    this.cause = orch.h("div");
    this.links = orch.h("nav", { class: "tools", "aria-label": "Of this run" },
      orch.h("a", { href: orch.link(["r", run, "logs"]) }, "logs (l)"), orch.h("a", { href: orch.link(["r", run, "plan"]) }, "plan (i)"));
    this.buttons = orch.h("div", { class: "actions" });
    this.bar = orch.h("canvas", { role: "img", "aria-label": "What the time was spent on; the words beside it say the same" });
    this.legend = orch.h("div", { class: "legend" });
    this.goodput = orch.h("strong");
    this.timeline = orch.timeline = new orch.Timeline((task, span, at) => this.openLog(task, span, at));
    this.uses = new Map();
    this.timelineTable = orch.h("details");
    this.plotArea = orch.h("div", { class: "plots" });
    this.moreArea = orch.h("div", { class: "tools" });
    this.range = orch.h("div", { class: "tools" });
    this.tasks = this.taskTable();
    this.hosts = this.hostTable();
    this.whyArea = orch.h("div");
    this.checkpointArea = orch.h("div");
    this.events = [];
    this.eventTable = new orch.Table([
      { name: "time", value: (event) => orch.time(Date.parse(event.time) / 1000, { date: true }) }, { name: "what", value: (event) => event.kind },
      { name: "task", value: (event) => event.task || "" }, { name: "message", class: "wrap", value: (event) => event.message }], "Events");
    this.element = orch.h("div", {}, this.head, this.sentence, this.cause, this.links, this.buttons,
      section("Plots", this.plotArea, this.moreArea),
      section("Goodput", orch.h("div", { class: "bar" }, this.goodput, this.bar), this.legend),
      section("Timeline", this.range, this.timeline.element, this.timelineTable),
      section("Tasks", this.tasks.element), section("Hosts", this.hosts.element),
      section("Why", this.whyArea), section("Checkpoints", this.checkpointArea), section("Events", this.eventTable.element));
    this.update();
    this.load();
    this.timer = orch.report ? null : setInterval(() => this.load(), 15000);
    new ResizeObserver(() => orch.goodputBar(this.bar, this.told?.goodput)).observe(this.bar);
  }

  get run() { return orch.state.runs[this.id]; }

  get window() {
    const { from, to } = orch.route().query;
    if (from && /^-\d+[smh]$/.test(from)) return [now() - Number(from.slice(1, -1)) * { s: 1, m: 60, h: 3600 }[from.at(-1)], now()];
    return from && to && Number(from) < Number(to) ? [Number(from), Number(to)] : null;
  }

  async load() {
    if (document.hidden && this.told) return;
    try {
      const [told, why, events] = await Promise.all(["history", "why", "events"].map((what) => orch.get(this.id, what)));
      this.told = told;
      this.causes = why.first_causes || [];
      this.events = events.events || [];
      this.showTime();
      this.look();
      await this.showPlots();
      this.showWhy();
      this.showEvents();
    } catch (error) { if (!this.told) orch.put(this.sentence, `${error.message}${error.hint ? ` (${error.hint})` : ""}`); }
    this.element.dataset.loaded = "yes";
  }

  // ------------------------------------------------ what the stream tells

  update() {
    const run = this.run;
    if (!run) return;
    orch.memo(this.head, [run.phase, run.generation, run.global_step, run.steps_total, run.eta_s, run.training_epoch, Math.floor(now() / 2)], () => orch.put(this.head,
      orch.h("h1", {}, run.name, " ", orch.h("small", {}, run.run_id)), orch.phase(run.phase), orch.h("span", { class: "dim" }, `generation ${run.generation}`), progressParts(run)));
    const limit = ENDED.includes(run.phase) ? null : run.bottleneck;
    orch.text(this.sentence, (run.reason || "") + (limit ? `. Limited by ${limit.sentence}: ${limit.remedy}` : ""));
    const isOver = ["RUNNING", "SUCCEEDED"].includes(run.phase) && run.first_cause?.generation < run.generation;
    orch.memo(this.cause, [run.first_cause, run.problem, isOver], () => this.showCause(run, isOver));
    this.showButtons(run);
    if (run.phase !== this.lastPhase && this.lastPhase) { orch.announce(`${run.name} is ${run.phase}`); this.load(); }
    this.lastPhase = run.phase;
    const tasks = Object.values(run.tasks || {});
    const paces = tasks.map((task) => task.steps_per_s).filter(Boolean).sort((a, b) => a - b);
    // Of few tasks none stands out, and under a synchronous strategy all wait for the slowest.
    this.median = paces.length > 3 ? paces[(paces.length - 1) >> 1] : null;
    this.tasks.show(this.shownOf(tasks), (task) => task.task);
    if (orch.actions && !this.canAct) { // known only now, where the address of the run was opened
      this.canAct = true;
      const made = this.hostTable();
      this.hosts.element.replaceWith(made.element);
      this.hosts = made;
    }
    this.hosts.show(Object.values(run.hosts || {}), (host) => host.host);
    const at = this.plots.get("steps_per_s")?.byStep ? run.global_step : now();
    if (run.phase === "RUNNING" && at) this.plots.get("steps_per_s")?.add(at, run.steps_per_s, run.generation);
    for (const [name, value] of Object.entries(run.metrics || {})) if (run.phase === "RUNNING") this.plots.get(name)?.add(this.plots.get(name).byStep ? run.global_step : now(), value, run.generation);
  }

  // Of many tasks the first ones, and all that are not as the others, until all are asked for.
  shownOf(tasks) {
    if (tasks.length <= TASKS_MAX || this.allTasks) return tasks;
    if (!this.allTasks && !this.moreTaskRows) {
      this.moreTaskRows = orch.h("button", { type: "button", onclick: () => { this.allTasks = true; this.moreTaskRows.remove(); this.update(); } });
      this.tasks.element.after(this.moreTaskRows);
    }
    const stands = (task) => task.phase !== "RUNNING" || (this.median && task.steps_per_s < this.median * 0.85);
    const shown = tasks.filter((task, i) => i < TASKS_MAX - 20 || stands(task)).slice(0, TASKS_MAX);
    orch.text(this.moreTaskRows, `${shown.length} of ${tasks.length} tasks are shown: the first, and those that stand out. Show all`);
    return shown;
  }

  // What is over is told in short; what is not, with all that helps.
  showCause(run, isOver) {
    const cause = run.first_cause;
    if (!cause && !run.problem) { orch.put(this.cause); return; }
    const advice = cause?.advice ? [cause.advice].flat() : [];
    const more = [
      cause?.means && orch.h("p", {}, cause.means),
      advice.map((each) => orch.h("p", {}, `You can: ${typeof each === "string" ? each : JSON.stringify(each)}`)),
      run.problem?.hint && orch.h("p", {}, `You can: ${run.problem.hint}`),
      cause?.last_lines?.length ? orch.h("pre", {}, cause.last_lines.slice(-6).join("\n")) : null,
    ];
    orch.put(this.cause, orch.h("section", { class: "cause", "aria-label": "First cause" },
      orch.h("h2", {}, `✕ ${cause?.ended_time ? `${orch.time(cause.ended_time)} ` : ""}${cause?.sentence || run.problem.message}`),
      cause?.done && orch.h("p", { class: "after" }, `→ ${cause.done}`),
      cause?.cost && orch.h("p", { class: "dim" }, cause.cost),
      isOver ? orch.h("details", {}, orch.h("summary", {}, "what it means, and its last lines"), more) : more,
      cause?.task ? orch.h("p", {}, orch.h("a", { href: orch.link(["r", this.id, "logs"], { task: cause.task, generation: cause.generation }) }, `log of ${cause.task}`)) : null));
  }

  showButtons(run) {
    // By its generation: what the newest checkpoint of that is may change while the question is open.
    const of = /gen-0*(\d+)/.exec(run.checkpoint?.path || "")?.[1];
    orch.memo(this.buttons, [orch.actions, ENDED.includes(run.phase), of], () => {
      if (!orch.actions || ENDED.includes(run.phase)) { orch.put(this.buttons); return; }
      orch.put(this.buttons, of && orch.h("button", { type: "button", onclick: () => this.ask(
        `Restart ${run.run_id}?`, `All its tasks are stopped, and go on from the newest checkpoint of generation ${of}. What was trained since is trained again.`, "rollback", { checkpoint: `gen-${of}`, restart: true }, "restart") }, "Restart…"), orch.h("button", { type: "button", class: "danger", onclick: () => this.ask(
        `Stop ${run.run_id}?`, "All its tasks are asked to end, then killed; orch looks at each host that nothing is left. What was not saved is lost.", "kill", {}) }, "Stop the run…"));
    });
  }

  backTo({ global_step: step, name, generation }, active) {
    const then = active ? "All its tasks are stopped, and go on from there." : "The next `orch up` goes on from there.";
    return orch.h("button", { type: "button", "aria-label": `Roll back to step ${orch.count(step)} of generation ${generation ?? "–"}`, onclick: () => this.ask(
      `Roll ${this.id} back to step ${orch.count(step)}?`, `${then} All newer checkpoints are set aside in their directory, and count no more.`, "rollback", { checkpoint: name, restart: active }, "roll back") }, "roll back…");
  }

  ask(title, what, verb, body, word = verb) {
    const dialog = document.getElementById("dialog");
    const said = orch.h("p", { role: "status" });
    const act = async (event) => {
      event.target.disabled = true;
      orch.text(said, "Asked; waiting for the answer…");
      try { await orch.post(this.id, verb, body); dialog.close(); } catch (error) {
        // It was refused: why is said here, and what one may choose from is asked for anew.
        orch.text(said, `${error.message}${error.hint ? `: ${error.hint}` : ""}`);
        event.target.disabled = false;
      }
      if (verb === "rollback") this.look(true);
    };
    orch.put(dialog, orch.h("h2", {}, title), orch.h("p", {}, what), said, orch.h("div", { class: "actions" },
      orch.h("button", { type: "button", class: "danger", onclick: act }, `Yes, ${word}`), orch.h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "No")));
    dialog.showModal();
  }

  taskTable() {
    const deviation = (task) => (task.steps_per_s && this.median ? (task.steps_per_s / this.median - 1) * 100 : null);
    return new orch.Table([
      { name: "task", value: (task) => orch.h("a", { href: orch.link(["r", this.id, "logs"], { task: task.task }) }, task.task) },
      { name: "host", value: (task) => task.host },
      { name: "phase", value: (task) => orch.phase(task.phase), key: (task) => task.phase },
      { name: "step", num: true, value: (task) => orch.count(task.global_step) },
      { name: "steps/s", num: true, value: (task) => orch.number(task.steps_per_s) },
      { name: "pace", num: true, value: (task) => { const found = deviation(task); return found === null ? "–" : `${found > 0 ? "+" : found < 0 ? "−" : ""}${Math.abs(found).toFixed(0)}%`; }, tone: (task) => deviation(task) < -15 },
      { name: "CPU", num: true, value: (task) => orch.percent(task.cpu_percent) },
      { name: "memory", num: true, value: (task) => orch.bytes(task.rss_bytes) },
      { name: "GPUs", value: (task) => (task.gpus || []).join(", ") || "none" },
      { name: "heard", num: true, value: (task) => (task.heartbeat_time ? `${Math.max(0, now() - task.heartbeat_time).toFixed(0)} s ago` : "–") },
      { name: "end", value: (task) => task.cause || "" },
    ], "Tasks");
  }

  hostTable() {
    const drain = (host) => {
      const undo = ["drained", "quarantined", "stuck"].includes(host.state), verb = undo ? "undrain" : "drain";
      const what = undo ? "It may be given tasks again." : "Its tasks move to another host at the next verified checkpoint, or at once where none is kept.";
      return orch.h("button", { type: "button", onclick: () => this.ask(`${verb} ${host.host}?`, what, verb, { host: host.host }) }, `${verb}…`);
    };
    const columns = [
      { name: "host", value: (host) => host.host },
      { name: "state", value: (host) => host.state },
      { name: "tasks", value: (host) => (host.tasks || []).join(", ") || "none" },
      { name: "CPU", num: true, value: (host) => orch.percent(host.cpu_percent) },
      { name: "memory", num: true, value: (host) => orch.percent(host.memory_percent) },
      { name: "GPUs", value: (host) => gauges(host.gpus || []), key: (host) => host.gpus },
      { name: "heard", num: true, value: (host) => (host.heard_time ? `${Math.max(0, now() - host.heard_time).toFixed(0)} s ago` : "–") },
      { name: "remark", class: "wrap", value: (host) => host.problem || host.reason || host.warning || "" },
    ];
    if (orch.actions) columns.push({ name: "action", value: drain, key: (host) => host.state });
    return new orch.Table(columns, "Hosts");
  }

  // ------------------------------------------------ what is asked for

  showTime() {
    const { told } = this;
    orch.text(this.goodput, goodputText(told.goodput));
    orch.goodputBar(this.bar, told.goodput);
    const spent = { kept: told.goodput?.kept_s, ...told.goodput?.badput };
    orch.put(this.legend, orch.CLASSES.filter(([name]) => spent[name] > 0.05).map(([name, state, words]) => orch.h("button", {
      type: "button", "aria-pressed": String(this.timeline.highlight === state), title: "Mark it in the timeline",
      onclick: () => { this.timeline.highlight = this.timeline.highlight === state ? null : state; this.showTime(); },
    }, orch.swatch(state), `${words} ${orch.duration(spent[name])}`)));
    if (lostText(told.goodput)) this.legend.append(orch.h("span", {}, lostText(told.goodput)));
    if (told.goodput && !told.goodput.final) this.legend.append(orch.h("span", { class: "dim" }, "so far"));
    if (told.begin === null) return;
    this.timeline.show(told, this.causes, this.window, { checkpoints: this.inventory?.checkpoints, faults: this.events.filter((event) => event.kind === "chaos") });
    const set = (label, from, key) => orch.h("button", { type: "button", "aria-pressed": String((orch.route().query.from || "") === (from || "")), title: key, onclick: () => orch.go(orch.route().parts, { ...orch.route().query, from, to: null }) }, label);
    orch.put(this.range, set("all", null, "0"), set("1 h", "-1h"), set("6 h", "-6h"), orch.h("span", { class: "dim" }, "drag, pinch or Ctrl-wheel to zoom; keys: w s zoom, a d pan, n p first causes, 0 all"));
    this.showTimelineTable();
  }

  showTimelineTable() {
    const { told } = this;
    const open = this.timelineTable.open;
    const table = new orch.Table([
      { name: "generation", num: true, value: (row) => row.generation },
      { name: "what", value: (row) => orch.STATES[row.state]?.word || row.state },
      { name: "from", value: (row) => orch.time(told.begin + row.from, { date: true }) },
      { name: "for", num: true, value: (row) => orch.duration(row.to - row.from) },
      { name: "steps", value: (row) => (["training", "lost"].includes(row.state) ? `from ${row.one.resumed_from ?? 0}, kept to ${row.one.kept_to ?? "–"}, reached ${row.one.last_step ?? "–"}` : "") },
    ], "Timeline");
    const rows = told.generations.flatMap((one) => one.spans.map(([state, from, to], i) => ({ generation: one.generation, state, from, to, one, i })));
    table.show(rows.slice(-300), (row) => `${row.generation}/${row.i}`);
    const cut = [told.cut ? `${told.cut} older generations are not shown` : "", rows.length > 300 ? `${rows.length - 300} older spans are not listed` : ""].filter(Boolean).join("; ");
    orch.put(this.timelineTable, orch.h("summary", {}, "As a table"), cut && orch.h("p", {}, cut), table.element);
    this.timelineTable.open = open;
  }

  async showPlots() {
    const all = orch.plotNames(this.told.series);
    const byStep = orch.setting("x") !== "time";
    const wanted = (orch.route().query.plots || "").split(",").filter(Boolean);
    const names = [...new Set([...all.slice(0, orch.PLOTS_MAX), ...wanted])].filter((name) => all.includes(name));
    const asked = names.flatMap((name) => [name, ...(this.told.series.some((one) => one.name === `val_${name}`) ? [`val_${name}`] : [])]);
    const [from, to] = (!byStep && this.window) || [];
    const { series } = await orch.get(this.id, "series", { names: asked.map((name) => orch.named({ name })).join(","), x: byStep ? "step" : "time", from, to, buckets: 600 });
    const kept = Object.fromEntries(this.told.generations.filter((one) => !one.at_risk).map((one) => [one.generation, one.kept_to]));
    const log = orch.setting("log") === "yes";
    const key = JSON.stringify([names, byStep, log]);
    if (key !== this.plotKey) {
      this.plotKey = key;
      for (const plot of this.plots.values()) plot.destroy();
      this.plots = new Map(names.map((name) => [name, new orch.Plot(name, { byStep, log: log && name !== "steps_per_s" })]));
      orch.put(this.plotArea, [...this.plots.values()].map((plot) => plot.element));
    }
    const marks = this.marks();
    for (const [name, plot] of this.plots) plot.show(series.filter((line) => line.name === name || line.name === `val_${name}`), kept, this.window, marks);
    if (this.useArea) this.showUse();
    this.plotTools(all, names, byStep, log);
    if (!names.length) orch.put(this.plotArea, orch.h("p", { class: "dim" }, "Nothing measured yet. `runtime.report(step, loss=…)` and Keras's fit tell what to plot."));
  }

  plotTools(all, names, byStep, log) {
    const set = (name, value, words, on) => orch.h("button", { type: "button", "aria-pressed": String(on), onclick: () => { orch.setting(name, value); this.showPlots(); } }, words);
    const rest = all.filter((name) => !names.includes(name));
    const pick = rest.length ? orch.h("select", { "aria-label": "Another plot", onchange: (event) => { const { parts, query } = orch.route(); orch.go(parts, { ...query, plots: [query.plots, event.target.value].filter(Boolean).join(",") }, true); this.showPlots(); } },
      orch.h("option", { value: "" }, `${rest.length} more…`), rest.map((name) => orch.h("option", { value: name }, name))) : null;
    orch.put(this.moreArea, set("x", byStep ? "time" : "step", "over time", !byStep), set("log", log ? "no" : "yes", "log y", log), pick);
    this.moreTasks ??= orch.h("button", { type: "button", "aria-expanded": "false", onclick: () => this.toggleUse() }, "What tasks, hosts and GPUs use");
    if (this.told.series.some((one) => one.task)) this.moreArea.append(this.moreTasks);
  }

  // Where checkpoints were verified and tasks failed first: [Unix time, step].
  marks() {
    const { told } = this, of = new Map(told.generations.map((one) => [one.generation, one]));
    return { checkpoints: told.checkpoints.map(([at, step]) => [told.begin + at, step]), causes: this.causes.map((cause) => [cause.time, of.get(cause.generation)?.last_step ?? null]) };
  }

  toggleUse() {
    const shown = !this.useArea;
    this.moreTasks.setAttribute("aria-expanded", String(shown));
    if (!shown) { for (const plot of this.uses.values()) plot.destroy(); this.uses.clear(); this.useArea.remove(); this.useArea = null; return; }
    this.useArea = orch.h("div", { class: "plots" });
    this.moreArea.after(this.useArea);
    this.showUse();
  }

  // What tasks, hosts and GPUs use, over the time: a line for each, and of more than a dozen what most of them do.
  async showUse() {
    const families = new Map();
    for (const one of this.told.series.filter((each) => each.task)) {
      const [of, name] = orch.family(one), key = `${of}/${name}`;
      if (!families.has(key)) families.set(key, { of, name, members: [] });
      families.get(key).members.push(one);
    }
    const [from, to] = this.window || [];
    for (const [key, { of, name, members }] of families) {
      if (!this.useArea) return;
      if (!this.uses.has(key)) {
        this.uses.set(key, new orch.Plot(name, { byStep: false, title: `${orch.TITLES[name] || name} of ${orch.FAMILIES[of]}` }));
        this.useArea.append(this.uses.get(key).element);
      }
      const plot = this.uses.get(key);
      if (members.length > orch.LINES_MAX) { plot.showBand(await orch.get(this.id, "band", { of, name, from, to, buckets: 300 }), this.window); continue; }
      const { series } = await orch.get(this.id, "series", { names: members.map(orch.named).join(","), x: "time", from, to, buckets: 300 });
      plot.show(series.map((line) => ({ ...line, task: of === "gpu" ? `${line.task} GPU ${/^gpu(\d+)/.exec(line.name)[1]}` : line.task })), {}, this.window, this.marks());
    }
  }

  // Which checkpoints there are: the directory is asked, for what was verified once may have been removed since.
  async look(again) {
    const run = this.run, key = JSON.stringify([run?.checkpoint?.path, run?.checkpoint?.global_step, run?.generation, run?.phase]);
    if (!again && (key === this.lookedAt || Date.now() - (this.lookedTime || 0) < 10000)) return;
    [this.lookedAt, this.lookedTime] = [key, Date.now()];
    try {
      const found = await orch.get(this.id, "checkpoints");
      this.inventory = found.checkpoints ? found : { error: "this report was made where the directory could not be asked" };
    } catch (error) { this.inventory = { error: error.message }; }
    if (this.told) { this.showTime(); this.showCheckpoints(); }
  }

  showWhy() {
    const rows = this.causes.slice().reverse();
    orch.memo(this.whyArea, [rows.length, rows[0], orch.setting("zone")], () => orch.put(this.whyArea, rows.length ? rows.slice(0, 50).map((cause) => orch.h("details", {},
      orch.h("summary", {}, `generation ${cause.generation}: ${cause.sentence}`),
      orch.h("p", {}, `${orch.time(cause.time, { date: true })}${cause.means ? ` ${cause.means}` : ""}`), cause.done && orch.h("p", {}, `→ ${cause.done}`), cause.cost && orch.h("p", {}, cause.cost),
      orch.h("pre", { class: "doc", tabindex: "0" }, (cause.last_lines || []).join("\n") || "no last lines"))) : orch.h("p", { class: "dim" }, "No failure is recorded.")));
    this.showCheckpoints();
  }

  showCheckpoints() {
    const { inventory } = this, active = !ENDED.includes(this.run?.phase);
    const there = (inventory?.checkpoints || []).filter((one, _, all) => !one.given || !all.some((other) => !other.given && other.global_step === one.global_step));
    const told = this.told.checkpoints.slice(-12).reverse();
    orch.memo(this.checkpointArea, [inventory, told, orch.setting("zone"), orch.actions, active], () => {
      if (!inventory?.checkpoints) {
        orch.put(this.checkpointArea, orch.h("p", {}, told.map(([at, step]) => `${step === null ? "unknown step" : `step ${orch.count(step)}`} ✓ ${orch.time(this.told.begin + at)}`).join(" · ") || orch.h("span", { class: "dim" }, "None was verified.")),
          told.length && orch.h("p", { class: "dim" }, inventory ? `These were verified. Which of them are still there is not known: ${inventory.error}` : "These were verified; the directory is being looked at…"));
        return;
      }
      const table = new orch.Table([
        { name: "step", num: true, value: (one) => (one.global_step === null ? "unknown" : orch.count(one.global_step)) },
        { name: "generation", num: true, value: (one) => one.generation ?? "–" },
        { name: "saved", value: (one) => orch.time(one.saved_at, { date: true }) },
        { name: "size", num: true, value: (one) => orch.bytes(one.bytes) },
        { name: "state", class: "wrap", value: (one) => [one.writing ? "is being written" : one.whole === false ? `✕ ${one.why || "broken"}` : one.verified_at ? "✓ verified" : "not read yet", one.pinned ? "◆ pinned" : "", one.set_aside ? "set aside" : ""].filter(Boolean).join(", ") },
        ...(orch.actions ? [{ name: "action", value: (one) => (one.whole === false || one.writing ? [] : this.backTo(one, active)), key: (one) => [one.name, one.whole, one.writing, active] }] : []),
      ], "Checkpoints");
      const newest = there.slice().sort((a, b) => b.saved_at - a.saved_at);
      table.show(newest.slice(0, 50), (one) => one.name);
      orch.put(this.checkpointArea, newest.length ? table.element : orch.h("p", { class: "dim" }, "None is there."), newest.length > 50 && orch.h("p", { class: "dim" }, `${newest.length - 50} older ones are not shown; \`orch ckpt ls\` lists all.`));
    });
  }

  showEvents() { this.eventTable.show(this.events.slice(-200).reverse(), (event) => event.seq); }

  happened(event) { if (event.run === this.id && !this.events.some((one) => one.seq === event.seq)) { this.events.push(event); this.showEvents(); } }

  // The log of a task at a time; where the time is that of a failure, its end.
  openLog(task, span, at) {
    orch.go(["r", this.id, "logs"], { task, generation: span.generation || null, until: at ? at.toFixed(1) : null });
  }

  key(name) {
    const keys = { w: () => this.timeline.zoom(0.6), s: () => this.timeline.zoom(1.6), a: () => this.timeline.pan(-0.3), d: () => this.timeline.pan(0.3),
      0: () => orch.zoomTo(null), n: () => this.timeline.step(1), p: () => this.timeline.step(-1), N: () => this.timeline.step(-1), l: () => orch.go(["r", this.id, "logs"]), i: () => orch.go(["r", this.id, "plan"]) };
    if (keys[name] && this.told) keys[name]();
  }

  routed() { if (this.told) { this.showTime(); this.showPlots(); } }

  destroy() { clearInterval(this.timer); this.useArea = orch.timeline = null; for (const plot of [...this.plots.values(), ...this.uses.values()]) plot.destroy(); }
};

// ---------------------------------------------------------------- #/r/RUN/logs

orch.LogsView = class {
  constructor(run, query) {
    this.id = run;
    const set = (name) => (event) => orch.go(["r", run, "logs"], { ...orch.route().query, [name]: event.target.value, at: null });
    const differs = query.differs === "yes";
    const tasks = Object.keys(orch.state.runs[run]?.tasks || {});
    if (query.task && !tasks.includes(query.task)) tasks.push(query.task);
    const option = (value, words, chosen) => orch.h("option", { value, selected: chosen === value }, words);
    this.element = orch.h("div", {}, orch.h("h1", {}, "Logs ", orch.h("small", {}, run)),
      orch.h("div", { class: "tools" },
        orch.h("select", { "aria-label": "Task", onchange: set("task") }, option("", "all tasks", query.task || ""), tasks.map((task) => option(task, task, query.task))),
        orch.h("select", { "aria-label": "Level", onchange: set("level") }, option("", "all levels", query.level || ""), option("warning", "warnings and errors", query.level), option("error", "errors", query.level)),
        orch.h("input", { type: "number", min: "1", placeholder: "generation", "aria-label": "Generation", value: query.generation || null, onchange: set("generation") }),
        orch.h("input", { type: "search", id: "find", placeholder: "text (/)", "aria-label": "Text to find", value: query.q || null, onchange: set("q") }),
        orch.h("button", { type: "button", "aria-pressed": String(orch.setting("fold") !== "no"), onclick: (event) => {
          orch.setting("fold", orch.setting("fold") === "no" ? "yes" : "no");
          this.logs.fold = orch.setting("fold") !== "no";
          event.target.setAttribute("aria-pressed", String(this.logs.fold));
          this.logs.render();
        } }, "fold equal lines"),
        orch.h("button", { type: "button", "aria-pressed": String(differs), title: "Lines that at most half of the tasks have, numbers aside", onclick: () => orch.go(["r", run, "logs"], { ...orch.route().query, differs: differs ? null : "yes", at: null }) }, "only what differs"),
        orch.report ? null : orch.h("button", { type: "button", title: "All lines of these tasks and this generation, without the other filters", onclick: (event) => this.download(event.target) }, "download whole")));
    this.start(run, query);
  }

  // The browser saves it as it comes, without the page holding it. A link cannot carry our key, so it has a ticket.
  async download(button) {
    try {
      const { task, generation } = orch.route().query;
      const { ticket } = await orch.get(this.id, "ticket", { task, generation });
      const link = orch.h("a", { href: `/download/${encodeURIComponent(ticket)}`, download: "" });
      document.body.append(link);
      link.click();
      link.remove();
    } catch (error) { orch.text(button, error.message); }
  }

  async start(run, query) {
    const why = await orch.get(run, "why").catch(() => ({}));
    this.logs = new orch.Logs(run, query, why.first_causes || []);
    if (this.over) this.logs.destroy(); else this.element.append(this.logs.element);
  }

  update() {}

  key(name) { if (name === "/") document.getElementById("find").focus(); if (name === "G") this.logs?.follow(); }

  destroy() { this.over = true; this.logs?.destroy(); }
};

// ---------------------------------------------------------------- #/r/RUN/plan

orch.PlanView = class {
  constructor(run) {
    this.area = orch.h("div", {}, orch.h("p", { class: "dim" }, "Loading…"));
    this.element = orch.h("div", {}, orch.h("h1", {}, "Plan ", orch.h("small", {}, run)), this.area);
    orch.get(run, "plan").then((plan) => this.show(plan), (error) => orch.put(this.area, orch.h("p", {}, error.message)));
  }

  show(plan) {
    const pre = (document) => orch.h("pre", { class: "doc", tabindex: "0" }, typeof document === "string" ? document : JSON.stringify(document, null, 2));
    orch.put(this.area, orch.h("p", {}, `${plan.strategy}, workdir ${plan.workdir}, checkpoints ${plan.checkpoint_dir || "none"}; ports are those of a first generation if all are free`),
      plan.tasks.map((task) => orch.h("details", { open: plan.tasks.length <= 2 }, orch.h("summary", {}, `${task.task} on ${task.host}, ${task.address}`),
        pre(task.command.join(" ")), task.tf_config && pre(task.tf_config), pre(Object.entries(task.env).filter(([name]) => name !== "TF_CONFIG").map(([name, value]) => `${name}=${value}`).sort().join("\n")))),
      orch.h("details", {}, orch.h("summary", {}, "The whole plan"), pre(plan)));
  }

  update() {}

  destroy() {}
};

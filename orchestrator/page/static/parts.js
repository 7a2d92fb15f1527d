"use strict";
// What several views are made of: words for a run, tables, gauges. A view has `element`, `update()` for what the stream
// told, and `destroy()`.

const TONES = { RUNNING: "good", SUCCEEDED: "good", FAILED: "bad", STOPPING: "warn", BACKOFF: "warn", UNREACHABLE: "bad", EXITED: "dim", LOST: "bad" };
const GLYPHS = { PENDING: "◌", RENDEZVOUS: "◔", RUNNING: "▶", STOPPING: "■", BACKOFF: "◷", SUCCEEDED: "✓", FAILED: "✕", KILLED: "⊘" };
const ENDED = ["SUCCEEDED", "FAILED", "KILLED"];

orch.phase = (phase) => orch.h("span", { class: `phase ${TONES[phase] || ""}` }, `${GLYPHS[phase] || "●"} ${phase}`);
const ago = (at) => { const s = Math.max(0, now() - at); return `${s < 60 ? `${s.toFixed(0)} s` : orch.duration(s)} ago`; };
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

// Why a run is as it is, and what comes next. Where all is well the server says no more than its step.
orch.sentence = (run) => {
  if (run.reason_rest) return run.reason_rest;
  if (run.phase !== "RUNNING" || run.reason_begins_with !== "global_step") return run.reason || "";
  const pace = run.steps_per_s ? `It trains at ${orch.number(Number(run.steps_per_s.toPrecision(3)))} steps/s` : "It trains";
  const end = run.eta_s ? ` and should end at ${orch.time(now() + run.eta_s, { date: run.eta_s > 43200 }).replace(/:\d\d$/, "")}` : "";
  const saved = run.checkpoint?.global_step;
  return `${pace}${end}. ${saved ? `After a failure it would resume from step ${orch.count(saved)}.` : "No checkpoint is verified yet: after a failure it would start again."}`;
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
    const wanted = new Set(keys);
    for (const [key, row] of this.rows) if (!wanted.has(key)) { row.remove(); this.rows.delete(key); }
    items.forEach((item, i) => {
      const key = keys[i];
      if (!this.rows.has(key)) this.rows.set(key, orch.h("tr", {}, this.columns.map((column) => orch.h("td", { class: column.class || (column.num ? "num" : null), "data-name": column.name }))));
      const row = this.rows.get(key);
      if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] || null);
      this.columns.forEach((column, c) => {
        const cell = row.children[c];
        // What has elements is made again only where its key is another: there may be hundreds of cells, each second.
        if (column.key) orch.memo(cell, [column.key(item)], () => orch.put(cell, column.value(item)));
        else orch.text(cell, column.value(item) ?? "–");
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

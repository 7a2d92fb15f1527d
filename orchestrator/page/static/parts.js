// What several views are made of: words for a run, tables, gauges. A view has `element`, `update()` for what the stream
// told, and `destroy()`.

import {
  bytesText,
  countText,
  durationText,
  h,
  linkTo,
  memo,
  numberText,
  page,
  percentText,
  put,
  report,
  setText,
  timeText,
} from "./base.js";
import { MEASURES } from "./measures.js";
import { colourOf, penOf } from "./timeline.js";

const TONES = {
  RUNNING: "good",
  SUCCEEDED: "good",
  FAILED: "bad",
  STOPPING: "warn",
  BACKOFF: "warn",
  UNREACHABLE: "bad",
  EXITED: "dim",
  LOST: "bad",
};
const GLYPHS = {
  QUEUED: "⋯",
  PENDING: "◌",
  RENDEZVOUS: "◔",
  RUNNING: "▶",
  STOPPING: "■",
  BACKOFF: "◷",
  SUCCEEDED: "✓",
  FAILED: "✕",
  KILLED: "⊘",
};
export const ENDED = ["SUCCEEDED", "FAILED", "KILLED"];

export const phaseMark = (phase) => {
  const tone = isStale() && !ENDED.includes(phase) ? "dim" : TONES[phase] || "";
  return h("span", { class: `phase ${tone}` }, `${GLYPHS[phase] || "●"} ${phase}`);
};
// Which metrics are no numbers: training that has lost its way is said first.
export const nonfiniteWords = (run) => {
  const broken = Object.entries(run.nonfinite || {});
  const words = broken.map(
    ([name, odd]) => `${name} is ${odd.value} since step ${countText(odd.global_step)}`,
  );
  return words.length ? `✕ ${words.join(", ")}` : "";
};
// What a fault would cost a run that goes on, as `orch status` says it too.
export const costsOfAFault = ({ phase, fault_costs: costs }) => {
  if (!costs || ENDED.includes(phase)) return "";
  const { kind, why } = costs;
  if (kind === "everything") return `A fault costs: everything since step 0: ${why}`;
  if (kind === "nothing") return `A fault costs: nothing (${why})`;
  if (why.startsWith("at most ")) return `A fault costs: ${why} (since the last save)`;
  return `A fault costs: what was trained since the last save (${why})`;
};
export const ago = (at) => {
  const s = Math.max(0, now() - at);
  return `${s < 60 ? `${s.toFixed(0)} s` : durationText(s)} ago`;
};
// The time for which what is shown is known: while nobody tells anything new, no age and no elapsed time counts on.
export const now = () => {
  if (report) return report.made;
  return page.state.away_since || (page.isCut ? page.heardAt : Date.now() / 1000);
};
export const isStale = () => Boolean(!report && (page.state.away_since || page.isCut));

export const progressParts = (run) => {
  const [done, total] = [run.global_step, run.steps_total];
  const parts = [];
  if (total && done !== null) {
    const part = Math.min(1, done / total);
    parts.push(
      h("progress", { max: "1", value: String(part), "aria-label": "Steps done" }),
      h("span", {}, `${countText(done)} / ${countText(total)} (${Math.floor(part * 100)}%)`),
    );
  } else if (done !== null && done !== undefined) parts.push(h("span", {}, `step ${countText(done)}`));
  if (run.training_epochs && run.training_epoch !== null)
    parts.push(h("span", {}, `epoch ${run.training_epoch + 1}/${run.training_epochs}`));
  if (run.eta_s !== null && run.eta_s !== undefined && !isStale())
    parts.push(h("span", {}, `ETA ${durationText(run.eta_s)}`));
  if (run.started_at)
    parts.push(
      h(
        "span",
        { class: "dim" },
        run.ended_at
          ? `${durationText(run.ended_at - run.started_at)} in all`
          : `${durationText(now() - run.started_at)} so far`,
      ),
    );
  return parts;
};

// Why a run is as it is, and what comes next. Where all is well the server says no more than its step.
// `listed`: the newest step in the directory that nobody has verified.
export const runSentence = (run, listed) => {
  if (isStale() && !ENDED.includes(run.phase))
    return `This was known at ${timeText(now(), { date: true })}; whether it is still so is not known.`;
  if (run.reason_rest) return run.reason_rest;
  if (run.phase !== "RUNNING" || run.reason_begins_with !== "global_step") return run.reason || "";
  const pace = run.steps_per_s
    ? `It trains at ${numberText(Number(run.steps_per_s.toPrecision(3)))} steps/s`
    : "It trains";
  const end = run.eta_s
    ? ` and should end at ${timeText(now() + run.eta_s, { date: run.eta_s > 43200 }).replace(/:\d\d$/, "")}`
    : "";
  const saved = run.checkpoint?.global_step;
  const written = Math.max(run.saving?.saved_step || 0, listed || 0);
  const newer = written > (saved || 0) ? ` Step ${countText(written)} is written, and not verified yet.` : "";
  const after = saved
    ? `Verified is step ${countText(saved)}: after a failure it resumes from there or later.`
    : "No checkpoint is verified yet: after a failure it may start again.";
  return `${pace}${end}. ${after}${newer}`;
};

export const goodputText = (account) =>
  account?.value === null || account?.value === undefined
    ? "–"
    : `${(account.value * 100).toFixed(account.value > 0.995 ? 0 : 1)}%`;

const IN_UNIT = {
  percent: percentText,
  bytes: bytesText,
  per_s: numberText,
  count: countText,
  celsius: numberText,
  watts: numberText,
  text: (value) => value ?? "–",
  flag: (value) => (value === null ? "–" : value ? "yes" : "no"),
};

// The columns of the numbers that are measured of tasks or hosts. `remark` adds a word to one of them.
export const measuredColumns = (of, remark = () => "") =>
  MEASURES[of].filter((row) => row.in_tables).map(({ name, label, unit }) => ({
    name: label,
    num: unit !== "text" && unit !== "flag",
    value: (each) => IN_UNIT[unit](each[name]) + remark(each, name),
    by: (each) => each[name],
  }));

// A text that may be very long: its first words, and the rest where one asks for it.
const LONG = 280;
export const longText = (text) => {
  const words = String(text || "");
  if (words.length <= LONG + 40) return words;
  const cut = words.slice(0, LONG).replace(/\s+\S*$/, "");
  const rest = words.slice(cut.length);
  const more = h("span", { class: "dim" }, `… ${countText(rest.length)} characters more`);
  const ontoggle = ({ target }) => {
    more.hidden = target.open;
  };
  return h("details", { class: "long", ontoggle }, h("summary", {}, cut, more), rest);
};

// A table that changes cell by cell, so that nothing under the pointer or the focus goes away.
export class Table {
  // `rowClass`: of an item the class of its row, for what is to be seen first. A column with `by` can be sorted by:
  // `sorted` returns items in the order that was chosen, and `reorder` is called when another one is.
  constructor(columns, label, rowClass = () => "", reorder = null) {
    this.columns = columns;
    this.reorder = reorder;
    this.rowClass = rowClass;
    this.rows = new Map();
    this.body = h("tbody");
    this.heads = columns.map((column) =>
      h(
        "th",
        { class: column.num ? "num" : column.class === "action" ? "action" : null, scope: "col" },
        column.by
          ? h(
              "button",
              {
                type: "button",
                class: "sort",
                title: "Sort by it; again: the other way; a third time: as it was",
                onclick: () => this.sortBy(column),
              },
              column.name,
            )
          : column.name,
      ),
    );
    this.element = h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, a table` },
      h(
        "table",
        { class: "cards" },
        h("caption", { class: "hidden" }, label),
        h("thead", {}, h("tr", {}, this.heads)),
        this.body,
      ),
    );
  }

  // Sort by the column of this name; `-NAME`: the largest first. Nothing is called.
  orderBy(text) {
    const column = this.columns.find((each) => each.by && each.name === text.replace(/^-/, ""));
    if (column) this.order = { column, sign: text.startsWith("-") ? -1 : 1, turns: 1 };
    this.mark();
  }

  mark() {
    this.heads.forEach((head, i) => {
      const isChosen = this.order?.column === this.columns[i];
      const word = this.order?.sign > 0 ? "ascending" : "descending";
      if (isChosen) head.setAttribute("aria-sort", word);
      else head.removeAttribute("aria-sort");
    });
  }

  // Largest first, then smallest first, then as it was.
  sortBy(column) {
    if (this.order?.column !== column) this.order = { column, sign: column.num ? -1 : 1, turns: 1 };
    else if (this.order.turns === 1) this.order = { column, sign: -this.order.sign, turns: 2 };
    else this.order = null;
    this.mark();
    this.reorder();
  }

  sorted(items) {
    if (!this.order) return items;
    const { column, sign } = this.order;
    const isKnown = (value) => value !== null && value !== undefined;
    return items
      .map((item) => [column.by(item), item])
      .sort(([a], [b]) => {
        if (!isKnown(a) || !isKnown(b)) return isKnown(b) - isKnown(a);
        return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
      })
      .map(([, item]) => item);
  }

  show(items, keyOf) {
    const keys = items.map(keyOf);
    const wanted = new Set(keys);
    for (const [key, row] of this.rows)
      if (!wanted.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    items.forEach((item, i) => {
      const key = keys[i];
      if (!this.rows.has(key))
        this.rows.set(
          key,
          h(
            "tr",
            {},
            this.columns.map((column) =>
              h("td", { class: column.class || (column.num ? "num" : null), "data-name": column.name }),
            ),
          ),
        );
      const row = this.rows.get(key);
      row.className = this.rowClass(item);
      if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] || null);
      this.columns.forEach((column, c) => {
        const cell = row.children[c];
        // What has elements is made again only where its key is another: there may be hundreds of cells, each second.
        if (column.key) memo(cell, [column.key(item)], () => put(cell, column.value(item)));
        else setText(cell, column.value(item) ?? "–");
      });
    });
  }
}

// What was trained again, in hours of one GPU: what it cost.
export const lostText = (account) =>
  account?.lost_gpu_hours ? `${numberText(account.lost_gpu_hours)} GPU-h trained again` : "";

// A host's GPUs as small bars: full is busy, the tick is its memory. The words beside it say what they draw.
const gaugeBars = (canvas, gpus) => {
  const drawing = penOf(canvas, 26);
  if (!drawing) return;
  const { pen, width } = drawing,
    wide = Math.min(14, width / Math.max(1, gpus.length));
  const style = getComputedStyle(document.documentElement);
  gpus.forEach(([, used, memory], i) => {
    const x = i * wide;
    pen.strokeStyle = style.getPropertyValue("--dim");
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, 0.5, wide - 3, 25);
    pen.fillStyle = colourOf("training");
    if (used) pen.fillRect(x + 1, 25 - (used / 100) * 24, wide - 4, (used / 100) * 24);
    if (memory !== null) {
      pen.fillStyle = style.getPropertyValue("--fg");
      pen.fillRect(x - 1, 25 - (memory / 100) * 24, wide, 2);
    }
  });
};
export const hostCard = (name, host) => {
  const known = host.gpus.filter(([, used]) => used !== null);
  const mean = known.length ? known.reduce((sum, [, used]) => sum + used, 0) / known.length : null;
  const watts = host.gpus.reduce((sum, gpu) => sum + (gpu[3] || 0), 0);
  const words = host.gpus.length
    ? [
        `${host.gpus.length} GPU${host.gpus.length > 1 ? "s" : ""}`,
        mean === null ? "" : percentText(mean),
        watts ? `${numberText(watts)} W` : "",
      ]
        .filter(Boolean)
        .join(" ")
    : `CPU ${percentText(host.cpu_percent)}, memory ${percentText(host.memory_percent)}`;
  const bars = host.gpus.length
    ? h("canvas", {
        role: "img",
        "aria-label": host.gpus
          .map(
            ([index, used, memory, power]) =>
              `GPU ${index}: ${percentText(used)}, memory ${percentText(memory)}, ${power ?? "–"} W`,
          )
          .join("; "),
      })
    : null;
  if (bars) new ResizeObserver(() => gaugeBars(bars, host.gpus)).observe(bars);
  const isFine = ["ready", "spare"].includes(host.state);
  return h(
    "div",
    { class: `host${isFine ? "" : " unfit"}`, title: host.reason || null },
    h("strong", {}, name),
    h("span", { class: isFine ? "dim" : "slow" }, host.state),
    bars,
    h("span", {}, words),
    h(
      "span",
      { class: "dim" },
      host.runs.map((run, i) => [i ? ", " : "", h("a", { href: linkTo(["r", run]) }, run)]),
    ),
  );
};

// Of each GPU a small bar with its words: one that waits shows 100% at low power.
export const gauges = (gpus) =>
  gpus.length
    ? gpus.map((gpu) =>
        h(
          "div",
          { class: "gauge" },
          h("span", {}, `${gpu.index} `),
          h("progress", {
            max: "100",
            value: String(gpu.utilization_percent ?? 0),
            "aria-label": `Use of GPU ${gpu.index}`,
          }),
          h(
            "span",
            {},
            [
              "",
              percentText(gpu.utilization_percent),
              gpu.power_w === null ? "" : `${Math.round(gpu.power_w)} W`,
              `${bytesText(gpu.memory_used_bytes)}/${bytesText(gpu.memory_total_bytes)}`,
              gpu.temperature_c === null ? "" : `${Math.round(gpu.temperature_c)} °C`,
            ].join(" "),
          ),
        ),
      )
    : ["–"];

// A task or host that is not as it should be: it stands above the others, which keep their order.
const TROUBLE = [
  "FAILED",
  "LOST",
  "UNREACHABLE",
  "STALLED",
  "lost",
  "unreachable",
  "quarantined",
  "stuck",
  "unmounted",
];
const ENDED_WELL = ["finished", "ordered"];
export const isInTrouble = (one) =>
  TROUBLE.includes(one.phase || one.state) ||
  Boolean(one.problem || (one.cause && !ENDED_WELL.includes(one.cause)));
// Of tasks or hosts those whose words hold a text, those in trouble first, then those that are slow.
export const worstFirst = (items, wanted, wordsOf, isSlow = () => false) => {
  const text = wanted.trim().toLowerCase();
  const matching = text ? items.filter((item) => wordsOf(item).join(" ").toLowerCase().includes(text)) : items;
  const rankOf = (item) => (isInTrouble(item) ? 0 : isSlow(item) ? 1 : 2);
  return [0, 1, 2].flatMap((rank) => matching.filter((item) => rankOf(item) === rank));
};
// By how many percent tasks are slower than the middle one, where that is a quarter or more.
const SLOW_PERCENT = 25;
export const slowTasks = (tasks) => {
  const paces = tasks.map((task) => task.steps_per_s).filter((pace) => pace > 0);
  const middle = paces.sort((a, b) => a - b)[Math.floor(paces.length / 2)];
  const less = ({ task, steps_per_s: pace }) => [task, pace > 0 ? Math.round((1 - pace / middle) * 100) : 0];
  return new Map(paces.length < 3 ? [] : tasks.map(less).filter(([, percent]) => percent >= SLOW_PERCENT));
};
// worker:0, worker:1, worker:2 → worker:0…2
export const rangesText = (names) => {
  const ranges = [];
  for (const name of names) {
    const [type, index] = [name.replace(/\d+$/, ""), Number(/\d+$/.exec(name)?.[0] ?? NaN)];
    const last = ranges.at(-1);
    if (last?.type === type && last.to + 1 === index) last.to = index;
    else ranges.push({ type, from: index, to: index, name });
  }
  const textOf = ({ name, from, to }) => (to > from ? `${name}…${to}` : name);
  return ranges.map(textOf).join(", ");
};

export const section = (title, ...children) =>
  h("section", { "aria-label": title }, h("h2", {}, title), ...children);

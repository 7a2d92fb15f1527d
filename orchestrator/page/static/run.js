// #/r/RUN: why it is as it is, its plots, its time, tasks, hosts, causes, checkpoints and events.

import {
  announce,
  countText,
  durationText,
  getDocument,
  go,
  h,
  linkTo,
  memo,
  page,
  postAction,
  put,
  report,
  route,
  setText,
  setting,
  timeText,
  zoomTo,
} from "./base.js";
import {
  CLASSES,
  ROWS_MAX,
  STATES,
  Timeline,
  atRiskSeconds,
  goodputBar,
  spentByClass,
  swatch,
} from "./timeline.js";
import {
  ENDED,
  Table,
  ago,
  costsOfAFault,
  gauges,
  goodputText,
  isInTrouble,
  isStale,
  longText,
  lostText,
  measuredColumns,
  nonfiniteWords,
  now,
  phaseMark,
  progressParts,
  rangesText,
  runSentence,
  section,
  slowTasks,
  worstFirst,
} from "./parts.js";
import { drainButton, runButtons } from "./actions.js";
import { RunPlots } from "./run_plots.js";
import { Checkpoints } from "./checkpoints.js";
import { Strip } from "./strip.js";

const ROWS_AT_ONCE = { wide: 100, narrow: 8 }; // each has a dozen elements; on a phone each is a card
const FIND_FROM = 9; // from so many rows on there is a field to find one
const SECTIONS = ["Plots", "Tasks", "Hosts", "Goodput", "Timeline", "Why", "Checkpoints", "Events"];

const costText = (cost) => (/^\d/.test(cost) ? `The restart took ${cost}.` : cost);

const phaseAndStage = (task) => [
  phaseMark(task.phase),
  task.phase === "RUNNING" && task.stage && task.stage !== "training" ? `: ${task.stage}` : "",
];

export class RunView {
  constructor(run, query) {
    this.id = run;
    this.query = query;
    this.head = h("div", { class: "head" });
    this.sentence = h("div", { class: "sentence" });
    this.limit = h("p", { class: "dim" });
    this.costs = h("p", { class: "dim costs" });
    this.odd = h("p", { class: "slow", role: "status" });
    this.cause = h("div");
    this.links = h(
      "nav",
      { class: "tools", "aria-label": "Of this run" },
      report ? null : h("a", { href: linkTo(["r", run, "logs"]) }, "Logs (l)"),
      h("a", { href: linkTo(["r", run, "plan"]) }, "Plan and spec (i)"),
      report ? null : h("button", { type: "button", class: "link", onclick: () => this.tellTensorBoard() }, "Images"),
      SECTIONS.map((name) =>
        h("button", { type: "button", class: "link", onclick: () => this.goTo(name) }, name),
      ),
    );
    this.buttons = h("div", { class: "actions" });
    this.bar = h("canvas", {
      role: "img",
      "aria-label": "What the time was spent on; the words beside it say the same",
    });
    this.legend = h("div", { class: "legend" });
    this.goodput = h("strong");
    this.timeline = page.timeline = new Timeline((task, span, at) => this.openLog(task, span, at));
    this.timelineTable = h(
      "details",
      { ontoggle: () => this.showTimelineTable() },
      h("summary", {}, "As a table"),
    );
    this.plots = new RunPlots(this);
    this.checkpoints = new Checkpoints(this);
    this.range = h("div", { class: "tools" });
    this.slow = new Map();
    this.tasks = this.taskTable();
    this.hosts = this.hostTable();
    [this.findTask, this.findHost] = [this.finder("tasks"), this.finder("hosts")];
    this.strip = new Strip((task) => go(["r", run, "logs"], { task }));
    this.whyArea = h("div");
    this.events = [];
    this.eventTable = new Table(
      [
        { name: "time", value: (event) => timeText(Date.parse(event.time) / 1000, { date: true }) },
        { name: "what", value: (event) => event.kind },
        { name: "task", value: (event) => event.task || "" },
        { name: "message", class: "wrap wide", value: (event) => event.message },
      ],
      "Events",
    );
    this.element = h(
      "div",
      { class: "whole" },
      this.head,
      this.sentence,
      this.odd,
      this.limit,
      this.costs,
      this.cause,
      this.links,
      this.buttons,
      this.plots.element,
      section("Tasks", this.findTask, this.strip.element, this.tasks.element),
      section("Hosts", this.findHost, this.hosts.element),
      section("Goodput", h("div", { class: "bar" }, this.goodput, this.bar), this.legend),
      section("Timeline", this.range, this.timeline.element, this.timelineTable),
      section("Why", this.whyArea),
      section("Checkpoints", this.checkpoints.element),
      section("Events", this.eventTable.element),
    );
    this.update();
    this.load();
    this.timer = report ? null : setInterval(() => this.load(), 15000);
    new ResizeObserver(() => goodputBar(this.bar, this.account)).observe(this.bar);
  }

  get run() {
    return page.state.runs[this.id];
  }

  get window() {
    const { from, to } = route().query;
    if (from && /^-\d+[smh]$/.test(from))
      return [now() - Number(from.slice(1, -1)) * { s: 1, m: 60, h: 3600 }[from.at(-1)], now()];
    return from && to && Number(from) < Number(to) ? [Number(from), Number(to)] : null;
  }

  async load() {
    if (document.hidden && this.history) return;
    try {
      const [history, why, events] = await Promise.all(
        ["history", "why", "events"].map((what) => getDocument(this.id, what)),
      );
      if (history.goodput) history.goodput.risk_s = atRiskSeconds(history);
      this.history = history;
      this.causes = why.first_causes || [];
      this.events = events.events || [];
      this.showTime();
      this.checkpoints.refresh();
      await this.plots.show();
      this.showWhy();
      this.showEvents();
    } catch (error) {
      if (!this.history) put(this.sentence, `${error.message}${error.hint ? ` (${error.hint})` : ""}`);
    }
    this.element.dataset.loaded = "yes";
  }

  // ------------------------------------------------ what the stream tells

  update() {
    const run = this.run;
    if (!run) return;
    memo(
      this.head,
      [
        run.phase,
        run.generation,
        run.global_step,
        run.steps_total,
        run.eta_s,
        run.training_epoch,
        isStale(),
        Math.floor(now() / 2),
      ],
      () =>
        put(
          this.head,
          h("h1", {}, run.name, " ", h("small", {}, run.run_id)),
          phaseMark(run.phase),
          h("span", { class: "dim" }, `generation ${run.generation}`),
          progressParts(run),
        ),
    );
    const limit = ENDED.includes(run.phase) || isStale() ? null : run.bottleneck;
    const sentence = runSentence(run, this.checkpoints.written);
    memo(this.sentence, sentence, (element) => put(element, longText(sentence)));
    if (this.history) {
      this.checkpoints.refresh();
      memo(this.goodput, goodputText(this.account), () => this.showGoodput());
    }
    setText(this.odd, nonfiniteWords(run));
    setText(this.limit, limit ? `Limited by ${limit.sentence} (${limit.remedy}).` : "");
    setText(this.costs, costsOfAFault(run));
    const isOver =
      run.phase === "KILLED" ||
      (["RUNNING", "SUCCEEDED"].includes(run.phase) && run.first_cause?.generation < run.generation);
    memo(this.cause, [run.first_cause, run.problem, isOver], () => this.showCause(run, isOver));
    runButtons(this, run);
    if (run.phase !== this.lastPhase && this.lastPhase) {
      announce(`${run.name} is ${run.phase}`);
      this.load();
    }
    this.lastPhase = run.phase;
    const tasks = Object.values(run.tasks || {});
    this.slow = slowTasks(tasks);
    this.strip.show(tasks, this.slow);
    this.hosts.element.classList.toggle("ended", ENDED.includes(run.phase));
    this.tasks.show(this.shownOf(tasks), (task) => task.task);
    this.hosts.show(this.shownHosts(Object.values(run.hosts || {})), (host) => host.host);
    this.plots.add(run);
  }

  // A field that finds tasks or hosts by a part of what their rows say.
  finder(what) {
    const field = h("input", {
      type: "search",
      placeholder: `find ${what} by name, host or state`,
      "aria-label": `Find ${what}`,
      oninput: () => this.update(),
    });
    return h("div", { class: "tools", hidden: true }, field);
  }

  // It has no login, so a person starts it, and knows that all users of the machine can read what it serves.
  tellTensorBoard() {
    const dialog = document.getElementById("dialog");
    const line = `orch tensorboard ${this.id}`;
    const close = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close");
    const copy = h("button", { type: "button", onclick: () => navigator.clipboard?.writeText(line) }, "Copy");
    const said = h("p", { role: "status" });
    const start = async (event) => {
      event.target.disabled = true;
      setText(said, "Fetching the files, and starting it…");
      try {
        const { address } = await postAction(this.id, "tensorboard", {});
        const port = new URL(address).port;
        put(
          said,
          h("a", { href: address, target: "_blank", rel: "noopener" }, address),
          ` From another machine, first: ssh -L ${port}:127.0.0.1:${port} HEAD. It ends with the page's server.`,
        );
      } catch (error) {
        setText(said, `${error.message}${error.hint ? ` (${error.hint})` : ""}`);
        event.target.disabled = false;
      }
    };
    put(
      dialog,
      h("h2", {}, "Images and histograms"),
      h("p", {}, "TensorBoard shows what the script has written for it. In a terminal of this machine:"),
      h("pre", { class: "doc", tabindex: "0" }, line),
      h("p", { class: "dim" }, "It has no login: all users of the machine can read what it serves."),
      said,
      h(
        "div",
        { class: "actions" },
        page.actions && h("button", { type: "button", onclick: start }, "Start it"),
        copy,
        close,
      ),
    );
    dialog.showModal();
  }

  goTo(name) {
    const target = this.element.querySelector(`section[aria-label="${name}"]`);
    target.scrollIntoView();
    target.setAttribute("tabindex", "-1");
    target.focus({ preventScroll: true });
  }

  shownHosts(hosts) {
    this.findHost.hidden = hosts.length < FIND_FROM;
    const wordsOf = (host) => [host.host, host.state, ...(host.tasks || [])];
    return this.some("hosts", this.hosts, worstFirst(hosts, this.findHost.firstChild.value, wordsOf));
  }

  // Those in trouble come first, and are all there; of the others a few, until a person asks for all.
  some(what, table, worst) {
    const all = table.sorted(worst);
    this.more ??= { tasks: this.rest(), hosts: this.rest() };
    const most = ROWS_AT_ONCE[matchMedia("(max-width: 700px)").matches ? "narrow" : "wide"];
    const wrong = Math.min(ROWS_AT_ONCE.wide, worst.filter(isInTrouble).length);
    const count = this.more[what].all ? all.length : Math.max(most, wrong);
    if (count < all.length) {
      setText(this.more[what], `${count} of ${all.length} ${what} are listed. Show all`);
      if (!this.more[what].isConnected) table.element.after(this.more[what]);
    } else this.more[what].remove();
    return all.slice(0, count);
  }

  rest() {
    const button = h("button", { type: "button" });
    button.addEventListener("click", () => {
      button.all = true;
      this.update();
    });
    return button;
  }

  shownOf(tasks) {
    this.findTask.hidden = tasks.length < FIND_FROM;
    const isSlow = ({ task }) => this.slow.has(task);
    const wordsOf = (task) => [task.task, task.host, task.phase, task.cause || "", isSlow(task) ? "slow" : ""];
    const worst = worstFirst(tasks, this.findTask.firstChild.value, wordsOf, isSlow);
    return this.some("tasks", this.tasks, worst);
  }

  // A cause that is over is shown in short; the present one with all details.
  showCause(run, isOver) {
    const cause = run.first_cause;
    if (!cause && !run.problem) {
      put(this.cause);
      return;
    }
    const advice = cause?.advice ? [cause.advice].flat() : [];
    const more = [
      cause?.means && h("p", {}, cause.means),
      advice.map((each) => h("p", {}, `You can: ${typeof each === "string" ? each : JSON.stringify(each)}`)),
      run.problem?.hint && h("p", {}, `You can: ${run.problem.hint}`),
      cause?.last_lines?.length ? h("pre", {}, cause.last_lines.slice(-6).join("\n")) : null,
    ];
    put(
      this.cause,
      h(
        "section",
        { class: isOver ? "cause over" : "cause", "aria-label": "First cause" },
        h(
          isOver ? "div" : "h2",
          {},
          `✕ ${cause?.ended_time ? `${timeText(cause.ended_time)} ` : ""}`,
          longText(cause?.sentence || run.problem.message),
        ),
        !isOver && cause?.done && h("div", { class: "after" }, "→ ", longText(cause.done)),
        cause?.cost && h("p", { class: "dim" }, costText(cause.cost)),
        isOver ? h("details", {}, h("summary", {}, "what it means, and its last lines"), more) : more,
        cause?.task
          ? h(
              "p",
              {},
              h(
                "a",
                { href: linkTo(["r", this.id, "logs"], { task: cause.task, generation: cause.generation }) },
                `log of ${cause.task}`,
              ),
            )
          : null,
      ),
    );
  }

  taskTable() {
    return new Table(
      [
        {
          name: "task",
          value: (task) => h("a", { href: linkTo(["r", this.id, "logs"], { task: task.task }) }, task.task),
          key: (task) => task.task,
          by: (task) => task.task,
        },
        { name: "host", value: (task) => task.host, by: (task) => task.host },
        {
          name: "phase",
          value: phaseAndStage,
          key: (task) => [task.phase, task.stage, isStale()],
          by: (task) => task.phase,
        },
        {
          name: "step",
          num: true,
          value: (task) => countText(task.global_step),
          by: (task) => task.global_step,
        },
        ...measuredColumns("task", (task, name) => (name === "steps_per_s" ? this.slowText(task) : "")),
        { name: "GPUs", value: (task) => (task.gpus || []).join(", ") || "none" },
        {
          name: "heartbeat",
          num: true,
          value: (task) => (task.heartbeat_time ? ago(task.heartbeat_time) : "–"),
        },
        { name: "ended by", value: (task) => task.cause || "" },
      ],
      "Tasks",
      (task) => (this.hasFailed(task) ? "failed" : this.slowText(task) && "late"),
      () => this.update(),
    );
  }

  slowText({ task }) {
    return this.slow.has(task) ? ` ▼ −${this.slow.get(task)}%` : "";
  }

  // The task that ended the run, or one that is lost or failed now.
  hasFailed(task) {
    const isFirst = this.run?.phase === "FAILED" && this.run.first_cause?.task === task.task;
    return isFirst || ["FAILED", "LOST"].includes(task.phase);
  }

  hostTable() {
    const columns = [
      { name: "host", value: (host) => host.host, by: (host) => host.host },
      { name: "state", value: (host) => host.state, by: (host) => host.state },
      { name: "tasks", class: "wrap", value: (host) => rangesText(host.tasks || []) || "none" },
      ...measuredColumns("host"),
      { name: "GPUs", class: "wide", value: (host) => gauges(host.gpus || []), key: (host) => host.gpus },
      { name: "last heard", num: true, value: (host) => (host.heard_time ? ago(host.heard_time) : "–") },
      {
        name: "remark",
        class: "wrap wide",
        value: (host) => host.problem || host.reason || host.warning || "",
      },
    ];
    if (page.actions)
      columns.push({
        name: "action",
        class: "action",
        value: (host) => drainButton(this, host),
        key: (host) => [host.state, isStale()],
      });
    return new Table(
      columns,
      "Hosts",
      (host) => (isInTrouble(host) ? "failed" : ""),
      () => this.update(),
    );
  }

  // ------------------------------------------------ what is asked for

  // As the stream tells it, to all browsers alike; a history was asked for some time ago.
  get account() {
    const asked = this.history?.goodput;
    return this.run?.time_use?.badput ? { ...this.run.time_use, risk_s: asked?.risk_s } : asked;
  }

  showGoodput() {
    const { account } = this;
    setText(this.goodput, goodputText(account));
    goodputBar(this.bar, account);
    const spent = spentByClass(account);
    put(
      this.legend,
      CLASSES.filter(([name]) => spent[name] > 0.05).map(([name, state, words]) =>
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(this.timeline.highlight === state),
            title: "Mark it in the timeline",
            onclick: () => {
              this.timeline.highlight = this.timeline.highlight === state ? null : state;
              this.showTime();
            },
          },
          swatch(state),
          `${words} ${durationText(spent[name])}`,
        ),
      ),
    );
    if (lostText(account)) this.legend.append(h("span", {}, lostText(account)));
    if (account && !account.final) this.legend.append(h("span", { class: "dim" }, "so far"));
  }

  showTime() {
    const { history } = this;
    this.showGoodput();
    if (history.begin === null) return;
    const tasks = Object.keys(this.run?.tasks || {});
    this.timeline.show(history, this.causes, this.window, {
      checkpoints: this.checkpoints.inventory?.checkpoints,
      events: this.events,
      tasks: this.everyTask ? tasks : [],
    });
    const set = (label, from, key) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String((route().query.from || "") === (from || "")),
          title: key,
          onclick: () => go(route().parts, { ...route().query, from, to: null }),
        },
        label,
      );
    put(
      this.range,
      set("all", null, "0"),
      set("1 h", "-1h"),
      set("6 h", "-6h"),
      tasks.length
        ? h(
            "button",
            {
              type: "button",
              "aria-pressed": String(Boolean(this.everyTask)),
              onclick: () => {
                this.everyTask = !this.everyTask;
                this.showTime();
              },
            },
            tasks.length > 1 ? `all ${tasks.length} tasks` : "its task",
          )
        : null,
      this.everyTask && tasks.length > ROWS_MAX
        ? h("span", { class: "dim" }, `the first ${ROWS_MAX} and those that differ`)
        : null,
      h(
        "span",
        { class: "dim" },
        "Drag, pinch or Ctrl-wheel zooms. Keys: w s zoom, a d pan, n p go to first causes, 0 shows all.",
      ),
    );
    this.showTimelineTable();
  }

  showTimelineTable() {
    const { history } = this;
    // It may have hundreds of rows: they are made only where they are seen.
    if (!this.timelineTable.open || !history || history.begin === null) return;
    const table = new Table(
      [
        { name: "generation", num: true, value: (row) => row.generation },
        { name: "what", value: (row) => STATES[row.state]?.word || row.state },
        { name: "from", value: (row) => timeText(history.begin + row.from, { date: true }) },
        { name: "for", num: true, value: (row) => durationText(row.to - row.from) },
        {
          name: "steps",
          value: (row) =>
            ["training", "risk", "lost"].includes(row.state)
              ? `from ${row.one.resumed_from ?? 0}, kept to ${row.one.kept_to ?? "–"}, ` +
                `reached ${row.one.last_step ?? "–"}`
              : "",
        },
      ],
      "Timeline",
    );
    const rows = history.generations.flatMap((one) =>
      one.spans.map(([state, from, to], i) => ({ generation: one.generation, state, from, to, one, i })),
    );
    table.show(rows.slice(-300), (row) => `${row.generation}/${row.i}`);
    const cut = [
      history.cut ? `${history.cut} older generations are not shown` : "",
      rows.length > 300 ? `${rows.length - 300} older spans are not listed` : "",
    ]
      .filter(Boolean)
      .join("; ");
    this.timelineTable.replaceChildren(
      this.timelineTable.firstChild,
      ...(cut ? [h("p", {}, cut)] : []),
      table.element,
    );
  }

  showWhy() {
    const rows = this.causes.slice().reverse();
    memo(this.whyArea, [rows.length, rows[0], setting("zone")], () =>
      put(
        this.whyArea,
        rows.length
          ? rows
              .slice(0, 50)
              .map((cause) =>
                h(
                  "details",
                  {},
                  h("summary", {}, `generation ${cause.generation}: `, longText(cause.sentence)),
                  h(
                    "p",
                    {},
                    `${timeText(cause.time, { date: true })}${cause.means ? ` ${cause.means}` : ""}`,
                  ),
                  cause.done && h("p", {}, `→ ${cause.done}`),
                  cause.cost && h("p", {}, costText(cause.cost)),
                  h(
                    "pre",
                    { class: "doc", tabindex: "0" },
                    (cause.last_lines || []).join("\n") || "no last lines",
                  ),
                ),
              )
          : h("p", { class: "dim" }, "No failure is recorded."),
      ),
    );
    this.checkpoints.show();
  }

  showEvents() {
    this.eventTable.show(this.events.slice(-200).reverse(), (event) => event.seq);
  }

  happened(event) {
    if (event.run === this.id && !this.events.some((one) => one.seq === event.seq)) {
      this.events.push(event);
      this.showEvents();
    }
  }

  // The log of a task at a time; where the time is that of a failure, its end.
  openLog(task, span, at) {
    go(["r", this.id, "logs"], {
      task,
      generation: span.generation || null,
      until: at ? at.toFixed(1) : null,
    });
  }

  key(name) {
    const keys = {
      w: () => this.timeline.zoom(0.6),
      s: () => this.timeline.zoom(1.6),
      a: () => this.timeline.pan(-0.3),
      d: () => this.timeline.pan(0.3),
      0: () => zoomTo(null),
      n: () => this.timeline.step(1),
      p: () => this.timeline.step(-1),
      N: () => this.timeline.step(-1),
      l: () => go(["r", this.id, "logs"]),
      i: () => go(["r", this.id, "plan"]),
    };
    if (keys[name] && this.history) keys[name]();
  }

  routed() {
    if (this.history) {
      this.showTime();
      this.plots.show();
    }
  }

  destroy() {
    clearInterval(this.timer);
    page.timeline = null;
    this.plots.destroy();
  }
}

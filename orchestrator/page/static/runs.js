// #/: all runs, and below them the hosts of those that go on.

import {
  getDocument,
  go,
  h,
  isDark,
  linkTo,
  memo,
  numberText,
  page,
  postAction,
  put,
  route,
  setText,
  timeText,
} from "./base.js";
import { COMPARED_MAX, keptOnce, sparkline } from "./plots.js";
import {
  ENDED,
  Table,
  goodputText,
  hostCard,
  isStale,
  longText,
  lostText,
  nonfiniteWords,
  now,
  phaseMark,
  progressParts,
  runSentence,
  section,
} from "./parts.js";

const RUNS_AT_ONCE = 60; // so many more are shown whenever the end of the list comes into view
const STATE_CHOICES = { "": "all states", on: "going on", FAILED: "failed", SUCCEEDED: "succeeded", KILLED: "killed" };

// When a run began: as its record says, or, until that is read, as its id does.
const beganAt = (run) => {
  if (run.started_at) return run.started_at;
  const [, day, time] = /-(\d{8})-(\d{6})$/.exec(run.run_id) || [];
  const clock = time?.replace(/(..)(..)(..)/, "$1:$2:$3");
  return day ? Date.parse(`${day.replace(/(....)(..)(..)/, "$1-$2-$3")}T${clock}Z`) / 1000 || null : null;
};
const isOver = (run) => run.phase === null || ENDED.includes(run.phase);

export class RunsView {
  constructor() {
    this.sparks = new Map();
    this.list = h("div");
    this.chosen = [];
    this.rowsMax = RUNS_AT_ONCE;
    this.tools = h("div", { class: "tools", hidden: true });
    this.hosts = h("div");
    this.troubles = h("div", { role: "alert" });
    this.end = h("p", { class: "dim", role: "status" });
    this.more = new IntersectionObserver((entries) => {
      if (!entries.some((each) => each.isIntersecting) || this.rowsMax >= this.count) return;
      this.rowsMax += RUNS_AT_ONCE;
      this.update();
    });
    this.more.observe(this.end);
    this.seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries)
        if (isIntersecting) {
          this.seen.unobserve(target);
          this.load(target.dataset.run, target);
        }
    });
    this.search = h("input", {
      type: "search",
      "aria-label": "Find runs",
      placeholder: "name, tag, note, cause, --lr=0.1",
      value: route().query.q || "",
      oninput: ({ target }) => this.ask({ q: target.value }),
    });
    this.state = h("select", { "aria-label": "State", onchange: ({ target }) => this.ask({ state: target.value }) });
    this.tag = h("select", { "aria-label": "Tag", onchange: ({ target }) => this.ask({ tag: target.value }) });
    this.column = h("select", {
      "aria-label": "Another column",
      onchange: ({ target }) => {
        if (target.value) this.setColumns([...this.columns, target.value]);
      },
    });
    this.added = h("span");
    this.all = h("button", { type: "button", onclick: () => this.chooseAll() }, "Compare them");
    this.finding = h("div", { class: "tools" }, this.search, this.state, this.tag, this.column, this.added, this.all);
    const title = h("h1", {}, "Runs");
    this.element = h("div", {}, title, this.troubles, this.finding, this.tools, this.list, this.end, this.hosts);
    this.makeTable();
  }

  get columns() {
    return (route().query.columns || "").split(",").filter(Boolean);
  }

  setColumns(names) {
    this.ask({ columns: names.join(",") });
  }

  // The address has changed, by us or by a step back: the fields and the columns follow it.
  routed() {
    const { q = "", sort = "", columns = "" } = route().query;
    if (this.search.value !== q) this.search.value = q;
    if (this.made !== columns || this.sortText() !== sort) this.makeTable();
    else this.update();
  }

  sortText() {
    const { column, sign } = this.table.order || {};
    return column ? `${sign < 0 ? "-" : ""}${column.name}` : "";
  }

  // What is looked for is in the address; each letter is no step back.
  ask(changes) {
    const { parts, query } = route();
    this.rowsMax = RUNS_AT_ONCE;
    go(parts, { ...query, ...changes }, true);
  }

  makeTable() {
    this.made = route().query.columns || "";
    // A metric, or a parameter: one that is a number is sorted as one.
    const valueOf = (run, name) => {
      const told = run.metrics?.[name] ?? run.parameters?.[name];
      return told !== undefined && told !== "" && Number.isFinite(Number(told)) ? Number(told) : told;
    };
    const column = (name) => ({
      name,
      num: true,
      value: (run) => {
        const told = valueOf(run, name);
        return told === undefined ? "" : typeof told === "number" ? numberText(told) : told;
      },
      by: (run) => valueOf(run, name),
    });
    this.table = new Table(
      [
        {
          name: "run",
          value: (run) => [
            h("a", { href: linkTo(["r", run.run_id]) }, run.run_id),
            h("div", { class: "dim" }, (run.tags || []).map((tag) => h("span", { class: "tag" }, tag)), run.note),
          ],
          key: (run) => [run.run_id, run.tags, run.note],
          by: (run) => run.run_id,
        },
        { name: "began", value: (run) => timeText(beganAt(run), { date: true }), by: beganAt },
        {
          name: "phase",
          value: (run) => (run.phase ? phaseMark(run.phase) : "…"),
          key: (run) => [run.phase, isStale()],
          by: (run) => run.phase,
        },
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
          key: (run) => [run.global_step, run.steps_total, run.eta_s, isOver(run) || Math.floor(now() / 5)],
          by: (run) => run.global_step,
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
          by: (run) => run.time_use?.value,
        },
        { name: "loss", value: (run) => this.spark(run), key: (run) => run.run_id, by: (run) => run.metrics?.loss },
        ...this.columns.map(column),
        { name: "restarts", num: true, value: (run) => run.restarts, by: (run) => run.restarts },
        { name: "compare", value: (run) => this.chooser(run), key: (run) => run.run_id },
        ...(page.actions
          ? [{ name: "", value: (run) => this.buttons(run), key: (run) => [run.run_id, isOver(run)] }]
          : []),
      ],
      "Runs",
      () => "",
      () => this.ask({ sort: this.sortText() || null }),
    );
    this.table.orderBy(route().query.sort || "");
    this.list.orchKey = null;
    this.update();
  }

  // With `orch ui --actions`: tags, a note, and the end of a run's records.
  buttons(run) {
    const dialog = document.getElementById("dialog");
    const said = h("p", { role: "status" });
    const act = (verb, body) => async () => {
      try {
        await postAction(run.run_id, verb, body());
        dialog.close();
      } catch (error) {
        setText(said, `${error.message}${error.hint ? `: ${error.hint}` : ""}`);
      }
    };
    const ask = (title, fields, word, does) => {
      const close = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
      const yes = h("button", { type: "button", class: word === "Remove" ? "danger" : null, onclick: does }, word);
      put(dialog, h("h2", {}, title), fields, said, h("div", { class: "actions" }, yes, close));
      dialog.showModal();
    };
    const mark = () => {
      const shown = page.state.runs[run.run_id] || run;
      const tags = h("input", { value: (shown.tags || []).join(" "), "aria-label": "Tags" });
      const note = h("input", { value: shown.note || "", "aria-label": "Note" });
      const body = () => {
        const add = tags.value.split(/[\s,]+/).filter(Boolean);
        return { add, remove: (shown.tags || []).filter((tag) => !add.includes(tag)), note: note.value };
      };
      const fields = [h("p", {}, "Tags ", tags), h("p", {}, "Note ", note)];
      ask(`Tags and note of ${run.run_id}`, fields, "Keep", act("mark", body));
    };
    const remove = () => {
      const what =
        "Its logs, curves, causes, plan and code on this machine go for good. Checkpoints stay. " +
        "What it left on its hosts stays there until `orch gc`; `orch rm` removes that too.";
      ask(`Remove ${run.run_id}?`, h("p", {}, what), "Remove", act("forget", () => ({})));
    };
    return [
      h("button", { type: "button", class: "link", onclick: mark, "aria-label": `Tag ${run.run_id}` }, "tag"),
      isOver(run) &&
        h("button", { type: "button", class: "link", onclick: remove, "aria-label": `Remove ${run.run_id}` }, "remove"),
    ];
  }

  // What is wrong, and what comes next.
  stateOf(run) {
    if (run.phase === null) return [run.reason || "its record is being read"];
    const odd = nonfiniteWords(run);
    const cause = run.phase === "FAILED" && run.first_cause ? `${run.first_cause.sentence}: ` : "";
    return [odd && h("div", { class: "slow" }, odd), longText(`${cause}${runSentence(run)}`)];
  }

  // Runs are chosen by their boxes, and a link leads to all of them.
  chooser(run) {
    const choose = (event) => {
      const rest = this.chosen.filter((id) => id !== run.run_id);
      this.choose(event.target.checked ? [...rest, run.run_id].slice(-COMPARED_MAX) : rest);
    };
    return h("input", {
      type: "checkbox",
      name: "compare",
      value: run.run_id,
      "aria-label": `Compare ${run.run_id}`,
      checked: this.chosen.includes(run.run_id),
      onchange: choose,
    });
  }

  choose(ids) {
    this.chosen = ids;
    for (const box of this.list.querySelectorAll("input[name=compare]")) box.checked = ids.includes(box.value);
    this.tools.hidden = !ids.length;
    const words = ids.length > 2 ? `${ids.length} runs` : ids.join(" and ");
    const all = h("a", { href: linkTo(["compare"], { run: ids.join(",") }) }, `Compare ${words}`);
    put(this.tools, ids.length > 1 ? all : "Choose one more run to compare with.");
  }

  // The runs that fit what is looked for, the newest ones if there are too many.
  chooseAll() {
    this.choose(this.found().slice(0, COMPARED_MAX).map((run) => run.run_id));
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
      canvas.dataset.run = run.run_id;
      this.sparks.set(run.run_id, canvas);
      this.seen.observe(canvas);
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

  // The runs that are looked for, those that go on first, then the newest, or as a column sorts them.
  found() {
    const { q = "", state = "", tag = "" } = route().query;
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => {
      if (state && (state === "on" ? isOver(run) : run.phase !== state)) return false;
      if (tag && !(run.tags || []).includes(tag)) return false;
      if (!words.length) return true;
      const settings = Object.entries(run.parameters || {}).map(([name, value]) => `${name}=${value}`);
      const marks = [run.note, ...(run.tags || [])];
      const said = [run.run_id, run.phase, ...marks, run.first_cause?.sentence, ...settings].join(" ");
      return words.every((word) => said.toLowerCase().includes(word));
    };
    const runs = Object.values(page.state.runs).reverse().filter(fits);
    runs.sort((a, b) => isOver(a) - isOver(b) || beganAt(b) - beganAt(a));
    return this.table.sorted(runs);
  }

  offer(all) {
    const { query } = route();
    const choices = (select, chosen, pairs) =>
      memo(select, [chosen, pairs], () =>
        put(select, pairs.map(([value, words]) => h("option", { value, selected: value === chosen }, words))),
      );
    choices(this.state, query.state || "", Object.entries(STATE_CHOICES));
    const tags = [...new Set(all.flatMap((run) => run.tags || []))].sort();
    choices(this.tag, query.tag || "", [["", "all tags"], ...tags.map((tag) => [tag, tag])]);
    const names = [
      ...new Set(all.flatMap((run) => [...Object.keys(run.metrics || {}), ...Object.keys(run.parameters || {})])),
    ].sort();
    const left = names.filter((name) => !this.columns.includes(name));
    choices(this.column, "", [["", "another column…"], ...left.map((name) => [name, name])]);
    memo(this.added, this.columns, () =>
      put(
        this.added,
        this.columns.map((name) =>
          h(
            "button",
            {
              type: "button",
              "aria-label": `Remove the column ${name}`,
              onclick: () => this.setColumns(this.columns.filter((each) => each !== name)),
            },
            `${name} ✕`,
          ),
        ),
      ),
    );
    this.tag.hidden = !tags.length;
    this.column.hidden = !left.length;
    this.finding.hidden = all.length < 2;
  }

  update() {
    const all = Object.values(page.state.runs);
    const troubles = page.state.troubles || [];
    memo(this.troubles, troubles, () => put(this.troubles, troubles.map((each) => h("p", { class: "away" }, each))));
    if (!all.length) {
      this.finding.hidden = true;
      memo(this.list, ["none", page.loaded, troubles.length], () =>
        put(
          this.list,
          h(
            "p",
            { class: "dim" },
            !page.loaded
              ? "Loading…"
              : troubles.length
                ? "No run can be shown."
                : "There are no runs yet. `orch up cluster.yaml` starts one.",
          ),
        ),
      );
      return;
    }
    this.offer(all);
    memo(this.list, ["some", this.made], () => put(this.list, this.table.element));
    const runs = this.found();
    this.count = runs.length;
    const shown = runs.slice(0, this.rowsMax);
    this.table.show(shown, (run) => run.run_id);
    const unread = all.filter((run) => run.phase === null && !run.reason).length;
    const counted =
      runs.length < all.length ? `${runs.length} of ${all.length} runs fit` : `${all.length} runs`;
    const rest = shown.length < runs.length ? `; ${shown.length} are shown, more on the way down` : "";
    const reading = unread ? `; ${unread} records are being read` : "";
    setText(this.end, all.length > 1 ? counted + rest + reading : "");
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

  destroy() {
    this.more.disconnect();
    this.seen.disconnect();
  }
}

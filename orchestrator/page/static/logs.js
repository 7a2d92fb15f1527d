"use strict";
// The logs: pages from the server, of all that there is; the newest first, older ones when one scrolls up.

const LINES_HELD = 3000, FOLD_S = 2;

// What equal lines of several tasks have in common: numbers are masked.
const masked = (text) => text.replace(/0x[0-9a-f]+|\d+(\.\d+)?/gi, "#");

orch.Logs = class {
  constructor(run, query, causes) {
    this.run = run;
    this.query = query;
    this.causes = causes;
    this.lines = [];
    this.seen = new Set();
    this.following = !query.at;
    this.missed = 0;
    this.stop = new AbortController();
    this.list = orch.h("div", { class: "logs", tabindex: "0", role: "log", "aria-label": "Log lines", "aria-live": "off", onscroll: () => this.scrolled() });
    this.note = orch.h("span", { class: "dim", role: "status" });
    this.end = orch.h("button", { type: "button", onclick: () => this.follow() }, "to the end");
    this.element = orch.h("div", {}, this.list, orch.h("div", { class: "tools" }, this.note, this.end));
    this.fold = orch.setting("fold") !== "no";
    this.start();
  }

  filter(more) { const { task, generation, level, q } = this.query; return { task, generation, level, q, limit: 500, ...more }; }

  async start() {
    try {
      const at = this.query.at?.split("/");
      // A line is named by its task, generation and offset: the page that ends a little behind it holds it.
      const before = at ? `${at[0]}/${at[1]}/${Number(at[2]) + 4096}` : null;
      const page = await orch.get(this.run, "logs", this.filter(at ? { task: at[0], generation: at[1], before } : {}), this.stop.signal);
      this.take(page.lines || [], true);
      [this.before, this.after] = [page.before, page.after];
      this.searched = page.searched_to;
      this.render();
      const target = this.list.querySelector(".target");
      if (target) target.scrollIntoView({ block: "center" }); else this.follow();
      if (!at && !orch.report) this.poll();
    } catch (error) { if (error.name !== "AbortError") orch.text(this.note, error.message); }
  }

  async poll() {
    while (!this.stop.signal.aborted) {
      await new Promise((done) => { setTimeout(done, document.hidden ? 5000 : 1000); });
      if (document.hidden || !this.after) continue;
      try {
        const page = await orch.get(this.run, "logs", this.filter({ after: this.after }), this.stop.signal);
        this.after = page.after;
        if (!page.lines.length) continue;
        if (page.skipped) this.take([{ id: `skipped/${this.after}`, time: page.lines[0].time, task: "orch", level: "warning", text: `${page.skipped} lines were too fast to show; the log has them` }], false);
        if (!this.following) this.missed += page.lines.length;
        this.take(page.lines, false);
        this.render();
      } catch (error) { if (error.name === "AbortError") return; orch.text(this.note, error.message); }
    }
  }

  async older() {
    if (this.loading || !this.before) return;
    this.loading = true;
    try {
      const page = await orch.get(this.run, "logs", this.filter({ before: this.before }), this.stop.signal);
      const height = this.list.scrollHeight;
      this.before = page.before;
      this.searched = page.searched_to;
      this.take(page.lines, true);
      this.render();
      this.list.scrollTop += this.list.scrollHeight - height;
    } catch (error) { if (error.name !== "AbortError") orch.text(this.note, error.message); }
    this.loading = false;
  }

  take(lines, before) {
    const fresh = lines.filter((line) => !this.seen.has(line.id));
    for (const line of fresh) this.seen.add(line.id);
    this.lines = before ? [...fresh, ...this.lines] : [...this.lines, ...fresh];
    const over = this.lines.length - LINES_HELD;
    if (over > 0) for (const line of before ? this.lines.splice(LINES_HELD) : this.lines.splice(0, over)) this.seen.delete(line.id);
  }

  // Equal lines of different tasks within two seconds are one line with a count.
  folded() {
    if (!this.fold) return this.lines.map((line) => ({ line, same: [] }));
    const made = [], open = new Map();
    for (const line of this.lines) {
      const key = masked(line.text), known = open.get(key);
      if (known && line.time - known.line.time < FOLD_S && line.task !== known.line.task && !known.same.includes(line.task) && line.generation === known.line.generation) {
        known.same.push(line.task);
        continue;
      }
      const group = { line, same: [] };
      open.set(key, group);
      made.push(group);
    }
    return made;
  }

  render() {
    const last = new Set(this.causes.flatMap((cause) => (cause.last_lines || []).slice(-1).map((text) => `${cause.task}/${cause.generation}/${orch.plain(text)}`)));
    const rows = [];
    let generation = null;
    for (const { line, same } of this.folded()) {
      if (line.generation !== generation && line.generation) {
        generation = line.generation;
        rows.push(orch.h("div", { class: "rule" }, `generation ${generation}`));
      }
      const isCause = last.has(`${line.task}/${line.generation}/${orch.plain(line.text)}`);
      const target = this.query.at === line.id;
      rows.push(orch.h("div", { class: `line ${line.level}${isCause ? " cause" : ""}${target ? " target" : ""}` },
        orch.h("a", { class: "at", href: orch.link(["r", this.run, "logs"], { ...this.query, at: line.id }), "aria-label": `Link to the line of ${orch.time(line.time)}` }, orch.time(line.time)),
        orch.h("span", { class: "who", title: [line.task, ...same].join(", ") }, same.length ? `${line.task} ×${same.length + 1}` : line.task),
        orch.h("span", {}, `${isCause ? "✕ " : ""}${line.text}`)));
    }
    if (!rows.length) rows.push(orch.h("p", { class: "dim" }, orch.report ? "A report holds no logs but the last lines of what failed." : "No line fits. A run that never started has written none."));
    orch.put(this.list, rows);
    const parts = [`${orch.count(this.lines.length)} lines`];
    if (this.before && this.searched) parts.push(`searched back to ${orch.time(this.searched, { date: true })}; scroll up to go on`);
    if (!this.following && this.missed) parts.push(`paused, ${this.missed} new`);
    orch.text(this.note, parts.join("; "));
    if (this.following) this.list.scrollTop = this.list.scrollHeight;
    if (this.before && this.lines.length < 100 && !this.query.at) this.older();
  }

  scrolled() {
    const fromEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight;
    this.following = fromEnd < 30 && !this.query.at;
    if (this.following) this.missed = 0;
    if (this.list.scrollTop < 50) this.older();
  }

  follow() { this.missed = 0; this.following = true; this.list.scrollTop = this.list.scrollHeight; }

  destroy() { this.stop.abort(); }
};

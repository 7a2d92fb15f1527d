// The logs, in pages from the server: the newest first, older ones when one scrolls up.

import {
  countText,
  getDocument,
  go,
  h,
  linkTo,
  plainText,
  put,
  report,
  setText,
  setting,
  timeText,
} from "./base.js";

// So many lines are held, in blocks; only the blocks near the visible part have elements.
const LINES_HELD = 3000,
  BLOCK = 80,
  FOLD_S = 2,
  LINE_PX = 18,
  SEARCHES_MAX = 4;

// What equal lines of several tasks have in common: numbers are masked.
const masked = (text) => text.replace(/0x[0-9a-f]+|\d+(\.\d+)?/gi, "#");
// What a progress bar looks like, written anew in each line or over and over in one.
const BAR = /[━█▉▊▋▌▍▎▏]{3}|\d%\|.*\||\[[=>.]{8,}\]/;

// Of a line that was written over and over: the last text, and how often it was written.
const settled = (text) => {
  if (!text.includes("\r")) return { text, times: 1 };
  const parts = text.split("\r").filter((part) => part.trim());
  return { text: parts.at(-1) || "", times: parts.length };
};

// Lines as rows: equal lines of several tasks, tracebacks, and progress bars are one row each, which tells what it
// holds.
const foldLines = (lines, fold) => {
  const rows = [],
    same = new Map(),
    traces = new Map(),
    bars = new Map();
  for (const line of lines) {
    const whose = `${line.task}/${line.generation}`,
      shown = settled(line.text);
    const row = { line, text: shown.text, same: [], more: [], times: shown.times };
    if (!fold) {
      rows.push({ ...row, text: line.text.includes("\r") ? shown.text : line.text });
      continue;
    }
    const trace = traces.get(whose);
    if (trace) {
      // it goes on until a line stands at the margin: the exception itself
      trace.more.push(line.text);
      if (
        /^\s|^$/.test(line.text) ||
        /^(During handling|The above exception)/.test(line.text) ||
        trace.more.length > 500
      )
        continue;
      if (/^Traceback \(most recent call last\)/.test(line.text)) continue;
      Object.assign(trace, { text: line.text, line: { ...line, level: "error" } });
      traces.delete(whose);
      join(rows, same, trace);
      continue;
    }
    if (/^Traceback \(most recent call last\)/.test(line.text)) {
      row.more.push(line.text);
      rows.push(row);
      traces.set(whose, row);
      continue;
    }
    const bar = bars.get(whose);
    if (BAR.test(shown.text)) {
      if (
        bar &&
        rows.includes(bar, -64) &&
        masked(bar.text).slice(0, 12) === masked(shown.text).slice(0, 12)
      ) {
        Object.assign(bar, { text: shown.text, times: bar.times + shown.times });
        continue;
      }
      bars.set(whose, row);
    } else bars.delete(whose);
    rows.push(row);
    join(rows, same, row);
  }
  return rows.filter((row) => !row.gone);
};
// Merge a row into the equal row of another task, if there is one.
const join = (rows, same, row) => {
  const key = `${row.line.generation}/${row.more.length ? "trace/" : ""}${masked(row.text)}`,
    known = same.get(key);
  if (
    known &&
    row.line.time - known.line.time < FOLD_S &&
    row.line.task !== known.line.task &&
    !known.same.includes(row.line.task)
  ) {
    known.same.push(row.line.task);
    row.gone = true;
  } else same.set(key, row);
};

export class Logs {
  constructor(run, query, causes) {
    this.run = run;
    this.query = query;
    this.causes = causes;
    this.following = !query.at && !query.until;
    this.stop = new AbortController();
    this.list = h("div", {
      class: "logs",
      tabindex: "0",
      role: "log",
      "aria-label": "Log lines",
      "aria-live": "off",
      onscroll: () => this.scrolled(),
    });
    this.note = h("span", { class: "dim", role: "status" });
    this.goOn = h(
      "button",
      {
        type: "button",
        hidden: true,
        onclick: () => {
          this.searches = 0;
          this.older();
        },
      },
      "go on",
    );
    this.end = h("button", { type: "button", onclick: () => this.follow() }, "to the end");
    this.element = h(
      "div",
      { class: "log" },
      this.pinned(),
      this.list,
      h("div", { class: "tools" }, this.note, this.goOn, this.end),
    );
    this.fold = setting("fold") !== "no";
    this.seen = new IntersectionObserver(
      (found) => {
        for (const one of found) this.near(one);
      },
      { root: this.list, rootMargin: "600px 0px" },
    );
    this.forget();
    this.start();
  }

  forget() {
    [this.lines, this.known, this.blocks, this.missed, this.searches, this.cut] = [
      [],
      new Set(),
      [],
      0,
      0,
      false,
    ];
    [this.before, this.after, this.searched] = [null, null, null];
  }

  // The first cause is shown above the lines, wherever one has scrolled to.
  pinned() {
    const { generation, task } = this.query;
    const cause = this.causes
      .filter(
        (one) =>
          (!generation || String(one.generation) === String(generation)) && (!task || one.task === task),
      )
      .at(-1);
    if (!cause) return null;
    return h(
      "p",
      { class: "cause pinned" },
      `✕ ${cause.time ? `${timeText(cause.time)} ` : ""}${cause.sentence} `,
      cause.task &&
        h(
          "a",
          { href: linkTo(["r", this.run, "logs"], { task: cause.task, generation: cause.generation }) },
          `its log, generation ${cause.generation}`,
        ),
    );
  }

  filter(more) {
    const { task, generation, level, q, differs } = this.query;
    return { task, generation, level, q, differs, limit: 500, ...more };
  }

  async ask(query) {
    return getDocument(this.run, "logs", this.filter(query), this.stop.signal);
  }

  failed(error) {
    if (error.name !== "AbortError") setText(this.note, error.message);
  }

  async start() {
    try {
      const at = this.query.at?.split("/");
      // A line is named by its task, generation and offset: the page that ends a little behind it holds it.
      const place = at
        ? { task: at[0], generation: at[1], before: `${at[0]}/${at[1]}/${Number(at[2]) + 4096}` }
        : { until: this.query.until };
      this.take(await this.ask(place), true);
      const target = this.list.querySelector(".target");
      if (target) target.scrollIntoView({ block: "center" });
      else this.list.scrollTop = this.list.scrollHeight;
      if (!at && !this.query.until && !report) this.poll();
    } catch (error) {
      this.failed(error);
    }
  }

  async poll() {
    while (!this.stop.signal.aborted) {
      await new Promise((done) => {
        setTimeout(done, document.hidden ? 5000 : this.query.differs ? 3000 : 1000);
      });
      if (document.hidden || !this.after) continue;
      try {
        // Which lines differ is known only once all tasks have written: so the newest page is asked for again.
        if (this.query.differs) {
          if (this.following) {
            const page = await this.ask({});
            this.forget();
            this.take(page, true);
          }
          continue;
        }
        const page = await this.ask({ after: this.after });
        this.after = page.after;
        if (!page.lines.length) continue;
        if (page.skipped)
          page.lines.unshift({
            id: `skipped/${this.after}`,
            time: page.lines[0].time,
            task: "orch",
            level: "warning",
            text: `${page.skipped} lines were too fast to show; the log has them`,
          });
        if (!this.following) this.missed += page.lines.length;
        if (this.cut) this.tell();
        else this.add(page.lines, false);
      } catch (error) {
        if (error.name === "AbortError") return;
        this.failed(error);
      }
    }
  }

  async older() {
    if (this.loading || !this.before) return;
    this.loading = true;
    try {
      this.take(await this.ask({ before: this.before }), false);
    } catch (error) {
      this.failed(error);
    }
    this.loading = false;
  }

  // Take in a page that ends where the lines that are held begin.
  take(page, first) {
    if (first) this.after = page.after;
    [this.before, this.searched] = [page.before, page.searched_to];
    this.searches += 1;
    this.add(page.lines || [], true);
    // A filter that finds little goes on by itself for a while, and then asks: there may be gigabytes.
    if (this.before && this.lines.length < 100 && !this.query.at && this.searches < SEARCHES_MAX)
      setTimeout(() => this.older(), 0);
    else if (this.lines.length >= 100) this.searches = 0;
  }

  add(lines, before) {
    const fresh = lines.filter((line) => !this.known.has(line.id));
    for (const line of fresh) this.known.add(line.id);
    this.lines = before ? [...fresh, ...this.lines] : [...this.lines, ...fresh];
    const over = this.lines.length - LINES_HELD;
    if (over > 0) {
      const dropped = before ? this.lines.splice(LINES_HELD) : this.lines.splice(0, over);
      for (const line of dropped) this.known.delete(line.id);
      // Lines dropped at the end come back by going to the end; lines dropped at the beginning, by scrolling up.
      if (before) this.cut = true;
      else [this.before, this.cutFront] = [this.placeOf(this.lines), true];
    }
    this.render();
  }

  // The place of the oldest line that is held, of each task: from there older ones are asked for.
  placeOf(lines) {
    const first = new Map(
      lines
        .slice()
        .reverse()
        .filter((line) => line.id.split("/").length === 3)
        .map((line) => [`${line.task}/${line.generation}`, line.id]),
    );
    const rest = (this.before || "")
      .split(",")
      .filter((part) => part && !first.has(part.slice(0, part.lastIndexOf("/"))));
    return [...first.values(), ...rest].join(",");
  }

  // ------------------------------------------------ what is seen

  // Blocks keep their height while they have no elements, and their rows as long as their lines are the same.
  render() {
    const known = new Map(this.blocks.map((block) => [block.key, block]));
    const rows = foldLines(this.lines, this.fold),
      top = this.anchor();
    // Begin after the last full block, so that lines at either end leave the blocks between as they are.
    const groups = [];
    let group = [],
      hash = -1;
    for (const row of rows) {
      const of = Math.floor((row.line.time || 0) / 5);
      if (group.length >= BLOCK || (of !== hash && group.length >= BLOCK / 2)) {
        groups.push(group);
        group = [];
      }
      hash = of;
      group.push(row);
    }
    if (group.length) groups.push(group);
    let generation = null;
    this.blocks = groups.map((of) => {
      const key = JSON.stringify([
        of[0].line.id,
        of.at(-1).line.id,
        of.length,
        of.reduce((sum, row) => sum + row.same.length + row.times + row.more.length, 0),
        generation,
        this.fold,
      ]);
      const block = known.get(key) || {
        key,
        rows: of,
        generation,
        height: of.length * LINE_PX,
        element: h("div"),
      };
      generation = of.at(-1).line.generation;
      if (!known.delete(key)) {
        block.element.style.height = `${block.height}px`;
        block.element.orchBlock = block;
        this.seen.observe(block.element);
      }
      return block;
    });
    for (const block of known.values()) this.seen.unobserve(block.element);
    const elements = this.blocks.map((block) => block.element);
    if (!elements.length) elements.push(h("p", { class: "dim" }, this.emptyWords()));
    if (
      elements.length !== this.list.children.length ||
      elements.some((each, i) => this.list.children[i] !== each)
    )
      this.list.replaceChildren(...elements);
    for (const block of this.blocks) if (this.isNear(block.element)) this.fill(block);
    if (this.following) this.list.scrollTop = this.list.scrollHeight;
    else this.restore(top);
    this.tell();
  }

  emptyWords() {
    if (report) return "A report holds no logs but the last lines of what failed.";
    if (this.before) return "No line fits so far.";
    return this.query.differs
      ? "All tasks say the same."
      : "No line fits. A run that never started has written none.";
  }

  // The line at the upper edge, which stays where it is when older ones are put above it.
  anchor() {
    const edge = this.list.getBoundingClientRect().top;
    for (const row of this.list.querySelectorAll(".line")) {
      const at = row.getBoundingClientRect();
      if (at.bottom > edge) return { id: row.dataset.id, offset: at.top - edge };
    }
    return null;
  }

  restore(top) {
    const row = top && [...this.list.querySelectorAll(".line")].find((each) => each.dataset.id === top.id);
    if (row)
      this.list.scrollTop +=
        row.getBoundingClientRect().top - this.list.getBoundingClientRect().top - top.offset;
  }

  isNear(element) {
    const [at, seen] = [element.getBoundingClientRect(), this.list.getBoundingClientRect()];
    return at.bottom > seen.top - 600 && at.top < seen.bottom + 600;
  }

  near({ isIntersecting, target }) {
    const block = target.orchBlock;
    if (isIntersecting) this.fill(block);
    else if (block.filled && target.isConnected) {
      block.height = target.offsetHeight;
      target.style.height = `${block.height}px`;
      target.replaceChildren();
      block.filled = false;
    }
  }

  fill(block) {
    if (block.filled) return;
    block.filled = true;
    block.element.style.height = "";
    this.last ??= new Set(
      this.causes.flatMap((cause) =>
        (cause.last_lines || [])
          .slice(-1)
          .map((text) => `${cause.task}/${cause.generation}/${plainText(text)}`),
      ),
    );
    let { generation } = block;
    put(
      block.element,
      block.rows.map((row) => {
        const rule =
          row.line.generation && row.line.generation !== generation
            ? h("div", { class: "rule" }, `generation ${row.line.generation}`)
            : null;
        generation = row.line.generation || generation;
        return [rule, this.row(row)];
      }),
    );
  }

  row({ line, text, same, more, times }) {
    const isCause = this.last.has(`${line.task}/${line.generation}/${plainText(text)}`);
    const target = this.query.at === line.id;
    const said = h(
      "span",
      { class: "said" },
      times > 1 && h("span", { class: "dim" }, `⟲${countText(times)} `),
      `${isCause ? "✕ " : ""}${text}`,
    );
    if (more.length)
      said.append(
        " ",
        h("details", {}, h("summary", {}, `traceback, ${more.length} lines`), h("pre", {}, more.join("\n"))),
      );
    return h(
      "div",
      { class: `line ${line.level}${isCause ? " cause" : ""}${target ? " target" : ""}`, "data-id": line.id },
      h(
        "a",
        {
          class: "at",
          href: linkTo(["r", this.run, "logs"], { ...this.query, at: line.id, until: null }),
          "aria-label": `Link to the line of ${timeText(line.time)}`,
        },
        timeText(line.time),
      ),
      h(
        "span",
        { class: "who", title: [line.task, ...same].join(", ") },
        same.length ? `${line.task} ×${same.length + 1}` : line.task,
      ),
      said,
    );
  }

  tell() {
    const { level, q, differs, until } = this.query;
    const one = this.lines.length === 1,
      fits = level || q || differs ? (one ? " fits" : " fit") : "";
    const parts = [
      `${countText(this.lines.length)} ${one ? "line" : "lines"}${fits}` +
        (until ? ` until ${timeText(Number(until), { date: true })}` : ""),
    ];
    if (this.before && this.searched)
      parts.push(`searched back to ${timeText(this.searched, { date: true })}`);
    if (!this.following && this.missed) parts.push(`paused, ${countText(this.missed)} new`);
    setText(this.note, parts.join("; "));
    this.goOn.hidden = !this.before;
    setText(this.goOn, level || q || differs ? "go on" : "older lines");
  }

  scrolled() {
    const fromEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight;
    this.following = fromEnd < 30 && !this.query.at && !this.query.until && !this.cut;
    if (this.following && this.missed) {
      this.missed = 0;
      this.tell();
    }
    if (this.list.scrollTop < 50 && this.lines.length >= 100) this.older();
  }

  // To the newest line: of a page that was opened at a place, that is another page.
  async follow() {
    if (this.query.at || this.query.until) {
      go(["r", this.run, "logs"], { ...this.query, at: null, until: null });
      return;
    }
    if (this.cut) {
      this.forget();
      try {
        this.take(await this.ask({}), true);
      } catch (error) {
        this.failed(error);
      }
    }
    [this.missed, this.following] = [0, true];
    this.list.scrollTop = this.list.scrollHeight;
    this.tell();
  }

  destroy() {
    this.stop.abort();
    this.seen.disconnect();
  }
}

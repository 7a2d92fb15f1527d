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
const LINES_HELD = 3000;
const BLOCK = 80;
const FOLD_S = 2;
const LINE_PX = 18;
const SEARCHES_MAX = 4;
const EDGE_PX = 400; // so near to either end, the next page is asked for

const TRACEBACK = /^Traceback \(most recent call last\)/;
const WITHIN_TRACE = /^\s|^$|^(During handling|The above exception)/;
const NUMBERS = /0x[0-9a-f]+|\d+(\.\d+)?/gi;
// What equal lines of several tasks have in common: numbers are masked.
const masked = (text) => bare(text).replace(NUMBERS, "#");
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
  if (!fold) return lines.map(rowOf);
  const rows = [];
  const [same, traces, bars] = [new Map(), new Map(), new Map()];
  for (const line of lines) {
    const whose = whoseOf(line);
    const row = rowOf(line);
    const trace = traces.get(whose);
    const begins = TRACEBACK.test(line.text);
    if (trace) {
      trace.more.push(line.text);
      // It goes on until a line stands at the margin: the exception itself.
      if (begins || WITHIN_TRACE.test(line.text) || trace.more.length > 500) continue;
      Object.assign(trace, { text: line.text, line: { ...line, level: "error" } });
      traces.delete(whose);
      join(same, trace);
    } else if (begins) {
      row.more.push(line.text);
      rows.push(row);
      traces.set(whose, row);
    } else if (BAR.test(row.text)) {
      const bar = bars.get(whose);
      if (bar && rows.includes(bar, -64) && masked(bar.text).slice(0, 12) === masked(row.text).slice(0, 12)) {
        Object.assign(bar, { text: row.text, times: bar.times + row.times });
        continue;
      }
      bars.set(whose, row);
      rows.push(row);
      join(same, row);
    } else {
      bars.delete(whose);
      rows.push(row);
      join(same, row);
    }
  }
  return rows.filter((row) => !row.gone);
};
const rowOf = (line) => ({ line, same: [], more: [], ...settled(line.text) });
const whoseOf = (line) => `${line.task}/${line.generation}`;
// A line's id is its task, generation and offset; a line of ours has no place in a log.
const hasPlace = (line) => line.id.split("/").length === 3;
// `worker:0/1/480,worker:1/1/99` → by task and generation the offset
const placesOf = (text) => {
  const parts = (text || "").split(",").filter(Boolean);
  return new Map(
    parts.map((part) => [part.slice(0, part.lastIndexOf("/")), part.slice(part.lastIndexOf("/") + 1)]),
  );
};
// Merge a row into the row of another task that says the same, numbers aside, if there is one.
const join = (same, row) => {
  const key = `${row.line.generation}/${row.more.length ? "trace/" : ""}${masked(row.text)}`;
  const known = same.get(key);
  const isNear = known && row.line.time - known.line.time < FOLD_S;
  if (isNear && ![known, ...known.same].some((each) => each.line.task === row.line.task)) {
    known.same.push(row);
    row.gone = true;
  } else same.set(key, row);
};
// What equal lines say: where their numbers differ, from the least to the greatest.
const range = (texts) => {
  if (texts.every((text) => text === texts[0])) return texts[0];
  const all = texts.map((text) => text.match(NUMBERS) || []);
  let at = 0;
  return texts[0].replace(NUMBERS, (number) => {
    const each = all.map((numbers) => numbers[at]);
    at += 1;
    if (each.every((one) => one === number)) return number;
    if (each.some((one) => one.startsWith("0x"))) return "0x…";
    each.sort((a, b) => Number(a) - Number(b));
    return `${each[0]}…${each.at(-1)}`;
  });
};

// What a terminal makes of a text: its colours as classes; all other escapes are left out.
// oxlint-disable-next-line no-control-regex
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])/g;
const bare = (text) => text.replace(ESCAPES, "");
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const colouredParts = (text) => {
  const parts = [];
  let [at, colour, bold] = [0, "", ""];
  const add = (to) => {
    if (to > at) parts.push([text.slice(at, to), [colour, bold].filter(Boolean).join(" ")]);
  };
  for (const match of text.matchAll(ESCAPES)) {
    add(match.index);
    at = match.index + match[0].length;
    // oxlint-disable-next-line no-control-regex
    const codes = /^\x1b\[([\d;]*)m$/.exec(match[0]);
    const numbers = codes ? codes[1].split(";").map(Number) : [];
    for (let i = 0; i < numbers.length; i += 1) {
      const code = numbers[i];
      if (code === 0) [colour, bold] = ["", ""];
      else if (code === 1) bold = "ansi-bold";
      else if (code === 22) bold = "";
      else if (code === 39) colour = "";
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) colour = `ansi-${COLOURS[code % 10]}`;
      else if (code === 38 || code === 48) i += numbers[i + 1] === 5 ? 2 : 4; // of 256 or 16 million: not drawn
    }
  }
  add(text.length);
  return parts;
};
// The text that is looked for, as a pattern; null for none, or for one that the browser reads otherwise.
const patternOf = ({ q, mark, regex }) => {
  const text = q || mark;
  if (!text) return null;
  try {
    return new RegExp(regex ? text : text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
  } catch {
    return null;
  }
};
// Where hits begin and end in a text.
const hitsIn = (text, pattern) =>
  [...text.matchAll(pattern)].filter(([hit]) => hit).map(({ 0: hit, index }) => [index, index + hit.length]);

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
      onkeydown: (event) => this.pressed(event),
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
      (entries) => {
        for (const one of entries) this.near(one);
      },
      { root: this.list, rootMargin: "600px 0px" },
    );
    this.forget();
    this.start();
  }

  forget() {
    [this.lines, this.known, this.blocks] = [[], new Set(), []];
    [this.missed, this.searches] = [0, 0];
    [this.before, this.after, this.searched] = [null, null, null];
    // Whether newer lines than those that are held are not held, and by task and generation where they begin.
    [this.cut, this.next] = [false, new Map()];
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
    const { task, generation, level, q, regex, differs } = this.query;
    return { task, generation, level, q, regex: q && regex, differs, limit: 500, ...more };
  }

  async ask(query) {
    return getDocument(this.run, "logs", this.filter(query), this.stop.signal);
  }

  // The line in the middle of what is seen.
  placeSeen() {
    const seen = this.anchors();
    return seen[Math.floor(seen.length / 2)]?.id || null;
  }

  // To the next or previous line of all with the text that is marked.
  async goTo(hit) {
    const { mark, regex, at } = this.query;
    setText(this.note, "Searching…");
    try {
      const from = at || this.placeSeen();
      const page = await this.ask({ q: mark, regex, at: from, hit, level: null, differs: null, limit: 1 });
      const found = page.lines[0];
      if (found) go(["r", this.run, "logs"], { ...this.query, at: found.id });
      else setText(this.note, `There is no ${hit} hit.`);
    } catch (error) {
      this.failed(error);
    }
  }

  failed(error) {
    if (error.name !== "AbortError") setText(this.note, error.message);
  }

  async start() {
    try {
      const { at, until, q, level } = this.query;
      setText(this.note, q || level ? "Searching…" : "Loading…");
      this.addPage(await this.ask({ at, until }), true);
      this.cut = Boolean(at || until);
      const target = this.list.querySelector(".target");
      if (target) target.scrollIntoView({ block: "center" });
      else this.list.scrollTop = this.list.scrollHeight;
      if (!this.cut && !report) this.poll();
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
            this.addPage(page, true);
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
        if (this.cut) this.showNote();
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
      this.addPage(await this.ask({ before: this.before }), false);
    } catch (error) {
      this.failed(error);
    }
    this.loading = false;
  }

  // The lines behind the last one that is held. A filter that finds none looks on for a while.
  async newer() {
    if (this.loading || !this.cut) return;
    this.loading = true;
    try {
      for (let searches = 0; this.cut && searches < SEARCHES_MAX; searches += 1) {
        const next = [...this.next].map((part) => part.join("/")).join(",");
        const page = await this.ask({ next });
        this.next = placesOf(page.after);
        if (page.is_end) [this.cut, this.after, this.missed] = [false, page.after, 0];
        if (page.lines.length) {
          this.add(page.lines, false);
          break;
        }
      }
      this.showNote();
    } catch (error) {
      this.failed(error);
    }
    this.loading = false;
  }

  // To the first line of all.
  async first() {
    const starts = [...this.next.keys()].map((whose) => [whose, 0]);
    this.forget();
    [this.cut, this.next] = [true, new Map(starts)];
    await this.newer();
    this.list.scrollTop = 0;
  }

  // Add a page that ends where the present lines begin.
  addPage(page, first) {
    if (first) [this.after, this.next] = [page.after, placesOf(page.after)];
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
      if (before) {
        this.cut = true;
        for (const line of dropped.reverse().filter(hasPlace))
          this.next.set(whoseOf(line), line.id.split("/")[2]);
      } else [this.before, this.searched] = [this.placeOf(this.lines), this.lines[0].time];
    }
    this.render();
  }

  // The place of the oldest line that is held, of each task: from there older ones are asked for.
  placeOf(lines) {
    const newestFirst = lines.slice().reverse().filter(hasPlace);
    const first = new Map(newestFirst.map((line) => [whoseOf(line), line.id]));
    const rest = (this.before || "")
      .split(",")
      .filter((part) => part && !first.has(part.slice(0, part.lastIndexOf("/"))));
    return [...first.values(), ...rest].join(",");
  }

  // ------------------------------------------------ what is seen

  // Blocks keep their height while they have no elements, and their rows as long as their lines are the same.
  render() {
    const known = new Map(this.blocks.map((block) => [block.key, block]));
    const rows = foldLines(this.lines, this.fold);
    const seen = this.anchors();
    // Begin after the last full block, so that lines at either end leave the blocks between as they are.
    const groups = [];
    let group = [];
    let hash = -1;
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
    else this.restore(seen);
    this.showNote();
  }

  emptyWords() {
    if (report) return "A report holds no logs but the last lines of what failed.";
    if (this.before) return "No line fits so far.";
    return this.query.differs
      ? "All tasks print the same."
      : "No line fits. A run that never started has written none.";
  }

  // The lines that are seen, from the upper edge on: the first that is still there stays where it is.
  anchors() {
    const box = this.list.getBoundingClientRect();
    return [...this.list.querySelectorAll(".line")]
      .map((row) => ({ id: row.dataset.id, at: row.getBoundingClientRect() }))
      .filter(({ at }) => at.bottom > box.top && at.top < box.bottom)
      .map(({ id, at }) => ({ id, offset: at.top - box.top }));
  }

  restore(seen) {
    for (const { id, offset } of seen) {
      const block = this.blocks.find((each) => each.rows.some((row) => row.line.id === id));
      if (!block) continue;
      this.fill(block);
      const row = [...block.element.querySelectorAll(".line")].find((each) => each.dataset.id === id);
      this.list.scrollTop += row.getBoundingClientRect().top - this.list.getBoundingClientRect().top - offset;
      return;
    }
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
    const isCause = this.last.has(`${whoseOf(line)}/${plainText(text)}`);
    const target = [line, ...same.map((each) => each.line)].some((each) => each.id === this.query.at);
    const texts = [text, ...same.map((each) => each.text)];
    const said = h(
      "span",
      { class: "said" },
      times > 1 && h("span", { class: "dim" }, `⟲${countText(times)} `),
      isCause && "✕ ",
      this.drawn(same.length ? range(texts.map(bare)) : text),
      line.cut && h("span", { class: "dim" }, ` … ${countText(line.cut)} characters more; the download has them`),
    );
    if (texts.some((each) => each !== text)) {
      const each = [line, ...same.map((one) => one.line)].map((one, i) => `${one.task}  ${texts[i]}`);
      said.append(" ", h("details", {}, h("summary", {}, "each"), h("pre", {}, each.join("\n"))));
    }
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
          href: linkTo(["r", this.run, "logs"], this.toPlace(line)),
          "aria-label": `Link to the line of ${timeText(line.time)}`,
        },
        timeText(line.time),
      ),
      h(
        "span",
        { class: "who", title: [line, ...same.map((each) => each.line)].map((each) => each.task).join(", ") },
        same.length ? `${line.task} ×${same.length + 1}` : line.task,
      ),
      said,
    );
  }

  // A hit leads to its place, with all lines around it, in which the text is marked.
  toPlace({ id }) {
    const { q, mark } = this.query;
    return { ...this.query, at: id, until: null, q: null, mark: q || mark, level: q ? null : this.query.level };
  }

  // A text with its colours, and what is looked for marked.
  drawn(text) {
    const pattern = patternOf(this.query);
    const hits = pattern ? hitsIn(bare(text), pattern) : [];
    let from = 0;
    return colouredParts(text).map(([part, colour]) => {
      const to = from + part.length;
      const pieces = [];
      let at = from;
      for (const [begin, end] of hits.filter((hit) => hit[1] > from && hit[0] < to)) {
        const [low, high] = [Math.max(begin, from), Math.min(end, to)];
        pieces.push(part.slice(at - from, low - from), h("mark", {}, part.slice(low - from, high - from)));
        at = high;
      }
      pieces.push(part.slice(at - from));
      from = to;
      return colour ? h("span", { class: colour }, pieces) : pieces;
    });
  }

  showNote() {
    const { level, q, differs, until } = this.query;
    const one = this.lines.length === 1;
    const fits = level || q || differs ? (one ? " fits" : " fit") : "";
    const parts = [
      `${countText(this.lines.length)} ${one ? "line" : "lines"}${fits}` +
        (until && this.cut ? ` until ${timeText(Number(until), { date: true })}` : ""),
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
      this.showNote();
    }
    if (this.list.scrollTop < EDGE_PX) this.older();
    if (fromEnd < EDGE_PX) this.newer();
  }

  pressed(event) {
    if (event.key === "Home" && this.before) this.first();
    else if (event.key === "End" && this.cut) this.follow();
    else return;
    event.preventDefault();
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
        this.addPage(await this.ask({}), true);
      } catch (error) {
        this.failed(error);
      }
    }
    [this.missed, this.following] = [0, true];
    this.list.scrollTop = this.list.scrollHeight;
    this.showNote();
  }

  destroy() {
    this.stop.abort();
    this.seen.disconnect();
  }
}

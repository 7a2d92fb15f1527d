// #/r/RUN/logs: the filters above the lines of logs.js.

import { getDocument, go, h, memo, page, put, report, route, setText, setting } from "./base.js";
import { Logs } from "./logs.js";

export class LogsView {
  constructor(run, query) {
    this.id = run;
    const set = (name) => (event) =>
      go(["r", run, "logs"], { ...route().query, [name]: event.target.value, at: null });
    const differs = query.differs === "yes";
    this.query = query;
    this.tasks = h("select", { "aria-label": "Task", onchange: set("task") });
    const option = (value, words, chosen) => h("option", { value, selected: chosen === value }, words);
    this.element = h(
      "div",
      { class: "logview" },
      h("h1", {}, "Logs ", h("small", {}, run)),
      h(
        "div",
        { class: "tools" },
        this.tasks,
        h(
          "select",
          { "aria-label": "Level", onchange: set("level") },
          option("", "all levels", query.level || ""),
          option("warning", "warnings and errors", query.level),
          option("error", "errors", query.level),
        ),
        h("input", {
          type: "number",
          min: "1",
          placeholder: "generation",
          "aria-label": "Generation",
          value: query.generation || null,
          onchange: set("generation"),
        }),
        h("input", {
          type: "search",
          id: "find",
          placeholder: "text (/)",
          "aria-label": "Text to find",
          value: query.q || query.mark || null,
          onchange: (event) => this.find(event.target.value),
        }),
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(Boolean(query.regex)),
            title: "The text is a regular expression",
            onclick: () => go(["r", run, "logs"], { ...route().query, regex: query.regex ? null : "yes" }),
          },
          ".*",
        ),
        query.mark &&
          ["previous", "next"].map((hit) =>
            h("button", { type: "button", onclick: () => this.logs?.goTo(hit) }, `${hit} hit`),
          ),
        query.mark &&
          h(
            "button",
            {
              type: "button",
              onclick: () => go(["r", run, "logs"], { ...route().query, q: query.mark, mark: null, at: null }),
            },
            "all hits",
          ),
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(setting("fold") !== "no"),
            onclick: (event) => {
              setting("fold", setting("fold") === "no" ? "yes" : "no");
              event.target.setAttribute("aria-pressed", String(setting("fold") !== "no"));
              if (!this.logs) return; // it is on its way, and reads the setting itself
              this.logs.fold = setting("fold") !== "no";
              this.logs.render();
            },
          },
          "fold equal lines",
        ),
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(differs),
            title: "Lines that at most half of the tasks have, numbers aside",
            onclick: () =>
              go(["r", run, "logs"], { ...route().query, differs: differs ? null : "yes", at: null }),
          },
          "only what differs",
        ),
        report
          ? null
          : h(
              "button",
              {
                type: "button",
                title: "All lines of these tasks and this generation, without the other filters",
                onclick: (event) => this.download(event.target),
              },
              "download whole",
            ),
      ),
    );
    this.update();
    this.start(run, query);
  }

  // A text is looked for in all of the log. Once it is cleared, one stays where one is, with all lines around.
  find(text) {
    const { query } = route();
    const at = text ? null : query.at || this.logs?.placeSeen();
    go(["r", this.id, "logs"], { ...query, q: text, mark: null, at, until: null });
  }

  // Which tasks there are is told after the page was opened, where one has come by a link.
  update() {
    const chosen = this.query.task || "",
      known = Object.keys(page.state.runs[this.id]?.tasks || {});
    const tasks = ["", ...known, ...(known.includes(chosen) || !chosen ? [] : [chosen])];
    memo(this.tasks, tasks, () =>
      put(
        this.tasks,
        tasks.map((task) => h("option", { value: task, selected: task === chosen }, task || "all tasks")),
      ),
    );
  }

  // The browser saves it as it comes, without the page holding it. A link cannot carry our key, so it has a ticket.
  async download(button) {
    try {
      const { task, generation } = route().query;
      const { ticket } = await getDocument(this.id, "ticket", { task, generation });
      const link = h("a", { href: `download/${encodeURIComponent(ticket)}`, download: "" });
      document.body.append(link);
      link.click();
      link.remove();
    } catch (error) {
      setText(button, error.message);
    }
  }

  async start(run, query) {
    const why = await getDocument(run, "why").catch(() => ({}));
    this.logs = new Logs(run, query, why.first_causes || []);
    if (this.over) this.logs.destroy();
    else this.element.append(this.logs.element);
  }

  key(name) {
    if (name === "/") document.getElementById("find").focus();
    if (name === "G") this.logs?.follow();
  }

  destroy() {
    this.over = true;
    this.logs?.destroy();
  }
}

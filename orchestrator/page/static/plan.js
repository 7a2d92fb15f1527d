// #/r/RUN/plan: what its tasks are started with, and what its spec resolved to.

import { getDocument, h, page, put, report } from "./base.js";
import { section } from "./parts.js";

// A document as lines of `key: value`, without what has no value.
const plainLines = (value, indent = "") => {
  const isInner = (each) => each !== null && typeof each === "object" && Object.keys(each).length > 0;
  const word = (each) =>
    typeof each === "string" &&
    /^(--?)?[a-z_/~][\w./~@-]*$/i.test(each) &&
    !/^(true|false|null|yes|no|on|off|~)$/i.test(each)
      ? each
      : JSON.stringify(each);
  if (Array.isArray(value) && !value.some(isInner)) return [`${indent}[${value.map(word).join(", ")}]`];
  if (Array.isArray(value))
    return value.flatMap((each) =>
      plainLines(each, `${indent}  `).map((line, i) => (i ? line : `${indent}- ${line.trimStart()}`)),
    );
  return Object.entries(value)
    .filter(([, each]) => each !== null && each !== "")
    .flatMap(([key, each]) => {
      if (!isInner(each)) return [`${indent}${key}: ${word(each)}`];
      const inner = plainLines(each, `${indent}  `);
      return Array.isArray(each) && inner.length === 1
        ? [`${indent}${key}: ${inner[0].trimStart()}`]
        : [`${indent}${key}:`, ...inner];
    });
};

export class PlanView {
  constructor(run) {
    this.id = run;
    this.area = h("div", {}, h("p", { class: "dim" }, "Loading…"));
    this.element = h("div", {}, h("h1", {}, "Plan and spec ", h("small", {}, run)), this.area);
    this.load();
  }

  async load() {
    this.generation = page.state.runs[this.id]?.generation;
    try {
      this.show(await getDocument(this.id, "plan"));
    } catch (error) {
      put(this.area, h("p", {}, error.message));
    }
  }

  show(plan) {
    const pre = (name, text) => [h("h2", {}, name), h("pre", { class: "doc", tabindex: "0" }, text)];
    const command = (task) => task.command.join(" ");
    const lines = (task) =>
      Object.entries(task.env)
        .filter(([name]) => name !== "TF_CONFIG")
        .map(([name, value]) => `${name}=${value}`)
        .sort();
    // What all tasks have in common is shown once, and of each only what differs.
    const [first, ...others] = plan.tasks;
    const ofAll = new Set(
      others.length ? lines(first).filter((line) => others.every((task) => lines(task).includes(line))) : [],
    );
    const oneCommand = others.length > 0 && others.every((task) => command(task) === command(first));
    const facts = [
      `The strategy is ${plan.strategy}.`,
      `The code comes from ${plan.workdir}.`,
      plan.checkpoint_dir
        ? `Checkpoints are in ${plan.checkpoint_dir}.`
        : "There is no checkpoint directory.",
      plan.ports_held
        ? `The ports are those of generation ${plan.generation}.`
        : "Not all tasks have joined: of the others, these are the ports that they try first.",
    ];
    if (!Object.keys(first?.env || {}).length)
      facts.push("The environment is not shown to whom the page is shared with.");
    const { tasks, ...rest } = plan.resolved || {};
    put(
      this.area,
      h("p", { class: "sentence" }, facts.join(" ")),
      plan.tasks.map((task) =>
        h(
          "details",
          { open: plan.tasks.length <= 2 },
          h("summary", {}, `${task.task} on ${task.host}, ${task.address}`),
          !oneCommand && pre("Command", command(task)),
          task.tf_config && pre("TF_CONFIG", JSON.stringify(task.tf_config, null, 2)),
          pre(
            ofAll.size ? "Environment beside that of all" : "Environment",
            lines(task)
              .filter((line) => !ofAll.has(line))
              .join("\n"),
          ),
        ),
      ),
      ofAll.size > 0 &&
        section(
          `All ${plan.tasks.length} tasks`,
          oneCommand && pre("Command", command(first)),
          pre("Environment", [...ofAll].join("\n")),
        ),
      plan.resolved &&
        section(
          "Spec",
          h(
            "p",
            { class: "dim" },
            "The cluster spec as resolved, with the defaults of what the file leaves out. Secrets are not in it.",
          ),
          h("pre", { class: "doc", tabindex: "0" }, plainLines(rest).join("\n")),
        ),
    );
  }

  // A restart takes other ports, and may take other hosts.
  update() {
    if (!report && this.generation !== page.state.runs[this.id]?.generation) this.load();
  }

  destroy() {}
}

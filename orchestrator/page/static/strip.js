// Many tasks at a glance: a cell each, in the order of their names, coloured by what the task does.

import { h, memo, setText } from "./base.js";
import { isInTrouble } from "./parts.js";
import { colourOf, penOf } from "./timeline.js";

const FROM = 33; // fewer tasks are rows of a table at once
const CELL = 12;

const WORDS = {
  training: ["trains", "train"],
  failed: ["is in trouble", "are in trouble"],
  stall: ["is slow", "are slow"],
  done: ["has ended", "have ended"],
  start: ["does not train yet", "do not train yet"],
};
const stateOf = (task, slow) => {
  if (isInTrouble(task)) return "failed";
  if (slow.has(task.task)) return "stall";
  if (task.phase === "RUNNING") return "training";
  return task.phase === "EXITED" ? "done" : "start";
};

export class Strip {
  constructor(open) {
    this.tasks = [];
    this.canvas = h("canvas", {
      role: "img",
      onclick: (event) => this.at(event) && open(this.at(event).task),
      onpointermove: (event) => this.point(this.at(event)),
      onpointerleave: () => this.point(null),
    });
    this.words = h("p", { class: "dim", role: "status" });
    this.element = h("div", { class: "strip", hidden: true }, this.canvas, this.words);
  }

  show(tasks, slow) {
    this.element.hidden = tasks.length < FROM;
    if (this.element.hidden) return;
    this.tasks = tasks;
    const states = tasks.map((task) => stateOf(task, slow));
    memo(this.canvas, [states, this.canvas.clientWidth, document.documentElement.dataset.theme], () =>
      this.draw(states),
    );
    const counts = Object.keys(WORDS).filter((state) => states.includes(state));
    const counted = counts.map((state) => {
      const count = states.filter((each) => each === state).length;
      return `${count} ${WORDS[state][count === 1 ? 0 : 1]}`;
    });
    this.summary = `${tasks.length} tasks: ${counted.join(", ")}`;
    this.canvas.setAttribute("aria-label", this.summary);
    if (!this.pointed) setText(this.words, this.summary);
  }

  get columns() {
    return Math.max(1, Math.floor(this.canvas.clientWidth / CELL));
  }

  draw(states) {
    const drawing = penOf(this.canvas, Math.ceil(states.length / this.columns) * CELL);
    if (!drawing) return;
    states.forEach((state, i) => {
      drawing.pen.fillStyle = colourOf(state);
      const [x, y] = [(i % this.columns) * CELL, Math.floor(i / this.columns) * CELL];
      drawing.pen.fillRect(x, y, CELL - 2, CELL - 2);
      if (state === "failed") drawing.pen.strokeRect(x - 0.5, y - 0.5, CELL - 1, CELL - 1);
    });
  }

  at({ offsetX, offsetY }) {
    const column = Math.floor(offsetX / CELL);
    return column < this.columns ? this.tasks[Math.floor(offsetY / CELL) * this.columns + column] : null;
  }

  point(task) {
    this.pointed = task;
    const step =
      task?.global_step === null || task?.global_step === undefined ? "" : `, step ${task.global_step}`;
    const where = task?.host ? ` on ${task.host}` : "";
    setText(this.words, task ? `${task.task}${where}: ${task.phase}${step}` : this.summary);
  }
}

// The checkpoints of a run, their state, and buttons to go back to one.

import { bytesText, countText, getDocument, h, memo, page, put, setting, timeText } from "./base.js";
import { ENDED, Table, isStale } from "./parts.js";
import { rollbackButton } from "./actions.js";

export class Checkpoints {
  constructor(view) {
    // a RunView
    this.view = view;
    this.element = h("div");
  }

  // The newest step that is written and that nobody has verified, as the directory was listed last; or null.
  get written() {
    const steps = (this.inventory?.checkpoints || [])
      .filter((one) => !one.writing && one.whole !== false && !one.verified_at && !one.set_aside)
      .map((one) => one.global_step);
    return steps.length ? Math.max(...steps) : null;
  }

  // Ask for the list of checkpoints: at once where another checkpoint was verified, so that the table says what the
  // events do; else again and again while the run saves, since what was verified may be gone, and more be written.
  async refresh(again) {
    const run = this.view.run,
      key = JSON.stringify([
        run?.checkpoint?.path,
        run?.checkpoint?.global_step,
        run?.generation,
        run?.phase,
      ]);
    const writes = (this.inventory?.checkpoints || []).some((one) => one.writing);
    const pauseMs = key !== this.askedFor ? 500 : writes ? 10000 : ENDED.includes(run?.phase) ? Infinity : 30000;
    if (!again && Date.now() - (this.askedTime || 0) < pauseMs) return;
    [this.askedFor, this.askedTime] = [key, Date.now()];
    try {
      const answer = await getDocument(this.view.id, "checkpoints");
      this.listedTime = Date.now() / 1000;
      this.inventory = answer.checkpoints
        ? answer
        : { error: "the directory could not be read when this report was made" };
    } catch (error) {
      // What was listed before stays, with its time.
      this.inventory = { at: this.listedTime, ...this.inventory, error: error.message };
    }
    if (this.view.history) {
      this.view.showTime();
      this.show();
    }
  }

  show() {
    const { inventory } = this;
    const active = !ENDED.includes(this.view.run?.phase);
    const there = (inventory?.checkpoints || []).filter(
      (one, _, all) =>
        !one.given || !all.some((other) => !other.given && other.global_step === one.global_step),
    );
    const verified = this.view.history.checkpoints.slice(-12).reverse();
    memo(this.element, [inventory, verified, setting("zone"), page.actions, active, isStale()], () => {
      if (!inventory?.checkpoints) {
        put(
          this.element,
          h(
            "p",
            {},
            verified
              .map(
                ([at, step]) =>
                  (step === null ? "unknown step" : `step ${countText(step)}`) +
                  ` ✓ ${timeText(this.view.history.begin + at)}`,
              )
              .join(" · ") || h("span", { class: "dim" }, "None was verified."),
          ),
          verified.length > 0 &&
            h(
              "p",
              { class: "dim" },
              inventory
                ? `These were verified. Which of them are still there is not known: ${inventory.error}`
                : "These were verified; the directory is being read…",
            ),
        );
        return;
      }
      const table = new Table(
        [
          {
            name: "step",
            num: true,
            value: (one) => (one.global_step === null ? "unknown" : countText(one.global_step)),
          },
          { name: "generation", num: true, value: (one) => one.generation ?? "–" },
          { name: "saved", value: (one) => timeText(one.saved_at, { date: true }) },
          { name: "size", num: true, value: (one) => bytesText(one.bytes) },
          {
            name: "state",
            class: "wrap",
            value: (one) =>
              [
                one.writing
                  ? "is being written"
                  : one.whole === false
                    ? `✕ ${one.why || "broken"}`
                    : one.verified_at
                      ? "✓ verified"
                      : "not verified yet",
                one.pinned ? "◆ pinned" : "",
                one.set_aside ? "set aside" : "",
              ]
                .filter(Boolean)
                .join(", "),
          },
          ...(page.actions
            ? [
                {
                  name: "action",
                  value: (one) =>
                    one.whole === false || one.writing ? [] : rollbackButton(this.view, one, active),
                  key: (one) => [one.name, one.whole, one.writing, active, isStale()],
                },
              ]
            : []),
        ],
        "Checkpoints",
      );
      const newest = there.slice().sort((a, b) => b.saved_at - a.saved_at);
      table.show(newest.slice(0, 50), (one) => one.name);
      put(
        this.element,
        inventory.error &&
          h("p", { class: "dim" }, `The list of ${timeText(inventory.at)}; since then: ${inventory.error}`),
        newest.length ? table.element : h("p", { class: "dim" }, "The directory holds no checkpoint."),
        newest.length > 50 &&
          h(
            "p",
            { class: "dim" },
            `${newest.length - 50} older ones are not shown; \`orch ckpt ls\` lists all.`,
          ),
      );
    });
  }
}

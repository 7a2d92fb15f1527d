"use strict";
// The checkpoints of a run, their state, and buttons to go back to one.

orch.Checkpoints = class {
  constructor(view) { // a RunView
    this.view = view;
    this.element = orch.h("div");
  }

  // Ask for the list of the directory, since a checkpoint that was verified may have been removed.
  async look(again) {
    const run = this.view.run, key = JSON.stringify([run?.checkpoint?.path, run?.checkpoint?.global_step, run?.generation, run?.phase]);
    const writes = (this.inventory?.checkpoints || []).some((one) => one.writing);
    if (!again && ((key === this.lookedAt && !writes) || Date.now() - (this.lookedTime || 0) < 10000)) return;
    [this.lookedAt, this.lookedTime] = [key, Date.now()];
    try {
      const found = await orch.get(this.view.id, "checkpoints");
      this.inventory = found.checkpoints ? found : { error: "this report was made where the directory could not be asked" };
    } catch (error) { this.inventory = { error: error.message }; }
    if (this.view.told) { this.view.showTime(); this.show(); }
  }

  show() {
    const { inventory } = this, active = !ENDED.includes(this.view.run?.phase);
    const there = (inventory?.checkpoints || []).filter((one, _, all) => !one.given || !all.some((other) => !other.given && other.global_step === one.global_step));
    const told = this.view.told.checkpoints.slice(-12).reverse();
    orch.memo(this.element, [inventory, told, orch.setting("zone"), orch.actions, active], () => {
      if (!inventory?.checkpoints) {
        orch.put(this.element, orch.h("p", {}, told.map(([at, step]) => `${step === null ? "unknown step" : `step ${orch.count(step)}`} ✓ ${orch.time(this.view.told.begin + at)}`).join(" · ") || orch.h("span", { class: "dim" }, "None was verified.")),
          told.length && orch.h("p", { class: "dim" }, inventory ? `These were verified. Which of them are still there is not known: ${inventory.error}` : "These were verified; the directory is being looked at…"));
        return;
      }
      const table = new orch.Table([
        { name: "step", num: true, value: (one) => (one.global_step === null ? "unknown" : orch.count(one.global_step)) },
        { name: "generation", num: true, value: (one) => one.generation ?? "–" },
        { name: "saved", value: (one) => orch.time(one.saved_at, { date: true }) },
        { name: "size", num: true, value: (one) => orch.bytes(one.bytes) },
        { name: "state", class: "wrap", value: (one) => [one.writing ? "is being written" : one.whole === false ? `✕ ${one.why || "broken"}` : one.verified_at ? "✓ verified" : "not verified yet", one.pinned ? "◆ pinned" : "", one.set_aside ? "set aside" : ""].filter(Boolean).join(", ") },
        ...(orch.actions ? [{ name: "action", value: (one) => (one.whole === false || one.writing ? [] : orch.rollbackButton(this.view, one, active)), key: (one) => [one.name, one.whole, one.writing, active] }] : []),
      ], "Checkpoints");
      const newest = there.slice().sort((a, b) => b.saved_at - a.saved_at);
      table.show(newest.slice(0, 50), (one) => one.name);
      orch.put(this.element, newest.length ? table.element : orch.h("p", { class: "dim" }, "The directory holds no checkpoint."), newest.length > 50 && orch.h("p", { class: "dim" }, `${newest.length - 50} older ones are not shown; \`orch ckpt ls\` lists all.`));
    });
  }
};

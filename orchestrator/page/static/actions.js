"use strict";
// What changes a run, with `orch ui --actions`: each button says what it will do, and asks.

// Ask for confirmation. After a yes ask the server, and show why if it refuses.
orch.confirm = (view, title, what, verb, body, word = verb) => {
  const dialog = document.getElementById("dialog");
  const said = orch.h("p", { role: "status" });
  const act = async (event) => {
    event.target.disabled = true;
    orch.text(said, "Asked; waiting for the answer…");
    try { await orch.post(view.id, verb, body); dialog.close(); } catch (error) {
      // It was refused: the reason is shown here, and the choices are asked for anew.
      orch.text(said, `${error.message}${error.hint ? `: ${error.hint}` : ""}`);
      event.target.disabled = false;
    }
    if (verb === "rollback") view.checkpoints.look(true);
  };
  orch.put(dialog, orch.h("h2", {}, title), orch.h("p", {}, what), said, orch.h("div", { class: "actions" },
    orch.h("button", { type: "button", class: "danger", onclick: act }, `Yes, ${word}`), orch.h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "No")));
  dialog.showModal();
};

// Restart the run, or stop it.
orch.runButtons = (view, run) => {
  // By its generation, since its newest checkpoint may change while the question is open.
  const of = /gen-0*(\d+)/.exec(run.checkpoint?.path || "")?.[1];
  orch.memo(view.buttons, [orch.actions, ENDED.includes(run.phase), of], () => {
    if (!orch.actions || ENDED.includes(run.phase)) { orch.put(view.buttons); return; }
    orch.put(view.buttons, of && orch.h("button", { type: "button", onclick: () => orch.confirm(view,
      `Restart ${run.run_id}?`, `All its tasks are stopped, and go on from the newest checkpoint of generation ${of}. What was trained since is trained again.`, "rollback", { checkpoint: `gen-${of}`, restart: true }, "restart") }, "Restart…"), orch.h("button", { type: "button", class: "danger", onclick: () => orch.confirm(view,
      `Stop ${run.run_id}?`, "All its tasks are asked to end, then killed; orch looks at each host that nothing is left. What was not saved is lost.", "kill", {}) }, "Stop the run…"));
  });
};

// Go back to a checkpoint.
orch.rollbackButton = (view, { global_step: step, name, generation }, active) => {
  const then = active ? "All its tasks are stopped, and go on from there." : "The next `orch up` goes on from there.";
  return orch.h("button", { type: "button", "aria-label": `Roll back to step ${orch.count(step)} of generation ${generation ?? "–"}`, onclick: () => orch.confirm(view,
    `Roll ${view.id} back to step ${orch.count(step)}?`, `${then} All newer checkpoints are set aside in their directory, and count no more.`, "rollback", { checkpoint: name, restart: active }, "roll back") }, "roll back…");
};

// Give a host no more tasks, or let it in again.
orch.drainButton = (view, host) => {
  const undo = ["drained", "quarantined", "stuck"].includes(host.state), verb = undo ? "undrain" : "drain";
  const what = undo ? "It may be given tasks again." : "Its tasks move to another host at the next verified checkpoint, or at once where none is kept.";
  return orch.h("button", { type: "button", onclick: () => orch.confirm(view, `${verb} ${host.host}?`, what, verb, { host: host.host }) }, `${verb}…`);
};

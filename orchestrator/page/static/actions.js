// What changes a run, with `orch ui --actions`: each button says what it will do, and asks.

import { countText, h, memo, page, postAction, put, setText } from "./base.js";
import { ENDED, isStale } from "./parts.js";

// Ask for confirmation. After a yes ask the server, and show why if it refuses.
const askFirst = (view, title, what, verb, body, word = verb) => {
  const dialog = document.getElementById("dialog");
  const said = h("p", { role: "status" });
  const act = async (event) => {
    event.target.disabled = true;
    setText(said, "Asked; waiting for the answer…");
    try {
      await postAction(view.id, verb, body);
      dialog.close();
    } catch (error) {
      // It was refused: the reason is shown here, and the choices are asked for anew.
      setText(said, `${error.message}${error.hint ? `: ${error.hint}` : ""}`);
      event.target.disabled = false;
    }
    if (verb === "rollback") view.checkpoints.refresh(true);
  };
  put(
    dialog,
    h("h2", {}, title),
    h("p", {}, what),
    said,
    h(
      "div",
      { class: "actions" },
      h("button", { type: "button", class: "danger", onclick: act }, `Yes, ${word}`),
      h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "No"),
    ),
  );
  dialog.showModal();
};

// Restart the run, or stop it.
export const runButtons = (view, run) => {
  // By its generation, since its newest checkpoint may change while the question is open.
  const of = /gen-0*(\d+)/.exec(run.checkpoint?.path || "")?.[1];
  memo(view.buttons, [page.actions, ENDED.includes(run.phase), of, isStale()], () => {
    if (!page.actions || ENDED.includes(run.phase)) {
      put(view.buttons);
      return;
    }
    if (isStale()) {
      const why = "Restart, stop, drain and roll back need the coordinator, which does not answer.";
      put(view.buttons, h("p", { class: "dim" }, why));
      return;
    }
    put(
      view.buttons,
      of &&
        h(
          "button",
          {
            type: "button",
            onclick: () =>
              askFirst(
                view,
                `Restart ${run.run_id}?`,
                `All its tasks are stopped, and go on from the newest checkpoint of generation ${of}. ` +
                  "What was trained since is trained again.",
                "rollback",
                { checkpoint: `gen-${of}`, restart: true },
                "restart",
              ),
          },
          "Restart…",
        ),
      h(
        "button",
        {
          type: "button",
          class: "danger",
          onclick: () =>
            askFirst(
              view,
              `Stop ${run.run_id}?`,
              "All its tasks are asked to end, then killed; orch checks on each host that no process is left. " +
                "Progress that was not saved is lost.",
              "kill",
              {},
            ),
        },
        "Stop the run…",
      ),
    );
  });
};

// Go back to a checkpoint.
export const rollbackButton = (view, { global_step: step, name, generation }, active) => {
  const then = active
    ? "All its tasks are stopped, and resume from it."
    : "The next `orch up --continue` resumes from it.";
  return h(
    "button",
    {
      type: "button",
      disabled: isStale(),
      "aria-label": `Roll back to step ${countText(step)} of generation ${generation ?? "–"}`,
      onclick: () =>
        askFirst(
          view,
          `Roll ${view.id} back to step ${countText(step)}?`,
          `${then} All newer checkpoints are set aside in their directory, and no longer used.`,
          "rollback",
          { checkpoint: name, restart: active },
          "roll back",
        ),
    },
    "roll back…",
  );
};

// Give a host no more tasks, or let it in again.
export const drainButton = (view, host) => {
  const undo = ["drained", "quarantined", "stuck"].includes(host.state),
    verb = undo ? "undrain" : "drain";
  const what = undo
    ? "It may be given tasks again."
    : "Its tasks move to another host at the next verified checkpoint, or at the next restart where none is kept.";
  return h(
    "button",
    {
      type: "button",
      disabled: isStale(),
      onclick: () => askFirst(view, `${verb} ${host.host}?`, what, verb, { host: host.host }),
    },
    `${verb}…`,
  );
};

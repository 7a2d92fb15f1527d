// The start of the page: the key, the route, the stream, the header and the keyboard.

import {
  applyChanges,
  go,
  h,
  linkTo,
  openStream,
  page,
  put,
  report,
  route,
  setText,
  setting,
  timeText,
} from "./base.js";
import { RunsView } from "./runs.js";
import { RunView } from "./run.js";
import { LogsView } from "./logview.js";
import { PlanView } from "./plan.js";
import { COMPARED_MAX } from "./plots.js";
import { CompareView } from "./compare.js";
import { PoolView } from "./pool.js";

const SILENT_S = 12; // the server says every 5 s that it lives

const $ = (id) => document.getElementById(id);
let view = null;
let shown = "";
let stopStream = null;
let hiddenTimer = null;

// The server sends a browser that has logged in to `#key=…`, once.
const takeKey = () => {
  const match = /^#key=([\w-]+)$/.exec(location.hash);
  if (!match) return;
  setting("key", match[1]);
  history.replaceState(null, "", "#/");
};

// ---------------------------------------------------------------- header

const named = (id, what, value) => {
  setText($(id), value);
  $(id).setAttribute("aria-label", `${what}: ${value}`);
};
const themes = ["auto", "light", "dark"];
const applyTheme = () => {
  const chosen = setting("theme") || "auto";
  const dark = chosen === "dark" || (chosen === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  named("theme", "Colours", chosen);
};
const nextTheme = () => {
  setting("theme", themes[(themes.indexOf(setting("theme") || "auto") + 1) % 3]);
  applyTheme();
  render(true);
};
const applyZone = () => named("zone", "Times", setting("zone") === "utc" ? "UTC" : "local");
const nextZone = () => {
  setting("zone", setting("zone") === "utc" ? "local" : "utc");
  applyZone();
  render(true);
};
const help = () => {
  const rows = [
    ["r h", "runs, hosts"],
    ["l i", "logs, plan of the run"],
    ["w s a d", "zoom and pan the time"],
    ["n p", "next, previous first cause"],
    ["Enter", "on the timeline: the log there"],
    ["0", "all of the time"],
    ["/ G", "find in the logs, to their end"],
    ["t z", "colours, time zone"],
  ];
  const off = setting("keys") === "off";
  put(
    $("dialog"),
    h("h2", {}, "Keys"),
    h(
      "table",
      {},
      rows.map(([key, what]) => h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, what))),
    ),
    h(
      "div",
      { class: "actions" },
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            setting("keys", off ? "on" : "off");
            $("dialog").close();
          },
        },
        off ? "Turn them on" : "Turn them off",
      ),
      h("button", { type: "button", autofocus: true, onclick: () => $("dialog").close() }, "Close"),
    ),
  );
  $("dialog").showModal();
};
const crumbs = (parts) =>
  put(
    $("crumbs"),
    h("a", { href: "#/" }, "orch"),
    parts[0] === "r" ? [" ▸ ", h("a", { href: linkTo(["r", parts[1]]) }, parts[1])] : "",
    parts[2] ? ` ▸ ${parts[2]}` : "",
    parts.length || report ? "" : [" · ", h("a", { href: "#/pool" }, "hosts")],
    parts[0] === "pool" ? " ▸ hosts" : "",
  );

// ---------------------------------------------------------------- views

const render = (again) => {
  const { parts, query } = route();
  const { from, to, ...rest } = query;
  const of = { logs: rest, compare: query.run };
  const key = JSON.stringify([parts, of[parts[2] ?? parts[0]] ?? null]);
  if (key === shown && !again) {
    view?.routed?.();
    return;
  }
  shown = key;
  view?.destroy();
  crumbs(parts);
  document.title = parts[1] ? `${parts[1]} · orch` : "orch";
  if (parts[0] === "r" && parts[2] === "logs") view = new LogsView(parts[1], query);
  else if (parts[0] === "r" && parts[2] === "plan") view = new PlanView(parts[1]);
  else if (parts[0] === "r" && parts[1]) view = new RunView(parts[1], query);
  else if (parts[0] === "compare" && query.run?.includes(","))
    view = new CompareView(query.run.split(",").slice(0, COMPARED_MAX));
  else if (parts[0] === "pool" && !report) view = new PoolView();
  else view = new RunsView();
  const label = document.activeElement?.closest("main") && document.activeElement.getAttribute("aria-label");
  put($("main"), view.element);
  // A filter makes the view anew; whoever has set it by keyboard stays in it.
  const same = [...$("main").querySelectorAll("[aria-label]")].find(
    (each) => each.getAttribute("aria-label") === label,
  );
  if (label) same?.focus();
  if (page.fault) {
    page.fault = "";
    showConnection();
  }
  listen();
};

const live = (on, words) => {
  $("live").className = `live ${on ? "on" : "off"}`;
  setText($("live"), words);
};
// An error of the page itself is said as that: the server may be well.
const guarded = (act) => {
  try {
    act();
  } catch (error) {
    reportError(error);
  }
};
const showFault = (error) => {
  const what = `This page has met an error of its own, so what it shows may be incomplete: ${error.message}`;
  page.fault = `${what}. Reload it.`;
  setText($("away"), page.fault);
  $("away").hidden = false;
};
// Without an error it is a notice of the browser, as that a size is observed once more in the next frame.
window.addEventListener("error", ({ error }) => error && showFault(error));
// Show whether the page is up to date. Without a coordinator it shows, in grey, what was known last.
const showConnection = () => {
  if (report) return;
  const away = page.state.away_since;
  document.body.classList.toggle("stale", page.isCut || Boolean(away));
  $("away").hidden = !page.isCut && !away && !page.fault;
  if (page.isCut) {
    live(false, "not connected");
    setText($("away"), page.isCut);
  } else if (away) {
    live(false, "coordinator away");
    setText(
      $("away"),
      `The coordinator has not answered since ${timeText(away, { date: true })}. The page shows what was known then. ` +
        "Tasks can train on without it; whether they still do is not known. Until " +
        "`orch coordinator start` nobody restarts what fails.",
    );
  } else {
    live(true, "live");
    setText($("away"), page.fault);
  }
  guarded(() => view?.update());
};

// ---------------------------------------------------------------- the stream

let streamed = null;
const listen = () => {
  if (report) return;
  const { parts } = route();
  const run = parts[0] === "r" ? parts[1] : null;
  if (stopStream && streamed === run) return;
  stopStream?.();
  streamed = run;
  stopStream = openStream(run, {
    snapshot: (state) => {
      page.state = state;
      page.loaded = true;
      page.isCut = "";
      showConnection();
    },
    delta: (changes) => {
      applyChanges(page.state, changes);
      showConnection();
    },
    event: (event) => guarded(() => view?.happened?.(event)),
    alive: () => {
      if (!page.isCut) return;
      page.isCut = "";
      showConnection();
    },
    broken: (error) => {
      const refused = error.status === 401 || error.status === 403;
      page.isCut = refused
        ? "This browser has no access. Open an address that `orch ui` or `orch ui link` has printed."
        : `\`orch ui\` does not answer. The page shows what was known at ${timeText(page.heardAt)}, and tries again.`;
      showConnection();
    },
  });
};
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden)
    hiddenTimer = setTimeout(() => {
      stopStream?.();
      stopStream = null;
      live(false, "paused");
    }, 10000);
  else if (!stopStream) listen();
});

// ---------------------------------------------------------------- keys

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || setting("keys") === "off") return;
  if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) || $("dialog").open) return;
  const keys = { t: nextTheme, z: nextZone, "?": help, r: () => go([]), h: () => go(["pool"]) };
  if (keys[event.key]) keys[event.key]();
  else if (view?.key) view.key(event.key);
  else return;
  if (event.key === "/") event.preventDefault();
});

// ---------------------------------------------------------------- begin

takeKey();
applyTheme();
applyZone();
$("theme").addEventListener("click", nextTheme);
$("zone").addEventListener("click", nextZone);
$("keys").addEventListener("click", help);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  applyTheme();
  render(true);
});
window.addEventListener("beforeprint", () => {
  document.documentElement.dataset.theme = "light";
  view?.routed?.();
});
window.addEventListener("afterprint", () => {
  applyTheme();
  view?.routed?.();
});
window.addEventListener("hashchange", () => render(false));
// A server that was started again has a new key, which another tab was given.
window.addEventListener("storage", (event) => {
  if (event.key !== "orch-key" || !page.isCut) return;
  stopStream?.();
  stopStream = null;
  listen();
});
setInterval(() => {
  // A server that stands still does not close its connection.
  const silent = Date.now() / 1000 - page.heardAt > SILENT_S && !document.hidden && stopStream;
  if (silent && page.heardAt && !page.isCut) {
    page.isCut = `\`orch ui\` has sent nothing since ${timeText(page.heardAt)}. The page shows what was known then.`;
    showConnection();
  } else view?.update();
}, 2000);
if (report) {
  page.state = report.state;
  page.loaded = true;
  live(true, `report of ${timeText(report.made, { date: true })}`);
  const start = report.other
    ? linkTo(["compare"], { run: `${report.run},${report.other.run}` })
    : linkTo(["r", report.run]);
  if (location.hash.length < 3) history.replaceState(null, "", start);
  render(false);
} else {
  page.actions = document.body.dataset.actions === "yes";
  render(false);
}

"use strict";
// The start of the page: the key, the route, the stream, the header and the keyboard.
(() => {
  const $ = (id) => document.getElementById(id);
  let view = null, shown = "", stopStream = null, hiddenTimer = null;

  // The server sends a browser that has logged in to `#key=…`, once.
  const takeKey = () => {
    const found = /^#key=([\w-]+)$/.exec(location.hash);
    if (!found) return;
    orch.setting("key", found[1]);
    history.replaceState(null, "", "#/");
  };

  // ---------------------------------------------------------------- header

  const named = (id, what, value) => { orch.text($(id), value); $(id).setAttribute("aria-label", `${what}: ${value}`); };
  const themes = ["auto", "light", "dark"];
  const applyTheme = () => {
    const chosen = orch.setting("theme") || "auto";
    const dark = chosen === "dark" || (chosen === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    named("theme", "Colours", chosen);
  };
  const nextTheme = () => { orch.setting("theme", themes[(themes.indexOf(orch.setting("theme") || "auto") + 1) % 3]); applyTheme(); render(true); };
  const applyZone = () => named("zone", "Times", orch.setting("zone") === "utc" ? "UTC" : "local");
  const nextZone = () => { orch.setting("zone", orch.setting("zone") === "utc" ? "local" : "utc"); applyZone(); render(true); };
  const help = () => {
    const rows = [["r", "runs"], ["l i", "logs, plan of the run"], ["w s a d", "zoom and pan the time"], ["n p", "next, previous first cause"], ["Enter", "on the timeline: the log there"], ["0", "all of the time"], ["/ G", "find in the logs, to their end"], ["t z", "colours, time zone"]];
    const off = orch.setting("keys") === "off";
    orch.put($("dialog"), orch.h("h2", {}, "Keys"), orch.h("table", {}, rows.map(([key, what]) => orch.h("tr", {}, orch.h("th", { scope: "row" }, key), orch.h("td", {}, what)))),
      orch.h("div", { class: "actions" }, orch.h("button", { type: "button", onclick: () => { orch.setting("keys", off ? "on" : "off"); $("dialog").close(); } }, off ? "Turn them on" : "Turn them off"),
        orch.h("button", { type: "button", autofocus: true, onclick: () => $("dialog").close() }, "Close")));
    $("dialog").showModal();
  };
  const crumbs = (parts) => orch.put($("crumbs"), orch.h("a", { href: "#/" }, "orch"), parts[0] === "r" ? [" ▸ ", orch.h("a", { href: orch.link(["r", parts[1]]) }, parts[1])] : "", parts[2] ? ` ▸ ${parts[2]}` : "");

  // ---------------------------------------------------------------- views

  const render = (again) => {
    const { parts, query } = orch.route();
    const { from, to, plots, ...rest } = query;
    const key = JSON.stringify(parts[2] === "logs" ? [parts, rest] : parts);
    if (key === shown && !again) { view?.routed?.(); return; }
    shown = key;
    view?.destroy();
    crumbs(parts);
    document.title = parts[1] ? `${parts[1]} · orch` : "orch";
    if (parts[0] === "r" && parts[2] === "logs") view = new orch.LogsView(parts[1], query);
    else if (parts[0] === "r" && parts[2] === "plan") view = new orch.PlanView(parts[1]);
    else if (parts[0] === "r" && parts[1]) view = new orch.RunView(parts[1], query);
    else view = new orch.RunsView();
    orch.put($("main"), view.element);
    listen();
  };

  const tell = () => {
    const away = orch.state.away_since;
    $("away").hidden = !away || Boolean(orch.report);
    if (away) orch.text($("away"), `The coordinator has not answered since ${orch.time(away, { date: true })}: this is its last record. The tasks go on training; \`orch coordinator start\` starts it.`);
    view?.update();
  };
  const live = (on, words) => { $("live").className = `live ${on ? "on" : "off"}`; orch.text($("live"), words); };

  // ---------------------------------------------------------------- the stream

  let streamed = null;
  const listen = () => {
    if (orch.report) return;
    const { parts } = orch.route();
    const run = parts[0] === "r" ? parts[1] : null;
    if (stopStream && streamed === run) return;
    stopStream?.();
    streamed = run;
    stopStream = orch.stream(run, {
      snapshot: (told) => { orch.state = told; orch.loaded = true; live(true, "live"); tell(); },
      delta: (told) => { orch.patch(orch.state, told); tell(); },
      event: (event) => view?.happened?.(event),
      broken: (error) => {
        live(false, "not connected");
        const refused = error.status === 401 || error.status === 403;
        $("away").hidden = false;
        orch.text($("away"), refused ? "This browser is not let in. Open the address that `orch ui` has printed." : "`orch ui` does not answer: this is what it told last. The page tries again.");
      },
    });
  };
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) hiddenTimer = setTimeout(() => { stopStream?.(); stopStream = null; live(false, "paused"); }, 10000);
    else if (!stopStream) listen();
  });

  // ---------------------------------------------------------------- keys

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || orch.setting("keys") === "off") return;
    if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) || $("dialog").open) return;
    const keys = { t: nextTheme, z: nextZone, "?": help, r: () => orch.go([]) };
    if (keys[event.key]) keys[event.key](); else if (view?.key) view.key(event.key); else return;
    if (event.key === "/") event.preventDefault();
  });

  // ---------------------------------------------------------------- begin

  takeKey();
  applyTheme();
  applyZone();
  $("theme").addEventListener("click", nextTheme);
  $("zone").addEventListener("click", nextZone);
  $("keys").addEventListener("click", help);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { applyTheme(); render(true); });
  window.addEventListener("hashchange", () => render(false));
  setInterval(() => view?.update(), 2000);
  if (orch.report) {
    orch.state = orch.report.state;
    orch.loaded = true;
    live(true, `report of ${orch.time(orch.report.made, { date: true })}`);
    if (location.hash.length < 3) history.replaceState(null, "", orch.link(["r", orch.report.run]));
    render(false);
  } else {
    orch.actions = document.body.dataset.actions === "yes";
    render(false);
  }
})();

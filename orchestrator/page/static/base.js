// Shared by all files: elements, numbers in words, the state, and requests to the server.

// ---------------------------------------------------------------- elements

// Make an element. Texts become text nodes: nothing here or elsewhere parses HTML.
export const h = (tag, attributes, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  put(made, ...children);
  return made;
};
export const put = (element, ...children) => {
  element.replaceChildren(
    ...children
      .flat(9)
      .filter((each) => each !== null && each !== undefined && each !== false)
      .map((each) => (each instanceof Node ? each : document.createTextNode(plainText(each)))),
  );
  return element;
};
export const setText = (element, text) => {
  const plain = plainText(text);
  if (element.textContent !== plain) element.textContent = plain;
};
// Show characters that change how a text is read, such as a change of direction, as their code.
export const plainText = (text) =>
  String(text)
    // oxlint-disable-next-line no-control-regex
    .replace(/\x1b\[[0-9;]*m/g, "")
    .replace(
      // oxlint-disable-next-line no-control-regex
      /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g,
      (character) => (character === "\r" ? "␍" : `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`),
    );
// Run `make` again only if `key` differs from the last time, so that existing elements keep their focus.
export const memo = (element, key, make) => {
  const text = JSON.stringify(key);
  if (element.orchKey === text) return;
  element.orchKey = text;
  make(element);
};

// ---------------------------------------------------------------- words

export const countText = (value) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en-US", { maximumFractionDigits: 0 });
export const numberText = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
};
export const durationText = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (s < 60) return `${s} s`;
  const [days, hours, minutes] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${s % 60} s`;
};
export const bytesText = (value) => {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  for (; value >= 1024 && unit < 4; unit += 1) value /= 1024;
  return `${value.toFixed(unit && value < 10 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
};
export const percentText = (value, digits = 0) =>
  value === null || value === undefined ? "–" : `${value.toFixed(digits)}%`;
export const timeText = (unix, { date = false } = {}) => {
  if (!unix) return "–";
  const zone = setting("zone") === "utc" ? "UTC" : undefined;
  const time = new Date(unix * 1000);
  const clock = time.toLocaleTimeString("sv-SE", { timeZone: zone });
  return date ? `${time.toLocaleDateString("sv-SE", { timeZone: zone })} ${clock}` : clock;
};

// ---------------------------------------------------------------- settings, kept in this browser

export const setting = (name, value) => {
  try {
    if (value !== undefined) localStorage.setItem(`orch-${name}`, value);
    return localStorage.getItem(`orch-${name}`);
  } catch {
    return null;
  } // a report in a browser that allows files no storage
};

// ---------------------------------------------------------------- the state

const embedded = document.getElementById("data");
export const report = embedded ? JSON.parse(embedded.textContent) : null;
// The state, whether it has come, why the page's server does not answer (empty while it does), what went wrong in the
// page itself, when the server was heard last, whether actions are offered, and the timeline that is shown.
export const page = {
  state: { runs: {}, away_since: null, troubles: [] },
  loaded: false,
  isCut: "",
  fault: "",
  heardAt: 0,
  actions: false,
  timeline: null,
};

// Apply a change; see `difference` of feed.py.
export const applyChanges = (target, changes) => {
  for (const name of changes["-"] || []) delete target[name];
  for (const [name, value] of Object.entries(changes)) {
    if (name === "-" || name === "__proto__") continue;
    const inner = value !== null && typeof value === "object" && !Array.isArray(value);
    const known = Object.hasOwn(target, name) ? target[name] : null;
    target[name] = inner
      ? applyChanges(known !== null && typeof known === "object" && !Array.isArray(known) ? known : {}, value)
      : value;
  }
  return target;
};

// ---------------------------------------------------------------- the server

const serverKey = () => setting("key") || "";
const urlOf = (path, query) => {
  const text = new URLSearchParams(
    Object.entries(query || {}).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  return text.size ? `${path}?${text}` : path;
};
const SERIES_MAX = 32; // the server answers twice as many; see run_series.py
export const getDocument = async (run, what, query, signal) => {
  if (report) return fromReport(report.other?.run === run ? report.other : report, what, query || {});
  const path = run ? `v1/runs/${encodeURIComponent(run)}/${what}` : "v1/runs";
  const ask = (its) => askServer(urlOf(path, its), { signal });
  if (what !== "series") return ask(query);
  // In parts: an answer has a limited number of series, and an address a limited length.
  const names = (query.names || "").split(",");
  const parts = Array.from({ length: Math.ceil(names.length / SERIES_MAX) }, (_, i) =>
    ask({ ...query, names: names.slice(i * SERIES_MAX, (i + 1) * SERIES_MAX).join(",") }),
  );
  return { series: (await Promise.all(parts)).flatMap(({ series }) => series) };
};
// All hosts, and who has what there; see `Source.pool`.
export const askPool = () => askServer("/v1/pool");
const askServer = async (url, options) => {
  const response = await fetch(url, { ...options, headers: { "Orch-Key": serverKey() } });
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    const error = new Error(body?.error?.message || `the page's server answered ${response.status}`);
    error.status = response.status;
    error.hint = body?.error?.hint;
    throw error;
  }
  return response.json();
};
export const postAction = (run, verb, body) =>
  askServer(`v1/runs/${encodeURIComponent(run)}/${verb}`, { method: "POST", body: JSON.stringify(body) });
// A series as `names` takes it: a metric's name may hold commas and slashes.
export const seriesName = ({ task, name }) =>
  (task ? [task, name] : [name]).map(encodeURIComponent).join("/");
const fromReport = (documents, what, query) => {
  if (what === "band")
    return documents.bands.find((one) => one.of === query.of && one.name === query.name) || { x: [], outliers: [] };
  if (what !== "series") return documents[what] || {};
  const names = new Set((query.names || "").split(","));
  const series = documents.series[query.x || "time"].filter((one) => names.has(seriesName(one)));
  return { series };
};

// Server-sent events by fetch, which can send our key; an EventSource cannot. `handlers` may not throw: what they throw
// would count as a broken stream.
export const openStream = (run, handlers) => {
  const stop = new AbortController();
  let lastEvent = null;
  const once = async () => {
    const query = urlOf("v1/stream", { run, after: lastEvent });
    const response = await fetch(query, { headers: { "Orch-Key": serverKey() }, signal: stop.signal });
    if (!response.ok) {
      const error = new Error(`${response.status}`);
      error.status = response.status;
      throw error;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      page.heardAt = Date.now() / 1000;
      handlers.alive();
      held += value.replace(/\r\n/g, "\n");
      for (let end = held.indexOf("\n\n"); end >= 0; end = held.indexOf("\n\n")) {
        const fields = {};
        for (const line of held.slice(0, end).split("\n")) {
          const at = line.indexOf(": ");
          if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
        }
        held = held.slice(end + 2);
        if (fields.id) lastEvent = fields.id;
        if (fields.event && handlers[fields.event]) handlers[fields.event](JSON.parse(fields.data));
      }
    }
  };
  const forever = async () => {
    for (let wait = 500; !stop.signal.aborted; wait = Math.min(8000, wait * 2)) {
      try {
        await once();
        wait = 500;
      } catch (error) {
        if (stop.signal.aborted) return;
        handlers.broken(error);
        if (error.status === 401 || error.status === 403) return;
      }
      await new Promise((done) => {
        setTimeout(done, wait);
      });
    }
  };
  forever();
  return () => stop.abort();
};

// ---------------------------------------------------------------- where we are

// #/r/RUN/logs?task=worker:0 → {parts: ["r", RUN, "logs"], query}
export const route = () => {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decodeURIComponent),
    query: Object.fromEntries(new URLSearchParams(query || "")),
  };
};
export const linkTo = (parts, query) => {
  const text = new URLSearchParams(
    Object.entries(query || {}).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  return `#/${parts.map(encodeURIComponent).join("/")}${text.size ? `?${text}` : ""}`;
};
export const go = (parts, query, replace) => {
  const target = linkTo(parts, query);
  if (replace) {
    history.replaceState(null, "", target);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = target;
};
// What wheels and fingers do to a stretch of time: `zoom(factor, x)`, `pan(pixels)`; by mouse, `select(x, x)`;
// `tap(event)`.
export const onGestures = (element, { zoom, pan, select, tap }) => {
  const held = new Map();
  let began = null;
  const at = (event) => event.clientX - element.getBoundingClientRect().left;
  element.style.touchAction = "pan-y"; // up and down scrolls the page; the rest is ours
  element.addEventListener("pointerdown", (event) => {
    held.set(event.pointerId, at(event));
    began = held.size === 1 ? { x: at(event), touch: event.pointerType === "touch" } : null;
  });
  element.addEventListener("pointermove", (event) => {
    if (!held.has(event.pointerId)) return;
    const before = [...held.values()];
    held.set(event.pointerId, at(event));
    const now = [...held.values()];
    if (now.length === 2) {
      const [from, to] = [before, now].map(([one, other]) => Math.abs(one - other));
      if (from > 8 && to > 8) zoom(from / to, (now[0] + now[1]) / 2);
    } else if (now.length === 1 && event.pointerType === "touch") pan(before[0] - now[0]);
  });
  const released = (event) => {
    if (!held.delete(event.pointerId) || !began) return;
    const x = at(event),
      far = Math.abs(x - began.x) > 8;
    if (event.type === "pointerup" && far && !began.touch && select)
      select(Math.min(x, began.x), Math.max(x, began.x));
    if (event.type === "pointerup" && !far && tap) tap(event);
    began = null;
  };
  for (const type of ["pointerup", "pointercancel", "pointerleave"]) element.addEventListener(type, released);
  element.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      const turn = Math.sign(event.deltaY || event.deltaX);
      if (event.ctrlKey) zoom(turn > 0 ? 1.3 : 0.77, at(event));
      else pan(turn * element.clientWidth * 0.15);
    },
    { passive: false },
  );
};
export const zoomTo = (range) => {
  const { parts, query } = route();
  go(parts, { ...query, from: range ? range[0].toFixed(1) : null, to: range ? range[1].toFixed(1) : null });
};
export const isDark = () => document.documentElement.dataset.theme === "dark";
export const announce = (text) => setText(document.getElementById("announce"), text);

// #/pool: the hosts of the active runs, each GPU and slot a field with who holds it.

import { askPool, bytesText, h, linkTo, percentText, put, timeText } from "./base.js";
import { section } from "./parts.js";

const EVERY_S = 5;

// Who has a GPU or slot: the holder of its lease, else who computes on it; empty if it is free.
const holder = (each) => {
  if (each.held_by) return each.held_by.run || each.held_by.user || "a process";
  const [process] = each.processes || [];
  return process ? process.run || `${process.user || "unknown user"}, pid ${process.pid}` : "";
};

const details = (each) => {
  const by = each.held_by;
  const parts = by
    ? [by.user && `user ${by.user}`, by.head, by.since && `since ${timeText(by.since, { date: true })}`]
    : [];
  return parts.filter(Boolean).join(", ");
};

const field = (name, each, facts, runs) => {
  const who = holder(each);
  const link = runs.has(who) ? h("a", { href: linkTo(["r", who]) }, who) : who;
  return h(
    "li",
    { class: who ? "held" : "free" },
    h("strong", {}, name),
    h("span", {}, who ? link : "free"),
    h("small", {}, [...facts, who && details(each)].filter(Boolean).join(" · ")),
  );
};

const gpuFacts = (gpu) => [
  gpu.name,
  gpu.memory_total_bytes && `${bytesText(gpu.memory_used_bytes)} of ${bytesText(gpu.memory_total_bytes)}`,
  gpu.utilization_percent !== null && percentText(gpu.utilization_percent),
];

// What keeps tasks away from a host; empty if nothing does.
const closed = (host) => {
  if (!host.reachable) return `unreachable: ${host.problem}`;
  return host.state && !["ready", "spare"].includes(host.state)
    ? `${host.state}${host.reason ? `: ${host.reason}` : ""}`
    : "";
};

const poolHost = (host, runs) => {
  const why = closed(host);
  const labels = Object.entries(host.labels || {}).map(([key, value]) => `${key}: ${value}`);
  return h(
    "section",
    { class: "host", "aria-label": host.host },
    h("h3", {}, host.host, h("small", { class: "dim" }, [" ", host.spare ? "spare " : "", labels.join(", ")])),
    why && h("p", { class: "phase bad" }, why),
    host.reachable &&
      h(
        "ul",
        { class: "grid" },
        host.gpus.map((gpu) => field(`GPU ${gpu.index}`, gpu, gpuFacts(gpu), runs)),
        (host.slots || []).map((slot) => field(`slot ${slot.slot}`, slot, [], runs)),
        !host.gpus.length &&
          !(host.slots || []).length &&
          h("li", {}, host.runs.map((run) => run.run_id).join(", ") || "no GPUs, and nothing of orch runs here"),
      ),
  );
};

const freeText = (free, all, hosts) => {
  const on = `on ${hosts} host${hosts === 1 ? "" : "s"}`;
  return all ? `${free} of ${all} GPUs and slots are free, ${on}.` : `No GPUs or slots are counted ${on}.`;
};

export class PoolView {
  constructor() {
    this.area = h("div", {}, h("p", { class: "dim" }, "Asking the hosts…"));
    this.element = h("div", {}, h("h1", {}, "Hosts"), this.area);
    this.timer = setInterval(() => document.hidden || this.load(), EVERY_S * 1000);
    this.load();
  }

  async load() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      this.show(await askPool());
    } catch (error) {
      put(this.area, h("p", {}, error.message));
    }
    this.isAsking = false;
  }

  show({ hosts, runs }) {
    const fields = hosts.flatMap((host) => [...host.gpus, ...(host.slots || [])].map((each) => [host, each]));
    const free = fields.filter(([host, each]) => !closed(host) && !holder(each)).length;
    const known = new Set(runs);
    put(
      this.area,
      h(
        "p",
        { class: "sentence" },
        hosts.length ? freeText(free, fields.length, hosts.length) : "No run is active, so no hosts are known.",
      ),
      section("All hosts", h("div", { class: "pool" }, hosts.map((host) => poolHost(host, known)))),
    );
  }

  update() {}

  destroy() {
    clearInterval(this.timer);
  }
}

"""Hosts that lie: frames that are none, and reports and answers that are well-typed and false.

The values are those of the fuzz tests. A host may say whatever it likes about the run that it serves; it must not stop
the coordinator, nor touch another run.
"""

from __future__ import annotations

from random import Random
from typing import Any

from orchestrator.head.links import edge
from orchestrator.head.links.edge import WireError
from orchestrator.protocol.channel import encode
from orchestrator.protocol.orders.base import Order
from tests.lies import framed, lied
from tests.protocol_orders import BY_NAME

LIES = 0.3
"""How often a message is a lie."""

STEPS = (0, 1, 10**6, 10**12, None)
CAUSES = ("finished", "script", "oom", "shim-died", "rebooted", "signal")


class Liar:
    """What a host says in place of the truth, about one run."""

    def __init__(self, chance: Random, host: str, run_id: str, others: list[str], *, misfit: bool) -> None:
        self._chance = chance
        self._host = host
        self._run_id = run_id
        self._others = others
        self._misfit = misfit

    def tell(self, message: dict[str, Any], blob: bytes, order: dict[str, Any] | None) -> bytes:
        """Return the bytes to send in place of a message; `order` is what a reply answers."""
        truth = encode(message, blob)
        about = order is None or order.get("run") == self._run_id
        if not about or self._chance.random() > LIES:
            return truth
        if self._misfit:
            data = framed(lied(message, self._chance), blob)
            return data if self._chance.random() < 0.9 else self._chance.randbytes(20) + data
        try:
            lie = self._reply(message) if order is not None else self._report(message)
            frame = edge.frame(self._host, lie, blob)
            if order is not None and "report" not in frame and "ok" in frame:
                edge.answer(self._host, Order(BY_NAME[order["order"]], order), frame["ok"], blob)
            return encode(lie, blob)
        except (WireError, KeyError, TypeError):
            return truth  # it was no lie that fits

    def _report(self, message: dict[str, Any]) -> dict[str, Any]:
        report = message["report"]
        tasks = [self._task(task) for task in report["runs"].get(self._run_id, [])]
        if tasks and self._chance.random() < 0.2:
            tasks = tasks[1:] if self._chance.random() < 0.5 else [*tasks, {**tasks[0], "task": "worker:7"}]
        runs = {**report["runs"], self._run_id: tasks}
        told = {**message, "report": {**report, "runs": runs}}
        for other in self._others:
            if other not in runs and self._chance.random() < 0.5:
                runs[other] = [self._ended(task) for task in tasks if task["phase"] != "unknown"]
        return told

    def _task(self, task: dict[str, Any]) -> dict[str, Any]:
        chance = self._chance
        what = chance.choice(("ended", "phase", "generation", "step", "port", "age", "words"))
        if task["phase"] == "unknown" or what == "generation":
            return {**task, "generation": max(0, task["generation"] + chance.choice((-1, 1, 1000)))}
        if what == "ended":
            return self._ended(task)
        if what == "phase" and task.get("exit") is None:
            return {**task, "phase": chance.choice(("starting", "ready", "running"))}
        if what == "step":
            return {**task, "global_step": chance.choice(STEPS)}
        if what == "port":
            return {**task, "port": chance.choice((1, 65535, None)), "pid": chance.choice((1, 2**22, None))}
        if what == "age":
            return {**task, "heartbeat_age_s": 1e6, "step_age_s": 1e6}
        return {
            **task,
            "said": [{"kind": "warning", "message": "lies " * 50}] * 3,
            "metrics": {"loss": 1e300},
        }

    def _ended(self, task: dict[str, Any]) -> dict[str, Any]:
        chance = self._chance
        code, signal = chance.choice(((0, None), (1, None), (42, None), (None, 9)))
        ended = {
            **(task.get("exit") or {}),
            "code": code,
            "signal": signal,
            "cause": chance.choice(CAUSES),
            "ago_s": chance.choice((0.0, 1e6, None)),
            "ended_at": chance.choice((0.0, 1e10)),
            "left": [],
            "ordered": chance.random() < 0.5,
        }
        return {**task, "phase": "exited", "exit": ended}

    def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
        chance = self._chance
        if chance.random() < 0.3:
            code = chance.choice(("gone", "no-task", "superseded", "no-space", "offset", "lies"))
            return {"reply": message["reply"], "error": {"code": code, "message": "a lie", "hint": None}}
        if "ok" not in message:
            return {"reply": message["reply"], "ok": {}}
        return {**message, "ok": self._otherwise(message["ok"])}

    def _otherwise(self, value: Any) -> Any:
        """Return the same with other numbers and words of the same types."""
        chance = self._chance
        if isinstance(value, dict):
            return {key: self._otherwise(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._otherwise(entry) for entry in value][: chance.choice((0, 9))]
        if chance.random() < 0.5:
            return value
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return chance.choice((0, 1, value + 1, 10**6))
        return f"{value}/lies" if isinstance(value, str) else value

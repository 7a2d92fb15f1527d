"""The environments that are being made on this host, each in a process of its own, and how far each one is."""

from __future__ import annotations

import json
import sys

from orchestrator.host.agent import environments
from orchestrator.host.agent.jobs import Result, answer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.host.agent.context import Context
    from orchestrator.host.agent.reply import Reply
    from orchestrator.protocol.orders import hosts

QUERY_S = 120.0
MAKE_S = 7200.0
"""TensorFlow with all of CUDA has 4 GB."""

_MAKING: hosts.EnvironmentState = {
    "state": "making",
    "python": "0",
    "by": "pip",
    "machine": "unknown",
    "libc": "musl",
    "line": "",
    "missing": [],
}


class Setup:
    """The environments that are being made, by key. The processes end with the agent: nobody would see their result."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._under_way: dict[str, Result | None] = {}

    def ask(self, order: hosts.Environment, reply: Reply) -> hosts.EnvironmentState | None:
        """Return how far the environment is; where nobody makes it, begin to, or look for it and reply later."""
        key = order["key"]
        if key not in self._under_way:
            wish = {**order, "host_dir": self._context.host.host_dir}
            if order["begin"]:
                self._under_way[key] = None
                self._start(wish, lambda result: self._under_way.update({key: result}), MAKE_S)
                return _MAKING
            self._start(wish, lambda result: reply.attempt(lambda: _answer(result)), QUERY_S)
            return None
        ended = self._under_way[key]
        if ended is None:
            return {**_MAKING, "line": environments.last_line(key)}
        del self._under_way[key]
        state: hosts.EnvironmentState = _answer(ended)
        return state

    def _start(self, wish: dict[str, Any], done: Any, deadline_s: float) -> None:
        argv = [sys.executable, "-I", "-X", "utf8", self._context.host.bundle, "environment"]
        self._context.jobs.program(argv, done, deadline_s=deadline_s, stdin=json.dumps(wish).encode())


def _answer(result: Result) -> Any:
    return answer_of(result, "the setup of the environment")

"""The tasks of a run under any strategy, started as shims would: real processes, and a real TF_CONFIG."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.core.launching.environment import strategy_options
from orchestrator.core.strategy import STRATEGIES
from tests.patience import comes
from tests.unit.task.runtime_task import Task

"""How long anything may take on a busy machine before a test gives up, in seconds."""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def with_row(options: dict[str, Any]) -> dict[str, Any]:
    """Return the runtime's options, with those that the row of their strategy adds, and what is so by default."""
    row = STRATEGIES.get(options.get("strategy", ""))
    return strategy_options(row) | ({"rescue": True} if row.rescues else {}) | options if row else options


class Member:
    """A task, and all its messages."""

    def __init__(self, task: Task) -> None:
        self.task = task
        task.socket.settimeout(None)  # a busy machine may be silent for long; the test has its own limit
        self.heard: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.heard.extend(json.loads(line) for line in iter(self.task.messages.readline, ""))

    def all_of(self, key: str) -> list[Any]:
        return [message[key] for message in list(self.heard) if key in message]

    def step(self) -> int:
        """Return the last step that it reported; -1 for none."""
        return int((self.all_of("step") or [-1])[-1])

    def ended(self) -> int:
        code = self.task.ended()
        self._reader.join(10)
        return code

    def close(self) -> None:
        self.task.process.kill()
        self._reader.join(10)
        self.task.close()


class Cluster:
    """The tasks by name (`worker:0`). `start` starts one again with the same TF_CONFIG, like an individual restart."""

    def __init__(
        self,
        script: Path,
        *args: str,
        tasks: dict[str, int],
        options: dict[str, Any],
        directory: Path,
        env: dict[str, str] | None = None,
    ) -> None:
        ports = iter(free_ports(sum(tasks.values())))
        self.addresses = {
            kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for kind, count in tasks.items()
        }
        self._script, self._args, self._directory = script, args, directory
        told = {"ORCH_RUNTIME": json.dumps(with_row(options)), "CUDA_VISIBLE_DEVICES": ""}
        self._env = {**STRATEGIES[options["strategy"]].env, **told, **(env or {})}
        self.members: dict[str, Member] = {}
        self._all: list[Member] = []
        names = [f"{kind}:{index}" for kind, count in tasks.items() for index in range(count)]
        # All tasks import at the same time and are released together, as under orch.
        for name, task in [(name, self._begin(name)) for name in names]:
            self._release(name, task)

    def _begin(self, name: str) -> Task:
        directory = self._directory / name.replace(":", "-")
        environment = {**self._env, "ORCH_TASK": name, "ORCH_CHECKPOINT_DIR": str(directory)}
        return Task(self._script, *self._args, env=environment, warm=True)

    def _release(self, name: str, task: Task) -> Member:
        kind, _, index = name.partition(":")
        config = {"cluster": self.addresses, "task": {"type": kind, "index": int(index)}}
        # A run of one task has no TF_CONFIG, or MirroredStrategy would warn of it.
        task.release({"TF_CONFIG": json.dumps(config)} if len(self._names()) > 1 else {})
        member = self.members[name] = Member(task)
        self._all.append(member)
        return member

    def _names(self) -> list[str]:
        return [f"{kind}:{index}" for kind, each in self.addresses.items() for index in range(len(each))]

    def start(self, name: str) -> Member:
        return self._release(name, self._begin(name))

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        assert comes(condition, 60, 0.02), f"never: {what}; {self.told()}"

    def told(self) -> str:
        return json.dumps({name: member.heard[-3:] for name, member in self.members.items()})

    def close(self) -> None:
        for member in self._all:
            member.close()

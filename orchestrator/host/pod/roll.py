"""How the pods of a run agree on a generation: by files in the checkpoint directory, which all of them share.

.orch/pods/roll.json              the newest generation: whose it is, where its checkpoints lie
.orch/pods/gen-000003/worker-1    which pod joined it last as that task
.orch/pods/gen-000003/*.end.json  how each task ended

The chief's pod chooses the number, above all that are there. The others wait for one of their own JobSet and attempt.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from orchestrator.both import durable
from orchestrator.checkpoints import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KEPT = 20
"""How many generations' records are kept, for people to read."""


class Roll:
    """The files of one checkpoint directory."""

    def __init__(self, root: str) -> None:
        self.home = os.path.join(places.own_dir(root), "pods")
        os.makedirs(self.home, exist_ok=True)

    def newest(self) -> dict[str, Any]:
        """Return the newest generation's entry; an empty one where there is none."""
        return durable.read_object(self.home, "roll.json") or {}

    def announce(self, entry: dict[str, Any]) -> None:
        """Let all pods know of a generation."""
        os.makedirs(self.of(int(entry["generation"])), exist_ok=True)
        durable.write_json(os.path.join(self.home, "roll.json"), entry, mode=0o666)
        for name in sorted(os.listdir(self.home))[:-_KEPT]:
            if name.startswith(places.PREFIX):
                shutil.rmtree(os.path.join(self.home, name), ignore_errors=True)

    def of(self, generation: int) -> str:
        """Return the directory of a generation's records."""
        return os.path.join(self.home, f"{places.PREFIX}{generation:06d}")

    def join(self, generation: int, task: str, who: str) -> None:
        """Join a generation. A task that comes back alone joins the same one again: its end is none of it any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._end(generation, task))
        with open(os.path.join(self.of(generation), _plain(task)), "w", encoding="utf-8") as file:
            file.write(who)

    def over(self, generation: int) -> str | None:
        """Return why a generation is over; None while it is not."""
        newest = int(self.newest().get("generation", 0))
        return f"generation {newest} has begun" if newest > generation else None

    def record_end(self, generation: int, task: str, end: dict[str, Any]) -> None:
        """Keep how a task ended. Errors are ignored: its exit code says the same, and the disk may be why."""
        try:
            durable.write_json(self._end(generation, task), end, mode=0o666)
        except OSError:
            return

    def first_end(self, generation: int) -> dict[str, Any] | None:
        """Return what ended the generation: the first failure, or a pod that was asked to end before; None if none.

        Peers fail because a drained pod has gone: that is its end, and counts as nobody's failure.
        """
        found = []
        for name in places.names_in(self.of(generation)):
            end = durable.read_object(self.of(generation), name) if name.endswith(".end.json") else None
            if end is not None and (end.get("counts") or end.get("kind") in ("stopped", "saved")):
                found.append(end)
        return min(found, key=lambda end: float(end.get("ended_at") or 0.0), default=None)

    def _end(self, generation: int, task: str) -> str:
        return os.path.join(self.of(generation), f"{_plain(task)}.end.json")


def _plain(task: str) -> str:
    return task.replace(":", "-")

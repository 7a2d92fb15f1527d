"""The generation that a pod takes part in: the chief's pod begins it, the others join it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

from orchestrator.both.value import Value
from orchestrator.checkpoints import copying, places
from orchestrator.host.pod import outcome
from orchestrator.host.pod.settings import Unfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.host.pod.settings import Settings

POLL_S = 0.5
SAY_AGAIN_S = 60.0
_SEED_TRIES = 5


class Generation(Value):
    """A generation, and where its chief saves; `path` is None if nothing is saved."""

    number: int
    path: str | None
    roll: Roll | None
    restarts: int

    def over(self) -> str | None:
        """Return why it is over; None while it is not."""
        return None if self.roll is None else self.roll.over(self.number)

    def environment(self, settings: Settings) -> dict[str, str]:
        """Return the environment variables that describe this generation to the task."""
        env = {
            "ORCH_RUN": settings.run,
            "ORCH_HOST": socket.gethostname(),
            "ORCH_GENERATION": str(self.number),
            "ORCH_RESTARTS": str(self.restarts),
        }
        if self.path is not None and settings.own["saves"]:
            env["ORCH_CHECKPOINT_DIR"] = self.path
        if self.roll is not None:
            env["ORCH_LOG_DIR"] = self.roll.make_logs(self.number, settings.task)
        return env

    def fill(self, scratch: str) -> None:
        """Copy the checkpoint that the chief began with: a task beside it saves into a copy of its own."""
        if self.path is not None:
            copying.copy(self.path, scratch)


def begin_or_join(
    settings: Settings, say: Callable[[str], None], stopping: Callable[[], bool]
) -> Generation | None:
    """Begin the next generation, or join it. Return None if the pod was asked to end meanwhile.

    Raises:
        Unfit: the run is given up, or the checkpoint directory cannot be used.
    """
    attempt = settings.attempt or 0
    if settings.root is None:
        return Generation(attempt + 1, None, None, attempt)
    try:
        roll = Roll(settings.root)
    except OSError as e:
        raise Unfit(f"the checkpoint directory {settings.root} cannot be used: {e.strerror}") from e
    if settings.is_chief:
        root, before = str(settings.root), roll.newest()
        same = before.get("set") == settings.set
        first = roll.first_end(int(before["generation"])) if same else None
        if first is not None:
            say(f"generation {before['generation']} ended: {first['sentence']}")
        failed = first if first is not None and first.get("counts") else None
        seeded = _seed(settings, root, int(before.get("generation", 0)))
        step, number = seeded["global_step"], int(seeded["highest_generation"])
        saved_at = _saved_at(seeded["source"])
        most = int(settings.document["timing"]["without_progress_max"])
        count, mark, why = outcome.give_up(
            before if same else {}, failed, {"global_step": step, "saved_at": saved_at}, most
        )
        restarts = int(before.get("restarts", -1)) + 1 if same else 0
        if why is not None:
            raise Unfit(f"given up: {why}")
        for passed in seeded.get("rejected") or ():
            say(f"passed over {passed['path']}: {passed['why']}")
        at = "" if step is None else f"step {step}, "
        resumed = "no checkpoint yet" if seeded["source"] is None else f"{at}from {seeded['source']}"
        say(f"generation {number}: {resumed}")
        roll.announce(
            {
                "set": settings.set,
                "attempt": settings.attempt,
                "generation": number,
                "path": seeded["path"],
                "global_step": step,
                "saved_at": saved_at,
                "count": count,
                "mark": mark,
                "restarts": restarts,
            }
        )
        roll.join(number, settings.task, socket.gethostname())
        return Generation(number, str(seeded["path"]), roll, restarts)
    say_at = time.monotonic()
    who = f"{socket.gethostname()} {os.urandom(4).hex()}"
    while not stopping():
        entry = roll.newest()
        if entry.get("set") == settings.set and entry.get("attempt") == settings.attempt:
            number = int(entry["generation"])
            roll.join(number, settings.task, who)
            return Generation(number, str(entry["path"]), roll, int(entry.get("restarts", 0)))
        if time.monotonic() >= say_at:
            say(f"waits for the pod of {settings.document['chief']} to begin a generation in {settings.root}")
            say_at = time.monotonic() + SAY_AGAIN_S
        time.sleep(POLL_S)
    return None


def _saved_at(source: str | None) -> float | None:
    """Return when a checkpoint was saved; a copy keeps the time of its original."""
    for path in (source, f"{source}.index") if source else ():  # TensorFlow names several files by one prefix
        try:
            return os.stat(path).st_mtime
        except OSError:
            continue
    return None


def _seed(settings: Settings, root: str, above: int) -> dict[str, Any]:
    """Make the directory of the next generation with the newest checkpoint that reads whole."""
    by = {"run": settings.run, "host": socket.gethostname(), "task": settings.task}
    error: dict[str, Any] = {}
    for _ in range(_SEED_TRIES):
        number = max(above, places.highest(root)) + 1
        keep = settings.document["checkpoint"]["keep"]
        wish = json.dumps({"root": root, "generation": number, "by": by, "keep": keep})
        bundle = os.path.abspath(sys.argv[0])
        words = [sys.executable, "-I", "-S", "-X", "utf8", bundle, "checkpoints", "seed", wish]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise Unfit(f"the checkpoints in {root} cannot be read: exit code {done.returncode}") from None
        error = answer.get("error") or {}
        if not error:
            return dict(answer)
        if error.get("code") not in ("superseded", "taken"):
            break
        above = number  # another run of this directory was faster
    raise Unfit(str(error.get("message")) + (f"; {error['hint']}" if error.get("hint") else ""))


_KEPT = 20
"""How many generations' records are kept, for people to read."""


class Roll:
    """How the pods of a run agree on a generation: by files in the checkpoint directory, which all of them share.

    .orch/pods/roll.json              the newest generation: whose it is, where its checkpoints lie
    .orch/pods/gen-000003/worker-1    which pod joined it last as that task
    .orch/pods/gen-000003/*.end.json  how each task ended

    The chief's pod chooses the number, above all that are there. The others wait for one of their own JobSet and
    attempt.
    """

    def __init__(self, root: str) -> None:
        self._tree = places.opened(root)
        self._home = f"{places.OWN}/pods"
        self._tree.make(self._home)

    def newest(self) -> dict[str, Any]:
        """Return the newest generation's entry; an empty one if there is none."""
        return self._tree.read_object(f"{self._home}/roll.json") or {}

    def announce(self, entry: dict[str, Any]) -> None:
        """Let all pods know of a generation."""
        self._tree.make(self.directory(int(entry["generation"])))
        self._tree.write_json(f"{self._home}/roll.json", entry, mode=0o666)
        for name in sorted(self._tree.names(self._home))[:-_KEPT]:
            if name.startswith(places.PREFIX):
                with contextlib.suppress(OSError):
                    self._tree.remove(f"{self._home}/{name}")

    def directory(self, generation: int) -> str:
        """Return the directory of a generation's records."""
        return os.path.join(self._tree.path, self._home, f"{places.PREFIX}{generation:06d}")

    def make_logs(self, generation: int, task: str) -> str:
        """Make the directory of a task's logs in a generation, and return it."""
        directory = os.path.join(self.directory(generation), "logs", _plain(task))
        self._tree.make(directory)
        return directory

    def join(self, generation: int, task: str, who: str) -> None:
        """Join a generation. A task that is restarted alone joins the same one again, and its former end is removed."""
        self._tree.remove(self._end(generation, task))
        path = os.path.join(self.directory(generation), _plain(task))
        self._tree.write(path, who.encode(), mode=0o666, durable=False)

    def over(self, generation: int) -> str | None:
        """Return why a generation is over; None while it is not."""
        newest = int(self.newest().get("generation", 0))
        return f"generation {newest} has begun" if newest > generation else None

    def record_end(self, generation: int, task: str, end: dict[str, Any]) -> None:
        """Keep how a task ended. Errors are ignored: its exit code says the same, and the disk may be why."""
        try:
            self._tree.write_json(self._end(generation, task), end, mode=0o666)
        except OSError:
            return

    def first_end(self, generation: int) -> dict[str, Any] | None:
        """Return what ended the generation: the first failure, or the drain of a pod before it; None if neither.

        After a drained pod has gone its peers fail. That is no failure of theirs: the drained pod's end comes first.
        """
        ends = []
        directory = self.directory(generation)
        for name in self._tree.names(directory):
            is_end = name.endswith(".end.json")
            end = self._tree.read_object(os.path.join(directory, name)) if is_end else None
            if end is not None and (end.get("counts") or end.get("kind") in ("stopped", "saved")):
                ends.append(end)
        return min(ends, key=lambda end: float(end.get("ended_at") or 0.0), default=None)

    def _end(self, generation: int, task: str) -> str:
        return os.path.join(self.directory(generation), f"{_plain(task)}.end.json")


def _plain(task: str) -> str:
    return task.replace(":", "-")

"""The generation that a pod takes part in: the chief's pod begins it, the others join it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

from orchestrator.checkpoints import copying, places
from orchestrator.host.pod import outcome
from orchestrator.host.pod.roll import Roll
from orchestrator.host.pod.settings import Unfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.host.pod.settings import Settings

LOOK_S = 0.5
SAY_AGAIN_S = 60.0
_SEED_TRIES = 5


class Generation:
    """A generation, and where its chief saves; `path` is None where nothing is saved."""

    __slots__ = ("number", "path", "restarts", "roll")

    def __init__(self, number: int, path: str | None, roll: Roll | None, restarts: int) -> None:
        self.number = number
        self.path = path
        self.roll = roll
        self.restarts = restarts

    def over(self) -> str | None:
        """Return why it is over; None while it is not."""
        return None if self.roll is None else self.roll.over(self.number)

    def environment(self, settings: Settings) -> dict[str, str]:
        """Return the environment that tells the task of this generation."""
        env = {
            "ORCH_RUN": settings.run,
            "ORCH_HOST": socket.gethostname(),
            "ORCH_GENERATION": str(self.number),
            "ORCH_RESTARTS": str(self.restarts),
        }
        if self.path is not None and settings.own["saves"]:
            env["ORCH_CHECKPOINT_DIR"] = self.path
        if self.roll is not None:
            name = settings.task.replace(":", "-")
            env["ORCH_LOG_DIR"] = os.path.join(self.roll.of(self.number), "logs", name)
            os.makedirs(env["ORCH_LOG_DIR"], exist_ok=True)
        return env

    def fill(self, scratch: str) -> None:
        """Copy the checkpoint that the chief began with: a task beside it saves into a copy of its own."""
        if self.path is not None:
            copying.copy(self.path, scratch)


def take(settings: Settings, say: Callable[[str], None], stopping: Callable[[], bool]) -> Generation | None:
    """Begin the next generation, or join it. Return None where the pod was asked to end meanwhile.

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
        return _begin(settings, roll, say)
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
        time.sleep(LOOK_S)
    return None


def _begin(settings: Settings, roll: Roll, say: Callable[[str], None]) -> Generation:
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
    count, mark, why = outcome.give_up(before if same else {}, failed, saved_at, most)
    restarts = int(before.get("restarts", -1)) + 1 if same else 0
    if why is not None:
        raise Unfit(f"given up: {why}")
    for passed in seeded.get("rejected") or ():
        say(f"passed over {passed['path']}: {passed['why']}")
    at = "" if step is None else f"step {step}, "
    said = "no checkpoint yet" if seeded["source"] is None else f"{at}from {seeded['source']}"
    say(f"generation {number}: {said}")
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


def _saved_at(source: str | None) -> float | None:
    """Return when a checkpoint was saved; a copy has the time of its original."""
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
        number = max([above, *places.generations(root)[:1]]) + 1
        words = ["seed", "--dir", root, "--generation", str(number), "--by", json.dumps(by)]
        words += ["--keep", str(settings.document["checkpoint"]["keep"])]
        bundle = os.path.abspath(sys.argv[0])
        found = subprocess.run(
            [sys.executable, "-I", "-S", bundle, "checkpoints", *words], stdout=subprocess.PIPE, check=False
        )
        try:
            answer = json.loads(found.stdout)
        except ValueError:
            raise Unfit(f"the checkpoints in {root} cannot be read: exit code {found.returncode}") from None
        error = answer.get("error") or {}
        if not error:
            return dict(answer)
        if error.get("code") not in ("superseded", "taken"):
            break
        above = number  # another run of this directory was faster
    raise Unfit(str(error.get("message")) + (f"; {error['hint']}" if error.get("hint") else ""))

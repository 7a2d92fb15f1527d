"""`make rescues`: kill workers of a real training at random instants, and count the steps that are lost.

Each run is disturbed again and again until it has ended; then its weights are compared with those of a run that nothing
disturbed. Exit 1 where they differ, or more steps than one are lost in more than one kill of two hundred.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.cluster.cluster import Cluster

SCRIPTS = Path(__file__).parents[1] / "contract" / "scripts" / "transparent"
FITS_PER_KILL = 0.7
END_S = 120.0
WAYS = ("kill", "kill", "kill", "kill", "kill", "kill at once", "freeze", "kill all but one")


@dataclass(frozen=True, slots=True)
class Kill:
    """What was done to a run, and what came of it."""

    way: str
    victims: tuple[int, ...]
    at_s: float
    done: int
    """The last step that any worker had done before."""
    resumed: int | None
    """The step from which the next generation went on; None where none began."""
    said: str

    @property
    def lost(self) -> int:
        return max(0, self.done - (self.resumed or 0))


def main() -> int:
    """Disturb runs until there were enough kills; print what was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.rescue", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", default="10m", help="how often the training saves: 1s hits its saves too")
    parser.add_argument("--per-run", type=int, default=20, help="kills in a run")
    options = parser.parse_args()
    dice, kills, wrong = random.Random(options.seed), list[Kill](), 0
    fits = int(min(options.kills, options.per_run) * FITS_PER_KILL) + 1
    with tempfile.TemporaryDirectory(prefix="orch-rescues-") as directory:
        whole = disturbed(Path(directory, "whole"), options, fits, 0, dice)[1]
        while len(kills) < options.kills:
            wanted = min(options.per_run, options.kills - len(kills))
            here = Path(directory, str(len(kills)))
            found, weights = disturbed(here, options, fits, wanted, dice)
            kills += found
            difference = max(float(np.max(np.abs(a - b))) for a, b in zip(weights, whole, strict=True))
            wrong += difference > 1e-5
            print(f"{len(found)} kills in this run; weights differ by {difference:.2g} at most", flush=True)
            if not found:
                break
    lost = [kill for kill in kills if kill.lost]
    print(f"{len(kills)} kills: {dict(Counter(kill.way for kill in kills))}")
    print(f"{len(lost)} lost steps: {[(kill.way, kill.lost, kill.said) for kill in lost]}")
    return 1 if wrong or len(lost) > len(kills) / 200 or any(kill.lost > 1 for kill in lost) else 0


def disturbed(
    directory: Path, options: argparse.Namespace, fits: int, kills: int, dice: random.Random
) -> tuple[list[Kill], list[Any]]:
    """Train to the end, with so many kills at most; return them and the weights."""
    directory.mkdir()
    found: list[Kill] = []
    with _trained(directory, options, fits) as cluster:
        generation = 0
        while (run := cluster.run())["phase"] not in ("SUCCEEDED", "FAILED", "KILLED"):
            trains = run["phase"] == "RUNNING" and run["generation"] > generation
            if not trains or len(found) == kills:
                time.sleep(0.02)
                continue
            generation = run["generation"]
            kill = _kill(cluster, directory, run, dice)
            if kill is None:
                break
            found.append(kill)
            print(f"{kill.way} {kill.victims} at step {kill.done}: {kill.lost} lost; {kill.said}", flush=True)
        while (run := cluster.run())["phase"] not in ("SUCCEEDED", "FAILED", "KILLED"):
            time.sleep(0.1)
        assert run["phase"] == "SUCCEEDED", run["reason"]
    with np.load(directory / "weights.npz") as file:
        return found, [file[name] for name in file.files]


@contextmanager
def _trained(directory: Path, options: argparse.Namespace, fits: int) -> Iterator[Cluster]:
    cluster = Cluster(directory)
    try:
        spec = cluster.spec(
            str(directory),
            str(fits),
            script="killed.py",
            workdir=str(SCRIPTS),
            tasks=options.workers,
            transparent=True,
            checkpoint={"every": options.every},
            env={"TF_CPP_MIN_LOG_LEVEL": "2"},
            restart={"standby": "on", "rescue": "auto", "without_progress_max": 1000, "backoff": "0.1s"},
        )
        cluster.ok("up", spec, timeout=END_S)
        yield cluster
    finally:
        cluster.close()


def _kill(cluster: Cluster, directory: Path, run: dict[str, Any], dice: random.Random) -> Kill | None:
    """Disturb one generation at an instant of its own, and wait for the next one; None where the run has ended."""
    way = dice.choice(WAYS)
    known = max(event["seq"] for event in cluster.events())
    began = max((step for _, step in _steps(directory)), default=0)
    if way != "kill at once":
        while max((step for _, step in _steps(directory)), default=0) <= began:
            if cluster.run()["phase"] != "RUNNING":
                return None
            time.sleep(0.01)
        time.sleep(dice.uniform(0.0, 2.0))
    pids = {int(task["task"].rpartition(":")[2]): task["pid"] for task in run["tasks"]}
    count = len(pids) - 1 if way == "kill all but one" else 1
    victims = tuple(dice.sample(sorted(pids), count))
    with contextlib.suppress(ProcessLookupError):
        for victim in victims:
            os.kill(pids[victim], signal.SIGSTOP if way == "freeze" else signal.SIGKILL)
    at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        now = cluster.run()
        if now["phase"] in ("SUCCEEDED", "FAILED", "KILLED"):
            return None
        if now["generation"] > run["generation"] and now["phase"] == "RUNNING":
            break
        time.sleep(0.02)
    events = [event for event in cluster.events() if event["seq"] > known]
    resumed = [
        event["data"].get("global_step") or 0
        for event in events
        if event["kind"] in ("resumed", "from-start")
    ]
    said = [event["message"] for event in events if event["kind"] == "rescued"]
    done = max((step for told_s, step in _steps(directory) if told_s <= at_s), default=0)
    return Kill(
        way, victims, at_s, done, resumed[0] if resumed else None, said[0] if said else "nobody was asked"
    )


def _steps(directory: Path) -> list[tuple[float, int]]:
    """Return when which steps were done, by any worker."""
    lines = [line for path in directory.glob("steps.*") for line in path.read_text().splitlines()]
    return [(float(at), int(step)) for at, step in (line.split() for line in lines if " " in line)]


if __name__ == "__main__":
    sys.exit(main())

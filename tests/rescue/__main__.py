"""`make rescues`: kill workers of a real training at random instants, and count the steps that are lost.

Each run is disturbed again and again until it has ended; then its weights are compared with those of a run that nothing
disturbed. Exit 1 where they differ, or more steps than one are lost in more than one kill of two hundred.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.cluster.cluster import Cluster, lab_of, wait_until
from tests.cluster.lab import Lab, LabHost
from tests.cluster.processes import is_alive
from tests.patience import patient

SCRIPTS = Path(__file__).parents[1] / "contract" / "scripts" / "transparent"
FITS_PER_KILL, FITS_PER_KILL_COMPARED = 0.7, 2.0
END_S = 120.0
MOMENTS = {
    "random": 2.0,
    "release": 0.0,
    "first-step": 1.0,
    "save": 0.05,
    "evaluate": 0.2,
    "between": 0.2,
}
"""After which moment of the training, and within how many seconds, a fault comes."""
FAULTS = ("kill", "stop", "oom", "cut", "alone")
"""Of them `alone` kills the coordinator first, and calls another when the survivors have ended by themselves."""
WAYS = (
    *[("kill", "random", 1)] * 5,
    ("kill", "release", 1),
    ("stop", "random", 1),
    ("kill", "random", None),
)
"""What is done where no moment is given: the fault, the moment, and to how many; None: to all but one."""


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
    rescue: str = "auto"
    first_s: float | None = None
    """How long after it the first step of the next generation was done."""
    new_s: float | None = None
    """How long after it the first step was done that was none before."""

    @property
    def lost(self) -> int:
        return max(0, self.done - (self.resumed or 0))


def options_of(argv: list[str] | None = None) -> argparse.Namespace:
    """Return what is asked for: how many kills, of what, when."""
    parser = argparse.ArgumentParser(prog="python -m tests.rescue", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", default="10m", help="how often the training saves: 1s hits its saves too")
    parser.add_argument("--per-run", type=int, default=20, help="kills in a run")
    parser.add_argument("--at", default="", help=f"only at one of these moments: {','.join(MOMENTS)}")
    parser.add_argument("--fault", choices=("", *FAULTS), help="only this fault; oom and cut need root")
    parser.add_argument(
        "--victims", type=int, default=1, help="with --at or --fault: how many workers at once"
    )
    parser.add_argument("--megabytes", type=int, default=0, help="weights of so much more, and few steps")
    parser.add_argument("--gpus", type=int, default=0, help="that each worker has of this machine's")
    parser.add_argument("--keras", default="keras", choices=("keras", "tf_keras"))
    parser.add_argument(
        "--rescue", default="auto", help="auto,off: the runs alternate, and their times are compared"
    )
    return parser.parse_args(argv)


def main() -> int:
    """Disturb runs until there were enough kills; print what was lost."""
    kills, wrong = kills_of(options_of())
    for rescue in sorted({kill.rescue for kill in kills}):
        _print_times(rescue, [kill for kill in kills if kill.rescue == rescue])
    lost = [kill for kill in kills if kill.lost and kill.rescue != "off"]
    print(f"{len(kills)} kills: {dict(Counter(kill.way for kill in kills))}")
    print(f"{len(lost)} lost steps: {[(kill.way, kill.lost, kill.said) for kill in lost]}")
    return 1 if wrong or len(lost) > len(kills) / 200 or any(kill.lost > 1 for kill in lost) else 0


def kills_of(options: argparse.Namespace) -> tuple[list[Kill], int]:
    """Disturb runs until there were enough kills. Return them, and how many runs ended with other weights."""
    dice, kills, wrong = random.Random(options.seed), list[Kill](), 0
    compares = "," in options.rescue
    fits = (
        int(min(options.kills, options.per_run) * (FITS_PER_KILL_COMPARED if compares else FITS_PER_KILL)) + 1
    )
    rescues = itertools.cycle(options.rescue.split(","))
    with tempfile.TemporaryDirectory(prefix="orch-rescues-") as directory:
        whole = disturbed(Path(directory, "whole"), options, fits, 0, dice, "off")[1]
        while len(kills) < options.kills:
            wanted = min(options.per_run, options.kills - len(kills))
            here = Path(directory, str(len(kills)))
            found, weights = disturbed(here, options, fits, wanted, dice, next(rescues))
            kills += found
            difference = max(float(np.max(np.abs(a - b))) for a, b in zip(weights, whole, strict=True))
            wrong += difference > (1e-2 if options.gpus else 1e-5)  # GPUs sum in another order each time
            print(f"{len(found)} kills in this run; weights differ by {difference:.2g} at most", flush=True)
            if not found:
                break
    return kills, wrong


def _print_times(rescue: str, kills: list[Kill]) -> None:
    for what, name in (("first", "first_s"), ("first new", "new_s")):
        times = sorted(getattr(kill, name) for kill in kills if getattr(kill, name) is not None)
        if times:
            middle = statistics.median(times)
            print(
                f"rescue {rescue}: the {what} step {middle:.2f} s after the kill ({times[0]:.2f} to {times[-1]:.2f})"
            )


def disturbed(
    directory: Path, options: argparse.Namespace, fits: int, kills: int, dice: random.Random, rescue: str
) -> tuple[list[Kill], list[Any]]:
    """Train to the end, with so many kills at most; return them and the weights."""
    directory.mkdir()
    found: list[Kill] = []
    with _trained(directory, options, fits, rescue) as cluster:
        generation = 0
        while (run := cluster.run())["phase"] not in ("SUCCEEDED", "FAILED", "KILLED"):
            trains = run["phase"] == "RUNNING" and run["generation"] > generation
            if not trains or len(found) == kills:
                time.sleep(0.02)
                continue
            generation = run["generation"]
            way = dice.choice(WAYS)
            if options.at or options.fault:
                moment = dice.choice((options.at or "random").split(","))
                way = (options.fault or "kill", moment, options.victims)
            if "," in options.rescue:  # what is compared are restarts with a standby
                while run["phase"] == "RUNNING" and run["standby"]["state"] != "ready":
                    time.sleep(0.1)
                    run = cluster.run()
            kill = _kill(cluster, directory, run, dice, found[-1].at_s if found else 0.0, *way)
            if kill is None:
                break
            found.append(replace(kill, rescue=rescue))
            print(f"{kill.way} {kill.victims} at step {kill.done}: {kill.lost} lost; {kill.said}", flush=True)
        while (run := cluster.run())["phase"] not in ("SUCCEEDED", "FAILED", "KILLED"):
            time.sleep(0.1)
        assert run["phase"] == "SUCCEEDED", run["reason"]
    with np.load(directory / "weights.npz") as file:
        return [_timed(kill, directory) for kill in found], [file[name] for name in file.files]


def _timed(kill: Kill, directory: Path) -> Kill:
    """Return the kill with when the next generation's steps came."""
    began = [at for at, what in _told(directory) if what == "first-step" and at > kill.at_s]
    steps = [(at, step) for at, step in _steps(directory) if began and at > min(began)]
    first = min((at - kill.at_s for at, _ in steps), default=None)
    return replace(
        kill,
        first_s=first,
        new_s=min((at - kill.at_s for at, step in steps if step > kill.done), default=None),
    )


@contextmanager
def _trained(directory: Path, options: argparse.Namespace, fits: int, rescue: str) -> Iterator[Cluster]:
    with Lab(options.workers) if options.fault == "cut" else contextlib.nullcontext() as lab:
        cluster = Cluster(directory, lab)
        try:
            on_gpus: dict[str, Any] = {
                "hosts": [
                    {
                        "name": "here",
                        "transport": "local",
                        "slots": options.workers,
                        "gpus": options.workers * options.gpus,
                    }
                ],
                "types": {"worker": {"replicas": options.workers, "gpus": options.gpus}},
            }
            script = ("with_tf_keras.py", "killed.py") if options.keras == "tf_keras" else ("killed.py",)
            spec = cluster.spec(
                str(directory),
                *map(str, (fits, options.megabytes, *script[1:])),
                script=script[0],
                workdir=str(SCRIPTS),
                tasks=options.workers,
                **(on_gpus if options.gpus else {}),
                transparent=True,
                checkpoint={"every": options.every},
                env={"TF_CPP_MIN_LOG_LEVEL": "2"},
                restart={"standby": "on", "rescue": rescue, "without_progress_max": 1000, "backoff": "0.1s"},
            )
            cluster.ok("up", spec, timeout=END_S)
            yield cluster
        finally:
            cluster.close()


def _kill(
    cluster: Cluster,
    directory: Path,
    run: dict[str, Any],
    dice: random.Random,
    before_s: float,
    fault: str,
    moment: str,
    count: int | None,
) -> Kill | None:
    """Disturb one generation at an instant of its own, and wait for the next one; None where the run has ended.

    The one before was disturbed at `before_s`: on a busy machine the first step may be made before it is looked for.
    """
    known = max(event["seq"] for event in cluster.events())
    if not _comes(cluster, directory, run["generation"], moment, before_s):
        return None
    time.sleep(dice.uniform(0.0, MOMENTS[moment]))
    tasks = {int(task["task"].rpartition(":")[2]): task for task in run["tasks"]}
    victims = tuple(dice.sample(sorted(tasks), count or len(tasks) - 1))
    if fault == "alone":
        cluster.kill_coordinator()
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            _harm(cluster, fault, tasks[victim])
    at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    if fault == "alone":
        wait_until(lambda: not any(is_alive(task["pid"]) for task in tasks.values()), "the survivors' end")
        cluster.ok("coordinator", "start")
    deadline = time.monotonic() + patient(END_S)
    while time.monotonic() < deadline:
        now = cluster.run()
        if now["phase"] in ("SUCCEEDED", "FAILED", "KILLED"):
            return None
        if fault == "cut" and now["phase"] not in ("RUNNING", "STOPPING"):
            for victim in victims:
                _host(cluster, tasks[victim]).heal()
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
    way = f"{fault} {'one' if len(victims) == 1 else len(victims)}, {moment}"
    return Kill(
        way, victims, at_s, done, resumed[0] if resumed else None, said[0] if said else "nobody was asked"
    )


def _comes(cluster: Cluster, directory: Path, generation: int, moment: str, before_s: float) -> bool:
    """Wait for a moment of this generation; return False where the run has ended before."""
    since_s = before_s if moment == "first-step" else time.clock_gettime(time.CLOCK_BOOTTIME)
    began = max((step for _, step in _steps(directory)), default=0)
    for turn in itertools.count():
        if moment == "release":
            return True
        if moment == "save":
            is_now = any(directory.glob(f"ckpt/gen-{generation:06d}/orch/fit-*/saving_temp/*.h5"))
        elif moment == "random":
            is_now = max((step for _, step in _steps(directory)), default=0) > began
        else:
            told = [(at, what) for at, what in _told(directory) if at > since_s]
            # Fits that had ended are passed over, one after the other, before the first step.
            stepped_s = min((at for at, what in told if what.isdecimal()), default=math.inf)
            is_now = any(what == moment and (what != "between" or at > stepped_s) for at, what in told)
        if is_now:
            return True
        if turn % 20 == 0 and cluster.run()["phase"] != "RUNNING":
            return False
        time.sleep(0.01)
    raise AssertionError


def _harm(cluster: Cluster, fault: str, task: dict[str, Any]) -> None:
    if fault == "cut":
        _host(cluster, task).cut()
    elif fault == "oom":  # the next page that it touches is one too many
        group = Path("/sys/fs/cgroup/memory", f"orch-rescues-{task['pid']}")
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("64K")
        (group / "cgroup.procs").write_text(str(task["pid"]))
    else:
        os.kill(task["pid"], signal.SIGSTOP if fault == "stop" else signal.SIGKILL)


def _host(cluster: Cluster, task: dict[str, Any]) -> LabHost:
    return next(host for host in lab_of(cluster).hosts if host.name == task["host"])


def _told(directory: Path) -> list[tuple[float, str]]:
    """Return what the workers have told, and when."""
    lines = [line for path in directory.glob("steps.*") for line in path.read_text().splitlines()]
    return [(float(at), what) for at, what in (line.split() for line in lines if " " in line)]


def _steps(directory: Path) -> list[tuple[float, int]]:
    """Return when which steps were done, by any worker."""
    return [(at, int(what)) for at, what in _told(directory) if what.isdecimal()]


if __name__ == "__main__":
    sys.exit(main())

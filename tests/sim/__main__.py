"""`python -m tests.sim [SEEDS] [--hours HOURS] [--first SEED] [--kind KIND]`: many seeds, over all cores.

An hour counts where its heartbeats were played, from the simulated agent through the real link, loop, core and journal
(`World.reported`). Exit 1 where a rule is broken, 3 where something only raised.

What is real: the core, the loop, the journal, the executor with its links, transfers and copies of logs, the checkpoint
functions of hosts that share no directory, the decisions of agents and shims. What is simulated: time, threads
(`fibers.py`), transports, processes and what TensorFlow does. The kinds of scenarios are in `draw.py`, the faults in
`faults.py`, the rules in `checks.py`, `hush.py` and `logs.py`; what agents do not play is `NOT_PLAYED` in `agent.py`.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from orchestrator.core.errors import InvariantViolated
from orchestrator.core.words import counted
from tests.sim.draw import ASKED, draw
from tests.sim.heap import Violation
from tests.sim.world import World, remove, scratch

TELL_EVERY_S = 60.0

AHEAD = 4 * (os.cpu_count() or 1)
"""How many seeds are under way at once, or wait for a core."""

BROKEN, CRASHED = 1, 3
"""Exit codes: a rule is broken; or there was nothing but exceptions, which are no rule's."""

CRASH = "exception"


@dataclass
class Result:
    """The result of one seed."""

    seed: int
    kind: str
    hours: float
    ends: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    turns: int = 0
    faults: int = 0
    check: str | None = None
    sentence: str = ""
    last: list[str] = field(default_factory=list)


def play(seed: int, *, trace: bool = False, kind: str | None = None) -> Result:
    """Simulate one seed to its end, and return the result."""
    began_s = time.process_time()
    directory = scratch()
    workdir = os.path.join(directory, "work")
    os.mkdir(workdir)
    with open(os.path.join(workdir, "train.py"), "w", encoding="utf-8") as script:
        script.write("pass\n")
    scenario = draw(seed, workdir, kind)
    world = World(scenario, directory, trace=print if trace else None)
    result = Result(seed, scenario.kind, 0.0)
    try:
        world.play()
    except Violation as e:
        result.check, result.sentence = e.check, str(e)
        if trace:
            traceback.print_exc()
    except InvariantViolated as e:
        result.check, result.sentence = "invariant", str(e)
    except Exception as e:
        result.check, result.sentence = CRASH, f"{type(e).__name__}: {e}"
        world.last.append(traceback.format_exc())
    finally:
        world.close()
        remove(directory)
    result.ends = [run.now.phase.value if run.now is not None else "none" for run in world.runs.values()]
    result.faults = sum(world.counts.values())
    result.cpu_s = time.process_time() - began_s
    result.hours, result.turns, result.last = world.played_s / 3600, world.turns, list(world.last)
    return result


def _commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _show(result: Result, kind: str | None) -> None:
    print(f"\nseed {result.seed} ({result.kind}), commit {_commit()}: {result.sentence}")
    print("\n".join(result.last))
    print(f"again: make sim SEEDS=1 SEED={result.seed} TRACE=1" + (f" KIND={kind}" if kind else ""))


def _seeds(options: argparse.Namespace) -> Iterator[Result]:
    """Play as many seeds as were asked for, or until there are so many hours, and yield the results in their order."""
    if options.trace or options.until_broken:
        for seed in range(options.first, options.first + options.seeds):
            yield play(seed, trace=options.trace, kind=options.kind)
        return
    seeds = count(options.first) if options.hours else range(options.first, options.first + options.seeds)
    with multiprocessing.Pool() as pool:
        asked = (pool.apply_async(play, (seed,), {"kind": options.kind}) for seed in seeds)
        waiting = deque(islice(asked, AHEAD))
        while waiting:
            yield waiting.popleft().get()
            waiting.extend(islice(asked, 1))


def _wanted(options: argparse.Namespace) -> list[Result]:
    results: list[Result] = []
    hours, told_at = 0.0, time.monotonic()
    for result in _seeds(options):
        results.append(result)
        hours += result.hours
        if time.monotonic() > told_at + TELL_EVERY_S:
            told_at = time.monotonic()
            print(f"{hours:,.0f} hours so far, {len(results)} seeds", flush=True)
        if options.hours and hours >= options.hours:
            break
        if options.until_broken and result.check not in (None, CRASH):
            break
    return results


def main() -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=200)
    parser.add_argument(
        "--hours", type=float, default=0.0, help="as many seeds as it takes for so many hours"
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=sorted(set(ASKED)))
    parser.add_argument("--trace", action="store_true", help="print all events of each seed, in this process")
    parser.add_argument(
        "--until-broken", action="store_true", help="one seed after the other; stop where a rule is broken"
    )
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    results = _wanted(options)
    wall_s = time.monotonic() - began
    broken = [result for result in results if result.check is not None]
    broken.sort(key=lambda result: result.check == CRASH)
    for result in broken[:3]:
        _show(result, options.kind)
    if broken:
        print("\nbroken: " + ", ".join(f"{r.seed} ({r.check})" for r in broken[:40]))
    _sum_up(results, wall_s)
    if not broken:
        return 0
    return CRASHED if all(result.check == CRASH for result in broken) else BROKEN


def _sum_up(results: list[Result], wall_s: float) -> None:
    cpu_s = sum(result.cpu_s for result in results)
    hours = sum(result.hours for result in results)
    kinds = dict(sorted(Counter(result.kind for result in results).items()))
    ends = dict(sorted(Counter(end for result in results for end in result.ends).items()))
    faults = sum(result.faults for result in results)
    print(f"commit {_commit()}: {kinds}; {faults} faults; runs {ends}")
    print(f"{60 * hours / max(cpu_s, 1e-9):,.0f} hours a minute of one core, {cpu_s:,.0f} s of CPU in all")
    rules = counted(sum(result.check is not None for result in results), "rule")
    seeds = counted(len(results), "seed")
    print(f"{hours:,.0f} simulated hours in {wall_s:,.0f} s, {seeds}, {rules} broken")


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.sim [SEEDS] [--first SEED]`: many seeds, over all cores.

Exit 1 where one breaks a rule, 3 where something only raised.
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
from dataclasses import dataclass, field

from orchestrator.core.errors import InvariantViolated
from tests.sim.draw import draw
from tests.sim.heap import Violation
from tests.sim.world import World, remove, scratch

BROKEN, CRASHED = 1, 3
"""Exit codes: a rule is broken; or there was nothing but exceptions, which are no rule's."""

CRASH = "exception"


@dataclass
class Result:
    """The result of one seed."""

    seed: int
    kind: str
    hours: float
    end: str
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
    result = Result(seed, scenario.kind, 0.0, "")
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
        if world.head is not None:
            world.head.journal.close()
        remove(directory)
    run = world.run_now
    result.end = run.phase.value if run is not None else "none"
    result.faults = sum(world.counts.values())
    result.cpu_s = time.process_time() - began_s
    result.hours, result.turns, result.last = world.heap.now / 3600, world.turns, list(world.last)
    return result


def _show(result: Result) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"\nseed {result.seed} ({result.kind}), commit {commit or 'unknown'}: {result.sentence}")
    print("\n".join(result.last))
    print(f"again: make sim SEEDS=1 SEED={result.seed} TRACE=1")


def main() -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seeds", nargs="?", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=("calm", "harmless", "alone", "chaos"))
    parser.add_argument("--trace", action="store_true", help="print all events of each seed, in this process")
    parser.add_argument(
        "--until-broken", action="store_true", help="one seed after the other; stop where a rule is broken"
    )
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    if options.trace or options.until_broken:
        results = []
        for seed in seeds:
            results.append(play(seed, trace=options.trace, kind=options.kind))
            if results[-1].check not in (None, CRASH) and options.until_broken:
                break
    else:
        with multiprocessing.Pool() as pool:
            asked = [pool.apply_async(play, (seed,), {"kind": options.kind}) for seed in seeds]
            results = [each.get() for each in asked]
    wall_s = time.monotonic() - began
    broken = [result for result in results if result.check is not None]
    broken.sort(key=lambda result: result.check == CRASH)
    for result in broken[:3]:
        _show(result)
    if broken:
        print("\nbroken: " + ", ".join(f"{r.seed} ({r.check})" for r in broken[:40]))
    cpu_s = sum(result.cpu_s for result in results)
    hours = sum(result.hours for result in results)
    ends = {end: sum(r.end == end for r in results) for end in sorted({r.end for r in results})}
    print(
        f"{len(results)} seeds, {len(broken)} broken; {hours:.0f} simulated hours in {wall_s:.1f} s: "
        f"{60 * hours / wall_s:.0f} hours a minute ({60 * hours / max(cpu_s, 1e-9):.0f} a minute of one core); {ends}"
    )
    if not broken:
        return 0
    return CRASHED if all(result.check == CRASH for result in broken) else BROKEN


if __name__ == "__main__":
    sys.exit(main())

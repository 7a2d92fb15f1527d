"""`python -m benchmarks [NAME…] [--json]` measures, and prints one table. Exit 1 if a limit is missed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from benchmarks.figure import Figure, NotMeasured, table

BENCHMARKS = {
    "status": "`orch status` as a whole process",
    "connect": "SSH connect to the first heartbeat; CPU of the head at 32 hosts",
    "recovery": "kill -9 of a task to the end of its peers, and to the next generation",
    "frozen": "a host frozen whole, to the moment in which it is given up",
    "comeback": "kill -9 of a task to the first new step, against a bare start by hand",
    "adoption": "64 tasks on 16 hosts, by a new coordinator",
    "overhead": "step time under orch against the same script by hand",
    "idle": "the coordinator with three hosts and a run",
    "core": "a heartbeat in the core alone, with 10 to 1,000 hosts",
    "head": "start, heartbeat, status and kill of up to 1,000 simulated hosts, and of 96 over SSH",
    "agent": "CPU to start and memory of an agent",
}


def main(argv: Sequence[str]) -> int:
    """Return the exit code: 0 if every claim is kept, 1 if one is missed or could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    listed = "; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="NAME", help=listed)
    parser.add_argument("--json", action="store_true", help="the samples too, for scripts")
    options = parser.parse_args(argv)
    figures: list[Figure] = []
    failures: list[str] = []
    for name in options.names or BENCHMARKS:
        print(f"{name}: {BENCHMARKS[name]} …", file=sys.stderr, flush=True)
        measure: Callable[[], list[Figure]] = import_module(f"benchmarks.{name}").measure
        try:
            figures += measure()
        except NotMeasured as e:
            failures.append(f"{name}: NOT MEASURED: {e}")
    if options.json:
        print(json.dumps({"figures": [f.to_json() for f in figures], "not_measured": failures}, indent=2))
    else:
        print("\n".join([table(figures), *failures]))
    return 0 if not failures and all(figure.is_kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

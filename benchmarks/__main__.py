"""`python -m benchmarks [NAME…] [--json] [--write]` measures, and prints one table. Exit 1 if a limit is missed."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from inspect import getdoc

from benchmarks import pace, page
from benchmarks.environment import as_users_have_it
from benchmarks.figure import Figure, NotMeasured, table
from benchmarks.length import LONG
from benchmarks.limits import LIMITS
from benchmarks.machine import ROOT, Machine, here

DOCS = ROOT / "docs"

BENCHMARKS = {
    "status": "`orch status` as a whole process",
    "connect": "SSH connect to the first heartbeat; CPU of the head at 32 hosts",
    "doctor": "`orch doctor` of 32 hosts, and its quick part beside connecting",
    "idle": "the coordinator with three hosts and a run",
    "core": "a heartbeat in the core alone, with 10 to 1,000 hosts",
    "head": "start, heartbeat, status and kill of up to 1,000 simulated hosts, and of up to 256 over SSH",
    "recovery": "kill -9 of a task to the end of its peers, and to the next generation",
    "comeback": "kill -9 of a task to the first new step, against a bare start by hand",
    "spare": "a host that is cut off to the first new step on a spare, with a standby",
    "overhead": "step time under orch against the same script by hand",
    "transfer": "a checkpoint between hosts that share no directory, against scp",
    "agent": "CPU to start and memory of an agent",
    "frozen": "a host frozen whole, to the moment in which it is given up",
    "adoption": "64 tasks on 16 hosts, by a new coordinator",
    "browser": "the page in Chromium over an hour of 200 tasks (--long: eight), and until a run is shown",
}
"""What is asked about most comes first: a run that is interrupted for want of time lacks the rest."""


def main(argv: Sequence[str]) -> int:
    """Return the exit code: 0 if every claim is kept, 1 if one is missed or could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    listed = "; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="NAME", help=listed)
    parser.add_argument("--json", action="store_true", help="the samples too, for scripts")
    parser.add_argument("--write", action="store_true", help="measure all, and write docs/benchmarks.md anew")
    parser.add_argument(
        "--long",
        action="store_true",
        help="measure for longer, where that narrows an interval",
    )
    options = parser.parse_args(argv)
    as_users_have_it()
    if options.long:
        os.environ[LONG] = "1"
    if options.write and options.names:
        parser.error("--write measures all: a page is of one run")
    at, began = here("make bench"), time.monotonic()
    measured, failures = measure(options.names or list(BENCHMARKS))
    figures = [figure for each in measured.values() for figure in each]
    if options.json:
        print(json.dumps({"figures": [f.to_json() for f in figures], "not_measured": failures}, indent=2))
    else:
        print("\n".join([table(figures), *failures]))
    if options.write:
        write(at, measured, failures, minutes=(time.monotonic() - began) / 60)
    return 0 if not failures and all(figure.is_kept for figure in figures) else 1


def measure(names: Sequence[str]) -> tuple[dict[str, list[Figure]], list[str]]:
    """Return the figures by benchmark, those of the machine's pace first, and what could not be measured."""
    measured: dict[str, list[Figure]] = {}
    failures: list[str] = []
    paces: list[tuple[str, float]] = []
    for name in names:
        print(f"{name}: {BENCHMARKS[name]} …", file=sys.stderr, flush=True)
        one: Callable[[], list[Figure]] = import_module(f"benchmarks.{name}").measure
        try:
            paces.append((name, pace.now_ms()))
            measured[name] = one()
        except KeyboardInterrupt:  # the page then has what was measured until now
            left = list(names)[list(names).index(name) :]
            failures += [f"{each}: NOT MEASURED: interrupted" for each in left]
            break
        except NotMeasured as e:
            failures.append(f"{name}: NOT MEASURED: {e}")
        except Exception as e:  # the figures of the others, most of an hour of work, must not be lost
            traceback.print_exc()
            failures.append(f"{name}: NOT MEASURED: {_first_line(e)}")
    return ({"pace": pace.figures(paces)} if paces else {}) | measured, failures


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def write(
    at: Machine, measured: Mapping[str, Sequence[Figure]], failures: Sequence[str], *, minutes: float
) -> None:
    """Write the page, its plots, and the samples as JSON."""
    about = {name: getdoc(import_module(f"benchmarks.{name}")) or "" for name in measured}
    for old in (DOCS / "images").glob("bench-*.svg"):
        old.unlink()
    for file, svg in page.images(measured).items():
        (DOCS / "images" / file).write_text(svg)
    rows = [row for row in LIMITS if row.partition(":")[0] in BENCHMARKS]
    (DOCS / "benchmarks.md").write_text(page.document(at, measured, about, failures, minutes, rows))
    samples = {name: [figure.to_json() for figure in figures] for name, figures in measured.items()}
    known = {
        "machine": asdict(at),
        "minutes": round(minutes, 1),
        "measured": samples,
        "not_measured": failures,
    }
    (DOCS / "benchmarks.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

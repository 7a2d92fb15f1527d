"""`python -m benchmarks.peers [NAME…] [--minutes 10] [--every 60] [--write]` compares orch with what people use else.

Five ways train the same ConvNet with two workers, each undisturbed at first, and then with a `kill -9` of one worker at
each interval; then one worker is frozen, and one host cut off. As root the workers have two hosts of the lab. Then
orch, Ansible and ssh start a script on many SSH hosts. It needs the environment of `make bench-peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.environment import as_users_have_it
from benchmarks.figure import NotMeasured
from benchmarks.machine import ROOT, Machine, here
from benchmarks.peers import goodput, page, starting
from benchmarks.peers.contenders import CONTENDERS, PEERS_PYTHON, SAVE_S

DOCS = ROOT / "docs"


STARTING = "starting"
EVERY_S = 60.0
PATIENCE_S = 90.0


def main(argv: Sequence[str]) -> int:
    """Measure, print the page, and write it if asked. Return 1 where something could not be measured."""
    options = _options(argv)
    as_users_have_it()
    if options.save_s:
        os.environ[SAVE_S] = f"{options.save_s:g}"
    began = time.monotonic()
    at = here(" ".join(["python -m benchmarks.peers", *argv]))
    window_s = options.minutes * 60.0
    patience_s = min(PATIENCE_S, max(20.0, window_s / 6))
    times = goodput.Times(window_s, min(options.every, window_s / 3), patience_s, options.save_s)
    found: dict[str, goodput.Goodput] = {}
    started: dict[str, dict[int, float]] = {}
    failures: list[str] = []
    names = options.names or [*CONTENDERS, STARTING]
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            if name == STARTING:
                started = starting.measure(failures)
            else:
                found[name] = goodput.measure(CONTENDERS[name], times)
        except KeyboardInterrupt:  # the page then has what was measured until now
            failures += [f"{each}: not measured: interrupted" for each in names[names.index(name) :]]
            break
        except NotMeasured as e:
            failures.append(f"{name}: not measured: {e}")
        except Exception as e:  # what the others took an hour to measure must not be lost for it
            traceback.print_exc()
            failures.append(f"{name}: not measured: {type(e).__name__}: {e}".splitlines()[0])
    minutes = (time.monotonic() - began) / 60
    text = page.document(at, found, started, failures, times, minutes=minutes)
    print(text)
    if options.write:
        _write(at, text, found, started, failures, times)
    return 1 if failures else 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    names = [*CONTENDERS, STARTING]
    parser.add_argument("names", nargs="*", choices=[[], *names], metavar="NAME", help="; ".join(names))
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="how long each trains with kills (10); with 2, all takes under 20 minutes",
    )
    parser.add_argument(
        "--every", type=float, default=EVERY_S, help="seconds from kill to kill (60, at least three kills)"
    )
    parser.add_argument(
        "--save-s",
        type=float,
        default=0.0,
        help="save at this interval, not every 50 steps; orch then rescues; --write writes docs/peers-rarely.md",
    )
    parser.add_argument("--write", action="store_true", help="write docs/peers.md and its plots")
    options = parser.parse_args(argv)
    if not Path(PEERS_PYTHON).exists() and not all(
        name.startswith(("orch", "by hand")) for name in options.names or ["?"]
    ):
        parser.error(f"{PEERS_PYTHON} is not there: `make bench-peers` installs it")
    return options


def _write(
    at: Machine,
    text: str,
    found: Mapping[str, goodput.Goodput],
    started: Mapping[str, Mapping[int, float]],
    failures: Sequence[str],
    times: goodput.Times,
) -> None:
    page_name = page.name_of(times)
    (DOCS / f"{page_name}.md").write_text(text)
    shown = page.images(found, started, times)
    for old in ("goodput", "lost", "start"):
        (DOCS / "images" / f"{page_name}-{old}.svg").unlink(missing_ok=True)
    for file, svg in shown.items():
        (DOCS / "images" / file).write_text(svg)
    known = {
        "machine": asdict(at),
        "times": asdict(times),
        "measured": {name: asdict(each) for name, each in found.items()},
        "starting": started,
        "not_measured": failures,
    }
    (DOCS / f"{page_name}.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

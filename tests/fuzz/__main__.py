"""`make fuzz MINUTES=n`: draw inputs for all targets until the time is up, and keep those that were not taken.

Each round takes the targets in turn, with another seed; the first round is always whole, so that no target has none.
An input that raises is made as small as hypothesis can, and written to `tests/fuzz/found/`: every `make test` tries it
again. Exit 1 if anything was found.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.targets import TARGETS, Target

FOUND = Path(__file__).parent / "found"

INPUTS_OF_A_TURN = 60
"""So few that a round takes half a minute. With 300, four minutes were over before half of the targets had a turn."""

_quiet = settings(
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


class Turn:
    """Some inputs for one target."""

    def __init__(self, target: Target, inputs: int) -> None:
        self.count = 0
        self.failing: Any = None
        """The last input that raised: the smallest, once hypothesis has ended."""
        self._target = target
        self._settings = settings(_quiet, max_examples=inputs)

    def take(self, chosen: int) -> BaseException | None:
        """Draw and try inputs. Return what the smallest failing one raised."""

        @seed(chosen)
        @self._settings
        @given(self._target.inputs)
        def all_are_taken(found: Any) -> None:
            self.count += 1
            try:
                self._target.takes(found)
            except Exception:
                self.failing = found
                raise

        try:
            all_are_taken()
        except Exception as e:
            return e
        return None


def keep(name: str, found: Any) -> Path:
    """Write an input down, under a name made of its content."""
    text = json.dumps(found, indent=1) + "\n"
    path = FOUND / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"
    path.write_text(text, encoding="utf-8")
    return path


def main(argv: list[str]) -> int:
    """Fuzz for so many minutes, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--inputs", type=int, default=INPUTS_OF_A_TURN, help="of a target in a turn")
    parser.add_argument("--only", choices=sorted(TARGETS), help="one target")
    options = parser.parse_args(argv)
    until = time.monotonic() + options.minutes * 60
    counts = dict.fromkeys([options.only] if options.only else TARGETS, 0)
    found: dict[str, Path] = {}
    rounds = 0
    while (not rounds or time.monotonic() < until) and len(found) < len(counts):
        for name in [name for name in counts if name not in found]:
            if rounds and time.monotonic() >= until:
                break
            turn = Turn(TARGETS[name], options.inputs)
            error = turn.take(random.randrange(1 << 32))
            counts[name] += turn.count
            if error is not None:
                found[name] = keep(name, turn.failing)
                traceback.print_exception(error)
                print(f"{name}: kept as {found[name]}", flush=True)
        rounds += 1
    for name, count in counts.items():
        print(f"{name}: {count} inputs{', FOUND ' + found[name].name if name in found else ''}")
    return 1 if found else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # paramiko and links tell of each input
    sys.exit(main(sys.argv[1:]))

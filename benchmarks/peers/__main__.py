"""`python -m benchmarks.peers [--minutes 10] [--every 60] [--write]` compares orch with what people use else.

Five ways train the same ConvNet with two workers on this machine, each undisturbed for a minute, and then with a
`kill -9` of one worker at each interval. It needs the environment of `make bench-peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.figure import NotMeasured
from benchmarks.machine import ROOT, here
from benchmarks.peers import goodput, page
from benchmarks.peers.contenders import CONTENDERS, PEERS_PYTHON

DOCS = ROOT / "docs"


def main(argv: Sequence[str]) -> int:
    """Measure, print the page, and write it if asked. Return 1 where a contender could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *CONTENDERS], metavar="NAME", help="; ".join(CONTENDERS)
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long each trains with kills (10)")
    parser.add_argument("--every", type=float, default=60.0, help="seconds from kill to kill (60)")
    parser.add_argument("--write", action="store_true", help="write docs/peers.md and its plots")
    options = parser.parse_args(argv)
    if not Path(PEERS_PYTHON).exists():
        parser.error(f"{PEERS_PYTHON} is not there: `make bench-peers` installs it")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    at = here(" ".join(["python -m benchmarks.peers", *argv]))
    found: dict[str, goodput.Goodput] = {}
    failures: list[str] = []
    for name in options.names or CONTENDERS:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            found[name] = goodput.measure(CONTENDERS[name], minutes=options.minutes, every_s=options.every)
        except NotMeasured as e:
            failures.append(f"{name}: not measured: {e}")
    text = page.document(at, found, failures, minutes=options.minutes, every_s=options.every)
    print(text)
    if options.write:
        (DOCS / "peers.md").write_text(text)
        for file, svg in page.images(found).items():
            (DOCS / "images" / file).write_text(svg)
        samples = {name: asdict(each) for name, each in found.items()}
        known = {
            "machine": asdict(at),
            "minutes": options.minutes,
            "every_s": options.every,
            "measured": samples,
        }
        (DOCS / "peers.json").write_text(json.dumps(known, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m benchmarks.whole_batch [small|large|transformer]`: what gathering costs a step, and the proof a fit.

The two replicas are in one process, which trains by `workdir/whole_batch.py`: one without the proof beside one with it.
All figures are CPU seconds of the process, of all its threads, so that other work on the machine counts little; no
network's time is in them. The proof is the difference between fits of one step, once these are traced.
"""

from __future__ import annotations

import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang

SCRIPT = Path(__file__).parent / "workdir" / "whole_batch.py"
OPTIONS = {"strategy": "mirrored", "transparent": True, "replicas_on_cpu": 2}
LIMIT_S = 1800.0


def main() -> int:
    """Measure, and print a table for docs/strategies.md."""
    with ThreadPoolExecutor(2) as pool:
        plain, proved = pool.map(_trained, (False, True))
    print(
        "| model | loss | ms a step | to a mean's | proof, in steps | first fit, s | the same with the proof, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (model, loss), row in plain.items():
        with_proof, step = proved[model, loss], row["step"]
        cells = [
            f"{model}, {row['parameters'] / 1e6:.2g} million weights",
            loss,
            f"{1000 * step:.1f}",
            f"{step / plain[model, 'mse']['step']:.2f}",
            f"{(with_proof['one'] - row['one']) / step:.1f}",
            f"{row['first']:.1f}",
            f"{with_proof['first']:.1f}",
        ]
        print(f"| {' | '.join(cells)} |")
    return 0


def _trained(proves: bool) -> dict[tuple[str, str], Any]:
    env = {"ORCH_RUNTIME": json.dumps(with_row({**OPTIONS, "proves": proves}))}
    with tempfile.TemporaryDirectory() as place:
        gang = Gang(SCRIPT, *sys.argv[1:], directories=[Path(place)], env=env)
        try:
            if any(gang.ended(LIMIT_S)):
                raise SystemExit(gang.tasks[0].err)
            rows = [
                json.loads(line) for line in gang.tasks[0].out.splitlines() if line.startswith('{"model"')
            ]
        finally:
            gang.close()
    return {(row["model"], row["loss"]): row for row in rows}


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.shares [PAIRS]`: what it costs a step that replicas tell each other what each has counted.

Two workers train the same model twice under `transparent: true`, in turns of 20 steps, by `workdir/shares.py`: once
with figures and moving averages in the all-reduce of the gradients, once without. Neighbouring turns are compared, so
that other work on the machine is in both; the figures are medians over the pairs, beside their quartiles. CPU is that
of the first worker, of all its threads.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang, seeded

SCRIPT = Path(__file__).parent / "workdir" / "shares.py"
OPTIONS = {"strategy": "multi_worker_mirrored", "transparent": True, "rescue": True, "proves": False}
LIMIT_S = 1800.0


def main(pairs: str) -> int:
    """Measure, and print a line for docs/rescue.md of each model."""
    with tempfile.TemporaryDirectory() as directory:
        env = {"ORCH_RUNTIME": json.dumps(with_row(OPTIONS))}
        gang = Gang(SCRIPT, pairs, directories=seeded(Path(directory), 1, 2)[1], env=env)
        try:
            if any(gang.ended(LIMIT_S)):
                raise SystemExit("\n".join(task.err[-2000:] for task in gang.tasks))
            lines = [json.loads(each) for each in gang.tasks[0].out.splitlines() if each.startswith("{")]
        finally:
            gang.close()
    for line in lines:
        ends = "equal" if line["same"] else "different"
        print(f"{'with' if line['normalizes'] else 'without'} BatchNormalization, {ends} weights:")
        for place, what in enumerate(("a step", "its CPU")):
            pairs_ms = [(silent[place], telling[place]) for silent, telling in line["turns"]]
            low, middle, high = quantiles((100 * (telling / silent - 1) for silent, telling in pairs_ms), n=4)
            print(
                f"  {what} {median(silent for silent, _ in pairs_ms):.2f} ms; "
                f"telling {median(telling - silent for silent, telling in pairs_ms):+.2f} ms, "
                f"{middle:+.1f} % (quartiles {low:+.1f} to {high:+.1f} %)"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "60"))

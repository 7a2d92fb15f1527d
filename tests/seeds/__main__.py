"""Runs the listings of the course on two workers, plain and transparent, without a fault and with a kill.

    make seeds [LISTINGS=ordinary,digits] [WAYS=transparent] [FAULTS=none,kill]

What each worker's models end with must be the same on both. That a run ends well proves nothing: workers that train
apart end well too. A row says `equal`, why it was refused before it trained, or what happened.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang, seeded

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).parent / "scripts"
LISTINGS = {
    "ordinary": ("--epochs", "3"),
    "digits": ("--epochs", "3"),
    "model_checkpoint": ("--epochs", "3", "--samples", "2000"),
    "checkpoint_manager": ("--steps", "60", "--save-every", "20"),
    "data_pipeline": ("--images", "256", "--epochs", "1"),
    "fault_tolerance": ("--epochs", "2"),
    "custom_training": ("--epochs", "1"),
    "save_and_load": ("--epochs", "3"),
    "mirrored": ("--epochs", "2"),
    "curves": ("--epochs", "3"),
    "mnist": ("--epochs", "2"),
}
OF_SEVERAL = ("digits", "model_checkpoint", "checkpoint_manager", "data_pipeline")
"""Those that make a MultiWorkerMirroredStrategy themselves. The others train alone, unless they are transparent."""
END_S = 300.0


class Listing:
    """One listing, in one of the two ways, with or without a kill."""

    def __init__(self, root: Path, name: str, way: str, dice: random.Random) -> None:
        self.root, self.name, self.way = root, name, way
        self.victim, self.kill_at = dice.randrange(2), dice.randint(8, 25)

    def row(self, fault: str) -> str:
        """Run it, and say what came of it."""
        if fault == "kill" and (why := self._killed()):
            return why
        return self._ended(self._gang(2 if fault == "kill" else 1))

    def _gang(self, generation: int) -> Gang:
        options = {
            "strategy": "multi_worker_mirrored",
            "transparent": self.way == "transparent",
            "rescue": True,
        }
        survivor = 1 - self.victim
        env = {
            "ORCH_RUNTIME": json.dumps(with_row(options)),
            "ORCH_TASK": f"worker:{survivor}",
            "ORCH_RESCUE_DIR": str(self.root / "shared" / f"gen-{generation:06d}"),
            "PYTHONPATH": os.pathsep.join((str(SITE), str(ROOT))),
            "DIGESTS": str(self.root),
            "HOME": str(self.root),
        }
        if self.name == "model_checkpoint":
            env["TF_USE_LEGACY_KERAS"] = "1"
        directories = seeded(self.root, generation, 2)[1]
        script = Path(shutil.copy(ROOT / "examples" / f"{self.name}.py", self.root))  # it saves beside itself
        return Gang(script, *LISTINGS[self.name], directories=directories, env=env)

    def _killed(self) -> str:
        """Kill a worker once the other has made some steps. Return what went wrong."""
        run, survivor = self._gang(1), 1 - self.victim
        try:
            until = time.monotonic() + END_S
            while max(run.steps(survivor), default=0) < self.kill_at:
                if time.monotonic() > until or run.tasks[survivor].process.poll() is not None:
                    return f"it never came to step {self.kill_at}: {_why(run)}"
                time.sleep(0.02)
            run.tasks[self.victim].process.send_signal(signal.SIGKILL)
            run.tasks[self.victim].process.wait()
            run.tasks[survivor].order(stop={"grace_s": 60.0, "rescue": True})
            run.ended(END_S)
            return ""
        finally:
            run.close()

    def _ended(self, run: Gang) -> str:
        try:
            codes = run.ended(END_S)
            if codes != [0, 0]:
                return f"exit {codes}: {_why(run)}"
            ends = [json.loads((self.root / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
            models = len(ends[0])
            return f"equal ({models} models)" if models and ends[0] == ends[1] else f"differs: {ends}"
        finally:
            run.close()


def _why(run: Gang) -> str:
    """Return why it was refused, or the last line of what it wrote."""
    errors: list[Any] = [line["error"] for heard in run.heard for line in heard if "error" in line]
    refused = next((each["message"] for each in errors if each["kind"] == "unsupported"), "")
    if refused:
        return f"refused: {refused}"
    return (run.tasks[0].err.strip().splitlines() or ["nothing was said"])[-1][:300]


def main() -> int:
    """Run what is asked for, and print each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listings", default=",".join(LISTINGS))
    parser.add_argument("--ways", default="plain,transparent")
    parser.add_argument("--faults", default="none,kill")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice, wrong = random.Random(options.seed), 0
    for name in options.listings.split(","):
        for way in options.ways.split(","):
            for fault in options.faults.split(",") if way == "transparent" or name in OF_SEVERAL else ():
                with tempfile.TemporaryDirectory(prefix="orch-seeds-") as directory:
                    began_at = time.monotonic()
                    said = Listing(Path(directory), name, way, dice).row(fault)
                wrong += not said.startswith("equal") and "refused: " not in said
                print(f"{name}, {way}, {fault}: {said} ({time.monotonic() - began_at:.0f} s)", flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())

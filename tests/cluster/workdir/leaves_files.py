"""Leaves files in its working directory, as a script does that saves its model there, and is restarted once."""

from __future__ import annotations

import json
import os
import sys

from orchestrator import runtime

MEGABYTES = 3


def main() -> int:
    task, restarts = os.environ["ORCH_TASK"], int(os.environ["ORCH_RESTARTS"])
    if restarts == 0:
        with open("first.json", "w") as first:
            json.dump({"task": task, "pid": os.getpid()}, first)
        runtime.report(1)
        return 42
    with open("first.json") as first:  # of the generation before, and of this task alone
        assert json.load(first)["task"] == task
    with open("leaves_files.py") as pushed:
        assert pushed.read().startswith('"""Leaves files')
    assert sys.path[0] == os.getcwd()
    os.makedirs("plots")
    with open("plots/loss.csv", "w") as table:
        table.write(f"step,loss\n1,{task}\n")
    if task == "worker:0":
        with open("model.keras", "wb") as model:
            model.write(bytes(range(256)) * 4096 * MEGABYTES)
    os.symlink("/etc/passwd", "passwd")
    runtime.report(2)
    return 0


if __name__ == "__main__":
    sys.exit(main())

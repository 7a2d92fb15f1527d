"""Leaves what once stopped a fetch: another task's name, a sparse file of 4 TiB, and a name that looks like two."""

from __future__ import annotations

import os

from orchestrator import runtime


def main() -> None:
    task = os.environ["ORCH_TASK"]
    runtime.report(1)
    if task == "worker:0":
        os.makedirs("worker-1")
        with open("worker-1/out.csv", "w") as out:
            out.write(task)
        with open("sparse", "w") as sparse:
            os.truncate(sparse.fileno(), 4 << 40)
        with open("a.csv\nmodel.keras", "w") as odd:
            odd.write(task)
    else:
        with open("out.csv", "w") as out:
            out.write(task)


if __name__ == "__main__":
    main()

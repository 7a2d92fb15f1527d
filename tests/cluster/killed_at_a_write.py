"""A coordinator that is killed at a write of its journal: not near it, but just before or just after the COMMIT.

`sitecustomize` of its Python does it, and only in the coordinator: commands, agents and tasks live.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.cluster import Cluster

_SITECUSTOMIZE = """
import os, sys
if sys.orig_argv[-2:] == ["coordinator", "run"] and os.environ.get("ORCH_TEST_KILLED_AT"):
    import signal, sqlite3

    when, number, told, since = os.environ["ORCH_TEST_KILLED_AT"].split(" ", 3)
    left = int(number)

    def end():
        open(told, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

    class Connection(sqlite3.Connection):
        def execute(self, statement, *values):
            global left
            if statement != "COMMIT" or left <= 0 or not (since == "its-start" or os.path.exists(since)):
                return super().execute(statement, *values)
            left -= 1
            if left == 0 and when == "before":
                end()
            done = super().execute(statement)
            if left == 0:
                end()
            return done

    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: connect(*args, **{"factory": Connection, **options})
"""


def prepare(cluster: Cluster) -> None:
    """Give its coordinators a Python in which they can be killed so."""
    directory = cluster.directory / "killed-at-a-write"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    inherited = cluster.env.get("PYTHONPATH", str(Path(__file__).parents[2]))
    cluster.env["PYTHONPATH"] = f"{directory}{os.pathsep}{inherited}"


def arm(cluster: Cluster, when: str, number: int, since: Path | str = "its-start") -> Path:
    """Let the next coordinator be killed `before` or `after` its COMMIT of that number; the file that says so.

    They are counted from its start, or from when the file `since` exists.
    """
    told = cluster.directory / f"killed-{when}-{number}"
    cluster.env["ORCH_TEST_KILLED_AT"] = f"{when} {number} {told} {since}"
    return told


def disarm(cluster: Cluster) -> None:
    """Let the next ones live."""
    cluster.env.pop("ORCH_TEST_KILLED_AT", None)

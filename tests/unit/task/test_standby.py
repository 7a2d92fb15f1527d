"""A standby is not in the way of what trains, and is an ordinary task once it is released."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

SCRIPT = """
import json, os, threading
from orchestrator.task.standby import Restraints

def priority(thread):
    return os.getpriority(os.PRIO_PROCESS, thread)

def score():
    with open("/proc/self/oom_score_adj") as file:
        return int(file.read())

told = {"before": score()}
restraints = Restraints.from_environment()
told["hidden"] = "ORCH_STANDBY" not in os.environ
told["imports"] = restraints.imports(lambda: priority(threading.get_native_id()), {"tensorflow"})
told["nothing to import"] = restraints.imports(lambda: priority(threading.get_native_id()), set())
told["main"], told["waiting"] = priority(threading.get_native_id()), score()
restraints.released()
told["released"] = score()
print(json.dumps(told))
"""


def told(**env: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": ":".join(sys.path), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_standby_imports_with_the_lowest_priority_and_trains_with_its_own() -> None:
    found = told(ORCH_STANDBY="1")
    assert found["hidden"]
    assert (found["imports"], found["main"]) == (19, found["nothing to import"])
    assert found["main"] < 19
    assert (found["waiting"], found["released"]) == (900, found["before"])


def test_another_task_has_no_such_manners() -> None:
    found = told()
    assert found["imports"] == found["main"]
    assert found["before"] == found["waiting"] == found["released"]

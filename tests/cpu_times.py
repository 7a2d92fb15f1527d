"""`pytest -p tests.cpu_times …`: what each test costs, with all that it starts, to build/cpu-times.jsonl; as root.

`python -m tests.cpu_times > tests/slowest.txt` names those that cost most, after a run of all.

The clock says little on a machine that others use too. Coordinators and shims are nobody's children, so the kernel
counts for a control group: one for each process of pytest.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

WHERE = Path("build/cpu-times.jsonl")
GROUPS = Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")
"""Of the first version of control groups, and of the second."""
SLOWEST = 200
"""So many, of some 1,740, are nearly four fifths of the CPU of all tests but the unit tests."""
_group: list[Path] = []


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        parent = next(path for path in GROUPS if (path / "cgroup.procs").exists())
        group = parent / f"orch-tests-{os.getpid()}"
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
        _group.append(group)
        WHERE.parent.mkdir(exist_ok=True)


def pytest_unconfigure() -> None:
    for group in _group:
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):  # something that a test has started lives still
            group.rmdir()


def _used_s() -> float:
    (group,) = _group
    old = group / "cpuacct.usage"
    if old.exists():
        return int(old.read_text()) / 1e9
    return int((group / "cpu.stat").read_text().split()[1]) / 1e6  # `usage_usec N` is its first line


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    used_s, began = _used_s(), time.monotonic()
    result = yield
    took = {"cpu_s": round(_used_s() - used_s, 2), "wall_s": round(time.monotonic() - began, 2)}
    with WHERE.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": item.nodeid, **took}) + "\n")
    return result


def slowest(lines: list[str]) -> list[str]:
    """Return the names of the slowest tests, the slowest first, each with the least that it cost."""
    cost: dict[str, float] = {}
    for line in map(json.loads, lines):
        if line["test"].startswith("tests/unit/"):
            continue  # they are quick, and `make check` runs them by themselves
        cost[line["test"]] = min(line["cpu_s"], cost.get(line["test"], line["cpu_s"]))
    return sorted(cost, key=lambda test: -cost[test])[:SLOWEST]


if __name__ == "__main__":
    print("\n".join(slowest(WHERE.read_text(encoding="utf-8").splitlines())))

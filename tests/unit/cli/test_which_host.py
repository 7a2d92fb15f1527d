"""Which hosts a command means: with tasks, of the chief, by their name; and of several runs, the newest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.commands.exec import orders
from orchestrator.cli.commands.queue import _row
from orchestrator.cli.commands.ssh import chosen
from orchestrator.client.known_run import known_run
from orchestrator.core.errors import UsageError
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.node.paths import Paths
from tests.unit.core.transcript import make_plan
from tests.unit.head.recording import RUN, Head


@pytest.fixture
def run() -> Run:
    """Return a run of two workers, the chief on `b`, and with a spare."""
    plan = make_plan(["a", "b", "c"], checkpoint=False)
    first, second, _ = plan.tasks
    tasks = (replace(first, host="b"), replace(second, host="a"))
    return new_run(RUN, replace(plan, tasks=tasks), epoch=1, at=0.0)


def test_exec_runs_on_the_hosts_with_tasks_and_on_spares_where_that_is_asked_for(run: Run) -> None:
    def asked(host: str | None = None, task: str | None = None, *, spares: bool = False) -> list[str]:
        return [place.name for place, _ in orders(run, ["nvidia-smi"], host, task, spares=spares)]

    assert asked() == ["a", "b"]
    assert asked(spares=True) == ["a", "b", "c"]
    assert asked("c") == ["c"]
    assert asked(task="worker:1") == ["a"]
    with pytest.raises(UsageError, match="has no host 'd'"):
        asked("d")


def test_exec_has_the_environment_of_a_task_once_all_know_each_others_ports(run: Run) -> None:
    """Before that the addresses of the cluster are not known, and a wrong one would be worse than none."""

    def environment(run: Run) -> dict[str, str]:
        ((_, asked),) = orders(run, ["env"], None, "worker:1", spares=False)
        return asked["env"]

    assert environment(run) == {}
    first, second = run.tasks
    one_joined = run.with_task(replace(first, port=20_001))
    assert environment(one_joined) == {}
    cluster = environment(one_joined.with_task(replace(second, port=20_002)))["TF_CONFIG"]
    assert ":20001" in cluster
    assert ":20002" in cluster


def test_ssh_leads_to_the_chiefs_host_where_none_is_named(run: Run) -> None:
    assert chosen(run, None)[1] == "b, which has worker:0"
    assert chosen(run, "worker:1")[1] == "a, which has worker:1"
    assert chosen(run, "c")[1] == "c"


def test_of_runs_of_one_name_the_newest_is_meant(tmp_path: Path, run: Run) -> None:
    paths = Paths.from_environment({"ORCH_STATE_DIR": str(tmp_path / "state")})
    paths.ensure()
    head = Head(Path(paths.journal))
    newer = replace(run, run_id="t-20260102-000000")
    for each in (run, newer):
        head.loop.submit(each)
    head.end()
    assert known_run(paths, "t").run_id == newer.run_id
    assert known_run(paths, RUN).run_id == RUN


def test_the_queue_shows_how_long_a_run_may_take() -> None:
    turn: dict[str, Any] = {"run_id": RUN, "priority": 1, "waited_s": 60.0, "begins_in_s": 120.0}
    turn |= {"time_limit_s": 3600.0, "waits_for": [], "others": None}
    assert _row(turn) == [RUN, "1", "1 min", "in 2 min", "1 h", "-", "-", "nothing"]
    assert _row({**turn, "time_limit_s": None, "begins_in_s": None})[3:5] == ["not known", "none"]
    placed = {"needs": "2 workers", "place": [{"host": "a"}, {"host": "b"}, {"host": "a"}]}
    assert _row({**turn, **placed})[5:] == ["2 workers", "a, b", "nothing"]

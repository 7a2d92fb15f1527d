"""What the status says that the tasks of an ended run have left."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.events import Ticked
from orchestrator.core.state.phase_states import Ended, Phase, Swept
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.code import push_rules
from orchestrator.head.coordinator.coordinator import Coordinator
from orchestrator.head.effects.left_files import LeftFiles
from orchestrator.head.journal.journal import Journal
from orchestrator.head.links.conversation import Answer, LinkDown
from orchestrator.head.node.paths import Paths
from orchestrator.protocol.orders.base import Order
from tests.contract.fake_agent import FakeHosts, until
from tests.protocol_orders import BY_NAME
from tests.unit.core.transcript import make_plan
from tests.unit.head.test_outputs import Host, leases


@pytest.fixture
def run(tmp_path: Path) -> Run:
    plan = replace(
        make_plan(["a"], checkpoint=False), outputs=("model.keras",), outputs_dir=str(tmp_path / "t-outputs")
    )
    made = new_run("t-1", plan, epoch=1, at=0.0)
    tasks = tuple(replace(task, generation=2) for task in made.tasks)
    return replace(made, generation=2, tasks=tasks, phase_state=Ended(phase=Phase.SUCCEEDED, proof={}))


def left_files(tmp_path: Path) -> LeftFiles:
    (tmp_path / "state" / "runs" / "t-1").mkdir(parents=True, exist_ok=True)
    return LeftFiles(Paths(str(tmp_path / "state"), str(tmp_path / "run")))


def known(run: Run, kept: LeftFiles) -> dict[str, object]:
    return dict(kept.document(run) or {})


def test_what_the_spec_names_is_fetched_and_known_to_the_next_coordinator(run: Run, tmp_path: Path) -> None:
    kept = left_files(tmp_path)
    host = Host({"model.keras": b"weights", "notes.txt": b"1"})
    kept.end(host, run, "a")
    left = {"task": "worker:0", "host": "a", "files": 2, "bytes": 8, "fetched": 1}
    told = known(run, kept)
    assert (told["tasks"], told["problems"], told["pending"]) == ([left], [], False)
    assert (tmp_path / "t-outputs" / "t-1" / "model.keras").read_bytes() == b"weights"
    assert (tmp_path / "t-outputs" / ".gitignore").read_text().splitlines() == [push_rules.OUTPUTS_MARK, "*"]
    assert known(run, left_files(tmp_path)) == told


@pytest.mark.fault(95)
def test_a_file_that_cannot_be_fetched_holds_up_no_other(run: Run, tmp_path: Path) -> None:
    every = replace(run, plan=replace(run.plan, outputs=("*",)))
    host = Host({"a": b"1", "sparse": b"2", "mine": b"3", "d": b"4", "d/x": b"5", "z": b"6"})
    host.told_bytes["sparse"] = 4 << 40
    there = tmp_path / "t-outputs" / "t-1"
    there.mkdir(parents=True)
    (there / "mine").write_bytes(b"of a person")
    kept = left_files(tmp_path)
    kept.end(host, every, "a")
    assert {path.name: path.read_bytes() for path in there.iterdir()} == {
        "a": b"1",
        "mine": b"of a person",
        "d": b"4",
        "z": b"6",
    }
    told = known(every, kept)
    assert [problem.split(":")[:2] for problem in told["problems"]] == [  # type: ignore[attr-defined]
        ["a", " sparse"],
        [f"mine is in {there} with another content"],
        ["a", " d/x"],
    ]
    assert told["tasks"] == [
        {"task": "worker:0", "host": "a", "files": 6, "bytes": 5 + (4 << 40), "fetched": 3}
    ]


def test_that_nothing_of_what_the_spec_names_was_left_is_a_problem(run: Run, tmp_path: Path) -> None:
    kept = left_files(tmp_path)
    kept.end(Host({"notes.txt": b"1"}), run, "a")
    assert known(run, kept)["problems"] == ["no file that `outputs` names was left: model.keras"]


def test_a_host_that_is_away_is_named(run: Run, tmp_path: Path) -> None:
    kept = left_files(tmp_path)
    kept.end(None, run, "a")
    assert known(run, kept)["problems"] == ["a: a is not connected"]


def test_of_a_run_that_a_person_ended_nothing_is_fetched(run: Run, tmp_path: Path) -> None:
    killed = replace(run, phase_state=Ended(phase=Phase.KILLED, proof={}))
    kept = left_files(tmp_path)
    kept.end(Host({"model.keras": b"weights"}), killed, "a")
    told = known(killed, kept)
    assert (told["directory"], told["problems"]) == (None, [])
    assert not (tmp_path / "t-outputs").exists()


def test_a_fetch_is_under_way_from_the_first_question_to_its_end_or_failure(run: Run, tmp_path: Path) -> None:
    kept = left_files(tmp_path)
    seen: list[bool] = []

    class Looking(Host):
        def ask(self, order: Order[Any], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[Any]:
            seen.append(kept.is_fetching(run.run_id))
            if len(seen) > 2:
                raise LinkDown("a went away")
            return super().ask(order, blob, timeout_s=timeout_s)

    assert not kept.is_fetching(run.run_id)
    kept.end(Looking({"model.keras": b"weights"}), run, "a")
    assert seen == [True] * 3
    assert not kept.is_fetching(run.run_id)
    assert known(run, kept)["problems"] == ["a: a went away"]


def test_a_host_on_which_no_task_was_started_is_not_asked(run: Run, tmp_path: Path) -> None:
    kept = left_files(tmp_path)
    begun = replace(run, tasks=tuple(replace(task, generation=0) for task in run.tasks))
    kept.end(Host({"model.keras": b"weights"}), begun, "a")
    kept.end(Host({"model.keras": b"weights"}), run, "elsewhere")
    assert not (tmp_path / "t-outputs").exists()


def test_without_outputs_in_the_spec_what_was_left_is_told_and_nothing_is_fetched(
    run: Run, tmp_path: Path
) -> None:
    bare = replace(run, plan=replace(run.plan, outputs=()))
    kept = left_files(tmp_path)
    kept.end(Host({"model.keras": b"weights"}), bare, "a")
    told = known(bare, kept)
    left = {"task": "worker:0", "host": "a", "files": 1, "bytes": 7, "fetched": 0}
    assert (told["directory"], told["tasks"], told["problems"]) == (None, [left], [])
    assert not (tmp_path / "t-outputs").exists()


def test_more_is_awaited_of_runs_alone_whose_end_this_coordinator_has_seen(run: Run, tmp_path: Path) -> None:
    kept = left_files(tmp_path)
    run = replace(run, phase_state=Ended(phase=Phase.SUCCEEDED, proof={"a": Swept()}))
    assert known(run, kept)["pending"] is False, "nobody lists the files of an older run any more"
    kept.await_end(run.run_id)
    assert known(run, kept)["pending"] is True
    kept.forget([run.run_id])
    assert known(run, kept)["pending"] is False


def test_what_a_coordinator_that_died_has_not_fetched_the_next_one_fetches(run: Run, tmp_path: Path) -> None:
    """A host that owes the proof is asked once it has given it. Nothing is given back before."""
    plan = make_plan(["a", "b", "c"], checkpoint=False)
    made = new_run("t-1", replace(run.plan, hosts=plan.hosts, tasks=plan.tasks), epoch=1, at=0.0)
    tasks = tuple(replace(task, generation=2) for task in made.tasks)
    hosts = tuple(replace(host, untouched=False) for host in made.hosts)
    proof = {"a": Swept(), "b": Swept()}
    ended = replace(
        made, generation=2, tasks=tasks, hosts=hosts, phase_state=Ended(phase=Phase.SUCCEEDED, proof=proof)
    )
    left_files(tmp_path).end(Host({"notes.txt": b"1"}), ended, "a")
    kept, due = left_files(tmp_path), list[Callable[[], None]]()
    kept.resume(ended, leases(b=Host({"model.keras": b"weights"}, task="worker:1")), due.append)
    assert known(ended, kept)["pending"] is True
    (fetch,) = due
    fetch()
    told = known(ended, kept)
    assert (told["pending"], told["problems"]) == (False, [])
    assert (tmp_path / "t-outputs/t-1/worker-1/model.keras").read_bytes() == b"weights"
    proven = replace(ended, phase_state=Ended(phase=Phase.SUCCEEDED, proof={**proof, "c": Swept()}))
    assert known(proven, kept)["pending"] is True
    again = left_files(tmp_path)
    again.resume(ended, leases(), due.append)
    assert len(due) == 1, "of a host no more than once"


def test_a_host_that_is_away_when_the_next_coordinator_asks_is_named(run: Run, tmp_path: Path) -> None:
    run = replace(run, phase_state=Ended(phase=Phase.SUCCEEDED, proof={"a": Swept()}))
    kept = left_files(tmp_path)
    kept.resume(run, leases(a=LinkDown("no route")), lambda fetch: fetch())
    told = known(run, kept)
    assert (told["pending"], told["problems"]) == (False, ["a: a is not connected"])


def test_a_fetch_that_ends_with_its_coordinator_is_no_failure_and_the_next_one_fetches(
    run: Run, tmp_path: Path
) -> None:
    run = replace(run, phase_state=Ended(phase=Phase.SUCCEEDED, proof={"a": Swept()}))
    kept = left_files(tmp_path)
    host = Host({"model.keras": b"weights"})
    host.breaks_after = 0
    kept.await_end(run.run_id)
    kept.close()
    kept.end(host, run, "a")
    told = known(run, kept)
    assert (told["pending"], told["problems"]) == (True, []), "it is not given back"
    again = left_files(tmp_path)
    again.resume(run, leases(a=Host({"model.keras": b"weights"})), lambda fetch: fetch())
    assert (tmp_path / "t-outputs/t-1/model.keras").is_file()


def test_of_a_run_that_names_no_files_or_that_a_person_ended_nothing_is_fetched_later(
    run: Run, tmp_path: Path
) -> None:
    kept, due = left_files(tmp_path), list[Callable[[], None]]()
    run = replace(run, phase_state=Ended(phase=Phase.SUCCEEDED, proof={"a": Swept()}))
    killed = replace(run, phase_state=Ended(phase=Phase.KILLED, proof={"a": Swept()}))
    for ended in (killed, replace(run, plan=replace(run.plan, outputs=()))):
        kept.resume(ended, leases(), due.append)
        assert (due, known(ended, kept)["pending"]) == ([], False)


def test_a_coordinator_fetches_when_it_takes_up_a_run_that_has_ended(run: Run, tmp_path: Path) -> None:
    paths = Paths(str(tmp_path / "state"), str(tmp_path / "run"))
    paths.ensure()
    os.makedirs(paths.run_dir(run.run_id))
    hosts = FakeHosts("a")
    there = Host({"model.keras": b"weights"})
    for verb in ("files", "digest", "file"):
        hosts.agents["a"].answers[verb] = lambda order, _blob: answer_of(there, order)
    proven = Ended(phase=Phase.SUCCEEDED, proof={"a": Swept()})
    left = replace(run, plan=replace(run.plan, hosts=tuple(hosts.plans.values())), phase_state=proven)
    journal = Journal(paths.journal)
    journal.commit(left, Ticked(0.0), [])
    journal.close()
    coordinator = Coordinator(paths, {"fake": hosts.transport})
    try:
        coordinator.take_up()
        until(lambda: not coordinator.owes(coordinator.look(run.run_id)))
    finally:
        coordinator.close()
    model = tmp_path / "t-outputs/t-1/model.keras"
    assert model.is_file()
    assert model.read_bytes() == b"weights"


def answer_of(host: Host, order: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Let a host answer an order that has come over a link."""
    verb = BY_NAME[order["order"]]
    answer = host.ask(Order(verb, order))
    return dict(answer.ok), answer.blob

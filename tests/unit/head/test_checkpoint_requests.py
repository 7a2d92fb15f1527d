"""What the coordinator asks of the chief's host for a person, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from orchestrator.checkpoints import inventory
from orchestrator.core.errors import HostError, OrchestratorError, UsageError
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.head.coordinator import checkpoint_requests
from orchestrator.head.links.conversation import Answer, Asks, Lends, LinkDown, NoAnswer, OrderRefused
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.checkpoints import CheckpointsAnswer
from tests.unit.checkpoints.test_checkpoints import flip, truncate
from tests.unit.checkpoints.test_checkpoints import generation as generation_of
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

Answered = Answer[CheckpointsAnswer]
A = TypeVar("A")


class FakeHosts:
    """Answers every order alike, or each with the next answer, and remembers what was asked of whom."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Order[Any]]] = []
        self._name = ""

    def lease(self, run: Run, name: str, use: Callable[[Asks], A]) -> A:
        assert run.run_id
        self._name = name
        return use(cast("Asks", self))

    def ask(self, order: Order[Any], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answered:
        assert timeout_s > 600
        assert not blob
        self.asked.append((self._name, order))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Answer(cast("CheckpointsAnswer", answer), b"")


def a_run(name: str = "t-1", *, phase: Phase = Phase.RUNNING, checkpoint: bool = True) -> Run:
    return in_phase(new_run(name, make_plan(["a", "b"], checkpoint=checkpoint), epoch=4, at=0.0), phase)


def ask(run: Run, verb: str, what: str | None, lease: Lends, after: Run | None = None) -> dict[str, Any]:
    """Ask, while the run becomes `after`, or stays as it is."""
    return checkpoint_requests.ask(run, verb, what, lease, lambda: after or run)


def a_checkpoint(name: str, **changes: Any) -> dict[str, Any]:
    known = {
        "name": name,
        "path": f"/shared/t/{name}",
        "by": None,
        "generation": 0,
        "whole": True,
        "writing": False,
        "set_aside": False,
    }
    return {**known, "resumes": True, "proof": "checksums", **changes}


def test_it_is_asked_of_the_chiefs_host_with_the_runs_python() -> None:
    listed: dict[str, Any] = {"dir": "/shared/t", "checkpoints": []}
    hosts = FakeHosts(listed)
    found = ask(a_run(), "list", None, hosts.lease)
    assert found == {"run_id": "t-1", "host": "a", **listed, "newest": None}
    ((host, asked),) = hosts.asked
    order = asked.fields
    assert (host, order["do"], order["dir"], order["python"]) == ("a", "list", "/shared/t", "python3")
    assert (order["run"], order["epoch"]) == ("t-1", 4)


def test_what_cannot_be_answered_is_a_sentence_with_its_place() -> None:
    with pytest.raises(UsageError, match="has no checkpoint directory"):
        ask(a_run(checkpoint=False), "list", None, FakeHosts({}).lease)
    with pytest.raises(HostError, match="a: it is cut off") as caught:
        ask(a_run(), "list", None, FakeHosts(LinkDown("it is cut off")).lease)
    assert "/shared/t" in str(caught.value.hint)
    unknown = OrderRefused(Problem("no-such-checkpoint", "there is no checkpoint of step 7", "steps: 5"))
    with pytest.raises(UsageError, match="step 7"):
        ask(a_run(), "pin", "7", FakeHosts(unknown).lease)
    full = OrderRefused(Problem("no-space", "no space left for checkpoints", "free some"))
    with pytest.raises(HostError, match="a: no space left") as refused:
        ask(a_run(), "pin", "5", FakeHosts(full).lease)
    assert refused.value.code == "no-space"


def test_to_go_back_an_older_one_is_taken_where_the_host_refuses_and_none_where_it_is_away() -> None:
    steps = [
        {**a_checkpoint(f"ckpt-{step}"), "global_step": step, "saved_at": float(step)}
        for step in (20, 40, 60)
    ]
    listed = {"dir": "/shared/t", "checkpoints": steps}
    torn = OrderRefused(Problem("torn", "ckpt-40 is cut off", ""))
    back = {"checkpoint": {"generation": 1, "global_step": 20, "path": "ckpt-20"}, "set_aside": []}
    hosts = FakeHosts(listed, torn, back)
    assert checkpoint_requests.go_back(a_run(), 50, hosts.lease)["checkpoint"]["global_step"] == 20
    assert [order.fields["what"] for _, order in hosts.asked] == [None, "40", "20"]
    away = FakeHosts(listed, LinkDown("it is cut off"))
    with pytest.raises(checkpoint_requests.Unreached):
        checkpoint_requests.go_back(a_run(), 50, away.lease)
    assert len(away.asked) == 2, "that it is away says nothing of step 40"
    slow = FakeHosts(listed, NoAnswer("it did not answer in time"))
    with pytest.raises(HostError, match="in time"):
        checkpoint_requests.go_back(a_run(), 50, slow.lease)
    assert len(slow.asked) == 2, "it may do it still"
    with pytest.raises(OrchestratorError, match="no checkpoint from before step 20"):
        checkpoint_requests.go_back(a_run(), 20, FakeHosts(listed).lease)


@pytest.mark.parametrize(
    ("verb", "answer", "lacks"),
    [
        ("list", {"dir": "/shared/t"}, "checkpoints"),
        ("pin", {"dir": "/shared/t"}, "checkpoint"),
        ("rollback", {"checkpoint": {"generation": 5}}, "set_aside"),
        ("rollback", {"checkpoint": {"generation": None}, "set_aside": []}, "checkpoint.generation"),
    ],
)
def test_an_answer_to_another_question_is_none(verb: str, answer: dict[str, Any], lacks: str) -> None:
    with pytest.raises(HostError, match=f"a: its answer to `{verb}` lacks {lacks}$"):
        ask(a_run(), verb, "5", FakeHosts(answer).lease)


@pytest.mark.parametrize(
    ("phase", "generation", "told"),
    [
        (Phase.RUNNING, 1, (None, None, True)),
        (Phase.STOPPING, 1, (None, None, True)),
        (Phase.RUNNING, 7, (False, "cut off", False)),
        (Phase.BACKOFF, 1, (False, "cut off", False)),
        (Phase.FAILED, 1, (False, "cut off", False)),
    ],
)
def test_what_changes_is_being_written_only_where_a_task_may_do_so(
    phase: Phase, generation: int, told: tuple[Any, ...]
) -> None:
    run = a_run(phase=phase)
    number = run.generation if generation == 1 else run.generation + 7
    one = a_checkpoint("ckpt-5", generation=number, whole=False, why="cut off", writing=True)
    hosts = FakeHosts({"dir": "/shared/t", "checkpoints": [one]})
    (found,) = ask(run, "list", None, hosts.lease)["checkpoints"]
    assert (found["whole"], found["why"], found["writing"]) == told


@pytest.mark.parametrize(
    ("phase", "newest", "told"),
    [
        (Phase.RUNNING, "ckpt-1", (None, True)),
        (Phase.BACKOFF, "ckpt-2", (False, False)),
        (Phase.FAILED, "ckpt-2", (False, False)),
    ],
)
@pytest.mark.parametrize("verb", ["list", "read"])
def test_what_a_dead_task_left_half_written_is_the_newest_at_once(
    tmp_path: Path, verb: str, phase: Phase, newest: str, told: tuple[Any, ...]
) -> None:
    run = a_run(phase=phase)
    directory = generation_of(tmp_path, run.generation, "manager")
    truncate(directory / "manager" / "ckpt-2.data-00000-of-00001", 90_000)
    seen = inventory.listed(str(tmp_path), read=verb == "read")
    found = ask(run, verb, None, FakeHosts(seen).lease)
    place = f"gen-{run.generation:06d}/manager"
    assert found["newest"] == f"{place}/{newest}"
    half = next(one for one in found["checkpoints"] if one["name"] == f"{place}/ckpt-2")
    assert (half["whole"], half["writing"]) == told


def torn(name: str, generation: int) -> dict[str, Any]:
    return a_checkpoint(name, generation=generation, whole=False, why="cut off", writing=True)


def read(*found: dict[str, Any]) -> dict[str, Any]:
    return {"dir": "/shared/t", "checkpoints": list(found)}


@pytest.mark.parametrize("verb", ["list", "read"])
def test_what_a_task_was_writing_when_the_run_died_during_the_reading_is_broken(verb: str) -> None:
    run = a_run()
    hosts = FakeHosts(read(torn("ckpt-20", run.generation), a_checkpoint("ckpt-10")))
    answer = ask(run, verb, None, hosts.lease, a_run(phase=Phase.BACKOFF))
    assert answer["newest"] == "ckpt-20"
    newest = answer["checkpoints"][0]
    assert (newest["whole"], newest["why"], newest["writing"]) == (False, "cut off", False)


@pytest.mark.parametrize("harm", [truncate, flip], ids=["cut off", "of the full size"])
def test_the_second_look_at_what_a_dead_task_left_calls_it_broken(
    tmp_path: Path, harm: Callable[[Path, int], None]
) -> None:
    run = a_run()
    directory = generation_of(tmp_path, run.generation, "manager")
    harm(directory / "manager" / "ckpt-2.data-00000-of-00001", 90_000)
    hosts = FakeHosts(inventory.listed(str(tmp_path), read=True), inventory.listed(str(tmp_path)))
    answer = ask(run, "read", None, hosts.lease, a_run(phase=Phase.FAILED))
    assert answer["newest"] == f"gen-{run.generation:06d}/manager/ckpt-2"
    newest = next(one for one in answer["checkpoints"] if one["name"] == answer["newest"])
    assert (newest["whole"], newest["writing"]) == (False, False)


def test_what_the_generation_writes_that_began_during_the_reading_is_not_broken() -> None:
    run = a_run()
    after = replace(run, generation=run.generation + 1)
    hosts = FakeHosts(read(torn("ckpt-20", after.generation), a_checkpoint("ckpt-10")))
    answer = ask(run, "read", None, hosts.lease, after)
    assert answer["newest"] == "ckpt-10"
    newest = answer["checkpoints"][0]
    assert (newest["whole"], newest["writing"]) == (None, True)


def test_what_was_completed_or_removed_since_it_was_looked_at_is_not_broken() -> None:
    run = a_run()
    unfinished = [torn(name, run.generation) for name in ("ckpt-40", "ckpt-30", "ckpt-20")]
    known = {"generation": run.generation, "why": None}
    since = read(a_checkpoint("ckpt-40", whole=None, **known), a_checkpoint("ckpt-30", **known))
    hosts = FakeHosts(read(*unfinished, a_checkpoint("ckpt-10")), since)
    answer = ask(run, "read", None, hosts.lease, a_run(phase=Phase.SUCCEEDED))
    told = [(one["name"], one["whole"], one["writing"]) for one in answer["checkpoints"]]
    assert told == [("ckpt-40", None, True), ("ckpt-30", True, False), ("ckpt-10", True, False)]
    assert answer["newest"] == "ckpt-30"
    assert [order.fields["do"] for _, order in hosts.asked] == ["read", "list"]


def test_the_newest_is_of_the_kind_that_scripts_resume_from_and_was_not_set_aside() -> None:
    export = a_checkpoint("model.keras", resumes=False)
    unknown = a_checkpoint("weights.bin", resumes=False, proof="names")
    aside = a_checkpoint("ckpt-9", set_aside=True)
    listed = [aside, unknown, export, a_checkpoint("ckpt-5", whole=False), a_checkpoint("ckpt-4")]
    for newest in ("ckpt-5", "ckpt-4", "model.keras", "weights.bin", None):
        hosts = FakeHosts({"dir": "/shared/t", "checkpoints": listed})
        assert ask(a_run(), "list", None, hosts.lease)["newest"] == newest
        listed = [one for one in listed if one["name"] != newest]


def test_the_mark_becomes_the_event() -> None:
    found = {"generation": 5, "global_step": 50, "path": "/shared/t/gen-000005/ckpt-50"}
    event = checkpoint_requests.rolled_back({"checkpoint": found, "set_aside": [7, 6]}, at=3.0)
    assert (event.at, event.generation, event.global_step, event.set_aside) == (3.0, 5, 50, (7, 6))


def test_an_older_run_is_not_shown_what_a_later_one_has_saved() -> None:
    names = {generation: f"gen-{generation:06d}/ckpt-1" for generation in (1, 2, 3)}
    listed = read(*(a_checkpoint(name, generation=number) for number, name in names.items()))
    older = replace(a_run(phase=Phase.KILLED), generation=2, generation_last=2)
    hosts = FakeHosts(listed)
    assert [one["generation"] for one in ask(older, "list", None, hosts.lease)["checkpoints"]] == [1, 2]
    going = replace(a_run(), generation=2, generation_last=2)
    assert len(ask(going, "list", None, hosts.lease)["checkpoints"]) == 3


@pytest.mark.parametrize(
    ("place", "task", "host"),
    [
        ("orch/fit-000/rescued-by-worker-1/latest.weights.h5", "worker:1", "b"),
        ("rescued-by-worker-1-57", "worker:1", "b"),
        ("rescued-by-worker-7-57", "worker:7", "a host that has left"),
        ("orch/fit-000/latest.weights.h5", "worker:0", "a"),
    ],
)
def test_what_a_survivor_has_handed_over_is_by_the_survivor(place: str, task: str, host: str) -> None:
    by = {"run": "t-1", "host": "a", "task": "worker:0"}
    hosts = FakeHosts(read(a_checkpoint(f"gen-000001/{place}", generation=1, by=by)))
    (found,) = ask(a_run(), "list", None, hosts.lease)["checkpoints"]
    assert found["by"] == {"run": "t-1", "task": task, "host": host}

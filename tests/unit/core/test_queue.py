"""Who begins: order, priority, backfill, and that nobody waits for ever."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest

from orchestrator.core import decide
from orchestrator.core.events import Admitted, KillRequested, PreemptionRequested, Submitted, Ticked
from orchestrator.core.plan import CheckpointPlan, Gpu, HostPlan, Plan, QueuePlan, TaskId, TaskPlan
from orchestrator.core.pool import NOTHING, Known
from orchestrator.core.queue import STEP_OF_PRIORITY_S, WAY_AGAIN_S, Ask, reckon, turns, ways
from orchestrator.core.state.host import Facts, Host, HostState, Link
from orchestrator.core.state.phase_states import Intent, Pending, Phase, Queued, Running, Stopping
from orchestrator.core.state.run import PlannedEnd, Run, new_run
from orchestrator.reporting.queue_document import queue_document


def ask(name: str, gpus: str, lasts_s: float = inf) -> Ask:
    return Ask(name, {gpu: f"GPU {gpu}" for gpu in gpus}, lasts_s)


def shown(waiting: list[Ask], held: list[tuple[Ask, float]]) -> dict[str, float | str]:
    """Return by name when each is expected to begin; `now` of those that begin."""
    found = reckon(waiting, held, 100.0)
    return {turn.ask.run_id: turn.begins_at if turn.waits_for else "now" for turn in found}


def test_who_came_first_begins_first_and_nobody_takes_what_he_waits_for() -> None:
    held = [(ask("h", "0"), inf)]
    assert shown([ask("a", "01"), ask("b", "1"), ask("c", "2")], held) == {"a": inf, "b": inf, "c": "now"}
    assert shown([ask("a", "1"), ask("b", "01"), ask("c", "2")], held) == {"a": "now", "b": inf, "c": "now"}


def test_a_later_one_goes_first_where_it_ends_before_the_earlier_one_can_begin() -> None:
    held = [(ask("h", "0"), 700.0)]
    assert shown([ask("a", "01", 60), ask("b", "1", 600)], held) == {"a": 700.0, "b": "now"}
    assert shown([ask("a", "01", 60), ask("b", "1", 601)], held) == {"a": 700.0, "b": 760.0}
    assert shown([ask("a", "01"), ask("b", "1")], held) == {"a": 700.0, "b": inf}
    # The holder has outlived its limit: it may end at any moment, and no moment is promised to anybody.
    assert shown([ask("a", "01", 60), ask("b", "1", 1)], [(ask("h", "0"), 99.0)]) == {"a": inf, "b": inf}


def test_what_a_run_waits_for_is_named() -> None:
    turn = reckon([ask("a", "01")], [(ask("h", "0"), 700.0)], 100.0)[0]
    assert turn.sentence(100.0) == "waits in the queue for h (GPU 0); expected to begin in 10 min"


def run(
    name: str, *gpus: Gpu, priority: str | None = None, at: float = 0.0, limit_s: float | None = None
) -> Run:
    host = HostPlan("a", address="a", gpus=(0, 1, 2, 3))
    task = TaskPlan(TaskId("worker", 0), "a", gpus)
    queue = QueuePlan(priority) if priority is not None else None
    plan = Plan(name, "mirrored", (host,), (task,), "t.py", queue=queue, time_limit_s=limit_s)
    return decide.step(new_run(name, plan, epoch=1, at=at), Submitted(at)).run


def order(runs: list[Run], now: float) -> list[str]:
    return [turn.ask.run_id for turn in turns(runs, now)]


def test_priority_goes_before_time_and_a_day_of_waiting_is_a_step_of_it() -> None:
    runs = [
        run("low", 0, priority="low"),
        run("n1", 0, priority="normal", at=5),
        run("n0", 0, priority="normal", at=4),
    ]
    runs.append(run("high", 0, priority="high", at=9))
    assert order(runs, 10.0) == ["high", "n0", "n1", "low"]
    urgent = [run("low", 0, priority="low"), run("high", 0, priority="high", at=2 * STEP_OF_PRIORITY_S + 1)]
    assert order(urgent, 2 * STEP_OF_PRIORITY_S + 2) == ["low", "high"]


def test_a_run_that_waits_touches_no_host_and_begins_once() -> None:
    waiting = run("a", 0, priority="normal")
    assert waiting.phase is Phase.QUEUED
    begun, actions, _ = decide.step(waiting, Admitted(at=50.0))
    assert begun.phase is Phase.PENDING
    assert [type(action).__name__ for action in actions] == ["Note", "PrepareHost"]
    assert decide.step(begun, Admitted(at=51.0)).run == begun
    assert decide.step(waiting, KillRequested(at=9.0)).run.phase is Phase.KILLED


def test_a_run_waits_for_a_gpu_that_another_holds_under_its_other_name() -> None:
    uuid = "GPU-11111111-1111-1111-1111-111111111111"
    holder = run("h", 2)
    met = replace(holder, hosts=(replace(holder.hosts[0], facts=Facts(gpus=("GPU-0", "GPU-1", uuid))),))
    (turn,) = turns([met, run("a", uuid, priority="normal")], 10.0)
    assert turn.waits_for == (("h", (f"GPU {uuid} of a",)),)
    (turn,) = turns([met, run("a", "GPU-1", priority="normal")], 10.0)
    assert turn.has_come


def test_a_run_gives_up_after_its_max_wait() -> None:
    plan = replace(run("a", 0).plan, queue=QueuePlan(max_wait_s=60.0))
    waiting = decide.step(new_run("a", plan, epoch=1, at=10.0), Submitted(10.0)).run
    assert decide.step(waiting, Ticked(69.0)).run == waiting
    ended = decide.step(waiting, Ticked(70.0)).run
    assert (ended.phase, ended.problem and ended.problem.exit_code) == (Phase.FAILED, 7)
    assert "was not free within 1 min" in ended.reason


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.fault(120)
def test_of_any_requests_no_gpu_is_leased_twice_who_fits_begins_and_nobody_starves(seed: int) -> None:
    """Runs come, and end, by their limits or before. Each time it is decided, all of this holds."""
    chance = random.Random(seed)
    waiting: list[tuple[Ask, int]] = []
    held: list[tuple[Ask, float]] = []
    promised: dict[str, float] = {}
    now, number, comes_at = 0.0, 0, 0.0
    all_have_limits = seed % 3 == 0
    while number < 60 or waiting:
        ends = [until for _, until in held if until < inf]
        now = min([comes_at, *ends] if number < 60 else ends, default=now + 1000.0)
        held = [one for one in held if one[1] > now and (one[1] < inf or chance.random() > 0.2)]
        if chance.random() < 0.1 and held:
            held.pop(chance.randrange(len(held)))  # it ended before its time
        if number < 60 and now >= comes_at:
            number, comes_at = number + 1, now + chance.choice([1.0, 10.0, 60.0])
            limit = chance.choice([5.0, 30.0, 200.0, 100.0 if all_have_limits else inf])
            gpus = "".join(chance.sample("01234567", chance.randint(1, 4)))
            waiting.append((ask(f"r{number}", gpus, limit), 0 if all_have_limits else chance.randint(0, 2)))
            waiting.sort(key=lambda one: -one[1])  # stable: who came first stays first
        found = reckon([one for one, _ in waiting], held, now)
        begun = [turn.ask for turn in found if not turn.waits_for]
        taken = [need for one in [*(one for one, _ in held), *begun] for need in one.needs]
        assert len(taken) == len(set(taken)), "no GPU is leased twice"
        wanted = {need for one, _ in held for need in one.needs}
        for turn in found:
            fits = not turn.ask.needs.keys() & wanted
            assert not (fits and turn.waits_for), f"{turn.ask.run_id} waits and fits"
            wanted |= turn.ask.needs.keys()
            if all_have_limits:  # and no priorities: what was promised once is kept
                assert turn.begins_at <= promised.get(turn.ask.run_id, inf)
                promised[turn.ask.run_id] = turn.begins_at
        held += [(one, now + one.lasts_s) for one in begun]
        waiting = [one for one in waiting if one[0] not in begun]
        assert held or not waiting, "where nobody holds anything, nobody waits"


def begun(name: str, *gpus: int, rank: int) -> Run:
    """Return a run that came from the queue with that priority."""
    waiting = run(name, *gpus, priority="low")
    plan = replace(waiting.plan, checkpoint=CheckpointPlan(f"/shared/{name}"))
    return decide.step(replace(waiting, plan=plan), Admitted(1.0, rank)).run


def preempting(name: str, *gpus: int, priority: str, at: float = 2.0) -> Run:
    waiting = run(name, *gpus, priority=priority, at=at)
    return replace(waiting, plan=replace(waiting.plan, queue=QueuePlan(priority, preempt=True)))


def made_way(*runs: Run, now: float = 3.0, known: Known = NOTHING) -> dict[str, str]:
    return ways(turns(runs, now, known), {one.run_id: one for one in runs}, now)


def test_a_run_makes_way_for_a_higher_priority_that_wants_that_and_for_nobody_else() -> None:
    low, high = begun("low", 0, rank=0), preempting("high", 0, priority="high")
    assert made_way(low, high) == {"low": "high"}
    assert made_way(low, run("polite", 0, priority="high")) == {}, "it does not ask for that"
    assert made_way(low, preempting("equal", 0, priority="low")) == {}
    assert made_way(begun("old", 0, rank=3), high) == {}, "it had waited for so long that its rank is higher"
    assert made_way(run("plain", 0), high) == {}, "what did not come from the queue cannot return to it"
    assert made_way(replace(low, plan=replace(low.plan, checkpoint=None)), high) == {}, "it would lose all"
    second = preempting("second", 0, priority="high", at=3.0)
    assert made_way(low, high, second) == {"low": "high"}, "once, for the first"


def test_nobody_makes_way_in_vain_nor_twice() -> None:
    high = preempting("high", 0, 1, priority="high")
    low, plain = begun("low", 0, rank=0), run("plain", 1)
    assert made_way(low, plain, high) == {}, "another holds a part of what is needed, and stays"
    other = begun("other", 1, rank=1)
    assert made_way(low, other, high) == {"low": "high", "other": "high"}
    asked = replace(
        low, planned_end=PlannedEnd("it makes way for high", at=600.0, wanted_at=None, goes_on=True)
    )
    assert made_way(asked, other, high) == {"other": "high"}


@pytest.mark.parametrize("intent", Intent)
def test_a_run_that_stops_to_start_again_is_none_that_ends(intent: Intent) -> None:
    low, high = begun("low", 0, rank=0), preempting("high", 0, 1, priority="high")
    stopping = replace(run("plain", 1), phase_state=Stopping(intent=intent, deadline_at=9.0))
    goes_on = intent in (Intent.RESTART, Intent.RESCHEDULE)
    assert made_way(low, stopping, high) == ({} if goes_on else {"low": "high"}), "it keeps its GPU"


def test_a_run_of_which_no_proof_can_come_makes_way_for_nobody_since_it_could_not_return() -> None:
    low, high = begun("low", 0, rank=0), preempting("high", 0, priority="high")
    low = replace(low, plan=replace(low.plan, hosts=(*low.plan.hosts, HostPlan("b", address="b"))))
    trains = replace(low, generation=1, phase_state=Running(progress_at=2.0))
    away = Host("b", link=Link.UNREACHABLE, state=HostState.LOST)

    def beside(run: Run, other: Host) -> dict[str, str]:
        return made_way(replace(run, hosts=(Host("a", link=Link.CONNECTED), other)), high)

    assert beside(trains, away) == {}
    for proving in (
        replace(away, link=Link.CONNECTED),
        replace(away, gone="09:30"),
        replace(away, untouched=True),
    ):
        assert beside(trains, proving) == {"low": "high"}
    assert beside(replace(low, phase_state=Pending()), away) == {"low": "high"}, "it has no process anywhere"


def test_a_run_that_made_way_does_not_go_back_to_a_host_that_is_drained() -> None:
    waits, known = replace(run("t", 0, priority="low"), generation=1), Known(drained={"a": "is drained"})
    (turn,) = turns([waits], 5.0, known)
    assert (turn.has_come, turn.sentence(5.0)) == (False, "waits in the queue: a is drained")
    (turn,) = turns([waits], 5.0)
    assert turn.has_come
    high = replace(preempting("high", 0, priority="high"), generation=1)
    assert made_way(begun("low", 0, rank=0), high) == {"low": "high"}
    assert made_way(begun("low", 0, rank=0), high, known=known) == {}, "that would be in vain"


def test_what_others_hold_is_no_reason_to_leave_gpus_idle_nor_to_make_way_again_and_again() -> None:
    high, low = preempting("high", 0, 1, priority="high"), run("low", 0, priority="low")
    assert isinstance(high.phase_state, Queued)
    refused = replace(high.phase_state, others="GPU 1 is held by bob", in_vain_at=10.0, retry_at=40.0)
    high = replace(high, phase_state=refused)
    assert [turn.ask.run_id for turn in turns([high, low], 11.0) if turn.has_come] == ["low"]
    high, low = replace(high, phase_state=replace(refused, retry_at=None)), begun("low", 0, rank=0)
    assert [turn.waits_for for turn in turns([high, low], 41.0)] == [(("low", ("GPU 0 of a",)),)]
    assert made_way(high, low, now=41.0) == {}, "it was in vain a moment ago"
    assert made_way(high, low, now=10.0 + WAY_AGAIN_S) == {"low": "high"}


def test_the_document_names_what_others_hold_and_apart_from_that_for_whom_a_run_has_made_way() -> None:
    low, high = begun("low", 0, rank=0), run("high", 0, priority="high")
    low = decide.step(low, PreemptionRequested(3.0, by="high")).run
    (first, second) = queue_document({"low": low, "high": high}, 4.0)["queue"]
    assert (first["run_id"], second["run_id"], second["others"]) == ("high", "low", None)
    assert second["reason"] == "waits in the queue for high (GPU 0 of a); it makes way for high"


def test_what_an_ended_run_left_on_a_host_without_proof_is_held() -> None:
    ended = decide.step(run("old", 0, 1), KillRequested(at=1.0)).run
    waiting = run("a", 1, priority="normal")
    assert [turn.waits_for for turn in turns([ended, waiting], 2.0)] == [()], "it had touched no host"
    ended = replace(ended, generation=1).with_host(replace(ended.host("a"), untouched=False))
    (turn,) = turns([ended, waiting], 2.0)
    assert (turn.waits_for, turn.begins_at) == ((("old", ("GPU 1 of a",)),), inf)

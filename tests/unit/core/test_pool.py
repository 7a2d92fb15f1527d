"""Where runs go on a pool: beside each other, not where others are, and a gang is not kept waiting by small runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from pydantic import TypeAdapter

from orchestrator.core import decide
from orchestrator.core.actions import Note, PrepareHost
from orchestrator.core.events import Admitted, HostRefused, NoPlaceFound, Submitted, Ticked
from orchestrator.core.launching.placement import place
from orchestrator.core.plan import Ask, CheckpointPlan, HostPlan, Plan, QueuePlan
from orchestrator.core.pool import NOTHING, Known, Placed, Seen, machine, placed
from orchestrator.core.queue import NAMED_MAX, RESERVED_MAX, QueueTurn, reckon, turn_of, turns
from orchestrator.core.queue import Ask as Wanted
from orchestrator.core.state.phase_states import Ended, Phase, Queued
from orchestrator.core.state.roster import Roster
from orchestrator.core.state.run import PlannedEnd, Problem, Run, new_run
from orchestrator.head.coordinator import status
from orchestrator.reporting.queue_document import queue_document

HOSTS = tuple(HostPlan(name, address=f"10.0.0.{i}", gpus=(0, 1)) for i, name in enumerate("abc"))


OUT = Known({machine(HOSTS[0]): Seen(9.0, why="is out")})


def plan(name: str, *asks: Ask, hosts: Sequence[HostPlan] = HOSTS, **more: Any) -> Plan:
    needs = asks or (Ask("worker", 1, 1),)
    tasks, problems = place(hosts, needs, equal_gpus=True)
    assert tasks, problems
    return Plan(name, "multi_worker_mirrored", tuple(hosts), tasks, "t.py", needs=needs, **more)


def begun(plan: Plan, others: Sequence[Run], known: Known = NOTHING) -> Run:
    """Submit a run beside others, as the coordinator does."""
    turn, why = turn_of(plan, others, 1.0, known)
    assert turn.has_come, why
    place = turn.ask.place or Placed(plan.tasks)
    run = new_run(f"{plan.name}-1", placed(plan, place), epoch=1, at=1.0)
    run = replace(run, asked=plan if run.plan != plan else None)
    return decide.step(run, Submitted(1.0, place.against)).run


def queued(plan: Plan, at: float = 1.0) -> Run:
    return new_run(f"{plan.name}-1", replace(plan, queue=plan.queue or QueuePlan()), epoch=1, at=at)


def places(run: Run) -> list[tuple[str, tuple[int | str, ...]]]:
    return [(task.host, task.gpus) for task in run.plan.tasks]


def of(found: Sequence[QueueTurn], name: str) -> QueueTurn:
    return next(turn for turn in found if turn.ask.run_id == f"{name}-1")


def test_runs_are_packed_where_the_fewest_gpus_are_left_and_then_go_to_the_next_host() -> None:
    runs: list[Run] = []
    for name in "tuvwx":
        runs.append(begun(plan(name), runs))
    assert [places(run) for run in runs] == [
        [("a", (0,))], [("a", (1,))], [("b", (0,))], [("b", (1,))], [("c", (0,))]
    ]  # fmt: skip
    assert dict(runs[2].against) == {
        "a": "GPU 0 of a is held by worker:0 of t-1; GPU 1 of a is held by worker:0 of u-1"
    }
    turn, why = turn_of(plan("y", Ask("worker", 1, 2)), runs, 1.0)
    assert not turn.has_come
    assert "GPU 0 of c is held by worker:0 of x-1" in why
    assert "expected" not in why, "who has it may train for ever"


def test_who_finds_no_place_is_told_when_one_is_expected_to_be_free() -> None:
    holder = begun(plan("h", Ask("worker", 3, 2), time_limit_s=7200.0), [])
    _, why = turn_of(plan("y"), [holder], 1.0)
    assert why.endswith("; expected to be free in 2 h"), why


def test_the_plan_that_was_submitted_is_known_wherever_it_went_and_one_of_an_older_orch_too() -> None:
    first = begun(plan("t"), [])
    second = begun(plan("u", Ask("worker", 1, 2)), [first])
    assert places(second) == [("b", (0, 1))]
    assert second.is_of(plan("u", Ask("worker", 1, 2)))
    assert not second.is_of(plan("u", Ask("worker", 1, 1)))
    old = new_run("u-1", plan("u").fixed, epoch=1, at=0.0)
    assert old.is_of(plan("u"))
    assert not old.is_of(plan("u", Ask("worker", 1, 2)))


def test_what_hosts_say_counts_for_a_while() -> None:
    seen = {machine(HOSTS[0]): Seen(50.0, why="cannot be used now (no answer)")}
    seen[machine(HOSTS[1])] = Seen(50.0, {0: "z-1 of user bob"})
    run = begun(plan("t"), [], Known(seen))
    assert places(run) == [("b", (1,))]
    assert dict(run.against)["a"] == "a cannot be used now (no answer)"
    later, _ = turn_of(plan("u", Ask("worker", 1, 2)), [], 51.0, Known(seen))
    assert later.ask.place is not None
    assert later.ask.place.tasks[0].host == "a"


def test_the_memory_of_gpus_is_known_for_good_and_what_others_hold_for_a_while() -> None:
    known = Known({machine(HOSTS[0]): Seen(50.0, {0: "z-1"}, gpu_bytes={0: 8 << 30, 1: 8 << 30})})
    large = plan("t", Ask("worker", 1, 1, gpu_bytes=40 << 30))
    for now in (10.0, 1000.0):
        turn, _ = turn_of(large, [], now, known)
        assert turn.ask.place is not None
        assert turn.ask.place.tasks[0].host == "b"
    turn, _ = turn_of(plan("u", Ask("worker", 1, 2)), [], 1000.0, known)
    assert turn.ask.place is not None
    assert turn.ask.place.tasks[0].host == "a"
    assert [known.is_fresh(HOSTS[0], now) for now in (10.0, 1000.0)] == [True, False]


def test_the_memory_that_tasks_ask_for_counts_over_all_runs_and_what_others_use_for_a_while() -> None:
    hosts = [replace(host, slots=2) for host in HOSTS[:2]]
    known = Known(
        {
            machine(hosts[0]): Seen(50.0, memory_bytes=64 << 30, free_bytes=20 << 30),
            machine(hosts[1]): Seen(50.0, memory_bytes=64 << 30, free_bytes=60 << 30),
        }
    )
    large = plan("t", Ask("worker", 1, 1, memory_bytes=40 << 30), hosts=hosts)
    first = begun(large, [], known)
    assert places(first) == [("b", (0,))]
    assert dict(first.against) == {"a": "a has 20 GiB of memory left"}
    turn, why = turn_of(replace(large, name="u"), [first], 1.0, known)
    assert not turn.has_come
    assert (
        why
        == "a has 20 GiB of memory left; GPU 0 of b is held by worker:0 of t-1; b has 24 GiB of memory left"
    )
    later, _ = turn_of(replace(large, name="u"), [first], 51.0, known)
    assert later.ask.place is not None
    assert later.ask.place.tasks[0].host == "a", (
        "what others used is over, and how much it has is still known"
    )
    refused = known.heard(hosts[0], REFUSED, 2.0, 60.0).seen[machine(hosts[0])]
    assert (refused.memory_bytes, refused.free_bytes, refused.until) == (64 << 30, 20 << 30, 60.0)


def test_a_single_host_that_has_too_little_memory_is_told_before_the_start() -> None:
    small = Known({machine(HOSTS[0]): Seen(50.0, memory_bytes=8 << 30, free_bytes=8 << 30)})
    asks = plan("t", Ask("worker", 1, 2, memory_bytes=40 << 30), hosts=HOSTS[:1])
    assert asks.has_choice
    turn, why = turn_of(asks, [], 1.0, small)
    assert (turn.has_come, why) == (False, "a has 8.0 GiB of memory left")


def test_of_equal_hosts_the_one_where_a_run_of_that_name_was_goes_first() -> None:
    ended = replace(
        begun(plan("t", Ask("worker", 1, 2)), [], OUT), generation=1, phase_state=Ended(phase=Phase.SUCCEEDED)
    )
    ended = replace(ended, hosts=tuple(replace(host, untouched=True) for host in ended.hosts))
    assert places(ended) == [("b", (0, 1))]
    assert places(begun(plan("t", Ask("worker", 1, 2)), [ended])) == [("b", (0, 1))]
    assert places(begun(plan("u", Ask("worker", 1, 2)), [ended])) == [("a", (0, 1))]
    small = begun(plan("v"), [ended])
    assert places(begun(plan("t"), [ended, small])) == [("a", (1,))], (
        "the fewest GPUs left over go before that"
    )


def test_a_spare_of_another_run_is_none_of_this_one() -> None:
    hosts = (*HOSTS, HostPlan("s", address="10.0.0.9", gpus=(0, 1), spare=True))
    first = begun(plan("t", hosts=hosts), [])
    second = begun(plan("u", hosts=hosts), [first])
    assert [host.name for host in first.hosts] == ["a", "s"]
    assert [host.name for host in second.hosts] == ["a"]
    assert second.is_of(plan("u", hosts=hosts))


REFUSED = Problem(
    "gpu-leased",
    "a: GPU 0 is held by z-1 of user bob",
    "`orch up --queue`",
    6,
    held=((0, "z-1 of user bob"),),
)


def test_a_host_that_turns_a_run_away_costs_it_its_place_and_not_its_start() -> None:
    run = begun(plan("t"), [])
    away = decide.step(run, HostRefused(2.0, "a", REFUSED)).run
    assert away.phase is Phase.QUEUED
    known = Known().heard(HOSTS[0], REFUSED, 1.0, 20.0)
    (turn,) = turns([away], 2.0, known)
    assert turn.has_come
    again, actions, _ = decide.step(away, Admitted(2.0, place=turn.ask.place))
    assert (again.phase, places(again), again.problem) == (Phase.PENDING, [("a", (1,))], None)
    assert [action.host for action in actions if isinstance(action, PrepareHost)] == ["a"]
    assert any("GPU 0 of a" not in action.message for action in actions if isinstance(action, Note))


def test_where_no_other_place_is_free_it_ends_with_what_the_first_host_said_and_who_has_the_rest() -> None:
    run = begun(plan("t", Ask("worker", 1, 2)), [])
    away = decide.step(run, HostRefused(2.0, "a", REFUSED)).run
    known = Known().heard(HOSTS[0], REFUSED, 1.0, 20.0)
    others = [
        begun(plan(name, Ask("worker", 1, 1)), [], Known({machine(HOSTS[0]): Seen(9.0, why="is out")}))
        for name in "u"
    ]
    others.append(begun(plan("v", Ask("worker", 1, 2)), others, known))
    turn = of(turns([away, *others], 2.0, known), "t")
    assert not turn.has_come
    ended = decide.step(away, NoPlaceFound(2.0, "GPU 0 of b is held by worker:0 of u-1")).run
    assert (ended.phase, ended.problem and ended.problem.exit_code) == (Phase.FAILED, 6)
    assert ended.reason.startswith("a: GPU 0 is held by z-1 of user bob; there is no other place: GPU 0 of b")


def test_a_run_whose_own_fault_it_is_is_not_sent_from_host_to_host_for_ever() -> None:
    many = tuple(HostPlan(f"h{i}", address=f"10.0.1.{i}") for i in range(9))
    run, known = begun(plan("t", Ask("worker", 1), hosts=many), []), Known()
    tried = []
    while run.phase is Phase.PENDING:
        (task,) = run.plan.tasks
        tried.append(task.host)
        problem = Problem("no-tensorflow", f"{task.host}: no TensorFlow", exit_code=6)
        known = known.heard(run.plan.host(task.host), problem, 1.0, 99.0)
        run = decide.step(run, HostRefused(2.0, task.host, problem)).run
        for turn in turns([run], 2.0, known) if run.phase is Phase.QUEUED else ():
            run = decide.step(run, Admitted(2.0, place=turn.ask.place)).run
    assert tried == ["h0", "h1", "h2", "h3"]
    assert run.phase is Phase.FAILED


def test_a_run_that_waits_goes_to_another_place_too_where_a_host_is_unfit() -> None:
    (turn,) = turns([queued(plan("t"))], 2.0)
    run = decide.step(queued(plan("t")), Admitted(2.0, place=turn.ask.place)).run
    assert places(run) == [("a", (0,))]
    unfit = Problem("no-tensorflow", "a: no TensorFlow", exit_code=6)
    away = decide.step(run, HostRefused(3.0, "a", unfit)).run
    assert (away.phase, away.refusals) == (Phase.QUEUED, 1)
    (again,) = turns([away], 3.0, Known().heard(HOSTS[0], unfit, 3.0, 20.0))
    assert again.has_come
    assert again.ask.place is not None
    assert again.ask.place.tasks[0].host == "b"


def test_a_run_that_waits_is_not_ended_by_one_host_that_turns_it_away_again_and_again() -> None:
    run, unfit = queued(plan("t")), Problem("no-tensorflow", "a: no TensorFlow", exit_code=6)
    for _ in range(6):
        (turn,) = turns([run], 2.0)
        run = decide.step(run, Admitted(2.0, place=turn.ask.place)).run
        run = decide.step(run, HostRefused(2.0, "a", unfit)).run
        assert (run.phase, run.refusals) == (Phase.QUEUED, 1), "the other hosts are busy"


def test_a_run_that_waits_is_not_ended_by_full_disks_and_keeps_no_other_from_the_hosts() -> None:
    hosts = [HostPlan(f"h{i}", address=f"10.0.1.{i}") for i in range(9)]
    run, known, tried = queued(plan("t", Ask("worker", 1), hosts=hosts)), NOTHING, list[str]()
    for at in (2.0, 30.0):
        run = decide.step(run, Ticked(at)).run
        while run.phase is Phase.QUEUED and (turn := turns([run], at, known)[0]).has_come:
            run = decide.step(run, Admitted(at, place=turn.ask.place)).run
            (task,) = run.plan.tasks
            tried.append(task.host)
            full = Problem("no-space", f"{task.host}: no space left")
            known = known.heard(run.plan.host(task.host), full, at, 99.0)
            run = decide.step(run, HostRefused(at, task.host, full)).run
        assert (run.phase, turn.ask.others) == (Phase.QUEUED, f"{tried[-1]}: no space left")
    assert tried == [f"h{i}" for i in range(8)], "four at once, and after a while four more"


def test_what_keeps_a_run_waiting_is_not_told_of_others_that_ask_alike() -> None:
    holder, first = begun(plan("h", Ask("worker", 3, 2)), []), queued(plan("t"), 2.0)
    assert isinstance(first.phase_state, Queued)
    why = "not all hosts are ready: a: no answer"
    first = replace(first, phase_state=replace(first.phase_state, why=why, retry_at=40.0))
    found = turns([holder, first, queued(plan("u"), 3.0)], 10.0)
    assert [of(found, name).ask.others for name in "tu"] == [why, ""]
    assert [of(found, name).ask.place is not None for name in "tu"] == [False, True]


def test_what_a_host_calls_its_leases_is_no_number_and_stops_nobody() -> None:
    run = begun(
        plan("t"), [], Known({machine(HOSTS[0]): Seen(50.0, {"slot-x": "z", "GPU-?": "z", 0: "z-1"})})
    )
    assert places(run) == [("a", (1,))]


def test_a_lease_that_is_no_longer_believed_is_not_believed_anew_where_a_host_refuses_again() -> None:
    known = Known({machine(HOSTS[0]): Seen(20.0, {1: "z-1 of user bob"})})
    again = known.heard(HOSTS[0], REFUSED, 30.0, 50.0).of(HOSTS[0], 31.0)
    assert again is not None
    assert dict(again.leases) == {0: "z-1 of user bob"}


def test_two_that_fit_beside_each_other_begin_beside_each_other_and_none_waits_for_a_file() -> None:
    found = turns([queued(plan(name, Ask("worker", 1, 2)), at) for at, name in enumerate("tuv")], 5.0)
    assert [turn.ask.place and turn.ask.place.tasks[0].host for turn in found] == ["a", "b", "c"]
    assert all(turn.has_come for turn in found)


def test_a_large_gang_that_is_first_is_not_starved_and_a_short_run_that_delays_nobody_goes_before_it() -> (
    None
):
    small = [begun(plan(name, time_limit_s=100.0), []) for name in "s"]
    small = [replace(small[0], planned_end=None)]
    gang = queued(plan("gang", Ask("worker", 3, 2)), 2.0)
    later = queued(plan("later"), 3.0)
    found = turns([*small, gang, later], 5.0)
    assert not of(found, "gang").has_come
    assert not of(found, "later").has_come, "all GPUs are held back for the gang"
    two = queued(plan("two", Ask("worker", 2, 2)), 2.0)
    found = turns([*small, two, later], 5.0)
    assert [of(found, "two").has_come, of(found, "later").has_come] == [True, True]
    assert of(found, "later").ask.place == Placed(
        placed(later.plan, of(found, "later").ask.place or Placed(())).tasks,
        against=(
            ("b", "GPU 0 of b is held by worker:0 of two-1; GPU 1 of b is held by worker:0 of two-1"),
            ("c", "GPU 0 of c is held by worker:1 of two-1; GPU 1 of c is held by worker:1 of two-1"),
        ),
    )


def test_what_only_others_hold_keeps_no_later_run_waiting() -> None:
    known = Known({machine(host): Seen(50.0, {0: "z-1"}) for host in HOSTS})
    found = turns([queued(plan("t", Ask("worker", 1, 2)), 1.0), queued(plan("u"), 2.0)], 5.0, known)
    assert of(found, "t").ask.others == "; ".join(f"GPU 0 of {name} is held by z-1" for name in "abc")
    assert of(found, "u").has_come


@pytest.mark.parametrize("count", [300])
def test_many_that_wait_for_the_same_cost_little_more_than_one(count: int) -> None:
    held = [begun(plan("h", Ask("worker", 3, 2)), [])]
    waiting = [queued(plan(f"r{number}", Ask("worker", 1, 1)), float(number)) for number in range(count)]
    found = turns([*held, *waiting], 1000.0)
    assert len(found) == count
    assert not any(turn.has_come for turn in found)
    assert isinstance(waiting[0].phase_state, Queued)


def test_a_run_that_was_placed_elsewhere_and_its_turn_are_the_same_after_the_journal() -> None:
    waiting = decide.step(queued(plan("u", Ask("worker", 1, 2))), Submitted(1.0)).run
    (turn,) = turns([waiting], 2.0, Known({machine(HOSTS[0]): Seen(9.0, {1: "z-1"})}))
    came = Admitted(2.0, 1, turn.ask.place)
    run = decide.step(waiting, came).run
    assert places(run) == [("b", (0, 1))]
    assert run.asked is not None
    for value, type_ in ((run, Run), (came, Admitted)):
        known = TypeAdapter(type_)
        assert known.validate_json(known.dump_json(value)) == value


def ending(run: Run, at: float) -> Run:
    return replace(run, planned_end=PlannedEnd("time_limit", at, None))


def test_two_that_need_a_whole_host_wait_for_two_hosts_and_not_both_for_the_one_that_is_free_first() -> None:
    runs: list[Run] = []
    for name, at in zip("tuv", (100.0, 200.0, 300.0), strict=True):
        runs.append(ending(begun(plan(name, Ask("worker", 1, 2), time_limit_s=at), runs), at))
    whole = [
        queued(plan(name, Ask("worker", 1, 2), time_limit_s=1000.0), at) for at, name in enumerate("wxyz")
    ]
    found = turns([*runs, *whole], 10.0)
    assert [turn.ask.place and turn.ask.place.tasks[0].host for turn in found] == ["a", "b", "c", "a"]
    assert [[run_id for run_id, _ in turn.waits_for] for turn in found] == [
        ["t-1"], ["u-1"], ["v-1"], ["t-1", "w-1"]
    ]  # fmt: skip
    assert found[0].begins_at < found[1].begins_at < found[2].begins_at < found[3].begins_at
    assert found[3].begins_at == found[0].begins_at + 1000.0


def test_a_run_that_waits_says_what_it_needs_and_where_it_would_go_if_that_is_held_back_for_it() -> None:
    holder = begun(plan("h", Ask("worker", 3, 2), time_limit_s=60.0), [])
    holder = ending(holder, 101.0)
    waiting = [queued(plan(f"w{n:02d}", Ask("worker", 2, 2)), at=1.0 + n) for n in range(RESERVED_MAX + 2)]
    runs = {run.run_id: run for run in (holder, *waiting)}
    documents = queue_document(runs, 20.0)["queue"]
    first, last = documents[0], documents[-1]
    assert first["needs"] == last["needs"] == "2 workers with 2 GPUs each"
    assert [(each["task"], each["host"], each["gpus"]) for each in first["place"]] == [
        ("worker:0", "a", [0, 1]),
        ("worker:1", "b", [0, 1]),
    ]
    assert first["reason"].endswith("; needs 2 workers with 2 GPUs each; would go to a, b")
    assert last["place"] is None, "nothing is held back for it"
    assert last["reason"].endswith("; needs 2 workers with 2 GPUs each")
    fixed = replace(waiting[0], plan=plan("w00").fixed)
    (alone,) = queue_document({fixed.run_id: fixed, holder.run_id: holder}, 20.0)["queue"]
    assert (alone["needs"], alone["place"], "needs" in alone["reason"]) == (None, None, False)


def test_the_status_of_a_run_that_waits_names_no_place_that_it_may_not_get() -> None:
    waiting = queued(plan("w", Ask("worker", 2, 2)))
    for now in (5.0, 65.0):
        (shown,) = status.document([waiting], now=now)["runs"]
        assert shown == status.run_document(waiting, now=now), "what is kept of it is the same"
        assert [(task["task"], task["host"], task["gpus"]) for task in shown["tasks"]] == [
            ("worker:0", None, []),
            ("worker:1", None, []),
        ]
        assert shown["hosts"] == []
    admitted = decide.step(waiting, Admitted(66.0)).run
    (shown,) = status.document([admitted], now=67.0)["runs"]
    assert [task["host"] for task in shown["tasks"]] == ["a", "b"]
    fixed = replace(waiting, plan=plan("w", Ask("worker", 2, 2)).fixed)
    (shown,) = status.document([fixed], now=5.0)["runs"]
    assert [task["host"] for task in shown["tasks"]] == ["a", "b"], "it goes nowhere else"


def test_runs_that_ask_alike_are_told_by_their_own_names() -> None:
    runs = [ending(begun(plan(name, Ask("worker", 1, 2)), []), 500.0) for name in "t"]
    gang = queued(plan("gang", Ask("worker", 3, 2)), 2.0)
    short = [queued(plan(f"s{n}", time_limit_s=60.0), 3.0 + n) for n in range(5)]
    found = turns([*runs, gang, *short], 10.0)
    assert [turn.has_come for turn in found] == [False, True, True, True, True, False]
    assert dict(of(found, "s2").ask.place.against)["b"] == (  # type: ignore[union-attr]
        "GPU 0 of b is held by worker:0 of s0-1; GPU 1 of b is held by worker:0 of s1-1"
    )
    # The last waits for the gang's own GPUs, as those of the four that go before the gang are taken
    assert {run_id for run_id, _ in of(found, "s4").waits_for} >= {"gang-1"}


def behind_a_gang(**directories: str) -> list[QueueTurn]:
    """Return the turns of more runs than places are held back for, each with a directory. The last one is short."""
    holder = plan("r", time_limit_s=500.0, checkpoint=CheckpointPlan("/shared/r"))
    waiting = [queued(plan("gang", Ask("worker", 3, 2), time_limit_s=1000.0), 2.0)]
    for number in range(RESERVED_MAX + 1):
        name, limit_s = f"w{number}", 60.0 if number == RESERVED_MAX else 1000.0
        saves = CheckpointPlan(directories.get(name, f"/shared/{name}"))
        waiting.append(queued(plan(name, time_limit_s=limit_s, checkpoint=saves), 3.0 + number))
    return turns([ending(begun(holder, []), 500.0), *waiting], 20.0)


def test_a_run_needs_its_own_checkpoint_directory_also_where_others_ask_for_the_same_place() -> None:
    last = f"w{RESERVED_MAX}"
    found = behind_a_gang()
    assert of(found, last).has_come, "it ends before the gang begins"
    assert {what for _, needs in of(found, "w9").waits_for for what in needs} == {"GPU 1 of a"}
    found = behind_a_gang(**{last: "/shared/r"})
    assert not of(found, last).has_come
    assert ("r-1", ("/shared/r",)) in of(found, last).waits_for
    found = behind_a_gang(w8="/shared/r")
    assert "r-1" in dict(of(found, "w8").waits_for)
    assert "r-1" not in dict(of(found, "w9").waits_for), "another run's directory is no need of its own"
    assert of(found, last).has_come


def test_of_hosts_with_as_many_gpus_left_over_small_runs_share_one_and_that_of_a_large_one_is_soon_whole() -> (
    None
):
    hosts = [HostPlan(name, address=name, gpus=(0, 1, 2, 3)) for name in "ab"]
    large = begun(plan("l", Ask("worker", 1, 2), hosts=hosts), [])
    out = Known({machine(hosts[0]): Seen(9.0, why="is out")})
    small: list[Run] = []
    for name in "st":
        small.append(begun(plan(name, hosts=hosts), [large, *small], out))
    assert [places(run)[0][0] for run in (large, *small)] == ["a", "b", "b"]
    assert places(begun(plan("u", hosts=hosts), [large, *small])) == [("b", (2,))]


def test_of_a_long_line_for_one_gpu_the_first_are_named_and_the_cost_is_that_of_one() -> None:
    held = ending(begun(plan("h", hosts=HOSTS[:1]), []), 100.0)
    line = [Wanted(f"w{n}", {"gpu": "GPU 0 of a"}, 10.0) for n in range(3000)]
    found = reckon(line, [(Wanted(held.run_id, {"gpu": "GPU 0 of a"}), 100.0)], 1.0)
    assert len(found[-1].waits_for) == 1 + NAMED_MAX
    assert found[-1].sentence(1.0).endswith("w4 (GPU 0 of a) and more runs; expected to begin in 8 h 21 min")
    assert found[-1].begins_at == 100.0 + 2999 * 10.0
    assert not found[NAMED_MAX].has_more
    assert found[NAMED_MAX + 1].has_more


def calls_of_turns(hosts: int, running: int, waiting: int, behind: int = 0) -> int:
    """Return how many Python functions it calls to reckon the queue, once what runs hold is known.

    Args:
        behind: how many wait behind these that ask for something else, which nobody has free either.
    """
    pool = Roster(
        [HostPlan(f"h{n}", address=f"h{n}", gpus=tuple(range(8))) for n in range(hosts)], lambda h: h.name
    )
    runs: list[Run] = []
    for number in range(running):
        tasks = tuple(
            replace(task, host=f"h{number}")
            for task in place(pool[:1], [Ask("worker", 1, 4)], equal_gpus=True)[0]
        )
        runs.append(
            new_run(
                f"r{number}",
                Plan(
                    f"r{number}", "multi_worker_mirrored", pool, tasks, "t.py", needs=(Ask("worker", 1, 4),)
                ),
                epoch=1,
                at=0.0,
            )
        )
    first = plan("q", Ask("worker", 1, 8), hosts=pool)
    runs += [
        queued(replace(first, name=f"q{n}", time_limit_s=60.0 + n % 4), float(n)) for n in range(waiting)
    ]
    other = plan("p", Ask("worker", 2, 8), hosts=pool[:2])
    other = replace(other, hosts=pool, time_limit_s=60.0)
    runs += [queued(replace(other, name=f"p{n}"), float(waiting + n)) for n in range(behind)]
    turns(runs, 1e4)
    count = 0

    def called(_frame: FrameType, what: str, _argument: object) -> None:
        nonlocal count
        count += what == "call"

    sys.setprofile(called)
    try:
        turns(runs, 1e4)
    finally:
        sys.setprofile(None)
    return count


def test_a_place_costs_the_same_beside_many_runs_and_the_queue_as_much_as_runs_wait() -> None:
    beside = calls_of_turns(1000, 480, 1) - calls_of_turns(1000, 0, 1)
    assert beside < 480 * 40, "about 10 microseconds a run"
    few, many = calls_of_turns(20, 20, 200), calls_of_turns(20, 20, 1200)
    assert many - few < 1000 * 60


def test_what_is_free_nowhere_is_looked_for_once_however_many_ask_for_it_behind_others() -> None:
    few, many = (calls_of_turns(20, 20, 2 * RESERVED_MAX, behind=count) for count in (50, 550))
    assert many - few < 500 * 100, "to look for it costs twice as much"

"""What the head node itself keeps of runs: what `orch gc` offers to remove, and what stays unless it is named."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.commands import gc
from orchestrator.cli.commands.gc import may_go
from orchestrator.cli.orphans import HERE, Item, code_line, find_here, known, remove_here
from orchestrator.core.errors import UsageError
from orchestrator.core.events import Submitted, Ticked
from orchestrator.core.plan import CheckpointPlan, HostPlan, Plan
from orchestrator.core.state.owner import Owner
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.code.snapshots import Snapshots
from orchestrator.head.journal.journal import Journal
from orchestrator.head.links.conversation import Reply
from orchestrator.head.links.query import Answer
from orchestrator.head.records.checkpoint_store import CheckpointStore
from orchestrator.protocol.orders.checkpoints import Manifest
from orchestrator.protocol.orders.driving import KnownRun
from orchestrator.protocol.paths import RelativePath
from tests.protocol_values import valid
from tests.unit.cli.desk import Desk
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

RUN = "t-20260101-000000"
OTHER = "u-20250101-000000"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def a_plan(name: str = "t", directory: str = "/own") -> Plan:
    plan = make_plan(["a", "b"], checkpoint=True)
    return replace(plan, name=name, checkpoint=CheckpointPlan(directory, shared=False))


def a_run(phase: Phase, plan: Plan | None = None, run_id: str = RUN) -> Run:
    return in_phase(new_run(run_id, plan or a_plan(), epoch=1, at=0.0), phase)


def journaled(desk: Desk, *runs: Run) -> None:
    os.makedirs(desk.paths.state_dir, exist_ok=True)
    journal = Journal(desk.paths.journal)
    for run in runs:
        journal.commit(run, Ticked(1.0), [])
    journal.close()


def pulled(desk: Desk, plan: Plan, *steps: int, by: str = RUN) -> str:
    """Store checkpoints that were pulled from a run, and return their directory."""
    assert plan.checkpoint is not None
    store = CheckpointStore(desk.paths.state_dir, plan.name, plan.checkpoint.dir, 3)
    for step in steps:
        store.append("chunk", b"x" * 5000)
        store.close()
        os.rename(store.path("chunk") + ".part", store.path("chunk"))
        manifest: Manifest = {
            "digest": f"d{step}",
            "files": [(RelativePath("f"), 5000, 0, ["chunk"])],
            "piece_bytes": 5000,
            "bytes": 5000,
            "generation": 1,
            "global_step": step,
            "saved_at": float(step),
            "by": {"run": by},
        }
        store.add(manifest, "a")
    return store.root


def seen(items: list[Item]) -> list[tuple[str, str, str]]:
    assert all(item.host == HERE for item in items)
    return [(item.run, item.what, item.state) for item in items]


def test_checkpoints_of_an_active_run_are_not_left_over(desk: Desk) -> None:
    pulled(desk, a_plan(), 50)
    journaled(desk, a_run(Phase.RUNNING), a_run(Phase.FAILED, run_id="t-20260101-000009"))
    assert find_here(desk, []) == []


def test_checkpoints_of_an_ended_run_stay_unless_they_are_named(desk: Desk) -> None:
    root = pulled(desk, a_plan(), 50, 100)
    journaled(desk, a_run(Phase.KILLED))
    items = find_here(desk, [])
    assert seen(items) == [(RUN, "2 checkpoints up to step 100 of a KILLED run", "kept")]
    assert items[0].bytes >= 5000
    ours = known(desk)
    assert may_go(items, [], [], ours) == []
    assert may_go(items, [RUN], [], ours) == [], "it is not alive"
    assert may_go(items, [], [RUN], ours) == items
    with pytest.raises(UsageError, match="nothing found of no-such-run"):
        may_go(items, [], ["no-such-run"], ours)
    assert remove_here(desk, items[0]) is None
    assert not os.path.exists(root)
    assert os.listdir(os.path.dirname(root)) == []


def test_checkpoints_of_a_run_that_has_left_the_journal_stay_too(desk: Desk) -> None:
    """The next `orch up` goes on from them, however many runs of others have ended since."""
    pulled(desk, a_plan(), 50)
    journaled(desk, a_run(Phase.FAILED))
    journal = Journal(desk.paths.journal)
    assert journal.put_away(desk.paths.run_dir, ended_max=0) == [RUN]
    journal.close()
    (item,) = find_here(desk, [])
    assert (item.run, item.state) == (RUN, "kept")


@pytest.mark.fault(63)
def test_row_63_what_lives_goes_at_its_owners_word_or_where_it_is_named(desk: Desk) -> None:
    journaled(desk)
    with closing(Journal(desk.paths.journal)) as journal:
        mine = Owner(journal.owner_id(), "head-1", "ml")
    ours = known(desk)
    theirs, nobodys, own, busy, dead = (
        Item("u-1", "a", "directory", "alive", owner=replace(mine, id="another")),
        Item("v-1", "a", "processes only", "alive"),
        Item("w-1", "a", "directory", "alive", owner=mine),
        Item("x-1", "a", "directory", "driven", owner=mine),
        Item("y-1", "a", "directory", "dead", owner=replace(mine, id="another")),
    )
    items = [theirs, nobodys, own, busy, dead]
    assert may_go(items, [], [], ours) == [own, dead]
    assert may_go(items, ["u-1", "x-1"], [], ours) == [theirs, own, busy, dead]
    assert may_go(items, [], [], replace(ours, there=False)) == [dead], "the journal may be lost"


@pytest.mark.parametrize(
    ("typed", "agreed"), [(["u-1", "y"], True), (["y", "y"], False), (["u-1", "n"], False), ([""], False)]
)
def test_the_name_of_what_lives_must_be_typed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: list[str], agreed: bool
) -> None:
    monkeypatch.setattr(gc, "is_interactive", lambda _: True)
    monkeypatch.setattr("sys.stdin", StringIO("\n".join(typed) + "\n"))
    living, dead = Item("u-1", "a", "directory", "alive"), Item("y-1", "a", "directory", "dead")
    assert gc._agreed(desk, [living, dead], ["u-1"], yes=False) is agreed
    assert "[type u-1]" in desk.said


def test_checkpoints_of_a_run_that_nobody_knows_may_go(desk: Desk) -> None:
    pulled(desk, a_plan("u"), 7, by=OTHER)
    pulled(desk, a_plan("u", "/elsewhere"), 8, by=OTHER)
    journaled(desk, a_run(Phase.RUNNING))
    items = find_here(desk, [a_plan("u", "/elsewhere")])
    assert sorted(seen(items)) == [
        (OTHER, "1 checkpoint up to step 7", "dead"),
        (OTHER, "1 checkpoint up to step 8", "kept"),  # of a spec that the user has at hand
    ]
    assert [item.what for item in may_go(items, [], [], known(desk))] == ["1 checkpoint up to step 7"]


def test_parts_of_what_never_came_whole_may_go_when_the_run_is_over(desk: Desk) -> None:
    with closing(CheckpointStore(desk.paths.state_dir, "t", "/own", 3)) as store:
        store.append("chunk", b"x")
    journaled(desk, a_run(Phase.FAILED))
    what = "an incomplete copy of a checkpoint of a FAILED run"
    assert seen(find_here(desk, [])) == [(RUN, what, "dead")]


def test_the_code_of_a_run_that_nobody_knows_may_go_and_what_is_kept_is_said(
    desk: Desk, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_bytes(b"1" * 5000)
    snapshots = Snapshots(desk.paths.state_dir)
    plan = replace(a_plan(), workdir=str(work), script="train.py")
    for run_id in (RUN, OTHER):
        snapshots.keep(run_id, snapshots.take(plan).digest)
        os.utime(snapshots.record_of(run_id), (1, 1))
    journaled(desk, a_run(Phase.RUNNING))
    (item,) = find_here(desk, [])
    assert seen([item]) == [(OTHER, "code", "dead")]
    assert code_line(desk, tidy=False).startswith("The code of 2 runs takes 8.0 KiB in ")
    assert remove_here(desk, item) is None
    assert code_line(desk, tidy=True).startswith("The code of 1 run takes 8.0 KiB in ")
    assert snapshots.snapshot_of(RUN) is not None


def test_a_run_that_begins_while_the_user_thinks_keeps_its_checkpoints(desk: Desk) -> None:
    root = pulled(desk, a_plan(), 50)
    journaled(desk, a_run(Phase.FAILED))
    (item,) = find_here(desk, [])
    journal = Journal(desk.paths.journal)
    journal.commit(a_run(Phase.PENDING, run_id="t-20260101-000001"), Submitted(2.0), [])
    journal.close()
    assert remove_here(desk, item) == "t-20260101-000001 has started meanwhile and uses these checkpoints"
    assert os.path.exists(root)


def test_without_a_journal_nothing_here_is_anybodys_to_remove(desk: Desk) -> None:
    pulled(desk, a_plan(), 50)
    assert find_here(desk, []) == []


def test_what_cannot_be_removed_is_said_with_its_place(desk: Desk) -> None:
    journaled(desk)
    gone = Item(OTHER, HERE, "logs", "dead", path=desk.paths.run_dir(OTHER))
    assert remove_here(desk, gone) == f"{gone.path}: No such file or directory"


def unreadable(desk: Desk, run_id: str) -> None:
    with sqlite3.connect(desk.paths.journal) as db:
        db.execute("UPDATE runs SET state = '{}' WHERE run_id = ?", (run_id,))


@pytest.mark.fault(59)
def test_row_59_what_a_run_left_that_cannot_be_read_is_nobody_elses(desk: Desk) -> None:
    pulled(desk, a_plan(), 50)
    pulled(desk, a_plan("u"), 7, by=OTHER)
    os.makedirs(os.path.join(desk.paths.run_dir(RUN), "logs"))
    journaled(desk, a_run(Phase.RUNNING), a_run(Phase.RUNNING, a_plan("v"), "v-20260101-000000"))
    unreadable(desk, RUN)
    ours = known(desk)
    assert ours.run_ids == {RUN, "v-20260101-000000"}
    assert seen(find_here(desk, [])) == [(OTHER, "1 checkpoint up to step 7", "dead")]


@pytest.mark.parametrize("by", [RUN, OTHER])
@pytest.mark.parametrize("is_given_up", [False, True])
def test_what_an_ended_run_left_that_cannot_be_read_stays(desk: Desk, by: str, is_given_up: bool) -> None:
    """Its row may have been damaged after its end, or `orch recover --give-up` has counted it as ended."""
    pulled(desk, a_plan(), 50, by=by)
    os.makedirs(os.path.join(desk.paths.run_dir(RUN), "logs"))
    journaled(desk, a_run(Phase.RUNNING if is_given_up else Phase.FAILED))
    unreadable(desk, RUN)
    if is_given_up:
        with closing(Journal(desk.paths.journal)) as journal:
            journal.write_off(RUN)
    assert RUN in known(desk).run_ids
    assert seen(find_here(desk, [])) == [(by, "1 checkpoint up to step 50", "kept")]


def all_remember_it(asked: Sequence[tuple[HostPlan, Any]], *, timeout_s: float) -> list[Answer[Any]]:
    """Return the answers of hosts that remember RUN, whatever they are asked."""
    remembered = {"runs": [{**valid(KnownRun), "run": RUN}]}
    return [Answer(host, (Reply(remembered, None, b""),)) for host, _ in asked]


def test_what_hosts_have_of_a_run_that_cannot_be_read_goes_where_a_person_names_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No coordinator ends what is left of it on a host that did not answer `orch recover --give-up`."""
    other = "v-20260101-000000"
    journaled(desk, a_run(Phase.FAILED), a_run(Phase.FAILED, a_plan("v"), other))
    unreadable(desk, RUN)
    monkeypatch.setattr(gc, "asker", lambda _: SimpleNamespace(ask=all_remember_it))
    assert desk("gc", "--dry-run") == 0
    assert desk.put_out == "No orphans found\n"
    assert desk("gc", "--dry-run", "--even-alive", RUN) == 0
    assert RUN in desk.put_out
    assert not known(desk).is_orphan(other, [other]), "`orch kill` ends a run that can be read"


def test_a_host_is_asked_once_and_with_the_python_of_its_newest_run(desk: Desk) -> None:
    def run_with(python: str, run_id: str) -> Run:
        plan = a_plan()
        return a_run(
            Phase.KILLED, replace(plan, hosts=tuple(replace(h, python=python) for h in plan.hosts)), run_id
        )

    journaled(desk, run_with("/gone/python", OTHER), run_with("/usr/bin/python3", RUN))
    assert [(host.name, host.python) for host in known(desk).hosts] == [
        ("a", "/usr/bin/python3"),
        ("b", "/usr/bin/python3"),
    ]

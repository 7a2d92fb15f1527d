"""Checkpoints between hosts that share nothing: what the head pulls, pushes, and never sends twice.

The hosts are directories; what they do is what the agent's orders do there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import pytest

from orchestrator.both.hostdir import HostFault
from orchestrator.checkpoints import copying, places, safe, seed, verify
from orchestrator.core.actions import SeedCheckpoint
from orchestrator.core.plan import TaskId
from orchestrator.core.saving import Restored
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.head.links import edge
from orchestrator.head.links.conversation import Answer, LinkDown, OrderRefused
from orchestrator.head.records.checkpoint_store import CheckpointStore
from orchestrator.head.transfer.checkpoints import CheckpointTransfer
from orchestrator.head.transfer.partwise import PULL_BYTES, TRIES_MAX, Abandoned
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.checkpoints import Manifest
from orchestrator.protocol.paths import RelativePath
from orchestrator.task.transparent import backup
from tests.arrivals import Arrivals
from tests.contract.small_disk import mounted
from tests.unit.checkpoints.saved import npz, truncate
from tests.unit.checkpoints.test_checkpoints import FIXTURES
from tests.unit.core.transcript import make_plan

CHECKPOINTS = "/ckpt"


A = TypeVar("A")

Replied = tuple[Mapping[str, Any], bytes]


class Asked(Generic[A]):
    """An order that was sent; the host does it when its answer is waited for, as the next in order."""

    def __init__(self, do: Callable[[], Answer[A]]) -> None:
        self._do = do

    def answer(self, timeout_s: float) -> Answer[A]:
        assert timeout_s >= 60.0
        return self._do()


class Host:
    """One host's own /ckpt, below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root / "ckpt"
        self.arrivals = Arrivals()
        """What its agent knows; another agent does not."""
        self.read = safe.ChunkReader()
        self.asked: list[str] = []
        self.moved_bytes = 0
        self.cut_after: int | None = None
        """Orders that still go through; None: all do."""
        self.rot = False
        self.forged: Manifest | None = None

    @property
    def safe(self) -> Path:
        """Where its snapshots are."""
        return self.root / ".orch" / "safe"

    def ask(self, order: Order[A], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[A]:
        assert timeout_s >= 60.0
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                raise LinkDown("cut")
        verb = order.verb.name
        self.asked.append(verb)
        try:
            ok, data = getattr(self, f"on_{verb}")(order.fields, blob)
        except HostFault as e:
            raise OrderRefused(Problem(e.code, str(e), e.hint)) from e
        said = json.dumps(ok)
        if verb == "seed":  # on each host the directory has the path that the order names
            said = said.replace(str(self.root), CHECKPOINTS)
        return Answer(edge.answer("a", order, json.loads(said), data), data)

    def begin(self, order: Order[A], blob: bytes = b"") -> Asked[A]:
        return Asked(lambda: self.ask(order, blob))

    def on_seed(self, order: Mapping[str, Any], _blob: bytes) -> Replied:
        only = safe.directory_of(str(self.root), order["only"]) if order.get("only") else None
        scratch = bool(order["from_scratch"])
        made = seed.seed(str(self.root), order["generation"], from_scratch=scratch, keep=3, only=only)
        return made, b""

    def on_snapshot(self, order: Mapping[str, Any], _blob: bytes) -> Replied:
        directory = places.directory_of(str(self.root), order["generation"])
        return self.forged or safe.snapshot(str(self.root), directory, order["path"]), b""

    def on_receive(self, order: Mapping[str, Any], _blob: bytes) -> Replied:
        return self.arrivals.receive(str(self.root), order["manifest"]), b""

    def on_chunk(self, order: Mapping[str, Any], _blob: bytes) -> Replied:
        where = str(self.root), order["digest"], order["name"], order["offset"], order["bytes_max"]
        room = memoryview(bytearray(order["bytes_max"]))
        data = bytes(room[: self.read(room, *where)])
        self.moved_bytes += len(data)
        return {}, b"\0" * len(data) if self.rot else data

    def on_blob(self, order: Mapping[str, Any], blob: bytes) -> Replied:
        self.moved_bytes += len(blob)
        return self.arrivals.receive_part(order, blob), b""

    def train(self, generation: int, fixture: str = "manager", *, saved_at: float = 1_700_000_000.0) -> Path:
        """Save a checkpoint in a generation's directory, as a script does."""
        directory = Path(places.directory_of(str(self.root), generation))
        shutil.rmtree(directory / fixture, ignore_errors=True)
        shutil.copytree(FIXTURES / fixture, directory / fixture)
        for path in directory.rglob("*"):
            os.utime(path, (0, saved_at))
        return directory


class Lab:
    """Hosts a, b and c, and a head node."""

    def __init__(self, root: Path) -> None:
        self.hosts = {name: Host(root / name) for name in "abc"}
        self.a, self.b, self.c = self.hosts.values()
        self.checkpoints = CheckpointTransfer(str(root / "head"), lambda _run, name: self.hosts[name])
        self.said: list[str] = []

    def run(self, *order: str) -> Run:
        """Return a run with one worker on each of these hosts; the first has the chief."""
        plan = make_plan(list(order or "ab"), checkpoint=True, start_after_s=0.0)
        assert plan.checkpoint is not None
        plan = replace(plan, checkpoint=replace(plan.checkpoint, dir=CHECKPOINTS, shared=False))
        return new_run("t-1", plan, epoch=1, at=0.0)

    def seed(self, run: Run, generation: int, *, from_scratch: bool = False) -> Seed:
        asked = replace(run, from_scratch=from_scratch)
        return self.checkpoints.seed(
            asked, SeedCheckpoint(run.task(run.chief).host, generation), self.said.append
        )

    def bring(self, run: Run, generation: int, path: Path) -> None:
        self.checkpoints.bring(run, generation, str(path))

    def copy_on(self, host: Host, given: Seed) -> Path:
        """Where a task there takes its scratch from."""
        assert given.copy.startswith(CHECKPOINTS)
        return host.root / given.copy.removeprefix(CHECKPOINTS + "/")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_the_first_generation_starts_from_nothing_and_nothing_is_carried(lab: Lab) -> None:
    given = lab.seed(lab.run(), 1)
    assert (given.source, given.copy) == (None, "")
    assert lab.a.asked == ["seed"]
    assert lab.b.asked == []


def test_all_tasks_start_from_the_same_on_hosts_that_share_nothing(lab: Lab, tmp_path: Path) -> None:
    run = lab.run()
    lab.seed(run, 1)
    lab.a.train(1)
    given = lab.seed(run, 2)
    assert given.global_step == 32
    for host in (lab.a, lab.b):
        scratch = tmp_path / f"scratch-{host.root.parent.name}"
        copying.copy(str(lab.copy_on(host, given)), str(scratch))
        saved_at = (scratch / "manager" / "ckpt-2.index").stat().st_mtime
        assert saved_at == 1_700_000_000.0, "its time tells which is the newest"
        assert verify(str(scratch))["checkpoint"]["global_step"] == 32
        assert 'model_checkpoint_path: "ckpt-2"' in (scratch / "manager" / "checkpoint").read_text()


def test_what_is_there_already_is_not_sent_again(lab: Lab) -> None:
    run = lab.run()
    lab.a.train(1)
    lab.seed(run, 2)
    moved = lab.a.moved_bytes, lab.b.moved_bytes
    assert min(moved) > 160_000
    assert lab.seed(run, 3).global_step == 32
    assert (lab.a.moved_bytes, lab.b.moved_bytes) == moved


def test_a_lost_chiefs_host_takes_nothing_away_that_was_pulled(lab: Lab) -> None:
    run = lab.run("a", "b")
    directory = lab.a.train(1)
    lab.seed(run, 2)
    lab.a.train(2, saved_at=1_700_000_100.0)
    lab.bring(run, 2, Path(places.directory_of(str(lab.a.root), 2)) / "manager" / "ckpt-2")
    shutil.rmtree(lab.a.root)
    lab.a.cut_after = 0
    assert directory
    moved = lab.run("c", "b")
    given = lab.seed(moved, 3)
    assert given.global_step == 32
    assert str(given.source).startswith(f"{CHECKPOINTS}/.orch/safe/"), "it was pushed there"
    assert verify(places.directory_of(str(lab.c.root), 3))["checkpoint"]["global_step"] == 32
    assert lab.copy_on(lab.b, given).is_dir()


def test_a_past_of_its_own_on_the_new_host_is_not_resumed_from(lab: Lab) -> None:
    lab.a.train(1, "keras3_backup")
    lab.seed(lab.run("a", "b"), 2)
    lab.c.train(5)  # another run's, or a fork that nobody went on from
    given = lab.seed(lab.run("c", "b"), 6)
    assert given.global_step == 20
    assert lab.seed(lab.run("c", "b"), 7).global_step == 20, "and from then on its own directory is the run's"


def test_the_same_host_after_its_disk_was_lost_is_given_what_the_head_has(lab: Lab) -> None:
    lab.a.train(1)
    lab.seed(lab.run(), 2)
    shutil.rmtree(lab.a.root)
    assert lab.seed(lab.run(), 3).global_step == 32


@pytest.mark.fault(42)
def test_a_copy_that_rots_on_the_chiefs_host_takes_nothing_away_that_was_pulled(lab: Lab) -> None:
    """The older files beside it read whole, and must not count as newer than what the head has."""
    run = lab.run("a")
    lab.seed(run, 1)
    for step in (100, 200):
        npz(lab.a.root / "gen-000001" / f"ckpt-{step}.npz", step)
    os.utime(lab.a.root / "gen-000001" / "ckpt-100.npz", (0, 1_700_000_000))
    lab.bring(run, 1, lab.a.root / "gen-000001" / "ckpt-200.npz")
    assert lab.seed(run, 2).global_step == 200
    truncate(lab.a.root / "gen-000002" / "ckpt-200.npz", 100)
    with pytest.raises(OrderRefused, match=r"a: .* does not read whole any more; the head node has step 200"):
        lab.seed(run, 3)
    given = lab.seed(run, 4)
    assert (given.global_step, sorted(os.listdir(lab.a.root / "gen-000004"))[1:]) == (200, ["ckpt-200.npz"])


def test_a_transfer_that_breaks_off_goes_on_where_it_was(lab: Lab) -> None:
    run = lab.run()
    directory = lab.a.train(1)
    large = os.urandom(3 * safe.CHUNK_BYTES + 12345)
    (directory / "vocabulary").write_bytes(large)
    path = directory / "manager" / "ckpt-2"
    lab.a.cut_after = 20
    with pytest.raises(LinkDown):
        lab.bring(run, 1, path)
    first = lab.a.moved_bytes
    assert first > 8 * PULL_BYTES
    lab.a.cut_after = None
    lab.bring(run, 1, path)
    whole = sum(p.stat().st_size for p in lab.copy_on(lab.a, _of(lab, run)).rglob("*") if p.is_file())
    assert lab.a.moved_bytes < whole, "nothing came twice, and the marker not at all"
    lab.b.cut_after = 30
    with pytest.raises(LinkDown):
        lab.seed(run, 2)
    lab.b.cut_after, lab.b.arrivals = None, Arrivals()
    given = lab.seed(run, 2)
    assert (lab.copy_on(lab.b, given) / "vocabulary").read_bytes() == large
    assert lab.b.moved_bytes < len(large) + 2 * safe.CHUNK_BYTES
    assert list(lab.b.safe.glob("*.tmp")) == []


def test_a_removal_spares_what_is_being_pulled(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    run, directory, answer = lab.run(), lab.a.train(1), lab.a.on_chunk
    (directory / "vocabulary").write_bytes(os.urandom(safe.CHUNK_BYTES + 12345))

    def removes(order: Mapping[str, Any], blob: bytes) -> Replied:
        lab.checkpoints.store(run).remove([9])
        return answer(order, blob)

    monkeypatch.setattr(lab.a, "on_chunk", removes)
    lab.bring(run, 1, directory / "manager" / "ckpt-2")
    whole = sum(p.stat().st_size for p in lab.copy_on(lab.a, _of(lab, run)).rglob("*") if p.is_file())
    assert safe.CHUNK_BYTES < lab.a.moved_bytes < whole, "nothing came twice"
    assert not lab.checkpoints._shared, "nothing is kept of a store that nobody uses"


@pytest.mark.parametrize("moment", ["has", "add"])
def test_a_removal_just_before_a_snapshot_is_added_costs_none_of_its_chunks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run, path = lab.run(), lab.a.train(1) / "manager" / "ckpt-2"
    if moment == "has":
        lab.bring(run, 1, path)
    do: Callable[..., Any] = getattr(CheckpointStore, moment)

    def removes(store: CheckpointStore, *given: Any) -> Any:
        done = do(store, *given) if moment == "has" else None
        lab.checkpoints.store(run).remove([1])
        return done if moment == "has" else do(store, *given)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, moment, removes)
        lab.bring(run, 1, path)
    newest = lab.checkpoints.store(run).newest()
    assert newest is not None
    chunks = [chunk for _, _, _, made_of in newest["files"] for chunk in made_of]
    assert [lab.checkpoints.store(run).held_bytes(chunk) for chunk in chunks] == [None] * len(chunks)


def test_what_a_pull_that_broke_off_has_left_is_removed(lab: Lab) -> None:
    run, path = lab.run(), lab.a.train(1) / "manager" / "ckpt-2"
    pieces = Path(lab.checkpoints.store(run).path("x")).parent
    lab.a.cut_after = 3
    with pytest.raises(LinkDown):
        lab.bring(run, 1, path)
    assert list(pieces.iterdir())
    lab.checkpoints.store(run).remove([9])
    assert list(pieces.iterdir()) == []


def test_a_chunk_that_had_come_whole_when_the_coordinator_died_is_completed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, path = lab.run(), lab.a.train(1) / "manager" / "ckpt-2"

    def dies(_store: CheckpointStore, _chunk: str) -> bool:
        raise OSError("as if it were killed between the last part and the name")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "finish", dies)
        with pytest.raises(OSError, match="as if"):
            lab.bring(run, 1, path)
    lab.bring(run, 1, path)
    newest = lab.checkpoints.store(run).newest()
    assert newest is not None
    chunks = [chunk for _, _, _, made_of in newest["files"] for chunk in made_of]
    assert all(lab.checkpoints.store(run).held_bytes(chunk) is None for chunk in chunks), "each is complete"


def _of(lab: Lab, run: Run) -> Seed:
    newest = lab.checkpoints.store(run).newest()
    assert newest is not None
    return Seed(1, copy=f"{CHECKPOINTS}/.orch/safe/{newest['digest']}")


def test_what_comes_damaged_is_not_taken(lab: Lab) -> None:
    run = lab.run()
    path = lab.a.train(1) / "manager" / "ckpt-2"
    lab.a.rot = True
    with pytest.raises(OrderRefused, match="came damaged"):
        lab.bring(run, 1, path)
    assert lab.checkpoints.store(run).newest() is None
    lab.a.rot = False
    lab.bring(run, 1, path)
    assert lab.checkpoints.store(run).newest() is not None


@pytest.mark.fault(57)
def test_a_checkpoint_that_is_larger_than_it_may_be_is_not_copied(lab: Lab) -> None:
    run = lab.run()
    path = lab.a.train(1) / "manager" / "ckpt-2"
    whole = safe.snapshot(str(lab.a.root), str(path.parent.parent), None)["bytes"]

    def limited(copy_bytes_max: int) -> Run:
        assert run.plan.checkpoint is not None
        checkpoint = replace(run.plan.checkpoint, copy_bytes_max=copy_bytes_max)
        return replace(run, plan=replace(run.plan, checkpoint=checkpoint))

    with pytest.raises(OrderRefused, match=r"at most .* KiB are copied to the head node") as refused:
        lab.bring(limited(whole - 1), 1, path)
    assert refused.value.problem.key == "run.checkpoint.copy_limit"
    assert lab.a.moved_bytes == 0
    lab.bring(limited(whole), 1, path)


def test_a_host_that_gives_less_than_it_was_asked_for_only_takes_longer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, path, whole = lab.run(), lab.a.train(1) / "manager" / "ckpt-2", lab.a.on_chunk
    monkeypatch.setattr(lab.a, "on_chunk", lambda order, blob: ({}, whole(order, blob)[1][:100]))
    lab.bring(run, 1, path)
    assert lab.checkpoints.store(run).newest() is not None


@pytest.mark.fault(57)
def test_what_is_left_of_transfers_that_never_end_does_not_add_up(lab: Lab) -> None:
    run = lab.run()
    path = lab.a.train(1) / "manager" / "ckpt-2"
    pieces = Path(lab.checkpoints.store(run).path("x")).parent
    for number in range(5):
        (path.parent.parent / "vocabulary").write_bytes(os.urandom(2 * safe.CHUNK_BYTES + number))
        lab.a.cut_after = 10
        with pytest.raises(LinkDown):
            lab.bring(run, 1, path)
    assert sum(p.stat().st_size for p in pieces.iterdir()) <= 10 * PULL_BYTES


@pytest.mark.fault(57)
def test_the_reserve_of_the_journal_is_left_free(lab: Lab, tmp_path: Path) -> None:
    run, path = lab.run(), lab.a.train(1) / "manager" / "ckpt-2"
    with mounted(tmp_path / "disk", megabytes=4) as small:
        ballast = small.path / "big"
        ballast.write_bytes(b"x" * (4 * (1 << 20) - (150 << 10)))  # 5 % are 200 kB
        head = CheckpointTransfer(str(small.path), lambda _run, name: lab.hosts[name])
        with pytest.raises(OrderRefused, match="are reserved for the journal"):
            head.bring(run, 1, str(path))
        assert lab.a.moved_bytes == 0
        ballast.unlink()
        head.bring(run, 1, str(path))
        assert head.store(run).newest() is not None


def test_a_checkpoint_that_its_script_removes_while_it_is_copied_is_tried_again_later(lab: Lab) -> None:
    lab.a.train(1)
    with pytest.raises(OrderRefused, match="went away"):
        lab.bring(lab.run(), 1, lab.a.root / "gen-000001" / "manager" / "ckpt-9")


def test_from_scratch_leaves_behind_what_the_head_has_too(lab: Lab) -> None:
    lab.a.train(1)
    lab.seed(lab.run(), 2)
    assert lab.seed(lab.run(), 3, from_scratch=True).source is None
    assert lab.seed(lab.run("c", "b"), 4).source is None, "on another host too"


def test_going_back_holds_for_what_the_head_has(lab: Lab) -> None:
    run = lab.run()
    path = lab.a.train(1, saved_at=1_700_000_000.0) / "manager" / "ckpt-2"
    lab.bring(run, 1, path)
    lab.a.train(2, "keras3_backup", saved_at=1_700_000_500.0)
    lab.bring(run, 2, lab.a.root / "gen-000002" / "keras3_backup" / "latest.weights.h5")
    store = lab.checkpoints.store(run)
    store.settle("a", 2)
    assert store.holds(20, 1_700_000_500.0)
    store.go_back({"generation": 1, "global_step": 32, "saved_at": 1_700_000_000.0}, 2)
    assert not store.holds(20, 1_700_000_500.0)
    lab.bring(run, 2, lab.a.root / "gen-000002" / "keras3_backup" / "latest.weights.h5")
    assert not store.holds(20, 1_700_000_500.0), "its pull was waiting meanwhile"
    assert lab.seed(lab.run("c", "b"), 3).global_step == 32
    lab.c.train(3, "keras3_backup", saved_at=1_700_000_900.0)
    lab.bring(lab.run("c", "b"), 3, lab.c.root / "gen-000003" / "keras3_backup" / "latest.weights.h5")
    assert store.holds(20, 1_700_000_900.0), "what is trained from there on counts"


def test_what_was_handed_over_and_is_passed_over_is_not_taken_from_the_head_either(lab: Lab) -> None:
    run = lab.run()
    directory = lab.a.train(1, "keras3_backup", saved_at=1_700_000_000.0)
    lab.bring(run, 1, directory / "keras3_backup" / "latest.weights.h5")
    store = lab.checkpoints.store(run)
    newest = store.newest()
    assert newest is not None
    (directory / "rescued-by-worker-0-50.index").write_text("x")
    forged: Manifest = {**newest, "digest": "1" * 64, "global_step": 50, "saved_at": 1_700_000_500.0}
    name = cast("RelativePath", "rescued-by-worker-0-50.index")
    forged["files"] = [*newest["files"], (name, 1, 1_700_000_500 * 10**9, [])]
    store.add(forged, "a")
    store.pass_over((), 60)
    assert [manifest["digest"] for manifest in filter(None, [store.newest()])] == ["1" * 64]
    store.pass_over((), 50)
    assert store.newest() == newest


def fit(directory: Path, number: int, steps: int) -> Path:
    """Save as a fit under `transparent: true` does."""
    np: Any = pytest.importorskip("numpy")
    pytest.importorskip("h5py")
    directory.mkdir(parents=True, exist_ok=True)
    folder = backup.folder(str(directory), number)
    state = np.full(9, steps, "f4")
    backup.write(folder, {backup.STEPS: steps, "model/00000": state}, backup.Position(0, 1, steps))
    path = Path(folder, backup.NAME)
    os.utime(path, (0, 1_700_000_000 + steps))
    return path


def test_a_spare_and_the_workers_get_each_fit_of_a_script_and_not_the_last_one_alone(lab: Lab) -> None:
    """Else the workers would begin the first fit, and their chief not; a spare's chief would train it again."""
    directory = places_of(lab, 1)
    fit(directory, 0, 100)
    lab.bring(lab.run(), 1, fit(directory, 1, 150))
    store = lab.checkpoints.store(lab.run())
    store.settle("a", 1)
    assert (store.holds(100, 1_700_000_100.0), store.holds(150, 1_700_000_150.0)) == (True, True)
    given = lab.seed(lab.run("c", "b"), 2)  # a is lost
    assert given.global_step == 150
    scratch = lab.b.root / "scratch"
    copying.copy(str(lab.copy_on(lab.b, given)), str(scratch))
    for there in (lab.c.root / "gen-000002", scratch):
        steps = {number: position.steps for number, position in backup.positions(str(there)).items()}
        assert steps == {0: 100, 1: 150}


def test_a_scripts_own_checkpoint_is_not_passed_over_for_a_fit_of_ours_beside_it(lab: Lab) -> None:
    directory = lab.a.train(1)
    fit(directory, 0, 20)
    lab.bring(lab.run(), 1, directory / "manager" / "ckpt-2")
    store = lab.checkpoints.store(lab.run())
    newest = store.newest()
    assert newest is not None
    assert {os.path.dirname(name) for name, *_ in newest["files"]} >= {"manager", "orch/fit-000"}
    store.pass_over((), 30)
    assert store.newest() == newest


def test_the_head_keeps_the_newest_few(lab: Lab) -> None:
    run = lab.run()
    for generation in range(1, 6):
        directory = lab.a.train(generation, "keras3_backup", saved_at=1_700_000_000.0 + generation)
        (directory / "notes").write_text(str(generation))
        lab.bring(run, generation, directory / "keras3_backup" / "latest.weights.h5")
    root = Path(lab.checkpoints.store(run).root)
    assert len(list((root / "manifests").iterdir())) == 3
    used = {
        p for f in (root / "manifests").iterdir() for p in os.listdir(root / "pieces") if p in f.read_text()
    }
    assert used == set(os.listdir(root / "pieces"))


def test_a_pull_gives_way_to_a_newer_generation_and_to_the_end(lab: Lab) -> None:
    path = lab.a.train(1) / "manager" / "ckpt-2"
    lab.checkpoints.close()
    with pytest.raises(Abandoned):
        lab.bring(lab.run(), 1, path)
    assert TaskId("worker", 0) == lab.run().chief


@pytest.mark.parametrize(
    ("name", "chunk"), [("../x", "0" * 64), ("/x", "0" * 64), ("x", "../../x"), ("a//b", "0" * 64)]
)
def test_a_manifest_that_leaves_its_directory_is_refused_by_head_and_hosts(
    lab: Lab, name: str, chunk: str
) -> None:
    run = lab.run()
    path = lab.a.train(1) / "manager" / "ckpt-2"
    lab.bring(run, 1, path)
    newest = lab.checkpoints.store(run).newest()
    assert newest is not None
    bad: Manifest = {**newest, "digest": "0" * 64, "files": [(cast("RelativePath", name), 1, 0, [chunk])]}
    with pytest.raises(ValueError, match=r"is no path below|not a SHA-256"):
        lab.b.arrivals.receive(str(lab.b.root), bad)
    lab.a.forged = bad
    with pytest.raises((OrderRefused, edge.WireError), match=r"is no path below|not a SHA-256"):
        lab.bring(run, 1, path)


def test_a_file_that_a_terminal_would_obey_does_not_travel(lab: Lab) -> None:
    """The head would show its name, and sends it back: it can neither clean it nor leave it."""
    directory = lab.a.train(1)
    (directory / "vocabulary\x1b[2J").write_text("words")
    with pytest.raises(OrderRefused, match=r"'vocabulary\\x1b\[2J' cannot be transferred"):
        lab.bring(lab.run(), 1, directory / "manager" / "ckpt-2")


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd"])
def test_nothing_outside_a_snapshot_is_read(lab: Lab, name: str) -> None:
    run = lab.run()
    lab.bring(run, 1, lab.a.train(1) / "manager" / "ckpt-2")
    newest = lab.checkpoints.store(run).newest()
    assert newest is not None
    with pytest.raises(OSError, match="leads out of"):
        safe.ChunkReader()(memoryview(bytearray(10)), str(lab.a.root), newest["digest"], name, 0, 10)
    for digest in ("../..", "", "A" * 64):
        with pytest.raises(ValueError, match="not a SHA-256"):
            safe.directory_of(str(lab.a.root), digest)


def test_what_is_under_way_for_a_run_that_is_over_is_given_up(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would hold the directory for as long as a start may take, while the next run waits for it."""
    run = lab.run()
    lab.a.train(1)
    lab.checkpoints.abandon(run.run_id)
    with pytest.raises(Abandoned):
        lab.seed(run, 2)
    with pytest.raises(Abandoned):
        lab.bring(run, 1, places_of(lab, 1))
    other = replace(run, run_id="t-2")

    def ends_at(host: Host, verb: str) -> None:
        do = getattr(host, verb)

        def ended(order: Mapping[str, Any], blob: bytes) -> Replied:
            lab.checkpoints.abandon(other.run_id)
            found: Replied = do(order, blob)
            return found

        monkeypatch.setattr(host, verb, ended)

    ends_at(lab.a, "on_snapshot")
    with pytest.raises(Abandoned):
        lab.bring(other, 1, places_of(lab, 1) / "manager" / "ckpt-2")
    assert lab.a.moved_bytes == 0, "no part is asked for any more"
    monkeypatch.undo()
    lab.checkpoints.forget(other.run_id)
    ends_at(lab.b, "on_receive")
    with pytest.raises(Abandoned):
        lab.seed(other, 2)
    assert lab.b.moved_bytes == 0, "and none is sent"
    monkeypatch.undo()
    assert lab.seed(replace(run, run_id="t-3"), 2).source is not None


def test_a_host_that_loses_what_it_was_sent_is_sent_it_three_times(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.a.train(1)
    asked: list[str] = []

    def loses(order: Mapping[str, Any], _blob: bytes) -> Replied:
        asked.append(order["manifest"]["digest"])
        assert len(asked) < 9, "it is sent without end"
        shutil.rmtree(lab.b.safe, ignore_errors=True)
        return Arrivals.receive(lab.b.arrivals, str(lab.b.root), order["manifest"]), b""

    monkeypatch.setattr(lab.b, "on_receive", loses)
    with pytest.raises(OrderRefused, match="b: the checkpoint does not arrive whole"):
        lab.seed(lab.run(), 2)
    assert len(asked) == TRIES_MAX


def places_of(lab: Lab, generation: int) -> Path:
    """Return a generation's directory on host a."""
    return Path(places.directory_of(str(lab.a.root), generation))


@pytest.mark.fault(106)
def test_a_copy_of_what_a_task_could_not_restore_is_not_handed_out_again(lab: Lab) -> None:
    run = lab.run()
    lab.bring(run, 1, lab.a.train(1, saved_at=1_700_000_000.0) / "manager" / "ckpt-2")
    directory = lab.a.train(2, "keras3_backup", saved_at=1_700_000_500.0)
    weights = directory / "keras3_backup" / "latest.weights.h5"
    lab.bring(run, 2, weights)
    store = lab.checkpoints.store(run)
    store.settle("a", 2)
    newest = store.newest()
    assert newest is not None
    assert newest["generation"] == 2
    failed = Restored("keras3_backup/latest.weights.h5", newest["saved_at"], 1, None, "KeyError: x")
    assert lab.seed(replace(lab.run("c", "b"), unrestorable=(failed,)), 3).global_step == 32

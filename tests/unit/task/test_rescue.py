"""What a survivor hands over, when, and to where. Fakes stand for TensorFlow, the model and its atomic steps."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task import shim_orders, this_task
from orchestrator.task.shim_orders import Orders
from orchestrator.task.transparent import backup, rescue
from orchestrator.task.transparent import saver as saving
from orchestrator.task.transparent.atomic import Atomic as RealAtomic
from orchestrator.task.transparent.atomic import NotAtomic, own
from orchestrator.task.transparent.backup import Position
from orchestrator.task.transparent.protected import Held
from orchestrator.task.transparent.remembered import Protected
from orchestrator.task.transparent.replay import Course
from orchestrator.task.transparent.rescue import Rescue
from orchestrator.task.transparent.saver import Saver
from orchestrator.task.transparent.shares import NAME

pytest.importorskip("h5py")


class UnavailableError(Exception):
    """TensorFlow's, where a peer is gone."""


GONE = UnavailableError("Connection refused")


class Ended(BaseException):
    """The process has ended."""


class Variable:
    """A variable that has one value in each process."""

    def __init__(self, value: float) -> None:
        self.value = value

    def numpy(self) -> float:
        return self.value


class Summed:
    """A part of a variable that is summed over the replicas of three workers when it is read."""

    synchronization, aggregation, shape = "ON_READ", "SUM", ()
    distribute_strategy = SimpleNamespace(num_replicas_in_sync=3)

    def __init__(self, value: float) -> None:
        self.values = (Variable(value),)

    @property
    def values(self) -> tuple[Variable]:
        return self._values

    @values.setter
    def values(self, values: tuple[Variable]) -> None:
        self._values = values


class Atomic:
    """Steps that are atomic."""

    shares = None

    def __init__(self, *_: Any) -> None:
        self.done = 0
        self.refusal: str | None = None
        self.is_put_back = False
        self.is_broken = False

    def counted(self) -> int:
        return self.done

    def steps(self) -> int:
        return self.done

    def put_back(self) -> None:
        self.is_put_back = True

    def keep_changes(self) -> None:
        """Find nothing changed."""

    def check_put_back(self) -> None:
        """Find that no step has begun since."""

    def check_finite(self) -> None:
        if self.is_broken:
            raise NotAtomic("a weight is NaN or infinite (w)")

    def check_written(self, _variable: Any, value: Any) -> None:
        if value != value:  # NaN is not itself
            raise NotAtomic("what a step updates is NaN or infinite (v)")

    def checksum(self) -> int:
        return 77

    def value(self, variable: Any) -> float:
        return float(own(variable).numpy())


class Model:
    """A model whose first epoch has ended."""

    jit_compile, steps_per_execution, stop_training = False, 1, False
    distribute_strategy = SimpleNamespace(num_replicas_in_sync=3, extended=SimpleNamespace())

    def __init__(self) -> None:
        self.history = SimpleNamespace(epoch=[0])

    def train_step(self) -> None:
        """Train."""

    def evaluate_batch(self) -> None:
        """Evaluate."""

    test_step = evaluate_batch  # no test of pytest's

    def get_metrics_result(self) -> None:
        """Return nothing: it has no metrics."""


class World:
    """A task, and what it has said and done."""

    def __init__(self, root: Path, task: str) -> None:
        self.shared, self.own = root / "shared", root / "own"
        self.said: list[dict[str, Any]] = []
        self.rescue = Rescue(SimpleNamespace(send=lambda line, **_: self.said.append(line)), task)  # type: ignore[arg-type]
        self.model, self.atomic = Model(), Atomic()
        self.groups: dict[str, list[Any]] = {}
        self.number = 0
        self.setting = SimpleNamespace(
            checkpoint_dir=str(self.own), chief=task == "worker:0", groups_of=lambda _: self.groups
        )
        self.rescue._atomics[self.model] = self.atomic  # type: ignore[assignment]

    def begin_epoch(self, epoch: int = 1, steps: int = 120, arrays: Any = None) -> None:
        position = Position(epoch, 0, steps)
        position.fit = self.number
        self.rescue.mark(self.model, position, lambda _: arrays or {})

    def fit(
        self,
        *,
        error: Exception = GONE,
        compare: bool | None = None,
        meanwhile: Callable[[World], object] = lambda _: None,
    ) -> str:
        """Run a fit that fails 7 steps after the beginning of an epoch. Return whether the task goes on."""

        def fails() -> None:
            self.atomic.done = 20
            self.begin_epoch()
            self.atomic.done = 27
            if compare is not None:
                assert self.rescue.order(compare=compare)
            meanwhile(self)
            raise error

        try:
            self.rescue.during(fails, self.model, self.setting)
        except Ended:
            return "ended"
        except Exception as e:
            return "goes on" if e is error else repr(e)
        return "the fit did not fail"

    def written(self, root: Path) -> Position | None:
        return backup.position(backup.folder(str(root), 0))

    @property
    def told(self) -> dict[str, Any]:
        (told,) = (line["rescued"] for line in self.said if "rescued" in line)
        return told  # type: ignore[no-any-return]

    @property
    def why(self) -> str:
        return self.told.get("why", "")  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def aborted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return why collectives were aborted; there is no TensorFlow."""
    whys: list[str] = []
    kinds: dict[str, Any] = {
        "VariableSynchronization": SimpleNamespace(ON_READ="ON_READ"),
        "VariableAggregation": SimpleNamespace(SUM="SUM"),
    }
    context: Any = SimpleNamespace(abort_collective_ops=lambda _code, why: whys.append(why))
    eager: Any = SimpleNamespace(context=SimpleNamespace(context=lambda: context))
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(**kinds))
    monkeypatch.setitem(sys.modules, "tensorflow.python", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager", eager)
    monkeypatch.setattr(rescue, "ORDER_WAIT_S", 0.0)
    monkeypatch.setattr(rescue, "MAIN_WAIT_S", 3600.0)
    monkeypatch.delenv("ORCH_RESCUE_DIR", raising=False)
    return whys


@pytest.fixture(autouse=True)
def ended_with(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(rescue, "end", end)
    monkeypatch.setattr(shim_orders, "end", end)
    return codes


def test_what_is_handed_over_is_where_the_last_step_was_and_lies_where_the_next_generation_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_with: list[int], aborted: list[str]
) -> None:
    task = World(tmp_path, "worker:1")
    monkeypatch.setenv("ORCH_RESCUE_DIR", str(task.shared))
    assert (task.fit(compare=False), ended_with) == ("ended", [143])
    assert aborted == ["orch: a peer is gone"], "else the step waits for its peer"
    found = task.written(task.shared)
    assert found is not None
    assert (found.epoch, found.batch, found.steps) == (1, 7, 127)
    assert (task.told["step"], task.own.exists()) == (127, False)


@pytest.mark.parametrize(("name", "is_written"), [("worker:0", True), ("worker:1", False)])
def test_without_a_shared_directory_only_the_chief_hands_over(
    tmp_path: Path, name: str, is_written: bool
) -> None:
    task = World(tmp_path, name)
    assert task.fit(compare=False) == "ended"
    assert (task.written(task.own) is not None) is is_written
    assert task.why == ("" if is_written else "only the chief can reach the checkpoint directory")


@pytest.mark.parametrize(
    ("name", "error", "writes"),
    [
        ("chief:0", GONE, True),
        ("worker:0", GONE, True),
        ("worker:1", GONE, True),
        ("worker:2", GONE, False),
        ("worker:1", RuntimeError("Collective ops is aborted by: x"), True),
        ("worker:0", ValueError("a mistake in the script"), False),
    ],
)
def test_without_an_order_the_first_two_workers_write_where_a_peer_is_gone_and_the_script_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, writes: bool
) -> None:
    task = World(tmp_path, name)
    monkeypatch.setenv("ORCH_RESCUE_DIR", str(task.shared))
    assert task.fit(error=error) == "goes on"
    assert (task.written(task.shared) is not None) is writes
    assert len(task.said) is int(writes)
    task.said.clear()
    assert not task.rescue.order(), "the state after a failure is that of no step"
    assert task.why == "no fit is going on"


def test_a_task_whose_main_thread_is_in_python_hands_over_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, codes, has_ended = World(tmp_path, "worker:1"), list[int](), threading.Event()
    monkeypatch.setenv("ORCH_RESCUE_DIR", str(task.shared))
    monkeypatch.setattr(rescue, "MAIN_WAIT_S", 0.0)

    def end(code: int) -> None:
        codes.append(code)
        has_ended.set()

    def callback() -> None:
        task.begin_epoch()
        task.atomic.done = 7
        assert task.rescue.order()
        assert has_ended.wait(30.0), "nobody waits for this callback"

    monkeypatch.setattr(rescue, "end", end)
    task.rescue.during(callback, task.model, task.setting)
    found = backup.position(backup.rescued(backup.folder(str(task.shared), 0), "worker:1"))
    assert found is not None
    assert (found.batch, found.steps, task.told["step"], codes) == (7, 127, 127, [143])


def test_a_rehearsal_says_how_much_would_be_handed_over_or_why_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np = pytest.importorskip("numpy")
    task, said, averaged = World(tmp_path, "worker:1"), list[str](), list[str]()
    monkeypatch.setenv("ORCH_RESCUE_DIR", str(tmp_path))
    monkeypatch.setattr(Atomic, "value", lambda _, each: each)
    assert task.rescue.rehearse() == "no: no fit is going on"
    task.groups = {"model": [np.zeros(2_000_000, "float32")], "metrics": [np.zeros(125_000)]}

    def fits() -> None:
        task.begin_epoch()
        for done, refusal in ((0, None), (3, None), (3, "it has two optimizers")):
            task.atomic.done, task.atomic.refusal = done, refusal
            said.append(task.rescue.rehearse())
        task.atomic.refusal = None
        task.groups["model"].append(SimpleNamespace(name="batch_normalization/moving_mean:0", nbytes=8))
        averaged.append(task.rescue.rehearse())
        monkeypatch.setattr(task.atomic, "shares", SimpleNamespace(has_averages=lambda: True))
        averaged.append(task.rescue.rehearse())
        monkeypatch.setenv("ORCH_RESCUE_DIR", str(tmp_path / "gone"))
        said.append(task.rescue.rehearse())

    task.rescue.during(fits, task.model, task.setting)
    assert averaged[0].endswith(" s, but for moving averages")
    assert averaged[1].endswith(" s"), "each step tells all replicas the averages of each"
    assert not said[1].endswith("averages")
    assert said[0] == "no: no step has been made since the start"
    assert said[1].startswith("9.0 MB in ")
    assert said[2] == "no: it has two optimizers"
    assert "No such file" in said[3]
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_of_several_survivors_each_says_what_it_holds_and_writes_only_when_it_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = World(tmp_path, "worker:2")
    monkeypatch.setenv("ORCH_RESCUE_DIR", str(task.shared))
    seen: list[Any] = []

    def wait() -> bool:
        seen.append((list(task.said), task.shared.exists()))
        return True

    monkeypatch.setattr(task.rescue.chosen, "wait", wait)
    assert task.fit(compare=True) == "ended"
    assert seen == [([{"holds": {"step": 127, "checksum": 77}}], False)]
    assert task.told["step"] == 127


def test_what_is_not_handed_over_is_not_compared_with_what_others_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = World(tmp_path, "worker:1")
    monkeypatch.setenv("ORCH_RESCUE_DIR", str(task.shared))

    def keep(_: Position) -> dict[str, Any]:
        raise NotAtomic("a callback has changed the weights")

    mark = Position(1, 0, 120)
    assert task.fit(compare=True, meanwhile=lambda _: task.rescue.mark(task.model, mark, keep)) == "ended"
    assert task.why == "a callback has changed the weights"
    assert not [line for line in task.said if "holds" in line], "they would seem to have diverged"
    assert task.rescue.checksum(task.model) == 77
    task.atomic.refusal = "no step has been traced"
    assert task.rescue.checksum(task.model) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda task: setattr(task.atomic, "refusal", "it has two optimizers"),
            "it has two optimizers",
        ),
        (lambda task: setattr(task.setting, "groups_of", lambda _: 1 / 0), "ZeroDivisionError: division by"),
    ],
)
def test_what_is_of_no_step_or_cannot_be_written_is_not_handed_over_and_it_is_said_why(
    tmp_path: Path, ended_with: list[int], change: Any, why: str
) -> None:
    task = World(tmp_path, "worker:0")
    assert (task.fit(compare=False, meanwhile=change), ended_with) == ("ended", [143])
    assert task.why.startswith(why)
    assert task.written(task.own) is None


def test_before_the_first_step_there_is_nothing_but_a_later_fit_begins_with_what_was_trained(
    tmp_path: Path,
) -> None:
    task = World(tmp_path, "worker:0")
    task.rescue._of_fit = lambda: (120, lambda: None)
    task.begin_epoch()
    assert not task.rescue.order()
    assert task.why == "no step has been made since the start"
    task.begin_epoch(epoch=0)  # of the next fit, whose model is a new one
    assert task.rescue.order()


def test_after_a_fit_its_end_can_be_handed_over_until_the_next_one_begins(tmp_path: Path) -> None:
    task = World(tmp_path, "worker:0")
    task.rescue.during(task.begin_epoch, task.model, task.setting)
    task.atomic.done = 20
    assert task.rescue.is_ready()
    task.number = 1
    assert task.fit(compare=False) == "ended"
    root = str(task.own)
    assert [backup.position(backup.folder(root, fit)) is not None for fit in range(2)] == [False, True]


def test_a_planned_stop_asks_only_whom_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = World(tmp_path, "worker:0")
    assert not task.rescue.is_ready()
    task.rescue._of_fit = lambda: (120, lambda: None)
    task.begin_epoch()
    assert task.rescue.is_ready()
    monkeypatch.setattr(this_task, "has_own_hooks", True)
    assert not task.rescue.is_ready(), "the script does something of its own at a stop"
    monkeypatch.setattr(this_task, "has_own_hooks", False)
    task.atomic.refusal = "it has two optimizers"
    assert not task.rescue.is_ready()


OF_SEVERAL = "steps of jit_compile or steps_per_execution are not made atomic"


@pytest.mark.parametrize(
    ("change", "replicas", "why"),
    [
        ({}, 2, "no step has been traced"),
        ({"jit_compile": True}, 2, OF_SEVERAL),
        ({"steps_per_execution": 4}, 2, OF_SEVERAL),
        ({"_steps_per_execution": Variable(4)}, 2, OF_SEVERAL),
        ({}, 4, "no step has been traced"),
    ],
)
def test_which_steps_are_made_atomic(change: dict[str, Any], replicas: int, why: str) -> None:
    made, model = Rescue(None, "worker:0"), Model()
    vars(model).update(change)
    extended = SimpleNamespace(_in_multi_worker_mode=lambda: True, _num_workers=2)
    strategy = SimpleNamespace(extended=extended, num_replicas_in_sync=replicas)
    assert made.atomic(strategy, model, model.test_step) is None
    assert (made.atomic(strategy, model, model.train_step) is not None) is (not change)
    made.mark(model, Position(0, 0), lambda _: {})
    assert made.refusal() == why
    assert not rescue._several_steps(SimpleNamespace()), "who says nothing of it makes one"
    alone = SimpleNamespace(extended=SimpleNamespace(), num_replicas_in_sync=2)
    assert Rescue(None, "worker:0").atomic(alone, model, model.train_step) is None


def test_the_metrics_are_those_of_all_workers_and_of_the_training_although_an_evaluation_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np = pytest.importorskip("numpy")
    task = World(tmp_path, "worker:0")
    trained, weight = Summed(5.0), Variable(0.5)
    task.groups = {"model": [weight], "metrics": [trained]}
    values = []
    told: Any = iter([{}, {NAME: np.array([[5.0], [6.0], [7.0]])}, {}])
    monkeypatch.setattr(rescue, "of_all", lambda *_: next(told))
    task.rescue.keep_metrics(task.model, [Summed(99.0)])  # of the epoch before, which ends with the mark
    for evaluated in (False, True, True):

        def evaluate(task: World, begins: bool = evaluated) -> None:
            if begins:
                trained.values = (Variable(5.0),)
                task.rescue.keep_metrics(task.model, [trained])
                task.rescue.keep_metrics(Model(), [Summed(70.0)])  # a callback evaluates another model
                trained.values = (Variable(8.0),)

        task.fit(meanwhile=evaluate)
        found = backup.read(backup.folder(str(task.own), 0))
        assert found is not None
        shares = found[0][NAME].tolist() if NAME in found[0] else None
        values.append((found[0]["model/00000"], found[0]["metrics/00000"], shares))
    exact = [[5.0], [6.0], [7.0]]
    assert values == [(0.5, 15.0, None), (0.5, 15.0, exact), (0.5, 15.0, None)], "one of three is a third"


def test_a_fit_that_goes_on_within_an_epoch_can_be_handed_over_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "keras.src.callbacks", SimpleNamespace(Callback=base))
    monkeypatch.setattr(saving, "give_back", lambda *_, **__: False)
    marks: list[tuple[int, int, int]] = []
    kept: list[Any] = []
    metrics: list[Any] = []

    def mark(_: Any, position: Position, _keep: Any) -> None:
        marks.append((position.epoch, position.batch, position.steps))

    setting: Any = SimpleNamespace(
        library="keras",
        strategy=SimpleNamespace(extended=SimpleNamespace(), num_replicas_in_sync=1),
        report=lambda *_: None,
        rescue=SimpleNamespace(mark=mark, keep_metrics=lambda _, values: kept.append(values)),
        shrink=SimpleNamespace(scale=1.0, rate=1.0, advance=lambda _: None),
        groups_of=lambda _: {"metrics": metrics},
        steps=27,
        is_seeded=False,
    )
    saver = Saver(setting, Course(0), {"epochs": 3})
    saver._restored = ({}, Position(1, 7))
    _, callback = saver.callbacks([])
    callback.model = Model()
    callback.on_epoch_begin(1)
    for batch in range(7, 20):
        callback.on_train_batch_end(batch)
    callback.on_test_begin()
    callback.on_epoch_end(1)
    assert marks == [(1, 7, 27), (2, 0, 40)]
    assert len(kept) == 1
    assert kept[0] is metrics


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_test_begin", "on_test_end", "on_epoch_end"])
def test_a_fit_hands_over_no_weights_that_a_callback_changes_outside_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    base = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "keras.src.callbacks", SimpleNamespace(Callback=base))
    task = World(tmp_path, "worker:1")
    setting: Any = SimpleNamespace(
        library="keras",
        strategy=SimpleNamespace(extended=SimpleNamespace(), num_replicas_in_sync=1),
        report=lambda *_: None,
        rescue=task.rescue,
        shrink=SimpleNamespace(begin=lambda _: None),
        groups_of=lambda _: {},
        count_steps=lambda: 7,
        checkpoint_dir=None,
    )
    saver = Saver(setting, Course(0), {"epochs": 3})
    saver.others = [type("Swaps", (base,), {hook: lambda *_: None})()]
    first, *_, last = saver.callbacks(saver.others)
    saver._begin(task.model, {})
    begins = getattr(first, hook.replace("test_end", "test_begin"))
    begins(1)
    saver.hooks.keep(Position(1, 0), 0, False)
    monkeypatch.setattr(task.atomic, "checksum", lambda: 78)
    with pytest.raises(NotAtomic, match="a callback has changed the weights"):
        saver.hooks.keep(Position(1, 0), 0, False)
    last.on_test_end() if "test" in hook else saver.hooks.is_done()
    saver.hooks.keep(Position(1, 0), 0, False)


@pytest.mark.parametrize("is_changed", [False, True])
def test_what_the_script_makes_of_a_model_after_its_fit_is_not_handed_over_as_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    pytest.importorskip("numpy")
    base = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "keras.src.callbacks", SimpleNamespace(Callback=base))
    task, weight = World(tmp_path, "worker:0"), Variable(0.5)
    task.groups = {"model": [weight]}
    vars(task.setting).update(
        library="keras",
        strategy=SimpleNamespace(extended=SimpleNamespace(), num_replicas_in_sync=1),
        report=lambda *_: None,
        rescue=task.rescue,
        shrink=SimpleNamespace(begin=lambda _: None, scale=1.0, rate=1.0),
        writer=SimpleNamespace(wait=lambda: None),
        count_steps=lambda: 20,
        steps_of=lambda _: 20,
        is_seeded=False,
    )
    saver = Saver(task.setting, Course(0), {"epochs": 1})  # type: ignore[arg-type]
    _, last = saver.callbacks([])
    last.model = task.model

    def fit() -> None:
        saver._begin(task.model, {})
        task.atomic.done = 20
        saver._end_epoch(task.model, 0)
        last.on_train_end()

    task.rescue.during(fit, task.model, task.setting)
    if is_changed:
        weight.value = 0.0  # it is pruned
    assert task.rescue.order()
    with pytest.raises(Ended):  # an evaluation meets its peer's death
        task.rescue.failed(GONE)
    assert task.why == ("the script has changed the weights since its fit ended" if is_changed else "")
    assert (task.written(task.own) is None) is is_changed


@pytest.mark.parametrize("batches", [7, None, 9])
def test_the_figures_of_an_interrupted_epoch_are_there_before_its_next_batch_or_without_one(
    monkeypatch: pytest.MonkeyPatch, batches: int | None
) -> None:
    restored: list[str] = []

    def give_back(*_: Any, averages: bool = False) -> bool:
        restored.extend(() if averages else ["metrics"])
        return True

    class Keras3Model(Model):
        def get_metrics_result(self) -> Any:
            return {"loss": 0.5 if restored else 0.0}

        def _get_metrics_result_or_logs(self, logs: Any) -> Any:
            """Return what a step of the script's own has told. There our patch averages over the workers."""
            return {**logs, "averaged": 1.0}

    base = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "keras.src.callbacks", SimpleNamespace(Callback=base))
    monkeypatch.setattr(saving, "give_back", give_back)
    setting: Any = SimpleNamespace(
        library="keras",
        strategy=SimpleNamespace(extended=SimpleNamespace()),
        report=lambda *_: None,
        rescue=None,
        groups_of=lambda _: {"metrics": []},
    )
    course = Course(0)
    course.keep_handler(SimpleNamespace(num_batches=batches))
    saver = Saver(setting, course, {"epochs": 3})
    saver._restored = ({}, Position(1, 7))
    _, callback = saver.callbacks([])
    callback.model = model = Keras3Model()
    callback.on_epoch_begin(1)
    assert model.get_metrics_result() == {"loss": 0.5}
    assert course.figures is not None
    assert course.figures() == {"loss": 0.5}
    shown = model._get_metrics_result_or_logs
    assert shown({}) == {"loss": 0.5, "averaged": 1.0}, "Keras shows none where an epoch has no batch"
    assert shown({"critic": 0.25}) == {"critic": 0.25, "averaged": 1.0}, "of the batches that are left"


@pytest.mark.parametrize(
    ("saved", "inner", "expected"),
    [
        ([], "ckpt", "ckpt"),
        ([], ".", "."),
        ([], "ckpt/workertemp_1", "ckpt"),
        ([], "workertemp_1", ""),
        (["ckpt/ckpt-20.index"], "ckpt/workertemp_1", "ckpt"),
        (["ckpt/ckpt-20.index"], "ckpt/of-worker-1/tf", "ckpt"),
        (["ckpt-20.index"], "of-worker-1", ""),
        (["ckpt/ckpt-20.index", "ckpt/mine/rescued-by-worker-1-7.index"], "ckpt/mine", "ckpt"),
        (["ckpt-20.index", "ckpt/ckpt-20.index"], "ckpt", "ckpt"),
        (["other/ckpt-20.index"], "ckpt/mine", "ckpt/mine"),
    ],
)
def test_a_loop_hands_over_where_the_chief_saves_which_may_be_above_the_place_of_the_others(
    tmp_path: Path, saved: list[str], inner: str, expected: str
) -> None:
    for name in saved:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert rescue._where_the_chief_looks(str(tmp_path), inner) == expected


class Checkpoint:
    """Writes what a `tf.train.Checkpoint` writes."""

    variables: tuple[Any, ...] = ()

    def write(self, path: str) -> None:
        for suffix in (".index", ".data-00000-of-00001"):
            Path(path + suffix).write_text("x")


@pytest.mark.parametrize("place", ["own/inner", "elsewhere"])
def test_a_loop_hands_over_a_checkpoint_whose_index_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    task, moved, rename = World(tmp_path, "worker:1"), list[str](), os.rename
    monkeypatch.setattr(rescue, "Atomic", Atomic)
    monkeypatch.setattr(rescue, "_Tracked", lambda checkpoint: checkpoint)
    monkeypatch.setenv("ORCH_RESCUE_DIR", str(task.shared))
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(task.own))

    def moves(one: str, other: str, **folders: int) -> None:
        moved.append(other)
        rename(one, other, **folders)

    monkeypatch.setattr(os, "rename", moves)
    manager = SimpleNamespace(directory=str(tmp_path / place), checkpoint=Checkpoint())
    task.rescue.loop(manager, Variable(57), chief=False)
    atomic: Any = task.rescue._newest
    atomic.done = 57
    task.rescue.failed(GONE)
    assert atomic.is_put_back
    if place == "elsewhere":
        assert task.why.startswith("the manager saves where nobody looks")
        assert moved == []
        return
    name = "rescued-by-worker-1-57"
    assert moved == [f"{name}.about", f"{name}.data-00000-of-00001", f"{name}.index"]
    assert sorted(path.name for path in (task.shared / "inner").iterdir()) == sorted(moved)
    assert task.told["step"] == 57


def test_a_loop_hands_over_nothing_where_what_it_protects_is_not_of_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is done, and its peer died before the script's own lines for it."""
    task, seen = World(tmp_path, "worker:0"), [1]
    monkeypatch.setattr(rescue, "Atomic", Atomic)
    monkeypatch.setattr(rescue, "_Tracked", lambda checkpoint: checkpoint)
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(task.own))
    monkeypatch.setattr(this_task, "protected", {"seen": Protected(lambda: seen, seen.extend)})
    monkeypatch.setattr(this_task, "held", Held())

    class Holding(Checkpoint):
        def write(self, path: str) -> None:
            seen.append(9)  # what the script did for the step that failed
            held.append(list(this_task.held.state_of("seen")))
            super().write(path)

    held: list[list[int]] = []
    manager = SimpleNamespace(directory=str(task.own), checkpoint=Holding())
    task.rescue.loop(manager, Variable(57), chief=True)
    atomic: Any = task.rescue._newest
    for done, why, is_ready in ((58, "is of 1 steps before", True), (59, "is of 2 steps before", False)):
        this_task.held._held = (57, {})
        atomic.done, task.said[:] = done, []
        task.rescue.failed(GONE)
        assert why in task.why
        assert task.rescue.is_ready() is is_ready, "while a step is made, it is of the one before"
    this_task.held.told_step()
    task.said[:] = []
    task.rescue.failed(GONE)
    assert (task.told["step"], held) == (57, [[1]])


PLANTED = (
    *("gen-000001", "gen-000001/orch", "gen-000001/orch/fit-000", "gen-000001/orch/fit-000/saving_temp"),
    *("gen-000001/orch/fit-000/rescued-by-worker-1", "gen-000001/orch/fit-000/saving_temp/latest.weights.h5"),
    "gen-000001/orch/fit-000/latest.weights.h5",
)


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.fault(100)
def test_row_100_a_task_writes_its_backup_through_no_link(tmp_path: Path, planted: str) -> None:
    home, root = tmp_path / "home", tmp_path / "saves"
    (home / "saving_temp").mkdir(parents=True)
    for name in ("latest.weights.h5", "saving_temp/latest.weights.h5", "other"):
        (home / name).write_text("the owner's")
    (root / planted).parent.mkdir(parents=True)
    (root / planted).symlink_to(home / "other" if planted.endswith(".h5") else home)
    directory = backup.folder(f"{root}/gen-000001", 0)
    for folder in (directory, backup.rescued(directory, "worker:1")):
        with contextlib.suppress(OSError):
            backup.write(folder, {backup.STEPS: 40}, Position(1, 0, 40))
    assert sorted(path.name for path in home.rglob("*")) == [
        *("latest.weights.h5", "latest.weights.h5", "other", "saving_temp")
    ]
    assert {path.read_text() for path in home.rglob("*") if path.is_file()} == {"the owner's"}
    if planted.endswith(".h5"):
        assert backup.read(directory) is not None, "a link in the place of the file is replaced"


@pytest.mark.parametrize(
    "planted", ["gen-000001", "gen-000001/inner", "gen-000001/inner/rescued-by-worker-1-57.tmp"]
)
@pytest.mark.fault(100)
def test_row_100_a_loop_hands_over_through_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """TensorFlow opens by paths: it writes in a directory that nobody else can write into."""
    task, home, root = World(tmp_path, "worker:1"), tmp_path / "home", tmp_path / "saves"
    home.mkdir()
    (root / planted).parent.mkdir(parents=True)
    (root / planted).symlink_to(home)
    monkeypatch.setattr(rescue, "Atomic", Atomic)
    monkeypatch.setattr(rescue, "_Tracked", lambda checkpoint: checkpoint)
    monkeypatch.setenv("ORCH_RESCUE_DIR", f"{root}/gen-000001")
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(task.own))
    modes: list[int] = []

    class Looking(Checkpoint):
        def write(self, path: str) -> None:
            modes.append(os.stat(os.path.dirname(path)).st_mode & 0o777)
            super().write(path)

    task.rescue.loop(
        SimpleNamespace(directory=str(task.own / "inner"), checkpoint=Looking()), Variable(57), chief=False
    )
    newest: Any = task.rescue._newest
    newest.done = 57
    task.rescue.failed(GONE)
    assert list(home.iterdir()) == []
    if planted.endswith(".tmp"):
        assert (task.told["step"], modes) == (57, [0o700])
    else:
        assert "a symbolic link is in its path, and is not followed" in task.why


def test_an_order_gives_a_rescue_its_whole_grace_and_the_next_one_chooses_it(
    monkeypatch: pytest.MonkeyPatch, ended_with: list[int]
) -> None:
    graces: list[float] = []
    heard: list[str] = []

    class Timer:
        def __init__(self, grace_s: float, *_: Any, **__: Any) -> None:
            graces.append(grace_s)

        def start(self) -> None:
            """Wait for nothing."""

    class Ready:
        chosen = SimpleNamespace(set=lambda: heard.append("chosen"))

        has_steps = True

        def order(self, *, compare: bool) -> bool:
            heard.append("compare" if compare else "write")
            return self.has_steps

    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(this_task, "rescue", Ready())
    monkeypatch.setattr(this_task, "stop_hooks", [lambda: heard.append("a hook")])
    link: Any = SimpleNamespace(send=lambda *_, **__: None)
    orders = Orders(link)
    orders._stop({"grace_s": 50.0, "rescue": True, "compare": True})
    orders._stop({"grace_s": 40.0, "rescue": True, "compare": False})
    assert (graces, heard, ended_with) == ([50.0], ["compare", "chosen"], [])
    monkeypatch.setattr(Ready, "has_steps", False)
    with pytest.raises(Ended):
        Orders(link)._stop({"grace_s": 50.0, "rescue": True})
    assert heard[2:] == ["write"], "it has nothing to hand over"
    monkeypatch.setattr(this_task, "rescue", None)
    with pytest.raises(Ended):
        Orders(link)._stop({"grace_s": 50.0, "rescue": True})


@pytest.mark.fault(106)
def test_weights_that_are_not_finite_are_not_handed_over(tmp_path: Path) -> None:
    task = World(tmp_path, "worker:0")
    assert task.fit(compare=False, meanwhile=lambda task: setattr(task.atomic, "is_broken", True)) == "ended"
    assert task.why == "a weight is NaN or infinite (w)"
    assert task.written(task.own) is None


@pytest.mark.parametrize(
    ("group", "why"),
    [("optimizer", "what a step updates is NaN or infinite (v)"), ("metrics", ""), ("variables.0.least", "")],
)
def test_what_an_optimizer_holds_must_be_finite_and_a_figure_or_what_the_model_keeps_need_not(
    tmp_path: Path, group: str, why: str
) -> None:
    task = World(tmp_path, "worker:0")
    task.groups = {"model": [Variable(0.5)], "optimizer": [], "metrics": []}
    task.groups[group] = [Variable(float("nan"))]
    task.fit(compare=False)
    assert task.why == why
    assert (task.written(task.own) is None) == bool(why)


@pytest.mark.parametrize(
    ("values", "is_finite"),
    [
        ([0.0, 1e300], True),
        ([0.0, float("nan")], False),
        ([float("-inf")], False),
        ([1, 2], True),
        ([True], True),
        ([], True),
    ],
)
def test_all_trainable_weights_are_looked_at(values: list[Any], is_finite: bool) -> None:
    np = pytest.importorskip("numpy")
    weights = [SimpleNamespace(numpy=lambda: np.zeros(3), handle=1), SimpleNamespace(handle=2, name="w")]
    weights[1].numpy = lambda: np.asarray(values)
    model = type("Model", (), {"trainable_variables": weights})()
    atomic = RealAtomic(model)
    if is_finite:
        atomic.check_finite()
        return
    with pytest.raises(NotAtomic, match=r"a weight is NaN or infinite \(w\)"):
        atomic.check_finite()


def test_weights_that_are_nan_do_not_replace_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np = pytest.importorskip("numpy")
    told: list[str] = []
    monkeypatch.setattr(this_task, "link", SimpleNamespace(say=lambda _kind, text: told.append(text)))
    directory = backup.folder(str(tmp_path), 0)
    whole = np.ones(3)
    backup.write(
        directory,
        {backup.STEPS: 40, "model/00000": whole, "metrics/00000": whole * np.nan},
        Position(1, 0, 40),
    )
    for steps in (50, 60):
        torn = np.array([1.0, np.nan, 1.0], dtype=np.float32)
        backup.write(
            directory, {backup.STEPS: steps, "model/00000": whole, "model/00001": torn}, Position(2, 0, steps)
        )
    found = backup.read(directory)
    assert found is not None
    assert found[1].steps == 40
    assert told == [
        "step 50 is not saved, since a weight is NaN: the backup before it stays, and a restart goes on from it"
    ]
    backup.write(directory, {backup.STEPS: 70, "model/00000": whole * np.inf}, Position(3, 0, 70))
    found = backup.read(directory)
    assert found is not None
    assert found[1].steps == 70, "a constant may be infinite"


@pytest.mark.fault(105, 106)
def test_a_task_tells_from_which_file_it_goes_on_and_which_it_could_not_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np = pytest.importorskip("numpy")
    directory = backup.folder(str(tmp_path), 0)
    survivor = backup.rescued(directory, "worker:1")
    for folder, steps, at in ((directory, 40, 9e8), (survivor, 57, 8e8)):
        backup.write(folder, {backup.STEPS: steps, "model/00000": np.ones(3)}, Position(2, steps, steps))
        os.utime(Path(folder, backup.NAME), (at, at))
    told: list[dict[str, Any]] = []
    link = SimpleNamespace(send=lambda line, **_: told.append(line.get("restored") or line["error"]))
    monkeypatch.setattr(this_task, "link", link)
    setting: Any = SimpleNamespace(library="keras", report=lambda *_: None, checkpoint_dir=str(tmp_path))
    saver = Saver(setting, Course(0), {"epochs": 3})
    saver._directory = directory
    backup.tell_restored(directory, str(tmp_path), 57)
    size = Path(survivor, backup.NAME).stat().st_size
    file = "orch/fit-000/rescued-by-worker-1/latest.weights.h5"
    assert told == [{"file": file, "step": 57, "saved_at": 8e8, "bytes": size, "why": ""}]
    for error, is_told in ((KeyError("x"), True), (MemoryError(), False)):
        told.clear()
        with pytest.raises(type(error)), saver._restoring():
            raise error
        assert [(each["file"], each["step"]) for each in told] == ([(file, None)] if is_told else [])
    told.clear()
    with pytest.raises(backup.Mismatch), saver._restoring():
        raise backup.Mismatch("y")
    assert told == [{"kind": "other-shapes", "message": "y"}], "a changed model is not the file's fault"
    h5py = pytest.importorskip("h5py")
    with h5py.File(Path(survivor, backup.NAME), "r+") as torn:
        del torn["position"]
    told.clear()
    with pytest.raises(ValueError, match="position"), saver._restoring():
        backup.read(directory)
    assert [(each["file"], "position" in each["why"]) for each in told] == [(file, True)]
    told.clear()
    with pytest.raises(KeyError, match="position"):
        backup.positions(str(tmp_path))  # before the first fit
    assert [(each["file"], "position" in each["why"]) for each in told] == [(file, True)]
    (tmp_path / "orch" / "fit-of-mine").mkdir()
    (tmp_path / "orch" / "old-1").mkdir()
    backup.write(str(tmp_path / "orch" / "old-1"), {backup.STEPS: 9}, Position(0, 9, 9))
    Path(survivor, backup.NAME).write_bytes(b"x")
    assert backup.read(directory) is not None, "its own backup is there"
    assert {fit: each.batch for fit, each in backup.positions(str(tmp_path)).items()} == {0: 40}

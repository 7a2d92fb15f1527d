"""What callbacks remember over a restart, and of what they had been told when it came. Keras's are fakes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import runtime
from orchestrator.task import this_task
from orchestrator.task.link import Link
from orchestrator.task.transparent.atomic import NotAtomic
from orchestrator.task.transparent.backup import Position
from orchestrator.task.transparent.hooks import EPOCH_END, STEP_END, Comparison, Hooks, said_apart, trim
from orchestrator.task.transparent.protected import Held, packed, unpacked
from orchestrator.task.transparent.remembered import Memory
from orchestrator.task.transparent.replay import Course
from orchestrator.task.transparent.reporter import Reporter
from orchestrator.task.transparent.saver import Saver

pytest.importorskip("numpy")


class Callback:
    """Keras's base class of callbacks."""

    def on_train_batch_begin(self) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...


Callback.__module__ = "keras.src.callbacks"


class Counts(Callback):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.begun, self.ended, self.epochs = 0, list[int](), 0
        self.logs: Any = None

    def on_train_batch_begin(self) -> None:
        self.begun += 1

    def on_train_batch_end(self, batch: int, _logs: Any = None) -> None:
        self.ended.append(batch)

    def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
        self.epochs, self.logs = self.epochs + 1, dict(logs)


class Halves(Counts):
    """Another one, which adds a figure of its own to those of an epoch, as LearningRateScheduler does."""

    def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(_epoch, logs)
        logs["rate"] = 0.1


class Saves(Counts):
    """That of the chief alone."""


class Variable:
    """A learning rate."""

    shape, name, value = (), "learning_rate", 1.0

    def numpy(self) -> float:
        return self.value


def memory(*callbacks: Any) -> Memory:
    return Memory(list(callbacks), "keras", Reporter(Link(None)))


def restarted(kept: Any, *callbacks: Any, own: Any = None) -> list[int]:
    again = memory(*callbacks)
    kept, own = json.loads(json.dumps([kept, own]))
    again.recall(kept, {}, own)
    return [each.begun for each in callbacks]


def test_each_worker_gets_what_is_of_its_own_callbacks_wherever_they_stand_in_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = [Saves(), Halves(), Counts(), Counts()]
    held = memory(*trained)
    for number, each in enumerate(trained, 1):
        each.begun = number
    kept = held.keep()[0]
    assert restarted(kept, Counts(), Halves(), Counts()) == [3, 2, 4]
    assert (
        "what Saves remembered is left out: this task has none among its callbacks" in capsys.readouterr().err
    )
    assert restarted(kept, Saves(), Counts(), Halves(), own={"Counts 0": {"begun": 7}}) == [1, 7, 2]
    assert capsys.readouterr().err == ""
    assert restarted(kept, Saves(), Halves(), Counts()) == [1, 2, 0], "which of the two it is, nobody knows"
    said = "nothing was kept of Counts, which the task that saved had 2 times among its callbacks and this one 1 times"
    assert said in capsys.readouterr().err


def test_what_the_version_before_has_saved_is_found_by_its_place() -> None:
    kept = {"1 Halves": {"begun": 5}, "2 Counts": {"begun": 6}}
    assert restarted(kept, Counts(), Halves(), Counts()) == [0, 5, 6]


def test_an_array_that_another_task_does_not_hold_is_said_to_be_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import numpy as np

    one, other = Counts(), Counts()
    held = [memory(one), memory(other)]
    one.logs, other.logs = np.ones(3), np.ones(3)
    assert held[0].keep()[0] == held[1].keep()[0], "equal arrays have one name"
    other.logs = np.zeros(3, complex)
    again = Saves(), Counts()
    memory(*again).recall({"Saves 0": {}}, held[0].keep()[1], held[1].keep()[0] | {"Saves 0": {}})
    assert again[1].logs is None
    assert (
        "Counts.logs was another array here than in the task that saved: it begins anew"
        in capsys.readouterr().err
    )


class Fit:
    """Callbacks that are called as Keras does, up to a failure."""

    def __init__(self, *callbacks: Any) -> None:
        self.rate, self.callbacks, self.weights = Variable(), callbacks, 1
        self.weight, self.figure = Variable(), Variable()
        self.groups = {"optimizer": [self.rate], "model": [self.weight], "metrics": [self.figure]}
        self.hooks = Hooks(memory(*callbacks), lambda: self.groups, lambda: self.weights)
        self.steps = 0

    def step(self, told: int | None = None) -> None:
        """Make a step, of whose end so many callbacks are told; None: all of them, and -1: none, not even ours."""
        self.hooks.may_be_taken_back(of_step=True)
        for each in self.callbacks:
            each.on_train_batch_begin()
        self.rate.value *= 2
        self.steps += 1
        if told == -1:
            return
        self.hooks.ends(STEP_END, {})
        self.tell("on_train_batch_end", told, self.steps - 1)

    def tell(self, hook: str, told: int | None, number: int) -> None:
        logs = {"loss": 0.5, "figures": [1, 2]}
        for name, each in list(self.hooks.memory.callbacks.items())[:told]:
            getattr(each, hook)(number, logs)
            self.hooks.passed(name, logs)
        if told is None:
            self.hooks.is_done()

    def interrupted(self, batch: int, steps_told: int) -> tuple[Position, dict[str, Any]]:
        position = Position(1, batch)
        return position, self.hooks.keep(position, steps_told, False)


def test_what_a_callback_does_before_a_step_that_fails_is_taken_back() -> None:
    fit = Fit(Counts())
    fit.step()
    fit.hooks.may_be_taken_back(of_step=True)
    fit.callbacks[0].begun, fit.rate.value = 9, 7.0
    position, taken_back = fit.interrupted(1, 1)
    assert position.callbacks == {"Counts 0": {"begun": 1, "ended": ["list", [0]]}}
    assert taken_back == {"optimizer/00000": 2.0}
    assert position.unfinished is None


def test_what_is_taken_back_of_an_optimizer_that_was_built_meanwhile_has_its_new_place() -> None:
    optimizer = [Variable()]
    hooks = Hooks(memory(Counts()), lambda: {"optimizer.own": list(optimizer)})
    hooks.may_be_taken_back(of_step=True)
    optimizer[0].value = 7.0
    optimizer.insert(0, Variable())  # LossScaleOptimizer puts its own in front of what it wraps
    assert hooks.keep(Position(1, 0), 0, False) == {"optimizer.own/00001": 1.0}


@pytest.mark.parametrize("told", [-1, 0, 1])
def test_after_a_restart_the_callbacks_are_told_of_a_step_that_they_were_not_told_of(
    told: int,
) -> None:
    fit = Fit(Counts(), Halves())
    fit.step()
    fit.step(told)
    position, taken_back = fit.interrupted(2, 1)
    assert taken_back == {}, "the step is done"
    again = Fit(Counts(), Halves())
    again.hooks.memory.recall(json.loads(json.dumps(position.callbacks)), {})
    assert position.unfinished is not None
    again.hooks.finish_step(position.unfinished, 1, {})
    assert [each.ended for each in again.callbacks] == [[0, 1], [0, 1]]


def test_the_end_of_an_epoch_goes_on_behind_the_last_callback_that_was_told_of_it() -> None:
    fit = Fit(Halves(), Counts())
    fit.step()
    fit.hooks.ends(EPOCH_END, {"loss": 0.5, "figures": [1, 2]})
    fit.tell("on_epoch_end", 1, 0)
    fit.callbacks[1].epochs, fit.rate.value = 8, 70.0  # it fails in the midst of it
    position, taken_back = fit.interrupted(1, 1)
    assert taken_back == {"optimizer/00000": 2.0}
    assert position.unfinished == {
        "hook": EPOCH_END,
        "done": ["Halves 0"],
        "logs": {"loss": 0.5, "rate": 0.1},
        "stops": False,
    }
    again = Fit(Halves(), Counts())
    again.hooks.memory.recall(json.loads(json.dumps(position.callbacks)), {})
    logs = {"loss": 0.75}
    again.hooks.finish_epoch(position.unfinished, logs)
    for each in again.callbacks:
        each.on_epoch_end(0, logs)
    again.hooks.show_again()
    assert [(each.epochs, each.logs and each.logs["loss"]) for each in again.callbacks] == [
        (1, 0.5),
        (1, 0.5),
    ]
    assert logs["rate"] == 0.1, "History, which comes last, keeps it"
    again.callbacks[0].on_epoch_end(1, {"loss": 0.25})
    assert again.callbacks[0].epochs == 2, "of the next epoch it is told"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: None, ""),
        (lambda fit: setattr(fit.weight, "value", 0.0), "the weights"),
        (lambda fit: setattr(fit.rate, "value", 0.1), "the learning rate"),
        (
            lambda fit: fit.groups.update(optimizer=[Variable(), Variable()]),
            "the learning rate, the optimizer",
        ),
        (lambda fit: setattr(fit.figure, "value", 0.0), ""),  # an evaluation does that
    ],
)
def test_after_a_fit_nothing_is_handed_over_that_the_script_has_changed_since(
    seen: list[Any], change: Callable[[Fit], object], said: str
) -> None:
    fit = Fit(Counts())
    fit.step()
    fit.interrupted(1, 1)
    fit.hooks.has_ended()
    seen.append("since")
    change(fit)
    if said:
        with pytest.raises(NotAtomic, match=f"^the script has changed {said} since its fit ended$"):
            fit.interrupted(1, 1)
        return
    position, _ = fit.interrupted(1, 1)
    assert position.callbacks["runtime.protect seen 0"] == {}, "what it protects is of the fit's end"


class SwapEMAWeights(Callback):
    """Swaps the weights, as Keras's does."""

    def on_test_begin(self) -> None: ...


class History(Callback):
    """One of Keras's that changes no weights."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...


SwapEMAWeights.__module__ = History.__module__ = "keras.src.callbacks"


def test_weights_that_a_callback_has_changed_outside_of_a_step_are_not_handed_over() -> None:
    fit = Fit(SwapEMAWeights(), Counts())
    for hook in ("on_test_begin", EPOCH_END):
        fit.hooks.ends(hook, {}) if hook == EPOCH_END else fit.hooks.may_be_taken_back(hook)
        fit.interrupted(1, 1)
        fit.weights += 1
        with pytest.raises(NotAtomic, match="a callback has changed the weights"):
            fit.interrupted(1, 1)
        fit.hooks.is_done()
        fit.interrupted(1, 1)
    fit.hooks.ends(EPOCH_END, {})
    fit.weights += 1
    fit.hooks.passed("Counts 0", {})  # it changed them, and is told once
    fit.interrupted(1, 1)


def test_no_checksum_is_paid_for_callbacks_that_change_no_weights() -> None:
    def checksum() -> int:
        raise AssertionError("it takes time")

    hooks = Hooks(memory(History(), Counts()), dict, checksum)
    hooks.may_be_taken_back("on_test_begin", "on_test_end")
    hooks.may_be_taken_back("on_epoch_begin")
    hooks.may_be_taken_back(of_step=True)
    hooks.ends(STEP_END, {})
    hooks.passed("Counts 0")
    hooks.is_done()
    hooks.memory.callbacks.pop("Counts 0")
    hooks.ends(EPOCH_END, {})
    hooks.passed("History 0")


def test_a_long_list_that_grows_is_taken_back_too() -> None:
    fit = Fit(Counts())
    fit.callbacks[0].ended = list(range(1000))
    fit.hooks.may_be_taken_back(of_step=True)
    fit.callbacks[0].ended.append(1)
    position, _ = fit.interrupted(0, 0)
    assert len(position.callbacks["Counts 0"]["ended"][1]) == 1000


def test_a_long_list_within_another_value_is_kept_when_it_is_taken_back() -> None:
    """As History has it in the evaluation after 257 epochs."""
    fit = Fit(Counts())
    fit.callbacks[0].logs = {"loss": [0.5] * 300}
    fit.hooks.may_be_taken_back()
    fit.callbacks[0].logs["loss"].append(7)
    position, _ = fit.interrupted(0, 0)
    again = Counts()
    memory(again).recall(json.loads(json.dumps(position.callbacks)), {})
    assert again.logs == {"loss": [0.5] * 300}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the script's own, which it protects."""
    seen: list[Any] = []

    def restore(state: list[Any]) -> None:
        seen[:] = state

    monkeypatch.setattr(this_task, "protected", {})
    monkeypatch.setattr(this_task, "held", None)
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", "/checkpoints")
    runtime.protect("seen", save=lambda: seen, restore=restore)
    return seen


@pytest.mark.parametrize("told", [None, -1, 1])
def test_what_a_script_protects_is_of_the_last_step_that_was_done(seen: list[Any], told: int | None) -> None:
    """Its callbacks change what lies outside of them, also for the step that then fails."""

    class Sees(Counts):
        def on_train_batch_begin(self) -> None:
            seen.append("begun")

        def on_train_batch_end(self, batch: int, _logs: Any = None) -> None:
            seen.append(batch)

    fit = Fit(Sees(), Sees())
    fit.step()
    done = ["begun", "begun", 0, 0]
    if told is None:  # the second step has begun, and is not done
        fit.hooks.may_be_taken_back(of_step=True)
        seen.append("begun")
        position, _ = fit.interrupted(1, 1)
    else:
        fit.step(told)
        position, _ = fit.interrupted(2, 1)
        done += ["begun", "begun", *([1] if told == 1 else [])]
    seen[:] = []
    again = Fit(Sees(), Sees())
    again.hooks.memory.recall(json.loads(json.dumps(position.callbacks)), {})
    assert seen == done
    if position.unfinished is not None:
        again.hooks.finish_step(position.unfinished, 1, {})
        assert seen == ["begun", "begun", 0, 0, "begun", "begun", 1, 1], "no callback is told twice"


def test_what_a_callback_changed_outside_of_itself_at_an_epochs_end_is_kept_with_it(seen: list[Any]) -> None:
    class Sees(Counts):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            seen.append(epoch)

    fit = Fit(Sees(), Sees())
    fit.step()
    fit.hooks.ends(EPOCH_END, {"loss": 0.5})
    fit.tell("on_epoch_end", 1, 0)
    seen.append("half")
    position, _ = fit.interrupted(1, 1)
    again = Fit(Sees(), Sees())
    again.hooks.memory.recall(json.loads(json.dumps(position.callbacks)), {})
    assert (seen, [each.epochs for each in again.callbacks]) == ([0], [1, 0])


def test_in_a_loop_what_is_protected_is_held_when_a_step_is_told(seen: list[Any]) -> None:
    held, steps = Held(), [0]
    assert held.behind() == ""
    held.counted = lambda: steps[0]
    this_task.held = held
    assert held.behind() == ""
    for step in (1, 2):
        steps[0] = step
        assert held.behind(most=1) == ""
        assert "is of 1 steps before: `runtime.report` was not called" in held.behind()
        seen.append(step)
        runtime.report(step)
        assert held.behind() == ""
    seen.append("of the step that fails")
    with held.handing_over():
        assert held.state_of("seen") == [1, 2]
    assert held.state_of("seen") == [1, 2, "of the step that fails"], "a save of the script's own"


def test_what_is_protected_comes_back_as_it_was() -> None:
    import numpy as np

    state = {"raw": b"a\0b", "each": [1, 2.5, "c", None, True], 7: (np.arange(6.0).reshape(2, 3), {"x"})}
    found = unpacked(packed(state))
    assert repr(found) == repr(state)


def test_what_cannot_be_protected_is_refused_where_the_script_says_it(
    seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_state: Any) -> None: ...

    with pytest.raises(
        TypeError, match=r"protect\('open'\): what `save` returns holds a object, which cannot be"
    ):
        runtime.protect("open", save=lambda: {"file": object()}, restore=nothing)
    with pytest.raises(ValueError, match="'seen' is no new name: give each part of the state its own"):
        runtime.protect("seen", save=list, restore=nothing)
    with pytest.raises(ValueError, match="'' is no new name"):
        runtime.protect("", save=list, restore=nothing)
    this_task.held = Held()
    with pytest.raises(
        ValueError, match=r"protect\('late'\) comes too late: call it before `runtime.rescue`"
    ):
        runtime.protect("late", save=list, restore=nothing)
    assert list(this_task.protected) == ["seen"]


@pytest.mark.parametrize("separator", [",", ";"])
def test_rows_of_epochs_that_are_trained_again_leave_the_table(tmp_path: Path, separator: str) -> None:
    table = tmp_path / "log.csv"
    rows = [["epoch", "loss"], ["0", "0.5"], ["1", "0.25"], ["2", "0.2"], ["3", "0."]]
    table.write_text("\n".join(separator.join(row) for row in rows))
    assert trim(table, separator, 2, 0) == 0
    assert table.read_text() == "".join(separator.join(row) + "\n" for row in rows[:3])
    assert trim(tmp_path / "none.csv", separator, 2, 5) == 0
    assert not (tmp_path / "none.csv").exists()


@pytest.mark.parametrize(("before", "epochs"), [(0, [0, 0]), (3, [0, 1, 0]), (9, [0, 1, 0, 1])])
def test_rows_of_earlier_fits_stay_in_the_table_also_on_a_host_whose_file_has_fewer(
    tmp_path: Path, before: int, epochs: list[int]
) -> None:
    table = tmp_path / "log.csv"
    table.write_bytes(b"epoch,loss\r\n0,0.5\r\n1,0.25\r\n0,\xff\r\n1,0.2\r\n")
    assert trim(table, ",", 1, before) == min(before, 5)
    assert [int(row[:1]) for row in table.read_bytes().splitlines()[1:]] == epochs


@pytest.mark.parametrize(
    ("position", "appends", "before", "epochs"),
    [
        (None, True, 4, [0, 1, 0]),  # a fit that begins
        (None, False, 0, [0, 1, 0]),  # Keras truncates the file
        ((2, 3), True, 3, [0, 1, 0]),
        ((0, 3), True, 3, [0, 1]),
        ((3, 3), True, 3, [0, 1, 0]),  # it had ended: what follows is of later fits
        ((0, None), True, 0, []),  # saved by the version before
    ],
)
def test_a_fit_goes_on_with_its_own_rows_of_a_table(
    tmp_path: Path, position: tuple[int, int | None] | None, appends: bool, before: int, epochs: list[int]
) -> None:
    table = tmp_path / "log.csv"
    table.write_bytes(b"epoch,loss\r\n0,0.5\r\n1,0.25\r\n0,0.75\r\n")
    strategy = SimpleNamespace(extended=SimpleNamespace(_id_in_cluster=1))
    setting: Any = SimpleNamespace(library="keras", report=Reporter(Link(None)), strategy=strategy)
    logger, saved = SimpleNamespace(filename=str(table), sep=",", append=appends), None
    if position is not None:
        saved = Position(position[0], 0)
        saved.tables = {"0": {"CSVLogger 0": 1}}
        if position[1] is not None:
            saved.tables["1"] = {"CSVLogger 0": position[1]}
    assert Saver(setting, Course(0), {"epochs": 3})._begin_table("CSVLogger 0", logger, saved) == before
    assert logger.append is appends
    assert [int(row[:1]) for row in table.read_bytes().splitlines()[1:]] == epochs


def test_workers_compare_in_training_as_often_as_takes_a_thousandth_of_the_time() -> None:
    here, there = Comparison(), Comparison()
    now, compared = 100.0, list[int]()
    for epoch in range(4, 120):
        if here.is_due(epoch, now):
            assert there.is_due(epoch, now)
            compared.append(epoch)
            rows = [here.numbers(epoch, now), there.numbers(epoch, now)]
            here.done(epoch, now, now + 0.5, rows)  # it takes 0.2 s, and one of them has waited for the other
            there.done(epoch, now + 0.3, now + 0.5, rows)
        else:
            assert not there.is_due(epoch, now), "all at the same epochs, or one would wait for ever"
        now += 10.0
    assert compared[:2] == [5, 6], "how long it takes is known from the first one"
    apart = [after - before for before, after in itertools.pairwise(compared[1:])]
    assert len(apart) == 5
    assert all(20 <= each <= 22 for each in apart), apart
    here.done(120, now, now, [])
    assert not here.is_due(10**9, now), "they are apart: it is said once"


class OfAReplica(Variable):
    """A moving average, which each replica has for itself."""

    def __init__(self, value: float) -> None:
        self.value, self.name = value, "moving"
        self.synchronization = type("Synchronization", (), {"name": "ON_READ"})()


def test_what_has_come_apart_is_named_and_a_replicas_own_averages_are_not_compared() -> None:
    def digests(rate: float, average: float, **given: bool) -> dict[str, int]:
        one, weight = Variable(), Variable()
        one.value, weight.name = rate, "kernel"
        groups = {"model": [weight, OfAReplica(average)], "optimizer.of_critic": [one]}
        groups["variables.0.counted"] = [OfAReplica(average)]
        return Hooks(memory(), lambda: groups).digests(**given)

    first = digests(0.1, 1.0, in_training=True)
    assert first == digests(0.1, 2.0, in_training=True)
    assert set(digests(0.1, 1.0)) == {"the weights", "the learning rate"}
    assert digests(0.1, 1.0)["the weights"] != digests(0.1, 2.0)["the weights"], (
        "a restart gives all the same"
    )
    rows = [[*map(float, each.values()), 0.1, 9.0] for each in (first, digests(0.05, 1.0, in_training=True))]
    names = ["worker:0", "worker:1"]
    assert said_apart(names, rows, list(first)) == "worker:1 differs from worker:0 in the learning rate"
    assert said_apart(names, rows[:1] * 2, list(first)) == ""

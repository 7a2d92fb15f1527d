"""A model whose shapes were changed since its checkpoint was saved: said before anything is restored."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task import main, this_task
from orchestrator.task.link import Link
from orchestrator.task.transparent import backup
from orchestrator.task.transparent.replay import Course
from orchestrator.task.transparent.saver import Saver
from tests.unit.task.test_fits import identity, restarted

WAY_OUT = ": `orch up --again` begins from scratch"


def variable(path: str, *shape: int) -> Any:
    return SimpleNamespace(path=path, shape=shape)


def model_of(*variables: Any, built: bool = True) -> Any:
    return SimpleNamespace(metrics_variables=[], variables=list(variables), optimizer=None, built=built)


@pytest.mark.parametrize(
    ("variables", "saved", "said"),
    [
        ([variable("conv1/kernel", 3, 3, 1, 16)], [(3, 3, 1, 8)], "conv1: 3x3x1x16, was 8"),
        ([variable("net/conv1/kernel", 5, 5, 1, 8)], [(3, 3, 1, 8)], "conv1: 5x5x1x8, was 3x3x1x8"),
        ([variable("net/scale", 4)], [(4, 2)], "net/scale: 4, was 4x2"),
        ([variable("scale")], [(2,)], "scale: a single number, was 2"),
        ([SimpleNamespace(shape=(16,), name="conv1/bias:0")], [(8,)], "conv1/bias: 16, was 8"),
        ([variable("same", 2), variable("out/kernel", 16, 2)], [(2,), (8, 2)], "out: 16x2, was 8"),
        ([variable("a", 2), variable("b", 2)], [(2,)], "2 variables, was 1"),
    ],
)
def test_what_differs_is_named(variables: list[Any], saved: list[tuple[int, ...]], said: str) -> None:
    np = pytest.importorskip("numpy")
    values = {f"model/{place:05d}": np.zeros(shape) for place, shape in enumerate(saved)}
    with pytest.raises(backup.Mismatch) as refused:
        backup.matched({"model": variables}, values, "model")
    assert str(refused.value) == f"the model has other shapes than the checkpoint ({said}){WAY_OUT}"


def begun(
    root: Path,
    patch: pytest.MonkeyPatch,
    mine: list[float],
    done: int = 1,
    script: str = "changed",
    *,
    seeded: bool = True,
) -> Saver:
    """Return the saver of the first fit of a run, after one whose only fit of three epochs was saved after `done`."""
    np = pytest.importorskip("numpy")
    patch.setenv("ORCH_SCRIPT", "as it was")
    setting = restarted(root, patch, (identity(), done, 3), seeded=seeded)
    setting.folder = str(Path(__file__).parent)
    position = setting.backups[0]
    values = {backup.STEPS: position.steps, "model/00000": np.zeros((3, 8))}
    backup.write(backup.folder(str(root), 0), values, position)
    patch.setenv("ORCH_SCRIPT", script)
    saver = Saver(setting, Course(0), {"epochs": 3})
    saver._identity = mine
    saver.fit = setting.number_of(mine, 3)
    saver._directory = backup.folder(str(root), saver.fit)
    return saver


def test_a_fit_whose_model_has_other_shapes_is_refused_before_anything_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(this_task, "link", SimpleNamespace(send=lambda line, **_: told.append(line)))
    saver = begun(tmp_path, monkeypatch, identity(model=1.0))
    assert saver.fit == 0
    saved = backup.read(backup.folder(str(tmp_path), 0))
    assert saved is not None
    with pytest.raises(backup.Mismatch, match="conv1: 3x16, was 8"), saver._restoring():
        saver._restore(model_of(variable("conv1/kernel", 3, 16)), saved[0], {})
    assert [(list(line), line["error"]["kind"]) for line in told] == [(["error"], "other-shapes")], (
        "no file is blamed"
    )


@pytest.mark.parametrize(
    ("changed", "fit"),
    [
        ({"mine": identity(model=1.0)}, 0),  # another learning rate, or another callback
        ({"mine": identity(model=1.0, weights=1.0)}, 0),
        ({"mine": identity(model=1.0, data=1.0), "seeded": False}, 0),  # the script draws its data anew
        ({"mine": identity(model=1.0, data=1.0)}, 1),  # another fit was put before it
        ({"mine": identity(call=1.0, model=1.0)}, 1),  # another function's
        ({"mine": identity(model=1.0), "done": 3}, 1),  # what comes after it
        ({"mine": identity(model=1.0), "script": "as it was"}, 1),  # the script draws its models
        ({"mine": identity()[1:]}, 1),  # of another version of orch
    ],
)
def test_a_changed_fit_goes_on_from_its_checkpoint_and_another_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], fit: int
) -> None:
    assert begun(tmp_path, monkeypatch, **changed).fit == fit


def test_only_the_first_fit_can_be_the_changed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = begun(tmp_path, monkeypatch, identity(call=1.0))._setting
    assert setting.number_of(identity(model=1.0), 3) == 2


def test_a_model_that_a_tuner_draws_is_not_the_changed_one_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner: dict[str, Any] = {"__name__": "keras_tuner.engine"}
    code = "def search(fit, *arguments): return fit(*arguments)"
    exec(compile(code, "/site-packages/keras_tuner/engine.py", "exec"), tuner)
    for call, fit in ((tuner["search"], 1), (lambda fit, *arguments: fit(*arguments), 0)):
        setting = begun(tmp_path, monkeypatch, identity(call=1.0))._setting
        setting._next = 1
        assert call(setting.number_of, identity(model=1.0), 3) == fit


class Number:
    """A variable of an optimizer."""

    shape, dtype = (), "float32"

    def __init__(self, path: str, value: float) -> None:
        self.path, self.value = path, value

    def numpy(self) -> float:
        return self.value


@pytest.mark.parametrize(
    ("before", "now", "restored", "said"),
    [
        (0.001, 0.05, 0.001, "sets learning_rate to 0.05 (before: 0.001), and the checkpoint's 0.001 has"),
        (0.001, 0.05, 0.0005, "sets learning_rate to 0.05 (before: 0.001), and the checkpoint's 0.0005 has"),
        (0.001, 0.001, 0.0005, ""),  # a callback had lowered it
        (0.001, 0.05, 0.05, ""),  # the optimizer is not restored
    ],
)
def test_a_value_that_the_script_has_changed_and_the_checkpoint_replaced_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: float, now: float, restored: float, said: str
) -> None:
    saver = begun(tmp_path, monkeypatch, identity(model=1.0))
    told: list[str] = []
    monkeypatch.setattr(saver._setting, "report", lambda kind, text: told.append(f"{kind}: {text}"))
    rate, name = Number("adam/learning_rate", now), "optimizer/learning_rate"
    model: Any = SimpleNamespace(
        metrics_variables=[], variables=[], optimizer=SimpleNamespace(variables=[rate])
    )
    assert backup.numbers_of_optimizers(backup.variables_of(model)) == {name: now}
    saver._set, rate.value = {name: now}, restored
    saver._tell_replaced(model, {name: before})
    assert len(told) == bool(said)
    assert not said or (said in told[0] and "LearningRateScheduler(lambda epoch: 0.05)" in told[0])


@pytest.mark.parametrize("group", ["optimizer", "rates"])
@pytest.mark.parametrize(
    ("before", "now", "lowered", "expected"), [(0.003, 0.001, 0.0003, 0.0001), (0.003, 0.003, 0.0003, 0.0003)]
)
def test_a_rate_that_a_callback_had_lowered_follows_the_number_of_replicas_as_the_script_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    before: float,
    now: float,
    lowered: float,
    expected: float,
) -> None:
    saver = begun(tmp_path, monkeypatch, identity(model=1.0))
    told: list[str] = []
    monkeypatch.setattr(saver._setting, "report", lambda kind, text: told.append(f"{kind}: {text}"))
    rate = Number("adam/learning_rate", now)
    own = [rate, Number("adam/momentum", 0.5)] if group == "optimizer" else []
    rate.assign = lambda _: None  # type: ignore[attr-defined]
    model: Any = SimpleNamespace(
        metrics_variables=[], variables=[], optimizer=SimpleNamespace(variables=own, learning_rate=rate)
    )
    saver._set = backup.numbers_of_optimizers(backup.variables_of(model))
    values: dict[str, Any] = {f"{group}/00000": lowered}
    values |= {"optimizer/00001": 0.25} if own else {}
    position = backup.Position(1, 0)
    position.replicas = 3
    position.set = {name: before if "learning_rate" in name else 0.9 for name in saver._set}
    saver._scale_rates(model, values, position)
    assert values.pop(f"{group}/00000") == pytest.approx(expected)
    assert list(values.values()) == [0.25] * bool(own)
    assert len(told) == (before != now)
    rate.value = expected
    saver._tell_replaced(model, position.set)
    assert not any(each.startswith("replaced: the script sets learning_rate") for each in told)


def test_the_optimizer_of_a_changed_fit_may_be_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np = pytest.importorskip("numpy")
    saver = begun(tmp_path, monkeypatch, identity(model=1.0))
    values, groups = {"optimizer/00000": np.zeros(3)}, {"optimizer": [variable("sgd/rate")]}
    with pytest.raises(backup.Mismatch):
        saver._assign(groups, values, "optimizer")
    saver._is_changed = True
    saver._assign(groups, values, "optimizer")
    with pytest.raises(backup.Mismatch):
        saver._assign({"model": [variable("sgd/rate")]}, {"model/00000": np.zeros(3)}, "model")


def test_a_backup_of_the_version_before_is_of_no_known_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_SCRIPT", "this one")
    text = backup.Position(1, 0).as_json()
    assert backup.Position.from_json(text).script == "this one"
    assert backup.Position.from_json('{"epoch": 1, "batch": 0}').script == ""


def test_no_traceback_is_printed_where_no_line_of_the_script_is_at_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(backup.Mismatch) as raised:
        raise backup.Mismatch("the model has other shapes")
    assert main._failed(Link(None), "other-shapes", raised.value, "train.py") == 1
    assert capsys.readouterr().err == "orch: the model has other shapes\n"

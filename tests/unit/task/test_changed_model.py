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


def test_the_fit_at_which_the_run_before_ended_is_not_begun_anew_with_other_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(this_task, "link", SimpleNamespace(send=lambda line, **_: told.append(line)))
    saver = begun(tmp_path, monkeypatch, identity(model=1.0))
    with pytest.raises(backup.Mismatch, match="conv1: 3x16, was 8"), saver._restoring():
        saver._check_changed(model_of(variable("conv1/kernel", 3, 16)))
    assert [(list(line), line["error"]["kind"]) for line in told] == [(["error"], "other-shapes")], (
        "no file is blamed"
    )


@pytest.mark.parametrize(
    ("changed", "model"),
    [
        (
            {"mine": identity(model=1.0)},
            model_of(variable("conv1/kernel", 3, 8)),
        ),  # another learning rate, say
        ({"mine": identity(model=1.0)}, model_of(built=False)),
        (
            {"mine": identity(call=1.0, model=1.0)},
            model_of(variable("conv1/kernel", 3, 16)),
        ),  # another function
        ({"mine": identity(model=1.0), "done": 3}, model_of(variable("conv1/kernel", 3, 16))),  # its next fit
        (
            {"mine": identity(model=1.0), "script": "as it was"},
            model_of(variable("conv1/kernel", 3, 16)),
        ),  # the script draws its models
        (
            {"mine": identity(model=1.0, data=1.0)},
            model_of(variable("conv1/kernel", 3, 16)),
        ),  # a fit put before it
    ],
)
def test_another_fit_begins_as_the_script_lets_it_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], model: Any
) -> None:
    saver = begun(tmp_path, monkeypatch, **changed)
    with saver._restoring():
        saver._check_changed(model)
    assert saver.fit == 1


def test_a_script_that_draws_its_data_may_have_changed_its_model_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = begun(tmp_path, monkeypatch, identity(model=1.0, data=1.0), seeded=False)
    with pytest.raises(backup.Mismatch):
        saver._check_changed(model_of(variable("conv1/kernel", 3, 16)))


def test_a_model_that_a_tuner_draws_is_not_the_script_s_changed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = begun(tmp_path, monkeypatch, identity(model=1.0))
    tuner: dict[str, Any] = {"__name__": "keras_tuner.engine"}
    exec(compile("def search(fit, model): fit(model)", "/site-packages/keras_tuner/engine.py", "exec"), tuner)
    tuner["search"](saver._check_changed, model_of(variable("conv1/kernel", 3, 16)))
    assert saver.fit == 1


def test_a_backup_of_the_version_before_is_of_no_known_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_SCRIPT", "this one")
    text = backup.Position(1, 0).as_json()
    assert backup.Position.from_json(text).script == "this one"
    assert backup.Position.from_json('{"epoch": 1, "batch": 0}').script == ""


def test_a_damaged_backup_does_not_end_a_fit_that_does_not_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = begun(tmp_path, monkeypatch, identity(model=1.0))
    Path(backup.folder(str(tmp_path), 0), backup.NAME).write_bytes(b"torn")
    saver._check_changed(model_of(variable("conv1/kernel", 3, 16)))
    assert saver.fit == 1


def test_no_traceback_is_printed_where_no_line_of_the_script_is_at_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(backup.Mismatch) as raised:
        raise backup.Mismatch("the model has other shapes")
    assert main._failed(Link(None), "other-shapes", raised.value, "train.py") == 1
    assert capsys.readouterr().err == "orch: the model has other shapes\n"

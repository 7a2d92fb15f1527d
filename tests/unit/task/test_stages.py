"""The stage of a task's process: told by its main thread's stack, and said before what holds Python's lock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.task import main, this_task
from orchestrator.task.link import Link
from orchestrator.task.progress import Progress
from orchestrator.task.stages import Stages
from orchestrator.task.transparent import replay

KERAS = "/lib/python3.11/site-packages/keras/src/backend/tensorflow/trainer.py"
SAVING = "/lib/python3.11/site-packages/keras/src/saving/saving_api.py"
TENSORFLOW = "/lib/python3.11/site-packages/tensorflow/python/"


class Sent(Link):
    """A link that keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(None)
        self.stages: list[str | None] = []
        self.passing: list[Any] = []

    def send(self, message: Any, wait_s: float = 0.0) -> bool:
        del wait_s
        self.stages.append(message["heartbeat"]["stage"])
        self.passing.append(message["heartbeat"].get("passing"))
        return True


def within(*places: tuple[str, str]) -> FrameType:
    """Return the frame in which a thread is that has called these functions, the outermost first."""
    here: list[FrameType] = []
    call: Callable[[], Any] = lambda: here.append(__import__("sys")._getframe())  # noqa: E731
    for path, name in reversed(places):
        made: dict[str, Any] = {"inner": call}
        exec(compile(f"def {name}():\n    inner()\n", path, "exec"), made)
        call = made[name]
    call()
    return here[0]


@pytest.mark.parametrize(
    ("stepped", "places", "stage"),
    [
        (False, [("train.py", "main")], "building"),
        (False, [("train.py", "main"), ("<frozen importlib._bootstrap>", "_load")], "importing"),
        (False, [("train.py", "main"), (KERAS, "fit")], "compiling"),
        (True, [("train.py", "main"), (KERAS, "fit")], "training"),
        (True, [("train.py", "main"), (KERAS, "fit"), (KERAS, "evaluate")], "evaluating"),
        (True, [("train.py", "main"), (KERAS, "fit"), (SAVING, "save_model")], "saving"),
        (True, [("train.py", "main")], "training"),
        (False, [("train.py", "fit")], "building"),
        (False, [("t.py", "main"), (f"{TENSORFLOW}eager/polymorphic_function.py", "__call__")], None),
        (False, [("t.py", "main"), (f"{TENSORFLOW}training/server_lib.py", "join")], None),
    ],
)
def test_the_stack_of_the_main_thread_tells_the_stage(
    monkeypatch: pytest.MonkeyPatch, stepped: bool, places: list[tuple[str, str]], stage: str | None
) -> None:
    progress = Progress(Link(None))
    progress.has_stepped = stepped
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", cast("Any", object()))
    frames = {threading.main_thread().ident: within(*places)}
    monkeypatch.setattr("orchestrator.task.stages.sys._current_frames", lambda: frames)
    assert Stages(Sent(), progress).now() == stage


def test_after_a_fit_nothing_is_said() -> None:
    stages = Stages(Sent(), Progress(Link(None)))
    stages._progress.has_stepped = stages._has_fitted = True
    assert stages.now() is None


def test_connecting_is_said_before_and_its_end_after_whatever_comes_of_it() -> None:
    link = Sent()
    stages = Stages(link, Progress(Link(None)))
    seen: list[list[str | None]] = []

    def connect() -> None:
        seen.append(list(link.stages))
        raise OSError

    with pytest.raises(OSError):
        stages.connecting(connect)()
    assert seen == [["connecting"]]
    assert link.stages[-1] != "connecting"


def test_batches_that_are_passed_over_are_told_with_each_heartbeat() -> None:
    link = Sent()
    stages = Stages(link, Progress(Link(None)))
    stages.send()
    with replay.Passing(90) as passing:
        stages.send()  # where nothing has to be read, nothing is passed over
        for _ in range(2):
            passing.done += 20
            stages.send()
    stages.send()
    assert link.passing == [None, None, {"done": 20, "total": 90}, {"done": 40, "total": 90}, None]


def test_a_heartbeat_goes_out_while_another_thread_imports_what_passes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, replay.__name__, ModuleType(replay.__name__))
    link = Sent()
    Stages(link, Progress(Link(None))).send()
    assert link.passing == [None]


def test_that_a_training_begins_is_no_step() -> None:
    progress = Progress(Link(None))
    progress.began(40)
    progress.report(40, {})
    assert not progress.has_stepped
    progress.report(41, {})
    progress.flush()
    assert progress.has_stepped


def test_the_heartbeat_goes_on_under_a_tf_config_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{'cluster': {}}")
    monkeypatch.setattr(this_task, "options", {"rescue": True})
    monkeypatch.setattr(this_task, "link", SimpleNamespace(say=lambda *_: None))
    monkeypatch.setattr(main, "INTERVAL_S", 0.0)
    sent: list[int] = []

    def send() -> None:
        sent.append(1)
        if len(sent) == 3:
            raise SystemExit

    progress = SimpleNamespace(catch_up=lambda: None, has_stepped=True)
    with pytest.raises(SystemExit):
        main._send(cast("Any", SimpleNamespace(send=send)), cast("Any", progress))

"""The hook in TensorFlow 1's sessions, with stand-ins for its modules; the real ones are in tests/cluster."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.keras import hooks

PACKAGE = "tensorflow.python.training"


class Told:
    """A Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.steps: list[int] = []

    def began(self, step: int) -> None:
        self.at = step if self.at is None else self.at

    def report(self, step: int, _metrics: object) -> None:
        self.steps.append(step)

    def flush(self) -> None:
        """Nothing is held back."""


class Session:
    """One that is at this step of the graph's only variable, if it has one."""

    def __init__(self, step: int) -> None:
        self.step = step

    def run(self, _fetched: object) -> int:
        return self.step


class MonitoredSession:
    """As TensorFlow's: it takes hooks, and calls them around each run."""

    def __init__(self, session_creator: Session, hooks: Any, should_recover: bool) -> None:
        self.session, self.hooks, self.recovers = session_creator, hooks, should_recover
        for hook in hooks:
            hook.begin()
            hook.after_create_session(self.session, None)

    def run(self, steps: int) -> None:
        asked = [hook.before_run(None) for hook in self.hooks]
        found = self.session.step  # what is fetched beside an optimizer may be the step before its own
        self.session.step += steps
        for hook, wants in zip(self.hooks, asked, strict=True):
            hook.after_run(None, SimpleNamespace(results=found if wants else None))

    def close(self) -> None:
        for hook in self.hooks:
            hook.end(self.session)


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The graph's global step; None for none."""
    held: dict[str, Any] = {"step": "global_step:0"}
    hook: Any = ModuleType(f"{PACKAGE}.session_run_hook")
    hook.SessionRunHook, hook.SessionRunArgs = object, lambda fetched: [fetched]
    util: Any = ModuleType(f"{PACKAGE}.training_util")
    util.get_global_step = util._get_or_create_global_step_read = lambda: held["step"]
    monkeypatch.setitem(sys.modules, hook.__name__, hook)
    monkeypatch.setitem(sys.modules, util.__name__, util)
    return held


def patched(told: Told) -> type[MonitoredSession]:
    class Fresh(MonitoredSession):
        """Its own class, since it is patched."""

    module: Any = SimpleNamespace(_MonitoredSession=Fresh)
    hooks.report_sessions(module, told)  # type: ignore[arg-type]
    return Fresh


@pytest.mark.usefixtures("graph")
def test_a_session_that_trains_reports_from_where_it_began_to_its_last_step() -> None:
    told = Told()
    session = patched(told)(Session(100), None, should_recover=True)
    for _ in range(3):
        session.run(1)
    session.close()
    assert (told.at, told.steps) == (100, [101, 102, 103])


@pytest.mark.usefixtures("graph")
def test_a_session_that_evaluates_reports_nothing() -> None:
    told = Told()
    session = patched(told)(Session(100), [], should_recover=True)
    session.run(0)
    session.close()
    assert (told.at, told.steps) == (None, [])


def test_a_graph_without_a_global_step_is_left_alone(graph: dict[str, Any]) -> None:
    graph["step"], told = None, Told()
    session = patched(told)(Session(5), [], should_recover=True)
    session.run(1)
    session.close()
    assert (told.at, told.steps) == (None, [])

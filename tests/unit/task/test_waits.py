"""The share of the time that a task waits: over windows, without a jump, and silent where nothing is timed."""

from __future__ import annotations

import pytest

from orchestrator.task.waits import DATA, Wait, Waits, _is_compiled


def test_a_share_is_that_of_the_last_window() -> None:
    wait = Wait()
    assert wait.share(0.0) is None
    wait.add(1.0)
    assert wait.share(10.0) is None, "one look tells no share"
    wait.add(1.0)
    assert wait.share(10.5) is None, "nor does a short window"
    assert wait.share(12.0) == pytest.approx(0.5)
    wait.add(2.0)
    assert wait.share(14.0) == pytest.approx(0.5 + 0.4 * 0.5)


def test_nothing_is_timed_where_steps_run_elsewhere() -> None:
    assert Waits().patches({"strategy": "parameter_server"}) == {}
    assert DATA in Waits().patches({})
    assert Waits().shares() == {}


def test_a_measurement_that_fails_is_said_once_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    waits = Waits()
    waits.input.add(1.0)
    waits.input.variables = [object()]
    assert waits.shares() == {}
    assert waits.shares() == {}
    assert capsys.readouterr().err.count("waits are not measured any more") == 1


class Asked:
    """Stands for a distributed variable: whatever is asked of it starts an all-reduce."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for while a graph was traced")

    def trace(self) -> bool:
        return _is_compiled()


class Function:
    """Has the name and the field of TensorFlow's function."""

    def __init__(self, compiled: bool) -> None:
        self._jit_compile = compiled

    def trace(self) -> bool:
        return _is_compiled()


def test_only_a_function_of_tensorflow_is_asked_whether_it_is_compiled() -> None:
    assert not Asked().trace()
    assert not Function(compiled=False).trace()
    assert Function(compiled=True).trace()

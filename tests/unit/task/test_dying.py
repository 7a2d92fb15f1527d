"""The trial of a script: its task ends as a crash does, once it has made its steps and saved something."""

from __future__ import annotations

from pathlib import Path

from orchestrator.task.trials.dying import Dying


def test_it_ends_at_the_step_after_one_at_which_something_is_saved(tmp_path: Path) -> None:
    ends: list[int] = []
    (tmp_path / "made-at-the-begin").mkdir()
    dying = Dying(10, str(tmp_path), lambda: ends.append(1))
    for step in range(1, 15):
        dying.stepped(step)
    assert not ends, "nothing is saved yet: it would prove nothing"
    (tmp_path / "made-at-the-begin/backup").write_bytes(b"x")
    dying.stepped(15)
    assert not ends, "the file may be half of one"
    dying.stepped(16)
    assert ends


def test_what_is_saved_before_the_steps_are_made_ends_nothing(tmp_path: Path) -> None:
    ends: list[int] = []
    (tmp_path / "backup").write_bytes(b"x")
    dying = Dying(10, str(tmp_path), lambda: ends.append(1))
    for step in range(1, 11):
        dying.stepped(step)
    assert not ends
    dying.stepped(11)
    assert ends

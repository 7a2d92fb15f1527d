from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.task.runtime_task import Task


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Callable[..., Task]]:
    """Starts a task from the text of a script."""
    started: list[Task] = []

    def start(source: str, *args: str, **options: Any) -> Task:
        script = tmp_path / "train.py"
        whole = tmp_path / "train.py.new"
        whole.write_text(source)
        whole.replace(script)  # a task that was started just before may be reading the file
        started.append(Task(script, *args, **options))
        return started[-1]

    yield start
    for each in started:
        each.close()

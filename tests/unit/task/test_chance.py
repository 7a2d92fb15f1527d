"""What workers draw alike: a script's names of its own, and nobody else's."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from orchestrator.task.transparent import chance


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uuid, uuid.uuid4.__name__, uuid.uuid4)
    monkeypatch.setenv("ORCH_RUN", "t-20260101-000000")


def drawn(file: Path, count: int) -> list[uuid.UUID]:
    """Return what a file with this path draws."""
    names: dict[str, list[uuid.UUID]] = {}
    source = f"import uuid\nfound = [uuid.uuid4() for _ in range({count})]\n"
    exec(compile(source, str(file), "exec"), names)
    return names["found"]


def test_the_names_that_a_script_draws_are_those_of_each_worker_and_of_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, script, library = uuid.uuid4, tmp_path / "train.py", Path("/usr/lib/python3/library.py")

    def worker() -> tuple[list[uuid.UUID], list[uuid.UUID]]:
        monkeypatch.setattr(uuid, "uuid4", original)
        chance.equal_names(str(tmp_path))
        between = drawn(library, 2)  # a library draws as often as it likes
        return drawn(script, 3), between

    (mine, others), (same, different) = worker(), worker()
    assert mine == same
    assert len({*mine, *others, *different}) == 3 + 2 + 2
    assert {each.version for each in mine} == {4}
    monkeypatch.setenv("ORCH_RUN", "t-20260102-000000")
    assert not {*worker()[0]} & {*mine}

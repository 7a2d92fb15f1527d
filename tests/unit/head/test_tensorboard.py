"""What is pulled of TensorBoard's files: only of tasks that the host has, and no more than the limits allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.state.run import Run, new_run
from orchestrator.head.links.conversation import Answer, Asks
from orchestrator.head.transfer import files, tensorboard
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.tasks import TaskFile
from orchestrator.protocol.paths import RelativePath
from tests.contract.small_disk import mounted
from tests.unit.core.transcript import make_plan

FILE = "train/a.tfevents.1"


class Host:
    """A host that says that it has these files, each as long as it is asked for."""

    def __init__(self, *found: TaskFile) -> None:
        self.files = list(found)

    def ask(self, order: Order[Any], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[Any]:
        assert (blob, timeout_s) == (b"", files.ASK_TIMEOUT_S)
        if order.verb.name == "files":
            return Answer({"files": self.files, "left_out": 0}, b"")
        return Answer({}, b"x" * order.fields["bytes_max"])


def file(task: str = "worker:0", path: str = FILE, generation: int = 2, size: int = 1000) -> TaskFile:
    return {
        "task": task,
        "generation": generation,
        "place": "logs",
        "path": RelativePath(path),
        "bytes": size,
    }


def make_run(limit: int = 1 << 30) -> Run:
    plan = replace(make_plan(["a", "b"], checkpoint=False), summary_bytes_max=limit)
    run = new_run("t-1", plan, epoch=1, at=0.0)
    return replace(run, tasks=tuple(replace(task, generation=2) for task in run.tasks))


def fetch(run: Run, directory: Path, **hosts: Host) -> dict[str, Any]:
    def lease(run: Run, name: str, use: Callable[[Asks], Any]) -> Any:
        assert run.host(name)
        return use(hosts[name])

    return tensorboard.fetch(run, str(directory), hosts, lease)


def held(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.fault(57)
def test_a_host_gives_only_files_of_its_own_tasks_and_of_no_generation_to_come(tmp_path: Path) -> None:
    liar = Host(
        file("worker:1"),
        file("worker:7"),
        file(generation=3, path="train/b.tfevents.1"),
        file(generation=1, path="train/old.tfevents.1"),
        file(),
    )
    answer = fetch(make_run(), tmp_path, a=liar, b=Host(file("worker:1", size=5)))
    assert answer["unreached"] == {}
    assert held(tmp_path) == {
        f"worker-0/{FILE}": 1000,
        "worker-0/train/old.tfevents.1": 1000,
        f"worker-1/{FILE}": 5,
    }


@pytest.mark.fault(57)
def test_of_a_task_no_more_is_pulled_than_its_limit_and_other_hosts_go_on(tmp_path: Path) -> None:
    run, huge = make_run(limit=50_000_000), Host(file(size=1 << 40))
    answers = [fetch(run, tmp_path, a=huge, b=Host(file("worker:1"))) for _ in range(5)]
    assert answers[-1]["unreached"] == {
        "a": "the head node has 64 MiB of worker:0 (run.summary_limit); the rest stays on a"
    }
    assert held(tmp_path) == {f"worker-0/{FILE}": 2 * tensorboard.SHARE_BYTES, f"worker-1/{FILE}": 1000}


@pytest.mark.fault(57)
def test_so_is_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "FILES_MAX", 3)
    many = Host(*(file(path=f"{number}.tfevents.1", size=1) for number in range(9)))
    answer = fetch(make_run(), tmp_path, a=many)
    assert answer["unreached"] == {"a": "the head node has 3 files of worker:0; the rest stays on a"}
    assert len(held(tmp_path)) == 3
    assert fetch(make_run(), tmp_path, a=Host(*many.files[:3]))["unreached"] == {}


@pytest.mark.fault(57)
def test_the_reserve_of_the_journal_is_left_free(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", megabytes=4) as small:
        (small.path / "big").write_bytes(b"x" * (4 * (1 << 20) - (150 << 10)))  # 5 % are 200 kB
        answer = fetch(make_run(), small.path, a=Host(file()))
        assert held(small.path).keys() == {"big"}
    assert "are reserved for the journal; the rest stays on a" in answer["unreached"]["a"]

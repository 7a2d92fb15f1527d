"""TensorBoard's files on a host: which they are, and that nothing else can be had by asking for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.adapters.host import summaries
from orchestrator.adapters.host.hostdir import HostFault, generation_dir
from orchestrator.core.model import Problem
from orchestrator.daemon.connection.link import OrderRefused
from orchestrator.daemon.transfer.tensorboard import place

RUN = "demo-20260101-000000"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    made = Path(summaries.log_dir(generation_dir(str(tmp_path), RUN, "worker:0", 2)))
    made.mkdir(parents=True)
    return made


def read(tmp_path: Path, path: str, offset: int = 0, bytes_max: int = 100) -> bytes:
    return summaries.read(str(tmp_path), RUN, "worker:0", 2, path, offset, bytes_max)


def test_events_and_profiles_are_listed_and_nothing_else(tmp_path: Path, logs: Path) -> None:
    (logs / "train").mkdir()
    (logs / "plugins/profile/now").mkdir(parents=True)
    (logs / "train/events.out.tfevents.1.a.2").write_bytes(b"12345")
    (logs / "plugins/profile/now/a.xplane.pb").write_bytes(b"1")
    (logs / "log.csv").write_bytes(b"rewritten by each generation")
    (logs / "secret.tfevents").symlink_to("/etc/passwd")
    of = {"task": "worker:0", "generation": 2}
    assert summaries.listing(str(tmp_path), RUN)["files"] == [
        {**of, "path": "plugins/profile/now/a.xplane.pb", "bytes": 1},
        {**of, "path": "train/events.out.tfevents.1.a.2", "bytes": 5},
    ]


def test_a_name_that_a_terminal_would_obey_does_not_travel(tmp_path: Path, logs: Path) -> None:
    for name in ("a.tfevents", "\x1b[2J.tfevents", "\u202e.tfevents", "ümläut 漢字.tfevents"):
        (logs / name).write_bytes(b"1")
    listed = summaries.listing(str(tmp_path), RUN)
    assert [file["path"] for file in listed["files"]] == ["a.tfevents", "ümläut 漢字.tfevents"]
    assert listed["left_out"] == 2


def test_a_piece_is_read_from_its_offset(tmp_path: Path, logs: Path) -> None:
    (logs / "a.tfevents").write_bytes(b"0123456789")
    assert read(tmp_path, "a.tfevents", offset=3, bytes_max=4) == b"3456"
    assert read(tmp_path, "a.tfevents", offset=10) == b""


@pytest.mark.parametrize("path", ["../start.json", "/etc/passwd", "link", "below/passwd", "", ".", "a\0b"])
def test_no_path_leads_out(tmp_path: Path, logs: Path, path: str) -> None:
    (logs.parent / "start.json").write_text("{}")
    (logs / "link").symlink_to("/etc/passwd")
    (logs / "below").symlink_to("/etc")
    with pytest.raises(HostFault, match="not a file of the run's logs"):
        read(tmp_path, path)


@pytest.mark.parametrize(
    ("task", "path"), [("worker:0", "../../x"), ("worker:0", "/x"), ("../x:0", "y"), ("worker:0", ".")]
)
def test_what_a_host_names_stays_in_the_runs_directory(task: str, path: str) -> None:
    with pytest.raises(OrderRefused) as refused:
        place("/state/runs/r/summaries", task, path)
    assert isinstance(refused.value.problem, Problem)


def test_generations_share_a_directory() -> None:
    assert place("/s", "worker:0", "train/events.tfevents.1") == "/s/worker-0/train/events.tfevents.1"

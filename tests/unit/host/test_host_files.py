"""The files of tasks on a host: which they are, and that nothing else can be had by asking for them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from orchestrator.both.hostdir import HostFault, generation_dir
from orchestrator.head.transfer import tensorboard
from orchestrator.host.system import files, workdir
from orchestrator.protocol.check import Misfit, check_of
from orchestrator.protocol.orders.tasks import TaskFile
from tests.protocol_values import valid

RUN = "demo-20260101-000000"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    made = Path(files.log_dir(generation_dir(str(tmp_path), RUN, "worker:0", 2)))
    made.mkdir(parents=True)
    return made


def read(tmp_path: Path, path: str, offset: int = 0, bytes_max: int = 100, place: str = "logs") -> bytes:
    wish = {"run": RUN, "task": "worker:0", "generation": 2, "place": place, "path": path}
    return files.read(str(tmp_path), wish, offset, bytes_max)


def test_events_and_profiles_are_listed_and_nothing_else(tmp_path: Path, logs: Path) -> None:
    (logs / "train").mkdir()
    (logs / "plugins/profile/now").mkdir(parents=True)
    (logs / "train/events.out.tfevents.1.a.2").write_bytes(b"12345")
    (logs / "plugins/profile/now/a.xplane.pb").write_bytes(b"1")
    (logs / "log.csv").write_bytes(b"rewritten by each generation")
    (logs / "secret.tfevents").symlink_to("/etc/passwd")
    of = {"task": "worker:0", "generation": 2, "place": "logs"}
    assert files.listing(str(tmp_path), RUN, "summaries")["files"] == [
        {**of, "path": "plugins/profile/now/a.xplane.pb", "bytes": 1},
        {**of, "path": "train/events.out.tfevents.1.a.2", "bytes": 5},
    ]


def test_a_name_that_a_terminal_would_obey_does_not_travel(tmp_path: Path, logs: Path) -> None:
    for name in ("a.tfevents", "\x1b[2J.tfevents", "\u202e.tfevents", "ümläut 漢字.tfevents"):
        (logs / name).write_bytes(b"1")
    listed = files.listing(str(tmp_path), RUN, "summaries")
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
    with pytest.raises(HostFault, match="not a file of the run's tasks"):
        read(tmp_path, path)


@pytest.mark.parametrize(
    ("task", "path"), [("worker:0", "../../x"), ("worker:0", "/x"), ("../x:0", "y"), ("worker:0", ".")]
)
def test_what_a_host_names_stays_in_the_runs_directory(task: str, path: str) -> None:
    file = {**valid(TaskFile), "task": task, "path": path}
    with pytest.raises(Misfit, match=r"is no path below a directory|not a task"):
        check_of(TaskFile)(file)


def test_generations_share_a_directory() -> None:
    file = {**valid(TaskFile), "task": "worker:0", "path": "train/events.tfevents.1", "generation": 7}
    assert tensorboard.place(check_of(TaskFile)(file)) == "worker-0/train/events.tfevents.1"


# ---------------------------------------------------------------- the working directory


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "runs" / RUN / "code" / "first"
    (made / "lib").mkdir(parents=True)
    (made / "train.py").write_text("one")
    (made / "lib/data.csv").write_text("1,2,3")
    (made / "run.sh").write_text("#!/bin/sh")
    (made / "run.sh").chmod(0o755)
    return made


@pytest.fixture
def work(tmp_path: Path, logs: Path, tree: Path) -> Path:
    assert logs.is_dir()
    return Path(workdir.prepare(str(tmp_path), RUN, "worker:0", str(tree)))


def left(tmp_path: Path) -> list[str]:
    return [path for path, _ in workdir.left(str(tmp_path), RUN, "worker:0")]


def test_the_code_is_copied_once_and_what_the_script_writes_stays(
    tmp_path: Path, work: Path, tree: Path
) -> None:
    assert (work / "lib/data.csv").read_text() == "1,2,3"
    assert (work / "run.sh").stat().st_mode & 0o777 == 0o755
    assert left(tmp_path) == []
    (work / "model.keras").write_bytes(b"weights")
    (work / "lib/data.csv").write_text("changed by the script")
    (work / "__pycache__").mkdir()
    (work / "__pycache__/train.pyc").write_bytes(b"Python's own")
    workdir.prepare(str(tmp_path), RUN, "worker:0", str(tree))
    assert (work / "lib/data.csv").read_text() == "changed by the script"
    assert (tree / "lib/data.csv").read_text() == "1,2,3"
    assert sorted(left(tmp_path)) == ["lib/data.csv", "model.keras"]


def test_what_the_chief_has_too_is_not_left(tmp_path: Path, work: Path) -> None:
    (work / "models/exported").mkdir(parents=True)
    for name in ("own.csv", "models/best.keras", "models/exported/saved_model.pb"):
        (work / name).write_text("written")
    Path(f"{work}.doubles").write_text("models/best.keras\nmodels/exported\n../logs\n")
    assert left(tmp_path) == ["own.csv"]


def test_another_code_replaces_the_one_before_but_nothing_of_the_script(tmp_path: Path, work: Path) -> None:
    (work / "model.keras").write_bytes(b"weights")
    second = tmp_path / "runs" / RUN / "code" / "second"
    second.mkdir()
    (second / "train.py").write_text("two")
    workdir.prepare(str(tmp_path), RUN, "worker:0", str(second))
    assert sorted(path.name for path in work.iterdir() if path.is_file()) == ["model.keras", "train.py"]
    assert (work / "train.py").read_text() == "two"
    assert left(tmp_path) == ["model.keras"]


def test_a_file_of_the_code_that_the_script_has_rewritten_is_the_scripts(tmp_path: Path, work: Path) -> None:
    (work / "lib/data.csv").write_text("what three days have found")
    second = tmp_path / "runs" / RUN / "code" / "second"
    second.mkdir()
    (second / "train.py").write_text("two")
    workdir.prepare(str(tmp_path), RUN, "worker:0", str(second))
    assert left(tmp_path) == ["lib/data.csv"]
    assert (work / "lib/data.csv").read_text() == "what three days have found"
    assert not (work / "run.sh").exists(), "nobody has changed it, and the new code does not have it"


@pytest.mark.fault(68)
def test_code_that_a_power_cut_left_empty_there_is_copied_again(
    tmp_path: Path, work: Path, tree: Path
) -> None:
    (work / "train.py").write_bytes(b"")
    workdir.prepare(str(tmp_path), RUN, "worker:0", str(tree))
    assert (work / "train.py").read_text() == "one"
    (work / "train.py").unlink()  # a script may do so
    workdir.prepare(str(tmp_path), RUN, "worker:0", str(tree))
    assert not (work / "train.py").exists()


def test_what_was_left_is_listed_and_read_with_its_digest_but_no_links(tmp_path: Path, work: Path) -> None:
    (work / "model.keras").write_bytes(b"weights")
    (work / "passwd").symlink_to("/etc/passwd")
    (work / "\x1b[2J").write_bytes(b"1")
    found = files.listing(str(tmp_path), RUN, "outputs")
    model = {"task": "worker:0", "generation": 2, "place": "work", "path": "model.keras", "bytes": 7}
    assert found == {"files": [model], "left_out": 2}
    assert read(tmp_path, "model.keras", place="work") == b"weights"
    digest = files.digest(str(tmp_path), {"run": RUN, **model})
    assert digest == {"sha256": hashlib.sha256(b"weights").hexdigest(), "bytes": 7}
    with pytest.raises(HostFault, match="not a file of the run's tasks"):
        files.digest(str(tmp_path), {"run": RUN, **model, "path": "passwd"})


def test_tensorboards_files_below_the_working_directory_are_found_too(tmp_path: Path, work: Path) -> None:
    (work / "logs/train").mkdir(parents=True)
    (work / "logs/train/events.out.tfevents.1.a.2").write_bytes(b"12345")
    (work / "logs/plugins/profile/now").mkdir(parents=True)
    (work / "logs/plugins/profile/now/a.xplane.pb").write_bytes(b"1")
    (work / "model.keras").write_bytes(b"weights")
    listed = files.listing(str(tmp_path), RUN, "summaries")["files"]
    assert [(file["place"], file["path"]) for file in listed] == [
        ("work", "logs/plugins/profile/now/a.xplane.pb"),
        ("work", "logs/train/events.out.tfevents.1.a.2"),
    ]


@pytest.mark.fault(95)
def test_a_task_with_more_files_than_are_listed_leaves_room_for_the_other_tasks(
    tmp_path: Path, work: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(files.log_dir(generation_dir(str(tmp_path), RUN, "worker:1", 2))).mkdir(parents=True)
    other = Path(workdir.prepare(str(tmp_path), RUN, "worker:1", str(tree)))
    for number in range(9):
        (work / f"{number}.csv").write_bytes(b"1")
    (other / "model.keras").write_bytes(b"weights")
    monkeypatch.setattr(files, "FILES_MAX", 3)
    found = files.listing(str(tmp_path), RUN, "outputs")
    assert [(file["task"], file["path"]) for file in found["files"]] == [
        ("worker:0", "0.csv"),
        ("worker:0", "1.csv"),
        ("worker:1", "model.keras"),
    ]
    assert found["left_out"] == 7


def test_a_listing_is_bounded(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        (work / f"{number}.csv").write_bytes(b"1")
    monkeypatch.setattr(files, "FILES_MAX", 3)
    found = files.listing(str(tmp_path), RUN, "outputs")
    assert (len(found["files"]), found["left_out"]) == (3, 6)


def test_what_a_generation_has_saved_is_listed_and_read_and_nothing_beside_it(tmp_path: Path) -> None:
    saved = tmp_path / "ckpt/gen-000002"
    (saved / "backup").mkdir(parents=True)
    (saved / "best.keras").write_bytes(b"0123")
    (saved / "backup/latest.weights.h5").write_bytes(b"1")
    (saved / "link").symlink_to("/etc/passwd")
    (tmp_path / "ckpt/secret").write_text("of another")
    wish = {"dir": str(saved), "task": "worker:0", "generation": 2}
    listed = files.listing(
        str(tmp_path), RUN, "saved", {"dir": str(saved), "task": "worker:0", "generation": 2}
    )
    of = {"task": "worker:0", "generation": 2, "place": "saved"}
    assert listed == {
        "files": [
            {**of, "path": "backup/latest.weights.h5", "bytes": 1},
            {**of, "path": "best.keras", "bytes": 4},
        ],
        "left_out": 1,
    }
    named = {"run": RUN, **of, "dir": wish["dir"]}
    assert files.read(str(tmp_path), {**named, "path": "best.keras"}, 1, 2) == b"12"
    for path in ("../secret", "link", "/etc/passwd"):
        with pytest.raises(HostFault, match="not a file of the run's tasks"):
            files.digest(str(tmp_path), {**named, "path": path})

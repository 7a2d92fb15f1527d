"""The snapshot of a working directory: what was there is kept, shared, compared with, and removed."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.tree_digest import digest_of
from orchestrator.core.errors import Refused, SpecError
from orchestrator.core.plan import Plan
from orchestrator.head.code import codetree, snapshots
from orchestrator.head.code.snapshots import Snapshots, code_in
from orchestrator.reporting.code_changes import FileChange, changes, sentence
from tests.unit.core.transcript import make_plan


def plan_of(tmp_path: Path, files: dict[str, bytes]) -> tuple[Plan, Path]:
    workdir = tmp_path / "work"
    for name, data in files.items():
        (workdir / name).parent.mkdir(parents=True, exist_ok=True)
        (workdir / name).write_bytes(data)
    return replace(make_plan(["a"], checkpoint=False), workdir=str(workdir), script="train.py"), workdir


def store(tmp_path: Path) -> Snapshots:
    return Snapshots(str(tmp_path / "state"))


def kept(tmp_path: Path, files: dict[str, bytes], run: str = "t-1") -> Path:
    plan, workdir = plan_of(tmp_path, files)
    store(tmp_path).keep(run, store(tmp_path).take(plan).digest)
    return workdir


def since(tmp_path: Path, run: str = "t-1") -> list[FileChange]:
    old = store(tmp_path).code_of(run)
    assert old is not None
    workdir = str(tmp_path / "work")
    new = code_in(workdir, codetree.manifest(workdir))
    return changes(old.files, old.text, new.files, new.text)


def make_old(tmp_path: Path) -> None:
    """Let all that is there have been taken long ago."""
    for path in (tmp_path / "state/code/trees").iterdir():
        os.utime(path, (1, 1))


def blobs(tmp_path: Path) -> set[bytes]:
    return {path.read_bytes() for path in (tmp_path / "state/code/blobs").iterdir()}


def test_a_snapshot_is_a_copy_of_everything_and_has_the_digest_of_the_tree(tmp_path: Path) -> None:
    plan, workdir = plan_of(tmp_path, {"train.py": b"a", "lib/b.py": b"b", "run.sh": b"c"})
    (workdir / "run.sh").chmod(0o755)
    (workdir / "out").mkdir()
    (workdir / "main.py").symlink_to("lib/b.py")
    taken = store(tmp_path).take(plan)
    assert taken.digest == digest_of(codetree.manifest(str(workdir)))
    (workdir / "train.py").write_bytes(b"edited in place")
    (workdir / "lib/b.py").unlink()
    there = Path(taken.directory)
    assert (there / "train.py").read_bytes() == b"a"
    assert (there / "main.py").resolve() == (there / "lib/b.py").resolve()
    assert (there / "out").is_dir()
    assert {file.path: taken.content(file) for file in taken.files if file.path != "out"} == {
        "train.py": b"a",
        "lib/b.py": b"b",
        "run.sh": b"c",
        "main.py": b"lib/b.py",
    }


@pytest.mark.fault(113)
def test_a_file_that_grows_all_the_time_is_taken_as_it_was_and_named(tmp_path: Path) -> None:
    plan, workdir = plan_of(tmp_path, {"train.py": b"a", "run.log": b"0 1 2 3\n" * 100_000})
    ended = threading.Event()

    def write() -> None:
        with (workdir / "run.log").open("ab", buffering=0) as log:
            while not ended.is_set():
                log.write(b"4 5 6 7\n" * 1000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(100):  # on a busy machine the writer may not come to write while the file is read
            taken = store(tmp_path).take(plan)
            if len(taken.remarks) > 1:
                break
    finally:
        ended.set()
        writer.join()
    (log,) = [file for file in taken.files if file.path == "run.log"]
    whole = (workdir / "run.log").read_bytes()
    assert taken.content(log) == whole[: log.size], "its beginning, as it was"
    assert 800_000 <= log.size <= len(whole)
    assert "changed while it was read, and is taken as it was then: run.log" in taken.remarks


@pytest.mark.fault(113)
def test_a_file_that_is_removed_meanwhile_is_left_out_and_named(tmp_path: Path) -> None:
    plan, workdir = plan_of(tmp_path, {"train.py": b"a", ".train.py.swp": b"b", "z.py": b"z"})
    seen = codetree.survey(str(workdir))
    (workdir / ".train.py.swp").unlink()
    taken = store(tmp_path).take(plan, seen)
    assert [file.path for file in taken.files] == ["train.py", "z.py"]
    assert "removed while the tree was read, and left out: .train.py.swp" in taken.remarks


@pytest.mark.fault(113)
def test_a_script_that_is_removed_meanwhile_is_an_error_and_no_empty_run(tmp_path: Path) -> None:
    plan, workdir = plan_of(tmp_path, {"train.py": b"a", "z.py": b"z"})
    seen = codetree.survey(str(workdir))
    (workdir / "train.py").unlink()
    with pytest.raises(SpecError, match=r"run\.script: train\.py was removed while the tree was read"):
        store(tmp_path).take(plan, seen)
    assert not (tmp_path / "state/code/trees").exists() or not list((tmp_path / "state/code/trees").iterdir())


@pytest.mark.fault(113)
def test_a_file_that_became_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    plan, workdir = plan_of(tmp_path, {"train.py": b"a", "z.py": b"z"})
    seen = codetree.survey(str(workdir))
    (workdir / "z.py").unlink()
    os.mkfifo(workdir / "z.py")
    assert [file.path for file in store(tmp_path).take(plan, seen).files] == ["train.py"]


def test_runs_share_contents_and_what_no_run_needs_is_removed(tmp_path: Path) -> None:
    workdir = kept(tmp_path, {"train.py": b"a", "data.bin": b"\0data"})
    (workdir / "train.py").write_bytes(b"b")
    plan, _ = plan_of(tmp_path, {})
    store(tmp_path).keep("t-2", store(tmp_path).take(plan).digest)
    assert blobs(tmp_path) == {b"a", b"b", b"\0data"}, "the data is there once"
    make_old(tmp_path)
    store(tmp_path).tidy({"t-1", "t-2"})
    assert blobs(tmp_path) == {b"a", b"b", b"\0data"}
    store(tmp_path).forget("t-1")
    store(tmp_path).tidy({"t-2"})
    assert blobs(tmp_path) == {b"b", b"\0data"}
    store(tmp_path).tidy(set())  # t-2 has ended: its texts stay for `orch diff`
    assert blobs(tmp_path) == {b"b"}
    assert since(tmp_path, "t-2") == []
    store(tmp_path).forget("t-2")
    store(tmp_path).tidy(set())
    assert blobs(tmp_path) == set()
    assert list((tmp_path / "state/code/trees").iterdir()) == []


def test_the_code_of_a_run_whose_record_cannot_be_read_now_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path, {"train.py": b"a"})
    make_old(tmp_path)
    whole = os.open

    def opens(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith("runs/t-1.json"):
            raise OSError(errno.EMFILE, "Too many open files")
        return whole(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr("os.open", opens)
        with pytest.raises(OSError, match="Too many open files"):
            store(tmp_path).tidy({"t-1"})
    assert blobs(tmp_path) == {b"a"}
    assert since(tmp_path, "t-1") == []


def test_many_take_and_keep_the_same_snapshot_at_once(tmp_path: Path) -> None:
    """A coordinator prepares all hosts at the same time, for several runs of one directory."""
    plan, _ = plan_of(tmp_path, {"train.py": b"print(1)", **{f"{number}.txt": b"x" for number in range(30)}})

    def begin(number: int) -> str:
        digest = store(tmp_path).take(plan).digest
        return store(tmp_path).keep(f"t-{number}", digest).digest

    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(begin, range(48)))) == 1


def test_a_snapshot_that_was_just_taken_stays_until_its_run_is_there(tmp_path: Path) -> None:
    workdir = kept(tmp_path, {"train.py": b"a", "data.bin": b"\0data"})
    plan, _ = plan_of(tmp_path, {})
    make_old(tmp_path)
    store(tmp_path).tidy(set())
    assert blobs(tmp_path) == {b"a"}, "its run has ended"
    again = store(tmp_path).take(plan)  # the same code, for a run that does not exist yet
    store(tmp_path).tidy(set())
    store(tmp_path).keep("t-2", again.digest)
    assert (Path(again.directory) / "data.bin").read_bytes() == b"\0data"
    assert (workdir / "data.bin").stat().st_nlink == 1, "what a person edits is never linked"


def test_nothing_is_removed_while_a_snapshot_is_taken(tmp_path: Path) -> None:
    kept(tmp_path, {"train.py": b"a"})
    store(tmp_path).forget("t-1")
    make_old(tmp_path)
    handle = os.open(tmp_path / "state/code", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    store(tmp_path).tidy(set())
    assert blobs(tmp_path) == {b"a"}
    os.close(handle)
    store(tmp_path).tidy(set())
    assert blobs(tmp_path) == set()


def test_what_a_command_holds_while_it_waits_is_whole_when_its_run_begins(tmp_path: Path) -> None:
    """Pods may be waited for for hours, while other runs end."""
    plan, workdir = plan_of(tmp_path, {"train.py": b"a", "data.bin": b"\0data"})
    taken = store(tmp_path).take(plan)
    store(tmp_path).keep("t-1", taken.digest)
    for path in workdir.iterdir():
        path.write_bytes(b"of no run")
    store(tmp_path).take(plan)
    make_old(tmp_path)
    with store(tmp_path).held():
        store(tmp_path).tidy(set())  # t-1 ends
        with ThreadPoolExecutor(1) as others:  # who would wait for the lock does not come back
            others.submit(store(tmp_path).take, plan).result(timeout=10)
        kept = store(tmp_path).keep("t-2", taken.digest)
    assert {file.path: kept.content(file) for file in kept.files} == {"train.py": b"a", "data.bin": b"\0data"}
    make_old(tmp_path)
    store(tmp_path).tidy({"t-2"})
    assert blobs(tmp_path) == {b"a", b"\0data"}, "what was left then goes later"


def test_a_snapshot_that_is_not_there_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not there") as caught:
        store(tmp_path).keep("t-1", "0" * 64)
    assert caught.value.hint == "`orch up` again"
    assert store(tmp_path).snapshot_of("t-1") is None


@pytest.mark.parametrize("damage", [b"", b'{"digest": 1}', b"[]", b'{"digest": "a", "files": [[1]]}'])
def test_a_damaged_record_is_not_known(tmp_path: Path, damage: bytes) -> None:
    kept(tmp_path, {"train.py": b"a"})
    Path(store(tmp_path).record_of("t-1")).write_bytes(damage)
    assert store(tmp_path).code_of("t-1") is None


def test_what_has_changed_is_counted_and_shown_line_by_line(tmp_path: Path) -> None:
    files = {
        "train.py": b"a\nb\nc\n",
        "old.py": b"x\n",
        "data.bin": b"\0\1",
        "lib/same.py": b"s",
        "run.sh": b"r",
    }
    workdir = kept(tmp_path, files)
    (workdir / "main.py").symlink_to("train.py")
    assert [one.sentence for one in since(tmp_path)] == ["main.py: added, 1 line"]
    (workdir / "main.py").unlink()
    (workdir / "train.py").write_bytes(b"a\nB\nc\nd\n")
    (workdir / "old.py").unlink()
    (workdir / "new.py").write_bytes(b"1\n2\n")
    (workdir / "data.bin").write_bytes(b"\0\2")
    (workdir / "run.sh").chmod(0o755)
    found = {one.path: one for one in since(tmp_path)}
    assert sentence(list(found.values())) == (
        "data.bin: changed, new.py: added, 2 lines, old.py: removed, 1 line, run.sh: its mode, train.py: 2 lines"
    )
    assert (found["train.py"].added, found["train.py"].removed) == (2, 1)
    assert found["train.py"].lines[:3] == ("--- a/train.py", "+++ b/train.py", "@@ -1,3 +1,4 @@")


def test_what_is_kept_of_an_ended_run_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "TEXTS_BYTES_MAX", 10)
    kept(tmp_path, {"train.py": b"12345678", "z.py": b"1234567z"})
    make_old(tmp_path)
    store(tmp_path).tidy(set())
    old = store(tmp_path).code_of("t-1")
    assert old is not None
    texts = [old.text("train.py"), old.text("z.py")]
    assert (texts, sorted(old.files)) == (["12345678", None], ["train.py", "z.py"])


def test_what_was_thinned_is_not_read_again_until_a_run_has_made_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end of a run tidies, and whoever keeps a snapshot waits for that."""
    read: list[str] = []

    def text(path: str) -> str | None:
        read.append(os.path.basename(path))
        return _text(path)

    _text = snapshots._text
    monkeypatch.setattr(snapshots, "_text", text)
    kept(tmp_path, {"train.py": b"a", "data.bin": b"\0data"})
    for _ in range(2):
        make_old(tmp_path)
        store(tmp_path).tidy(set())
    assert (sorted(read), blobs(tmp_path)) == (["data.bin", "train.py"], {b"a"})
    plan, _ = plan_of(tmp_path, {})
    store(tmp_path).keep("t-2", store(tmp_path).take(plan).digest)
    assert blobs(tmp_path) == {b"a", b"\0data"}
    make_old(tmp_path)
    store(tmp_path).tidy({"t-2"})
    assert (len(read), blobs(tmp_path)) == (2, {b"a", b"\0data"})
    store(tmp_path).tidy(set())
    assert (len(read), blobs(tmp_path)) == (4, {b"a"})
    for run in ("t-1", "t-2"):
        store(tmp_path).forget(run)
    store(tmp_path).tidy(set())
    assert list((tmp_path / "state/code/trees").iterdir()) == []

"""The code of a run that is kept, and what has changed since, file by file."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.head.code import codetree
from orchestrator.head.records import code_record
from orchestrator.reporting.code_changes import FileChange, changes, sentence


def kept(tmp_path: Path, files: dict[str, bytes]) -> Path:
    workdir = tmp_path / "work"
    for name, data in files.items():
        (workdir / name).parent.mkdir(parents=True, exist_ok=True)
        (workdir / name).write_bytes(data)
    (tmp_path / "run").mkdir()
    code_record.keep(str(tmp_path / "run"), str(workdir), codetree.manifest(str(workdir)))
    return workdir


def since(tmp_path: Path) -> list[FileChange]:
    old = code_record.read(str(tmp_path / "run"))
    assert old is not None
    workdir = str(tmp_path / "work")
    new = code_record.of_workdir(workdir, codetree.manifest(workdir))
    return changes(old.files, old.text, new.files, new.text)


def test_what_has_changed_is_counted_and_shown_line_by_line(tmp_path: Path) -> None:
    files = {
        "train.py": b"a\nb\nc\n",
        "old.py": b"x\n",
        "data.bin": b"\0\1",
        "lib/same.py": b"s",
        "run.sh": b"r",
    }
    workdir = kept(tmp_path, files)
    assert since(tmp_path) == []
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


def test_what_is_kept_is_bounded_and_the_first_that_was_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_record, "TEXTS_BYTES_MAX", 10)
    workdir = kept(tmp_path, {"a.py": b"12345678", "b.py": b"12345678"})
    old = code_record.read(str(tmp_path / "run"))
    assert old is not None
    assert (old.text("a.py"), old.text("b.py"), sorted(old.files)) == ("12345678", None, ["a.py", "b.py"])
    (workdir / "a.py").write_bytes(b"other")
    code_record.keep(str(tmp_path / "run"), str(workdir), codetree.manifest(str(workdir)))
    assert [one.sentence for one in since(tmp_path)] == ["a.py: 1 line"]


@pytest.mark.parametrize("damage", [b"", b"PK\3\4 cut off"])
def test_a_damaged_record_is_not_known(tmp_path: Path, damage: bytes) -> None:
    kept(tmp_path, {"a.py": b"a"})
    (tmp_path / "run/code.zip").write_bytes(damage)
    assert code_record.read(str(tmp_path / "run")) is None
    code_record.remove(str(tmp_path / "run"))
    assert code_record.read(str(tmp_path / "run")) is None

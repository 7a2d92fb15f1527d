"""Tests that failed beside others run once more: what that lets pass, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import alone

TESTS = """
def test_good():
    pass


def test_bad():
    assert False
"""


@pytest.mark.parametrize(
    ("failed", "code", "said"),
    [
        (["test_x.py::test_good"], 0, "PASSES ALONE ONLY, to be mended: test_x.py::test_good"),
        (["test_x.py::test_good", "test_x.py::test_bad"], 1, "FAILED TWICE: test_x.py::test_bad"),
        (["test_x.py"], 1, ""),  # it could not be collected: what it holds did not run
        ([f"test_x.py::test_good[{number}]" for number in range(alone.MOST + 1)], 1, ""),
        ([], 1, ""),  # nothing is known of what was wrong
    ],
)
def test_what_runs_once_more(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failed: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test_x.py").write_text(TESTS)
    alone.LASTFAILED.parent.mkdir(parents=True)
    alone.LASTFAILED.write_text(json.dumps(dict.fromkeys(failed, True)))
    assert alone.main() == code
    assert said in capsys.readouterr().out


def test_what_passes_alone_is_a_line_of_the_log_and_fails_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test_x.py").write_text(TESTS + "\n\ndef test_other():\n    pass\n")
    alone.LASTFAILED.parent.mkdir(parents=True)

    def main(*failed: str) -> tuple[int, str]:
        alone.LASTFAILED.write_text(json.dumps(dict.fromkeys(failed, True)))
        return alone.main(), capsys.readouterr().out

    good, bad, other = (f"test_x.py::test_{name}" for name in ("good", "bad", "other"))
    assert main(good, bad)[0] == 1
    (line,) = map(json.loads, alone.FLAKES.read_text().splitlines())
    assert line.keys() == {"test", "at", "load", "cores", "commit"}
    assert (line["test"], line["load"] >= 0) == (good, True)
    assert main(other)[0] == 0, "another test has its own count"
    code, said = main(good)
    assert code == 1
    assert (
        f"PASSES ALONE ONLY, 2 times now, and fails until it is mended (build/flakes.jsonl): {good}" in said
    )
    assert "2 tests passed alone only, 3 times in all:" in said
    assert f"  2 {good}\n  1 {other}\n" in said
    alone.FLAKES.write_text("")  # mended
    assert main(good)[0] == 0


def test_what_does_not_end_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(alone, "TIMEOUT_S", 1.5)
    Path("test_x.py").write_text("import time\n\n\ndef test_hangs():\n    time.sleep(60)\n")
    alone.LASTFAILED.parent.mkdir(parents=True)
    alone.LASTFAILED.write_text(json.dumps({"test_x.py::test_hangs": True}))
    assert alone.main() == 1

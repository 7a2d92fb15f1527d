"""The table of faults is whole: no row has lost its test, and the page is what one run of the tests makes of it."""

from __future__ import annotations

import subprocess
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import is_gap
from tests.faults import freshness, page, results
from tests.faults.__main__ import PAGE
from tests.faults.results import Results, TestResult, outcome_of, slowest
from tests.faults.rows import LAST, Row, load, marked, marked_in


class PageIsOldWarning(UserWarning):
    """docs/faults.md speaks of other sources than these. `make release-check` fails where this warns."""


def ran(outcome: str, *rows: int, tensorflow: bool = False, **measured: float) -> TestResult:
    return TestResult(
        rows or (1,), outcome, 1.0, tensorflow=tensorflow, why="no lab", measured=measured or None
    )


def a_run(tests: dict[str, TestResult], commit: str = "0" * 40) -> Results:
    machine = {"cores": 2, "kernel": "Linux 6", "python": "3.11", "tensorflow": "2.20"}
    return Results(commit, "2026-01-01T00:00:00Z", 60.0, machine, {"begin": 0.1, "end": 0.2}, tests)


# The table


def test_every_row_is_there_once_and_in_order() -> None:
    numbers = [row.number for row in load()]
    assert numbers == sorted(set(numbers))
    assert numbers[:LAST] == list(range(1, LAST + 1))


@pytest.mark.parametrize("row", load(), ids=lambda row: str(row.number))
def test_a_row_has_a_test_or_says_that_it_has_none(row: Row) -> None:
    claimed = {number for numbers in marked().values() for number in numbers}
    assert row.number in claimed or row.pending, f"row {row.number} has lost its test"


def test_no_test_proves_a_row_that_is_not() -> None:
    assert {number for numbers in marked().values() for number in numbers} <= {row.number for row in load()}


def test_marks_of_modules_classes_and_functions_are_found() -> None:
    source = (
        "pytestmark = [pytest.mark.lab, pytest.mark.fault(1)]\n"
        "@pytest.mark.fault(2)\nclass TestA:\n    @pytest.mark.fault(3, 4)\n    def test_b(self): ...\n"
        "def test_c(): ...\ndef helper(): ...\n"
    )
    assert marked_in(source, "t.py") == {
        "t.py::TestA::test_b": frozenset({1, 2, 3, 4}),
        "t.py::test_c": frozenset({1}),
    }
    assert marked_in("def test_c(): ...\n", "t.py") == {}


# The page


def test_the_page_is_what_its_run_makes_of_it() -> None:
    assert PAGE.read_text() == page.render(load(), results.load()), (
        "`python -m tests.faults --page` writes it"
    )


def test_the_page_counts_no_row_as_passed_of_which_a_test_was_not_run() -> None:
    run = results.load()
    assert results.parse(results.dump(run)) == run
    full = [row for row in load() if {t.outcome for t in run.of_row(row.number).values()} == {"passed"}]
    assert f"**{len(full)} of {len(load())} rows pass" in PAGE.read_text()


@pytest.mark.parametrize(
    ("outcomes", "together"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "skipped"], "partly"),
        (["skipped", "skipped"], "skipped"),
        (["passed", "skipped", "failed"], "failed"),
        (["passed", "xfailed"], "unproven"),
        ([], "unproven"),
    ],
)
def test_a_skip_is_never_a_pass(outcomes: list[str], together: str) -> None:
    assert outcome_of([ran(outcome) for outcome in outcomes]) == together


@pytest.mark.parametrize(
    ("why", "fails"),
    [
        ("NO SYSTEMD HERE: systemctl not found; install systemd and dbus", True),
        ("no Chromium on this machine: apt install chromium", True),
        ("there is no kubectl", True),
        ("could not import 'pandas': No module named 'pandas'", True),
        ("NO FREEZER OF CONTROL GROUPS v1 HERE: no process can be made unkillable", False),
        ("THIS MACHINE HAS A GPU: no host without one can be played", False),
    ],
)
def test_a_row_that_ci_skips_for_a_missing_program_fails_there(why: str, fails: bool) -> None:
    assert is_gap(why, of_row=True) is fails
    assert is_gap(why, of_row=False) is why.startswith("could not import")


def test_a_skip_a_gap_and_an_expected_failure_are_shown_as_what_they_are() -> None:
    rows = [replace(row, pending="not built" if row.number == 4 else "") for row in load()[:4]]
    run = a_run(
        {
            "t.py::a[1]": ran("passed", 1, 2),
            "t.py::a[2]": ran("skipped", 1),
            "t.py::b": ran("xfailed", 3),
        }
    )
    text = page.render(rows, run)
    assert "**1 of 4 rows pass; 1 in part; 2 not yet proven.**" in text
    assert "| passes in part: 1 of 2 tests skipped here |" in text
    assert "| not yet proven: not built |" in text
    assert "`a`, 2 cases, 2.0 s (skipped: no lab)" in text
    assert "`b`, 1.0 s (xfailed: no lab)" in text


def test_times_with_tensorflow_stand_apart_and_the_slowest_counts() -> None:
    tests = {
        "t.py::a": ran("passed", noticed_s=0.5, again_s=2.0),
        "t.py::b": ran("passed", noticed_s=0.7),
        "t.py::c": ran("passed", tensorflow=True, again_s=9.0, steps_lost=3),
        "t.py::d": ran(
            "passed",
            tensorflow=True,
            over_by_hand_s=0.3,
            least_over_s=0.1,
            most_over_s=0.9,
            under_orch_s=6.3,
            by_hand_s=6.0,
        ),
    }
    assert slowest(tests.values(), tensorflow=False) == {"noticed_s": 0.7, "again_s": 2.0}
    text = page.render(load()[:1], a_run(tests))
    fault, promise = load()[0].fault, load()[0].promise
    assert f"| 1 | {fault} |  | 9.0 s |  | 3 |" in text
    assert f"| 1 | {fault} | {promise} | passes | 0.7 s | 2.0 s |  |" in text
    assert "**0.3 s over by hand** (0.1 to 0.9 s in single turns)." in text


# Whether it is of these sources


def test_the_page_is_of_these_sources() -> None:
    """A warning here, and an error in `make release-check`: the page is made anew as the last act of a release."""
    run = results.load()
    differences = freshness.differences(run, marked())
    try:
        old = freshness.why_old(run.commit)
    except freshness.NoHistoryError as e:
        assert not differences, differences
        pytest.skip(f"NO HISTORY HERE, so the age of docs/faults.md is not judged: {e}")
    if old is None:
        assert not differences, "it claims to be of these sources"
    else:
        # It says so only where something that it measures has changed since.
        since = freshness.git("rev-list", "--count", f"{run.commit}..HEAD", "--", *freshness.MEASURED)
        assert int(since) > 0 or freshness.uncommitted(), old
        told = f"docs/faults.md is not of these sources: {old}; {len(differences)} tests differ"
        warnings.warn(told, PageIsOldWarning, stacklevel=1)


def test_tests_that_are_gone_new_or_marked_otherwise_are_named() -> None:
    run = a_run(
        {"t.py::a[1]": ran("passed", 1), "t.py::a[2]": ran("passed", 1), "t.py::gone": ran("passed", 2)}
    )
    same = {"t.py::a": frozenset({1}), "t.py::gone": frozenset({2})}
    assert freshness.differences(run, same) == []
    assert freshness.differences(run, {"t.py::a": frozenset({1, 3}), "t.py::new": frozenset({2})}) == [
        "t.py::gone is on the page and is no test of a row any more",
        "t.py::new is marked and is not on the page",
        "t.py::a is marked with rows 1, 3 and is on the page for 1",
    ]


def test_a_release_has_no_failure_no_skipped_row_and_no_excuse_that_is_out_of_date() -> None:
    first, second, third = load()[:3]
    rows = [first, second, replace(third, pending="not built")]
    run = a_run({"t.py::a": ran("failed", 1), "t.py::b": ran("skipped", 2), "t.py::c": ran("passed", 3)})
    assert freshness.unfit(run, rows, {"t.py::c": frozenset({3})}) == [
        "row 1 fails",
        "row 2 was skipped",
        "row 3 has a test; take `pending` out of tests/faults/rows.toml",
    ]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A history of one commit, which has all that is measured."""
    root = tmp_path / "repository"
    for directory in (*freshness.MEASURED, "docs"):
        (root / directory).mkdir(parents=True)
        (root / directory / "file").write_text("1")
    try:
        freshness.git("init", "-q", root=root)
    except freshness.NoHistoryError as e:
        pytest.skip(str(e))
    commit(root)
    return root


def commit(root: Path) -> str:
    """Commit all that is there; the commit."""
    freshness.git("add", "-A", root=root)
    author = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    freshness.git(*author, "commit", "-q", "-m", "more", root=root)
    return freshness.git("rev-parse", "HEAD", root=root)


def test_a_page_is_old_once_something_that_it_measures_has_changed(repository: Path) -> None:
    made_at = freshness.git("rev-parse", "HEAD", root=repository)
    (repository / "docs" / "file").write_text("the page itself")
    commit(repository)
    assert freshness.why_old(made_at, repository) is None
    (repository / "orchestrator" / "file").write_text("2")
    assert "since the last commit" in str(freshness.why_old(made_at, repository))
    later = commit(repository)
    assert f"commit {later[:9]} has changed what it measures" in str(freshness.why_old(made_at, repository))
    assert freshness.why_old(later, repository) is None
    assert "does not have" in str(freshness.why_old("1" * 40, repository))


def test_without_a_history_nobody_judges(tmp_path: Path, repository: Path) -> None:
    with pytest.raises(freshness.NoHistoryError):
        freshness.why_old("1" * 40, tmp_path)
    unpacked = repository / "unpacked"
    unpacked.mkdir()
    with pytest.raises(freshness.NoHistoryError, match="is no repository, but lies in"):
        freshness.why_old("1" * 40, unpacked)
    shallow = tmp_path / "shallow"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{repository}", shallow],
        check=True,
        capture_output=True,
    )
    with pytest.raises(freshness.NoHistoryError, match="shallow"):
        freshness.why_old("1" * 40, shallow)


def test_a_run_is_read_as_it_was_written_and_a_test_that_took_no_time_too() -> None:
    quick = results.TestResult(rows=(56,), outcome="passed", took_s=0.0)
    slow = results.TestResult(rows=(1, 2), outcome="skipped", took_s=1.5, tensorflow=True, why="no GPU")
    run = results.Results(
        "c", "2026-01-01T00:00:00Z", 1.0, {"cores": 2}, {"begin": 0.0, "end": 0.0}, {"a": quick, "b": slow}
    )
    assert results.parse(results.dump(run)) == run

"""Whether the page of faults speaks of the sources beside it: the same tests, and code that has not changed since."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.faults.results import Results, outcome_of
from tests.faults.rows import ROOT, Row

MEASURED = ("orchestrator", "tests/cluster", "tests/contract")
"""A change here may change what the page says."""


class NoHistoryError(Exception):
    """The sources lie here without their history, as in a tarball: nobody can say how old a commit is."""


def git(*arguments: str, root: Path = ROOT) -> str:
    """Run git; its output. NoHistoryError where there is no git or no repository of ours."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError as e:
        raise NoHistoryError("git is not installed") from e
    if done.returncode != 0:
        raise NoHistoryError(done.stderr.strip() or f"git {arguments[0]} ended with {done.returncode}")
    return done.stdout.strip()


def need_history(root: Path = ROOT) -> None:
    """NoHistoryError where `root` is not the top of a repository with its whole history."""
    top = git("rev-parse", "--show-toplevel", root=root)
    if Path(top).resolve() != root.resolve():
        raise NoHistoryError(f"{root} is no repository, but lies in {top}")
    if git("rev-parse", "--is-shallow-repository", root=root) == "true":
        raise NoHistoryError("the repository is shallow")


def uncommitted(root: Path = ROOT) -> list[str]:
    """Return the measured files that differ from the last commit."""
    return git("--no-optional-locks", "status", "--porcelain", "--", *MEASURED, root=root).splitlines()


def why_old(commit: str, root: Path = ROOT) -> str | None:
    """Return why a page of that commit is too old for these sources; None where it is not. NoHistoryError."""
    need_history(root)
    if uncommitted(root):
        return "measured files have changed since the last commit"
    last = git("log", "-1", "--format=%H", "--", *MEASURED, root=root)
    try:
        git("cat-file", "-e", f"{commit}^{{commit}}", root=root)
    except NoHistoryError:
        return f"it is of commit {commit[:9]}, which this repository does not have"
    try:
        git("merge-base", "--is-ancestor", last, commit, root=root)
    except NoHistoryError:
        return f"it is of commit {commit[:9]}, and commit {last[:9]} has changed what it measures"
    return None


def differences(results: Results, marked: Mapping[str, frozenset[int]]) -> list[str]:
    """Return where the tests that were run are not the tests that are marked."""
    ran = results.functions()
    gone = [f"{test} is on the page and is no test of a row any more" for test in sorted(ran.keys() - marked)]
    new = [f"{test} is marked and is not on the page" for test in sorted(marked.keys() - ran)]
    moved = [
        f"{test} is marked with rows {_list(marked[test])} and is on the page for {_list(ran[test])}"
        for test in sorted(ran.keys() & marked)
        if ran[test] != marked[test]
    ]
    return gone + new + moved


def unfit(results: Results, rows: list[Row], marked: Mapping[str, frozenset[int]]) -> list[str]:
    """Return what a release must not show: failures, rows that nobody could run, excuses that are out of date."""
    claimed = {number for numbers in marked.values() for number in numbers}
    found = []
    for row in rows:
        tests = results.of_row(row.number)
        outcome = outcome_of(tests.values())
        if outcome in ("failed", "skipped"):
            found.append(f"row {row.number} {'fails' if outcome == 'failed' else 'was skipped'}")
        if row.pending and row.number in claimed:
            found.append(f"row {row.number} has a test; take `pending` out of tests/faults/rows.toml")
    return found


def _list(numbers: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))

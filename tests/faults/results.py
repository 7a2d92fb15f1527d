"""docs/faults.json: what one run of all tests of the table has found, at one commit, on one machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tests.faults.rows import ROOT

RESULTS = ROOT / "docs" / "faults.json"

Measured = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TestResult:
    """How one test ended, with one set of parameters."""

    __test__ = False

    rows: tuple[int, ...]
    outcome: str
    """passed, failed, skipped, or xfailed: it fails as it is expected to, since what it tests is not built yet."""
    took_s: float
    tensorflow: bool = False
    why: str = ""
    """Of a test that was skipped, or is expected to fail."""
    measured: Measured | None = None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> TestResult:
        """Read one entry of the file."""
        return cls(**{**entry, "rows": tuple(entry["rows"])})


@dataclass(frozen=True, slots=True)
class Results:
    """One run."""

    commit: str
    began: str
    """ISO 8601, UTC."""
    wall_s: float
    machine: Mapping[str, Any]
    """cores, kernel, python, tensorflow"""
    load: Mapping[str, float]
    """Of the last minute: begin, end."""
    tests: Mapping[str, TestResult]
    """By pytest's id."""

    def of_row(self, number: int) -> dict[str, TestResult]:
        """Return the tests that claim this row."""
        return {test: result for test, result in self.tests.items() if number in result.rows}

    def functions(self) -> dict[str, frozenset[int]]:
        """Return the rows that each test claims, by `file::name`, whatever its parameters."""
        found: dict[str, frozenset[int]] = {}
        for test, result in self.tests.items():
            name = function_of(test)
            found[name] = found.get(name, frozenset()) | frozenset(result.rows)
        return found


def function_of(test: str) -> str:
    """Return a test's id without its parameters."""
    return test.partition("[")[0]


def load() -> Results:
    """Read the file."""
    return parse(RESULTS.read_text(encoding="utf-8"))


def parse(text: str) -> Results:
    """Read a run from JSON."""
    document = json.loads(text)
    tests = {test: TestResult.of(entry) for test, entry in document.pop("tests").items()}
    return Results(**document, tests=tests)


def dump(results: Results) -> str:
    """Return the run as JSON; what a test has not measured is left out."""
    document = asdict(results)
    document["tests"] = {
        test: {key: value for key, value in entry.items() if value not in ("", None) and value is not False}
        for test, entry in document["tests"].items()
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def outcome_of(tests: Iterable[TestResult]) -> str:
    """Return what the tests of a row prove together: a skipped test proves nothing, and never counts as a pass.

    failed: one of them fails. unproven: there is none, or one is expected to fail. skipped: none of them has run.
    partly: some have run and passed, the others were skipped. passed: all of them passed.
    """
    found = {test.outcome for test in tests}
    if "failed" in found:
        return "failed"
    if not found or "xfailed" in found:
        return "unproven"
    if found == {"skipped"}:
        return "skipped"
    return "partly" if "skipped" in found else "passed"


def slowest(tests: Iterable[TestResult], *, tensorflow: bool) -> dict[str, float]:
    """Return the largest of each figure that these tests have measured, with TensorFlow or without."""
    found: dict[str, float] = {}
    for test in tests:
        if test.tensorflow == tensorflow:
            for key, value in (test.measured or {}).items():
                found[key] = max(value, found.get(key, value))
    return found

"""Which test runs which lines: `pytest -p tests.mutants.covering …` writes it to build/mutants/.

coverage.py measures, with each test as a context of its own; beside the lines stands how long each test takes on a
quiet machine. With `--changed-only` the files are those that have changed since docs/mutants.md, which costs a
fraction of the time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

from tests.mutants import page
from tests.mutants.changes import changed_since
from tests.mutants.drawing import PRODUCT, ROOT
from tests.patience import share

PLACE = ROOT / "build" / "mutants"

_measured = pytest.StashKey[Coverage]()
_times = pytest.StashKey[dict[str, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--changed-only", action="store_true", help="only lines of files that have changed")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure, in each of several processes."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:
        PLACE.mkdir(parents=True, exist_ok=True)
        for old in (*PLACE.glob("lines*"), *PLACE.glob("times*"), *PLACE.glob("results*")):
            old.unlink()
        if config.getoption("numprocesses", None):
            return
    config.stash[_times] = {}
    include = [f"{PRODUCT}/*"]
    if config.getoption("--changed-only"):
        include = [str(PRODUCT / file) for file in changed_since(page.commit())] or ["nothing"]
    config.stash[_measured] = Coverage(data_file=str(PLACE / f"lines{worker}"), include=include)
    config.stash[_measured].start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if _measured not in item.config.stash:
        return (yield)
    item.config.stash[_measured].switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        item.config.stash[_measured].switch_context("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    times = item.config.stash.get(_times, None)
    if times is not None:
        times[item.nodeid] = times.get(item.nodeid, 0.0) + report.duration * share()
        if report.outcome != "passed":  # what fails or is skipped as things are finds no mistake
            times[item.nodeid] = float("inf")
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write what was measured."""
    if _measured in config.stash:
        config.stash[_measured].stop()
        config.stash[_measured].save()
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        (PLACE / f"times{worker}.json").write_text(json.dumps(config.stash[_times]), encoding="utf-8")


class Map:
    """What the last run under this plugin has measured."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        for path in PLACE.glob("times*.json"):
            self.times.update(json.loads(path.read_text(encoding="utf-8")))
        self._lines: list[CoverageData] = []
        for path in PLACE.glob("lines*"):
            self._lines.append(CoverageData(basename=str(path)))
            self._lines[-1].read()

    def tests_of(self, path: Path) -> dict[int, set[str]]:
        """Return the tests that run each line of that file."""
        found: dict[int, set[str]] = {}
        for lines in self._lines:
            for number, tests in lines.contexts_by_lineno(str(path)).items():
                found.setdefault(number, set()).update(test for test in tests if test)
        return found

"""What all tests share: the marks of the table of faults, and what `make faults` hears of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.faults.times import FaultTimes
from tests.patience import patient

if TYPE_CHECKING:
    from tests.contract.receivers import Mail, Web

# Images of containers set this. Each `orch` and coordinator would compile the whole package again, and each process of
# pytest all tests: half of their CPU.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How fast examples are made says how busy the machine is, not whether the code is right.
settings.register_profile("orch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("orch")

LACKS_A_PROGRAM = re.compile(r"not found|\binstall\b|there is no \w+$")
"""In the reason of a skip: what `.ci/run` has to install. A kernel without something is no fault of CI."""
LACKS_A_LIBRARY = "could not import"
"""In that of `pytest.importorskip`: what the extra `dev` has to name."""

SLOWEST = Path(__file__).with_name("slowest.txt")
"""Names of the slowest tests, the slowest first, as `python -m tests.cpu_times` writes them."""
TURNS = 3
"""Of so many commits each slow test has its turn at one, in CI."""

REPORT = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that `make faults` gives."""
    group = parser.getgroup("faults")
    group.addoption("--fault-rows", metavar="N,N…", help="only tests of these rows of the table of faults")
    group.addoption("--fault-report", metavar="FILE", help="write outcomes and measured times there, as JSON")
    group.addoption("--long", action="store_true", help="more cases than CI has time for, and longer faults")
    group.addoption(
        "--only-long", action="store_true", help="nothing but those cases, and a line on each file"
    )
    group.addoption(
        "--in-turns", action="store_true", help=f"of the slowest those of this commit: 1 of {TURNS}"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the rows that were asked for; without --long none that CI has no time for.

    Beside each other the slowest begin first, or all wait for one that began last.
    """
    kept = items
    chosen = config.getoption("--fault-rows")
    if chosen:
        wanted = {int(number) for number in chosen.split(",")}
        kept = [item for item in kept if wanted & set(_rows_of(item))]
    if config.getoption("--only-long"):
        kept = [item for item in kept if item.get_closest_marker("long") is not None]
    elif not config.getoption("--long"):
        kept = [item for item in kept if item.get_closest_marker("long") is None]
    slowest = SLOWEST.read_text().splitlines()
    if config.getoption("--in-turns"):
        waiting = waiting_for_another(slowest, head_commit())
        kept = [item for item in kept if item.nodeid not in waiting]
    staying = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in staying])
    at_once = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = slowest_first(kept, slowest, at_once) if at_once > 1 else kept


def waiting_for_another(slowest: list[str], commit: str) -> set[str]:
    """Return the slow tests that run at other commits than this one; none where there is no commit.

    By the hash, since a clone may know of one commit only. Of each file a third has its turn, and one at least: it
    guards a feature that nothing else may guard.
    """
    if not commit:
        return set()
    files: dict[str, list[str]] = {}
    for name in sorted(slowest):
        files.setdefault(name.partition("::")[0], []).append(name)
    waiting = set()
    for names in files.values():
        turns = min(TURNS, len(names))
        waiting |= {name for place, name in enumerate(names) if place % turns != int(commit, 16) % turns}
    return waiting


def head_commit() -> str:
    """Return the hash of the commit that is checked out; nothing where git or its history is not there."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=SLOWEST.parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return asked.stdout.strip()


def slowest_first(items: list[pytest.Item], slowest: list[str], parts: int) -> list[pytest.Item]:
    """Return them in an order of which `--dist worksteal` makes parts that each begin with slow tests."""
    rank = {name: place for place, name in enumerate(slowest)}
    first = sorted((item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid])
    others = [item for item in items if item.nodeid not in rank]
    ordered: list[pytest.Item] = []
    for part in range(parts):
        size = (len(items) - len(ordered)) // (parts - part)
        slow = first[parts - 1 - part :: parts]  # the later parts are the larger ones
        ordered += [*slow, *others[: size - len(slow)]]
        del others[: size - len(slow)]
    return ordered


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Any:
    """Give a test as long as its timeout is on a quiet machine."""
    import pytest_timeout  # type: ignore[import-untyped]

    longer = settings._replace(timeout=patient(settings.timeout))
    return pytest_timeout.pytest_timeout_set_timer(item, longer)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember how each test of a row ended; the worst of set-up, call and tear-down counts."""
    report = yield
    rows = _rows_of(item)
    why = _ended(report)[1] if report.skipped else ""
    if os.environ.get("CI") and is_gap(why, of_row=bool(rows)):
        report.outcome = "failed"
        report.longrepr = f"what CI skips is tested nowhere: {why}"
    if rows:
        entry = item.config.stash[REPORT].setdefault(
            item.nodeid, {"rows": rows, "outcome": "passed", "took_s": 0.0}
        )
        entry["took_s"] = round(entry["took_s"] + report.duration, 2)
        entry["tensorflow"] = item.get_closest_marker("tensorflow") is not None
        if report.outcome != "passed" and entry["outcome"] != "failed":
            entry["outcome"], entry["why"] = _ended(report)
        times = getattr(item, "funcargs", {}).get("fault_times")
        if isinstance(times, FaultTimes):
            entry["measured"] = times.measured
    return report


def is_gap(why: str, *, of_row: bool) -> bool:
    """Return whether a test that is skipped for this reason must not be skipped in CI."""
    return LACKS_A_LIBRARY in why or (of_row and LACKS_A_PROGRAM.search(why) is not None)


def _ended(report: pytest.TestReport) -> tuple[str, str]:
    """Return how it did not pass, and why. pytest calls an expected failure a skip."""
    if hasattr(report, "wasxfail"):
        return "xfailed", report.wasxfail.removeprefix("reason: ")
    if report.skipped:
        return "skipped", report.longrepr[2].removeprefix("Skipped: ") if isinstance(
            report.longrepr, tuple
        ) else ""
    return "failed", ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the outcomes to `make faults`. Each of several processes leaves its own."""
    path = session.config.getoption("--fault-report")
    if path:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        Path(path + worker).write_text(json.dumps(session.config.stash[REPORT]), encoding="utf-8")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say of each file with `long` tests how they ended: what was skipped is not run by anything else."""
    if config.getoption("--in-turns"):
        waiting = waiting_for_another(SLOWEST.read_text().splitlines(), head_commit())
        terminalreporter.write_line(
            f"{len(waiting)} slow tests have their turn at another commit; see tests/slowest.txt"
        )
    if not config.getoption("--only-long"):
        return
    terminalreporter.section("what only `make test-long` runs")
    ended: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            ended.setdefault(report.nodeid.partition("::")[0], Counter())[outcome] += 1
    for path, counted in sorted(ended.items()):
        terminalreporter.write_line(f"{path}: {', '.join(f'{n} {what}' for what, n in counted.items())}")


def _rows_of(item: pytest.Item) -> list[int]:
    function = getattr(item, "function", None)
    if function is not None and function.__module__ != getattr(item, "module", function).__name__:
        return []  # the simulator's agent plays the tests of the real one, and proves no row
    return sorted({number for mark in item.iter_markers("fault") for number in mark.args})


@pytest.fixture
def fault_times() -> FaultTimes:
    """Where a test puts what it has measured."""
    return FaultTimes()


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether a fault may last as long as the page says; CI has seconds."""
    return bool(request.config.getoption("--long") or request.config.getoption("--only-long"))


@pytest.fixture
def web() -> Iterator[Web]:
    """A real HTTP server that remembers what it is sent."""
    from tests.contract.receivers import Web  # other machines lack its libraries, and need none of it

    made = Web()
    yield made
    made.close()


@pytest.fixture
def mail() -> Iterator[Mail]:
    """A real SMTP server that remembers what it is sent."""
    from tests.contract.receivers import Mail

    made = Mail()
    yield made
    made.close()

"""docs/faults.md, made from the table of rows and one run of the tests. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from tests.faults.results import Results, TestResult, function_of, outcome_of, slowest
from tests.faults.rows import Row

HEAD = """<!-- Made by `make faults`, which runs the tests. Never edit it by hand. -->
# Faults

What may go wrong, what must then happen, and the tests that inject the real thing: real sshd in network namespaces,
real processes, real files. `make faults` runs all of them and writes this page whole, so that all of it is of one
commit on one machine; `make faults ROWS=15,24` runs some rows and prints what it finds.

A row *passes* where all of its tests were run and passed. It passes *in part* where others were skipped on that
machine, which proves nothing. It is *not yet proven* where no test injects it, or where its test is written and fails
as it is expected to.
"""

TIMES = """A trainer without TensorFlow proves most rows, so that the times in the tables below are orch's own.
*Noticed* is until the first event that tells of the fault; *goes on* is until the first step of the next generation, or
until the run has ended where that must happen; both since the fault. *Lost* are the steps that are trained a second
time. Where several tests measure, the slowest counts.
"""

HEADLINE = "## From a death to the first new step, with TensorFlow\n"

WORDS = {
    "passed": "passes",
    "partly": "passes in part",
    "failed": "**FAILS**",
    "skipped": "skipped here",
    "unproven": "not yet proven",
}


def render(rows: Iterable[Row], results: Results) -> str:
    """Return the page."""
    rows = list(rows)
    parts = [HEAD, _run(results), _summary(rows, results), *_headline(rows, results), TIMES]
    for part, members in groupby(rows, key=lambda row: row.part):
        listed = list(members)
        parts.append(f"## {part}\n")
        parts.append("| # | fault | what must happen | outcome | noticed | goes on | lost |")
        parts.append("|--:|---|---|---|--:|--:|--:|")
        parts += [_line(row, results.of_row(row.number)) for row in listed]
        parts.append("\n<details><summary>Tests</summary>\n")
        parts += [line for row in listed for line in _tests(row.number, results.of_row(row.number))]
        parts.append("\n</details>\n")
    return "\n".join(parts)


def told(rows: Iterable[Row], results: Results) -> str:
    """Return the outcome of some rows, for a terminal."""
    lines = []
    for row in rows:
        tests = results.of_row(row.number)
        lines.append(f"row {row.number}: {WORDS[outcome_of(tests.values())]}: {row.fault}")
        for tensorflow in (False, True):
            found = slowest(tests.values(), tensorflow=tensorflow)
            figures = ", ".join(f"{key} {value:g}" for key, value in sorted(found.items()))
            lines += [f"  {'with TensorFlow' if tensorflow else 'measured'}: {figures}"] if figures else []
        lines += [f"  {function}{told}" for function, told in _functions(tests)]
    return "\n".join(lines)


def _run(results: Results) -> str:
    if not results.tests:
        return (
            "Nothing has been measured yet: `make faults` was not run since the table has changed its form.\n"
        )
    machine, load = results.machine, results.load
    return (
        f"Measured {results.began.replace('T', ' ').replace('Z', ' UTC')} at commit `{results.commit}`, in "
        f"{results.wall_s / 60:.0f} min, on {machine['cores']} cores ({machine['kernel']}, Python {machine['python']}, "
        f"TensorFlow {machine['tensorflow']}), at a load of {load['begin']:.1f} at the begin and {load['end']:.1f} at "
        f"the end; {len(results.tests)} tests, of which those without TensorFlow ran three at a time.\n"
    )


def _summary(rows: list[Row], results: Results) -> str:
    outcomes = Counter(outcome_of(results.of_row(row.number).values()) for row in rows)
    said = [f"{outcomes['passed']} of {len(rows)} rows pass"]
    said += [
        f"{outcomes[key]} {words}"
        for key, words in (
            ("partly", "in part"),
            ("failed", "fail"),
            ("skipped", "skipped here"),
            ("unproven", "not yet proven"),
        )
        if outcomes[key]
    ]
    return f"**{'; '.join(said)}.**\n"


def _headline(rows: list[Row], results: Results) -> list[str]:
    """Return what real TensorFlow shows: how long until training goes on, and how much of that is orch."""
    parts = [HEADLINE]
    figures = slowest(results.tests.values(), tensorflow=True)
    if "over_by_hand_s" in figures:
        parts.append(
            f"**{figures['over_by_hand_s']:.1f} s over by hand** ({figures['least_over_s']:.1f} to "
            f"{figures['most_over_s']:.1f} s in single turns). Under orch it takes {figures['under_orch_s']:.1f} s "
            "from `kill -9` of one of two workers of a mirrored strategy to the later of their two next steps; the "
            "same two processes, started by hand with TF_CONFIG and checkpoint in place, take "
            f"{figures['by_hand_s']:.1f} s to theirs. Medians; the two took turns.\n"
        )
    parts.append("Seconds since the fault, with the import of TensorFlow and the first trace in them.\n")
    parts.append("| # | fault | noticed | trains again | has ended | lost |")
    parts.append("|--:|---|--:|--:|--:|--:|")
    for row in rows:
        found = slowest(results.of_row(row.number).values(), tensorflow=True)
        if "again_s" in found or "ended_s" in found:
            times = [_seconds(found.get(key)) for key in ("noticed_s", "again_s", "ended_s")]
            parts.append(_cells(str(row.number), row.fault, *times, _count(found)))
    return [*parts, ""]


def _line(row: Row, tests: Mapping[str, TestResult]) -> str:
    found = slowest(tests.values(), tensorflow=False)
    promise = row.promise + (f" *{row.note}*" if row.note else "")
    goes_on = found.get("again_s", found.get("ended_s"))
    times = _seconds(found.get("noticed_s")), _seconds(goes_on)
    return _cells(str(row.number), row.fault, promise, _outcome(row, tests), *times, _count(found))


def _outcome(row: Row, tests: Mapping[str, TestResult]) -> str:
    outcome = outcome_of(tests.values())
    if outcome == "partly":
        skipped = sum(result.outcome == "skipped" for result in tests.values())
        return f"{WORDS[outcome]}: {skipped} of {len(tests)} tests skipped here"
    if outcome == "unproven" and not tests and row.pending:
        return f"{WORDS[outcome]}: {row.pending}"
    return WORDS[outcome]


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _count(found: Mapping[str, float]) -> str:
    return f"{found['steps_lost']:.0f}" if "steps_lost" in found else ""


def _tests(number: int, tests: Mapping[str, TestResult]) -> list[str]:
    lines = []
    for function, told in _functions(tests):
        path, _, name = function.partition("::")
        lines.append(f"- {number}: [{path}](../{path}) `{name}`{told}")
    return lines


def _functions(tests: Mapping[str, TestResult]) -> Iterator[tuple[str, str]]:
    """Yield each test with its number of cases, how long it took, and what kept cases from passing."""
    for function, members in groupby(sorted(tests.items()), key=lambda item: function_of(item[0])):
        results = [result for _, result in members]
        cases = f", {len(results)} cases" if len(results) > 1 else ""
        other = "".join(sorted({_because(result) for result in results}))
        yield function, f"{cases}, {sum(result.took_s for result in results):.1f} s{other}"


def _because(result: TestResult) -> str:
    if result.outcome == "passed":
        return ""
    return f" ({result.outcome}{': ' if result.why else ''}{result.why})"

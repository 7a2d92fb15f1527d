"""docs/faults.md, made from the table of rows and the last results of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from tests.faults.rows import Row

HEAD = """<!-- Made by `make faults`, which runs the tests. Never edit it by hand. -->
# Faults

What may go wrong, what then happens, and the test that injects the real thing: real sshd in network namespaces, real
processes, real files. A trainer without TensorFlow proves most rows, so that the times are orch's own; where real
TensorFlow is measured too, the slowest counts, with the seconds that importing it takes. `make faults` runs them all
and writes this page; `make faults ROWS=15,24` runs some rows and keeps what is known of the others. *Noticed* is
until the first event that tells of it, *trains again* until the first step of the next generation, both since the
fault; *lost* are the steps that are trained a second time.
"""

OUTCOMES = {"passed": "passes", "failed": "**FAILS**", "skipped": "skipped here", "unmeasured": "not run yet"}


def render(rows: Iterable[Row], results: Mapping[str, Any]) -> str:
    """The page. `results` is docs/faults.json: by row's number, as a string."""
    rows = list(rows)
    parts = [HEAD, _summary(rows, results)]
    for part, members in groupby(rows, key=lambda row: row.part):
        parts.append(f"## {part}\n")
        parts.append("| # | fault | what happens | outcome | noticed | trains again | lost | measured |")
        parts.append("|--:|---|---|---|--:|--:|--:|---|")
        listed = list(members)
        parts += [_line(row, results.get(str(row.number))) for row in listed]
        parts.append("\n<details><summary>Tests</summary>\n")
        parts += [line for row in listed for line in _tests(row, results.get(str(row.number)))]
        parts.append("\n</details>\n")
    return "\n".join(parts)


def _summary(rows: list[Row], results: Mapping[str, Any]) -> str:
    outcomes = [outcome_of(row, results.get(str(row.number))) for row in rows]
    told = [f"{outcomes.count('passed')} of {len(rows)} rows pass"]
    told += [
        f"{outcomes.count(key)} {words}"
        for key, words in (("failed", "fail"), ("skipped", "skipped"), ("unmeasured", "not run yet"))
        if key in outcomes
    ]
    without = sum(bool(row.missing) for row in rows)
    return "; ".join(told + ([f"{without} without a test"] if without else [])) + ".\n"


def outcome_of(row: Row, result: Mapping[str, Any] | None) -> str:
    """The worst of its tests, where a skipped one does not hide that others have run."""
    if row.missing:
        return "missing"
    found = set((result or {}).get("tests", {}).values())
    return next((o for o in ("failed", "passed", "skipped") if o in found), "unmeasured")


def _line(row: Row, result: Mapping[str, Any] | None) -> str:
    outcome = outcome_of(row, result)
    result = result or {}
    promise = row.promise + (f" *{row.note}*" if row.note else "")
    shown = f"no test: {row.missing}" if row.missing else OUTCOMES[outcome]
    when = f"{result['date']}, `{result['commit']}`, {result['cores']} cores" if "date" in result else ""
    cells = (
        str(row.number),
        row.fault,
        promise,
        shown,
        _seconds(result.get("noticed_s")),
        _seconds(result.get("again_s")),
        "" if result.get("steps_lost") is None else str(result["steps_lost"]),
        when,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _tests(row: Row, result: Mapping[str, Any] | None) -> list[str]:
    lines = []
    for test, outcome in sorted((result or {}).get("tests", {}).items()):
        path, _, name = test.partition("::")
        told = "" if outcome == "passed" else f" ({outcome})"
        lines.append(f"- {row.number}: [{path}](../{path}) `{name}`{told}")
    return lines

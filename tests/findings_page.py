"""`python -m tests.findings_page` writes docs/findings.md from the catalogue of findings."""

from __future__ import annotations

from pathlib import Path

from orchestrator.reporting.findings import CATALOGUE, Row

PAGE = Path(__file__).parents[1] / "docs/findings.md"

HEAD = """<!-- Made by `make docs` from orchestrator/reporting/findings.py. Never edit it by hand. -->
# Findings

What can be wrong with hosts before anything is trained. `orch doctor FILE` and `orch validate --hosts FILE` look for
all of it. `orch up` looks first for what no start would notice: the names and ports between the hosts (`net.…`), and
one machine under two names; `--no-check` leaves that out. A run that ends because of one of these has the same id in
`orch why --json` and `orch status --json` (`finding`). The ids never change.

An **error** keeps the run from training; a **warning** will be missed later. A finding about hosts that hold no task of
the run is a warning at most. What was changed for you, as an address in the place of a name that nobody resolves, is a
warning too.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *map(_section, CATALOGUE)])


def _section(row: Row) -> str:
    return "\n".join(
        [
            f"## {row.id}",
            "",
            f"{row.level.capitalize()}: {row.about}.",
            "",
            f"- Why it matters: {row.why}.",
            f"- The way out: {row.way_out}.",
            "",
        ]
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

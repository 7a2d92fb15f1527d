"""`python -m tests.events_page`: writes docs/events.md from the tables of notes and causes."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.causes import Blame, Cause
from orchestrator.core.notes import NoteKind

PAGE = Path(__file__).parents[1] / "docs/events.md"

HEAD = """<!-- Made by `make docs` from orchestrator/core/notes.py and causes.py. Never edit it by hand. -->
# Events and causes

`orch events NAME --json` prints one JSON object per line: `seq`, `time` (ISO 8601, UTC), `run`, `kind`, `task` (or
null), `generation`, `message` (for people; its words may change), `data` and `decision`, the number of the entry
of the journal under which `orch replay` shows what was decided (else null). Scripts go by `kind` and `data`.
"""

CAUSES = """
## Causes

`cause` in `orch why --json`, in `orch status --json` of each task, and in the `data` of `task-exited`. A cause counts
against `restart: without_progress_max` unless the table says that it does not. One whose fault is the host's counts
against the host too, where the others were fine.
"""

_FAULT = {
    Blame.NOBODY: "nobody's",
    Blame.TASK: "the task's",
    Blame.HOST: "the host's",
    Blame.PEER: "a peer's",
}


def page() -> str:
    """Return the whole page."""
    own = [kind for kind in NoteKind if not kind.row.by_task]
    said = [kind for kind in NoteKind if kind.row.by_task]
    return "\n".join(
        [
            HEAD,
            "## Of the run",
            "",
            *_kinds(own),
            "",
            "## Said by a task",
            "",
            *_kinds(said),
            CAUSES,
            "| cause | whose fault | counts | what it means |",
            "|---|---|---|---|",
            *(_cause(cause) for cause in Cause),
            "",
        ]
    )


def _kinds(kinds: list[NoteKind]) -> list[str]:
    return ["| kind | |", "|---|---|", *(f"| `{kind.value}` | {kind.row.means} |" for kind in kinds)]


def _cause(cause: Cause) -> str:
    row = cause.row
    counts = (
        "ends the run" if row.ends_the_run else "no" if row.is_free or row.blame is Blame.NOBODY else "yes"
    )
    means = (
        row.means.format(host="the host", python="python")
        or "its failure signature, or its own words, say it"
    )
    return f"| `{cause.value}` | {_FAULT[row.blame]} | {counts} | {means} |"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

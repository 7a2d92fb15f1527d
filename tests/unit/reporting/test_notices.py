"""What people are told, and how often: transcripts, and the words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.core.notes import NoteKind
from orchestrator.reporting import notices
from orchestrator.reporting.notices import EMPTY, NOTICES, Happened, Notice

TRANSCRIPTS = Path(__file__).parent / "notices"


def play(text: str) -> str:
    """Return the transcript with today's answers."""
    desk, answered = EMPTY, []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        answered.append(line)
        if not line.startswith("> "):
            continue
        at, said = line[2:].split(" ", 1)
        now = float(at)
        run = "t"
        if ": " in said.split(" ")[0] + " " and said.split(" ")[0].endswith(":"):
            run, said = said.split(": ", 1)
        kind, _, message = said.partition(" ")
        found: list[Notice] = []
        if kind != "wait":
            desk, notice = notices.throttle(desk, Happened(f"{run}-1", run, kind, message), now)
            found += [notice] if notice is not None else []
        desk, due = notices.due(desk, now)
        for one in (*found, *due):
            before = f" (before: {dict(one.before)})" if one.before else ""
            answered.append(f"  {one.kind}: {notices.title(one)}: {one.last.message}{before}")
    return "\n".join(answered) + "\n"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    played = play(text)
    if os.environ.get("ORCH_REWRITE"):
        path.write_text(played, encoding="utf-8")
    assert played == text


def test_every_notice_has_a_kind_of_event_and_its_words() -> None:
    assert {kind.row.notice for kind in NoteKind} == {"", *NOTICES}
    assert set(notices.BY_DEFAULT) <= set(NOTICES)
    for kind in NOTICES:
        happened = Happened("m-1", "m", "failed", "it did")
        assert notices.title(Notice(kind, happened)).startswith("orch: m ")
        assert "Look, on head: orch " in notices.body(Notice(kind, happened), lines=0, head="head")


def test_a_message_says_what_where_and_what_to_do() -> None:
    cause = {
        "task": "worker:3",
        "host": "gpu-d",
        "sentence": "worker:3 on gpu-d ran out of memory",
        "means": "the batch is too large",
        "advice": "use a smaller batch",
        "last_lines": [f"line {n}" for n in range(20)],
    }
    message = "worker:3 on gpu-d ran out of memory; given up: the same failure twice"
    happened = Happened("m-1", "m", "failed", message, "2026-11-22 03:12:44 UTC", "worker:3", 3, cause)
    assert notices.body(Notice("failed", happened), lines=2, head="head") == (
        "worker:3 on gpu-d ran out of memory; given up: the same failure twice\n\n"
        "It means: the batch is too large\n\n"
        "You can: use a smaller batch\n\n"
        "Last lines of worker:3:\n  line 18\n  line 19\n\n"
        "Look, on head: orch why m\n\n"
        "m-1, generation 3, 2026-11-22 03:12:44 UTC"
    )
    assert "line" not in notices.body(Notice("failed", happened), lines=0, head="head")


def test_what_a_host_says_calls_nobody_and_stays_small() -> None:
    cause = {"last_lines": ["\x1b[31m@everyone <!channel>\x07", "x" * 10_000] * 50}
    happened = Happened("m-1", "m", "failed", "it did", cause=cause)
    body = notices.body(Notice("failed", happened), lines=50, head="head")
    assert len(body) <= notices.BODY_MAX
    assert "\x1b" not in body
    assert "@everyone" not in body
    assert "<!channel" not in body


def test_what_does_not_repeat_within_a_minute_is_forgotten() -> None:
    desk, _ = notices.throttle(EMPTY, Happened("m-1", "m", "backoff", "…"), 5.0)
    assert notices.due(desk, 65.0) == ({}, ())

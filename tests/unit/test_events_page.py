"""docs/events.md is what the tables of notes and causes make of it."""

from __future__ import annotations

from orchestrator.core.causes import Cause
from orchestrator.core.notes import NoteKind
from tests import events_page


def test_the_page_is_fresh() -> None:
    assert events_page.PAGE.read_text(encoding="utf-8") == events_page.page(), "`make docs` writes it"


def test_every_kind_and_every_cause_has_its_line() -> None:
    page = events_page.page()
    for member in (*NoteKind, *Cause):
        assert f"\n| `{member.value}` | " in page

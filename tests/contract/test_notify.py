"""Messages to people: real deliveries to loopback, recipients that do not answer, and coordinators that come and go."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.actions import Note
from orchestrator.core.events import Submitted
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import NotifyPlan
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.effects.delivery import deliver
from orchestrator.head.effects.messenger import Messenger, Place
from orchestrator.head.effects.recipient import UNSENT_MAX, Message, Recipient
from orchestrator.head.journal.journal import Journal
from tests.contract.receivers import Mail, Web
from tests.patience import comes
from tests.unit.cli.desk import Desk
from tests.unit.core.transcript import make_plan

SOON_S = 15.0


def until(condition: Callable[[], Any], what: str) -> None:
    assert comes(condition, SOON_S, 0.01), what


def test_a_mail_and_a_webhook_carry_the_whole_message(web: Web, mail: Mail) -> None:
    told = {"title": "orch: m has failed", "body": "first\n\nsecond <b>&", "level": "failure"}
    assert deliver(web.url("hook"), **told) is None
    assert deliver(mail.url, **told) is None
    assert (web.got[0]["title"], web.got[0]["message"], web.got[0]["type"]) == (
        told["title"],
        told["body"],
        "failure",
    )
    subject, text = mail.got[0]
    assert subject == told["title"]
    assert "first" in text
    assert "second <b>&" in text


def test_what_a_recipient_refuses_is_said_without_its_address(
    web: Web, capfd: pytest.CaptureFixture[str]
) -> None:
    web.status = 403
    logged = StringIO()
    root, ear = logging.getLogger(), logging.StreamHandler(logged)
    level = root.level
    root.addHandler(ear)
    root.setLevel(logging.DEBUG)
    try:
        refused = deliver(web.url("s3cret-path"), title="t", body="b", level="info")
        web.close()
        away = deliver(web.url("s3cret-path"), title="t", body="b", level="info")
        gone = deliver("json://user:s3cret@no-such-host.invalid/x", title="t", body="b", level="info")
    finally:
        root.removeHandler(ear)
        root.setLevel(level)
    assert refused is not None
    assert "403" in refused
    for said in (refused, away, gone, logged.getvalue(), *capfd.readouterr()):
        assert said is not None
        assert "s3cret" not in said


class Head:
    """A journal with a run that has recipients, and messengers that come and go."""

    def __init__(self, root: Path, urls: list[str], on: tuple[str, ...]) -> None:
        self.journal = Journal(str(root / "journal.db"))
        plan = make_plan(["a"], checkpoint=False)
        notify = NotifyPlan(on, ("json",) * len(urls), 5)
        self.run: Run = new_run("t-1", replace(plan, name="t", notify=notify), epoch=1, at=0.0)
        self.failed: list[tuple[str, str, str]] = []
        self.complaint: str | None = None
        self.now = 0.0
        (root / "config").mkdir(mode=0o700)
        self.own = root / "config" / "notify.yaml"
        self.place = Place(self.journal.path, str(root), str(root / "notices.json"), str(self.own))
        self.urls = urls
        self.messenger = self.messengers_next()
        self.messenger.save("t-1", urls)

    def messengers_next(self) -> Messenger:
        return Messenger(
            self.place,
            "owner",
            lambda: {"t-1": self.run},
            lambda: self.complaint,
            lambda *told: self.failed.append(told),
            now=lambda: self.now,
        )

    def happens(self, kind: NoteKind, message: str, **data: Any) -> None:
        self.journal.commit(self.run, Submitted(at=0.0), [Note(kind, message, None, data)])

    def close(self) -> None:
        self.messenger.close()
        self.journal.close()


def test_what_repeats_comes_once_a_minute_and_the_end_at_once(tmp_path: Path, web: Web) -> None:
    head = Head(tmp_path, [web.url("s3cret")], ("failed", "restarted"))
    for n in range(5):
        head.happens(NoteKind.BACKOFF, f"restart {n}")
        head.messenger.send_due()
    head.happens(NoteKind.STALLED, "nobody asked for this")
    head.messenger.send_due()
    until(lambda: len(web.got) == 1, "the first is said")
    head.now = 61.0
    head.messenger.send_due()
    until(lambda: len(web.got) == 2, "the others are counted")
    assert web.got[1]["title"] == "orch: t is restarted (4 times in 1 min 1 s)"
    assert "restart 4" in web.got[1]["message"]
    head.happens(NoteKind.FAILED, "given up", first_cause={"task": "worker:0", "last_lines": ["MemoryError"]})
    head.messenger.send_due()
    until(lambda: len(web.got) == 3, "the end is said")
    assert "MemoryError" in web.got[2]["message"]
    assert web.got[2]["type"] == "failure"
    assert head.failed == []
    head.close()
    assert "s3cret" not in (tmp_path / "notices.json").read_text()


def test_a_recipient_that_hangs_holds_up_nobody_and_what_is_unsent_is_sent_by_the_next_coordinator(
    tmp_path: Path, web: Web
) -> None:
    other = Web()
    other.status = 500
    head = Head(tmp_path, [other.url("x"), web.url("y")], ("failed",))
    head.happens(NoteKind.FAILED, "given up")
    head.messenger.send_due()
    until(lambda: web.got and head.failed, "the other is told, and the failure noted")
    run_id, recipient, problem = head.failed[0]
    assert (run_id, recipient) == ("t-1", "json")
    assert "500" in problem
    assert "tried again" in problem
    head.messenger.close()
    kept = json.loads((tmp_path / "notices.json").read_text())
    assert [one["name"] for one in kept["unsent"]] == ["json"]
    other.status = 200
    head.messenger = head.messengers_next()
    head.messenger.start()
    until(lambda: other.got, "it is sent again")
    assert other.got[0]["title"] == "orch: t has failed"
    assert len(web.got) == 1, "and not twice to who has it"
    head.close()
    assert json.loads((tmp_path / "notices.json").read_text())["unsent"] == []
    other.close()


def test_what_happens_while_no_coordinator_lives_is_told_by_the_next_and_the_past_is_not(
    tmp_path: Path, web: Web
) -> None:
    head = Head(tmp_path, [web.url("y")], ("failed", "stalled"))
    head.happens(NoteKind.STALLED, "of the messenger's own life")
    head.messenger.send_due()
    until(lambda: web.got, "it is told")
    head.messenger.close()
    head.happens(NoteKind.FAILED, "between the two")
    head.messenger = head.messengers_next()
    head.messenger.send_due()
    until(lambda: len(web.got) == 2, "it is told later")
    assert "between the two" in web.got[1]["message"]
    head.messenger.close()
    (tmp_path / "notices.json").unlink()
    head.messenger = head.messengers_next()
    head.messenger.send_due()
    head.close()
    assert len(web.got) == 2, "who begins anew does not tell of old times"


def test_ones_own_file_tells_of_all_runs_and_a_broken_one_is_an_event(tmp_path: Path, web: Web) -> None:
    head = Head(tmp_path, [], ())
    head.own.write_text(f'on: [stalled, disk-full]\nto: ["{web.url("own")}"]\n')
    head.own.chmod(0o600)
    head.happens(NoteKind.STALLED, "stands still")
    head.messenger.send_due()
    until(lambda: web.got, "it is told")
    head.complaint = "state disk full: /x cannot be written"
    head.messenger.send_due()
    head.messenger.send_due()
    until(lambda: len(web.got) == 2, "a head that cannot write says so, once")
    assert web.got[1]["title"] == "orch: the head node has no room on a disk"
    head.own.write_text("to: [nonsense]\n")
    head.happens(NoteKind.FAILED, "given up")
    head.messenger.send_due()
    head.messenger.send_due()
    assert [(told[0], told[1]) for told in head.failed] == [("t-1", "your own recipients")]
    assert "1:6: to[0]: must be a URL" in head.failed[0][2]
    head.close()


def test_the_urls_of_a_run_that_has_ended_are_removed_once_all_is_said(tmp_path: Path, web: Web) -> None:
    head = Head(tmp_path, [web.url("y")], ("failed",))
    kept = tmp_path / "recipients" / "t-1.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    web.held.clear()
    head.happens(NoteKind.FAILED, "given up")
    head.messenger.ended("t-1")
    head.messenger.send_due()
    assert kept.exists(), "it is being told"
    web.held.set()
    until(lambda: web.got, "it is told")

    def is_removed() -> bool:
        head.messenger.send_due()
        return not kept.exists()

    until(is_removed, "nobody needs it any more")
    assert head.messenger._recipients == {}
    head.close()


def test_a_queue_is_bounded_counted_and_given_up() -> None:
    said: list[str] = []
    failed: list[str] = []
    answers = iter(["no", "no", None])

    def send(_url: str, *, title: str, body: str, level: str) -> str | None:
        said.append(f"{title}: {body}")
        return next(answers, None)

    recipient = Recipient(
        "ntfy",
        lambda: "ntfy://x",
        lambda *told: failed.append(told[2]),
        lambda: None,
        send=send,
        retry_s=(0.05,),
        tries_max=2,
    )
    for n in range(UNSENT_MAX + 6):
        recipient.put(Message("t-1", f"{n}", "body", "info"))
    until(lambda: not recipient.unsent(), "all is sent or given up")
    assert failed[0] == "no; it is tried again"
    assert failed[1] == "no; given up after 2 attempts"
    assert any("earlier messages were dropped" in one for one in said)
    recipient.end(1.0)


def test_orch_notify_test_says_who_was_reached(
    tmp_path: Path, web: Web, mail: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    spec = tmp_path / "cluster.yaml"
    dead = "json://127.0.0.1:1/s3cret"

    def write(*urls: str) -> None:
        spec.write_text(
            "version: 1\nname: t\nhosts: [{name: here, transport: local}]\nrun:\n"
            f"  strategy: single\n  script: train.py\n  notify: {{to: {json.dumps(urls)}}}\n"
        )

    desk = Desk(tmp_path)
    write(web.url("x"), mail.url)
    assert desk("notify", "test", str(spec)) == 0
    assert web.got[0]["title"].startswith("orch: a test from ")
    assert "Nothing has happened" in mail.got[0][1]
    write(web.url("x"), dead)
    assert desk("notify", "test", str(spec), "--json") == 4
    write(dead)
    assert desk("notify", "test", str(spec)) == 1
    assert "json  not delivered: " in desk.stdout.getvalue()
    assert "s3cret" not in desk.stdout.getvalue() + desk.stderr.getvalue()


def test_a_recipient_goes_on_after_an_error_in_its_look_up_and_in_what_is_told() -> None:
    sent: list[str] = []
    urls: Iterator[str | Exception] = iter([KeyError("no such run"), *["ntfy://x"] * 3])

    def url() -> str:
        found = next(urls)
        if isinstance(found, str):
            return found
        raise found

    def broken(*_told: str) -> None:
        raise OSError("read-only file system")

    def send(_url: str, *, title: str, **_: object) -> None:
        sent.append(title)

    recipient = Recipient("ntfy", url, broken, broken, send=send, retry_s=(0.01,))
    recipient.put(Message("t-1", "first", "body", "info"))
    recipient.put(Message("t-1", "second", "body", "info"))
    until(lambda: not recipient.unsent(), "both are sent")
    assert sent == ["first", "second"]

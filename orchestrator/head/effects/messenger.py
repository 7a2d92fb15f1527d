"""Sends messages to people about what happens to runs (`notify:`), in threads of its own: no decision waits for it.

One thread reads the journal's new events every two seconds, and the core decides which messages follow. Each recipient
with a message gets a thread of its own, so one that does not answer holds up no other. Messages that are not delivered
yet are kept in a file, and the next coordinator goes on from there: none is lost. A message may arrive twice if a
coordinator dies between delivering it and recording that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.both import durable
from orchestrator.core.errors import SpecError
from orchestrator.core.plan import NotifyPlan
from orchestrator.core.state.run import Run
from orchestrator.head.effects.delivery import deliver
from orchestrator.head.effects.lookout import Lookout
from orchestrator.head.effects.recipient import Message, Recipient
from orchestrator.head.journal.journal import now_utc
from orchestrator.head.journal.news import newest_seq, news
from orchestrator.head.node.secrets import Secrets
from orchestrator.reporting import notices
from orchestrator.reporting.notices import Happened, Held, Notice
from orchestrator.spec.own_notify import OwnNotify, load_own
from orchestrator.spec.recipients import services

log = logging.getLogger(__name__)

CHECK_EVERY_S = 2.0
FLUSH_S = 5.0
"""How long a coordinator that ends waits for what is being delivered; the rest waits for the next one."""

DIRECTORY = "recipients"

Failed = Callable[[str, str, str], None]
"""Called with run id, recipient and reason where a message did not arrive."""


@dataclass(frozen=True, slots=True)
class Place:
    """The files of the messenger."""

    journal: str
    state_dir: str
    kept: str
    own: str
    """The user's own file; empty: there is none."""


class Messenger:
    """Reads events, and gives messages about them to the recipients."""

    def __init__(
        self,
        place: Place,
        owner: str,
        runs: Callable[[], Mapping[str, Run]],
        complaint: Callable[[], str | None],
        failed: Failed,
        *,
        now: Callable[[], float] = time.monotonic,
        send: Callable[..., str | None] = deliver,
    ) -> None:
        self._place, self._owner, self._runs = place, owner, runs
        self._complaint, self._failed = complaint, failed
        self._now, self._send = now, send
        self._secrets = Secrets(place.state_dir, DIRECTORY)
        self._head = socket.gethostname()
        self._lock = threading.Lock()
        self._recipients: dict[tuple[str, str], Recipient] = {}
        """By run (empty: the user's own file) and name."""
        self._complained: str | None = None
        self._own_problem = ""
        self._ended: set[str] = set()
        gap = "people are not told of what happens"
        self._lookout = Lookout(self._work, CHECK_EVERY_S, name="notices", gap=gap)
        kept = durable.read_object(place.kept) or {}
        is_ours = kept.get("owner") == owner and isinstance(kept.get("seq"), int)
        # If the journal is another one than last time, messages are only sent about new events.
        self._seq = kept["seq"] if is_ours else newest_seq(place.journal)
        self._desk = _held(kept, now()) if is_ours else notices.EMPTY
        self._unsent = kept.get("unsent") or [] if is_ours else []

    def start(self) -> None:
        """Start the thread."""
        self._lookout.start()

    def save(self, run_id: str, urls: Sequence[str]) -> None:
        """Keep the URLs of a run's recipients, apart from the plan. Raises OSError if the disk refuses."""
        self._secrets.save(run_id, dict(zip(services(list(urls)), urls, strict=True)))

    def ended(self, run_id: str) -> None:
        """Remove the URLs of an ended run, once all its messages are delivered. It does not block."""
        self._ended.add(run_id)

    def close(self) -> None:
        """Give what is being delivered a few seconds, and keep the rest for the next coordinator."""
        self._lookout.close(wait_s=2)
        until = self._now() + FLUSH_S
        for recipient in list(self._recipients.values()):
            recipient.end(max(0.0, until - self._now()))
        self._keep()

    # -- the thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        # First queue the messages that the coordinator before could not deliver
        unsent, self._unsent = self._unsent, []
        for entry in unsent:
            with contextlib.suppress(KeyError, TypeError):
                message = Message(**{key: str(entry["message"][key]) for key in Message.FIELDS})
                self._put(str(entry["of"]), str(entry["name"]), message)
        self.send_due()

    def send_due(self) -> None:
        """Read new events, and send the messages that are due."""
        due: list[Notice] = []
        before, ended = (self._seq, self._desk), set(self._ended)
        for latest in self._news():
            self._desk, notice = notices.throttle(self._desk, latest, self._now())
            due += [notice] if notice is not None else []
        self._desk, more = notices.due(self._desk, self._now())
        given = [self._notify(notice) for notice in (*due, *more)]
        self._notify_of_head()
        if any(given) or (self._seq, self._desk) != before:
            self._keep()
        owed = {owner_run for (owner_run, _), recipient in self._recipients.items() if recipient.unsent()}
        for run_id in ended - owed:
            self._secrets.remove(run_id)
            for key in [key for key in self._recipients if key[0] == run_id]:
                del self._recipients[key]
            self._ended.discard(run_id)

    def _news(self) -> list[Happened]:
        with contextlib.suppress(OSError):  # a journal that is being written is asked again
            self._seq, happened = news(self._place.journal, self._seq)
            return happened
        return []

    def _notify(self, notice: Notice) -> bool:
        """Give a notice to all recipients that want it. Return whether there is one."""
        run = self._runs().get(notice.last.run_id)
        return self._tell(notice, [run] if run is not None else [])

    def _tell(self, notice: Notice, runs: Iterable[Run]) -> bool:
        """Give a notice to the recipients of these runs, and to the user's own. Return whether one wants it."""
        title, is_wanted, own = notices.title(notice), False, self._own(notice.last.run_id)
        asked: list[tuple[str, NotifyPlan | OwnNotify]] = [("", own)]
        asked += [(run.run_id, run.plan.notify) for run in runs if run.plan.notify is not None]
        for owner_run, wish in asked:
            if notice.kind not in wish.on:
                continue
            body = notices.body(notice, lines=wish.lines, head=self._head)
            for name in self._urls(owner_run) if owner_run else services(list(own.to)):
                level = notices.KINDS[notice.kind].level
                self._put(owner_run, name, Message(notice.last.run_id, title, body, level))
                is_wanted = True
        return is_wanted

    def _notify_of_head(self) -> None:
        """Send one message that the journal cannot be written, since no event can record that."""
        complaint = self._complaint()
        if complaint == self._complained:
            return
        self._complained = complaint
        if complaint is None:
            return
        notice = notices.head_notice(complaint, now_utc()[:19].replace("T", " ") + " UTC")
        self._tell(notice, [run for run in self._runs().values() if not run.phase.is_terminal])

    def _put(self, owner_run: str, name: str, message: Message) -> None:
        key = (owner_run, name)
        recipient = self._recipients.get(key)
        if recipient is None:
            recipient = self._recipients[key] = Recipient(
                name, lambda: self._url(owner_run, name), self._failed, self._keep, send=self._send
            )
        recipient.put(message)

    # -- recipients ----------------------------------------------------------------------------------------

    def _own(self, run_id: str) -> OwnNotify:
        """Return the user's own recipients, who get messages about all runs. A file that cannot be used is an event."""
        try:
            own = load_own(self._place.own)
        except SpecError as e:
            if e.message != self._own_problem:
                self._own_problem = e.message
                self._failed(run_id, "your own recipients", e.message)
            return OwnNotify()
        self._own_problem = ""
        return own

    def _urls(self, run_id: str) -> dict[str, str]:
        try:
            return self._secrets.load(run_id)
        except (OSError, ValueError) as e:
            log.error("%s: its recipients cannot be read: %s", run_id, e)
            return {}

    def _url(self, owner_run: str, name: str) -> str | None:
        """Return the URL as it is now; None if there is no such recipient any more."""
        if owner_run:
            return self._urls(owner_run).get(name)
        own = list(self._own("").to)
        return dict(zip(services(own), own, strict=True)).get(name)

    # -- what the next coordinator needs -------------------------------------------------------------------

    def _keep(self) -> None:
        with self._lock:
            unsent = [
                {"of": owner_run, "name": name, "message": asdict(message)}
                for (owner_run, name), recipient in list(self._recipients.items())
                for message in recipient.unsent()
            ]
            held = [
                {"kind": kind, "count": each.count, "last": asdict(each.last)}
                for (_, kind), each in self._desk.items()
                if each.last is not None
            ]
            kept: dict[str, Any] = {
                "owner": self._owner,
                "seq": self._seq,
                "held": held,
                "unsent": [*self._unsent, *unsent],
            }
            with contextlib.suppress(OSError):  # a full disk costs a message that comes twice, or not at all
                os.makedirs(os.path.dirname(self._place.kept), mode=0o700, exist_ok=True)
                durable.write_json(self._place.kept, kept)


def _held(kept: Mapping[str, Any], now: float) -> notices.Desk:
    """Return the notices that the coordinator before held back. They are sent in a minute."""
    desk: dict[tuple[str, str], Held] = {}
    for entry in kept.get("held") or ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            last = Happened(**entry["last"])
            desk[last.run_id, str(entry["kind"])] = Held(now, int(entry["count"]), last)
    return desk

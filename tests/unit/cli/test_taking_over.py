"""What `orch up --take-over` orders, and in which order, with hosts that are played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.cli import taking_over
from orchestrator.core.errors import ConnectFailed, Refused
from orchestrator.core.plan import HostPlan
from orchestrator.core.state.owner import Driven, Owner
from orchestrator.head.links.conversation import Reply
from orchestrator.head.links.query import Answer

HOSTS = [HostPlan("gpu-a"), HostPlan("gpu-b")]
OLD = Owner("old", "node1", "jane")
RUN = [(host, Driven("t-1", "t", OLD, "", "/ckpt", "alive", host.name, epoch=7)) for host in HOSTS]


class Hosts:
    """Answers each order, and remembers the orders of each turn by their names. Some hosts do not hear a turn."""

    def __init__(self, deaf: dict[int, str] | None = None, left: Sequence[dict[str, Any]] = ()) -> None:
        self.turns: list[dict[str, list[tuple[str, int]]]] = []
        self._deaf = deaf or {}
        self._left = list(left)

    def ask(self, asked: Sequence[tuple[HostPlan, Sequence[Any]]], *, timeout_s: float) -> list[Answer[Any]]:
        assert timeout_s > 0
        self.turns.append(
            {
                host.name: [(order.verb.name, order.fields["epoch"]) for order in orders]
                for host, orders in asked
            }
        )
        deaf = self._deaf.get(len(self.turns) - 1)
        return [
            Answer(host, problem=ConnectFailed(host.name, "no route"))
            if host.name == deaf
            else Answer(host, tuple(Reply({"left": self._left}, None, b"") for _ in orders))
            for host, orders in asked
        ]


def end(hosts: Hosts) -> None:
    taking_over._end(hosts, Owner("new", "node2", "jane"), "t", RUN)  # type: ignore[arg-type]


def test_no_task_is_killed_before_all_hosts_refuse_the_old_coordinator() -> None:
    """A coordinator whose task is killed on one host starts the gang again where it is still obeyed."""
    hosts = Hosts()
    end(hosts)
    fences, kills = hosts.turns
    assert fences == {name: [("unwatch", 1007)] for name in ("gpu-a", "gpu-b")}
    assert kills == {
        name: [("sweep", 1007), ("watch", 1007), ("unwatch", 1007)] for name in ("gpu-a", "gpu-b")
    }, "it is ours only when it has ended: what lives must be found again"


def test_where_a_host_is_not_heard_nothing_is_killed() -> None:
    hosts = Hosts(deaf={0: "gpu-b"})
    with pytest.raises(Refused, match="t-1 on gpu-b: gpu-b: no route") as refused:
        end(hosts)
    assert (
        refused.value.hint
        == "nothing was ended, and nothing of t was started; try again once all hosts answer"
    )
    assert len(hosts.turns) == 1


def test_what_lives_on_is_named() -> None:
    with pytest.raises(Refused, match="t-1 on gpu-a: pid 7: it waits for a disk; t-1 on gpu-b: pid 7"):
        end(Hosts(left=[{"pid": 7, "why": "it waits for a disk"}]))
    with pytest.raises(Refused, match="t-1 on gpu-b: gpu-b: no route") as refused:
        end(Hosts(deaf={1: "gpu-b"}))
    assert refused.value.hint == "nothing of t was started"

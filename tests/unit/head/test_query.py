"""Questions to hosts without a coordinator: all are asked at once."""

from __future__ import annotations

import threading

from orchestrator.core.errors import ConnectFailed
from orchestrator.core.plan import HostPlan
from orchestrator.head.code.bundle import Archive, Bundle
from orchestrator.head.links.query import Asker
from orchestrator.head.reach.transport import Channel
from orchestrator.protocol.orders.records import RUNS

HOSTS = 40
BUNDLE = Bundle(Archive("0" * 64, b""), None, "any")


class Together:
    """Refuses once it was asked to open all hosts; until then it keeps who asks waiting."""

    def __init__(self) -> None:
        self._all = threading.Barrier(HOSTS)

    def open(self, host: HostPlan, command: str) -> Channel:  # noqa: ARG002
        self._all.wait(20.0)
        raise ConnectFailed(host.name, "all were asked at once")

    def close(self, host: HostPlan) -> None:
        """Close nothing."""


def test_hosts_that_do_not_answer_keep_no_other_waiting() -> None:
    hosts = [HostPlan(name=f"h{n}", address=f"h{n}", data_address=f"h{n}") for n in range(HOSTS)]
    asker = Asker({"ssh": Together()}, lambda: BUNDLE)
    answers = asker.ask([(host, [RUNS({"records": False})]) for host in hosts], timeout_s=30.0)
    assert [answer.host for answer in answers] == hosts
    assert {str(answer.problem and answer.problem.message) for answer in answers} == {
        f"h{n}: all were asked at once" for n in range(HOSTS)
    }


def test_no_host_is_no_question() -> None:
    assert Asker({}, lambda: BUNDLE).ask([], timeout_s=1.0) == []

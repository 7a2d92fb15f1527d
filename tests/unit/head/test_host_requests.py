"""What a person asks of a host of a run, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.errors import Refused, UsageError
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.hosts import host_requests
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan


def a_run(phase: Phase = Phase.RUNNING) -> Run:
    return in_phase(new_run("t-1", make_plan(["a", "b"], checkpoint=False), epoch=1, at=0.0), phase)


def with_host(run: Run, name: str, link: Link, gone: str = "") -> Run:
    changed = tuple(replace(one, link=link, gone=gone) if one.name == name else one for one in run.hosts)
    return replace(run, hosts=changed)


def test_a_host_that_the_run_needs_is_not_drained() -> None:
    with pytest.raises(Refused) as refused:
        host_requests.drain(a_run(), "a", at=3.0, now=False, why="", may_be_replaced=lambda _run: False)
    assert "`orch kill t` ends this one" in str(refused.value.hint)


def test_only_a_host_that_does_not_answer_is_given_up() -> None:
    with pytest.raises(Refused, match="b answers: it is not gone"):
        host_requests.give_up(with_host(a_run(), "b", Link.CONNECTED), "b", at=3.0, gone="today")
    event = host_requests.give_up(with_host(a_run(), "b", Link.UNREACHABLE), "b", at=3.0, gone="today")
    assert (event.at, event.host, event.gone) == (3.0, "b", "today")


def test_of_an_ended_run_only_what_was_called_gone_is_let_in_again() -> None:
    ended = a_run(Phase.FAILED)
    with pytest.raises(Refused, match="t-1 has ended: FAILED"):
        host_requests.undrain(ended, "b", at=3.0)
    assert host_requests.undrain(with_host(ended, "b", Link.UNREACHABLE, "today"), "b", at=3.0).host == "b"
    with pytest.raises(UsageError, match="t-1 has no host 'c'") as unknown:
        host_requests.undrain(a_run(), "c", at=3.0)
    assert unknown.value.hint == "its hosts: a, b"

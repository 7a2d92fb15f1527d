"""How many handshakes with one sshd are under way at once, after some that it dropped."""

from __future__ import annotations

import threading

import pytest

from orchestrator.head.reach.ssh.errors import Dropped
from orchestrator.head.reach.ssh.gate import HANDSHAKES_MAX, Gate


def drop(gate: Gate) -> None:
    with pytest.raises(Dropped), gate.handshake():
        raise Dropped("gpu-a", "breaks off")


def at_once(gate: Gate, threads: int = 12) -> int:
    """Return how many of the threads were within the gate together, each waiting for one more to come."""
    within = most = 0
    changed = threading.Condition()

    def enter() -> None:
        nonlocal within, most
        with gate.handshake(), changed:
            within += 1
            most = max(most, within)
            changed.notify_all()
            changed.wait_for(lambda: most >= HANDSHAKES_MAX, timeout=0.05)
            within -= 1

    all_threads = [threading.Thread(target=enter) for _ in range(threads)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    return most


def test_as_many_as_an_unchanged_sshd_takes() -> None:
    assert at_once(Gate()) == HANDSHAKES_MAX


def test_dropped_ones_come_down_to_one_at_a_time_and_no_lower() -> None:
    gate = Gate()
    for _ in range(5):
        drop(gate)
    assert at_once(gate, threads=4) == 1


def test_eight_in_a_row_that_are_not_dropped_allow_one_more() -> None:
    gate = Gate()
    for _ in range(3):
        drop(gate)
    for _ in range(7):
        with gate.handshake():
            pass
    drop(gate)
    for _ in range(8):
        with gate.handshake():
            pass
    assert at_once(gate, threads=4) == 2


def test_another_error_frees_the_turn_and_teaches_nothing() -> None:
    gate = Gate()
    for _ in range(3):
        with pytest.raises(ValueError, match="bug"), gate.handshake():
            raise ValueError("a bug")
    assert at_once(gate) == HANDSHAKES_MAX

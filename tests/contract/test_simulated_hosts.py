"""The simulated agents of the benchmarks say what orch understands: a run on them starts, is shown and is killed."""

from __future__ import annotations

import pytest

from benchmarks import head

HOSTS = 5


def test_a_run_on_simulated_hosts_starts_and_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "SETTLE_S", 0.0)
    cost = head.simulate(HOSTS, windows=0)
    assert [start.head_ms > 0 for start in cost.ups] == [True]
    assert [took_s < head.TIMEOUT_S for took_s in cost.kill_s] == [True]
    assert cost.threads * HOSTS < 40

"""What a failure costs, in parts that add up."""

from __future__ import annotations

from orchestrator.core.downtime import Downtime


def test_the_parts_add_up_also_where_two_clocks_differ_and_no_pace_is_known() -> None:
    down = Downtime(10.0, 9.0, 100, 3.0, ended_at=11.0, started_at=12.0, released_at=15.0)
    cost = down.cost(18.0, 90, restored_at=14.0)
    assert (cost.detected_s, cost.restored_s, cost.total_s) == (0.0, 0.0, 9.0)
    assert (cost.steps_lost, cost.lost_s, cost.training_s) == (10, 3.333, 12.333)
    fine = Downtime(0.00011, 1.00022, 100, 3.0, 3.00044, 7.00088, 15.00176).cost(31.00352, 90, 19.00222)
    assert (fine.detected_s, fine.ended_s, fine.waited_s, fine.started_s) == (1.0, 2.0, 4.0, 8.001)
    assert (fine.restored_s, fine.first_step_s, fine.total_s) == (4.0, 12.002, 31.003), "in milliseconds"
    still = Downtime(10.0, 10.0, 100, 0.0)
    assert still.cost(12.0, 90).lost_s is None, "at no pace nothing is reckoned"
    assert (still.cost(12.0, 120).steps_lost, still.cost(12.0, None).steps_lost) == (0, 100)

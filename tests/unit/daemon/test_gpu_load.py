"""What nvidia-smi goes on saying, read without waiting: a program of the test's own speaks in its place."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest

from orchestrator.daemon.agent.gpu_load import STALE_S, GpuLoads

LINES = "0, NVIDIA H100, 97, 71234, 81559, 61, 310.52\\n1, NVIDIA A100, [N/A], 10, 81559, [N/A], [N/A]\\n"


def speaker(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", f"import time\nprint('{text}', end='', flush=True)\ntime.sleep(60)"]


def heard(loads: GpuLoads) -> list[Any]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if found := loads.latest():
            return list(found)
        os.sched_yield()
    raise AssertionError("nothing was told")


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


def test_every_gpu_is_told_and_what_it_cannot_tell_is_none(clock: list[float]) -> None:
    loads = GpuLoads(speaker(LINES), now=lambda: clock[0])
    loads.start()
    first, second = heard(loads)
    assert first == {
        "index": 0,
        "name": "NVIDIA H100",
        "utilization_percent": 97.0,
        "memory_used_bytes": 71234 << 20,
        "memory_total_bytes": 81559 << 20,
        "temperature_c": 61.0,
        "power_w": 310.52,
    }
    assert (second["utilization_percent"], second["power_w"]) == (None, None)
    clock[0] += STALE_S + 1
    assert loads.latest() == [], "a driver that hangs tells nothing"


def test_half_a_line_is_waited_for_and_nonsense_is_passed_over() -> None:
    loads = GpuLoads(speaker("Unable to determine the device handle\\n, , \\n7, T4, 5, 1, 2, 3, 4\\n8, 5"))
    loads.start()
    assert [load["index"] for load in heard(loads)] == [7]


def test_a_host_without_nvidia_smi_tells_nothing() -> None:
    loads = GpuLoads(["/nonexistent/nvidia-smi"])
    loads.start()
    assert loads.latest() == []

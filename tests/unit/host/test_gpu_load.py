"""What nvidia-smi goes on saying, read without waiting: a program of the test's own speaks in its place."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.host.agent.gpu_load import GONE_S, STALE_S, GpuLoads

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


def test_a_gpu_that_is_told_no_more_has_disappeared(clock: list[float], tmp_path: Path) -> None:
    line = "{0}, NVIDIA H100, 97, 1, 2, 61, 310.5, 00000000:{1}:00.0\\n"
    both, one = line.format(0, "3B") + line.format(1, "AF"), line.format(0, "3B")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f"print('{both}', end='', flush=True)\nopen({str(gate)!r}).read()\n"
    script += f"print('{one}', end='', flush=True)\nimport time; time.sleep(60)"
    loads = GpuLoads([sys.executable, "-S", "-c", script], kernel_log="/nonexistent", now=lambda: clock[0])
    loads.start()
    assert [load["index"] for load in heard(loads)] == [0, 1]
    assert loads.faults() == []
    clock[0] += GONE_S + 1
    gate.write_text("go on")
    deadline = time.monotonic() + 20
    while not loads.faults() and time.monotonic() < deadline:
        loads.latest()
        os.sched_yield()
    assert loads.faults() == [{"index": 1, "xid": None}]
    clock[0] += STALE_S + 1
    assert loads.latest() == []
    assert [fault["index"] for fault in loads.faults()] == [0, 1], "a driver that hangs"


def test_what_the_driver_complains_of_is_told_of_its_gpu(clock: list[float], tmp_path: Path) -> None:
    kernel = tmp_path / "kmsg"
    kernel.write_text("4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 13, of before the agent\n")
    told = "0, NVIDIA H100, 97, 1, 2, 61, 310.5, 00000000:3B:00.0\\n"
    loads = GpuLoads(speaker(told), kernel_log=str(kernel), now=lambda: clock[0])
    loads.start()
    assert heard(loads)
    with kernel.open("a") as log:
        log.write(
            "4,3,4,-;usb 1-1: new device\n4,5,6,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has\n"
        )
        log.write(
            "4,7,8,-;NVRM: Xid (PCI:0000:3b:00): nonsense\n4,7,8,-;NVRM: Xid (PCI:0000:af:00): 48, other\n"
        )
    assert loads.faults() == [{"index": 0, "xid": 79}]
    assert loads.faults() == [{"index": 0, "xid": 79}], "it is a level, and told until the agent ends"

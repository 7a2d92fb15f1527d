"""The CPU of a process is that of all its threads, and of the children that it has reaped."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

from benchmarks import proc

BURNT_S = 0.05
TICK_S = 1 / proc.TICKS_PER_S


def burn() -> None:
    began = time.thread_time()
    while time.thread_time() - began < BURNT_S:
        pass


def test_a_thread_that_has_ended_counts() -> None:
    before = proc.family_cpu_s(os.getpid())
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    assert proc.family_cpu_s(os.getpid()) - before >= BURNT_S


def test_a_child_that_was_reaped_counts() -> None:
    burning = f"import time\nwhile time.process_time() < {BURNT_S}: pass"
    own, before = proc.cpu_s(os.getpid()), proc.family_cpu_s(os.getpid())
    subprocess.run([sys.executable, "-I", "-S", "-c", burning], check=True)
    by_children_s = (proc.family_cpu_s(os.getpid()) - before) - (proc.cpu_s(os.getpid()) - own)
    assert by_children_s >= BURNT_S - 2 * TICK_S

"""The coordinator has a thread for each host: its memory must not grow with what each of them needed once."""

from __future__ import annotations

import subprocess
import sys

COUNT = """
import re, sys, threading
from orchestrator.head.coordinator.main import share_arenas
if sys.argv[1] == "shared":
    share_arenas()
threads, all_are_there = 12, threading.Barrier(13)
def work():
    kept = bytes(10_000)  # above what Python's own allocator takes, below what is mapped by itself
    all_are_there.wait()
    all_are_there.wait()
for _ in range(threads):
    threading.Thread(target=work).start()
all_are_there.wait()
ranges = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) ", open("/proc/self/maps").read(), re.M)
begins = {int(begin, 16) for begin, _ in ranges}
print(sum(begin % (64 << 20) == 0 for begin in begins))  # where the heap of an arena begins
all_are_there.wait()
"""


def arenas(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_threads_share_the_arenas_of_the_c_library() -> None:
    alone = arenas("alone")
    assert alone > 4, "glibc gives each thread an arena of its own"
    assert arenas("shared") <= 2

"""Checkpoints between hosts that share no directory, compared with `scp` of the same file between the same hosts.

Each pair moves the same bytes, scp and orch in turns: from a quiet disk, with memory that the machine has just touched,
and with no earlier copy at the target. The checkpoint is one that TensorFlow has written; scp moves its data
file alone, which is all but a few hundred bytes. One way leads to the head node, as after a failure, when a start waits
for the bytes, and one to a host. Ours begins with the snapshot of the checkpoint on its host, which verifies and hashes
all of it, is checked by SHA-256 and synced at its end; scp does none of that. The head knows what it pushes, so a push
needs no snapshot. While a run trains, half of the time is left to it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.connect import RUN, FirstReports, transport_of, warm_up
from benchmarks.figure import Figure
from benchmarks.lab import lab_of
from benchmarks.limits import LIMITS
from benchmarks.machine import memory_released
from orchestrator.core.plan import CheckpointPlan, Plan, TaskId, TaskPlan
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.code import bundle
from orchestrator.head.links.link import HostLink, Watch
from orchestrator.head.records.checkpoint_store import CheckpointStore
from orchestrator.head.transfer.checkpoints import CheckpointTransfer
from orchestrator.head.transfer.partwise import PartwiseTransfer
from orchestrator.protocol.orders.checkpoints import Manifest
from tests.cluster.lab import Lab, LabHost

SIZES_MB = tuple(map(int, os.environ.get("ORCH_BENCH_MB", "200,1000").split(",")))
PAIRS = 7

SAVE = """import sys
import numpy as np
import tensorflow as tf
size = int(sys.argv[2]) * 250_000
weights = tf.Variable(np.random.default_rng(0).random(size, np.float32))
tf.train.Checkpoint(weights=weights).save(sys.argv[1])
"""
"""Writes a checkpoint of so many megabytes."""


def measure() -> list[Figure]:
    """Measure pulls and pushes against scp, in alternation."""
    with lab_of(1) as lab, transport_of() as transport, tempfile.TemporaryDirectory() as work:
        host, listener = lab.hosts[0], FirstReports(1)
        warm_up(transport, lab.hosts)
        link = HostLink(host.plan(), transport, bundle.load, listener)
        link.attach(RUN, Watch(epoch=1, heartbeat_s=2.0, silence_max_s=60.0))
        try:
            listener.wait()
            figures = []
            for megabytes in SIZES_MB:
                with tempfile.TemporaryDirectory(dir=work) as place:
                    carried = Carried(link, host, Path(place), megabytes)
                    figures += _figures(carried, lab, host, Path(place), megabytes)
            return figures
        finally:
            link.close()


def _figures(carried: Carried, lab: Lab, host: LabHost, work: Path, megabytes: int) -> list[Figure]:
    copy = work / "scp"
    forget_scp = functools.partial(copy.unlink, missing_ok=True)
    to_head, to_host = [_remote(host, carried.file), str(copy)], [str(carried.file), _remote(host, copy)]
    figures = []
    for way, paths, forget, move in (
        ("to the head", to_head, carried.forget_pulled, carried.pull),
        ("to a host", to_host, carried.forget_pushed, carried.push),
    ):
        scp = functools.partial(_scp, lab, host, *paths)
        pairs = [(_seconds(scp, forget_scp), _seconds(move, forget)) for _ in range(PAIRS)]
        ours, theirs = (median(pair[n] for pair in pairs) for n in (1, 0))
        figures.append(
            Figure(
                f"a checkpoint of {megabytes} MB {way}, of the time of scp",
                "%",
                LIMITS["transfer: of the time of scp"],
                tuple(100 * mine / other for other, mine in pairs),
                f"{megabytes / ours:.0f} MB/s, scp {megabytes / theirs:.0f} MB/s: {theirs / ours:.0%} of it",
            )
        )
    return figures


class Carried:
    """A checkpoint on a host, and the head's store for it."""

    def __init__(self, link: HostLink, host: LabHost, work: Path, megabytes: int) -> None:
        self._host = host.name
        self._work = work
        self._head = CheckpointTransfer(str(work / "head"), lambda _run, _name: link)
        generation = work / "ckpt" / "gen-000001"
        generation.mkdir(parents=True)
        save = [sys.executable, "-c", SAVE, str(generation / "ckpt"), str(megabytes)]
        subprocess.run(
            save, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        )
        (self.file,) = generation.glob("ckpt-1.data-*")
        for file in generation.iterdir():
            os.utime(file, (0, 1_700_000_000))
        self._run = _run(host, work / "ckpt")
        self._manifest: Manifest
        self._store: CheckpointStore

    def _transfer(self, run: Run) -> PartwiseTransfer:
        return PartwiseTransfer(self._head, run, 1, lambda _sentence: None)

    def forget_pulled(self) -> None:
        """Remove the snapshot on the host and the head's store."""
        shutil.rmtree(self._work / "ckpt" / ".orch", ignore_errors=True)
        shutil.rmtree(self._work / "store", ignore_errors=True)
        self._store = CheckpointStore(str(self._work / "store"), "bench", "/ckpt", 3)

    def pull(self) -> None:
        """Make a snapshot on the host, and bring it to the store."""
        self._manifest = self._transfer(self._run).snapshot(self._host, 1, None)
        self._transfer(self._run).pull(self._host, self._manifest, self._store, pace=0.0)

    def forget_pushed(self) -> None:
        """Remove the copy in the host's other directory."""
        shutil.rmtree(self._work / "to", ignore_errors=True)

    def push(self) -> None:
        """Bring what was pulled last to that directory."""
        run = _run(None, self._work / "to", self._run)
        self._transfer(run).push(self._host, self._manifest, self._store)


def _run(host: LabHost | None, directory: Path, like: Run | None = None) -> Run:
    directory.mkdir(exist_ok=True)
    plan = host.plan() if host is not None else like.plan.hosts[0] if like is not None else None
    assert plan is not None
    task = TaskPlan(TaskId("worker", 0), plan.name)
    checkpoint = CheckpointPlan(str(directory), shared=False)
    return new_run(
        RUN, Plan("bench", "single", (plan,), (task,), "x.py", checkpoint=checkpoint), epoch=1, at=0.0
    )


def _seconds(work: Callable[[], None], forget: Callable[[], None]) -> float:
    """Return what the work takes once `forget` has removed the copy of the one before."""
    forget()
    os.sync()  # neither pays for what the one before has left to write
    with memory_released(3 * max(SIZES_MB) << 20):
        began = time.perf_counter()
        work()
        return time.perf_counter() - began


def _remote(host: LabHost, path: Path) -> str:
    return f"{host.plan().user}@{host.address}:{path}"


def _scp(lab: Lab, host: LabHost, source: str, target: str) -> None:
    command = [
        "scp",
        "-O",
        "-q",
        "-F",
        "none",
        "-o",
        "BatchMode=yes",
        "-o",
        f"UserKnownHostsFile={lab.known_hosts}",
    ]
    command += ["-o", "GlobalKnownHostsFile=none", "-i", str(lab.identity_file), "-P", str(host.port)]
    subprocess.run([*command, source, target], stdin=subprocess.DEVNULL, check=True)

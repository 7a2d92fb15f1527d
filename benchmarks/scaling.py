"""`python -m benchmarks.scaling [--quick]` measures what more replicas gain here, and writes docs/scaling.md.

Each replica is pinned to a processor core. Every row is run under orch and by hand (plain processes with a TF_CONFIG
written by hand), in turns. The fastest run counts, since other work on the machine only makes runs slower.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import scaling_page as page
from benchmarks.environment import as_users_have_it
from benchmarks.figure import NotMeasured
from benchmarks.lab import DEFAULT_TIMING, cluster_of
from benchmarks.machine import CORES, ROOT, heading, here
from tests.cluster.cluster import Cluster

EXAMPLES = ROOT / "examples"
SCRIPT = "images_per_second.py"
REPLICAS = (1, 2, 4)
TIMEOUT_S = 240.0
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def main(argv: Sequence[str]) -> int:
    """Measure and write the page. Return 1, and leave the page alone, if something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each thing once and short, to try it out")
    options = parser.parse_args(argv)
    as_users_have_it()
    at = here(" ".join(["python -m benchmarks.scaling", *argv]))
    try:
        rates = _rates(repeats=1 if options.quick else 2, steps=20 if options.quick else 100)
        tables = [
            page.scaling(rates, at.cores),
            page.dense(_dense(steps=1 if options.quick else 4)),
            page.data(*_data(epochs=1 if options.quick else 2)),
        ]
    except NotMeasured as e:
        print(f"not measured: {e}", file=sys.stderr)
        return 1
    target = ROOT / "docs/scaling.md"
    target.write_text(page.replaced(target.read_text(), "\n\n".join([heading(at), *tables])))
    print(f"written to {target.relative_to(ROOT)}", file=sys.stderr)
    return 0


def _rates(repeats: int, steps: int) -> list[page.Rate]:
    """Measure the images per second of each strategy, number of replicas, and way to start them."""
    found: dict[tuple[str, str, int], page.Rate] = {}
    with cluster_of(None) as cluster:
        for _ in range(repeats):
            for replicas in REPLICAS:
                rows = (
                    ("multi_worker_mirrored", "under orch", _under_orch),
                    ("multi_worker_mirrored", "by hand", _by_hand),
                    ("mirrored", "under orch", _under_orch),
                )
                for strategy, way, start in rows:
                    print(f"{strategy}, {replicas} replica(s), {way} …", file=sys.stderr, flush=True)
                    args = ["--strategy", strategy, "--steps", str(steps), "--cores", _cores(replicas)]
                    rate = page.Rate(
                        strategy, way, replicas, *_rate(start(cluster, strategy, replicas, args))
                    )
                    known = found.setdefault((strategy, way, replicas), rate)
                    if rate.images_per_s > known.images_per_s:
                        found[strategy, way, replicas] = rate
    return list(found.values())


def _cores(replicas: int) -> str:
    return ",".join(str(core) for core in CORES[:replicas])


def _rate(said: str) -> tuple[float, float]:
    """Return images per second, and milliseconds per step."""
    found = re.search(r"replica\(s\), (\d+) images/s, ([\d.]+) ms a step", said)
    if found is None:
        raise NotMeasured(f"{SCRIPT} told no rate: {said[-500:]}")
    return float(found[1]), float(found[2])


def _under_orch(cluster: Cluster, strategy: str, replicas: int, args: list[str]) -> str:
    alone = strategy == "mirrored"
    cpus: dict[str, Any] = {"replicas_on_cpu": replicas} if alone and replicas > 1 else {}
    tasks = 1 if alone else replicas
    spec = cluster.spec(
        *args,
        tasks=tasks,
        strategy=strategy,
        script=SCRIPT,
        workdir=str(EXAMPLES),
        checkpoint=False,
        env=QUIET,
        timing=DEFAULT_TIMING,
        **cpus,
    )
    done = cluster.orch("up", spec, "--wait", timeout=TIMEOUT_S)
    said = cluster.ok("logs", "t")
    if done.returncode:
        raise NotMeasured(f"{strategy} with {replicas} under orch: {said[-500:]}")
    return said


def _by_hand(_cluster: Cluster | None, _strategy: str, replicas: int, args: list[str]) -> str:
    return "".join(_started(SCRIPT, replicas, args))


def _started(script: str, workers: int, args: list[str], *, pinned: bool = False) -> list[str]:
    """Run workers by hand, as plain processes with TF_CONFIG, and return the output of each."""
    addresses = _free_addresses(workers)
    gang = []
    for index in range(workers):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        env = {**os.environ, **QUIET, "TF_CONFIG": json.dumps(config)}
        if workers == 1:
            del env["TF_CONFIG"]
        pin = ["taskset", "-c", str(CORES[index % len(CORES)])] if pinned else []
        command = [*pin, sys.executable, script, *args]
        gang.append(
            subprocess.Popen(
                command,
                cwd=EXAMPLES,
                env=env,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    try:
        said = [worker.communicate(timeout=TIMEOUT_S)[0] for worker in gang]
    except subprocess.TimeoutExpired as e:
        raise NotMeasured(f"{script} by hand is not done in {TIMEOUT_S:.0f} s") from e
    finally:
        for worker in gang:
            worker.kill()
            worker.wait()
    if any(worker.returncode for worker in gang):
        raise NotMeasured(f"{script} by hand: {said[0][-500:]}")
    return said


def _free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _dense(steps: int) -> page.Dense:
    print("big_dense.py, 2 workers …", file=sys.stderr, flush=True)
    args = ["--steps", str(steps), "--batch", "32"]
    said = "".join(_started("big_dense.py", 2, args, pinned=True))
    found = re.search(r"a step: (\d+) ms alone, (\d+) ms with 2", said)
    reckoned = re.findall(
        r"reckoned for (\d) workers at 1 Gbit/s: (\d+) ms to send, the work of ([\d.]+)", said
    )
    if found is None or not reckoned:
        raise NotMeasured(f"big_dense.py told no times: {said[-500:]}")
    return page.Dense(
        float(found[1]), float(found[2]), tuple((int(n), float(ms), float(work)) for n, ms, work in reckoned)
    )


def _data(epochs: int) -> tuple[list[tuple[str, float]], dict[str, float]]:
    """Return the seconds per epoch of one worker by the state of the pipeline, and of two workers by policy."""
    print("data_pipeline.py, 1 worker, 2 workers …", file=sys.stderr, flush=True)
    args = ["--epochs", str(epochs)]
    alone = "".join(_started("data_pipeline.py", 1, args))
    steps = [
        (name, float(s)) for s, name in re.findall(r"([\d.]+) s an epoch, .* times as fast: (.+)", alone)
    ]
    found = re.search(
        r"without cache: FILE ([\d.]+) s, DATA ([\d.]+) s", "".join(_started("data_pipeline.py", 2, args))
    )
    if not steps or found is None:
        raise NotMeasured(f"data_pipeline.py told no times: {alone[-500:]}")
    return steps, {"FILE": float(found[1]), "DATA": float(found[2])}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

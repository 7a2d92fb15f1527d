"""`python -m benchmarks.gpu [--write]` measures on a machine with NVIDIA GPUs, and writes docs/gpu.md.

Placement (the tests of tests/gpu), what a standby holds of a GPU before its release, what a rescue saves, what orch
costs a training on a GPU, and images per second by GPUs. What needs TensorFlow is left out where there is none, with a
sentence.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from benchmarks import page
from benchmarks.environment import as_users_have_it
from benchmarks.figure import Figure, NotMeasured, table
from benchmarks.lab import DEFAULT_TIMING, cluster_of
from benchmarks.limits import LIMITS
from benchmarks.machine import ROOT, heading, here
from tests.cluster.cluster import Cluster
from tests.rescue.__main__ import kills_of, options_of

PAGE = ROOT / "docs" / "gpu.md"
WORKDIR = Path(__file__).parent / "workdir"
EXAMPLES = ROOT / "examples"
PAIRS = 5
STEPS = 400
RESCUE_WORKERS, RESCUE_KILLS = 2, 8
TIMEOUT_S = 300.0

_HEAD = """<!-- Made by `make bench-gpu`, which measures. Never edit it by hand. -->
# On GPUs

`make bench-gpu` measures this on a machine with NVIDIA GPUs, with the Python that has a framework for them
(`GPU_PYTHON=/path/to/python`). It is not part of `make bench`, nor of any test."""


def main(argv: Sequence[str]) -> int:
    """Return the exit code: 1 without a GPU, where a limit is missed, or where a part could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/gpu.md")
    options = parser.parse_args(argv)
    try:
        gpus = names()
    except NotMeasured as e:
        print(f"{e}\nnothing is measured, and {PAGE.relative_to(ROOT)} stays as it is", file=sys.stderr)
        return 1
    as_users_have_it()
    at = here("make bench-gpu")
    figures: list[Figure] = []
    left_out: list[str] = []
    failures: list[str] = []
    for name, part in PARTS.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            figures += part(len(gpus))
        except LeftOut as e:
            left_out.append(f"{name}: left out: {e}")
        except NotMeasured as e:
            failures.append(f"{name}: NOT MEASURED: {e}")
    print("\n".join([table(figures), *left_out, *failures]) if figures else "\n".join([*left_out, *failures]))
    if options.write:
        lines = [f"- {sentence}" for sentence in [*failures, *left_out]]
        parts = [_HEAD, heading(at, gpus=", ".join(gpus)), "\n".join(lines), page.markdown(figures)]
        PAGE.write_text("\n\n".join(part for part in parts if part) + "\n")
    return 0 if not failures and all(figure.is_kept for figure in figures if figure.is_claim) else 1


class LeftOut(Exception):
    """A part is not for this machine; the message says why."""


def names() -> list[str]:
    """Return the names of the GPUs of this machine. Raises NotMeasured where there is none, or no framework for it."""
    if shutil.which("nvidia-smi") is None:
        raise NotMeasured("no GPU here: there is no nvidia-smi")
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    found = re.findall(r"^GPU \d+: (.+?) \(", done.stdout, re.MULTILINE)
    if done.returncode or not found:
        raise NotMeasured(f"no GPU here: nvidia-smi says {(done.stdout + done.stderr).strip()!r}")
    if not _has("jax") and not _has("torch"):
        raise NotMeasured(f"{sys.executable} has neither JAX nor torch: GPU_PYTHON names another Python")
    return found


def placement(_gpus: int) -> list[Figure]:
    """Run the tests of placement."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-rs", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    if not counts.get("passed"):
        raise NotMeasured(f"pytest tests/gpu: {(done.stdout + done.stderr)[-400:]}")
    bad = counts.get("failed", 0) + counts.get("error", 0)
    note = f"{counts['passed']} passed, {counts.get('skipped', 0)} left out"
    return [Figure("tests of placement on GPUs that fail", "", LIMITS["gpu: placement"], (float(bad),), note)]


def standby(_gpus: int) -> list[Figure]:
    """Ask nvidia-smi what the tasks of a standby hold, and what those that train hold beside it."""
    if not _has("tensorflow"):
        raise LeftOut("this Python has no TensorFlow, and only its strategies have a standby")
    with cluster_of(None) as cluster:
        host = {"name": "here", "transport": "local", "slots": 2, "gpus": 1}
        file = cluster.spec(
            *("--epochs", "2000"),
            hosts=[host],
            types={"worker": {"replicas": 1, "gpus": 1}},
            strategy="mirrored",
            script="mirrored.py",
            workdir=str(EXAMPLES),
            restart={"standby": "on"},
            timing=DEFAULT_TIMING,
        )
        cluster.ok("up", file, timeout=TIMEOUT_S)
        run = cluster.wait(lambda seen: seen["standby"]["state"] == "ready", timeout=TIMEOUT_S)
        used = _used_mb()
        waiting = sum(used.get(int(task["pid"]), 0.0) for task in run["standby"]["tasks"])
        training = sum(used.get(int(task["pid"]), 0.0) for task in run["tasks"])
    if not training:
        raise NotMeasured(f"nvidia-smi names no process of the training: {used}")
    note = f"by nvidia-smi; what trains beside it holds {training:.0f} MB"
    return [
        Figure("GPU memory of a standby before its release", "MB", LIMITS["gpu: standby"], (waiting,), note)
    ]


def rescue(gpus: int) -> list[Figure]:
    """Kill one of two workers with a GPU each, with and without a rescue: NCCL's collectives must let go in time."""
    if not _has("tensorflow"):
        raise LeftOut("this Python has no TensorFlow, whose collectives a rescue ends")
    if gpus < RESCUE_WORKERS:
        raise LeftOut("NCCL wants a GPU for each of two workers")
    asked = ["--kills", str(RESCUE_KILLS), "--gpus", "1", "--fault", "kill", "--rescue", "auto,off"]
    kills, _ = kills_of(options_of(asked))
    with_it = [kill for kill in kills if kill.rescue == "auto"]
    figures = [
        Figure(
            "steps lost by a kill with a rescue",
            "",
            LIMITS["gpu: steps lost by a kill"],
            tuple(float(kill.lost) for kill in with_it),
            "; ".join(sorted({kill.said for kill in with_it})),
        )
    ]
    for name, those in (("with a rescue", with_it), ("without", [k for k in kills if k.rescue == "off"])):
        times = tuple(kill.new_s for kill in those if kill.new_s is not None)
        figures += [Figure(f"kill -9 to the first new step, {name}", "s", inf, times)] if times else []
    return figures


def overhead(_gpus: int) -> list[Figure]:
    """Train the same under orch and by hand, in turns."""
    with cluster_of(None) as cluster:
        pairs = [(_by_hand(cluster, 1), _under_orch(cluster, 1)) for _ in range(PAIRS)]
    note = f"{pairs[0][0]['step_s'] * 1000:.2f} ms a step by hand; {pairs[0][0]['device']}"
    limit = LIMITS["gpu: overhead of a step"]
    return [
        Figure(
            f"{what} on one GPU under orch, over by hand",
            "%",
            limit,
            tuple((mine[key] / theirs[key] - 1) * 100 for theirs, mine in pairs),
            note,
        )
        for what, key in (("step time", "step_s"), ("CPU of a step", "cpu_s"))
    ]


def scaling(gpus: int) -> list[Figure]:
    """Measure images per second by GPUs: 1, 2, 4 and so on, as many as there are."""
    if gpus > 1 and not _has("jax"):
        raise LeftOut("this Python has no JAX, which shares a batch among several GPUs here")
    figures = []
    with cluster_of(None) as cluster:
        for count in (n for n in (1, 2, 4, 8) if n <= gpus):
            found = [_under_orch(cluster, count) for _ in range(3)]
            speeds = tuple(each["images"] / each["step_s"] for each in found)
            figures.append(Figure(f"images/s on {count} GPUs, under orch", "/s", inf, speeds))
    if gpus == 1:
        figures[0] = Figure(
            "images/s on one GPU, under orch", "/s", inf, figures[0].samples, "more GPUs are not here"
        )
    return figures


def _under_orch(cluster: Cluster, gpus: int) -> dict[str, float]:
    result = cluster.directory / "result.json"
    result.unlink(missing_ok=True)
    host = {"name": "here", "transport": "local", "slots": 1, "gpus": gpus}
    spec = cluster.spec(
        *(str(gpus), str(STEPS), str(result)),
        hosts=[host],
        types={"worker": {"replicas": 1, "gpus": gpus}},
        strategy="processes",
        script="gpu_train.py",
        workdir=str(WORKDIR),
        checkpoint=False,
        timing=DEFAULT_TIMING,
    )
    done = cluster.orch("up", spec, "--wait", timeout=TIMEOUT_S)
    if done.returncode or not result.exists():
        raise NotMeasured(f"gpu_train.py under orch: {cluster.ok('logs', 't')[-400:]}")
    return dict(json.loads(result.read_text()))


def _by_hand(cluster: Cluster, gpus: int) -> dict[str, float]:
    result = cluster.directory / "result-by-hand.json"
    result.unlink(missing_ok=True)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))}
    command = [sys.executable, "gpu_train.py", str(gpus), str(STEPS), str(result)]
    done = subprocess.run(
        command, cwd=WORKDIR, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise NotMeasured(f"gpu_train.py by hand: {done.stderr[-400:]}")
    return dict(json.loads(result.read_text()))


def _used_mb() -> dict[int, float]:
    """Return the GPU memory that each process holds, by pid, as nvidia-smi tells it."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split(",") for line in lines if "," in line]
    return {int(pid): float(used) for pid, used in rows if used.strip().isdecimal()}


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


PARTS: dict[str, Callable[[int], list[Figure]]] = {
    "placement": placement,
    "standby": standby,
    "rescue": rescue,
    "overhead": overhead,
    "scaling": scaling,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs a script plain, as its author does; or as the workers of `transparent: true`.

The workers have the runtime's own entry and a real TF_CONFIG; the gang is killed and seeded here.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from orchestrator.both.hostdir import task_dir
from orchestrator.checkpoints import copying, seed, verify
from tests.contract.strategy_harness import free_ports, with_row
from tests.public_scripts import child

ROOT = Path(__file__).parents[2]
RUN = "run-1"
LIMIT_S = 900.0
"""How long a training may take on a busy machine before it counts as hung."""
OPTIONS = {"strategy": "multi_worker_mirrored", "transparent": True, "save_every_steps": 2, "proves": True}
_SHORTER = (
    (r"\bkeras_core\b", "keras"),
    (r"\b((?:[a-z_]*)epochs|EPOCHS|NUM_EPOCHS)(\s*=\s*)\d+\b", r"\g<1>\g<2>2"),
    (r"\b([a-z_]*batch_size|BATCH_SIZE)(\s*=\s*)\d+\b", r"\g<1>\g<2>32"),
)
"""What is changed in the copy that is run: few steps, the name under which Keras 3 was developed."""


def shortened(text: str, changes: list[list[str]]) -> str:
    """Return the script with few epochs, small batches, and what the collection asks for. Its lines stay."""
    for pattern, new in (*_SHORTER, *changes):
        text = re.sub(pattern, new, text)
    return text


def of_tf_keras(text: str) -> str:
    """Return the script with tf_keras in the place of Keras 3. Its lines stay."""
    named = re.sub(r"(?m)^(\s*)import keras$", r"\g<1>import tf_keras as keras", text)
    return re.sub(r"(?m)^(\s*(?:from|import) )keras\b", r"\g<1>tf_keras", named)


def as_script(path: Path) -> str:
    """Return the text of a script, or the code of a notebook without its shell commands."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    code = "\n".join("".join(each["source"]) for each in cells if each["cell_type"] == "code")
    return re.sub(r"(?m)^([ \t]*)[!%].*$", r"\g<1>pass", code)


class Child:
    """One process: the script alone, or a worker of it. Its HOME and what lies beside it are those of `files.py`.

    A second generation has the working directory of the first, as on a host.
    """

    def __init__(
        self,
        kind: str,
        script: Path,
        home: Path,
        data: Path,
        env: dict[str, str],
    ) -> None:
        (home / "work").mkdir(parents=True, exist_ok=True)
        for each in (data / "beside").iterdir():
            if not (home / "work" / each.name).exists():
                (home / "work" / each.name).symlink_to(each)
        self.home = home
        self.code: int | None = None
        told = {
            "CUDA_VISIBLE_DEVICES": "",
            "ORCH_PUBLIC_STACKS_AFTER": str(LIMIT_S - 20),
            **env,
        }
        self._said_before = len(self.log) if (home / "log").exists() else 0
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _be(kind, script, home, told)

    def poll(self) -> int | None:
        """Return the exit code once it has ended, negative for a signal."""
        if self.code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    @property
    def log(self) -> str:
        """What it and its generations before have printed."""
        return (self.home / "log").read_text(errors="replace")

    @property
    def log_of_generation(self) -> str:
        """What it has printed itself."""
        return self.log[self._said_before :]

    @property
    def killed_itself(self) -> bool:
        """Whether it ended by SIGKILL before it came to its end."""
        return (self.home / "killed").exists()

    def result(self) -> dict[str, Any] | None:
        """Return its figures and weights, if it got so far."""
        return stored(self.home)


def stored(home: Path) -> dict[str, Any] | None:
    """Return the figures and weights that a process has left."""
    try:
        found: dict[str, Any] = json.loads((home / "result.json").read_text())
    except OSError:
        return None
    with np.load(home / "weights.npz") as saved:
        found["weights"] = [saved[f"arr_{number}"] for number in range(len(saved.files))]
    return found


def import_once(data: Path) -> None:
    """Import Keras and TensorFlow, for all that is forked from this process: it takes longer than they train.

    Nothing is computed here: what TensorFlow has begun to use does not survive a fork.
    """
    told = {"HOME": str(data / "home"), "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    os.environ.update(told)
    importlib.import_module("keras")


def _be(kind: str, script: Path, home: Path, env: dict[str, str]) -> NoReturn:
    """Become a process of its own: the script alone, or a worker."""
    code = 1
    try:
        log = os.open(home / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(env)
        os.chdir(home / "work")
        code = child.main(kind, str(script), home)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def plain(script: Path, home: Path, data: Path, env: dict[str, str]) -> Child:
    """Start it as `python script.py` does."""
    return Child("alone", script, home, data, env)


def of_worker(home: Path, index: int) -> Path:
    """Return the directory of a worker, whose `work` it has to itself, as on a host."""
    return Path(task_dir(str(home), RUN, f"worker:{index}"))


class Gang:
    """The workers of one generation. With `kill`, one of them kills itself at a step."""

    def __init__(
        self,
        script: Path,
        home: Path,
        data: Path,
        directories: list[Path],
        env: dict[str, str],
        kill: tuple[int, int] | None = None,
        replicas: int = 1,
    ) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(directories))]
        self.workers = []
        self._sockets = []
        for index, directory in enumerate(directories):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            ours, theirs = socket.socketpair()
            told = {
                "ORCH_FD": str(theirs.fileno()),
                "ORCH_RUNTIME": json.dumps(with_row({**OPTIONS, "replicas_on_cpu": replicas})),
                "ORCH_CHECKPOINT_DIR": str(directory),
                "ORCH_TASK": f"worker:{index}",
                "ORCH_HOST_DIR": str(home),
                "ORCH_RUN": RUN,
                **env,
            }
            if kill is not None and kill[0] == index:
                told["ORCH_PUBLIC_KILL_AT"] = str(kill[1])
            worker = Child("worker", script, of_worker(home, index), data, told)
            self.workers.append(worker)
            theirs.close()
            ours.sendall(json.dumps({"go": {"env": {"TF_CONFIG": json.dumps(config)}}}).encode() + b"\n")
            ours.setblocking(False)
            self._sockets.append(ours)

    def listen(self) -> None:
        """Take what they say: a socket that nobody reads would fill up."""
        for each in self._sockets:
            try:
                while each.recv(1 << 16):
                    pass
            except OSError:
                continue

    def ended(self) -> bool:
        """Return whether all have ended; one that failed takes the others with it, as under orch."""
        self.listen()
        codes = [worker.poll() for worker in self.workers]
        if any(codes):
            time.sleep(1.0)
            self.kill()
        return all(worker.code is not None for worker in self.workers)

    def kill(self) -> None:
        """Kill them all."""
        for worker in self.workers:
            worker.kill()


def seeded(root: Path, generation: int, workers: int) -> list[Path]:
    """Return a checkpoint directory for each worker of a generation, as orch gives them."""
    chief = Path(seed.seed(str(root / "shared"), generation)["path"])
    directories = [chief]
    for index in range(1, workers):
        scratch = root / f"task-{index}" / f"gen-{generation:06d}" / "scratch"
        copying.copy(str(chief), str(scratch))
        directories.append(scratch)
    return directories


def until(done: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Wait for it; return False after the limit."""
    until_at = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > until_at:
            return False
        time.sleep(0.1)
    return True


def saved_step(directory: Path) -> int:
    """Return the step of the newest whole checkpoint, 0 for none."""
    found = verify(str(directory))["checkpoint"] or {}
    return int(found.get("global_step") or 0)

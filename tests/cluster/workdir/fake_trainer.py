"""A trainer without TensorFlow, but with real sockets, real checkpoint files, and TensorFlow's way of failing.

It keeps a connection to every peer, and ends with an UnavailableError shortly after one breaks. It takes SIGTERM as a
notice and trains on. If its port is taken, it fails with TensorFlow's message. With `--lockstep` a step ends only when
all tasks have done it, so a peer that is cut off holds up all others, as in an all-reduce.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from orchestrator import runtime


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--pace", type=float, default=0.02, help="seconds a step")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--fail-code", type=int, default=1)
    parser.add_argument("--fail-task", default="", help="only this one fails")
    parser.add_argument("--fail-later", action="store_true", help="a step later in each generation")
    parser.add_argument("--fail-early", action="store_true", help="before the peers are met")
    parser.add_argument("--fail-once", action="store_true", help="in the first generation only")
    parser.add_argument("--nan-once", action="store_true", help="in the first generation only")
    parser.add_argument("--nan-at", type=int, default=-1, help="from this step on the loss is no number")
    parser.add_argument("--restore-nothing", action="store_true")
    parser.add_argument("--patient", action="store_true", help="a save that fails is tried again at the next")
    parser.add_argument("--talk", action="store_true", help="of each step, in a line of its own")
    parser.add_argument("--lockstep", action="store_true", help="a step ends when all have done it")
    parser.add_argument(
        "--lonely", action="store_true", help="in lockstep, the chief goes on without the silent"
    )
    parser.add_argument("--remove-backup", action="store_true", help="at the end, as BackupAndRestore does")
    parser.add_argument(
        "--unfenced", action="store_true", help="as a task that cannot look for its successor"
    )
    parser.add_argument("--lose-port", action="store_true", help="once, to another process, before the bind")
    parser.add_argument("--late-failure", action="store_true", help="others fail after the chief's exit 0")
    return parser.parse_args()


def checkpoint_path() -> str | None:
    directory = os.environ.get("ORCH_CHECKPOINT_DIR")
    return os.path.join(directory, "model.weights.h5") if directory else None


def restore() -> int:
    path = checkpoint_path()
    if path is None or not os.path.exists(path):
        return 0
    import h5py

    with h5py.File(path) as file:
        return int(file["optimizer/vars/0"][()])


def save(step: int) -> None:
    path = checkpoint_path()
    if path is None:
        return
    import h5py

    with h5py.File(path + ".new", "w") as file:
        file["optimizer/vars/0"] = step
        file["layers/dense/vars/0"] = [float(step)] * 256
    os.replace(path + ".new", path)


class Gang:
    """The connections to all peers. A broken one ends this process, as in TensorFlow."""

    def __init__(self, lockstep: bool = False, lonely: bool = False, lose_port: bool = False) -> None:
        self.lockstep = lockstep
        self.lonely = lonely
        self._accepted = []
        self._connected = []
        self._to_chief = None
        self._chief_watch = None
        config = json.loads(os.environ.get("TF_CONFIG", "{}"))
        self.workers = config.get("cluster", {}).get("worker", [])
        self.index = config.get("task", {}).get("index", 0)
        if self.workers:
            if lose_port:
                give_away(int(self.workers[self.index].rpartition(":")[2]))
            self._listen()
            self._connect()

    def _listen(self) -> None:
        self._server = socket.socket()
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._server.bind(("0.0.0.0", int(self.workers[self.index].rpartition(":")[2])))
        except OSError as e:
            raise RuntimeError(f"Could not start gRPC server: {e}") from e
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._server.accept()
            connection.sendall(GREETING)
            self._accepted.append(connection)
            if self.lockstep and self.index == 0:
                continue  # `step` reads it
            threading.Thread(target=self._watch, args=(connection,), daemon=True).start()

    def _connect(self) -> None:
        for i, address in enumerate(self.workers):
            if i >= self.index:
                continue
            host, _, port = address.rpartition(":")
            while True:
                # Before the release, the shim listens on a task's port to reserve it. Only the peer sends a greeting.
                with contextlib.suppress(OSError):
                    connection = socket.create_connection((host, int(port)), timeout=5)
                    if connection.recv(1) == GREETING:
                        break
                time.sleep(0.05)
            connection.settimeout(None)
            self._connected.append(connection)
            if self.lockstep and i == 0:
                self._to_chief = connection
                continue
            watch = threading.Thread(target=self._watch, args=(connection,), daemon=True)
            watch.start()
            self._chief_watch = watch if i == 0 else self._chief_watch

    def wait_for_the_chiefs_end(self) -> None:
        """Wait for the end of the chief. Do not use it with lockstep."""
        self._chief_watch.join()

    def step(self) -> None:
        """Synchronise like an all-reduce: the chief waits for all others, and then they wait for the chief."""
        if not self.lockstep:
            return
        try:
            if self._to_chief is not None:
                self._to_chief.sendall(b".")
                self._heard(self._to_chief)
                return
            while len(self._accepted) < len(self.workers) - 1:
                time.sleep(0.01)
            for connection in self._accepted:
                connection.settimeout(1.0 if self.lonely else None)
                self._heard(connection)
            for connection in self._accepted:
                connection.sendall(b".")
        except TimeoutError:
            self.lockstep = False
        except OSError:
            self._end()

    def _heard(self, connection: socket.socket) -> None:
        if not connection.recv(1):
            self._end()

    def _watch(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if connection.recv(1) == DONE_TOO:
                connection.recv(1)
                return
        self._end()

    def leave(self) -> None:
        """Tell all peers that this one has made its steps: without lockstep some are behind, and go on."""
        DONE.set()
        for connection in (*self._accepted, *self._connected):
            with contextlib.suppress(OSError):
                connection.sendall(DONE_TOO)

    def _end(self) -> None:
        if not DONE.is_set():
            time.sleep(0.3)
            print("UnavailableError: a peer went away", file=sys.stderr, flush=True)
            os._exit(1)


def give_away(port: int) -> None:
    """Let another process take the port between the shim's close and our bind."""
    taker = subprocess.Popen([sys.executable, "-S", "-c", TAKER, str(port)], stdout=subprocess.PIPE)
    taker.stdout.readline()
    print(f"port {port} is lost", flush=True)


TAKER = """
import socket, sys, time
taken = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("taken", flush=True)
time.sleep(60)
"""
DONE = threading.Event()
GREETING = b"!"
DONE_TOO = b"d"


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM: a preemption notice", flush=True))
    if options.unfenced:
        os.environ["ORCH_RESCUE_DIR"] = os.curdir  # it is no directory of a generation
    if options.fail_early:
        raise ValueError("no data set here")
    me = os.environ.get("ORCH_TASK", "worker:0")
    loses = options.lose_port and me == options.fail_task and os.environ["ORCH_RESTARTS"] == "0"
    gang = Gang(options.lockstep, options.lonely, loses)
    step = 0 if options.restore_nothing else restore()
    print(f"{me} starts at step {step}, restart {os.environ.get('ORCH_RESTARTS')}", flush=True)
    failing = options.fail_task in ("", me) and not (options.fail_once and os.environ["ORCH_RESTARTS"] != "0")
    fail_at = options.fail_at + (int(os.environ["ORCH_RESTARTS"]) if options.fail_later else 0)
    while step < options.steps:
        if failing and step >= fail_at >= 0:
            if options.fail_code == 42:
                save(step)
                print("saved", flush=True)
                return 42
            raise ValueError(f"the data ends at step {step}")
        time.sleep(options.pace)
        gang.step()
        step += 1
        is_lost = 0 <= options.nan_at <= step and not (
            options.nan_once and os.environ["ORCH_RESTARTS"] != "0"
        )
        runtime.report(step, total=options.steps, loss=math.nan if is_lost else 1.0 / step)
        if options.talk:
            print(f"{me} at step {step}", flush=True)
        if step % options.save_every == 0:
            try:
                save(step)
            except OSError as e:
                if not options.patient:
                    raise
                print(f"step {step} is not saved: {e}", flush=True)
    gang.leave()
    if options.remove_backup and os.environ.get("ORCH_CHECKPOINT_DIR"):
        shutil.rmtree(os.environ["ORCH_CHECKPOINT_DIR"])
    print(f"{me} done at step {step}", flush=True)
    if options.late_failure and gang.index:
        gang.wait_for_the_chiefs_end()
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())

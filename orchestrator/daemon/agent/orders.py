"""What each order does. An order answers once, at once or when its job has ended; asked twice, it is done once.

Nothing here waits: what may hang (a shared directory) or take long runs as a job.
"""

from __future__ import annotations

import json
import os
import sys

from orchestrator.adapters.channel import BLOB_BYTES_MAX
from orchestrator.adapters.checkpoints import ABOUT as CHECKPOINT_VERBS
from orchestrator.adapters.host import codestore, hostdir, hostlog, summaries
from orchestrator.adapters.host.hostdir import HostFault
from orchestrator.daemon.agent import faults, runs, start, sweep
from orchestrator.daemon.agent.jobs import RAW, Result, answer_of
from orchestrator.daemon.agent.reply import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.daemon.agent.context import Context, Order
    from orchestrator.daemon.agent.streams import Output

CHECKPOINT_S = 600.0
"""A large checkpoint on a slow share; then the share is taken to hang."""

PROBE_S = 60.0
LOOK_S = 30.0

NO_PYTHON_HINT = "give the full path of the Python that has TensorFlow as `python` in the cluster spec"

_BEGINS_A_RUN = ("code", "start", "seed", "receive")
_UNFENCED = ("probe", "psutil", "runs")
"""They change nothing of a run."""


class Orders:
    """Everything that an agent may be told."""

    def __init__(self, context: Context, output: Output) -> None:
        self._context = context
        self._host = context.host
        self._jobs = context.jobs
        self._tasks = context.tasks
        self._directories = context.directories
        self._output = output
        self._blobs = codestore.Receiver(self._host.host_dir)
        self._chunks = codestore.Receiver(os.path.join(self._host.host_dir, "checkpoints"))

    def handle(self, order: Order, blob: bytes) -> None:
        """One order, fenced: of an older coordinator it is refused, in this one place."""
        reply = Reply(self._output, order.get("id"))
        reply.attempt(lambda: self._handle(order, blob, reply))

    def _handle(self, order: Order, blob: bytes, reply: Reply) -> Order | None:
        verb = str(order.get("order"))
        do = getattr(self, f"_on_{verb}", None)
        if do is None:
            raise HostFault("unknown-order", f"this agent does not know the order {verb!r}")
        try:
            if verb not in _UNFENCED and "run" in order:
                run, epoch = str(order["run"]), int(order["epoch"])
                hostdir.accept_epoch(self._host.host_dir, run, epoch, create=verb in _BEGINS_A_RUN)
            value: Order | None = do(order, blob, reply)
        except (KeyError, TypeError, ValueError) as e:
            raise HostFault("bad-order", f"the order {verb!r} cannot be read: {type(e).__name__}: {e}") from e
        return value

    # ---------------------------------------------------------------- watching

    def _on_watch(self, order: Order, _blob: bytes, _reply: Reply) -> Order:
        self._tasks.watch(str(order["run"]), max(0.05, float(order["heartbeat_s"])))
        return {}

    def _on_unwatch(self, order: Order, _blob: bytes, _reply: Reply) -> Order:
        self._tasks.unwatch(str(order["run"]))
        self._directories.forget(str(order["run"]))
        return {}

    # ---------------------------------------------------------------- before a start

    def _on_probe(self, order: Order, _blob: bytes, reply: Reply) -> None:
        wish = {key: order.get(key) for key in ("script", "checkpoint_dir", "run")}
        wish["host_dir"] = self._host.host_dir
        python = str(order["python"])
        self._python(
            python, ["probe"], reply, "the probe", deadline_s=PROBE_S, stdin=json.dumps(wish).encode()
        )

    def _on_psutil(self, order: Order, blob: bytes, reply: Reply) -> Order | None:
        digest, last = str(order["sha256"]), bool(order["last"])
        whole = self._blobs.take(digest, int(order["offset"]), blob, last)
        if not (last and whole):
            return {}
        archive = os.path.join(self._host.host_dir, "blobs", digest)

        def unpacked(_result: Result) -> None:
            self._host.load_psutil()  # the host's own, where the pushed one does not work
            reply.ok({})

        self._jobs.function(lambda: self._host.unpack_psutil(archive, digest), unpacked, deadline_s=LOOK_S)
        return None

    def _on_code(self, order: Order, _blob: bytes, reply: Reply) -> Order | None:
        host_dir, run = self._host.host_dir, str(order["run"])
        files = codestore.check(order["files"])
        answer: Order = {"digest": codestore.digest_of(files), "missing": []}
        tree = codestore.tree_dir(host_dir, run, answer["digest"])
        is_there = os.path.isdir(tree)
        answer["missing"] = [] if is_there else codestore.missing(host_dir, files)
        if answer["missing"]:
            return answer

        def make() -> Order:
            if is_there:
                return {**answer, "missing": codestore.repair(host_dir, tree, files)}
            damaged = codestore.build(host_dir, run, files)
            if not damaged:
                sweep.tidy(host_dir, run, answer["digest"])
            return {**answer, "missing": damaged}

        self._fork(make, reply, "putting the code in place", deadline_s=CHECKPOINT_S)
        return None

    def _on_blob(self, order: Order, blob: bytes, _reply: Reply) -> Order:
        blobs = self._chunks if order.get("store") == "checkpoints" else self._blobs
        whole = blobs.take(str(order["sha256"]), int(order["offset"]), blob, bool(order["last"]))
        return {} if whole else {"damaged": True}

    def _on_highest(self, order: Order, _blob: bytes, reply: Reply) -> None:
        from orchestrator.adapters.checkpoints.places import generations

        directory = str(order["dir"])
        self._fork(
            lambda: {"generation": max(generations(directory), default=0)},
            reply,
            f"the look into {directory}",
            deadline_s=LOOK_S,
        )

    def _on_seed(self, order: Order, _blob: bytes, reply: Reply) -> None:
        argv = [
            "checkpoints",
            "seed",
            "--dir",
            str(order["dir"]),
            "--generation",
            str(int(order["generation"])),
        ]
        argv += ["--keep", str(int(order["keep"]))]
        if order.get("from_scratch"):
            argv.append("--from-scratch")
        if order.get("only"):
            from orchestrator.adapters.checkpoints import safe

            argv += ["--only", safe.directory_of(str(order["dir"]), str(order["only"]))]
        if order.get("by"):
            argv += ["--by", json.dumps(order["by"])]
        self._directories.watch(str(order["run"]), str(order["dir"]))
        self._python(str(order["python"]), argv, reply, "the seeding of the checkpoint directory")

    def _on_verify(self, order: Order, _blob: bytes, reply: Reply) -> None:
        directory = os.path.join(str(order["dir"]), f"gen-{int(order['generation']):06d}")
        argv = ["checkpoints", "verify", directory]
        self._directories.watch(str(order["run"]), str(order["dir"]))
        self._python(str(order["python"]), argv, reply, "the verification of the checkpoint")

    def _on_snapshot(self, order: Order, _blob: bytes, reply: Reply) -> None:
        root = str(order["dir"])
        argv = ["checkpoints", "snapshot", root, os.path.join(root, f"gen-{int(order['generation']):06d}")]
        argv += [str(order["path"])] if order.get("path") else []
        self._python(str(order["python"]), argv, reply, "the snapshot of the checkpoint")

    def _on_receive(self, order: Order, _blob: bytes, reply: Reply) -> None:
        from orchestrator.adapters.checkpoints import safe

        root, manifest = str(order["dir"]), dict(order["manifest"])
        chunks = os.path.join(self._host.host_dir, "checkpoints", "blobs")
        self._fork(
            lambda: safe.receive(root, manifest, chunks),
            reply,
            "putting the checkpoint in place",
            deadline_s=CHECKPOINT_S,
        )

    def _on_chunk(self, order: Order, _blob: bytes, reply: Reply) -> None:
        from orchestrator.adapters.checkpoints import safe

        bytes_max = max(1, min(int(order["max_bytes"]), BLOB_BYTES_MAX))
        where = str(order["dir"]), str(order["digest"]), str(order["name"]), int(order["offset"])

        def read(result: Result) -> None:
            if result.output[:1] == RAW and not result.timed_out:
                reply.ok({}, result.output[1:])
            else:
                reply.attempt(lambda: answer_of(result, "the reading of the snapshot"))

        self._jobs.function(lambda: safe.read_chunk(*where, bytes_max), read, deadline_s=LOOK_S)

    def _on_checkpoints(self, order: Order, _blob: bytes, reply: Reply) -> None:
        verb = str(order["do"])
        if verb not in CHECKPOINT_VERBS:
            raise HostFault("bad-order", f"nothing can be done to checkpoints by the name of {verb!r}")
        argv = ["checkpoints", verb, str(order["dir"])]
        argv += [str(order["what"])] if order.get("what") else []
        self._python(str(order["python"]), argv, reply, "the look into the checkpoint directory")

    # ---------------------------------------------------------------- a task's life

    def _on_start(self, order: Order, _blob: bytes, reply: Reply) -> Order | None:
        return start.start(self._context, order, reply)

    def _on_release(self, order: Order, _blob: bytes, reply: Reply) -> None:
        return start.release(self._context, order, reply)

    def _on_stop(self, order: Order, _blob: bytes, _reply: Reply) -> Order | None:
        try:
            link = self._tasks.link(str(order["run"]), str(order["task"]), int(order["generation"]))
            self._tasks.forward(link, order)
        except HostFault as e:
            if e.code != "gone":
                raise  # `no-task`: its start never came, which the coordinator must know
            return {}  # what has ended need not be stopped
        return None

    def _on_stacks(self, order: Order, _blob: bytes, _reply: Reply) -> None:
        link = self._tasks.link(str(order["run"]), str(order["task"]), int(order["generation"]))
        self._tasks.forward(link, order)

    # ---------------------------------------------------------------- afterwards

    def _on_sweep(self, order: Order, _blob: bytes, reply: Reply) -> None:
        run, generation_max = str(order["run"]), int(order["generation_max"])
        ports = []
        for link in self._tasks.links(run, generation_max):
            if link.task is not None and link.task.get("port"):
                ports.append(int(link.task["port"]))
            if link.socket is not None:
                # First by the one who reaps it, so that its record says that we ended it.
                stop = {"order": "stop", "grace_s": 0, "run": run, "epoch": order["epoch"]}
                self._tasks.forward(link, {**stop, "task": link.key[1], "generation": link.key[2]})
        host_dir = self._host.host_dir
        self._fork(
            lambda: sweep.sweep(host_dir, run, generation_max, ports),
            reply,
            "the sweep",
            deadline_s=LOOK_S,
        )

    def _on_log(self, order: Order, _blob: bytes, reply: Reply) -> None:
        directory = hostdir.generation_dir(
            self._host.host_dir, str(order["run"]), str(order["task"]), int(order["generation"])
        )
        bytes_max = max(1, min(int(order["max_bytes"]), BLOB_BYTES_MAX))
        offset, data, end = hostlog.read(directory, int(order["offset"]), bytes_max)
        reply.ok({"offset": offset, "end": end}, data)

    def _on_summaries(self, order: Order, _blob: bytes, reply: Reply) -> None:
        host_dir, run = self._host.host_dir, str(order["run"])
        self._fork(
            lambda: summaries.listing(host_dir, run),
            reply,
            "the look for TensorBoard's files",
            deadline_s=LOOK_S,
        )

    def _on_summary(self, order: Order, _blob: bytes, reply: Reply) -> None:
        bytes_max = max(1, min(int(order["bytes_max"]), BLOB_BYTES_MAX))
        data = summaries.read(
            self._host.host_dir,
            str(order["run"]),
            str(order["task"]),
            int(order["generation"]),
            str(order["path"]),
            int(order["offset"]),
            bytes_max,
        )
        reply.ok({}, data)

    def _on_forget(self, order: Order, _blob: bytes, reply: Reply) -> None:
        host_dir, run = self._host.host_dir, str(order["run"])
        self._tasks.forget(run)

        def remove() -> Order:
            codestore.forget(host_dir, run)
            codestore.remove_unused_blobs(host_dir)
            return {}

        self._fork(remove, reply, "the removal", deadline_s=CHECKPOINT_S)

    # ---------------------------------------------------------------- without, or beside, a coordinator

    def _on_keep(self, order: Order, _blob: bytes, _reply: Reply) -> Order:
        runs.keep(self._host.host_dir, str(order["run"]), dict(order["record"]))
        return {}

    def _on_runs(self, order: Order, _blob: bytes, reply: Reply) -> None:
        host_dir, records = self._host.host_dir, bool(order.get("records"))
        self._fork(lambda: runs.known(host_dir, records=records), reply, "the look", deadline_s=CHECKPOINT_S)

    def _on_remove(self, order: Order, _blob: bytes, reply: Reply) -> None:
        host_dir, run, even = self._host.host_dir, str(order["run"]), bool(order.get("even_driven"))
        self._fork(
            lambda: runs.remove(host_dir, run, even_driven=even),
            reply,
            "the removal",
            deadline_s=CHECKPOINT_S,
        )

    def _on_fault(self, order: Order, _blob: bytes, reply: Reply) -> None:
        faults.inject(self._context, order, reply)

    # ---------------------------------------------------------------- jobs

    def _fork(self, work: Callable[[], Order], reply: Reply, what: str, *, deadline_s: float) -> None:
        self._jobs.function(
            work, lambda result: reply.attempt(lambda: answer_of(result, what)), deadline_s=deadline_s
        )

    def _python(
        self,
        python: str,
        argv: list[str],
        reply: Reply,
        what: str,
        *,
        deadline_s: float = CHECKPOINT_S,
        stdin: bytes = b"",
    ) -> None:
        """`<the run's Python> <bundle> <argv>`: it prints one JSON object."""
        # -I: neither the login's PYTHONPATH nor the home directory has a say in what is imported.
        command = [os.path.expanduser(python or sys.executable), "-I", self._host.bundle, *argv]

        def answer(result: Result) -> Order:
            try:
                return answer_of(result, f"{what} (by {python})")
            except HostFault as e:
                if argv[0] == "probe" and e.code == "job-failed":
                    raise HostFault("no-python", e.message, NO_PYTHON_HINT) from e
                raise

        def done(result: Result) -> None:
            reply.attempt(lambda: answer(result))

        try:
            self._jobs.program(command, done, deadline_s=deadline_s, stdin=stdin)
        except OSError as e:
            raise no_python(python, e) from e


def no_python(python: str, error: OSError) -> HostFault:
    """The run's interpreter cannot be started."""
    return HostFault(
        "no-python",
        f"the Python of the run cannot be started: {python}: {error.strerror}",
        NO_PYTHON_HINT,
    )

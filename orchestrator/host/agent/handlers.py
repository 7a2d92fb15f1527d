"""What each order does. An order answers once, at once or when its job has ended; asked twice, it is done once.

Nothing here waits: what may hang (a shared directory) or take long runs as a job.
"""

from __future__ import annotations

import json
import os
import sys
import time

from orchestrator.both import hostdir
from orchestrator.both.hostdir import HostFault
from orchestrator.both.tree_digest import digest_of
from orchestrator.checkpoints import ABOUT as CHECKPOINT_VERBS
from orchestrator.checkpoints import share
from orchestrator.host.agent import runs, start, sweep
from orchestrator.host.agent.arrivals import Arrivals
from orchestrator.host.agent.jobs import Result, answer_of
from orchestrator.host.agent.parts import Parts
from orchestrator.host.agent.reply import Reply
from orchestrator.host.agent.setup import Setup
from orchestrator.host.shim import sweep as shim_sweep
from orchestrator.host.system import codestore, files, hostlog
from orchestrator.protocol.channel import BLOB_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.host.agent import neighbours
    from orchestrator.host.agent.context import Context
    from orchestrator.host.agent.streams import Output
    from orchestrator.protocol.orders import base, checkpoints, driving, hosts, tasks
    from orchestrator.protocol.orders.base import OfTask

CHECKPOINT_S = 600.0
"""A large checkpoint on a slow share; then the share is taken to hang."""

PROBE_S = 60.0
QUERY_S = 30.0

AFTER_LEASES = ("lease", "unwatch", "start", "stop", "sweep")
"""Orders that wait until the GPUs which a `watch` before them names have their numbers."""

NO_PYTHON_HINT = "give the full path of the Python that has TensorFlow as `python` in the cluster spec"


class Orders:
    """The handlers of all orders, and the parts that outlast one order."""

    def __init__(self, context: Context, output: Output) -> None:
        self._context = context
        self._host = context.host
        self._jobs = context.jobs
        self._tasks = context.tasks
        self._directories = context.directories
        self._leases = context.leases
        self._output = output
        self._blobs = codestore.Receiver(os.path.join(self._host.host_dir, "blobs"))
        self._reader: Parts | None = None
        self._listeners: neighbours.Listeners | None = None
        self._arrivals = Arrivals(context, CHECKPOINT_S)
        self._setup = Setup(context)
        self._unnumbered: list[tuple[list[int | str], Callable[[list[int | str]], None]]] = []

    def end(self) -> None:
        """End the processes that read and write for the head: the agent ends."""
        self._arrivals.end()
        if self._reader is not None:
            self._reader.end()

    def handle(self, order: dict[str, Any], blob: bytes) -> None:
        """Carry out an order. An order of an older coordinator is refused, here and nowhere else (fencing)."""
        reply = Reply(self._output, order.get("id"))

        def accept(_: object = None) -> None:
            reply.attempt(lambda: self._handle(order, blob, reply))

        if order.get("order") in AFTER_LEASES:
            self._numbered([], accept)
        else:
            accept()

    def _handle(self, order: dict[str, Any], blob: bytes, reply: Reply) -> Mapping[str, Any] | None:
        verb = str(order.get("order"))
        do: Callable[..., Any] = getattr(self, f"_on_{verb}", self._forward)
        try:
            fence = order.get("fence")
            if fence != "anybody":
                run, epoch = str(order["run"]), int(order["epoch"])
                hostdir.accept_epoch(self._host.host_dir, run, epoch, create=fence == "begins")
            value: Mapping[str, Any] | None = do(order, blob, reply)
        except (KeyError, TypeError, ValueError) as e:
            raise HostFault("bad-order", f"the order {verb!r} cannot be read: {type(e).__name__}: {e}") from e
        return value

    # ---------------------------------------------------------------- watching

    def _on_watch(self, order: driving.Watch, _blob: bytes, _reply: Reply) -> base.Nothing:
        from orchestrator.host.system import gpu_lease

        claim = order.get("claim")
        self._tasks.watch(order["run"], max(0.05, float(order["heartbeat_s"])), claim)
        head = f"{claim['user']}@{claim['head']}" if claim is not None else ""
        run, epoch = order["run"], order["epoch"]
        names: list[int | str] = [*(order.get("gpus") or ()), *(order.get("gpu_uuids") or ())]
        slots: list[int | str] = [f"{gpu_lease.SLOT}{number}" for number in order.get("slots") or ()]
        self._numbered(names, lambda gpus: self._leases.want(run, gpus + slots, head, epoch))
        return {}

    def _numbered(self, names: list[int | str], then: Callable[[list[int | str]], None]) -> None:
        """Call `then` with the numbers of these GPUs, in the order of the calls: nvidia-smi knows those of UUIDs.

        So a GPU has one lease, whether a run names it by number or by UUID.
        """
        self._unnumbered.append((names, then))
        if len(self._unnumbered) == 1:
            self._number_next()

    def _number_next(self) -> None:
        while self._unnumbered and all(isinstance(name, int) for name in self._unnumbered[0][0]):
            names, then = self._unnumbered.pop(0)
            then(names)
        if not self._unnumbered:
            return
        names, then = self._unnumbered[0]

        def ask() -> dict[str, list[int | str]]:
            from orchestrator.host.agent import gpus

            return {"numbers": gpus.numbers(names)}

        def done(known: list[int | str]) -> None:
            self._unnumbered.pop(0)
            then(known)
            self._number_next()

        def answered(result: Result) -> None:
            try:
                known = answer_of(result, "the list of the GPUs")["numbers"]
            except HostFault:
                known = names  # the probe says what is wrong with the driver
            done(known)

        try:
            self._jobs.function(ask, answered, deadline_s=QUERY_S)
        except OSError:
            done(names)  # the host has no process left

    def _on_lease(self, order: driving.Lease, _blob: bytes, reply: Reply) -> None:
        self._leases.acquire(order["run"], lambda others: reply.ok({"others": others}))

    def _on_unwatch(self, order: driving.Unwatch, _blob: bytes, _reply: Reply) -> base.Nothing:
        self._tasks.unwatch(order["run"])
        self._leases.release(order["run"])
        self._directories.forget(order["run"])
        self._arrivals.forget(order["run"])
        return {}

    # ---------------------------------------------------------------- before a start

    def _on_probe(self, order: hosts.Probe, _blob: bytes, reply: Reply) -> None:
        from orchestrator.host.agent import place_of_tasks  # few probes are asked for

        place_of_tasks.remove_old(self._host.host_dir)
        env = place_of_tasks.environment(order.get("env", {}))
        python = place_of_tasks.found(order["python"] or sys.executable, env)
        directory = place_of_tasks.make(self._host.host_dir, order.get("files", []))
        wish = {
            **order,
            "host_dir": self._host.host_dir,
            "command": python,
            "env": env,
            "surroundings": place_of_tasks.surroundings(os.getpid()),
            "activated": place_of_tasks.activated(),
        }
        self._python(
            python,
            ["probe"],
            reply,
            "the probe",
            deadline_s=PROBE_S,
            stdin=json.dumps(wish).encode(),
            env=env,
            directory=directory,
            after=lambda: place_of_tasks.remove(directory),
        )

    def _on_machine(self, order: hosts.AskMachine, _blob: bytes, reply: Reply) -> None:
        del order
        host_dir = self._host.host_dir

        def inspect() -> hosts.Hardware:
            from orchestrator.host.agent import machine  # in the fork: few agents are asked

            return machine.inspect(host_dir)

        self._fork(reply, "the survey of the machine", PROBE_S, inspect)

    def _on_examine(self, order: hosts.Examine, _blob: bytes, reply: Reply) -> None:
        from orchestrator.host.agent import health, neighbours  # few agents are asked

        if self._listeners is None:
            self._listeners = neighbours.Listeners(self._context.loop)
        first, last = order["ports"]
        secret, writes = order.get("secret", ""), order.get("writes")
        facts = health.facts_now(
            *self._listeners.begin((first, last), order["token"], order["listen_s"], secret)
        )
        host_dir, more, gpus = self._host.host_dir, order["directories"], order.get("gpus", False)
        self._fork(
            reply,
            "the examination of the host",
            QUERY_S,
            lambda: health.whole(facts, host_dir, more, gpus=gpus, writes=writes, group=order.get("group")),
        )

    def _on_reach(self, order: hosts.Reach, _blob: bytes, reply: Reply) -> None:
        targets, within_s = order["targets"], order["within_s"]

        def connect() -> hosts.Reached:
            from orchestrator.host.agent import neighbours

            return {"seen": neighbours.reach(targets, within_s)}

        self._fork(reply, "the attempt to reach the other hosts", within_s + 5.0, connect)

    def _on_environment(
        self, order: hosts.Environment, _blob: bytes, reply: Reply
    ) -> hosts.EnvironmentState | None:
        return self._setup.ask(order, reply)

    def _on_psutil(self, order: hosts.Psutil, blob: bytes, _reply: Reply) -> base.Nothing:
        digest, last = order["sha256"], order["last"]
        if self._blobs.receive(digest, order["offset"], blob, last) and last:
            self._unpack_psutil(digest)
        return {}

    def _unpack_psutil(self, digest: str) -> None:
        """Unpack psutil and import it, in a fork first, which may compile it: the compiler's 10 MB would stay."""
        host = self._host

        def prepare() -> None:
            host.unpack_psutil(os.path.join(host.host_dir, "blobs", digest))
            host.load_psutil()

        try:
            self._jobs.function(prepare, lambda _result: host.load_psutil(), deadline_s=QUERY_S)
        except OSError:
            return  # the host has no process left; /proc gives the basics

    def _on_code(self, order: hosts.Code, _blob: bytes, reply: Reply) -> hosts.CodeState | None:
        host_dir, run = self._host.host_dir, order["run"]
        files = codestore.check(order["files"])
        answer: hosts.CodeState = {"digest": digest_of(files), "missing": []}
        tree = codestore.tree_dir(host_dir, run, answer["digest"])
        is_there = os.path.isdir(tree)
        answer["missing"] = [] if is_there else codestore.missing(host_dir, files)
        if answer["missing"]:
            return answer

        def make() -> hosts.CodeState:
            import contextlib

            if is_there:
                damaged = codestore.repair(host_dir, tree, files)
            elif not (damaged := codestore.build(host_dir, run, files)):
                with contextlib.suppress(OSError):  # what cannot be read now is tidied after the next push
                    sweep.tidy(host_dir, run, answer["digest"])
            return {**answer, "missing": damaged, "dangling": codestore.dangling(tree, files)}

        self._fork(reply, "putting the code in place", CHECKPOINT_S, make)
        return None

    def _on_blob(self, order: hosts.Blob, blob: bytes, reply: Reply) -> hosts.BlobState | None:
        if order.get("store") == "checkpoints":
            self._arrivals.receive_part(order, blob, reply)
            return None
        whole = self._blobs.receive(order["sha256"], order["offset"], blob, order["last"])
        return {} if whole else {"damaged": True}

    def _on_highest(self, order: checkpoints.Highest, _blob: bytes, reply: Reply) -> None:
        from orchestrator.checkpoints.places import highest

        directory = order["dir"]
        what = f"the listing of {directory}"
        self._fork(reply, what, QUERY_S, lambda: {"generation": highest(directory)})

    def _on_seed(self, order: checkpoints.Seed, _blob: bytes, reply: Reply) -> None:
        only = order.get("only")
        if only is not None:
            from orchestrator.checkpoints import safe

            only = safe.directory_of(order["dir"], only)
        arguments = {
            "root": order["dir"],
            "generation": order["generation"],
            "keep": order["keep"],
            "from_scratch": order.get("from_scratch", False),
            "only": only,
            "claim": order.get("claim"),
            "host_dir": self._host.host_dir,
            **{name: order.get(name) for name in ("step_max", "unrestorable", "by", "group")},
        }
        argv = ["checkpoints", "seed", json.dumps(arguments)]
        what = "the seeding of the checkpoint directory"
        self._directories.watch(order["run"], order["dir"], order.get("share"))
        self._with_share(order, reply, lambda: self._python(order["python"], argv, reply, what))

    def _on_verify(self, order: checkpoints.Verify, _blob: bytes, reply: Reply) -> None:
        argv = ["checkpoints", "verify"]
        argv.append(json.dumps({"directory": _directory_of(order), "step_max": order.get("step_max")}))
        what = "the verification of the checkpoint"
        self._directories.watch(order["run"], order["dir"], order.get("share"))
        self._with_share(order, reply, lambda: self._python(order["python"], argv, reply, what))

    def _with_share(
        self, order: checkpoints.Seed | checkpoints.Verify, reply: Reply, then: Callable[[], None]
    ) -> None:
        """Go on with an order where the share that it names is there; else refuse it."""
        wanted, run = order.get("share"), order["run"]
        if wanted is None:
            then()
            return

        def looked(result: Result) -> None:
            def go_on() -> None:
                if not answer_of(result, f"the look into {order['dir']}")["there"]:
                    raise share.missing(order["dir"])
                then()

            reply.attempt(go_on)

        self._context.jobs.function(
            lambda: {"there": share.is_there(wanted["dir"], run, wanted["token"])},
            looked,
            deadline_s=CHECKPOINT_S,
        )

    def _on_snapshot(self, order: checkpoints.Snapshot, _blob: bytes, reply: Reply) -> None:
        arguments = json.dumps(
            {"root": order["dir"], "directory": _directory_of(order), "path": order["path"]}
        )
        argv = ["checkpoints", "snapshot", arguments]
        self._python(order["python"], argv, reply, "the snapshot of the checkpoint")

    def _on_receive(self, order: checkpoints.Receive, _blob: bytes, reply: Reply) -> None:
        self._arrivals.receive(order, reply)

    def _on_chunk(self, order: checkpoints.Chunk, _blob: bytes, reply: Reply) -> None:
        from orchestrator.checkpoints import safe

        bytes_max = max(1, min(order["bytes_max"], BLOB_BYTES_MAX))
        where = order["dir"], order["digest"], order["name"], order["offset"]

        def read(data: memoryview, fault: HostFault | None, sent: Callable[[], None]) -> None:
            if fault is None:
                reply.ok({}, data, sent)
            else:
                reply.fault(fault)

        if self._reader is None:
            self._reader = Parts(self._context.loop, safe.ChunkReader(), QUERY_S)
        self._reader.read((*where, bytes_max), read)

    def _on_checkpoints(self, order: checkpoints.Checkpoints, _blob: bytes, reply: Reply) -> None:
        verb = order["do"]
        if verb not in CHECKPOINT_VERBS:
            raise HostFault("bad-order", f"there is no command {verb!r} for checkpoints")
        arguments = {"root": order["dir"], "what": order["what"], "group": order.get("group")}
        argv = ["checkpoints", verb, json.dumps(arguments)]
        self._python(order["python"], argv, reply, "the reading of the checkpoint directory")

    # ---------------------------------------------------------------- a task's life

    def _on_start(self, order: tasks.Start, _blob: bytes, reply: Reply) -> tasks.Started | None:
        return start.start(self._context, order, reply)

    def _on_release(self, order: tasks.Release, _blob: bytes, reply: Reply) -> None:
        shared = order.get("share")
        if shared is not None:
            self._directories.watch(order["run"], shared["dir"], shared)
        return start.release(self._context, order, reply)

    def _on_stop(self, order: tasks.Stop, _blob: bytes, _reply: Reply) -> base.Nothing | None:
        try:
            link = self._tasks.link(order["run"], order["task"], order["generation"])
            self._tasks.forward(link, order)
        except HostFault as e:
            stray = self._tasks.strays(order["run"]).get((order["task"], order["generation"]))
            if stray is not None:
                shim_sweep.kill(stray)  # nobody is left who could give it its grace
            elif e.code != "gone":
                raise  # `no-task`: its start never came, which the coordinator must know
            return {}  # what has ended need not be stopped
        return None

    def _forward(self, order: OfTask, _blob: bytes, _reply: Reply) -> None:
        """Give an order for a task to its shim, which may be of another version. Others must be known here."""
        if "task" not in order:
            raise HostFault("unknown-order", f"this agent does not know the order {order.get('order')!r}")
        self._tasks.forward(self._tasks.link(order["run"], order["task"], order["generation"]), order)

    # ---------------------------------------------------------------- afterwards

    def _on_sweep(self, order: tasks.Sweep, _blob: bytes, reply: Reply) -> None:
        run, generation_max = order["run"], order["generation_max"]
        ports: list[int] = []
        for link in self._tasks.links(run, generation_max):
            port = link.task.get("port") if link.task is not None else None
            if port is not None:
                ports.append(port)
            if link.socket is not None:
                # Its shim is asked first, so that the exit record says that we ended the task.
                stop: tasks.Stop = {
                    "order": "stop",
                    "run": run,
                    "epoch": order["epoch"],
                    "task": link.key[1],
                    "generation": link.key[2],
                    "grace_s": 0,
                }
                self._tasks.forward(link, stop)
        host_dir, release, ends = self._host.host_dir, order.get("release"), bool(order.get("ends"))

        def answer(result: Result) -> dict[str, Any]:
            swept = answer_of(result, "the sweep")
            if ends and not swept["left"]:
                self._leases.release(run)  # before the head hears of it, and begins another run
            return swept

        self._jobs.function(
            lambda: sweep.sweep(host_dir, run, generation_max, ports, release=release, ends=ends),
            lambda result: reply.attempt(lambda: answer(result)),
            deadline_s=QUERY_S,
        )

    def _on_log(self, order: tasks.AskLog, _blob: bytes, reply: Reply) -> None:
        run, task, generation = order["run"], order["task"], order["generation"]
        directory = hostdir.generation_dir(self._host.host_dir, run, task, generation)
        bytes_max = max(1, min(order["bytes_max"], BLOB_BYTES_MAX))
        offset, data, end = hostlog.read(directory, order["offset"], bytes_max)
        reply.ok({"offset": offset, "end": end, "time": time.time()}, data)

    def _on_files(self, order: tasks.AskFiles, _blob: bytes, reply: Reply) -> None:
        host_dir, run, kind, saved = self._host.host_dir, order["run"], order["of"], order.get("saved")
        self._fork(
            reply,
            "the listing of the tasks' files",
            QUERY_S,
            lambda: files.listing(host_dir, run, kind, saved),
        )

    def _on_file(self, order: tasks.AskFile, _blob: bytes, reply: Reply) -> None:
        bytes_max = max(1, min(order["bytes_max"], BLOB_BYTES_MAX))
        reply.ok({}, files.read(self._host.host_dir, {**order}, order["offset"], bytes_max))

    def _on_digest(self, order: tasks.AskDigest, _blob: bytes, reply: Reply) -> None:
        host_dir, wish = self._host.host_dir, {**order}
        self._fork(
            reply, f"the reading of {order['path']}", CHECKPOINT_S, lambda: files.digest(host_dir, wish)
        )

    # ---------------------------------------------------------------- without, or beside, a coordinator

    def _on_keep(self, order: driving.Keep, _blob: bytes, _reply: Reply) -> base.Nothing:
        runs.keep(self._host.host_dir, order["run"], order["record"])
        return {}

    def _on_runs(self, order: driving.Runs, _blob: bytes, reply: Reply) -> None:
        host_dir, records = self._host.host_dir, order["records"]
        brief, directory = order.get("brief", False), order.get("dir")
        self._fork(
            reply,
            "the listing of the host's runs",
            CHECKPOINT_S,
            lambda: runs.known(host_dir, records=records, brief=brief, directory=directory),
        )

    def _on_remove(self, order: driving.Remove, _blob: bytes, reply: Reply) -> None:
        host_dir, run = self._host.host_dir, order["run"]
        owner, even_alive = order["owner"], order["even_alive"]
        self._fork(
            reply,
            "the removal",
            CHECKPOINT_S,
            lambda: runs.remove(host_dir, run, owner=owner, even_alive=even_alive),
        )

    def _on_fault(self, order: tasks.Fault, _blob: bytes, reply: Reply) -> None:
        from orchestrator.host.agent import faults

        faults.inject(self._context, order, reply)

    # ---------------------------------------------------------------- jobs

    def _fork(
        self, reply: Reply, what: str, deadline_s: float, work: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Do work that may hang in a fork, and reply with its answer. `what` names the work in an error."""
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
        env: Mapping[str, str] = os.environ,
        directory: str | None = None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `<the run's Python> <bundle> <argv>`, which prints one JSON object."""
        # -I: neither the login's PYTHONPATH nor the home directory has a say in what is imported.
        # -X utf8: whatever the login's locale, it encodes the names of files as the agent does.
        command = [os.path.expanduser(python or sys.executable), "-I", "-X", "utf8", self._host.bundle, *argv]

        def answer(result: Result) -> dict[str, Any]:
            try:
                return answer_of(result, f"{what} (by {python})")
            except HostFault as e:
                if argv[0] == "probe" and e.code == "job-failed":
                    raise HostFault("no-python", e.message, NO_PYTHON_HINT) from e
                raise

        def done(result: Result) -> None:
            after()
            reply.attempt(lambda: answer(result))

        try:
            self._jobs.program(
                command, done, deadline_s=deadline_s, stdin=stdin, env=env, directory=directory
            )
        except OSError as e:
            after()
            why = f"the Python of the run cannot be started: {python}: {e.strerror}"
            raise HostFault("no-python", why, NO_PYTHON_HINT) from e


def _directory_of(order: checkpoints.Verify | checkpoints.Snapshot) -> str:
    return os.path.join(order["dir"], f"gen-{order['generation']:06d}")

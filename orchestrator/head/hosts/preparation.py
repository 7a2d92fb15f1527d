"""Prepares a host for a run: probes it, pushes the code, and asks for the highest generation of checkpoints.

It blocks, so it runs in a worker thread. The result becomes HostPrepared or HostRefused. If the connection breaks
meanwhile, nothing is posted: the core asks again when the host is up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from orchestrator.both.keras_versions import asks_for_legacy, unsupported
from orchestrator.both.script import sources, surely_imported
from orchestrator.both.tree_digest import DIRECTORY, LINK
from orchestrator.checkpoints import share
from orchestrator.checkpoints.places import SHARED_HINT
from orchestrator.core import conflicts
from orchestrator.core.diagnosis import left_out
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.events import HostPrepared, HostRefused
from orchestrator.core.hosts import compatibility
from orchestrator.core.plan import Gpu
from orchestrator.core.state.host import Facts
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.words import listed
from orchestrator.head.code import codetree, needs
from orchestrator.head.code.codetree import CodeFile
from orchestrator.head.code.snapshots import Snapshot, Snapshots
from orchestrator.head.links import ownership, wire
from orchestrator.head.links import requests as orders
from orchestrator.head.links.conversation import Asks, OrderRefused, refused
from orchestrator.protocol.orders.checkpoints import HIGHEST
from orchestrator.protocol.orders.driving import LEASE, Leased
from orchestrator.protocol.orders.hosts import CODE, PROBE
from orchestrator.protocol.orders.hosts import Facts as Probed
from orchestrator.spec.secrets import looks_secret

T = TypeVar("T")

GOOD_FOR_S = 5.0
"""How long an answer counts. Files change, so a host that is prepared again later needs a fresh answer."""


class SharedAnswers:
    """Answers that are the same for every host of a run: the first thread computes one, and the others wait for it.

    All hosts of a run are prepared at once. Reading the working directory and parsing the script for each of them would
    cost the head more than all the rest of a start. Errors are not kept: each thread gets its own.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept] = {}

    def get(self, question: Hashable, find: Callable[[], T]) -> T:
        """Return the answer if it is younger than GOOD_FOR_S, or call `find`."""
        with self._lock:
            self._forget_old()
            kept = self._kept.setdefault(question, _Kept())
        with kept.finding:
            if kept.found_at is None or self._now() - kept.found_at >= GOOD_FOR_S:
                kept.answer = find()
                kept.found_at = self._now()
            answer: T = kept.answer
        return answer

    def _forget_old(self) -> None:
        old = self._now() - GOOD_FOR_S
        for question, kept in list(self._kept.items()):
            if kept.found_at is not None and kept.found_at <= old:
                del self._kept[question]


class _Kept:
    """One answer."""

    def __init__(self) -> None:
        self.finding = threading.Lock()
        self.found_at: float | None = None
        self.answer: Any = None


CHUNK_BYTES = 512 << 10

_SHARED = SharedAnswers()
"""The snapshot of the working directory and the needs of the script, by run."""

PROBE_TIMEOUT_S = 120.0
PUSH_TIMEOUT_S = 600.0


def prepare(
    link: Asks,
    run: Run,
    name: str,
    *,
    now: Callable[[], float],
    is_known: Callable[[str], bool],
    snapshots: Snapshots,
) -> HostPrepared | HostRefused:
    """Prepare a host, which may take minutes, and return the event. Raises LinkDown.

    Args:
        is_known: whether this head node knows the run of this id.
        snapshots: the code of runs.
    """
    code = _SHARED.get((run.run_id, run.code, snapshots.directory), lambda: _snapshot(run, snapshots))
    # The script of the snapshot is what runs, and not that of the working directory as it is now
    run = replace(run, plan=replace(run.plan, workdir=snapshots.place_of(code.digest if code else run.code)))
    try:
        # Ask which runs are driven on the host, before anything is changed there
        directory = run.plan.checkpoint.dir if run.plan.checkpoint is not None else None
        answer = link.ask(orders.drivers(directory), timeout_s=PROBE_TIMEOUT_S).ok
        others = conflicts.runs_of_others(
            run.plan, run.run_id, run.owner, ownership.driven(name, answer), is_known
        )
        problem = conflicts.driven(run.plan, others, run.owner)
        if problem is not None:
            raise OrderRefused(problem)
        _refuse_leased(link, run, name)
        facts = probe(link, run, name)
        digest = _push(link, run, name, code)
        highest = 0
        if run.plan.checkpoint is not None:  # a new run must not write into a generation of an old one
            order = HIGHEST({**orders.run_fields(run), "dir": run.plan.checkpoint.dir})
            highest = link.ask(order, timeout_s=PROBE_TIMEOUT_S).ok["generation"]
    except OrderRefused as e:
        return HostRefused(at=now(), host=name, problem=named(name, e.problem))
    return HostPrepared(at=now(), host=name, facts=replace(facts, code=digest, highest_generation=highest))


def _refuse_leased(link: Asks, run: Run, name: str) -> None:
    """Take the leases of the run's GPUs on the host. Raises OrderRefused if somebody else has one."""
    if not conflicts.leased_gpus(run, name):
        return
    leases = link.ask(LEASE(orders.run_fields(run)), timeout_s=PROBE_TIMEOUT_S).ok
    problem = compatibility.leased([holder(lease) for lease in leases["others"]])
    if problem is not None:
        raise OrderRefused(problem)


def holder(lease: Leased) -> tuple[Gpu, str]:
    """Return a GPU or slot that is leased, and who has the lease, as far as known."""
    user = f" of user {lease['user']}" if lease["user"] else ""
    head = f", begun on {lease['head']}" if lease["head"] else ""
    since = (
        f", since {datetime.fromtimestamp(lease['since'], UTC):%Y-%m-%d %H:%M:%S} UTC"
        if lease["since"]
        else ""
    )
    unnamed = "a process" if lease["user"] else "a process that does not answer"
    number = lease["gpu"]
    return lease.get(
        "instance", "a GPU"
    ) if number is None else number, f"{lease['run'] or unnamed}{user}{head}{since}"


def probe(link: Asks, run: Run, name: str) -> Facts:
    """Probe a host. Raises OrderRefused, with the host in its sentence, where it cannot train this script."""
    try:
        plan = run.plan
        script = _script(run)
        source = _SHARED.get((run.run_id, script, "text"), lambda: needs.source(script))
        # Without a shared directory each host has its own, with a token of its own.
        token = run.share if plan.checkpoint is not None and plan.checkpoint.shared else None
        order = PROBE(
            {
                "run": run.run_id,
                "epoch": run.epoch,
                "python": plan.host(name).python,
                "env": dict(plan.env),
                "files": _SHARED.get(
                    (run.run_id, plan.workdir, "choosers"),
                    lambda: codetree.choosers(plan.workdir, plan.withheld),
                ),
                "checkpoint_dir": plan.checkpoint.dir if plan.checkpoint else None,
                "group": plan.checkpoint.group if plan.checkpoint else None,
                "share": token,
                "modules": list(_needed(run)),
                "packages": list(STRATEGIES[plan.strategy].packages),
                "source": source,
            }
        )
        probed = link.ask(order, timeout_s=PROBE_TIMEOUT_S).ok
        if token and probed["checkpoint_share"] == "":
            fault = share.missing(plan.checkpoint.dir if plan.checkpoint else "")
            raise OrderRefused(Problem(fault.code, fault.message, fault.hint))
        if plan.checkpoint is not None and not probed["checkpoint_writable"]:
            raise refused(
                "checkpoint-dir",
                f"the checkpoint directory {plan.checkpoint.dir} cannot be written"
                + (f": {probed['checkpoint_why']}" if probed["checkpoint_why"] else ""),
                "it must exist on every host, on a file system that they share, and be writable by the SSH user",
                key="run.checkpoint.dir",
            )
        if plan.checkpoint is not None and (others := probed.get("checkpoint_others")):
            raise refused(
                "checkpoint-shared",
                f"{others} may write into the checkpoint directory {plan.checkpoint.dir}, and so decide what this run "
                "resumes from",
                SHARED_HINT,
                key="run.checkpoint.group",
            )
    except OrderRefused as e:
        raise OrderRefused(named(name, e.problem)) from e
    problem = _unfit(run, name, probed)
    if problem is not None:
        raise OrderRefused(named(name, problem))
    return Facts(
        python=probed["python"],
        versions=probed["versions"],
        checkpoint_share=probed["checkpoint_share"] or "",
        unkillable=wire.unkillable(probed["unkillable"]),
        activated={
            variable: "***" if looks_secret(variable, value) else value
            for variable, value in probed.get("activated", {}).items()
        },
        gpus=tuple(probed["gpus"] or ()),
        executable=probed.get("executable", ""),
    )


def named(host: str, problem: Problem) -> Problem:
    """Return the problem with the host in its sentence."""
    if problem.message.startswith(f"{host}:"):
        return problem
    return replace(problem, message=f"{host}: {problem.message}")


def _unfit(run: Run, name: str, probed: Probed) -> Problem | None:
    """Return why the host cannot train this script: its own name, its GPUs, or its packages; None if it can."""
    own = probed["own_name"]
    own_name = {"name": own["name"], "address": own["address"], "why": own["why"]}
    gpus, in_use, why_none = probed["gpus"], probed["gpus_in_use"], probed["gpus_why"]
    tensorflow, script = probed["versions"].get("tensorflow"), _script(run)
    imported = _SHARED.get((run.run_id, script, "imports"), lambda: surely_imported(script, run.plan.root))
    problem = (
        compatibility.own_name(run.plan, own_name)
        or compatibility.gpus(run.plan, name, gpus, in_use, why_none, probed.get("gpu_instances", {}))
        or compatibility.no_tensorflow(run.plan, name, tensorflow, imported="tensorflow" in imported)
    )
    problem = problem or _uncompiled(run, name, probed) or _missing(run, name, probed)
    if problem is not None:
        return problem
    if not run.plan.runtime:
        return None
    source = _source(run)
    by_env = run.plan.env.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    asked = run.plan.options.keras == 2 or by_env
    if ".fit(" not in source and not asked and not run.plan.options.transparent:
        return None  # a custom loop does not use Keras's trainer, so the version does not matter
    sentence = unsupported(
        STRATEGIES[run.plan.strategy].tf_class, probed["versions"], asked or asks_for_legacy(source)
    )
    if sentence is None:
        return None
    key = (
        "run.keras"
        if run.plan.options.keras == 2
        else "run.env.TF_USE_LEGACY_KERAS"
        if by_env
        else "run.strategy"
    )
    return Problem("keras", sentence, exit_code=2, key=key)


def _uncompiled(run: Run, name: str, probed: Probed) -> Problem | None:
    if "syntax" not in probed:
        return None
    python = f"{run.plan.host(name).python} (Python {probed['python']})"
    text = f"{python} cannot compile {run.plan.script}: {probed['syntax']}"
    key = "run.module" if run.plan.module else "run.script"
    return Problem("syntax", text, "correct the script, or name a newer Python as `python`", 6, key)


def _missing(run: Run, name: str, probed: Probed) -> Problem | None:
    """Return which modules of the script the host lacks, with their imports; None if it has all."""
    needed = _needed(run)
    missing = [module for module in probed.get("missing", []) if module in needed]
    if not missing:
        return None
    imports = listed([f"{module} ({needed[module]})" for module in missing])
    ways = [way for module in missing if (way := left_out.way_to_module(run.left_out, module))]
    host = run.plan.host(name)
    return Problem(
        "no-module",
        f"{host.python} does not have what the script imports: {imports}",
        ways[0]
        if ways
        else f"{host.way_to_install(' '.join(missing))} (the package of a module may have another name); or push the "
        "module in the working directory",
        exit_code=6,
    )


def _needed(run: Run) -> dict[str, str]:
    """Return the modules that must be installed on the hosts, each with the place of its import."""
    if "PYTHONPATH" in run.plan.env:
        return {}
    script = _script(run)
    return _SHARED.get((run.run_id, script, "modules"), lambda: needs.modules(script, run.plan.root))


def _script(run: Run) -> str:
    return os.path.join(run.plan.workdir, run.plan.script)


def _source(run: Run) -> str:
    """Return the source of the script; empty if the run has begun, and its snapshot is not on this machine."""
    script = _script(run)
    try:
        return _SHARED.get((run.run_id, script, "sources"), lambda: "\n".join(sources(script, run.plan.root)))
    except OSError:
        if run.code:
            return ""
        raise


def _snapshot(run: Run, snapshots: Snapshots) -> Snapshot | None:
    """Return the code of a run; None if it has begun, and this machine has no copy of what it began with.

    `orch up` has taken the snapshot. It is taken here for a run that another client submitted, or that began under an
    older orch, or on another head node.
    """
    kept = snapshots.snapshot_of(run.run_id)
    if kept is not None and run.code in ("", kept.digest):
        return kept
    try:
        taken = snapshots.take(run.plan)
        if run.code not in ("", taken.digest):
            return None
        snapshots.keep(run.run_id, taken.digest)
    except (OrchestratorError, OSError):
        if run.code:
            return None
        raise
    return taken


def _push(link: Asks, run: Run, name: str, code: Snapshot | None) -> str:
    """Push the files of the snapshot that the host lacks, and return its digest."""
    if code is None:
        if run.host(name).untouched:
            raise refused(
                "code-unknown",
                "this host has not got the run's code, and this head node has no copy of it: the run was begun by an "
                "older orch or on another head node, and the working directory has changed since",
                "put the working directory back as it was; the host is asked again",
            )
        return run.code
    by_digest = {file.sha256: file for file in code.files if file.mode != DIRECTORY}
    order = CODE({**orders.run_fields(run), "files": list(code.files)})
    ok = link.ask(order, timeout_s=PUSH_TIMEOUT_S).ok
    if ok["missing"]:
        for digest in ok["missing"]:
            if digest in by_digest:  # else the host asks for a file that it was not offered
                _send(link, run, code, by_digest[digest])
        ok = link.ask(order, timeout_s=PUSH_TIMEOUT_S).ok
    if ok["missing"]:
        damaged = sorted(by_digest[digest].path for digest in ok["missing"] if digest in by_digest)
        raise refused(
            "code-damaged",
            f"the snapshot of the working directory is damaged on the head node: {listed(damaged)}",
            "end the run, and `orch up` again",
        )
    if ok.get("dangling"):
        links = [f"{path} -> {code.links.get(path, '?')}" for path in ok["dangling"]]
        raise refused(
            "code-link",
            f"links of the working directory lead to what is not on this host: {listed(links)}",
            "make it there, or name the link in .orchignore if the script does not need it",
        )
    return ok["digest"]


def _send(link: Asks, run: Run, code: Snapshot, file: CodeFile) -> None:
    if file.mode == LINK:
        order = orders.blob(run, file.sha256, 0, last=True)
        link.ask(order, code.content(file), timeout_s=PUSH_TIMEOUT_S)
    else:
        send_file(link, run, code.path_of(file), file.sha256)


def send_file(link: Asks, run: Run, path: str, digest: str) -> None:
    """Send a file of the head node as a blob. Raises LinkDown, OrderRefused.

    It is sent once more if the host has dropped a part, which may have been another run's, of a damaged file.
    """
    try:
        is_whole = _send_chunks(link, run, path, digest)
    except OrderRefused as e:
        if e.problem.code != "offset":
            raise
        is_whole = False
    if not is_whole:
        _send_chunks(link, run, path, digest)


def _send_chunks(link: Asks, run: Run, path: str, digest: str) -> bool:
    """Send a file from its beginning. Return False if what the host then has is not of that digest."""
    with open(path, "rb") as file:
        offset = 0
        chunk = file.read(CHUNK_BYTES)
        while True:
            following = file.read(CHUNK_BYTES)
            order = orders.blob(run, digest, offset, last=not following)
            ok = link.ask(order, chunk, timeout_s=PUSH_TIMEOUT_S).ok
            if not following:
                return not ok.get("damaged")
            offset += len(chunk)
            chunk = following

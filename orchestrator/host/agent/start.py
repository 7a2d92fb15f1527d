"""The start and the release of a task: makes the generation's directory, starts the shim, and fills the scratch."""

from __future__ import annotations

import json
import os
import sys

from orchestrator.both import durable, hostdir
from orchestrator.both.hostdir import HostFault
from orchestrator.host.agent import state as agent_state
from orchestrator.host.agent.jobs import Result, answer_of
from orchestrator.host.shim import record as shim_record
from orchestrator.host.system import codestore, files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.host.agent.context import Context
    from orchestrator.host.agent.reply import Reply
    from orchestrator.protocol.orders import tasks

SHIM_S = 30.0
"""How long a shim may take to answer. Even a loaded host starts Python in less."""

_NOT_KEPT = ("order", "fence", "id", "secrets")
"""The fields of a `start` order that do not go to start.json. Secrets are never written to a disk."""


def start(context: Context, order: tasks.Start, reply: Reply) -> tasks.Started | None:
    """Start a shim. A generation that was started before is not started again."""
    host = context.host
    run, task, generation = order["run"], order["task"], order["generation"]
    directory = hostdir.generation_dir(host.host_dir, run, task, generation)
    wish: dict[str, Any] = {name: value for name, value in order.items() if name not in _NOT_KEPT}
    if not os.path.isdir(codestore.tree_dir(host.host_dir, run, order["code"])):
        raise HostFault("no-code", "the run's code is not on this host", "push it again")
    names = durable.names(os.path.dirname(directory))
    numbers = [int(name[4:]) for name in names if name.startswith("gen-") and name[4:].isdecimal()]
    agent_state.refuse_older(task, generation, max(numbers, default=0))
    if shim_record.has_begun(directory):
        # The answer to a repeated start
        who = shim_record.shim_identity(context.tasks.link(run, task, generation).directory)
        return {"pid": who.pid if who is not None else None, "already": True}
    # No shim has recorded itself yet. If one is starting, it holds the lock, and a second shim answers for it.
    leases, about = context.leases.for_shim(run)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    wish.update(host_dir=host.host_dir, bundle=host.bundle, lease=about)
    wish["env"] = {"ORCH_LOG_DIR": files.log_dir(directory), **order["env"]}
    os.makedirs(files.log_dir(directory), mode=0o700, exist_ok=True)
    durable.write_json(os.path.join(directory, "start.json"), wish)
    _start_shim(context, directory, order, reply, leases)
    return None


def release(context: Context, order: tasks.Release, reply: Reply) -> None:
    """Fill the scratch if the order names a seed, and then forward the release to the shim."""
    link = context.tasks.link(order["run"], order["task"], order["generation"])
    forwarded = order.copy()
    seed, step = forwarded.pop("seed", None), forwarded.pop("seed_step", None)
    shared = forwarded.pop("share", None)
    if seed is None:
        context.tasks.forward(link, forwarded)
        return
    scratch = os.path.join(link.directory, "scratch")
    source = seed

    def copy() -> dict[str, Any]:
        from orchestrator.checkpoints import copying, share

        if shared is not None and not share.is_there(shared["dir"], order["run"], shared["token"]):
            raise share.missing(shared["dir"])
        answer = copying.copy(source, scratch)
        found = answer["global_step"]
        if step is not None and (-1 if found is None else found) != step:
            here, there = ("no step" if at in (None, -1) else f"step {at}" for at in (found, step))
            why = f"{source} holds {here} on this host, and the chief starts from {there}"
            raise HostFault("seed-differs", why)
        return answer

    def copied(result: Result) -> None:
        def forward() -> None:
            answer_of(result, f"the copying of the checkpoint from {source}")
            context.tasks.forward(link, forwarded)

        reply.attempt(forward)

    context.jobs.function(copy, copied, deadline_s=600.0)


def _start_shim(
    context: Context, directory: str, order: tasks.Start, reply: Reply, leases: list[int]
) -> None:
    task = order["task"]
    first = max(leases, default=0) + 1
    given = {first + at: lease for at, lease in enumerate(leases)}  # their numbers in the shim
    # -X utf8: whatever the login's locale, it encodes the names of files as the agent does
    words = [sys.executable, "-I", "-S", "-X", "utf8", context.host.bundle, "shim", directory]
    context.tasks.starting(directory)

    def started(result: Result) -> tasks.Started:
        answer = answer_of(result, f"the start of the shim of {task}")
        context.tasks.link(order["run"], task, order["generation"])
        return {"pid": answer["pid"]}

    def done(result: Result) -> None:
        context.tasks.starting(directory, over=True)
        reply.attempt(lambda: started(result))

    try:
        context.jobs.program(
            [*words, *map(str, given)],
            done,
            deadline_s=SHIM_S,
            stdin=json.dumps(order["secrets"]).encode() + b"\n",
            keep=True,
            given=given,
        )
    except OSError as e:
        context.tasks.starting(directory, over=True)
        raise HostFault("start-failed", f"the shim of {task} cannot be started: {e.strerror}") from e

"""First cause: which task went first, what its end means, who followed, and what a person can do.

When one process of a gang dies, the others die of it within seconds, with errors that look like their own. The first
is found by the order of the ends, as each host dates them, and by a table of what followers print (`signatures`).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.core.causes import Blame, Cause
from orchestrator.core.diagnosis import gpu_faults, left_out, matching
from orchestrator.core.ends import Exit, FirstCause, Follower, Injected
from orchestrator.core.gang import is_individual, is_served
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Host, Link
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.words import duration, plain, size, without_figures

SAVED_CODE = 42
"""TensorFlow's PreemptionCheckpointHandler: "saved, start me again"."""

INJECTED_BEFORE_S = 10.0
"""A task that ends this soon after `orch chaos` has hurt it ended of that."""

FROZEN_AFTER_S = 5.0
"""A task whose runtime has sent no heartbeat for this long is taken for the peer that a follower lost. The runtime
sends one each second."""

SENTENCE_MAX = 200
"""How many characters of a process's own message a sentence of orch's may hold; the rest is in its last lines."""

_CRASHES = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS}
)


def classify(ended: Exit) -> Exit:
    """Return the same exit with its cause made more exact by exit code, signal and last lines."""
    if ended.cause is Cause.SIGNAL and ended.signal in _CRASHES:
        match = matching.signature_of(ended)
        return replace(ended, cause=match[0].cause if match else Cause.CRASH)
    if ended.cause is not Cause.SCRIPT:
        return ended
    if ended.code == 0:
        return replace(ended, cause=Cause.FINISHED)
    if ended.code == SAVED_CODE:
        return replace(ended, cause=Cause.PREEMPTED)
    match = matching.signature_of(ended)
    return replace(ended, cause=match[0].cause) if match else ended


def how(ended: Exit, *, in_pod: bool = False) -> str:
    """Return how the task ended, as the end of a sentence that starts with the task."""
    if in_pod and ended.cause.row.in_pod is not None and ended.cause.row.in_pod.how:
        return ended.cause.row.in_pod.how
    text = f": {in_short(ended.last_line)}" if ended.last_line else ""
    if ended.cause is Cause.OOM:
        peak = f" (peak {size(ended.peak_rss_bytes)})" if ended.peak_rss_bytes else ""
        if ended.code is None and ended.signal not in _CRASHES:
            return f"was killed by the kernel: out of memory{peak}"
        return f"ran out of memory{peak}{text}"
    if text and not matching.is_error_known(ended):
        text = f"; it printed last: {in_short(ended.last_line)}"  # which need not have to do with its end
    by_itself = "failed with exit code {code}{said}" if ended.signal is None else "crashed ({signal}){said}"
    words = ended.cause.row.how or by_itself
    return words.format(said=text, code=ended.code, signal=_signal_name(ended.signal))


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


_MODULE_OF_AN_ERROR = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?:Error|Exception)\b)")
_NODE = re.compile(r"\{\{function_node [^}]*\}\} ?")


def in_short(line: str) -> str:
    """Shorten a process's last line for a sentence: without its exception's module, and bounded in length."""
    line = _NODE.sub("", _MODULE_OF_AN_ERROR.sub("", plain(line)))
    return line if len(line) <= SENTENCE_MAX else f"{line[: SENTENCE_MAX - 1].rstrip()}…"


def first_of(tasks: Sequence[Task]) -> Task | None:
    """Return the task that ended first by itself; a follower only if all are followers."""
    ended = [t for t in tasks if t.exit and t.exit.cause.row.blame is not Blame.NOBODY]
    culprits = [t for t in ended if t.exit and t.exit.cause.row.blame is not Blame.PEER] or ended
    return min(culprits, key=lambda t: (t.exit.at if t.exit else 0.0, t.id), default=None)


def failed_before_its_chief(run: Run, tasks: Sequence[Task]) -> Task | None:
    """Return the training task that failed first, before the chief ended with exit code 0; None if none did.

    The times at which they ended decide (the hosts' clocks, converted), not the order of the reports. A task that had
    reached the chief's last step does not count: it trained to the end, and processes may crash as they end together.
    """
    chief = run.task(run.chief)
    if chief.exit is None:
        return None
    last = chief.progress.global_step
    failed = [
        task
        for task in tasks
        if task.exit is not None
        and not task.exit.ordered
        and task.exit.cause.row.blame not in (Blame.NOBODY, Blame.PEER)
        and task.exit.at < chief.exit.at
        and (last is None or (task.progress.global_step or 0) < last)
    ]
    return first_of(failed)


def nonfinite(run: Run) -> str:
    """Return which metrics of the chief are no numbers, and since when; empty if all are."""
    odd = run.task(run.chief).progress.nonfinite
    first = sorted((step, name, value) for name, (step, value) in odd.items())
    return ", ".join(f"{name} is {value} since step {step}" for step, name, value in first[:3])


def first_cause(run: Run) -> FirstCause | None:
    """Return why this generation ended; None if no task ended badly by itself."""
    task = first_of(run.tasks)
    own = first_cause_of(run, task) if task is not None else None
    if task is None or own is None:
        return own
    found = behind(run, task, own.sentence)
    return own if found is None else completed(run, replace(found, last_lines=own.last_lines))


def behind(run: Run, follower: Task, ending: str) -> FirstCause | None:
    """Return what is behind the end of a follower, as far as it is known; None if nothing points to another task.

    The task that notices the loss first is not the one that failed. Whom it names is the suspect: its host is silent,
    or it is frozen, or it is not known yet, and then nobody is blamed.
    """
    if follower.exit is None or follower.exit.cause.row.blame is not Blame.PEER:
        return None
    suspects = _suspects(run)
    away = cut_off_from(run, follower.exit.at, suspects)
    if away is not None:
        sentence = f"{away.name} was cut off: {_silence_of(away)}; {ending}"
        means, advice = matching.explanation(Cause.NETWORK, host=away.name)
        return FirstCause(
            None, run.generation, Cause.NETWORK, sentence, host=away.name, means=means, advice=advice
        )
    lost = _frozen_peer(run, suspects)
    if lost is not None:
        return FirstCause(
            task=lost.id,
            generation=lost.generation,
            cause=Cause.STALLED,
            sentence=f"{frozen(lost)}; {ending}",
            means="its process is alive but does nothing, not even send heartbeats; its peers gave it up",
            advice=f"check {lost.host} for what stopped it: SIGSTOP, a debugger, swapped-out memory",
        )
    if not suspects:
        return None
    named = " and ".join(f"{task.id} on {task.host}" for task in suspects)
    places = " and ".join(dict.fromkeys((follower.host, *(task.host for task in suspects))))
    return FirstCause(
        None,
        run.generation,
        Cause.NETWORK,
        f"its peers say that {named} had gone, which is not confirmed; {ending}",
        means=f"either {named} hung for a while, or the network failed: what is known fits both",
        advice=f"compare the ends of the logs of both sides, and look at the network between {places}",
    )


_TF_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


def names(run: Run, gone: Task, follower: Task) -> bool:
    """Return whether a follower's last lines name the task, by TensorFlow's name for it or by its address."""
    ended = follower.exit
    text = "\n".join((*ended.last_lines, ended.error or "")) if ended is not None else ""
    named = {
        TaskId(job, int(index)) for job, index in _TF_TASK.findall(text) if job in ("chief", "worker", "ps")
    }
    address = f"{run.plan.host(gone.host).peer_address}:{gone.port}"
    return gone.id in named or (gone.port is not None and address in text)


def _suspects(run: Run) -> list[Task]:
    """Return the tasks that followers say are gone, and that had not ended by themselves."""
    followers = [task for task in run.tasks if task.exit and task.exit.cause.row.blame is Blame.PEER]
    return [
        task
        for task in run.tasks
        if (task.exit is None or task.exit.cause is Cause.ORDERED)
        and any(names(run, task, follower) for follower in followers)
    ]


def cut_off_from(run: Run, at: Instant, suspects: Sequence[Task]) -> Host | None:
    """Return the host of peers that was silent at that instant, a suspect's first; None if none was, or most were."""
    holding = {task.host for task in run.tasks if _is_peer(run, task)}
    hosts = [host for host in run.assignees if host.name in holding]
    silent = [host for host in hosts if _was_silent(host, at)]
    accused = [host for host in silent if any(task.host == host.name for task in suspects)]
    return (accused or silent)[0] if silent and 2 * len(silent) <= len(hosts) else None


def _is_peer(run: Run, task: Task) -> bool:
    """Return whether other tasks connect to it: all but an evaluator, which runs alone and serves nobody."""
    return is_served(run, task) or not is_individual(run, task)


def _was_silent(host: Host, at: Instant) -> bool:
    if host.link is Link.UNREACHABLE:
        return host.heard_at is not None and host.heard_at < at
    return host.silent_at is not None and host.back_at is not None and host.silent_at < at <= host.back_at


def _silence_of(host: Host) -> str:
    """Return a sentence that says how long a host was not heard."""
    if host.link is Link.UNREACHABLE or host.silent_at is None or host.back_at is None:
        return "nothing is heard of it"
    return f"nothing was heard of it for {duration(host.back_at - host.silent_at)}"


def _frozen_peer(run: Run, suspects: Sequence[Task]) -> Task | None:
    """Return the task that gives or gave no sign of life, a suspect before others; None if there is none.

    TensorFlow ends a process some ten seconds after it last heard from a peer. That is sooner than a run counts as
    stalled. A suspect's last report counts too, which is made when it was stopped.
    """
    silent = [
        task
        for task in run.tasks
        if _is_peer(run, task)
        and (task.phase is TaskPhase.RUNNING or (task.exit is not None and task in suspects))
        and run.host(task.host).link is Link.CONNECTED
        and (task.progress.runtime_age_s or 0.0) >= FROZEN_AFTER_S
        and task.progress.stage != "connecting"  # it holds Python's lock, so that no thread of it beats
    ]
    return max(silent, key=lambda task: (task in suspects, task.progress.runtime_age_s or 0.0), default=None)


def frozen(task: Task) -> str:
    """Return a sentence that says that the task gives no sign of life."""
    silent_s = task.progress.runtime_age_s or 0.0
    return f"{task.id} on {task.host} is frozen: no sign of life for {duration(silent_s)}"


def end_of(run: Run, task: Task, ended: Exit) -> str:
    """Return a sentence that says how a task ended."""
    return f"{task.id} on {task.host} {how(ended, in_pod=run.plan.host(task.host).is_pod)}"


def first_cause_of(run: Run, task: Task) -> FirstCause | None:
    """Return why this task ended, and what became of the others; None while it lives."""
    ended = task.exit
    if ended is None:
        return None
    step = task.progress.global_step
    alike = _alike(run, task)
    ending = end_of(run, task, ended)
    # A script's own words may name the step already.
    when = "" if step is None or re.search(rf"\b[Ss]tep[ =:#]*{step}\b", ending) else f" at step {step}"
    too = f"; so did {_named(run, alike)}" if alike else ""
    python = run.plan.host(task.host).python
    means, advice = matching.explained(ended, host=task.host, python=python)
    advice = _way_to_missing(run, ended) or advice
    cause = FirstCause(
        task=task.id,
        generation=task.generation,
        cause=ended.cause,
        sentence=f"{ending}{when}{too}",
        last_lines=ended.last_lines,
        exit_code=ended.code,
        signal=ended.signal,
        ended_time=ended.ended_time,
        means=means,
        advice=advice,
        alike=alike,
    )
    if ended.cause.row.blame is Blame.PEER:  # and nobody had gone before it
        means, advice = matching.explanation(Cause.NETWORK, host=task.host)
        cause = replace(cause, cause=Cause.NETWORK, means=means, advice=advice)
    return completed(run, cause)


def _way_to_missing(run: Run, ended: Exit) -> str:
    """Return how what the script missed comes to be pushed; empty if no rule has left it out."""
    match = matching.signature_of(ended)
    facts = match[1] if match is not None else {}
    if facts.get("module"):
        return left_out.way_to_module(run.left_out, facts["module"])
    return left_out.way_to_path(run.left_out, facts["path"]) if facts.get("path") else ""


def _alike(run: Run, first: Task) -> tuple[TaskId, ...]:
    if first.exit is None or not first.exit.cause.row.repeats:
        return ()
    line = _common_line(first.exit)
    others = [t for t in run.tasks if t.id != first.id and t.exit and t.exit.cause is first.exit.cause]
    return tuple(t.id for t in others if t.exit and line and _common_line(t.exit) == line)


def _named(run: Run, tasks: Sequence[TaskId]) -> str:
    if len(tasks) == len(run.tasks) - 1 > 1:
        return f"the other {len(tasks)} tasks"
    return ", ".join(f"{task} on {run.task(task).host}" for task in tasks)


def completed(run: Run, cause: FirstCause) -> FirstCause:
    """Return the first cause with the facts that are known only once the other tasks have ended.

    What its class of causes always means is added too.
    """
    first = run.task(cause.task) if cause.task is not None else None
    host = first.host if first else cause.host
    others = [t for t in run.tasks if first is None or t.id != first.id]
    fell = [t for t in others if t.exit and t.exit.cause.row.blame is Blame.PEER]
    means, advice = matching.explanation(cause.cause, host=host or "the host")
    means, advice = cause.means or means, cause.advice or advice
    if (explained := _in_pod(run, cause.cause, host)) is not None:
        means, advice = explained
    if first is not None and (explained := gpu_faults.explanation(run, first)) is not None:
        means, advice = explained
    lines = cause.last_lines
    if cause.cause is Cause.RESUME_MISMATCH and first is not None and first.exit is not None:
        means, advice = matching.why_not_resumed(first.exit) or (means, advice)
        lines = lines or first.exit.last_lines
    if first is not None and (injected := _injected(first, cause.cause)) is not None:
        means, advice = f"injected by orch chaos: {injected.fault}", "nothing"
    return replace(
        cause,
        host=host,
        last_lines=lines,
        global_step=first.progress.global_step if first else None,
        means=means,
        advice=advice,
        followers=len(fell),
        followed=tuple(_follower(task, first) for task in sorted(fell, key=_ended_at)),
        stopped=sum(1 for t in others if t.exit and t.exit.cause is Cause.ORDERED),
    )


def _in_pod(run: Run, cause: Cause, host: str | None) -> tuple[str, str] | None:
    """Return what a cause means in a pod, and what can be done there; None if that is the same as on any host."""
    words = cause.row.in_pod
    if words is None or not any(known.is_pod for known in run.plan.hosts if known.name == host):
        return None
    known = run.host(str(host))
    if cause is Cause.REBOOTED and known.before:
        of_memory = Cause.OOM.row.in_pod if _KILLED_FOR_MEMORY in known.before else None
        return f"{host}: {known.before}", (of_memory or words).advice.format(host=host)
    problem = known.problem if cause.row.blame is Blame.HOST else None
    means = words.means.format(host=host) + (f"; {problem}" if problem else "")
    return means, words.advice.format(host=host)


_KILLED_FOR_MEMORY = "OOMKilled"
"""Kubernetes' word for a container that ended for want of memory."""


def _injected(task: Task, ended_by: Cause) -> Injected | None:
    """Return the injected fault that ended this task. A stall may be found late, while its fault still lasts."""
    injected = task.injected
    if injected is None:
        return None
    if ended_by is Cause.STALLED:
        return injected if injected.lasts_s else None
    if task.exit is None:
        return None
    after_s = task.exit.at - injected.at
    # The fault is noted before the order to inject it goes out. An end can seem to come before that only because the
    # clocks of host and head differ.
    return injected if -1.0 <= after_s <= injected.lasts_s + INJECTED_BEFORE_S else None


def _ended_at(task: Task) -> float:
    return task.exit.at if task.exit else 0.0


def _follower(task: Task, first: Task | None) -> Follower:
    if first is None or first.exit is None or task.exit is None:
        return Follower(task.id, task.host)
    after_s = task.exit.at - first.exit.at
    times = first.exit.ended_time, task.exit.ended_time
    if task.host == first.host and times[0] is not None and times[1] is not None:
        after_s = times[1] - times[0]  # both times are of one host's clock, without the delay of reports
    return Follower(task.id, task.host, round(max(0.0, after_s), 3))


def as_data(cause: FirstCause, downtime: Mapping[str, float | None] | None = None) -> dict[str, object]:
    """Return the first cause as JSON data for events, status and files; `downtime`: the parts of `cost` in seconds."""
    return {
        "task": str(cause.task) if cause.task else None,
        "host": cause.host,
        "generation": cause.generation,
        "cause": cause.cause.value,
        "exit_code": cause.exit_code,
        "signal": cause.signal,
        "sentence": cause.sentence,
        "global_step": cause.global_step,
        "ended_time": cause.ended_time,
        "means": cause.means,
        "advice": cause.advice,
        "done": cause.done,
        "cost": cause.cost,
        "downtime": downtime,
        "last_lines": list(cause.last_lines),
        "followers": cause.followers,
        "followed": [{"task": str(f.task), "host": f.host, "after_s": f.after_s} for f in cause.followed],
        "alike": [str(task) for task in cause.alike],
        "stopped": cause.stopped,
    }


def _common_line(ended: Exit) -> str:
    """Return the last line without its numbers and paths, which differ between tasks and between generations."""
    return ended.cause.value if ended.cause.row.in_other_words else without_figures(ended.last_line)


_MISTAKES = ("NameError:", "UnboundLocalError:", "IndentationError:")
"""Errors that follow from the script's text alone: data, files, hosts or networks may be others at the next start."""


def is_mistake(run: Run) -> bool:
    """Return whether this generation ended by a mistake in the script's own lines, before a task told a step."""
    first = first_of(run.tasks)
    if first is None or first.exit is None or first.exit.cause is not Cause.SCRIPT:
        return False
    return first.exit.last_line.startswith(_MISTAKES) and not any(
        task.progress.has_stepped for task in run.tasks
    )


def failure(run: Run) -> tuple[str, int | None] | None:
    """Return how and at which step this generation failed, if that may repeat itself; None if it need not.

    A run that fails again at the same step, with no newer checkpoint, will always fail there. A failure of a host
    counts only where all tasks have met it: otherwise another host may do.
    """
    cause = run.first_cause
    if cause is not None and cause.generation == run.generation and cause.cause is Cause.NOT_CONNECTED:
        return cause.cause.value, None
    first = first_of(run.tasks)
    if first is None or first.exit is None or not first.exit.cause.row.repeats:
        return None
    line = _common_line(first.exit)
    met_all = len(_alike(run, first)) + 1 == len(run.tasks)
    if not line or (first.exit.cause.row.blame is Blame.HOST and not met_all):
        return None
    return line, first.progress.global_step

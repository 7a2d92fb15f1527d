"""What `orch init --script` says of a script: read, trained for ten steps on one host, killed and resumed once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.both import durable
from orchestrator.both.distribution import distribution
from orchestrator.cli.commands.doctor import examined
from orchestrator.cli.commands.gc import on_hosts, remove
from orchestrator.cli.host_queries import asker, confirm, is_interactive
from orchestrator.cli.orphans import known
from orchestrator.cli.session import Session
from orchestrator.cli.watching import Watch
from orchestrator.client import killing
from orchestrator.client.choice import is_active, status_of
from orchestrator.client.starting import ensure_coordinator
from orchestrator.client.submit import snapshot
from orchestrator.client.waiting import is_untold, trains
from orchestrator.core.errors import OrchestratorError, SpecError
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import Plan
from orchestrator.core.words import counted, listed
from orchestrator.head.code.needs import modules
from orchestrator.head.hosts.survey import Surveyed
from orchestrator.spec.load import load_spec
from orchestrator.spec.plan import load_plan, plan_spec
from orchestrator.spec.restoring import restoring, with_checkpoint
from orchestrator.spec.sized import sized

STEPS = 10
_SAVES_EVERY_STEPS = 5
_SAVES_WITHIN_S = 120.0
"""How long a script may take for its first checkpoint after these steps."""
_LIMIT_S = 600.0
_SHOWN_MAX = 8


def answer(
    session: Session, file: str, heard: Sequence[Surveyed], data: Mapping[str, str], *, yes: bool
) -> int:
    """Say what the script of a new spec is, and try it on one of the hosts that were heard. Return the exit code."""
    try:
        plan, secrets = load_plan(file)
    except SpecError as e:  # its sentence says what the script lacks
        session.warn(str(e))
        session.hint(e.hint)
        return 1
    _say_read(session, plan, heard, data)
    result = examined(file, plan, session)
    for finding in result.findings:
        if finding.level != "fine":
            session.warn(f"{finding.message} ({finding.id})")
            session.hint(finding.hint)
    if result.errors:
        session.say("not tried: `orch doctor` says more of the errors above")
        return 1
    if _agrees_to_patch(session, plan, yes=yes):
        plan, secrets = load_plan(file)
    names = {each.host.name for each in heard}
    host = next((task.host for task in plan.tasks if task.host in names), None)
    return _try(session, file, plan, secrets, host) if host is not None else 4


def _say_read(session: Session, plan: Plan, heard: Sequence[Surveyed], data: Mapping[str, str]) -> None:
    """Say what the sources show: whether it is distributed, what it imports, reads and writes."""
    path = os.path.join(plan.workdir, plan.script)
    found = distribution(path, plan.root)
    made = sorted(name for name in found.strategies if name.endswith("Strategy"))
    if plan.options.transparent:
        shared = f"{plan.script} makes no strategy: `transparent: true` makes one training of it"
    else:
        shared = f"{plan.script} makes {listed(made) if made else 'no strategy, or one that its sources do not show'}"
    session.say(f"distributed: {shared}")
    needed = [
        f"{name} ({place})"
        for name, place in modules(path, plan.root).items()
        if name not in {*sys.stdlib_module_names, "orchestrator"}
    ]
    session.say(f"modules: {listed(needed) or 'none but TensorFlow'}")
    for place, where in data.items():
        lacking = [each.host.name for each in heard if place not in each.paths]
        text = f"data: {place} ({where})"
        if lacking:
            session.warn(f"{text} is not on {listed(lacking)}")
        else:
            session.say(f"{text} is on {listed([each.host.name for each in heard])}")
    saves = restoring(path, plan.root).savers
    written = [
        f"{place or 'a path that is computed'} ({os.path.basename(source)}:{line})"
        for source, line, _, place in saves
    ]
    session.say(f"writes: {listed(written[:_SHOWN_MAX]) or 'no model'}")


def _agrees_to_patch(session: Session, plan: Plan, *, yes: bool) -> bool:
    """Show what must change in a script that restores nothing, and change it once that is agreed to."""
    path = Path(plan.workdir, plan.script)
    if not plan.no_restore or plan.options.transparent:
        return False
    session.warn(plan.no_restore)
    before = path.read_bytes()
    after = with_checkpoint(before)
    if after is None:
        return False
    old, new = (text.decode("utf-8", "replace").splitlines(keepends=True) for text in (before, after))
    session.say(
        "".join(unified_diff(old, new, plan.script, f"{plan.script}, with what restores it", n=1)).rstrip(
            "\n"
        )
    )
    if not yes and not (is_interactive(session) and confirm(session, f"Change {plan.script} so?")):
        session.say(f"{plan.script} stays as it is; --yes changes it so")
        return False
    durable.write(str(path), after, mode=path.stat().st_mode & 0o777)
    return True


def _try(session: Session, file: str, plan: Plan, secrets: Mapping[str, str], host: str) -> int:
    """Train on one host, kill the task, and see from where it goes on."""
    from orchestrator.cli.trials import begun

    trial = _trial(file, plan, host)
    session.paths.ensure()
    code = snapshot(file, trial, session.paths.state_dir).digest
    ensure_coordinator(session)
    client = session.client()
    session.say(f"training {plan.script} on {host}, for {counted(STEPS, 'step')} and a kill …")
    run = begun(session, trial, secrets, code, doing="tried")
    try:
        seen = _to_its_proof(session, run)
        events = client.get("/v1/events", {"name": str(run["run_id"]), "after": 0}).get("events") or []
        if seen["phase"] == "FAILED" if seen["generation"] == 1 else not _is_killed(seen):
            cause = (seen.get("first_cause") or {}).get("sentence") or seen["reason"]
            session.warn(f"{plan.script} does not train on {host}: {cause}")
            session.hint(f"`orch why {trial.name}`, `orch logs {trial.name}`")
            return 1
        session.say(f"restores: {_proved(plan.script, seen, events)}")
    except OrchestratorError as e:
        session.warn(f"restores: not proved: {e}")
    finally:
        _end(session, trial, run)
    return 0


def _is_killed(seen: Mapping[str, Any]) -> bool:
    """Return whether the trial's own kill is why it was started again, and no failure of the script."""
    return (seen.get("first_cause") or {}).get("signal") == signal.SIGKILL


def _proved(script: str, seen: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """Say from where it went on after the kill."""
    if seen["generation"] == 1:
        step = seen.get("global_step")
        if step is None:
            return f"not proved: {script} has told of no step"
        ended = "ended by itself" if seen["phase"] == "SUCCEEDED" else "had saved nothing"
        return f"not proved: {script} {ended} by step {step}"
    begun = [each for each in events if each["kind"] in (NoteKind.RESUMED.value, NoteKind.FROM_START.value)]
    last = begun[-1] if begun else None
    if last is None or last["kind"] == NoteKind.FROM_START.value:
        return "no: it was killed, and began anew at step 0"
    if seen["phase"] == "FAILED":
        return f"no: it was killed, and ended: {seen['reason']}"
    data = last["data"]
    lost = f", {counted(data['steps_lost'], 'step')} of it trained again" if data.get("steps_lost") else ""
    return f"proved: it was killed, and went on from step {data['global_step']}{lost}"


def _trial(file: str, plan: Plan, host: str) -> Plan:
    """Return the plan of the trial: one task on one host, which saves every few steps where orch saves for it."""
    from orchestrator.cli.trials import trial_of

    spec = load_spec(file)
    own = plan_spec(sized(spec, plan, 1), Path(file).absolute().parent)
    own = trial_of(own, plan, "try", "alone")
    placed = tuple(replace(task, host=host) for task in own.tasks)
    saves = own.checkpoint
    return replace(
        own,
        hosts=(plan.host(host),),
        tasks=placed,
        needs=(),
        checkpoint=replace(saves, every_s=None, every_steps=_SAVES_EVERY_STEPS) if saves else None,
        restart=replace(own.restart, standby="off", backoff_s=0.0),
        timing=replace(own.timing, heartbeat_s=0.25),
        outputs=(),
        outputs_dir="",
        options=replace(own.options, dies_after=STEPS),
        no_restore=plan.no_restore,
        rescues=plan.rescues,
        no_handover=plan.no_handover,
    )


def _to_its_proof(session: Session, run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Wait until it trains again after its kill, has ended, or will not be killed. Return the run's status."""
    reached_at: list[float] = []

    def is_over(seen: Mapping[str, Any]) -> bool:
        if seen["generation"] > 1:
            return not is_active(seen) or trains(seen) or not _is_killed(seen)
        if (seen.get("global_step") or 0) >= STEPS:
            reached_at.append(session.now())
        is_late = bool(reached_at) and session.now() - reached_at[0] > _SAVES_WITHIN_S
        return not is_active(seen) or is_untold(seen) or is_late

    watch = Watch(session, session.client(), run, until=is_over, say=lambda _text: None, timeout_s=_LIMIT_S)
    return watch.to_its_end()


def _end(session: Session, trial: Plan, run: Mapping[str, Any]) -> None:
    """End the trial, and remove it on the host and here. What failed stays, for `orch why`."""
    client = session.client()
    seen = status_of(client, run)
    if is_active(seen):
        killing.order(client, seen, force=True)
        killing.wait_end(client, session, run, session.now() + _LIMIT_S)
    elif seen["phase"] == "FAILED":
        return
    ask = asker(session)
    left, _ = on_hosts(ask, trial.hosts, str(run["run_id"]).__eq__)
    if not remove(session, ask, left, (), known(session)):
        client.post(f"/v1/runs/{quote(str(run['run_id']))}/forget", {})

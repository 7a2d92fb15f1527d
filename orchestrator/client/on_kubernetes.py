"""Creates pods that serve as hosts, waits for them and reports why they wait, and deletes them.

The coordinator stays on this machine, as with SSH: `kubectl exec` is its channel, so pods need no rights on the API.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.client.choice import status_of
from orchestrator.client.environment import Environment
from orchestrator.core.errors import OrchestratorError, Refused, SpecError, WaitTimedOut
from orchestrator.core.plan import Plan
from orchestrator.head.api.client import Client
from orchestrator.head.code import bundle
from orchestrator.head.code.codetree import survey
from orchestrator.head.reach.kubernetes import lent, pods
from orchestrator.head.reach.kubernetes.commands import KubernetesFailed, find
from orchestrator.spec.kubernetes import hosts, objects
from orchestrator.spec.kubernetes.hosts import PodWishes, refusals
from orchestrator.spec.kubernetes.objects import Manifest, place_of
from orchestrator.spec.load import located
from orchestrator.spec.plan import load_plan, pod_wishes_of

_POLL_S = 1.0
_RETURN_S = 15.0
"""How long the coordinator may take to give back the pods of an ended run, once it fetches nothing from them."""
_RETURN_POLL_S = 0.25


def lend(file: str, environment: Environment) -> tuple[lent.Lent, bool]:
    """Return the pods of a file's run, and whether this call created them. Raises SpecError, KubernetesFailed."""
    plan, _ = load_plan(file)
    wishes = pod_wishes_of(file)
    refused = [located(file, loc, words) for loc, words in refusals(plan)]
    if refused:
        raise SpecError("\n".join(refused))
    survey(plan.workdir, plan.withheld).check(plan.script, plan.push_bytes_max)
    cluster = find(environment.environ, wishes.context, wishes.namespace)
    digest = objects.digest(hosts.pod_manifests(plan, wishes, b"", ""))
    state_dir = environment.paths.state_dir
    environment.paths.ensure()
    for held in _of(state_dir, [plan.name]):
        if held.end() is not None:
            lent.give_back(state_dir, held)
        elif (held.cluster, held.digest) == (cluster, digest):
            return held, False
        else:
            raise Refused(
                f"{plan.name} already has pods with other settings, in namespace {held.cluster.namespace}",
                hint=f"`orch kill {plan.name}` gives them back",
            )
    claim = objects.claim_name(plan, wishes) if hosts.needs_claim(plan) else ""
    first = lent.first_free(plan.name, cluster, len(plan.hosts))
    made = lent.new(plan.name, cluster, len(plan.hosts), digest, claim, first)
    # Refuse now what would fail only when the pods are there
    if not cluster.may("create", "pods", "--subresource=exec"):
        raise KubernetesFailed(
            f"you may not exec into pods of namespace {cluster.namespace}, which is how orch reaches them",
            hint="ask for the right to create pods/exec; docs/kubernetes.md has the Role",
            exit_code=5,
        )
    _create(file, plan, wishes, made, state_dir)
    return made, True


def _claim(plan: Plan, wishes: PodWishes, made: lent.Lent) -> list[Manifest]:
    """Return the manifest of the claim for checkpoints, if the claim does not exist yet."""
    if not made.claim:
        return []
    existing = made.cluster.items("persistentvolumeclaims", f"--field-selector=metadata.name={made.claim}")
    where = f"PersistentVolumeClaim {made.claim} in namespace {made.cluster.namespace}"
    if existing and pods.is_leaving(existing[0]):
        raise KubernetesFailed(
            f"the {where} is being deleted",
            hint="try again in a moment: it goes with the last pod that mounts it",
        )
    if not existing and wishes.claim is not None:
        raise KubernetesFailed(
            f"there is no {where}",
            hint="create it, or leave `claim` out: then orch creates one, and keeps it",
        )
    return [] if existing else [hosts.claim_manifest(plan, wishes, made.id)]


def _create(file: str, plan: Plan, wishes: PodWishes, made: lent.Lent, state_dir: str) -> None:
    items = [
        *_claim(plan, wishes, made),
        *hosts.pod_manifests(plan, wishes, bundle.packed(), made.id, made.first),
    ]
    # The server checks all objects, and a pod if we may create one, before anything is created.
    # Raises: SpecError: it refuses something in the file, in its own words. KubernetesFailed: it refuses for another
    # reason.
    wanted = list(items)
    if made.cluster.may("create", "pods"):  # limits and pod security apply only to pods
        template = items[-1]["spec"]["template"]
        metadata = {**template["metadata"], "generateName": f"{plan.name}-"}
        wanted.append({**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    for manifest in wanted:
        try:
            made.cluster.try_out(manifest)
        except KubernetesFailed as e:
            if "does not support dry run" in e.message or (
                manifest["kind"] == "Pod" and "exceeded quota" in e.message
            ):
                continue  # a webhook without dry run, or a quota that others use now, which the wait will report
            if e.is_of_the_object:
                raise SpecError(located(file, place_of(e.message, wishes), e.message), hint=e.hint) from e
            raise
    everything = {"apiVersion": "v1", "kind": "List", "items": items}
    lent.keep(state_dir, made)
    try:
        # Only create: `apply` would change existing objects, and copies objects into annotations.
        # kubectl need not fetch the server's schemas, since tests check all manifests against the published ones.
        made.cluster.call("create", "--validate=false", "--filename=-", stdin=json.dumps(everything).encode())
    except KubernetesFailed:
        with contextlib.suppress(KubernetesFailed):
            lent.give_back(state_dir, made)  # the objects that were created before the failure
        raise


def wait_for_pods(
    made: lent.Lent, wanted: int, environment: Environment, *, file: str, timeout_s: float | None = None
) -> list[str]:
    """Wait until that many of the pods run, and return their names. Report why others do not.

    If a quota refuses them, name the place in the file that asks for too much.

    Raises:
        KubernetesFailed: they will never run, or were deleted, and are given back; or they cannot be listed, and the
            hint says how to go on.
        WaitTimedOut: they still wait.
    """
    deadline = None if timeout_s is None else environment.now() + timeout_s
    last = ""
    while True:
        try:
            running, waiting = _running_pods(made, wanted, environment.paths.state_dir)
        except KubernetesFailed as e:
            if lent.read(environment.paths.state_dir, made.id) is None:
                raise
            if not e.passes:
                e.hint = f"{e.hint}; {goes_on(made)}" if e.hint else goes_on(made)
                raise
            running, waiting = [], pods.Waiting(f"{e.message}; it is asked again", e.hint)
        if waiting is None:
            return running
        if waiting.why != last:
            environment.say(f"waiting for pods: {waiting.why}")
            over_quota = waiting.hint == pods.QUOTA_HINT
            environment.hint(_with_place(file, waiting.why, pods.QUOTA_HINT) if over_quota else waiting.hint)
            last = waiting.why
        if deadline is not None and environment.now() >= deadline:
            raise WaitTimedOut(f"the pods of {made.name} still wait: {waiting.why}", hint=goes_on(made))
        environment.pause(_POLL_S)


def _with_place(file: str, why: str, hint: str) -> str:
    try:
        return located(file, place_of(why, pod_wishes_of(file)), hint)
    except SpecError:
        return hint  # the file was changed meanwhile


def _running_pods(made: lent.Lent, wanted: int, state_dir: str) -> tuple[list[str], pods.Waiting | None]:
    """Return the running pods, and why others wait. If they never will, raise, and give them back without a run."""
    running, waiting = made.check(wanted)
    if waiting is None:
        return running, None
    if waiting.hopeless:
        held = lent.read(state_dir, made.id)
        if held is not None and held.has_run:  # which another `orch up` has begun meanwhile
            raise KubernetesFailed(f"{waiting.why}; a run has the pods, and they stay", hint=waiting.hint)
        lent.give_back(state_dir, made)
        raise KubernetesFailed(f"{waiting.why}; the pods are given back", hint=waiting.hint)
    if not running and (gone := made.end()) is not None:
        lent.give_back(state_dir, made)
        raise KubernetesFailed(gone)
    return running, waiting


def goes_on(made: lent.Lent) -> str:
    """Return the hint for a person who stops waiting."""
    return f"`orch up` again waits on for the same pods; `orch kill {made.name}` gives them back"


def place(made: lent.Lent, running: Sequence[str]) -> tuple[str, ...]:
    """Return the pods that get tasks: those that ran when the run was submitted, or else those that run now."""
    return made.hosts if made.has_run and made.hosts else tuple(running)


def has_run(made: lent.Lent, environment: Environment, hosts: Sequence[str]) -> None:
    """Record that a coordinator has the run and will give the pods back."""
    lent.keep(environment.paths.state_dir, replace(made, has_run=True, hosts=tuple(hosts), is_unused=False))


def may_be_used(made: lent.Lent, environment: Environment, *, used: bool) -> None:
    """Record whether a run may have written to the claim. It may from its submission on, unless that is refused."""
    lent.keep(environment.paths.state_dir, replace(made, is_unused=made.is_unused and not used))


def kept_claims(environment: Environment, names: Iterable[str]) -> list[str]:
    """Return sentences about the claims that stay when the pods of these runs are given back."""
    return [
        f"kept: PersistentVolumeClaim {held.claim} in namespace {held.cluster.namespace}, "
        f"with the checkpoints of {held.name}"
        for held in _of(environment.paths.state_dir, list(names))
        if held.claim and not held.is_unused
    ]


def give_back_waiting(
    environment: Environment, names: Iterable[str]
) -> tuple[list[str], KubernetesFailed | None]:
    """Give back the pods with these names, or all pods, that have no run yet.

    Return the names, and the error if some could not be given back. A failure does not affect the others.
    """
    waiting, problem = [], None
    for held in _of(environment.paths.state_dir, list(names)):
        if held.has_run:
            continue
        waiting.append(held.name)
        try:
            deleted = ", ".join(lent.give_back(environment.paths.state_dir, held))
            environment.say(
                f"{held.name} had no run yet; its pods are given back: deleted {deleted or 'nothing'}"
            )
        except KubernetesFailed as e:
            problem = _still_lent(environment, held, e)
    return waiting, problem


def _still_lent(environment: Environment, held: lent.Lent, error: KubernetesFailed) -> KubernetesFailed:
    environment.warn(f"the pods of {held.name} are not given back: {error.message}")
    environment.hint(f"`orch kill {held.name}` tries again")
    return error


def await_return(
    environment: Environment, client: Client, runs: Sequence[Mapping[str, Any]], deadline: float
) -> KubernetesFailed | None:
    """Wait until the coordinator has given back the pods of ended runs; give them back if it does not.

    Return the error if some could not be given back. Raises WaitTimedOut if `outputs` are still being fetched at the
    deadline.
    """
    give_up_at = environment.now() + _RETURN_S
    last = ""
    names = [str(run["name"]) for run in runs]
    while left := _of(environment.paths.state_dir, names) if names else []:
        sentence = _fetch(client, runs, left)
        if sentence is None and environment.now() >= give_up_at:
            break
        if sentence is not None:
            give_up_at = environment.now() + _RETURN_S
            if environment.now() >= deadline:
                raise WaitTimedOut(sentence, hint="the coordinator gives the pods back then")
            if sentence != last:
                environment.say(sentence)
                last = sentence
        environment.pause(_RETURN_POLL_S)
    problem = None
    for held in left:
        try:
            deleted = lent.give_back(environment.paths.state_dir, held)
            environment.say(
                f"deleted in namespace {held.cluster.namespace}: {', '.join(deleted) or 'nothing'}"
            )
        except KubernetesFailed as e:
            problem = _still_lent(environment, held, e)
    return problem


def _fetch(client: Client, runs: Iterable[Mapping[str, Any]], left: Iterable[lent.Lent]) -> str | None:
    """Return what the coordinator still fetches from these pods; None if it fetches nothing or is away."""
    names = [held.name for held in left]
    for run in runs:
        if run["name"] not in names:
            continue
        try:
            outputs = status_of(client, run).get("outputs") or {}
        except OrchestratorError:
            continue
        if outputs.get("pending") and outputs.get("directory") is not None:
            return (
                f"Fetching `outputs` to {outputs['directory']}: the pods of {run['name']} are kept until then"
            )
    return None


def _of(state_dir: str, names: list[str]) -> list[lent.Lent]:
    if not os.path.isdir(os.path.join(state_dir, lent.DIRECTORY)):
        return []
    return [held for held in lent.all_of(state_dir) if not names or held.name in names]

"""Examines the hosts of a plan before anything is started: whether they answer, reach each other, and can train this.

All hosts are asked at once, and each step has its deadline, so a host that hangs holds up no other. Nothing is pushed
to the hosts but the agent, and nothing is left there. `judgement` says what the answers mean.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

from orchestrator.core.errors import HostError
from orchestrator.core.hosts import compatibility, host_state
from orchestrator.core.plan import HostPlan, Plan
from orchestrator.core.state.host import Facts
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.core.words import counted, duration, listed
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.hosts import judgement
from orchestrator.head.hosts.judgement import AnsweredHost
from orchestrator.head.hosts.preparation import named, probe
from orchestrator.head.links import bootstrap, requests
from orchestrator.head.links.lease import leased
from orchestrator.head.links.link import HostLink, LinkDown, OrderRefused, Pace, Watch
from orchestrator.head.reach.transport import Transport
from orchestrator.protocol.orders.driving import KnownRun
from orchestrator.protocol.orders.hosts import EXAMINE, PROBE, REACH, Imported, Seen, Target
from orchestrator.reporting.findings import Finding, finding, problem_finding, worst_first

RUN_ID = "inspection-20000101-000000"
"""The id of a run that is never started. Hosts remember nothing of a run before they get its code."""

CHECK_S = 10.0
"""How long each step may take. A host that has not answered by then is a finding, and the others go on."""

IMPORT_S = 30.0
"""How long the import of TensorFlow may take, which reads a gigabyte from a disk that may be across the network."""

_LISTEN_S = 60.0
_MEASURE_ALL_S = 20.0
"""What all transfers of the bandwidth take together, about. None takes longer than a second."""
MEASURE_MAX_S = 60.0
"""After this no transfer begins: each to a host that is silent, or behind a firewall, takes seconds."""
_SHELL_PART = 0.7
"""Of the deadline, for the login shell and the agent: who hangs there is found before the deadline, and named."""
_ROUND_TRIPS = 3

_T = TypeVar("_T")

Progress = Callable[[str], None]
"""Called with a sentence about each step that was done, from any thread."""


@runtime_checkable
class _Warns(Protocol):
    """A transport that reads settings of a person's."""

    def warnings(self, host: HostPlan) -> list[str]:
        """Return the settings that it does not follow, as sentences."""

    def proxy_commands(self, host: HostPlan) -> list[str]:
        """Return the commands of that person by which it connects."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The findings, the worst first."""

    findings: tuple[Finding, ...]
    addresses: Mapping[str, str]
    """By host: the address that its peers reach, where they do not reach it by the one of the plan."""
    runs: Mapping[str, Sequence[KnownRun]] = field(default_factory=dict)
    """By host: what it knows of runs, where all was looked at."""

    @property
    def errors(self) -> list[Finding]:
        """Return what keeps the run from training."""
        return [found_ for found_ in self.findings if found_.level == "error"]


def examine(
    plan: Plan,
    transports: Mapping[str, Transport],
    bundle: Callable[[], Bundle],
    *,
    whole: bool = True,
    imports: bool = False,
    bandwidth: bool = False,
    active: Run | None = None,
    within_s: float = CHECK_S,
    progress: Progress = lambda _: None,
) -> Examined:
    """Examine all hosts. It blocks, for a few times `within_s` at most.

    Args:
        plan: the plan.
        transports: the ways to its hosts.
        bundle: our code.
        whole: False leaves out what each start checks by itself: Python, packages, GPUs, checkpoint directory.
        imports: whether TensorFlow is imported once on each host.
        bandwidth: whether to measure the bandwidth between all hosts, unless a run uses one of them.
        active: the run whose token the checkpoint directory must have on each host; None if there is none.
        within_s: the deadline of each step.
        progress: is called after each step.
    """
    run = new_run(RUN_ID, plan, epoch=1, at=0.0)
    doctor = _Doctor(plan, run, transports, bundle, within_s, progress, whole, imports, bandwidth, active)
    try:
        return doctor.examine()
    finally:
        doctor.close()


@dataclass(slots=True)
class _Doctor:
    _plan: Plan
    _run: Run
    _transports: Mapping[str, Transport]
    _bundle: Callable[[], Bundle]
    _within_s: float
    _progress: Progress
    _whole: bool
    _imports: bool
    _bandwidth: bool
    _active: Run | None = None
    _leases: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _links: dict[str, HostLink] = field(default_factory=dict)
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def examine(self) -> Examined:
        names = [host.name for host in self._plan.hosts]
        answers = at_once(self._meet, names, self._within_s)
        met = {name: answer for name, answer in answers.items() if isinstance(answer, AnsweredHost)}
        failed = [answer for answer in answers.values() if isinstance(answer, Finding)]
        failed += self._passed_over() if self._whole else []
        silent = f"it has not answered for {duration(self._within_s)}"
        failed += [
            finding("ssh.no-answer", f"{name}: {silent}", name) for name in names if name not in answers
        ]
        probed: dict[str, Facts | Finding] = {}
        imported: dict[str, Imported | None] = {}

        def probe_and_import() -> None:
            probed.update(self._probe_all(list(met)))
            if self._imports:
                fit = {name: item for name, item in probed.items() if isinstance(item, Facts)}
                pythons = {
                    name: item.executable for name, item in fit.items() if item.versions.get("tensorflow")
                }
                imported.update(self._import_all(pythons))

        probing = threading.Thread(target=probe_and_import, daemon=True)
        if self._whole:
            probing.start()
        seen = self._reach_all(met) if len(met) > 1 else {}
        if self._whole:
            probing.join(self._within_s + 1 + (IMPORT_S if self._imports else 0))
        facts = {name: item for name, item in probed.items() if isinstance(item, Facts)}
        failed += [item for item in probed.values() if isinstance(item, Finding)]
        pairs, addresses = judgement.judge_pairs(self._plan, met, seen)
        if self._whole and len(seen) > 1 and not any(item.level == "error" for item in pairs):
            first, last = self._plan.ports
            at = listed(
                [f"{name} at {addresses.get(name) or self._plan.host(name).peer_address}" for name in seen]
            )
            text = f"{len(seen)} hosts reach each other, in both directions, on ports of {first}-{last}: {at}"
            pairs.append(finding("net.reached", text))
        all_ = [
            *failed,
            *judgement.judge_hosts(self._plan, met, whole=self._whole),
            *pairs,
            *_misfits(self._run, facts),
            *judgement.judge_imports(self._plan, imported),
            *(self._bandwidths(met, addresses) if self._bandwidth else []),
        ]
        return Examined(tuple(worst_first(all_)), addresses, {name: item.runs for name, item in met.items()})

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._leases.close()

    def _passed_over(self) -> list[Finding]:
        """Return the settings of these hosts that orch does not follow, and the commands of ssh_config that it runs."""
        warnings: dict[str, str] = {}
        commands: list[Finding] = []
        for host in self._plan.hosts:
            way = self._transports[host.transport]
            if isinstance(way, _Warns):
                with contextlib.suppress(HostError):  # the connection reports it
                    warnings.update(
                        (warning, host.name) for warning in way.warnings(host) if warning not in warnings
                    )
                    commands += [
                        finding("ssh.proxy", f"{host.name} is reached by {command}", host.name)
                        for command in way.proxy_commands(host)
                    ]
        return [*(finding("ssh.config", warning, name) for warning, name in warnings.items()), *commands]

    def _meet(self, name: str) -> AnsweredHost | Finding:
        """Connect, and have the host listen on the run's ports."""
        began_at = time.monotonic()
        host, watch = (self._plan.host(name), Watch(self._run.epoch, self._plan.timing.heartbeat_s, 60.0))
        lease = contextlib.ExitStack()
        pace = Pace(start_s=_SHELL_PART * self._within_s)
        try:
            link = lease.enter_context(
                leased(
                    host, self._transports[host.transport], self._bundle, self._run.run_id, watch, pace=pace
                )
            )
            with self._lock:
                if self._closed:
                    lease.close()
                    raise LinkDown("it answered too late")
                self._leases.push(lease)
                self._links[name] = link
            connected_s = time.monotonic() - began_at
            token = secrets.token_hex(16)
            secret = secrets.token_hex(16) if self._bandwidth else ""
            saves = self._plan.checkpoint.dir if self._plan.checkpoint is not None else None
            more = [saves] if saves is not None else []
            more += [self._plan.env["TMPDIR"]] if "TMPDIR" in self._plan.env else []
            asked_at = time.time()
            order = EXAMINE(
                {
                    "ports": self._plan.ports,
                    "token": token if len(self._plan.hosts) > 1 else "",
                    "listen_s": _LISTEN_S + (2 * IMPORT_S if self._bandwidth else 0.0),
                    "secret": secret,
                    "writes": saves if self._imports else None,
                    "directories": more,
                    "group": self._plan.checkpoint.group if self._plan.checkpoint is not None else None,
                    "gpus": self._whole and bool(self._plan.host(name).gpus),
                }
            )
            health = link.ask(order, timeout_s=self._within_s).ok
            hello = link.hello
            if hello is None:
                raise LinkDown(f"the connection to {name} broke")
            met = AnsweredHost(name, hello, health, token, asked_at, time.time(), secret=secret)
            if self._whole:
                runs = link.ask(requests.drivers(None), timeout_s=self._within_s).ok["runs"]
                met = replace(met, round_trip_s=self._round_trip(link), runs=tuple(runs))
        except LinkDown as e:
            code = "rc-files" if bootstrap.SHELL_HANGS in str(e) else "unreachable"
            return problem_finding(named(name, Problem(code, str(e), exit_code=4)), name)
        except OrderRefused as e:
            return problem_finding(named(name, e.problem), name)
        self._progress(f"{name}: connected in {connected_s:.1f} s")
        return met

    def _round_trip(self, link: HostLink) -> float:
        """Return the shortest time of a few orders that a host answers at once."""
        taken_s = []
        for _ in range(_ROUND_TRIPS):
            began_at = time.monotonic()
            link.ask(
                requests.watch(self._run.run_id, 1, self._plan.timing.heartbeat_s), timeout_s=self._within_s
            )
            taken_s.append(time.monotonic() - began_at)
        return min(taken_s)

    def _reach_all(self, met: Mapping[str, AnsweredHost]) -> dict[str, list[Seen]]:
        """Return, by host, the results of its attempts to reach the others."""

        def reach_peers(name: str) -> list[Seen] | None:
            targets = [
                target for other in met.values() if other.name != name for target in self._targets(other)
            ]
            order = REACH({"targets": targets, "within_s": self._within_s / 2})
            try:
                seen = self._links[name].ask(order, timeout_s=self._within_s).ok["seen"]
            except (LinkDown, OrderRefused):
                return None
            self._progress(f"{name}: has tried to reach {counted(len(met) - 1, 'other')}")
            return seen

        answers = at_once(reach_peers, list(met), self._within_s + 1)
        return {name: seen for name, seen in answers.items() if seen is not None}

    def _bandwidths(self, met: Mapping[str, AnsweredHost], addresses: Mapping[str, str]) -> list[Finding]:
        """Measure how much each host sends each other: a host is in one transfer at a time, so none shares its link."""
        busy = [
            f"{run['run']} on {host.name}"
            for host in met.values()
            for run in host.runs
            if run["alive"] or run["driven"]
        ]
        if busy:
            text = f"the bandwidth was not measured, which would disturb {listed(busy)}"
            return [
                finding("net.bandwidth", text, level="warning", hint="measure when no run uses the hosts")
            ]
        rounds = tournament(list(met))
        measure_s = min(1.0, _MEASURE_ALL_S / (2 * len(rounds))) if rounds else 0.0
        rates: dict[tuple[str, str], float | str] = {}

        def get(writers: Mapping[str, str], reader: str) -> float | str:
            writer = writers[reader]
            target: Target = {
                "host": writer,
                "address": addresses.get(writer, self._plan.host(writer).peer_address),
                "ports": list(met[writer].health["ports"]),
                "token": met[writer].token,
                "secret": met[writer].secret,
                "measure_s": measure_s,
            }
            try:
                order = REACH({"targets": [target], "within_s": self._within_s / 2})
                (seen,) = self._links[reader].ask(order, timeout_s=self._within_s).ok["seen"]
            except (LinkDown, OrderRefused, ValueError) as e:
                return str(e) if isinstance(e, LinkDown | OrderRefused) else "it did not answer in time"
            return seen.get("bytes_per_s") or seen["why"] or "nothing arrives"

        end_at, late = time.monotonic() + MEASURE_MAX_S, "it did not answer in time"
        for number, pairs in enumerate(rounds, 1):
            self._progress(f"measuring between hosts, {number} of {len(rounds)} …")
            for writers in ({b: a for a, b in pairs}, dict(pairs)):
                if time.monotonic() < end_at:
                    answers = at_once(partial(get, writers), list(writers), self._within_s)
                    rates.update({(writers[host], host): answers.get(host, late) for host in writers})
        findings = judgement.judge_bandwidths(rates)
        if left := len(met) * (len(met) - 1) - len(rates):
            text = f"{left} of {left + len(rates)} transfers were not measured: the others took too long"
            findings.append(
                finding("net.bandwidth", text, level="warning", hint="correct what was measured first")
            )
        return findings

    def _targets(self, met: AnsweredHost) -> list[Target]:
        """Return the address in the plan. If that is a name, also return the address at which SSH reached the host."""
        address = self._plan.host(met.name).peer_address
        other = met.health["reached_at"]
        addresses = [address] if other is None or not judgement.is_name(address) else [address, other]
        return [
            {
                "host": met.name,
                "address": each_address,
                "ports": list(met.health["ports"]),
                "token": met.token,
            }
            for each_address in addresses
        ]

    def _probe_all(self, names: Sequence[str]) -> dict[str, Facts | Finding]:
        known, run = self._active, self._run
        run = replace(run, run_id=known.run_id, share=known.share) if known is not None else run

        def probe_host(name: str) -> Facts | Finding:
            try:
                return probe(self._links[name], run, name)
            except LinkDown as e:
                return problem_finding(Problem("unreachable", f"{name}: {e}", exit_code=4), name)
            except OrderRefused as e:
                return problem_finding(e.problem, name)

        answers = at_once(probe_host, names, self._within_s)
        text = f"its Python and its checkpoint directory have not answered for {duration(self._within_s)}"
        late = {
            name: finding("ssh.no-answer", f"{name}: {text}", name) for name in names if name not in answers
        }
        return {**answers, **late}

    def _import_all(self, pythons: Mapping[str, str]) -> dict[str, Imported | None]:
        """Have these Pythons, by host, import TensorFlow at once. Return how that went; None if unknown."""
        names = list(pythons)

        def import_there(name: str) -> Imported | None:
            host = self._plan.host(name)
            # CUDA's own order is another than that of nvidia-smi and the spec.
            gpus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, host.gpus))}
            order = PROBE(
                {
                    "run": RUN_ID,
                    "epoch": self._run.epoch,
                    "python": pythons[name] or host.python,
                    "checkpoint_dir": None,
                    "tensorflow": {"env": {**self._plan.env, **gpus}, "within_s": IMPORT_S - 5.0},
                }
            )
            try:
                imported = self._links[name].ask(order, timeout_s=IMPORT_S).ok.get("tensorflow")
            except (LinkDown, OrderRefused):
                return None
            if imported is not None and imported["gpus"] is not None:
                self._progress(f"{name}: has imported TensorFlow")
            return imported

        if names:
            self._progress(f"{listed(names)}: importing TensorFlow …")
        answers = at_once(import_there, names, IMPORT_S)
        return {name: answers.get(name) for name in names}


def tournament(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return rounds of pairs, in which each meets each once, and is in one pair of a round at most.

    >>> tournament(["a", "b", "c"])
    [[('b', 'c')], [('a', 'c')], [('a', 'b')]]
    """
    ring: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    rounds = []
    for _ in range(len(ring) - 1):
        half = zip(ring[: len(ring) // 2], reversed(ring), strict=False)
        pairs = [(min(a, b), max(a, b)) for a, b in half if a is not None and b is not None]
        rounds.append(pairs)
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def at_once(work: Callable[[str], _T], names: Sequence[str], within_s: float) -> dict[str, _T]:
    """Return the answers that come in time. A thread that hangs is left behind."""
    answers: dict[str, _T] = {}
    lock = threading.Lock()

    def call(name: str) -> None:
        answer = work(name)
        with lock:
            answers[name] = answer

    threads = [
        threading.Thread(target=call, args=(name,), daemon=True, name=f"examine-{name}") for name in names
    ]
    for thread in threads:
        thread.start()
    end_at = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, end_at - time.monotonic()))
    with lock:
        return {name: answers[name] for name in names if name in answers}


def _misfits(run: Run, facts: Mapping[str, Facts]) -> list[Finding]:
    """Return how hosts differ that must not, and the processes of earlier runs that cannot be killed."""
    stuck = [
        problem_finding(host_state.stuck(name, "; ".join(each.sentence for each in known.unkillable)), name)
        for name, known in facts.items()
        if known.unkillable
    ]
    hosts = [replace(host, facts=facts[host.name]) for host in run.hosts if host.name in facts]
    problems = (compatibility.differences(hosts), compatibility.unshared(run.plan.checkpoint, hosts))
    wrong = [problem_finding(problem, None) for problem in problems if problem is not None]
    if hosts and not wrong and len(hosts) == len(run.hosts):
        versions = facts[hosts[0].name].versions
        packages = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        first = facts[hosts[0].name]
        python = first.python
        activated = first.activated
        wrong.append(
            finding("python.fits", f"Python {python}{f' with {packages}' if packages else ''} on all hosts")
        )
        if activated:
            changed = "; ".join(f"{name}={value}" for name, value in activated.items())
            wrong.append(finding("python.activated", f"`activate` sets on all hosts: {changed}"))
    return [*stuck, *wrong]

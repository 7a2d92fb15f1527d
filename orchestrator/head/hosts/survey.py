"""Surveys unknown hosts: their GPUs, a Python with TensorFlow, and a directory that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.plan import Gpu, HostPlan, TaskId, TaskPlan
from orchestrator.core.plan import Plan as _Plan
from orchestrator.core.state.run import new_run
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.words import duration
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.hosts import judgement
from orchestrator.head.hosts.examination import CHECK_S, RUN_ID, at_once
from orchestrator.head.links.lease import leased
from orchestrator.head.links.link import HostLink, LinkDown, OrderRefused, Watch
from orchestrator.head.reach.transport import Transport
from orchestrator.protocol.orders.hosts import EXAMINE, MACHINE, PROBE, Facts, Health, Probe

PYTHONS = (
    "python3",
    "~/.venv/bin/python",
    "~/venv/bin/python",
    "~/tf/bin/python",
    "/opt/tf/bin/python",
    "/opt/venv/bin/python",
    "/opt/conda/bin/python",
    "~/miniconda3/bin/python",
    "~/miniforge3/bin/python",
    "~/anaconda3/bin/python",
    "/usr/local/bin/python3",
)
"""The Pythons that are tried. The first one with TensorFlow is used."""

SHARED = ("/shared", "/mnt/shared", "/nfs", "/mnt/nfs", "/scratch", "/data", "/mnt/data")
"""The directories that the hosts may share, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The result for one host. `why`: why nothing is known of it."""

    host: HostPlan
    gpus: tuple[Gpu, ...] = ()
    """Those that the login shell does not hide by CUDA_VISIBLE_DEVICES."""
    gpu_name: str = ""
    python: str | None = None
    """The first Python that has TensorFlow."""
    tensorflow: str | None = None
    home: str = ""
    there: tuple[str, ...] = ()
    """The candidate directories, and those of this name in them, that exist and are writable."""
    paths: frozenset[str] = frozenset()
    """What is there of the paths that were asked for."""
    reached_at: str | None = None
    """Its own address at which this machine has reached it."""
    why: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """The results of all hosts, in their order."""

    hosts: tuple[Surveyed, ...]
    shared: str | None = None
    """The directory that all hosts share; None if there is none."""
    tried: tuple[str, ...] = field(default=())
    """The directories that exist on all hosts, and are not shared, not writable, or open to others."""


def survey(
    hosts: Sequence[HostPlan],
    transports: Mapping[str, Transport],
    bundle: Callable[[], Bundle],
    *,
    name: str,
    pythons: Sequence[str] = PYTHONS,
    directories: Sequence[str] = SHARED,
    paths: Sequence[str] = (),
) -> Survey:
    """Survey all hosts at once. To see whether a directory is shared, a directory of this `name` is made below it.

    Where it turns out not to be shared, what was made is removed. `paths`: whether they are there is asked.
    """
    plan = _Plan(name, "processes", tuple(hosts), (TaskPlan(TaskId("worker", 0), hosts[0].name),), "train.py")
    run = new_run(RUN_ID, plan, epoch=1, at=0.0)
    watch = Watch(run.epoch, plan.timing.heartbeat_s, 60.0)
    by_name = {host.name: host for host in hosts}

    def probe(link: HostLink, python: str, directory: str | None, withdraw: bool | None = None) -> Facts:
        asked: Probe = {
            "run": run.run_id,
            "epoch": 1,
            "python": python,
            "checkpoint_dir": directory,
            "packages": list(STRATEGIES[run.plan.strategy].packages),
        }
        if withdraw is not None:
            asked["withdraw"] = withdraw
        return link.ask(PROBE(asked), timeout_s=CHECK_S).ok

    def ask_host(host: str) -> Surveyed:
        plan = by_name[host]
        try:
            with leased(plan, transports[plan.transport], bundle, run.run_id, watch) as link:
                return _survey_host(link, plan, pythons, looked_at, probe, paths)
        except LinkDown as e:
            return Surveyed(plan, why=str(e))
        except OrderRefused as e:
            return Surveyed(plan, why=e.problem.message, hint=e.problem.hint)

    def share(host: str, directory: str, withdraw: bool | None = None) -> str | None:
        plan = by_name[host]
        try:
            with leased(plan, transports[plan.transport], bundle, run.run_id, watch) as link:
                surveyed = probe(link, "", directory, withdraw)
        except (LinkDown, OrderRefused):
            return None
        # A directory in which others write is as good as none.
        return surveyed["checkpoint_share"] if surveyed["checkpoint_writable"] else None

    looked_at = [*directories, *(_of_this(place, name) for place in directories)]
    answers = at_once(ask_host, list(by_name), 3 * CHECK_S)
    late = f"it has not answered for {duration(3 * CHECK_S)}"
    surveyed = tuple(answers.get(host) or Surveyed(by_name[host], why=late) for host in by_name)
    heard = [each.host.name for each in surveyed if each.why is None]
    everywhere = [
        place
        for place in directories
        if heard and all(place in each.there for each in surveyed if not each.why)
    ]
    tried: list[str] = []
    for place in everywhere:
        directory = _of_this(place, name)
        tokens = at_once(lambda host, directory=directory: share(host, directory), heard, CHECK_S)  # type: ignore[misc]
        if len(tokens) == len(heard) and len(set(tokens.values())) == 1 and None not in tokens.values():
            return Survey(surveyed, directory, tuple(tried))
        was_there = {each.host.name: directory in each.there for each in surveyed}

        def withdrawn(
            host: str, directory: str = directory, was_there: dict[str, bool] = was_there
        ) -> str | None:
            return share(host, directory, not was_there[host])

        at_once(withdrawn, heard, CHECK_S)
        tried.append(place)
    return Survey(surveyed, None, tuple(tried))


def _of_this(place: str, name: str) -> str:
    return f"{place.rstrip('/')}/{name}"


def _survey_host(
    link: HostLink,
    host: HostPlan,
    pythons: Sequence[str],
    directories: Sequence[str],
    probe: Callable[[HostLink, str, str | None], Facts],
    paths: Sequence[str],
) -> Surveyed:
    def examined(places: Sequence[str]) -> Health:
        order = EXAMINE({"ports": (1, 0), "token": "", "listen_s": 0.0, "directories": list(places)})
        return link.ask(order, timeout_s=CHECK_S).ok

    hardware, health = link.ask(MACHINE({}), timeout_s=CHECK_S).ok, examined(directories)
    there = tuple(each["path"] for each in health["directories"] if each["exists"] and not each["read_only"])
    home = health["directories"][1]["path"]
    own = {home + path[1:] if path.startswith("~") else path: path for path in paths}
    known = examined(list(own))["directories"] if own else []
    python = version = None
    for candidate in (home + each[1:] if each.startswith("~") else each for each in pythons):
        try:
            version = probe(link, candidate, None)["versions"].get("tensorflow")
        except OrderRefused:
            continue  # there is no such Python
        if version is not None:
            python = candidate
            break
    gpus, visible = hardware["gpus"], health.get("visible_gpus")
    return Surveyed(
        host,
        gpus=tuple(range(len(gpus))) if visible is None else judgement.visible_gpus(visible),
        gpu_name=gpus[0]["name"] if gpus else "",
        python=python,
        tensorflow=version,
        home=home,
        there=tuple(place for place in directories if place in there),
        paths=frozenset(own[each["path"]] for each in known if each["exists"] and each["path"] in own),
        reached_at=health["reached_at"],
    )

"""The metrics of the runs for Prometheus. Names and units follow its conventions; labels are bounded.

The label `run` is the run's name, not its id, since each submission has a new id. Only the newest run of a name has
metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from orchestrator import __version__
from orchestrator.client.choice import is_active
from orchestrator.core.state.phase_states import Phase
from orchestrator.protocol import measures
from orchestrator.protocol.limits import first_metrics
from orchestrator.protocol.measures import Measure

Document = Mapping[str, Any]


RUNS_MAX = 200
"""Only the newest runs have metrics. A coordinator keeps fifty ended runs."""

_NAME_MAX = 64


class _Gauges:
    """Gauges of runs, tasks, hosts or GPUs. Each row has a name, a help text, and a function from document to value."""

    def __init__(
        self, labels: Sequence[str], rows: Sequence[tuple[str, str, Callable[[Document], Any]]]
    ) -> None:
        self._labels, self._rows = labels, rows

    def metrics(self, things: Sequence[tuple[Sequence[str], Document]]) -> Iterator[Metric]:
        """Yield a family for each row, with a sample for each document that has the value."""
        for name, about, value_of in self._rows:
            family = GaugeMetricFamily(name, about, labels=self._labels)
            for labels, document in things:
                value = value_of(document)
                if isinstance(value, (int, float)):
                    family.add_metric(labels, float(value))
            if family.samples:
                yield family


def _ratio(key: str) -> Callable[[Document], float | None]:
    return lambda document: None if document.get(key) is None else document[key] / 100.0


def _key(key: str) -> Callable[[Document], Any]:
    return lambda document: document.get(key)


def _measured(rows: Mapping[str, Measure]) -> list[tuple[str, str, Callable[[Document], Any]]]:
    return [
        (row.metric, row.about, _ratio(name) if row.unit == "percent" else _key(name))
        for name, row in rows.items()
        if row.metric
    ]


def _checkpoint_value(key: str) -> Callable[[Document], Any]:
    return lambda run: (run.get("checkpoint") or {}).get(key)


_RUN = _Gauges(
    ["run"],
    [
        ("orch_run_generation", "How often the run was started, restarts included.", _key("generation")),
        ("orch_run_phase_age_seconds", "Time since the run entered its phase.", _key("phase_age_s")),
        ("orch_run_global_step", "The position of the training.", _key("global_step")),
        ("orch_run_steps_expected", "The step at which the script will end.", _key("steps_total")),
        ("orch_run_steps_per_second", "The pace of the chief.", _key("steps_per_s")),
        ("orch_run_elapsed_seconds", "Time since the run was submitted, until its end.", _key("elapsed_s")),
        ("orch_run_remaining_seconds", "Time until the end at the present pace.", _key("eta_s")),
        (
            "orch_run_goodput_ratio",
            "Share of the time that was spent on training that was kept.",
            _key("goodput"),
        ),
        (
            "orch_run_checkpoint_global_step",
            "The step of the last good checkpoint.",
            _checkpoint_value("global_step"),
        ),
        (
            "orch_run_checkpoint_age_seconds",
            "Time since that checkpoint was found good.",
            _checkpoint_value("age_s"),
        ),
        (
            "orch_run_decisions_stopped",
            "1 where a bug in orch has stopped all decisions about the run.",
            lambda run: 1 if run.get("decisions_stopped") else 0,
        ),
    ],
)

_TASK = _Gauges(
    ["run", "task", "host"],
    [
        ("orch_task_up", "1 where the task trains.", lambda task: int(task.get("phase") == "RUNNING")),
        ("orch_task_global_step", "The task's position.", _key("global_step")),
        *_measured(measures.TASK),
        ("orch_task_heartbeat_age_seconds", "Time since its last heartbeat.", _key("heartbeat_age_s")),
    ],
)

_HOST = _Gauges(
    ["host"],
    [
        ("orch_host_up", "1 where the host is connected.", lambda host: int(host.get("link") == "CONNECTED")),
        (
            "orch_host_usable",
            "1 where the host may be given tasks.",
            lambda host: int(host.get("state") in ("ready", "spare", "preparing")),
        ),
        *_measured(measures.HOST),
    ],
)

_GPU = _Gauges(["host", "gpu"], _measured(measures.GPU))


def families(document: Document | None) -> Iterator[Metric]:
    """Yield the metrics of a status document. None: no coordinator answers."""
    is_up = 0.0 if document is None else 1.0
    yield GaugeMetricFamily("orch_coordinator_up", "1 where the coordinator answers.", value=is_up)
    if document is None:
        return
    coordinator = document.get("coordinator") or {}
    info = GaugeMetricFamily("orch_coordinator_info", "Its version.", labels=["version"])
    info.add_metric([str(coordinator.get("version") or __version__)], 1.0)
    yield info
    newest = {str(run.get("name")): run for run in document.get("runs") or []}
    runs = dict(list(newest.items())[-RUNS_MAX:])
    phases = GaugeMetricFamily(
        "orch_run_phase", "1 for the phase of the run, 0 for the others.", labels=["run", "phase"]
    )
    restarts = CounterMetricFamily("orch_run_restarts", "Restarts after a failure.", labels=["run"])
    for name, run in runs.items():
        for phase in Phase:
            phases.add_metric([name, phase.value], float(run.get("phase") == phase.value))
        restarts.add_metric([name], float(run.get("restarts") or 0))
    yield from (phases, restarts)
    yield from _RUN.metrics([([name], run) for name, run in runs.items()])
    active = {name: run for name, run in runs.items() if is_active(run)}
    yield from _reported(active)
    yield from _TASK.metrics(
        [
            ([name, str(task.get("task")), str(task.get("host") or "")], task)
            for name, run in active.items()
            for task in run.get("tasks") or []
        ]
    )
    hosts = {str(host.get("host")): host for run in active.values() for host in run.get("hosts") or []}
    yield from _HOST.metrics([([name], host) for name, host in hosts.items()])
    yield from _GPU.metrics(
        [
            ([name, str(gpu.get("index"))], gpu)
            for name, host in hosts.items()
            for gpu in host.get("gpus") or []
        ]
    )


def _reported(runs: Mapping[str, Document]) -> Iterable[Metric]:
    family = GaugeMetricFamily(
        "orch_run_reported", "What the script reports, such as its loss.", labels=["run", "name"]
    )
    for run_name, run in runs.items():
        numbers = {
            str(name)[:_NAME_MAX]: value
            for name, value in (run.get("metrics") or {}).items()
            if isinstance(value, (int, float))
        }
        for name in first_metrics(numbers):
            family.add_metric([run_name, name], float(numbers[name]))
    return [family] if family.samples else []


class RunsCollector:
    """Requests the status at each scrape, and stores nothing."""

    def __init__(self, status: Callable[[], Document | None]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        return families(self._status())


def registry(status: Callable[[], Document | None]) -> CollectorRegistry:
    """Return a registry with metrics of runs only. `status` returns None while no coordinator answers."""
    made = CollectorRegistry(auto_describe=False)
    made.register(RunsCollector(status))
    return made

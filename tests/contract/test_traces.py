"""Traces of runs by OTLP: what a real receiver decodes, and a receiver that is away."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from orchestrator.core.notes import NoteKind as Kind
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.effects import tracer
from orchestrator.head.effects.tracer import Tracer
from orchestrator.reporting import traces
from orchestrator.reporting.goodput import Account, Event, account
from tests.contract.receivers import Web
from tests.unit.core.transcript import make_plan

STORY: list[tuple[float, Kind, int, dict[str, Any]]] = [
    (0, Kind.SUBMITTED, 0, {}),
    (5, Kind.GENERATION, 1, {}),
    (10, Kind.RUNNING, 1, {}),
    (100, Kind.STOPPING, 1, {}),
    (102, Kind.BACKOFF, 1, {}),
    (107, Kind.GENERATION, 2, {}),
    (108, Kind.RESUMED, 2, {"global_step": 50, "steps_lost": 10}),
    (110, Kind.RUNNING, 2, {}),
    (200, Kind.SUCCEEDED, 2, {}),
]


def told(until: float) -> Account:
    found = account(
        [Event(1000.0 + at, kind, number, data) for at, kind, number, data in STORY if at <= until],
        now=1000.0 + until,
    )
    assert found is not None
    return found


class Books:
    """Accounts of one run, as far as it has got."""

    def __init__(self) -> None:
        self.until = 0.0

    def of(self, _run_id: str) -> Account | None:
        return told(self.until)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    made = Web()
    monkeypatch.setenv(tracer.ENDPOINT, f"http://127.0.0.1:{made.port}")
    yield made
    made.close()


def received(web: Web) -> list[Any]:
    spans = []
    for kind, body in web.bodies:
        assert kind == "application/x-protobuf"
        raw = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert names["service.name"] == "orch"
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    return spans


def test_a_receiver_gets_the_run_its_generations_and_what_they_did(web: Web) -> None:
    last, made = traces.spans("t-1", "t", "SUCCEEDED", told(200))
    assert last == 2
    assert tracer.is_wanted()
    assert tracer.send("t-1", made) is None
    assert web.paths == ["/v1/traces"]
    spans = received(web)
    by_name = {span.name: span for span in spans}
    run = by_name["run t"]
    assert run.parent_span_id == b""
    assert {span.trace_id for span in spans} == {run.trace_id}
    assert (run.start_time_unix_nano, run.end_time_unix_nano) == (1000 * 10**9, 1200 * 10**9)
    for number in (1, 2):
        assert by_name[f"generation {number}"].parent_span_id == run.span_id
    assert by_name["backoff"].parent_span_id == by_name["generation 1"].span_id
    assert (run.status.code, by_name["generation 1"].status.code) == (1, 2), "ok, error"
    assert len({span.span_id for span in spans}) == len(spans)


def test_each_generation_is_sent_once_when_it_ends_and_by_every_coordinator_alike(web: Web) -> None:
    run: Run = new_run("t-1", replace(make_plan(["a"], checkpoint=False), name="t"), epoch=1, at=0.0)
    books, runs = Books(), {"t-1": run}
    tracer = Tracer(books, lambda: runs, is_on=True)  # type: ignore[arg-type]
    books.until = 108
    tracer.changed(run, replace(run, generation=2))
    web.status = 400
    tracer.look()
    assert tracer.problem == "the traces were not taken by what OTEL_EXPORTER_OTLP_ENDPOINT names"
    web.status = 200
    tracer.look()
    assert tracer.problem is None
    names = [span.name for span in received(web)]
    assert "generation 1" in names
    assert "run t" not in names
    assert "generation 2" not in names
    books.until = 200
    tracer._waiting.add("t-1")
    tracer.look()
    names = [span.name for span in received(web)]
    assert (names.count("generation 1"), names.count("generation 2"), names.count("run t")) == (1, 1, 1)
    again = traces.spans("t-1", "t", Phase.SUCCEEDED.value, told(200))
    assert again == traces.spans("t-1", "t", "SUCCEEDED", told(200)), "another coordinator gives the same ids"


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    assert tracer.send("t-1", []) == tracer.MISSING
    assert "pip install '.[telemetry]'" in tracer.MISSING
    assert not tracer.is_wanted({})

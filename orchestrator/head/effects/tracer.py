"""Sends the runs' generations to OpenTelemetry as spans, in a thread of its own: no decision waits for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

from orchestrator import __version__
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.head.effects.lookout import Lookout
from orchestrator.head.records.accounts import Accounts
from orchestrator.reporting import traces
from orchestrator.reporting.traces import ERROR, OK, TraceSpan, trace_id

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""By then the history has written when the last step was made."""

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

TIMEOUT_S = 5.0

MISSING = (
    f"{ENDPOINT} is set, and the library that sends traces is not installed; "
    "`pip install '.[telemetry]'` in the clone of orch installs it"
)


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether traces are to be sent."""
    return bool(environ.get(ENDPOINT))


def send(run_id: str, spans: Sequence[TraceSpan]) -> str | None:
    """Send spans of a run, within seconds. Return why that failed, without the address, which may hold a token."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags
    except ImportError:
        return MISSING
    logging.getLogger("opentelemetry").propagate = False  # its words show the address
    own = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or "orch", "service.version": __version__}
    resource, scope = Resource.create(own), InstrumentationScope("orch", __version__)
    codes = {OK: StatusCode.OK, ERROR: StatusCode.ERROR}

    def context(id: int) -> SpanContext:
        return SpanContext(trace_id(run_id), id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    told = [
        ReadableSpan(
            span.name,
            context(span.id),
            context(span.parent) if span.parent is not None else None,
            resource,
            span.attributes,
            status=Status(codes.get(span.status, StatusCode.UNSET)),
            start_time=int(span.begin * 1e9),
            end_time=int(span.end * 1e9),
            instrumentation_scope=scope,
        )
        for span in spans
    ]
    exporter = OTLPSpanExporter(timeout=TIMEOUT_S)
    try:
        done = exporter.export(told) is SpanExportResult.SUCCESS
    except Exception as e:  # the library may raise anything; that may cost a trace, but must not harm a run
        return f"the traces were not sent: {type(e).__name__}"
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return None if done else f"the traces were not taken by what {ENDPOINT} names"


END_WAIT_S = TIMEOUT_S + 2.0


class Tracer:
    """Sends each span once it has ended. After a failure, all that was missed is sent at the next look."""

    def __init__(
        self,
        accounts: Accounts,
        runs: Callable[[], Mapping[str, Run]],
        *,
        is_on: bool,
        send: Callable[[str, Sequence[TraceSpan]], str | None] = send,
    ) -> None:
        self._accounts, self._runs, self._send, self._is_on = accounts, runs, send, is_on
        self._waiting: set[str] = set()
        self._sent: dict[str, int] = {}
        self.problem: str | None = None
        """Why the spans do not arrive; None while they do."""
        self._lookout = Lookout(self.look, LOOK_EVERY_S, name="traces", gap="a trace has a gap")

    def start(self) -> None:
        """Begin, if an endpoint is set."""
        if self._is_on:
            self._lookout.start()

    def changed(self, before: Run, after: Run) -> None:
        """Remember a run if a generation of it, or the run itself, has ended. It does not block."""
        over = after.phase.is_terminal or after.phase is Phase.BACKOFF or after.generation > before.generation
        if self._is_on and over and (before.phase, before.generation) != (after.phase, after.generation):
            self._waiting.add(after.run_id)

    def close(self) -> None:
        """Send what is left, and end within seconds."""
        self._lookout.close(wait_s=END_WAIT_S)

    def look(self) -> None:
        """Send what has ended since."""
        for run_id in sorted(self._waiting):
            run, account = self._runs().get(run_id), self._accounts.of(run_id)
            if run is None or account is None:
                self._waiting.discard(run_id)
                continue
            last, made = traces.spans(
                run_id, run.plan.name, run.phase.value, account, after=self._sent.get(run_id, -1)
            )
            problem = self._send(run_id, made) if made else None
            if problem != self.problem:
                log.log(
                    logging.WARNING if problem else logging.INFO, "%s", problem or "the traces are sent again"
                )
            self.problem = problem
            if problem is not None:
                return  # it is tried again at the next look
            self._waiting.discard(run_id)
            self._sent[run_id] = last
            if account.is_final:
                self._sent.pop(run_id)

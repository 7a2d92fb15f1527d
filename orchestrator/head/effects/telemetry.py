"""Sends spans by OTLP over HTTP, where OpenTelemetry's own variables say where to. Its library is an extra."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from orchestrator import __version__
from orchestrator.reporting.traces import ERROR, OK, TraceSpan, trace_id

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

TIMEOUT_S = 5.0

MISSING = (
    f"{ENDPOINT} is set, and the library that sends traces is not installed; "
    "`pip install 'orch-tf[telemetry]'` installs it"
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

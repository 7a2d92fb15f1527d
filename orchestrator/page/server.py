"""The server of the page: its files, its documents, and the stream."""

from __future__ import annotations

import functools
import json
import os
import re
import socket
from collections.abc import Callable
from typing import Any

import anyio.to_thread
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.client.comparing import without_env
from orchestrator.core.errors import (
    CoordinatorBusy,
    CoordinatorUnreachable,
    OrchestratorError,
    Refused,
    UsageError,
)
from orchestrator.head.api.bodies import bounded_body
from orchestrator.head.node import tensorboards
from orchestrator.page.feed import POLL_S, Feed
from orchestrator.page.guard import IS_OWNER, LOCAL, MAY_ACT, METRICS, Base, Guard, Keys, Tickets
from orchestrator.page.source import Source
from orchestrator.protocol import measures

STATIC = os.path.join(os.path.dirname(__file__), "static")

MEASURES = "measures.js"
"""The tables of `protocol/measures.py` for the page's scripts; it is made, and no file."""

FILES = {
    "index.html": "text/html",
    "style.css": "text/css",
    "uplot.css": "text/css",
    "uplot.js": "text/javascript",
    MEASURES: "text/javascript",
    "base.js": "text/javascript",
    "timeline.js": "text/javascript",
    "plots.js": "text/javascript",
    "logs.js": "text/javascript",
    "parts.js": "text/javascript",
    "actions.js": "text/javascript",
    "runs.js": "text/javascript",
    "run_plots.js": "text/javascript",
    "checkpoints.js": "text/javascript",
    "strip.js": "text/javascript",
    "run.js": "text/javascript",
    "logview.js": "text/javascript",
    "plan.js": "text/javascript",
    "compare.js": "text/javascript",
    "pool.js": "text/javascript",
    "app.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}

JOINED = {"page.css": "text/css", "page.js": "text/javascript"}
"""All files of a kind in one, in the order above: the report is one file, and a request costs more than many lines."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.M)
_INDENT = re.compile(r"^ +", re.M)
"""A sixth of the bytes. No text of ours is longer than its line."""
_EXPORT = re.compile(r"^export (?=(?:const|class|function) )", re.M)

ACTIONS = ("kill", "drain", "undrain", "rollback", "forget", "mark")
_BODY_BYTES_MAX = 4096
_PING_S = 5
"""How often a stream without news says that it lives. `SILENT_S` of app.js is two of them and some room."""
_SAFE = re.compile(r"[^\w.-]")


def joined(ending: str) -> str:
    """Return all files with that ending, in order. Of modules, whatever they import stands above them."""
    texts = (read(name) for name in FILES if name.endswith(ending))
    if ending != ".js":
        return "\n".join(texts)
    bare = (_INDENT.sub("", _EXPORT.sub("", _IMPORT.sub("", text))) for text in texts)
    return '"use strict";\n' + ";\n".join(bare)


def read(name: str) -> str:
    """Return one of our files."""
    if name == MEASURES:
        tables = {"task": measures.TASK, "host": measures.HOST, "gpu": measures.GPU}
        rows = {
            of: [
                {"name": name, "label": row.label, "unit": row.unit, "in_tables": row.in_tables}
                for name, row in table.items()
                if row.label
            ]
            for of, table in tables.items()
        }
        return f"export const MEASURES = {json.dumps(rows, indent=0)};\n"
    with open(os.path.join(STATIC, name), encoding="utf-8") as file:
        return file.read()


class Page:
    """The handlers of the routes."""

    def __init__(self, source: Source, *, poll_s: float = POLL_S) -> None:
        self._source, self._feed = source, Feed(source, poll_s=poll_s)
        self._tickets = Tickets()
        self.tensorboards = tensorboards.TensorBoards()

    async def file(self, request: Request) -> Response:
        """Return one of our files, and no other."""
        name = request.path_params.get("name", "index.html")
        if name in JOINED:
            return Response(await _thread(joined, os.path.splitext(name)[1]), media_type=JOINED[name])
        if name not in FILES:
            raise HTTPException(404)
        if name == "index.html" and request.scope[MAY_ACT]:
            return HTMLResponse(read(name).replace("<body>", '<body data-actions="yes">'))
        return Response(await _thread(read, name), media_type=FILES[name])

    async def runs(self, request: Request) -> Response:
        """Return all runs."""
        return _shown(request, {**await _thread(self._source.runs), "actions": request.scope[MAY_ACT]})

    async def pool(self, _request: Request) -> Response:
        """Return all hosts, and who has what there."""
        return JSONResponse(await _thread(self._source.pool))

    async def document(self, request: Request) -> Response:
        """Return one document of one run."""
        run_id = await _thread(self._source.run_id, request.path_params["run"])
        query, what = dict(request.query_params), request.path_params["what"]
        if query.get("regex") and not request.scope[IS_OWNER]:  # one can take for ever, and all wait for it
            raise UsageError("a shared link looks for texts only, and not for regular expressions")
        read: dict[str, Callable[[], dict[str, Any]]] = {
            "history": lambda: self._source.history(run_id),
            "series": lambda: self._source.series(run_id, query),
            "band": lambda: self._source.band(run_id, query),
            "logs": lambda: self._source.logs(run_id, query),
            "ticket": lambda: {"schema": 1, "ticket": self._tickets.new(run_id, query)},
            "why": lambda: self._source.why(run_id),
            "events": lambda: self._source.events(run_id, _whole(query.get("after"))),
            "checkpoints": lambda: self._source.checkpoints(run_id),
            "plan": lambda: self._source.plan(run_id),
            "compare": lambda: self._source.compare(run_id, query.get("with", "")),
        }
        if what not in read:
            raise HTTPException(404)
        return _shown(request, await _thread(read[what]))

    async def download(self, request: Request) -> Response:
        """Send a whole log. A link that the browser downloads cannot carry the key: it has a ticket, used once."""
        run_id, query = self._tickets.redeem(request.path_params["ticket"])
        name = "-".join(
            [run_id, *filter(None, (query.get("task", "").replace(":", "-"), query.get("generation")))]
        )
        lines = await _thread(self._source.whole_log, run_id, query)
        headers = {"Content-Disposition": f'attachment; filename="{_SAFE.sub("-", name)}.log"'}
        return StreamingResponse(lines, media_type="text/plain; charset=utf-8", headers=headers)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of all runs in Prometheus's format."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        from orchestrator.client.exposition import registry

        def generate() -> bytes:
            return generate_latest(registry(self._source.status))

        return Response(await _thread(generate), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def stream(self, request: Request) -> Response:
        """Stream the status and the events as they change."""
        if self._feed.is_full:
            raise HTTPException(503)
        query = request.query_params
        after = _whole(query["after"]) if "after" in query else None
        messages = self._feed.view(query.get("run"), after, shows_env=request.scope[IS_OWNER])
        return EventSourceResponse(messages, ping=_PING_S, send_timeout=10)

    async def act(self, request: Request) -> Response:
        """Do what a person has confirmed."""
        verb = request.path_params["verb"]
        if verb not in (*ACTIONS, "tensorboard"):
            raise HTTPException(404)
        raw = await bounded_body(request, _BODY_BYTES_MAX)
        if raw is None:
            raise HTTPException(413)
        body = json.loads(raw) if raw else {}
        run_id = await _thread(self._source.run_id, request.path_params["run"])
        if verb == "tensorboard":
            started = self.tensorboards.start(run_id)  # by this thread, which lasts as long as the page
            return JSONResponse({"address": await _thread(tensorboards.address, started)}, status_code=202)
        return JSONResponse(await _thread(self._source.act, run_id, verb, body), status_code=202)


def application(
    source: Source,
    keys: Keys,
    *,
    actions: bool,
    opened: Callable[[], None],
    base: Base = LOCAL,
    poll_s: float = POLL_S,
) -> Starlette:
    """Return the application, with its guard."""
    page = Page(source, poll_s=poll_s)
    routes = [
        Route("/", page.file),
        Route("/static/{name}", page.file),
        Route("/download/{ticket}", page.download),
        Route("/v1/runs", page.runs),
        Route("/v1/pool", page.pool),
        Route("/v1/stream", page.stream),
        Route(METRICS, page.metrics),
        Route("/v1/runs/{run}/{what}", page.document),
    ]
    if actions:
        routes.insert(0, Route("/v1/runs/{run}/{verb}", page.act, methods=["POST"]))
    handlers: dict[Any, Any] = {OrchestratorError: _on_error, HTTPException: _on_error}
    guard = Middleware(Guard, keys=keys, actions=actions, opened=opened, base=base)
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[guard])


def listen(port: int) -> socket.socket:
    """Bind to loopback. Refused if another program has the port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
    except OSError as e:
        listener.close()
        raise Refused(
            f"port {port} of 127.0.0.1 cannot be used: {e.strerror}",
            hint="`orch ui --port 0` takes a free one",
        ) from e
    return listener


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _error(error.status_code, error.detail, None)
    assert isinstance(error, OrchestratorError)
    kinds = {UsageError: 404, Refused: 409, CoordinatorUnreachable: 503, CoordinatorBusy: 503}
    # An error of the coordinator or a host is not a fault of this server, as 500 would say.
    status = next((code for kind, code in kinds.items() if isinstance(error, kind)), 502)
    return _error(status, error.message, error.hint)


def _error(status: int, message: str, hint: str | None) -> Response:
    return JSONResponse({"error": {"message": message, "hint": hint}}, status_code=status)


def _shown(request: Request, document: dict[str, Any]) -> Response:
    """Return a document of runs as who asks may see it."""
    return JSONResponse(document if request.scope[IS_OWNER] else without_env(document))


async def _thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(functools.partial(function, *arguments))


def _whole(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError as e:
        raise UsageError(f"{text!r} is no number") from e

"""What `orch metrics` serves: the numbers of the runs, to whoever has the bearer token and asks as a Prometheus does.

Any web page in a browser may send requests to an address of this machine, and so may any user of it. So a request is
answered where it names the address by number, or this machine by name, comes from no site, and has the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Callable

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?")


def application(generate: Callable[[], bytes], content_type: str, token: str) -> Starlette:
    """Return the application.

    Args:
        generate: returns the numbers; it may block.
        content_type: of what it returns.
        token: the bearer token; empty: none is asked for.
    """

    async def metrics(request: Request) -> Response:
        refusal = _refusal(request, token)
        if refusal is not None:
            return PlainTextResponse(f"{refusal}\n", status_code=int(refusal[:3]))
        return Response(await anyio.to_thread.run_sync(generate), media_type=content_type)

    return Starlette(routes=[Route("/metrics", metrics)])


def _refusal(request: Request, token: str) -> str | None:
    headers = request.headers
    if not _is_ours(headers.get("host", "")):
        return "403: name this server by its address or by the machine's name"
    if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
        return "403: this answers no web page"
    kind, _, given = headers.get("authorization", "").partition(" ")
    if token and not (
        kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
    ):
        return "401: the bearer token is missing or wrong; `orch metrics` says in which file it is"
    return None


def _is_ours(host: str) -> bool:
    """Return whether a Host header names this machine, and not a foreign name that points here (DNS rebinding)."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match["name"].removeprefix("[").removesuffix("]").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}
    return True

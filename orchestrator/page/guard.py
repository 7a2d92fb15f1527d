"""Who may see the page: its owner, in the browsers in which they opened the address that the terminal showed, and those
to whom they gave a link that only reads.

Any web page may send requests to 127.0.0.1, and so may any user of this machine; a cookie is sent to all ports of a
host. So a request is answered where it names one of our hosts, comes from no other site, and has the cookie; and data
only where it has the key too, which scripts of our own origin alone can read. Behind a proxy the host of its address is
ours too, and its path stands before ours. A Prometheus is no browser: it shows a bearer token, which opens the metrics
and nothing else. All users of a machine see the command lines of its processes,
so a browser is started with a private file that holds the address.
"""

from __future__ import annotations

import html
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.core.errors import UsageError
from orchestrator.head.node.page_access import PageAccess, Viewer, same

TICKET_LASTS_S = 30.0
TICKETS_MAX = 32
KEY_HEADER = "Orch-Key"
LOGIN = "/login"
METRICS = "/metrics"
MAY_ACT = "orch.may_act"
"""Whether who asks may change runs; in the scope of a request."""
IS_OWNER = "orch.is_owner"
"""Whether who asks has no link of a share; likewise."""

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
"""Our hosts, with any port: `ssh -L` may forward another one."""
_PATH = re.compile(r"[\w.~/-]*", re.ASCII)
_NO_WAY_IN = "open an address that `orch ui` has printed in its terminal; `orch ui link` prints another"

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Base(NamedTuple):
    """The address under which a proxy serves the page to others."""

    origin: str = ""
    path: str = ""
    """The path before all of ours, without a slash at its end."""

    @property
    def host(self) -> str:
        """Return the Host that a browser names."""
        return self.origin.partition("://")[2]


LOCAL = Base()
"""No proxy: the page is reached on this machine alone."""


def base_of(text: str) -> Base:
    """Return the base of `--base-url`. Raises UsageError if no browser could use it."""
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.username is not None:
        raise UsageError(
            f"--base-url {text!r} is no address of a page", hint="such as https://lab.example.org/orch"
        )
    if parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
        raise UsageError(
            f"the path of --base-url {text!r} has more than letters, digits and . _ ~ - /",
            hint="such as https://lab.example.org/orch",
        )
    host = parts.hostname if ":" not in parts.hostname else f"[{parts.hostname}]"
    if port is not None and port != {"http": 80, "https": 443}[parts.scheme]:
        host += f":{port}"
    if parts.scheme == "http" and not _HOST.fullmatch(host):
        raise UsageError(
            f"--base-url {text!r} is not https: all on the way could read the page's secrets",
            hint="let the proxy speak TLS; or reach the page by `ssh -L`, which needs no base address",
        )
    return Base(f"{parts.scheme}://{host}", parts.path.rstrip("/"))


class Keys:
    """The cookies and keys of one server's browsers, each with who they are."""

    def __init__(self, port: int, access: PageAccess, *, bearer: str = "") -> None:
        """`bearer`: the token with which a Prometheus reads the metrics; empty: none may."""
        self._bearer = bearer
        self.cookie_name = f"orch-{port}"
        self.access = access
        # When this server has ended, another user's may be given what browsers send to its port.
        self._start = secrets.token_hex(16)

    def derived(self, viewer: Viewer, what: str) -> str:
        """Return the cookie or the key of a viewer, which are of this server only."""
        return viewer.derived(f"{what} {self._start}")

    def welcome(self, viewer: Viewer, base: Base, host: str) -> Response:
        """Send a browser that has shown its token to the page, with cookie and key."""
        # A browser sends a fragment to no server, so it is in no log. A page sends it there, and not a redirect: at
        # the end of one, a browser that came from a file would not show our cookie.
        response = HTMLResponse(forwarding(f"./#key={self.derived(viewer, 'key')}"))
        is_proxied = bool(base.origin) and host.lower() == base.host
        response.set_cookie(
            self.cookie_name,
            self.derived(viewer, "cookie"),
            httponly=True,
            samesite="strict",
            path=(is_proxied and base.path) or "/",
            secure=is_proxied and base.origin.startswith("https:"),
        )
        return response

    def viewer(self, headers: Headers) -> Viewer | None:
        """Return whose cookie the request has; None if it is nobody's now."""
        pairs = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
        given = [value for name, _, value in pairs if name == self.cookie_name]
        viewers = self.access.viewers()
        return next(
            (one for one in viewers if any(same(each, self.derived(one, "cookie")) for each in given)), None
        )

    def has_bearer(self, headers: Headers) -> bool:
        """Return whether the request has the bearer token."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and same(token.strip(), self._bearer)


class Tickets:
    """Tickets for downloads by a link: made for a request with the key, used once, and valid for a short time."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._open: dict[str, tuple[float, str, Mapping[str, str]]] = {}

    def new(self, run_id: str, query: Mapping[str, str]) -> str:
        """Return a ticket for a log of this run. If there are too many, the oldest is no longer valid."""
        while len(self._open) >= TICKETS_MAX:
            del self._open[next(iter(self._open))]
        ticket = secrets.token_urlsafe(32)
        self._open[ticket] = self._now() + TICKET_LASTS_S, run_id, dict(query)
        return ticket

    def redeem(self, ticket: str) -> tuple[str, Mapping[str, str]]:
        """Return the run and the query of this ticket. Raises UsageError if it is not valid any more."""
        until, run_id, query = self._open.pop(ticket, (0.0, "", {}))
        if self._now() >= until:
            raise UsageError(
                "this download was begun already, or too late", hint="ask for it on the page again"
            )
        return run_id, query


class Guard:
    """Refuses requests that may not be answered, and adds the security headers to all answers."""

    def __init__(
        self, app: ASGIApp, keys: Keys, *, actions: bool, opened: Callable[[], None], base: Base = LOCAL
    ) -> None:
        self._app, self._keys, self._actions, self._opened = app, keys, actions, opened
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        if self._base.path and f"{path}/".startswith(f"{self._base.path}/"):  # a proxy may leave it out
            path = path.removeprefix(self._base.path)
        headers = Headers(scope=scope)
        viewer = self._keys.viewer(headers)
        is_owner = viewer is not None and viewer.is_owner
        may_act = self._actions and is_owner
        scope = {**scope, "path": path, MAY_ACT: may_act, IS_OWNER: is_owner}
        refusal = self._refusal(scope, viewer, may_act)
        is_over = False

        async def guarded(message: Message) -> None:
            nonlocal is_over
            if is_over:
                return
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    sent[name] = value
            elif viewer is not None and message.get("more_body") and self._keys.viewer(headers) != viewer:
                is_over = True  # what is streamed ends with the right to see it
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope, viewer: Viewer | None, may_act: bool) -> Response | None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        host, origin = headers.get("host", ""), headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        is_ours = _HOST.fullmatch(host)
        if not is_ours and not (self._base.origin and host.lower() == self._base.host):
            served = (
                f"127.0.0.1, localhost and {self._base.host}"
                if self._base.origin
                else "127.0.0.1 and localhost"
            )
            return _refused(403, f"this is served on {served} only")
        # A proxy may name us, or itself, as the host; the browser's origin is the proxy's then.
        if origin is not None and origin not in (
            f"http://{host}" if is_ours else None,
            self._base.origin or None,
        ):
            return _refused(403, "another site may not ask here")
        if not path:
            return RedirectResponse(f"{self._base.path}/")
        if method not in (("GET", "HEAD", "POST") if self._actions else ("GET", "HEAD")):
            return _refused(405, "this only reads; `orch ui --actions` allows more")
        if path == LOGIN:
            return self._login(scope, host)
        if path == METRICS and self._keys.has_bearer(headers):
            return None
        if viewer is None:
            return _refused(401, _NO_WAY_IN)
        if method == "POST" and not may_act:
            return _refused(403, "a shared link only reads")
        if path.startswith("/v1/") or path == METRICS:
            if site != "same-origin":
                return _refused(403, "another site may not ask here")
            if not same(headers.get(KEY_HEADER, ""), self._keys.derived(viewer, "key")):
                return _refused(401, _NO_WAY_IN)
            if method == "POST" and origin is None:
                return _refused(403, "an action names its origin")
        elif site not in ("same-origin", "none"):
            return _refused(403, "another site may not ask here")
        return None

    def _login(self, scope: Scope, host: str) -> Response:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        viewer = self._keys.access.redeem((query.get("token") or [""])[0])
        if viewer is None:
            return _refused(
                401,
                "this address was used or revoked, or its time is over: `orch ui link` prints another",
            )
        if viewer.is_owner:
            self._opened()
        return self._keys.welcome(viewer, self._base, host)


def forwarding(address: str) -> str:
    """Return a page that sends a browser to an address."""
    shown = html.escape(address)
    # Without an icon of its own a browser would ask for one that is not there.
    return (
        '<!doctype html><link rel="icon" href="static/icon.svg">'
        f'<meta http-equiv="refresh" content="0; url={shown}"><a href="{shown}">orch</a>\n'
    )


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(f"{status}: {why}\n", status_code=status)

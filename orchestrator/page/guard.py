"""Who may see the page: one person, in the browsers in which they opened the address that the terminal showed.

Any web page may send requests to 127.0.0.1, and so may any user of this machine; a cookie is sent to all ports of a
host. So a request is answered where it names one of our hosts, comes from no other site, and has the cookie; and data
only where it has the key too, which scripts of our own origin alone can read. A Prometheus is no browser: it shows a
bearer token, which opens the metrics and nothing else. All users of a machine see the command lines of its processes,
so a browser is started with a private file that holds the address.
"""

from __future__ import annotations

import hmac
import html
import re
import secrets
import time
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.core.errors import UsageError

TOKEN_LASTS_S = 600.0
TICKET_LASTS_S = 30.0
TICKETS_MAX = 32
KEY_HEADER = "Orch-Key"
LOGIN = "/login"
METRICS = "/metrics"

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
"""Our hosts, with any port: `ssh -L` may forward another one."""

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


class Keys:
    """The secrets of one server: a token that is used once, and the cookie and key that a browser gets for it."""

    def __init__(self, port: int, *, bearer: str = "", now: Callable[[], float] = time.monotonic) -> None:
        """`bearer`: the token with which a Prometheus reads the metrics; empty: none may."""
        self._bearer = bearer
        self.cookie_name = f"orch-{port}"
        self._now = now
        self._cookie = secrets.token_urlsafe(32)
        self._key = secrets.token_urlsafe(32)
        self._token = ""
        self._token_ends_at = 0.0

    def new_token(self) -> str:
        """Return a token for one more browser. The token before it is no longer valid."""
        self._token, self._token_ends_at = secrets.token_urlsafe(32), self._now() + TOKEN_LASTS_S
        return self._token

    def redeem(self, token: str) -> bool:
        """Return whether that is the token, which is then no longer valid."""
        fits = _same(token, self._token) and self._now() < self._token_ends_at
        if fits:
            self._token = ""
        return fits

    def welcome(self) -> Response:
        """Send a browser that has shown its token to the page, with cookie and key."""
        # A browser sends a fragment to no server, so it is in no log. A page sends it there, and not a redirect: at
        # the end of one, a browser that came from a file would not show our cookie.
        response = HTMLResponse(forwarding(f"/#key={self._key}"))
        response.set_cookie(self.cookie_name, self._cookie, httponly=True, samesite="strict", path="/")
        return response

    def has_cookie(self, headers: Headers) -> bool:
        """Return whether the request has our cookie."""
        pairs = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
        return any(name == self.cookie_name and _same(value, self._cookie) for name, _, value in pairs)

    def has_bearer(self, headers: Headers) -> bool:
        """Return whether the request has the bearer token."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and _same(token.strip(), self._bearer)

    def has_key(self, headers: Headers) -> bool:
        """Return whether the request has the key, which only a script of our page can send."""
        return _same(headers.get(KEY_HEADER, ""), self._key)


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

    def __init__(self, app: ASGIApp, keys: Keys, *, actions: bool, opened: Callable[[], None]) -> None:
        self._app, self._keys, self._actions, self._opened = app, keys, actions, opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        host, origin = headers.get("host", ""), headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        if not _HOST.fullmatch(host):
            return _refused(403, "this is served on 127.0.0.1 and localhost only")
        if origin is not None and origin != f"http://{host}":
            return _refused(403, "another site may not ask here")
        if method not in (("GET", "HEAD", "POST") if self._actions else ("GET", "HEAD")):
            return _refused(405, "this only reads; `orch ui --actions` allows more")
        if path == LOGIN:
            return self._login(scope)
        if path == METRICS and self._keys.has_bearer(headers):
            return None
        if not self._keys.has_cookie(headers):
            return _refused(401, "open the address that `orch ui` has printed in its terminal")
        if path.startswith("/v1/") or path == METRICS:
            if site != "same-origin":
                return _refused(403, "another site may not ask here")
            if not self._keys.has_key(headers):
                return _refused(401, "open the address that `orch ui` has printed in its terminal")
            if method == "POST" and origin is None:
                return _refused(403, "an action names its origin")
        elif site not in ("same-origin", "none"):
            return _refused(403, "another site may not ask here")
        return None

    def _login(self, scope: Scope) -> Response:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if not self._keys.redeem((query.get("token") or [""])[0]):
            return _refused(401, "this address was used, or is older than ten minutes: start `orch ui` again")
        self._opened()
        return self._keys.welcome()


def forwarding(address: str) -> str:
    """Return a page that sends a browser to an address."""
    shown = html.escape(address)
    # Without an icon of its own a browser would ask for one that is not there.
    return (
        '<!doctype html><link rel="icon" href="/static/icon.svg">'
        f'<meta http-equiv="refresh" content="0; url={shown}"><a href="{shown}">orch</a>\n'
    )


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(f"{status}: {why}\n", status_code=status)


def _same(given: str, wanted: str) -> bool:
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())

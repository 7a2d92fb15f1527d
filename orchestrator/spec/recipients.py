"""The recipients of `notify:`: whether their URLs can be used. No message shows a URL.

apprise is imported only where there is a recipient: it is an extra, and takes a tenth of a second.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from orchestrator.spec.diagnostics import did_you_mean

URL_MAX = 2000

_SERVICE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}):/{0,3}")

INSTALL = "`pip install '.[notify]'` in the clone of orch installs it"

_ON_THIS_DESKTOP = ("dbus", "qt", "kde", "gnome", "glib", "macosx", "windows", "syslog")
"""What apprise shows on this machine's screen: the coordinator has none, and would seem to deliver."""


def service(url: str) -> str:
    """Return the service of a URL, the only part of it that is ever shown.

    >>> service("ntfy://my-secret-topic"), service("a token by mistake")
    ('ntfy', 'unknown')
    """
    match = _SERVICE.match(url)
    return match[1].lower() if match else "unknown"


def services(urls: list[str]) -> tuple[str, ...]:
    """Name the recipients: by their services, and numbered where there are several of one.

    >>> services(["ntfy://a", "slack://b", "ntfy://c"])
    ('ntfy', 'slack', 'ntfy-2')
    """
    seen: dict[str, int] = {}
    named = []
    for url in urls:
        name = service(url)
        seen[name] = seen.get(name, 0) + 1
        named.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return tuple(named)


def refusal(url: str) -> str | None:
    """Return why nothing could be sent there, without the URL; None if it can."""
    if not url.isprintable() or len(url) > URL_MAX or not _SERVICE.match(url):
        return "must be a URL such as ntfy://TOPIC or slack://…; what is there is not shown, for it may be secret"
    try:
        apprise = quiet_apprise()
    except ImportError:
        return f"needs the library apprise, which is not installed; {INSTALL}"
    wanted = service(url)
    if wanted in _ON_THIS_DESKTOP:
        return f"{wanted}:// shows a message on this machine's own screen; choose a service that reaches you elsewhere"
    if apprise.Apprise.instantiate(url, suppress_exceptions=True) is not None:
        return None
    schemas = apprise.Apprise().details()["schemas"]
    known = {
        name for row in schemas for kind in ("protocols", "secure_protocols") for name in row.get(kind) or ()
    }
    if wanted in ("http", "https"):
        return f"{wanted}:// is no service; for a webhook write json{'s' if wanted == 'https' else ''}://HOST/PATH"
    if wanted not in known:
        return f"{wanted}:// is no service that apprise knows{did_you_mean(wanted, sorted(known))}"
    return f"is no complete URL of {wanted}; see https://appriseit.com/services/ for its form"


def quiet_apprise() -> Any:
    """Import apprise, and keep its log messages, which show URLs, out of every log."""
    import apprise

    logger = logging.getLogger("apprise")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return apprise

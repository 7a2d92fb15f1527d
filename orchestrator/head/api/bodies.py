"""The body of a request, within a bound: what is larger is refused before it is read."""

from __future__ import annotations

from starlette.requests import Request


async def bounded_body(request: Request, bytes_max: int) -> bytes | None:
    """Return the body; None if it is declared to be larger, or goes on beyond that."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or len(declared) > 18 or int(declared) > bytes_max:
        return None
    parts, count = [], 0
    async for part in request.stream():
        count += len(part)
        if count > bytes_max:
            return None
        parts.append(part)
    return b"".join(parts)

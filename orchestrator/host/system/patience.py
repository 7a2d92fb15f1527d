"""Calls with a time limit, for directories that may hang: a process that touches one cannot even be killed."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    _T = TypeVar("_T")


def all_within(limit_s: float, calls: Iterable[Callable[[], None]]) -> None:
    """Make these calls at once, and return when all have, or the time is over. Threads that hang are abandoned."""
    import threading
    import time

    give_up_at = time.monotonic() + limit_s
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, give_up_at - time.monotonic()))


def within(limit_s: float, call: Callable[[], _T], otherwise: _T) -> _T:
    """Return the result of `call`, or `otherwise` where it takes longer. A thread that hangs is abandoned.

    The process must end by `os._exit`, since an ordinary exit would wait for that thread.
    """
    results: list[_T] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            results.append(call())
        except OSError as e:
            failed.append(e)

    all_within(limit_s, [work])
    if failed:
        raise failed[0]
    return results[0] if results else otherwise

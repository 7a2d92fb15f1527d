"""Calls with a time limit, for directories that may hang: a process that touches one cannot even be killed."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")


def within(limit_s: float, call: Callable[[], _T], otherwise: _T) -> _T:
    """Return the result of `call`, or `otherwise` where it takes longer. A thread that hangs is abandoned.

    The process must end by `os._exit`, since an ordinary exit would wait for that thread.
    """
    import threading

    results: list[_T] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            results.append(call())
        except OSError as e:
            failed.append(e)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    return results[0] if results else otherwise

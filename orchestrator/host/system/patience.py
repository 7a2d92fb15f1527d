"""Bounded looks into directories that may hang: a process that touches one cannot even be killed."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")


def within(limit_s: float, look: Callable[[], _T], otherwise: _T) -> _T:
    """Return what `look` returns, or `otherwise` where it takes longer. A thread that hangs is abandoned.

    The process must end by `os._exit`, since an ordinary exit would wait for that thread.
    """
    import threading

    found: list[_T] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            found.append(look())
        except OSError as e:
            failed.append(e)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    return found[0] if found else otherwise

"""The leases of the GPUs of the runs that this agent watches, and who holds those that it cannot acquire.

A run's leases are acquired when it is watched, shared with the shims of its tasks, and released when it is not watched
any more or a sweep has found nothing of it. So they last as long as its tasks live or its head node is connected.
"""

from __future__ import annotations

import os
import time

from orchestrator.both import hostdir
from orchestrator.protocol.limits import NAME_CHARS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from orchestrator.host.agent.streams import Loop
    from orchestrator.host.system.gpu_lease import Holder
    from orchestrator.protocol.orders import Leased

ANSWER_S = 1.0
"""How long a holder may take to say for which run it has a GPU."""

_AGAIN_S = 0.05
_TRIES = 5

_JUST_NOW_S = 5.0
_YIELDS_S = 0.4
"""How long to wait, as often as it is tried, for a later run that has just taken a GPU: it may have to let it go."""

_LATEST = 2.5e11

LEASED = "gpu-leased"
"""The code of the fault that somebody else has a GPU of the run."""


class _Wish:
    """The GPUs that a run wants, what to answer about them, and the epoch of the coordinator that wants them."""

    def __init__(self, gpus: Sequence[int], about: dict[str, Any], epoch: int) -> None:
        self.gpus = gpus
        self.about = about
        self.epoch = epoch


class Leases:
    """The leases of this agent, by GPU. `lives` tells whether a task of a run lives here."""

    def __init__(self, loop: Loop, host_dir: str, lives: Callable[[str], bool]) -> None:
        self._loop = loop
        self._host_dir = host_dir
        self._lives = lives
        self._wishes: dict[str, _Wish] = {}
        self._held: dict[int, tuple[str, socket.socket]] = {}

    def want(self, run: str, gpus: Sequence[int], head: str, epoch: int) -> None:
        """Acquire the leases of a run from now on, and name `head` to whoever asks."""
        self._let_go(run, but=gpus)
        known = self._wishes.pop(run, None)
        if gpus:
            since = known.about["since"] if known is not None else time.time()
            self._wishes[run] = _Wish(gpus, {"run": run, "head": head, "since": since}, epoch)
            self.acquire(run, lambda _others: None)

    def release(self, run: str) -> None:
        """Release the leases of a run."""
        self._wishes.pop(run, None)
        self._let_go(run, but=())

    def acquire(self, run: str, done: Callable[[list[Leased]], None]) -> None:
        """Acquire the GPUs that a run wants and does not have, and call `done` with those that others hold."""
        wish = self._wishes.get(run)
        missing = self._missing(run)
        if wish is None or not missing:
            done([])
            return
        others: list[Leased] = []
        left = set(missing)

        def settle(gpu: int, holder: Leased | None) -> None:
            left.discard(gpu)
            if holder is not None:
                others.append(holder)
            if not left:
                done(sorted(others, key=lambda lease: lease["gpu"]))

        for gpu in missing:
            self._ask(run, wish, gpu, settle, _TRIES)

    def of_start(self, run: str) -> tuple[list[int], dict[str, Any]]:
        """Return the descriptors of a run's leases, for a shim of it, and what the shim answers about them.

        Raises HostFault where somebody else holds one.
        """
        wish = self._wishes.get(run)
        if wish is None:
            return [], {}
        missing = [gpu for gpu in self._missing(run) if not self._take_now(run, gpu)]
        if missing:
            raise hostdir.HostFault(
                LEASED,
                f"GPU {missing[0]} is held by somebody else",
                "`orch queue` shows who waits for what; `orch up` says who holds it",
            )
        return [self._held[gpu][1].fileno() for gpu in wish.gpus], wish.about

    def _missing(self, run: str) -> list[int]:
        wish = self._wishes.get(run)
        return [gpu for gpu in wish.gpus if self._of(gpu) != run] if wish is not None else []

    def _of(self, gpu: int) -> str | None:
        return self._held[gpu][0] if gpu in self._held else None

    def _take_now(self, run: str, gpu: int) -> bool:
        """Acquire a GPU that nobody holds, or that a run of the same head holds of which nothing lives."""
        from orchestrator.host.system import gpu_lease

        other = self._of(gpu)
        if other is not None and not self._lives(other):
            self._hold(run, gpu, self._held[gpu][1])
        elif other is None and (lease := gpu_lease.acquire(gpu)) is not None:
            self._hold(run, gpu, lease)
        return self._of(gpu) == run

    def _hold(self, run: str, gpu: int, lease: socket.socket) -> None:
        self._held[gpu] = run, lease
        self._loop.watch(lease.fileno(), 1, lambda _events: self._asked(gpu))

    def _let_go(self, run: str, *, but: Sequence[int]) -> None:
        for gpu in [gpu for gpu, (other, _) in self._held.items() if other == run and gpu not in but]:
            _, lease = self._held.pop(gpu)
            self._loop.forget(lease.fileno())
            lease.close()

    def _asked(self, gpu: int) -> None:
        """Answer a process that asks who holds the GPU. A run that another head has taken over does not any more."""
        from orchestrator.host.system import gpu_lease

        run, lease = self._held[gpu]
        wish = self._wishes.get(run)
        if wish is None or hostdir.epoch(self._host_dir, run) > wish.epoch:
            self.release(run)
        else:
            gpu_lease.answer(lease, wish.about)

    def _ask(
        self, run: str, wish: _Wish, gpu: int, done: Callable[[int, Leased | None], None], tries: int
    ) -> None:
        from orchestrator.host.system import gpu_lease

        if self._wishes.get(run) is not wish or self._take_now(run, gpu):
            done(gpu, None)
            return
        other = self._of(gpu)
        if other is not None:
            done(gpu, _leased(gpu, gpu_lease.Holder(os.geteuid(), {}).user, self._wishes[other].about))
            return

        def again(holder: Leased, wait_s: float = _AGAIN_S) -> None:
            """Try again in a moment, or tell what is known of its holder."""
            if tries:
                self._loop.after(wait_s, lambda: self._ask(run, wish, gpu, done, tries - 1))
            else:
                done(gpu, holder)

        asking = gpu_lease.ask(gpu)
        if asking is None:
            again(_leased(gpu, None, {}))
            return
        open_ = [asking]

        def answered(_events: int = 0) -> None:
            if not open_:
                return
            connection = open_.pop()
            self._loop.forget(connection.fileno())
            try:
                holder = gpu_lease.read_answer(connection, gpu)
            except Exception:  # whatever a stranger answers, the agent goes on
                holder = gpu_lease.Holder(None, {})
            connection.close()
            if holder.has_closed:  # it has just ended, or has just begun
                again(_leased(gpu, holder.user, {}))
            elif self._is_ours(run, wish, gpu, holder):
                done(gpu, None)
            else:
                other = _leased(gpu, holder.user, holder.answer)
                age_s = time.time() - (other["since"] or 0.0)
                # Both may hold what the other wants on another host: then the later one lets go, and the earlier waits.
                if 0 <= age_s < _JUST_NOW_S and _order(run) < _order(other["run"] or ""):
                    again(other, _YIELDS_S)
                else:
                    done(gpu, other)

        self._loop.watch(asking.fileno(), 1, answered)
        self._loop.after(ANSWER_S, answered)

    def _is_ours(self, run: str, wish: _Wish, gpu: int, holder: Holder) -> bool:
        """Return whether a process of the same run has it, whose lease is shared then."""
        lease = holder.shared
        is_ours = lease is not None and holder.answer.get("run") == run
        if lease is not None and is_ours and self._wishes.get(run) is wish and gpu not in self._held:
            since = holder.answer.get("since")
            wish.about["since"] = since if isinstance(since, float) else wish.about["since"]
            self._hold(run, gpu, lease)
        elif lease is not None:
            lease.close()
        return is_ours


def _order(run: str) -> tuple[str, str]:
    """Return what is less for a run that was submitted earlier, by the date at the end of its id."""
    return run[-len("YYYYMMDD-HHMMSS") :], run


def _leased(gpu: int, user: str | None, answer: Mapping[str, Any]) -> Leased:
    """Return who holds a GPU, with the parts of the holder's answer that can be shown."""
    since = answer.get("since")
    return {
        "gpu": gpu,
        "user": _word(user),
        "run": _word(answer.get("run")),
        "head": _word(answer.get("head")),
        "since": since if isinstance(since, float) and 0 <= since < _LATEST else None,
    }


def _word(value: object) -> str | None:
    return (
        value if isinstance(value, str) and value.isprintable() and 0 < len(value) <= NAME_CHARS_MAX else None
    )

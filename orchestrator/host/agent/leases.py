"""Leases of GPUs and slots for the runs that this agent watches, and the holders of leases that it cannot acquire.

The agent acquires a run's leases when it begins to watch the run, and shares them with the shims of the run's tasks. It
releases them when it stops watching, or when a sweep finds no process of the run. So the leases last while a task lives
or the head node is connected.
"""

from __future__ import annotations

import os
import time

from orchestrator.both import hostdir
from orchestrator.both.value import Value
from orchestrator.protocol.limits import NAME_CHARS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from orchestrator.host.agent.streams import Loop
    from orchestrator.host.system.gpu_lease import Holder
    from orchestrator.protocol.orders.driving import Leased

    Gpu = int | str

ANSWER_S = 1.0
"""How long a holder may take to name its run."""

_AGAIN_S = 0.05
_TRIES = 5

_JUST_NOW_S = 5.0
_YIELDS_S = 0.4
"""The pause between tries if a later run has just acquired the GPU, since that run may have to release it."""

_LATEST = 2.5e11

LEASED = "gpu-leased"
"""The error code if another process holds the lease of a GPU that the run needs."""


class _Wish(Value):
    """The GPUs that a run wants, the answer to those who ask about them, and the epoch of the run's coordinator."""

    gpus: Sequence[Gpu]
    about: dict[str, Any]
    epoch: int


class GpuLeases:
    """The leases of this agent, by GPU. `lives` returns whether a task of a run lives here."""

    def __init__(self, loop: Loop, host_dir: str, lives: Callable[[str], bool]) -> None:
        self._loop = loop
        self._host_dir = host_dir
        self._lives = lives
        self._wishes: dict[str, _Wish] = {}
        self._held: dict[Gpu, tuple[str, socket.socket]] = {}

    def want(self, run: str, gpus: Sequence[Gpu], head: str, epoch: int) -> None:
        """Set the GPUs that a run wants, and acquire their leases. Those who ask are told the run and `head`."""
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
        """Acquire the leases that a run still lacks, and call `done` with those that others hold."""
        wish = self._wishes.get(run)
        missing = self._missing(run)
        if wish is None or not missing:
            done([])
            return
        others: list[Leased] = []
        left = set(missing)

        def settle(gpu: Gpu, holder: Leased | None) -> None:
            left.discard(gpu)
            if holder is not None:
                others.append(holder)
            if not left:
                done(sorted(others, key=_place))

        for gpu in missing:
            self._ask(run, wish, gpu, settle, _TRIES)

    def for_shim(self, run: str) -> tuple[list[int], dict[str, Any]]:
        """Return the file descriptors of a run's leases for a new shim, and the shim's answer to those who ask.

        Raises HostFault if another process holds one of them.
        """
        wish = self._wishes.get(run)
        if wish is None:
            return [], {}
        missing = [gpu for gpu in self._missing(run) if not self._take_now(run, gpu)]
        if missing:
            from orchestrator.host.system import gpu_lease

            raise hostdir.HostFault(
                LEASED,
                f"{gpu_lease.in_words(missing[0])} is held by {gpu_lease.owner(missing[0]) or 'somebody else'}",
                "`orch queue` shows who waits for what; `orch up` says who holds it",
            )
        return [self._held[gpu][1].fileno() for gpu in wish.gpus], wish.about

    def _missing(self, run: str) -> list[Gpu]:
        wish = self._wishes.get(run)
        return [gpu for gpu in wish.gpus if self._of(gpu) != run] if wish is not None else []

    def _of(self, gpu: Gpu) -> str | None:
        return self._held[gpu][0] if gpu in self._held else None

    def _take_now(self, run: str, gpu: Gpu) -> bool:
        """Acquire a GPU that is free, or that this agent holds for a run without a live task."""
        from orchestrator.host.system import gpu_lease

        other = self._of(gpu)
        if other is not None and not self._lives(other):
            self._hold(run, gpu, self._held[gpu][1])
        elif other is None and (lease := gpu_lease.acquire(gpu)) is not None:
            self._hold(run, gpu, lease)
        return self._of(gpu) == run

    def _hold(self, run: str, gpu: Gpu, lease: socket.socket) -> None:
        self._held[gpu] = run, lease
        self._loop.watch(lease.fileno(), 1, lambda _events: self._asked(gpu))

    def _let_go(self, run: str, *, but: Sequence[Gpu]) -> None:
        for gpu in [gpu for gpu, (other, _) in self._held.items() if other == run and gpu not in but]:
            _, lease = self._held.pop(gpu)
            self._loop.forget(lease.fileno())
            lease.close()

    def _asked(self, gpu: Gpu) -> None:
        """Answer a process that asks who holds the GPU. If another head has taken the run over, release it instead."""
        from orchestrator.host.system import gpu_lease

        run, lease = self._held[gpu]
        wish = self._wishes.get(run)
        if wish is None or hostdir.epoch(self._host_dir, run) > wish.epoch:
            self.release(run)
        else:
            gpu_lease.answer(lease, wish.about)

    def _ask(
        self, run: str, wish: _Wish, gpu: Gpu, done: Callable[[Gpu, Leased | None], None], tries: int
    ) -> None:
        from orchestrator.host.system import gpu_lease

        if self._wishes.get(run) is not wish or self._take_now(run, gpu):
            done(gpu, None)
            return
        other = self._of(gpu)
        if other is not None:
            done(gpu, leased(gpu, gpu_lease.Holder(os.geteuid(), {}).user, self._wishes[other].about))
            return

        def again(holder: Leased, wait_s: float = _AGAIN_S) -> None:
            """Try again after a pause; after the last try, report the holder."""
            if tries:
                self._loop.after(wait_s, lambda: self._ask(run, wish, gpu, done, tries - 1))
            else:
                done(gpu, holder)

        asking = gpu_lease.ask(gpu)
        if asking is None:
            again(leased(gpu, gpu_lease.owner(gpu), {}))
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
                again(leased(gpu, holder.user, {}))
            elif self._is_ours(run, wish, gpu, holder):
                done(gpu, None)
            else:
                other = leased(gpu, holder.user, holder.answer)
                age_s = time.time() - (other["since"] or 0.0)
                # Both may hold what the other wants on another host: then the later one lets go, and the earlier waits.
                if 0 <= age_s < _JUST_NOW_S and _order(run) < _order(other["run"] or ""):
                    again(other, _YIELDS_S)
                else:
                    done(gpu, other)

        self._loop.watch(asking.fileno(), 1, answered)
        self._loop.after(ANSWER_S, answered)

    def _is_ours(self, run: str, wish: _Wish, gpu: Gpu, holder: Holder) -> bool:
        """Return whether a process of the same run holds the GPU. Its lease is then shared."""
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
    """Return a sort key: earlier submissions come first, by the date at the end of the run's id."""
    return run[-len("YYYYMMDD-HHMMSS") :], run


def leased(gpu: Gpu, user: str | None, answer: Mapping[str, Any]) -> Leased:
    """Return the holder of a GPU, with the printable parts of its answer."""
    since = answer.get("since")
    holder: Leased = {
        "gpu": gpu if isinstance(gpu, int) else None,
        "user": _word(user),
        "run": _word(answer.get("run")),
        "head": _word(answer.get("head")),
        "since": since if isinstance(since, float) and 0 <= since < _LATEST else None,
    }
    if isinstance(gpu, str):
        holder["instance"] = gpu
    return holder


def _word(value: object) -> str | None:
    return (
        value if isinstance(value, str) and value.isprintable() and 0 < len(value) <= NAME_CHARS_MAX else None
    )


def _place(lease: Leased) -> tuple[bool, int, str]:
    return lease["gpu"] is None, lease["gpu"] or 0, lease.get("instance", "")

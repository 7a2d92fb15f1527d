"""`runtime.should_save()`: tells a training loop of the script's own when to save.

The cost of a save is the time between a call that returns True and the next call, minus the time of a step.
"""

from __future__ import annotations

import os
import sys
import time

from orchestrator.task import fence, this_task
from orchestrator.task.cadence import Cadence, Wish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Agree = Callable[[float], float]

_loop: Loop | None = None


def should_save(agree: Agree | None) -> bool:
    """Count a step of this process's loop, and return whether to save now."""
    global _loop
    if _loop is None:
        _loop = Loop(agree)
    return _loop.ask()


class Loop:
    """The state of `should_save` in one process."""

    def __init__(self, agree: Agree | None, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._agree = agree
        self._cadence: Cadence | None = None
        self._saves = True
        self._saving_since: float | None = None
        self._step_s = 0.0

    def ask(self) -> bool:
        """Return whether to save now."""
        if self._cadence is None:
            self._begin()
        cadence = self._cadence
        if cadence is None or not self._saves:
            return False
        if self._saving_since is not None:
            cadence.saved(max(0.0, self._now() - self._saving_since - self._step_s))
            self._saving_since = None
        if not cadence.step():
            return False
        fence.check()
        self._saving_since, self._step_s = self._now(), cadence.step_s
        return True

    def _begin(self) -> None:
        """Choose how the processes agree; at the first step, when the script has set up its library."""
        agree = self._agree or find_agreement()
        if agree is None:
            self._saves = is_chief()
            if this_task.link is not None:
                this_task.link.say(
                    "save-alone",
                    "runtime.should_save() knows no library by which the processes could agree: only the chief is told "
                    "to save; where all must save together, pass agree=",
                )
        self._cadence = Cadence(
            Wish.read(this_task.options), agree or (lambda number: number), this_task.tell_saving, self._now
        )


def find_agreement() -> Agree | None:
    """Return a function that broadcasts the number of rank 0, through the library that the script uses.

    None if there are several processes and none of the libraries. Under a parameter server only the chief runs a
    loop.
    """
    if processes() == 1:
        return lambda number: number
    for find in (_by_tensorflow, _by_torch, _by_horovod, _by_jax):
        agreement = find()
        if agreement is not None:
            return agreement
    return None


def processes() -> int:
    """Return how many processes train together, by the variables that orch has set."""
    import json

    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster") or {}
        ranks = int(os.environ.get("ORCH_WORLD_SIZE") or 1)
    except (ValueError, AttributeError):
        return 1
    if cluster.get("ps"):
        return 1
    return max(1, ranks, len(cluster.get("worker", ())) + len(cluster.get("chief", ())))


def is_chief() -> bool:
    """Return whether this process's checkpoints are the run's."""
    from orchestrator.task.transparent.main import is_chief as by_tf_config

    rank = os.environ.get("ORCH_RANK")
    return rank == "0" if rank else by_tf_config(os.environ.get("TF_CONFIG"))


def _by_tensorflow() -> Agree | None:
    strategy = this_task.strategy
    if strategy is None:
        return None
    from orchestrator.task.transparent.strategy import told_by_chief

    chief = is_chief()
    return lambda number: told_by_chief(strategy, chief, number)


def _by_torch() -> Agree | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None

    def agree(number: float) -> float:
        shared = [number]
        distributed.broadcast_object_list(shared, src=0)
        return shared[0]

    return agree


def _by_horovod() -> Agree | None:
    for name in ("horovod.tensorflow", "horovod.torch"):
        horovod = sys.modules.get(name)
        if horovod is not None and horovod.is_initialized():
            broadcast = horovod.broadcast_object
            return lambda number: float(broadcast(number, root_rank=0))
    return None


def _by_jax() -> Agree | None:
    jax = sys.modules.get("jax")
    if jax is None or jax.process_count() == 1:
        return None

    def agree(number: float) -> float:
        from jax.experimental import multihost_utils

        # Without a change of its settings JAX has 32 bits: a number of steps fits exactly as an integer.
        return float(multihost_utils.broadcast_one_to_all(min(int(number), 2**31 - 1)))

    return agree

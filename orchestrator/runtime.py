"""The API for training scripts. It is cheap to import, and does nothing if the script runs without orch.

from orchestrator import runtime
runtime.report(step, loss=loss)        # for custom loops; `model.fit` reports by itself
if runtime.should_save(): save()       # as often as costs least; in all processes at the same step
whole = runtime.rescue(manager, step)  # a survivor of a dead worker hands over: no step is lost
runtime.protect("seen", save=…, restore=…)  # a part of each save that only the script knows
runtime.on_stop(save_something_small)  # called before orch stops the training
runtime.checkpoint_dir()               # this generation's own directory
runtime.replicas_planned()             # and replicas(): fewer after a lost host, with `replicas_min`
"""

from __future__ import annotations

from orchestrator.task import this_task
from orchestrator.task.this_task import checkpoint_dir, on_shrink, replicas, replicas_planned

__all__ = [
    "checkpoint_dir",
    "on_shrink",
    "on_stop",
    "protect",
    "replicas",
    "replicas_planned",
    "report",
    "rescue",
    "should_save",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Step = TypeVar("Step", bound=Callable[..., Any])


def report(step: int, *, total: int | None = None, **metrics: Any) -> None:
    """Report progress: `step` is the global step, and metrics are numbers or scalar tensors.

    `total` is the global step at which the training ends: status and page then show how much is done, and until when.

    Call it at every step. A few messages per second are sent; a call that sends none costs one reading of the clock.
    Tensors are read only when a message is sent. It never raises, but what `save` of `runtime.protect`
    raises, and does nothing without orch; `orch scale` ends the script in it once its steps are measured.
    """
    if this_task.progress is not None:
        if total is not None:
            this_task.progress.total = total
        this_task.progress.report(step, metrics)
    if this_task.measuring is not None:
        this_task.measuring.report(step, metrics)
    if this_task.held is not None:
        this_task.held.told_step()


def should_save(*, agree: Callable[[float], float] | None = None) -> bool:
    """Return whether a loop is to save now. Call it once in each step, in all processes that train together.

        if runtime.should_save():
            manager.save(checkpoint_number=step)

    `checkpoint: {every: …}` of the spec sets how often; `auto` computes the interval of least cost from how long your
    saves take. All processes get the same answer at the same step. They agree through MultiWorkerMirroredStrategy,
    Horovod, torch.distributed or JAX, whichever the script has begun to use. If it uses none, only the chief gets True.

    Args:
        agree: returns rank 0's number in every process, for a library that is none of these.
    """
    from orchestrator.task import loops

    return loops.should_save(agree)


def rescue(manager: Any, step: Any) -> Callable[[Step], Step]:
    """Let a survivor of a dead worker save for the manager, in a loop under MultiWorkerMirroredStrategy.

        whole = runtime.rescue(manager, step)

        @tf.function
        def train(batch):
            strategy.run(whole(step_of_a_replica), args=(batch,))

    The returned function makes a replica's step atomic: either all its updates are done, or none. `step` is the
    variable that counts the steps, and must be changed within the step, as `optimizer.iterations` is. The manager, a
    `tf.train.CheckpointManager`, saves below `runtime.checkpoint_dir()`. Without orch, or with `restart: {rescue:
    off}`, nothing is changed.
    """
    if checkpoint_dir() is None:
        return lambda function: function
    from orchestrator.task.transparent.protected import Held

    this_task.held = Held()
    this_task.held.attach(manager.checkpoint)
    if not this_task.options.get("rescue"):
        return lambda function: function
    from orchestrator.task import loops
    from orchestrator.task.transparent.rescue import Rescue

    own: Any = Rescue.of_this_task()
    whole: Callable[[Step], Step] = own.loop(manager, step, chief=loops.is_chief())
    return whole


def protect(name: str, *, save: Callable[[], Any], restore: Callable[[Any], object]) -> None:
    """Keep a part of the state that only the script knows: a buffer of examples, a count, a place in a file.

        runtime.protect("seen", save=lambda: seen, restore=set_seen)

    `save()` returns numbers, texts, bytes, arrays, or lists, sets and dicts of them. It is called at each save, and
    after each step, so that a step which is not done takes no part in it: return what is there, copy nothing. Larger
    arrays, and all but the length of longer lists, are read when they are written. `restore(state)` is called where
    the weights are restored, perhaps twice: it replaces what is there. All workers get what the one has saved that
    wrote, so it must be alike in all of them.

    In a fit it needs `transparent: true` or `orchestrator.keras.Checkpoint()`; call it before `fit`. In a loop it is a
    part of the manager's checkpoint: call it before `runtime.rescue(manager, step)`, and `runtime.report` at the end of
    each step. Without orch, nothing is done.
    """
    if checkpoint_dir() is None:
        return
    from orchestrator.task.transparent import protected

    protected.protect(name, save, restore)


def on_stop(hook: Callable[[], object]) -> None:
    """Call `hook()` in another thread before orch stops the training. It may take two seconds at most."""
    this_task.stop_hooks.append(hook)
    this_task.has_own_hooks = True

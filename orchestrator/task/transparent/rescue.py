"""The rescue: when a peer dies, a surviving task saves its training state as of the last complete step.

The coordinator orders the rescue. The thread that reads orders aborts the collectives, so the main thread's step fails,
and the handler of that failure, in this module, writes the state. If the step fails before the order arrives, it waits
for the order. If none arrives (the coordinator is gone), the first two workers write without it. If several tasks
survive, each first reports which step it holds, and only the chosen one writes.

No peer takes part: each variable is read from this process's replica. The epoch's metrics are sums over all replicas,
so this replica's values are scaled up. The file lies beside the backup and has the task's name, so that no two tasks
write the same file.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref

from orchestrator.both import backup_file
from orchestrator.both.backup_file import RESCUED
from orchestrator.both.within import as_path
from orchestrator.task import this_task
from orchestrator.task.shim_orders import STOPPED, end
from orchestrator.task.transparent import backup
from orchestrator.task.transparent.atomic import Atomic, NotAtomic, name_of, of_tensorflow, own
from orchestrator.task.transparent.protected import Held as Kept
from orchestrator.task.transparent.shares import Shares, of_all, told_of
from orchestrator.task.transparent.strategy import workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from orchestrator.protocol.reports import Holds
    from orchestrator.protocol.runtime_lines import Rescue as Rescued
    from orchestrator.task.link import Link

    Keep = Callable[[backup.Position], dict[str, Any]]
    """Puts what the callbacks hold into a position, and returns the arrays that belong to it."""
    Held = tuple[int, Callable[[], None]]
    """A step, and a function that writes the state after it."""

MAIN_WAIT_S = 2.0
"""How long the main thread may take to come out of its step once the order has aborted it. One that is in Python, in a
callback or a save, takes longer: then the state is handed over without it."""

PROBE_BYTES = 16 << 20
"""How much is written at most to see how fast the disk is; it is removed at once."""

ORDER_WAIT_S = 1.0
"""How long a step that failed because of a peer waits for the order. Usually the coordinator has noticed too."""

BY_ITSELF = ("chief:0", "worker:0", "worker:1")
"""The tasks that write if no order arrives. At least one of a gang's first two workers survives a single death."""

_UNAVAILABLE = 14
_OF_PEERS = ("UnavailableError", "DeadlineExceededError", "AbortedError", "CancelledError")
_WORDS_OF_PEERS = ("Collective ops is aborted", "collective")


class Rescue:
    """The state that this process can hand over, if its training steps are atomic."""

    def __init__(self, link: Link | None, task: str) -> None:
        self._link = link
        self._task = task
        self._atomics: weakref.WeakKeyDictionary[Any, Atomic] = weakref.WeakKeyDictionary()
        self._ordered = threading.Event()
        self._compare = False
        self.chosen = threading.Event()
        """Set when this task is chosen from several survivors to write."""
        self._one = threading.Lock()
        """Held by the thread that hands over: the main thread, or one that does not wait for it any longer."""
        self._began_at = 0.0
        self._of_fit: Callable[[], Held] | None = None
        self._hand_over: Callable[[], Held] | None = None
        """Returns the state to be written; None while there is nothing to hand over."""
        self._variables: Callable[[], list[Any]] = list
        """Returns all variables that would be handed over."""
        self._newest: Atomic | None = None
        self._tracked: _Tracked | None = None
        self._kept = Kept()
        """What `runtime.protect` keeps of a loop."""
        self._marks = 0
        self._mark: tuple[backup.Position, int, Keep] | None = None
        """The last beginning or end of an epoch, the number of steps then, and a function that saves the callbacks."""
        self._metrics: dict[str, Any] = {}
        """The epoch's training metrics, saved before an evaluation overwrites them."""

    @staticmethod
    def of_this_task() -> Rescue | None:
        """Return the Rescue of this process; None if the spec has none."""
        if this_task.rescue is None and this_task.options.get("rescue"):
            made = this_task.rescue = Rescue(this_task.link, os.environ.get("ORCH_TASK", ""))
            if this_task.progress is not None:
                this_task.progress.could_rescue = made.is_ready
        rescue: Rescue | None = this_task.rescue
        return rescue

    # --- the steps ------------------------------------------------------------------------------------------

    def atomic(self, strategy: Any, model: Any, step_function: Any) -> Atomic | None:
        """Return an Atomic for the training steps of a model; None for steps that do not train."""
        if step_function != model.train_step or workers_of(strategy) == 1:
            return None
        known = weakref.ref(model)
        shares = Shares(strategy, known, lambda: list(itertools.chain(*told_of(known(), strategy))))
        atomic = self._atomics[model] = Atomic(model, shares=shares)
        if model.jit_compile or _several_steps(model):
            atomic.refusal = "steps of jit_compile or steps_per_execution are not made atomic"
            return None
        return atomic

    def ending(self, model: Any) -> Any:
        """Let a model's train_function leave what it leaves where its data ends (see `Atomic.ending`). Return it."""
        atomic, function = self._atomics.get(model), model.train_function
        if atomic is not None and not hasattr(function, "of_steps"):
            function = model.train_function = atomic.ending(function)
        return function

    def watch(self, strategy: Any, model: Any) -> None:
        """Make a model's training steps atomic the next time that its Keras builds them."""
        if model in self._atomics or (atomic := self.atomic(strategy, model, model.train_step)) is None:
            return
        make = model.make_train_function

        def make_train_function(force: bool = False) -> Any:
            make(force)
            return self.ending(model)

        model.__dict__["train_step"] = _whole(atomic, model.train_step)
        model.__dict__["make_train_function"] = make_train_function
        model.train_function = None

    def loop(
        self, manager: Any, counter: Any, *, chief: bool
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Hand over the state of a CheckpointManager. Return a decorator that makes a replica's step atomic."""
        tracked = self._tracked = _Tracked(manager.checkpoint)
        atomic = self._newest = Atomic(tracked, counter)
        held = functools.partial(self._held_checkpoint, manager, atomic, counter, tracked, chief=chief)
        self._marks, self._hand_over, self._variables = 1, held, lambda: tracked.variables
        self._kept = this_task.held or self._kept
        self._kept.counted = atomic.counted
        return functools.partial(_whole, atomic)

    def refusal(self) -> str | None:
        """Return why the newest steps could not be handed over; None if they could."""
        if self._newest is None:
            return "no `fit` makes its steps"
        # While a step is made, the one before it is held.
        return self._newest.refusal or self._kept.behind(most=1) or None

    def mark(self, model: Any, position: backup.Position, keep: Keep) -> None:
        """Remember the beginning or the end of an epoch."""
        if atomic := self._atomics.get(model):
            atomic.keep_changes()
            atomic.is_over = False
        self._mark, self._metrics = (position, atomic.counted() if atomic else 0, keep), {}
        self._marks, self._newest, self._hand_over = self._marks + 1, atomic, self._of_fit

    def keep_metrics(self, model: Any, metrics: list[Any]) -> None:
        """Keep the training metrics before an evaluation overwrites them. All workers must call it."""
        atomic = self._atomics.get(model)
        if atomic is not None and atomic.refusal is None:
            atomic.keep_changes()
            mine = _values(atomic, {"metrics": metrics})
            self._metrics = {**mine, **of_all(model.distribute_strategy, model)}

    def checksum(self, model: Any) -> int | None:
        """Return the CRC-32 of a model's weights; None where they are not handed over."""
        atomic = self._atomics.get(model)
        return None if atomic is None or atomic.refusal is not None else atomic.checksum()

    # --- the order ------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Return whether a planned stop could hand over the state of the next step.

        False if the script has hooks of its own for a stop.
        """
        could = self._hand_over is not None and self.refusal() is None
        return could and not this_task.has_own_hooks

    def rehearse(self) -> str:
        """Read all that would be handed over, without a peer, and write a part to the disk where it would lie.

        Return how much it is and how long it would take; or `no`, and why.
        """
        began_at, root = time.monotonic(), os.environ.get("ORCH_RESCUE_DIR") or this_task.checkpoint_dir()
        try:
            if (why := self._nothing()) or root is None or self._newest is None:
                raise NotAtomic(why or "there is no checkpoint directory")
            count = sum(int(self._newest.value(each).nbytes) for each in self._variables())
            took_s, part = time.monotonic() - began_at, min(count, PROBE_BYTES)
            with tempfile.TemporaryFile(dir=root) as file:  # it has no name there
                file.write(bytes(part))
                file.flush()
                os.fsync(file.fileno())
            wrote_s = time.monotonic() - began_at - took_s
            if (free := shutil.disk_usage(root).free) < count:
                raise NotAtomic(f"it is {count / 1e6:,.1f} MB, and {root} has {free / 1e6:,.1f} MB of room")
        except Exception as e:
            return f"no: {e}"[:200]
        # Those of BatchNormalization are each worker's own until an epoch ends, and then their mean is taken.
        is_own = any("moving_" in name_of(own(each)) for each in self._variables())
        is_own &= self._newest.shares is None or not self._newest.shares.has_averages()
        but = ", but for moving averages" if is_own else ""
        return f"{count / 1e6:,.1f} MB in {took_s + wrote_s * max(1.0, count / max(1, part)):.1f} s{but}"

    def order(self, *, compare: bool = False) -> bool:
        """Make the main thread's step fail, which starts the rescue. Return False if there is nothing to hand over."""
        if why := self._nothing():
            self._report(why=why)
            return False
        from tensorflow.python.eager import context

        self._began_at = self._began_at or time.monotonic()
        self._compare = compare
        self._ordered.set()
        context.context().abort_collective_ops(_UNAVAILABLE, "orch: a peer is gone")
        threading.Thread(target=self._without_main, name="orch-rescue", daemon=True).start()
        return True

    def _without_main(self) -> None:
        """Hand over while the main thread is in Python: since the abort, no step can change the state any more."""
        time.sleep(MAIN_WAIT_S)
        if (hand_over := self._hand_over) is not None and self._one.acquire(blocking=False):
            self._write(hand_over)
            end(STOPPED)

    def during(self, fit: Callable[[], Any], model: Any, setting: Any) -> Any:
        """Run a fit, and hand over if it fails because of a peer. After an ordered rescue, the process ends here.

        After the fit its final state can be handed over until the next fit begins.
        """
        self._of_fit = functools.partial(self._held, model, setting)
        self._variables = lambda: [each for group in setting.groups_of(model).values() for each in group]
        try:
            return fit()
        except Exception as e:
            self.failed(e)
            self._hand_over = None
            raise

    def failed(self, error: BaseException) -> None:
        """Hand over if this error was caused by a peer's death or by the order."""
        began_at, hand_over = time.monotonic(), self._hand_over
        if hand_over is None or not (self._ordered.is_set() or _is_of_peers(error)):
            return
        self._began_at = self._began_at or began_at
        is_ordered = self._ordered.wait(ORDER_WAIT_S)
        if not is_ordered and self._task not in BY_ITSELF:
            return
        self._one.acquire()  # where another thread has it, the process ends with that one's work
        self._write(hand_over)
        if is_ordered:
            end(STOPPED)
        self._one.release()

    def _write(self, hand_over: Callable[[], Held]) -> None:
        """Hand over, and say what came of it."""
        try:
            if why := self._nothing():
                raise NotAtomic(why)
            step, write = hand_over()
            if self._newest is not None:
                self._newest.check_finite()
            if self._compare and self._link is not None and self._newest is not None:
                holds: Holds = {"step": step, "checksum": self._newest.checksum()}
                self._link.send({"holds": holds}, wait_s=1.0)
                self.chosen.wait()  # the shim ends this process where another one is
            write()
        except NotAtomic as e:
            self._report(why=str(e))
        except Exception as e:  # a full disk; whatever it is, the last checkpoint is there
            self._report(why=f"{type(e).__name__}: {str(e)[:200]}")
        else:
            self._report(step=step)

    def _nothing(self) -> str:
        """Return why there is nothing to hand over; empty if there is."""
        if self._hand_over is None:
            return "no fit is going on"
        if self._newest is None:
            return "the steps are not atomic"
        is_first = self._marks == 1 and not self._newest.counted()
        return self._newest.refusal or ("no step has been made since the start" if is_first else "")

    def _held(self, model: Any, setting: Any) -> Held:
        root = os.environ.get("ORCH_RESCUE_DIR") or (setting.checkpoint_dir if setting.chief else None)
        if root is None:
            raise NotAtomic("only the chief can reach the checkpoint directory")
        if self._mark is None:
            raise NotAtomic("no epoch has begun")
        atomic = self._atomics[model]
        position, counted, keep = self._mark
        done = atomic.steps() - counted
        position.batch += done
        position.steps += done
        keep(position)  # what must not be handed over must not be compared with others' either

        def write() -> None:
            values = {
                backup.STEPS: position.steps,
                **_values(atomic, setting.groups_of(model)),
                **self._metrics,
            }
            values.update(keep(position))  # the callback that goes on may have changed the weights meanwhile
            backup.write(backup.rescued(backup.folder(root, position.fit), self._task), values, position)

        return position.steps, write

    def _held_checkpoint(
        self, manager: Any, atomic: Atomic, counter: Any, tracked: _Tracked, *, chief: bool
    ) -> Held:
        """Return a function that writes a checkpoint beside the manager's. The next seed takes the newest one."""
        atomic.steps()
        if why := self._kept.behind():
            raise NotAtomic(why)
        atomic.put_back()
        mine = os.environ.get("ORCH_CHECKPOINT_DIR", "")
        root = os.environ.get("ORCH_RESCUE_DIR") or (mine if chief else "")
        inner = os.path.relpath(manager.directory, mine or manager.directory)
        if not root or inner.startswith(".."):
            raise NotAtomic("the manager saves where nobody looks: not below runtime.checkpoint_dir()")
        inner = _where_the_chief_looks(root, inner)
        step = int(own(counter).numpy())

        def write() -> None:
            for variable in tracked.variables:
                if _counts(variable) == 1:  # else it is the sum of a figure
                    atomic.check_written(variable, atomic.value(variable))
            name = f"{RESCUED}{self._task.replace(':', '-')}-{step}"
            place = os.path.normpath(os.path.join(root, inner))
            with backup.opened(root, place) as folder, folder.private(f"{name}.tmp") as building:
                with _read_alone(), self._kept.handing_over():
                    manager.checkpoint.write(os.path.join(as_path(building.descriptor), name))
                shards = {
                    each[len(name) :]: building.stat(each).st_size
                    for each in building.names()
                    if ".data-" in each
                }
                with building.reading(f"{name}.index") as index:
                    about = backup_file.about(backup_file.sums_of_prefix(index, shards), step)
                building.create(name + backup_file.BESIDE, about, mode=0o666)
                atomic.check_put_back()
                building.sync()
                # In this order all else is in place before the index, which makes it a checkpoint.
                for each in sorted(building.names()):
                    folder.rename(f"{name}.tmp/{each}", each)
                folder.remove(f"{name}.tmp")

        return step, write

    def _report(self, step: int | None = None, why: str = "") -> None:
        took_s = round(time.monotonic() - self._began_at, 3) if self._began_at else 0.0
        if step is not None:
            print(f"orch: rescued step {step} in {took_s:.3f} s", flush=True)
        else:
            print(f"orch: nothing is rescued: {why}", flush=True)
        if self._link is not None:
            report: Rescued = {"why": why} if step is None else {"step": step, "took_s": took_s}
            self._link.send({"rescued": report}, wait_s=1.0)


class _Tracked:
    """The variables of a `tf.train.Checkpoint`."""

    def __init__(self, checkpoint: Any) -> None:
        self._checkpoint = checkpoint

    @property
    def variables(self) -> list[Any]:
        import tensorflow as tf
        from tensorflow.python.checkpoint.graph_view import ObjectGraphView

        nodes, _ = ObjectGraphView(self._checkpoint).breadth_first_traversal()
        return [each for each in nodes if isinstance(of_tensorflow(each), tf.Variable)]

    @property
    def trainable_variables(self) -> list[Any]:
        return [each for each in self.variables if each.trainable]


def _where_the_chief_looks(root: str, inner: str) -> str:
    """Return the directory of the chief's manager below `root`, for that of this task's, which may lie within it.

    TensorFlow's tutorial has each worker but the chief save into `workertemp_1`, or another number, in the chief's.
    """
    parts = inner.split(os.sep)
    for count in range(len(parts), -1, -1):
        place = os.path.join("", *parts[:count])
        there = os.path.join(root, place)
        names = os.listdir(there) if os.path.isdir(there) else []
        if any(name.endswith(".index") and not name.startswith(RESCUED) for name in names):
            return place
    return os.path.join("", *(part for part in parts if not part.startswith("workertemp")))


def _whole(atomic: Atomic, step: Callable[..., Any]) -> Callable[..., Any]:
    """Make a replica's step atomic: it takes effect completely or not at all."""
    import tensorflow as tf

    autograph = tf.__internal__.autograph

    @functools.wraps(step)
    def whole(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return step(*args, **kwargs)
        begin = atomic.begin()
        return atomic.finish(
            autograph.tf_convert(step, autograph.control_status_ctx())(*args, **kwargs), begin
        )

    made: Callable[..., Any] = tf.autograph.experimental.do_not_convert(whole)
    return made


def _values(atomic: Atomic, groups: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the values of all variables by name, like `backup.collect`, but from this process's replica alone.

    Raises NotAtomic where one that steps update is not finite. A figure may be, that of a batch that was skipped, and
    what Keras does not list, such as the least distances so far.
    """
    values = {}
    for group, variables in groups.items():
        for place, variable in enumerate(variables):
            value = atomic.value(variable)
            if group.partition(".")[0] not in ("metrics", backup.OTHERS):
                atomic.check_written(variable, value)
            values[f"{group}/{place:05d}"] = value * _counts(variable)
    return values if atomic.shares is None else {**values, **atomic.shares.known(atomic.values)}


@contextlib.contextmanager
def _read_alone() -> Iterator[None]:
    """Read each variable from this replica: those of BatchNormalization and metrics are else read by all together."""
    values: Any = sys.modules.get("tensorflow.python.distribute.values")
    owners = [values.SyncOnReadVariable, values.OnReadPolicy] if values is not None else []
    together = [owner._get_cross_replica for owner in owners]
    for owner in owners:
        owner._get_cross_replica = lambda *given: own(given[-1]).read_value() * _counts(given[-1])
    try:
        yield
    finally:
        for owner, read in zip(owners, together, strict=True):
            owner._get_cross_replica = read


def _several_steps(model: Any) -> bool:
    """Return whether a call of the model's function makes several steps. tf_keras has their number in a variable."""
    steps: Any = getattr(model, "_steps_per_execution", None) or getattr(model, "steps_per_execution", 1)
    return int(steps.numpy() if hasattr(steps, "numpy") else steps) != 1


def _counts(variable: Any) -> int:
    """Return the factor for a value of this replica: a variable that is summed over all replicas needs their number."""
    import tensorflow as tf

    tf_variable = of_tensorflow(variable)
    if own(variable) is tf_variable or tf_variable.synchronization != tf.VariableSynchronization.ON_READ:
        return 1
    is_sum = tf_variable.aggregation == tf.VariableAggregation.SUM
    return int(tf_variable.distribute_strategy.num_replicas_in_sync) if is_sum else 1


def _is_of_peers(error: BaseException) -> bool:
    text = str(error)
    return type(error).__name__ in _OF_PEERS or any(words in text for words in _WORDS_OF_PEERS)

"""Patches Keras, and the sessions of TensorFlow 1, when the script imports them, and never earlier.

A finder is placed first in sys.meta_path. When one of the modules below has been executed, its patch runs. While a
framework's own code is executed, the garbage collector is paused.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from importlib import import_module

from orchestrator.both.script import FRAMEWORKS
from orchestrator.task import collector, this_task
from orchestrator.task.keras import fit_arguments
from orchestrator.task.stages import CONNECTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from orchestrator.task.link import Link
    from orchestrator.task.progress import Progress

    _Execute = Callable[[ModuleType], None]
    _Around = dict[str, Callable[[_Execute], _Execute]]


MIRRORED_WORKERS = "tensorflow.python.distribute.collective_all_reduce_strategy"
MIRRORED = "tensorflow.python.distribute.mirrored_strategy"
KERAS3 = "keras.src.backend.tensorflow.trainer"
KERAS3_CORE = "keras.src.backend.tensorflow.core"
KERAS3_OPTIMIZERS = "keras.src.optimizers.base_optimizer"
KERAS3_JAX = "keras.src.backend.jax.trainer"
SESSIONS = "tensorflow.python.training.monitored_session"
KERAS2 = ("tf_keras.src.engine.training", "keras.src.engine.training")


def install(link: Link, progress: Progress) -> None:
    """Patch the modules that are imported already, and each other one when it is imported."""

    def watch_keras3(module: ModuleType) -> None:
        wrap_fit(module.TensorFlowTrainer, "keras", progress)

    def patch_keras3_jax(module: ModuleType) -> None:
        wrap_fit(module.JAXTrainer, "keras", progress, counted=True)

    def patch_keras2(module: ModuleType) -> None:
        wrap_fit(module.Model, module.__name__.partition(".")[0], progress)

    def remember_strategy(module: ModuleType) -> None:
        _remember(module.CollectiveAllReduceStrategy)

    def keep_apart(module: ModuleType) -> None:
        from orchestrator.task.keras import parallel

        parallel.keep_apart(module.MirroredStrategy)

    def patch_sessions(module: ModuleType) -> None:
        report_sessions(module, progress)

    patches: dict[str, Callable[[ModuleType], None]] = {
        MIRRORED_WORKERS: remember_strategy,
        MIRRORED: keep_apart,
        SESSIONS: patch_sessions,
        KERAS3: watch_keras3,
        KERAS3_JAX: patch_keras3_jax,
    }
    patches.update(dict.fromkeys(KERAS2, patch_keras2))
    patches.update(dict.fromkeys(CONNECTS, _say_when_it_connects))
    patch_keras3(link)
    when_imported(patches)
    import_without_collection(FRAMEWORKS)


def patch_keras3(link: Link) -> None:
    """Patch Keras 3 where it fails under strategies, in a task or in a Python that its script has started."""

    def patched_by(name: str) -> Callable[[ModuleType], None]:
        def patch(module: ModuleType) -> None:
            import_module(f"orchestrator.task.keras.{name}").patch(module, link)

        return patch

    when_imported(
        {
            KERAS3: patched_by("keras3"),
            KERAS3_CORE: patched_by("keras3_central"),
            KERAS3_OPTIMIZERS: patched_by("keras3_conditions"),
        }
    )


def reach_children() -> None:
    """Have each Python that the script starts from now on patch Keras 3 too: its `site` finds `children/` first."""
    children = os.path.join(os.path.dirname(os.path.dirname(__file__)), "children")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (children, os.environ.get("PYTHONPATH"))))


def _remember(strategy: Any) -> None:
    """Remember the script's newest strategy of this class, through which its workers agree when to save."""
    init = strategy.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        this_task.strategy = self

    strategy.__init__ = _connecting(__init__)


def _say_when_it_connects(module: ModuleType) -> None:
    """Wrap the method of this module that waits for the peers."""
    owner, method = CONNECTS[module.__name__]
    owner_class = getattr(module, owner)
    setattr(owner_class, method, _connecting(getattr(owner_class, method)))


def _connecting(connect: Callable[..., Any]) -> Callable[..., Any]:
    return connect if this_task.stages is None else this_task.stages.connecting(connect)


def when_imported(patches: dict[str, Callable[[ModuleType], None]]) -> None:
    """Run each patch after the module of its name was imported: at once if it is imported already."""
    for name in list(patches):
        module = sys.modules.get(name)
        if module is not None:
            guarded(patches.pop(name), module)
    around: _Around = {name: functools.partial(_patched, patch) for name, patch in patches.items()}
    sys.meta_path.insert(0, _Finder(around))


def import_without_collection(names: Iterable[str]) -> None:
    """Pause the garbage collector while the script imports one of these modules, with all that it imports."""
    sys.meta_path.insert(0, _Finder(dict.fromkeys(names, _uncollected)))


def guarded(patch: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a patch. If it fails, print the error and go on: training is more important than progress reports."""
    try:
        patch(module)
    except Exception as e:
        print(f"orch: {module.__name__} was not patched: {type(e).__name__}: {e}", file=sys.stderr)


class _Finder:
    """Asks the other finders for a module, and wraps the execution of the module's own code."""

    def __init__(self, around: _Around) -> None:
        self._around = around
        self._searching: set[tuple[int, str]] = set()
        """By thread, since a search is under no lock."""
        self._under_way: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        search = (threading.get_ident(), name)
        if name not in self._around or search in self._searching:  # another finder of ours asks back
            return None
        self._searching.add(search)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find(name, path, target) if find and finder is not self else None
                if spec is not None:
                    loader: Any = spec.loader
                    if hasattr(loader, "exec_module"):
                        loader.exec_module = self._executing(name, loader.exec_module)
                    return spec
            return None
        finally:
            self._searching.discard(search)

    def _executing(self, name: str, execute: _Execute) -> _Execute:
        """Return an `exec_module` that is wrapped, each time, as this module needs it.

        A search alone uses nothing up: scripts search to see whether a library is there, and import it later. One
        loader may be of several modules, as that of a zip file is, and be found several times.
        """

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != name or name in self._under_way:
                return execute(module)
            self._under_way.add(name)
            try:
                return self._around[name](execute)(module)
            finally:
                self._under_way.discard(name)

        return exec_module


def _patched(patch: Callable[[ModuleType], None], execute: _Execute) -> _Execute:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        guarded(patch, module)

    return exec_module


def _uncollected(execute: _Execute) -> _Execute:
    def exec_module(module: ModuleType) -> None:
        with collector.paused():
            execute(module)

    return exec_module


def wrap_fit(trainer: Any, library: str, progress: Progress, *, counted: bool = False) -> None:
    """Wrap `fit` of this class so that it adds our callback to the callbacks it is given.

    With `counted`, the callback counts batches within an epoch instead of reading the model.
    """
    fit = trainer.fit

    @functools.wraps(fit)
    def fit_with_progress(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(fit_arguments.NAMES):  # Keras says what is wrong
            return fit(self, *args, **kwargs)
        given = _with_callback(self, library, progress, counted, fit_arguments.named(args, kwargs))
        if this_task.measuring is not None:
            base = sys.modules[f"{library}.src.callbacks"].Callback
            return this_task.measuring.fit(fit, self, base, given)
        checkpoint = sys.modules.get("orchestrator.task.transparent.checkpoint")
        if checkpoint is not None:  # the script has made one
            return checkpoint.fit(fit, self, library, given)
        return fit(self, **given)

    trainer.fit = fit_with_progress


def _with_callback(
    model: Any, library: str, progress: Progress, counted: bool, given: dict[str, Any]
) -> dict[str, Any]:
    try:
        keras_callbacks = sys.modules[f"{library}.src.callbacks"]
        from orchestrator.task.keras.callbacks import reporter

        strategy = getattr(model, "distribute_strategy", None)
        batches = "ParameterServer" not in type(strategy).__name__
        ours, callbacks = (
            reporter(keras_callbacks.Callback, progress, batches, counted),
            given.get("callbacks"),
        )
        if isinstance(callbacks, keras_callbacks.CallbackList):
            callbacks.append(ours)
            ours.set_model(model)
            return given
        # Ours goes last: BackupAndRestore has then restored the model, and `iterations` is right.
        every = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
        return {**given, "callbacks": [*every, ours]}
    except Exception as e:
        print(f"orch: no progress from this fit: {type(e).__name__}: {e}", file=sys.stderr)
        return given


# Reports the progress of TensorFlow 1's training loops: MonitoredTrainingSession, and Estimator, which uses
# it. Every such session gets one more hook, which fetches the global step with each run. A session in which
# the step stands still evaluates or predicts, and reports nothing.


def report_sessions(module: ModuleType, progress: Progress) -> None:
    """Add our hook to the sessions of the module `tensorflow.python.training.monitored_session`."""
    session: Any = module
    original = session._MonitoredSession.__init__

    @functools.wraps(original)
    def __init__(self: Any, session_creator: Any, hooks: Any, *args: Any, **kwargs: Any) -> None:
        base = sys.modules["tensorflow.python.training.session_run_hook"]
        every = [*(hooks or ()), _hook(base, progress)]
        original(self, session_creator, every, *args, **kwargs)

    session._MonitoredSession.__init__ = __init__


def _hook(base: Any, progress: Progress) -> Any:
    util: Any = sys.modules["tensorflow.python.training.training_util"]

    class Reports(base.SessionRunHook):  # type: ignore[misc]
        """Reads the global step, where the graph has one."""

        def begin(self) -> None:
            self._step = None if util.get_global_step() is None else util._get_or_create_global_step_read()
            self._first: int | None = None

        def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
            if self._step is not None and self._first is None:
                self._first = int(session.run(self._step))

        def before_run(self, _context: Any) -> Any:
            return None if self._step is None else base.SessionRunArgs(self._step)

        def after_run(self, _context: Any, values: Any) -> None:
            if self._step is None or self._first is None or int(values.results) <= self._first:
                return
            progress.began(self._first)
            progress.report(int(values.results), {})

        def end(self, session: Any) -> None:
            # The step that a run fetches may be the one before it was increased, so it is read once more.
            if self._step is None or self._first is None:
                return
            last = int(session.run(self._step))
            if last > self._first:
                progress.report(last, {})
                progress.flush()

    return Reports()

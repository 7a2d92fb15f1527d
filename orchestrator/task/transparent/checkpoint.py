"""`orchestrator.keras.Checkpoint()`: a callback that saves at the interval of least cost, and resumes within an epoch.

It does for a script with callbacks of its own what `transparent: true` does for one without. Under
MultiWorkerMirroredStrategy each worker has it, and all save at the same steps. It saves weights, optimizer, metrics and
the position, in a file that is replaced when it is complete.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys

from orchestrator.task import this_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from orchestrator.task.transparent.setting import Setting

_settings: dict[str, Setting] = {}
"""What all fits of this process share, by the Keras module that they use."""


def Checkpoint() -> Any:
    """Return the callback, for `model.fit(callbacks=[Checkpoint(), …])`.

    A `fit` goes on from the checkpoint of one with the same model, that the same function called; where that one had
    ended, with the same data too. It is restored when training begins, and the fit resumes after its last batch.
    `checkpoint: {every: …}` of the spec sets how often it saves. Without orch, or without `checkpoint:`, the callback
    does nothing.

    Raises:
        RuntimeError: Keras runs on another backend than TensorFlow, for whose variables alone this is made.
    """
    library = _library()
    base = sys.modules[f"{library}.src.callbacks"].Callback
    return type("Checkpoint", (base,), {"_orch_checkpoint": True, "_supports_tf_logs": True})()


def fit(fit: Callable[..., Any], model: Any, library: str, given: dict[str, Any]) -> Any:
    """Call `fit`, with each Checkpoint among its callbacks replaced by the callback that does the work."""
    callbacks = given.get("callbacks")
    every = list(callbacks) if isinstance(callbacks, (list, tuple)) else []
    wanted = [each for each in every if getattr(each, "_orch_checkpoint", False)]
    if not wanted or not os.environ.get("ORCH_CHECKPOINT_DIR"):
        return fit(model, **given)
    setting = _setting(library, model)
    from orchestrator.task.transparent import fit as transparent
    from orchestrator.task.transparent import replay
    from orchestrator.task.transparent.saver import Saver

    course = replay.Course(int(given.get("initial_epoch") or 0))
    saver = Saver(setting, course, dict(given))
    saver.others = [each for each in every if each not in wanted]
    history = sys.modules[f"{library}.src.callbacks"].History
    if not any(isinstance(each, history) for each in saver.others):
        saver.others.insert(0, history())  # else Keras adds one behind all others
    # The others reset themselves when training begins, and ours restores them; the last one reports the progress.
    given["callbacks"] = saver.callbacks(saver.others[:-1], saver.others[-1:])
    if library == "tf_keras":
        transparent.build(model, given.get("x"), setting, given.get("batch_size"))
    with course, _counting(setting):
        if setting.rescue is None:
            return fit(model, **given)
        setting.rescue.watch(setting.strategy, model)
        return setting.rescue.during(functools.partial(fit, model, **given), model, setting)


@contextlib.contextmanager
def _counting(setting: Setting) -> Iterator[None]:
    """Report the steps of all fits, as they are saved, and not those of one fit's optimizer."""
    progress = this_task.progress
    if progress is None:
        yield
        return
    before, progress.count_steps = progress.count_steps, setting.count_steps
    try:
        yield
    finally:
        progress.count_steps = before


def _library() -> str:
    """Return which Keras the script uses."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if legacy or ("tf_keras" in sys.modules and "keras.src.callbacks" not in sys.modules):
        import tf_keras  # noqa: F401

        return "tf_keras"
    import keras

    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"orchestrator.keras.Checkpoint needs Keras on TensorFlow; here it runs on {keras.backend.backend()}: "
            "save in a loop or a callback of your own, when `runtime.should_save()` says so"
        )
    return "keras"


def _setting(library: str, model: Any) -> Setting:
    if library not in _settings:
        from orchestrator.task.keras.optimizers import iterations_of
        from orchestrator.task.link import Link
        from orchestrator.task.transparent import replay, setting
        from orchestrator.task.transparent.main import is_chief
        from orchestrator.task.transparent.reporter import Reporter
        from orchestrator.task.transparent.rescue import Rescue

        class Own(setting.Setting):
            """The setting for a script that makes its strategy, its batches and its learning rate by itself."""

            def prepare(self, model: Any, course: replay.Course) -> None:
                # Without a strategy, Keras 3 builds model and optimizer only when the first step is traced. Where
                # that cannot be done now, it builds what it can: a step of the script's own may call it otherwise.
                if course.trace(model) or self.library != "keras" or (example := course.example()) is None:
                    return
                with self.strategy.scope(), contextlib.suppress(Exception):
                    model._symbolic_build(data_batch=example)

        if library == "keras":
            replay.install_keras3(sys.modules["keras.src.backend.tensorflow.trainer"].TFEpochIterator)
        else:
            from importlib import import_module

            owner = sys.modules["tf_keras"].Model
            handler = import_module("tf_keras.src.engine.data_adapter").DataHandler
            replay.install_keras2(owner, handler)
        report = Reporter(this_task.link or Link(None))
        chief = is_chief(os.environ.get("TF_CONFIG"))
        import tensorflow as tf

        strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
        rescue = Rescue.of_this_task()
        options = {**this_task.options, "on_shrink": "ignore"}  # which the script is told, and does itself
        made = _settings[library] = Own(library, strategy, options, report, chief, rescue=rescue)
        made.restores_late = False  # nobody watches its first step
        made.is_seeded = False
        made.steps = iterations_of(model) or 0  # of a fit without this callback, or in another process
    return _settings[library]

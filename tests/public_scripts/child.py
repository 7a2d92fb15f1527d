"""`python -m tests.public_scripts.child alone|worker SCRIPT HOME`: one process that trains on small data.

It leaves the figures of each `fit`, and the weights of all models that were fitted, in HOME. With ORCH_PUBLIC_KILL_AT
it kills itself with SIGKILL within the batch of that number; with ORCH_PUBLIC_STILL the noise of layers is off.
ORCH_PUBLIC_CONTROL is for a process that is compared with itself: `moved:1` moves the first weights by a relative 1e-7,
`redrawn:1` draws other noise. ORCH_PUBLIC_KERAS is the Keras that the script imports, if it is not Keras 3.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

import numpy as np

from tests.public_scripts import small_data


def main(kind: str, script: str, home: Path) -> int:
    """Run it, and write what it has come to."""
    faulthandler.dump_traceback_later(float(os.environ.get("ORCH_PUBLIC_STACKS_AFTER", "170")), exit=False)
    small_data.install()
    if os.environ.get("ORCH_PUBLIC_STILL"):
        small_data.still()
    control, _, number = os.environ.get("ORCH_PUBLIC_CONTROL", "").partition(":")
    if control == "moved":
        _move_weights(int(number))
    elif control == "redrawn":
        small_data.redrawn(int(number))
    seen = _watch_models(home)
    try:
        code = _alone(script) if kind == "alone" else _as_worker(script)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    if code == 0:
        _write(home, seen)
    return code


def _alone(script: str) -> int:
    """Run it as its author does, but from the seeds that workers have: else the weights begin elsewhere."""
    from orchestrator.task.transparent.chance import SEED, equal_generators

    _keras().utils.set_random_seed(SEED)
    equal_generators()
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    return 0


def _as_worker(script: str) -> int:
    from orchestrator.task.main import main as run

    return run([script])


def _watch_models(home: Path) -> dict[str, Any]:
    """Remember which models are fitted, what each fit has shown, and how many batches there were."""
    keras = _keras()
    # Of Keras 3 the trainer's own `fit`, as it is by then: the runtime patches it.
    trainer: Any = sys.modules["keras.src.backend.tensorflow.trainer"].TensorFlowTrainer
    if keras.__name__ == "tf_keras":
        trainer = types.SimpleNamespace(fit=keras.Model.fit)
    callbacks: Any = sys.modules[f"{keras.__name__}.src.callbacks"].CallbackList
    seen: dict[str, Any] = {"models": [], "fits": [], "steps": 0}
    kill_at = int(os.environ.get("ORCH_PUBLIC_KILL_AT") or 0)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(self is each for each in seen["models"]):
            seen["models"].append(self)
        history = trainer.fit(self, *args, **kwargs)
        shown = {name: [float(np.mean(v)) for v in values] for name, values in history.history.items()}
        seen["fits"].append(shown)
        return history

    counted = callbacks.on_train_batch_end

    def on_train_batch_end(self: Any, *args: Any, **kwargs: Any) -> None:
        counted(self, *args, **kwargs)
        seen["steps"] += 1
        if seen["steps"] == kill_at:
            # Meanwhile the others wait in the next collective, and the save before is written.
            time.sleep(1.0)
            (home / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    keras.Model.fit = fit
    callbacks.on_train_batch_end = on_train_batch_end
    return seen


def _keras() -> Any:
    return importlib.import_module(os.environ.get("ORCH_PUBLIC_KERAS", "keras"))


def _move_weights(number: int) -> None:
    """Move the weights of each model by a relative 1e-7, once, before its first step."""
    callbacks: Any = sys.modules["keras.src.callbacks.callback_list"].CallbackList
    begin, random = callbacks.on_train_begin, np.random.default_rng(number)
    moved: list[Any] = []

    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        if not any(self._model is each for each in moved):
            moved.append(self._model)
            for variable in self._model.trainable_variables:
                value = np.asarray(variable, "float64")
                variable.assign((value * (1 + random.choice([-1e-7, 1e-7], value.shape))).astype("float32"))
        begin(self, *args, **kwargs)

    callbacks.on_train_begin = on_train_begin


def _write(home: Path, seen: dict[str, Any]) -> None:
    arrays = [
        v.numpy() if hasattr(v, "numpy") else np.asarray(v)
        for model in seen["models"]
        for v in model.trainable_variables
    ]
    np.savez(home / "weights.npz", *arrays)
    (home / "result.json").write_text(json.dumps({"fits": seen["fits"], "steps": seen["steps"]}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))

"""`python -m tests.public_scripts.child alone|worker SCRIPT HOME`: one process that trains on small data.

It leaves the figures of each `fit`, and the weights of all models that were fitted, in HOME.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from tests.public_scripts import small_data


def main(kind: str, script: str, home: Path) -> int:
    """Run it, and write what it has come to."""
    small_data.install()
    seen = _watch_models()
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
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    return 0


def _as_worker(script: str) -> int:
    from orchestrator.runtime.main import main as run

    return run([script])


def _watch_models() -> dict[str, Any]:
    """Remember which models are fitted, and what each fit has shown."""
    import keras

    seen: dict[str, Any] = {"models": [], "fits": []}
    fit = keras.Model.fit

    def remembered(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(self is each for each in seen["models"]):
            seen["models"].append(self)
        history = fit(self, *args, **kwargs)
        shown = {name: [float(np.mean(v)) for v in values] for name, values in history.history.items()}
        seen["fits"].append(shown)
        return history

    keras.Model.fit = remembered
    keras.utils.set_random_seed(11)
    return seen


def _write(home: Path, seen: dict[str, Any]) -> None:
    arrays = [np.asarray(v) for model in seen["models"] for v in model.trainable_variables]
    np.savez(home / "weights.npz", *arrays)
    (home / "result.json").write_text(json.dumps({"fits": seen["fits"]}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))

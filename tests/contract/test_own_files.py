"""The articles' checkpoint lines under several workers: each loads what the chief has saved, also after a kill."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import EXAMPLES, Gang, gang, seeded

__all__ = ["gang"]
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

EPOCHS = 5
SAVES_ON_THE_CHIEF = {
    "callbacks = [tf.keras.callbacks.ModelCheckpoint(filepath=prefix, save_weights_only=True)]": "callbacks = []",
    "model.load_weights(tf.train.latest_checkpoint(directory))": "if strategy.extended._id_in_cluster == 0:\n"
    "    model.save_weights(prefix.format(epoch=args.epochs))\n"
    "model.load_weights(tf.train.latest_checkpoint(directory))",
}


def started(
    gang: Callable[..., Gang],
    root: Path,
    generation: int,
    script: Path = EXAMPLES / "model_checkpoint.py",
    *,
    transparent: bool = False,
) -> Gang:
    answer, directories = seeded(root, generation, 2)
    options = {"strategy": "multi_worker_mirrored", "transparent": transparent}
    env = {
        "ORCH_RUNTIME": json.dumps(with_row(options)),
        "ORCH_RESCUE_DIR": answer["path"],
        "TF_USE_LEGACY_KERAS": "1",
    }
    return gang(script, "--epochs", str(EPOCHS), directories=directories, env=env)


def loaded(run: Gang) -> list[list[dict[str, Any]]]:
    return [[line["loaded"] for line in heard if "loaded" in line] for heard in run.heard]


def ends_alike(run: Gang, loads: int) -> int:
    """Check what each of the two workers has printed and loaded, and return the epoch at which both began."""
    assert run.ended() == [0, 0], [task.err[-3000:] for task in run.tasks]
    said = [re.findall(r"starting at epoch \d+|accuracy .* steps", task.out) for task in run.tasks]
    assert said[0] == said[1]
    began, _accuracy = said[0]
    first, second = loaded(run)
    assert first == second
    assert len({each["number"] for each in first}) == loads
    assert first[-1]["file"] == f"ckpt_{EPOCHS}"
    return int(began.split()[-1])


@pytest.mark.long  # at the end of the test after this one two workers load likewise
def test_each_worker_loads_what_the_chief_has_saved(gang: Callable[..., Gang], tmp_path: Path) -> None:
    assert ends_alike(started(gang, tmp_path, 1), 1) == 0


def test_each_worker_loads_what_the_chief_has_saved_before_and_after_a_kill(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = started(gang, tmp_path, 1)
    third = tmp_path / "shared" / "gen-000001" / "ckpt_3.index"
    run.wait_for(third.exists, "the weights of epoch 3")
    for task in run.tasks:
        task.process.send_signal(signal.SIGKILL)
        task.process.wait()
    assert ends_alike(started(gang, tmp_path, 2), 2) >= 3


@pytest.mark.long  # test_transparent.py has what all workers read of a transparent run, and of Keras 3
def test_a_worker_of_a_transparent_run_finds_what_it_has_saved_below_its_checkpoint_directory(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    """Its working directory may be another task's too: here it is none of its own."""
    run = started(gang, tmp_path, 1, transparent=True)
    assert run.ended() == [0, 0], [task.err[-3000:] for task in run.tasks]
    said = [re.findall(r"starting at epoch \d+|accuracy .* steps", task.out) for task in run.tasks]
    assert said[0] == said[1]
    assert len(said[0]) == 2


@pytest.mark.long
def test_what_the_chief_alone_saves_is_loaded_by_the_others(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    text = (EXAMPLES / "model_checkpoint.py").read_text()
    for old, new in SAVES_ON_THE_CHIEF.items():
        assert old in text
        text = text.replace(old, new)
    script = tmp_path / "train.py"
    script.write_text(text)
    assert ends_alike(started(gang, tmp_path, 1, script), 1) == 0

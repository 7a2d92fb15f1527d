"""The runner of public scripts: what it changes in a copy, and what its table says. No public script is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomllib

from tests.public_scripts.__main__ import _compared, _table, verdict
from tests.public_scripts.running import shortened

COLLECTION = Path(__file__).parents[1] / "public_scripts" / "collection.toml"


def test_a_copy_is_short_and_keeps_its_lines() -> None:
    text = (
        "import keras_core as keras\nbatch_size = 256\nnum_epochs = 40\nmodel.fit(x, epochs=15)\nWIDTH = 64\n"
    )
    assert shortened(text, [["WIDTH = 64", "WIDTH = 8"]]) == (
        "import keras as keras\nbatch_size = 32\nnum_epochs = 2\nmodel.fit(x, epochs=2)\nWIDTH = 8\n"
    )


def test_the_collection_names_at_least_25_scripts_once() -> None:
    scripts = [script["path"] for script in tomllib.loads(COLLECTION.read_text())["script"]]
    assert len(scripts) == len(set(scripts)) >= 25


def ran(weights: float | None, loss: float | None) -> dict[str, Any]:
    return {"outcome": "ran", "killed_at": 4, "weights_apart": weights, "loss_apart": loss}


@pytest.mark.parametrize(
    ("noise", "seen", "says"),
    [
        ([], ran(1e-6, 0.0), "equal (1e-06)"),
        (["Dropout"], ran(0.3, 0.05), "alike (loss 5%)"),
        ([], ran(0.3, 0.05), "differs (weights 3e-01, loss 5%)"),
        (["Dropout"], ran(0.3, 0.7), "differs (weights 3e-01, loss 70%)"),
        ([], ran(None, None), "other weights"),
        ([], {"outcome": "refused", "why": "train.py:7: …"}, "refused"),
    ],
)
def test_equal_is_said_of_equal_weights_only(noise: list[str], seen: dict[str, Any], says: str) -> None:
    assert verdict({"noise": noise, "2": seen}, "2") == says


def test_weights_are_compared_by_the_largest_of_their_array() -> None:
    expected = {"weights": [np.array([0.0, 2.0])], "fits": [{"loss": [3.0, 2.0]}]}
    found = {"weights": [np.array([0.01, 2.0])], "fits": [{"loss": [3.0, 1.9]}]}
    assert _compared(expected, found) == pytest.approx({"weights_apart": 0.005, "loss_apart": 0.05})
    assert _compared(expected, {**found, "weights": [np.zeros(3)]})["weights_apart"] is None


def test_the_table_says_what_was_not_run_and_why() -> None:
    collection = tomllib.loads(COLLECTION.read_text())
    first, second = (script["path"] for script in collection["script"][:2])
    known = {
        first: {"outcome": "not run", "why": "it fails alone: a | b"},
        second: {"outcome": "ran", "fits": 1, "noise": [], "2": ran(1e-6, 0.0)},
    }
    lines = list(_table(collection, known))
    assert f"| {first} | | | | | not run: it fails alone: a \\| b |" in lines
    assert f"| {second} | 1 | equal (1e-06) | 4 |  |  |" in lines
    assert sum("no time for it" in line for line in lines) == len(collection["script"]) - 2

"""The arguments of `fit` by name."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from orchestrator.task.keras.fit_arguments import NAMES, callbacks_of, named


def test_what_is_given_by_place_has_its_name() -> None:
    given = named(("x", "y", 32, 5, 1, None, 0.0, None, False), {"initial_epoch": 2})
    assert (given["x"], given["epochs"], given["shuffle"], given["initial_epoch"]) == ("x", 5, False, 2)


def test_callbacks_are_taken_out_of_a_list_and_of_a_callback_list() -> None:
    assert callbacks_of({"callbacks": None}) == callbacks_of({}) == []
    given = {"callbacks": SimpleNamespace(callbacks=["a", "b"]), "x": 1}
    assert callbacks_of(given) == ["a", "b"]
    assert given == {"x": 1}


@pytest.mark.tensorflow
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_both_keras_begin_with_these_names(library: str) -> None:
    keras = pytest.importorskip(library)
    first, *names = inspect.signature(keras.Model.fit).parameters
    assert (first, names[: len(NAMES)]) == ("self", list(NAMES))

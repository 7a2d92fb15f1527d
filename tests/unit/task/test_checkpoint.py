"""`orchestrator.keras.Checkpoint` where it cannot work."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from orchestrator.keras import Checkpoint


def test_keras_on_another_backend_is_refused_with_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(backend=SimpleNamespace(backend=lambda: "jax")))
    with pytest.raises(RuntimeError, match=r"needs Keras on TensorFlow; here it runs on jax: .*should_save"):
        Checkpoint()

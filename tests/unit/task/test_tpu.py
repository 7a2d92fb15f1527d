"""How a TPU is named to TensorFlow, with stand-ins for its modules; the real ones are contract tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.link import Link
from orchestrator.task.strategies import tpu


def patched(name: str, error: Exception | None = None) -> Any:
    class TPUClusterResolver:
        def __init__(self, tpu: Any = None, zone: Any = None) -> None:
            self.name, self.zone = tpu, zone

        def cluster_spec(self) -> Any:
            if error:
                raise error
            return self.name

    module: Any = SimpleNamespace(TPUClusterResolver=TPUClusterResolver)
    tpu.patches({"tpu": name, "tpu_wait_s": 9.0}, Link(None))[tpu.RESOLVER](module)
    return module.TPUClusterResolver


def test_a_resolver_without_a_name_finds_the_plans_and_one_with_a_name_its_own() -> None:
    resolver = patched("v4-8")
    assert resolver().name == resolver("").name == "v4-8"
    assert (resolver("mine").name, resolver("mine", zone="z").zone) == ("mine", "z")
    assert resolver(tpu="mine").cluster_spec() == "mine"


def test_tensorflows_reason_is_said_without_what_changes_each_time() -> None:
    said = ValueError(
        "No OpKernel was registered to support Op 'X' used by {{node X}} with these attrs: [b, a]"
    )
    with pytest.raises(ValueError) as caught:
        patched("v4-8", said)().cluster_spec()
    message: str = caught.value.orch_message  # type: ignore[attr-defined]
    assert message == "no TPU v4-8: ValueError: No OpKernel was registered to support Op 'X'"
    assert caught.value.orch_kind == "no-tpu"  # type: ignore[attr-defined]


def test_the_error_of_initialisation_says_so_too_and_its_success_ends_the_watch() -> None:
    def initialize(cluster_resolver: Any, _resolver_class: Any) -> str:
        if cluster_resolver is None:
            raise RuntimeError("TPUs not found")
        return "topology"

    module: Any = SimpleNamespace(initialize_tpu_system_impl=initialize)
    tpu.patches({"tpu": "local"}, Link(None))[tpu.SYSTEM](module)
    assert module.initialize_tpu_system_impl("resolver", None) == "topology"
    with pytest.raises(RuntimeError) as caught:
        module.initialize_tpu_system_impl(None, None)
    assert "no TPU local: RuntimeError: TPUs not found" in caught.value.orch_message  # type: ignore[attr-defined]
    assert caught.value.orch_kind == "no-local-tpu"  # type: ignore[attr-defined]


def test_nothing_is_changed_without_a_tpu() -> None:
    assert tpu.patches({"strategy": "mirrored"}, Link(None)) == {}

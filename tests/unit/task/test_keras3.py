"""The mending against a stand-in for Keras's trainer module; the real one is in the contract tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.protocol.runtime_lines import RuntimeLine
from orchestrator.task.keras import keras3
from orchestrator.task.link import Link


class Said(Link):
    """A link that keeps what was sent."""

    def __init__(self) -> None:
        super().__init__(None)
        self.messages: list[dict[str, Any]] = []

    def send(self, message: RuntimeLine, wait_s: float = 0.0) -> bool:
        assert wait_s > 0  # the last words before a refusal must not be dropped
        self.messages.append({**message})
        return True


class CollectiveAllReduceStrategy:
    """As MultiWorkerMirroredStrategy shows itself: its class's name, and whether it has other workers."""

    def __init__(self, workers: int) -> None:
        self.extended = SimpleNamespace(_in_multi_worker_mode=lambda: workers > 1)


def trainer_module() -> Any:
    class TensorFlowTrainer:
        def __init__(self, strategy: object) -> None:
            self._distribute_strategy = strategy
            self.built = False
            self.steps_per_execution = 4

        def _maybe_symbolic_build(self, iterator: object = None, data_batch: object = None) -> None:
            self.built = iterator is None and data_batch is None

        def fit(self, epochs: int = 1) -> int:
            return epochs

        def _make_function(self, step: object) -> object:
            return step

        def _get_metrics_result_or_logs(self, logs: object) -> object:
            return logs

    module: Any = ModuleType("trainer")
    module.TensorFlowTrainer = TensorFlowTrainer
    module.reduce_per_replica = lambda values, _strategy, reduction: (values, reduction)
    module.tf = SimpleNamespace(__version__="2.19.0")
    return module


@pytest.fixture
def keras_version() -> Iterator[ModuleType]:
    """Puts a version module in the place where Keras has its own, and takes it away again."""
    before = sys.modules.get("keras.src.version")
    module = ModuleType("keras.src.version")
    sys.modules["keras.src.version"] = module
    yield module
    del sys.modules["keras.src.version"]
    if before is not None:
        sys.modules["keras.src.version"] = before


@pytest.mark.parametrize("version", ["3.10.0", "3.16.0"])
def test_an_untried_keras_refuses_several_workers_and_says_what_to_install(
    keras_version: Any, version: str
) -> None:
    keras_version.__version__ = version
    module, link = trainer_module(), Said()
    keras3.patch(module, link)
    with pytest.raises(keras3.UnsupportedKeras, match="pip install"):
        module.TensorFlowTrainer(CollectiveAllReduceStrategy(2))._maybe_symbolic_build()
    assert [message["error"]["kind"] for message in link.messages] == ["unsupported"]
    assert version in link.messages[0]["error"]["message"]


@pytest.mark.parametrize("version", ["3.10.0", "3.15.1"])
@pytest.mark.parametrize("strategy", [None, object(), CollectiveAllReduceStrategy(1)])
def test_one_process_runs_keras_own_code_with_any_version(
    keras_version: Any, version: str, strategy: object
) -> None:
    keras_version.__version__ = version
    module, link = trainer_module(), Said()
    keras3.patch(module, link)
    model = module.TensorFlowTrainer(strategy)
    model._maybe_symbolic_build()
    assert model.built
    assert model._make_function("step") == "step"
    assert model._get_metrics_result_or_logs({"loss": 1}) == {"loss": 1}
    assert module.reduce_per_replica(5, strategy, "auto") == (5, "auto")
    assert link.messages == []


class MirroredStrategy:
    """As TensorFlow's shows itself, on this many devices."""

    def __init__(self, replicas: int) -> None:
        self.num_replicas_in_sync = replicas
        self.extended = SimpleNamespace(_in_multi_worker_mode=lambda: False)


@pytest.mark.parametrize(("replicas", "said"), [(1, 0), (2, 1)])
def test_several_steps_under_mirrored_are_patched_once_where_there_are_several_replicas(
    keras_version: Any, capsys: pytest.CaptureFixture[str], replicas: int, said: int
) -> None:
    keras_version.__version__ = "3.15.1"
    module = trainer_module()
    keras3.patch(module, Link(None))
    model = module.TensorFlowTrainer(MirroredStrategy(replicas))
    assert [model._make_function("step"), model._make_function("step")] == ["step", "step"]
    model.steps_per_execution = 1
    assert model._make_function("step") == "step"
    assert capsys.readouterr().err.count("was patched for MirroredStrategy") == said


def test_concat_and_first_stay_keras_own_also_with_several_workers(keras_version: Any) -> None:
    keras_version.__version__ = "3.15.1"
    module = trainer_module()
    keras3.patch(module, Said())
    for reduction in ("concat", "first"):
        assert module.reduce_per_replica(5, CollectiveAllReduceStrategy(2), reduction) == (5, reduction)


class ParameterServerStrategyV2:
    """Known by its name only."""


def test_fit_under_a_parameter_server_says_what_to_do_before_anything_is_built(
    keras_version: ModuleType,
) -> None:
    keras_version.__version__ = "3.15.1"  # type: ignore[attr-defined]
    trainer, link = trainer_module(), Said()
    keras3.patch(trainer, link)
    with pytest.raises(keras3.UnsupportedKeras, match=r"in no version: write `keras: 2` under `run:`"):
        trainer.TensorFlowTrainer(ParameterServerStrategyV2()).fit(epochs=2)
    assert link.messages[0]["error"]["kind"] == "unsupported"
    assert trainer.TensorFlowTrainer(None).fit(epochs=2) == 2

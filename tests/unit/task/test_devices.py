"""What is handed over to TensorFlow's strategies, with stand-ins for its modules; the real ones are contract tests."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.link import Link
from orchestrator.task.strategies import devices


class Implementation(enum.Enum):
    AUTO = "AUTO"
    RING = "RING"


class Options:
    def __init__(
        self,
        timeout_seconds: float | None = None,
        implementation: Any = Implementation.AUTO,
        bytes_per_pack: int = 0,
    ) -> None:
        self.implementation = (
            Implementation(implementation) if isinstance(implementation, str) else implementation
        )
        self.timeout_seconds, self.bytes_per_pack = timeout_seconds, bytes_per_pack


def workers_module() -> Any:
    class CollectiveAllReduceStrategy:
        def __init__(self, cluster_resolver: Any = None, communication_options: Any = None) -> None:  # noqa: ARG002
            self.options = communication_options

    class Experimental(CollectiveAllReduceStrategy):
        def __init__(self, communication: Implementation = Implementation.AUTO) -> None:
            super().__init__(None, Options(implementation=communication))

    class CollectiveAllReduceExtended:
        def __init__(self, kind: str) -> None:
            self.kind = kind

        def _initialize_local_devices(self, resolver: Any, worker_device: str) -> Any:  # noqa: ARG002
            return (f"{worker_device}/device:{self.kind}:0",), self.kind

    return SimpleNamespace(
        CollectiveAllReduceStrategy=CollectiveAllReduceStrategy,
        Experimental=Experimental,
        CollectiveAllReduceExtended=CollectiveAllReduceExtended,
        collective_util=SimpleNamespace(Options=Options, CommunicationImplementation=Implementation),
    )


def patched(**options: Any) -> Any:
    module = workers_module()
    devices.patches(options, Link(None))[devices.MIRRORED_WORKERS](module)
    return module


def test_a_strategy_without_options_gets_the_plans(capsys: pytest.CaptureFixture[str]) -> None:
    module = patched(communication="ring", communication_timeout_s=90.0, bytes_per_pack=2048)
    for strategy in (module.CollectiveAllReduceStrategy(), module.Experimental()):
        given = strategy.options
        assert (given.implementation, given.timeout_seconds, given.bytes_per_pack) == (
            Implementation.RING,
            90.0,
            2048,
        )
    assert "communicates by RING, timeout 90 s, at least 2048 bytes a collective" in capsys.readouterr().err


def mirrored_strategy(options: dict[str, Any], *, own_ops: object = None, packs: bool = True) -> Options:
    """Return the options of a MirroredStrategy's collectives, patched for these options of the plan."""

    class MirroredExtended:
        def __init__(self) -> None:
            self._communication_options = Options(implementation=Implementation.RING)
            self._cross_device_ops = own_ops

        def _make_collective_ops_with_fallbacks(self) -> Any:
            return SimpleNamespace(_options=self._communication_options) if packs else SimpleNamespace()

    module: Any = SimpleNamespace(MirroredExtended=MirroredExtended)
    told = {"tf_class": "MirroredStrategy", **options}
    devices.patches(told, Link(None))[devices.MIRRORED](module)
    extended = MirroredExtended()
    extended._make_collective_ops_with_fallbacks()
    return extended._communication_options


def test_mirrored_collectives_get_the_plans_packs_and_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    given = mirrored_strategy({"communication_timeout_s": 90.0, "bytes_per_pack": 2048})
    assert (given.timeout_seconds, given.bytes_per_pack) == (90.0, 2048)
    assert "MirroredStrategy communicates by RING, timeout 90 s, at least 2048" in capsys.readouterr().err
    given = mirrored_strategy({"bytes_per_pack": 2048})
    assert (given.timeout_seconds, given.bytes_per_pack) == (None, 2048)


def test_mirrored_collectives_that_have_no_such_options_are_left_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = mirrored_strategy({"bytes_per_pack": 2048}, own_ops=object())
    assert given.bytes_per_pack == 0
    assert "the script gives cross_device_ops itself; the plan's options of coll" in capsys.readouterr().err
    assert mirrored_strategy({"bytes_per_pack": 2048}, packs=False).bytes_per_pack == 0
    assert "it uses SimpleNamespace" in capsys.readouterr().err


def test_a_scripts_own_options_win(capsys: pytest.CaptureFixture[str]) -> None:
    module, own = patched(communication_timeout_s=90.0), Options(timeout_seconds=5.0)
    assert module.CollectiveAllReduceStrategy(communication_options=own).options is own
    assert module.Experimental(Implementation.RING).options.timeout_seconds is None
    assert "the script gives communication_options itself" in capsys.readouterr().err


def test_a_worker_without_gpus_has_a_replica_on_each_logical_cpu() -> None:
    extended = patched(replicas_on_cpu=3).CollectiveAllReduceExtended
    job = "/job:worker/task:0"
    assert extended("CPU")._initialize_local_devices(None, job) == (
        tuple(f"{job}/device:CPU:{i}" for i in range(3)),
        "CPU",
    )
    assert extended("GPU")._initialize_local_devices(None, job) == ((f"{job}/device:GPU:0",), "GPU")


@pytest.mark.parametrize("options", [{}, {"communication": "auto"}, {"replicas_on_cpu": 1}, {"keras": 2}])
def test_nothing_is_changed_where_nothing_is_asked(options: dict[str, Any]) -> None:
    assert devices.patches(options, Link(None)) == {}


def test_central_storage_computes_on_all_logical_cpus_unless_the_script_names_devices() -> None:
    class Extended:
        def _initialize_local(self, compute: Any, parameter: Any, cluster_resolver: Any = None) -> None:  # noqa: ARG002
            self.compute = compute

    module: Any = SimpleNamespace(ParameterServerStrategyExtended=Extended)
    devices.patches({"replicas_on_cpu": 2}, Link(None))[devices.CENTRAL_STORAGE](module)
    extended = Extended()
    extended._initialize_local(None, None)
    assert extended.compute == ("/device:CPU:0", "/device:CPU:1")
    extended._initialize_local(["/gpu:0"], None)
    assert extended.compute == ["/gpu:0"]


def test_gpus_are_hidden_where_replicas_are_asked_for_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[tuple[Any, ...]] = []
    config = SimpleNamespace(
        list_physical_devices=lambda kind: [kind],
        set_visible_devices=lambda *given: done.append(given),
        set_logical_device_configuration=lambda *given: done.append(given),
        LogicalDeviceConfiguration=lambda: "one",
    )
    devices.split_cpu(SimpleNamespace(config=config), 2, Link(None))
    assert done == [([], "GPU"), ("CPU", ["one", "one"])]
    assert "as 2 devices" in capsys.readouterr().err


def test_replicas_that_come_too_late_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_given: Any) -> None:
        raise RuntimeError("Physical devices cannot be modified after being initialized")

    config = SimpleNamespace(
        list_physical_devices=lambda kind: [kind] if kind == "CPU" else [],
        set_logical_device_configuration=refuse,
        LogicalDeviceConfiguration=lambda: "one",
    )
    devices.split_cpu(SimpleNamespace(config=config), 2, Link(None))
    assert "came too late" in capsys.readouterr().err

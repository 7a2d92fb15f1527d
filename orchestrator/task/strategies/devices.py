"""Applies the plan's settings for devices and collectives to strategies that a script builds without arguments.

`replicas_on_cpu: N` splits the CPU into N logical devices. `MirroredStrategy()` uses all of them by itself;
CentralStorageStrategy and MultiWorkerMirroredStrategy would use only the first, so they are patched.
`communication`, its timeout and `bytes_per_pack` become the default of MultiWorkerMirroredStrategy's
`communication_options`. MirroredStrategy takes no such argument, but has such options: they are set where it makes the
collectives itself, which it does unless the script gives it `cross_device_ops`.
Arguments that the script passes itself always take precedence.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from orchestrator.task.link import Link

MIRRORED_WORKERS = "tensorflow.python.distribute.collective_all_reduce_strategy"
MIRRORED = "tensorflow.python.distribute.mirrored_strategy"
CENTRAL_STORAGE = "tensorflow.python.distribute.parameter_server_strategy"


def patches(options: Mapping[str, Any], link: Link) -> dict[str, Callable[[ModuleType], None]]:
    """Return the patches for TensorFlow's modules by module name.

    They must be applied after the release, because only the release decides which GPUs this process sees.
    """
    replicas = int(options.get("replicas_on_cpu") or 0)
    by_module: dict[str, Callable[[ModuleType], None]] = {}

    def mirrored_workers(module: ModuleType) -> None:
        if replicas > 1:
            _let_workers_use_cpus(module, replicas)
        if _communication_given(options):
            _hand_over_communication(module, options, link)

    def mirrored(module: ModuleType) -> None:
        _set_collectives_options(module, options, link)

    def central_storage(module: ModuleType) -> None:
        _let_central_storage_use_cpus(module, replicas)

    def tensorflow(module: ModuleType) -> None:
        split_cpu(module, replicas, link)

    if replicas > 1:
        by_module["tensorflow"] = tensorflow
        by_module[CENTRAL_STORAGE] = central_storage
    if replicas > 1 or _communication_given(options):
        by_module[MIRRORED_WORKERS] = mirrored_workers
    if _communication_given(options) and options.get("tf_class") == "MirroredStrategy":
        by_module[MIRRORED] = mirrored
    return by_module


def split_cpu(tf: Any, replicas: int, link: Link) -> None:
    """Split the CPU into logical devices and hide all GPUs. Call it before TensorFlow's first operation."""
    try:
        if tf.config.list_physical_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    except RuntimeError as e:
        link.say("replicas-on-cpu", f"replicas_on_cpu came too late, TensorFlow has begun to work: {e}")
        return
    link.say("replicas-on-cpu", f"the CPU is shown to TensorFlow as {replicas} devices, one for each replica")


def _let_workers_use_cpus(module: Any, replicas: int) -> None:
    original = module.CollectiveAllReduceExtended._initialize_local_devices

    def _initialize_local_devices(self: Any, cluster_resolver: Any, worker_device: str) -> Any:
        devices, kind = original(self, cluster_resolver, worker_device)
        if kind == "CPU" and len(devices) == 1:
            devices = tuple(f"{worker_device}/device:CPU:{i}" for i in range(replicas))
        return devices, kind

    module.CollectiveAllReduceExtended._initialize_local_devices = _initialize_local_devices


def _let_central_storage_use_cpus(module: Any, replicas: int) -> None:
    extended = module.ParameterServerStrategyExtended
    original = extended._initialize_local

    def _initialize_local(
        self: Any, compute_devices: Any, parameter_device: Any, cluster_resolver: Any = None
    ) -> None:
        if compute_devices is None:
            compute_devices = tuple(f"/device:CPU:{i}" for i in range(replicas))
        original(self, compute_devices, parameter_device, cluster_resolver=cluster_resolver)

    extended._initialize_local = _initialize_local


def _communication_given(options: Mapping[str, Any]) -> bool:
    given = options.get("communication_timeout_s") or options.get("bytes_per_pack")
    return options.get("communication") not in (None, "auto") or bool(given)


def _details(options: Mapping[str, Any]) -> str:
    timeout_s, pack_bytes = options.get("communication_timeout_s"), options.get("bytes_per_pack")
    timeout = f", timeout {timeout_s:g} s" if timeout_s else ""
    return timeout + (f", at least {pack_bytes} bytes a collective" if pack_bytes else "")


def _set_collectives_options(module: Any, options: Mapping[str, Any], link: Link) -> None:
    """Patch the code in which MirroredStrategy makes its collectives, which share the strategy's options."""
    extended = module.MirroredExtended
    original = extended._make_collective_ops_with_fallbacks

    def _make_collective_ops_with_fallbacks(self: Any) -> Any:
        made: Any = original(self)
        own = self._cross_device_ops is not None
        ours = self._communication_options
        held = getattr(made, "_options", None) is ours
        if own or not held:
            why = "the script gives cross_device_ops itself" if own else f"it uses {type(made).__name__}"
            link.say("communication", f"{why}; the plan's options of collectives are not used")
            return made
        if options.get("communication_timeout_s"):
            ours.timeout_seconds = options["communication_timeout_s"]
        if options.get("bytes_per_pack"):
            ours.bytes_per_pack = options["bytes_per_pack"]
        link.say(
            "communication",
            f"MirroredStrategy communicates by {ours.implementation.value}{_details(options)}",
        )
        return made

    extended._make_collective_ops_with_fallbacks = _make_collective_ops_with_fallbacks


def _hand_over_communication(module: Any, options: Mapping[str, Any], link: Link) -> None:
    """Patch the base of both strategy classes. The deprecated one always passes options, built from `communication`."""
    strategy = module.CollectiveAllReduceStrategy
    util = module.collective_util
    original = strategy.__init__
    implementation = str(options.get("communication") or "auto").upper()
    auto = util.CommunicationImplementation.AUTO

    @functools.wraps(original)
    def __init__(self: Any, cluster_resolver: Any = None, communication_options: Any = None) -> None:
        given = communication_options
        old_and_silent = (
            type(self) is not strategy and given is not None and given.implementation == auto
            and given.timeout_seconds is None and not given.bytes_per_pack
        )  # fmt: skip
        if given is None or old_and_silent:
            communication_options = util.Options(
                bytes_per_pack=int(options.get("bytes_per_pack") or 0),
                implementation=implementation,
                timeout_seconds=options.get("communication_timeout_s"),
            )
            link.say(
                "communication",
                f"MultiWorkerMirroredStrategy communicates by {implementation}{_details(options)}",
            )
        else:
            link.say(
                "communication",
                "the script gives communication_options itself; the plan's are not used",
            )
        original(self, cluster_resolver, communication_options)

    strategy.__init__ = __init__

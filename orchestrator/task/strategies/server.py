"""The process of a ps or a worker under ParameterServerStrategy: it runs TensorFlow's server instead of the script.

The chief's script drives it over the network. TensorFlow's own `join()` never returns and cannot be interrupted.
So the main thread waits in Python, where an order to stop reaches it at once.
"""

from __future__ import annotations

import os
import threading

from orchestrator.task.options import task_of
from orchestrator.task.strategies.part import StrategyPart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from orchestrator.both.script import Imports
    from orchestrator.task.link import Link


def wanted(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this task runs the server. A chief, an evaluator, or a run with `serve: false` runs the script."""
    task = task_of(environment)
    return bool(options.get("serve")) and task is not None and task[0] in options.get("served", ())


def imports(options: Mapping[str, Any]) -> Imports | None:
    """Return the imports of a server: it needs TensorFlow, whatever the script imports."""
    if not wanted(options):
        return None
    from orchestrator.both.script import Imports

    wanted_imports = Imports()
    wanted_imports.named.add("tensorflow")
    wanted_imports.sure.add("tensorflow")
    return wanted_imports


def begin(options: Mapping[str, Any], link: Link) -> None:
    """Serve if this task runs the server."""
    if wanted(options):
        serve(link)


def serve(link: Link) -> NoReturn:
    """Serve the task of TF_CONFIG until orch stops it (Stopped) or the shim ends.

    If the port is taken, TensorFlow raises its own error ("Could not start gRPC server").
    """
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster, kind, index = resolver.cluster_spec(), resolver.task_type, int(resolver.task_id)
    # Configure more threads than there are workers. Each worker may block one while it waits for a ps.
    config = tf.compat.v1.ConfigProto()
    needed = cluster.num_tasks("worker") + 1 if "worker" in cluster.jobs else 1
    if (os.cpu_count() or 1) < needed:
        config.inter_op_parallelism_threads = needed
    server = tf.distribute.Server(
        cluster,
        job_name=kind,
        task_index=index,
        protocol=resolver.rpc_layer or "grpc",
        config=config,
        start=True,
    )
    message = f"{kind}:{index} is served at {cluster.task_address(kind, index)}; the chief runs the script"
    link.say("serving", message)
    never = threading.Event()
    while server is not None:  # the server lives as long as this frame holds a reference to it
        never.wait()
    raise AssertionError("the server went away")


PART = StrategyPart(imports=imports, begin=begin)

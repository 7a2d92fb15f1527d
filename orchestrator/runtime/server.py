"""A parameter server's or a worker's process under ParameterServerStrategy: TensorFlow's server, and no script.

The chief's script drives it over the network. TensorFlow's own `join()` never returns and cannot be interrupted,
so the main thread waits in Python instead, where an order to stop reaches it at once.
"""

from __future__ import annotations

import os
import threading

from orchestrator.runtime.options import task_of
from orchestrator.runtime.part import Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from orchestrator.runtime.link import Link
    from orchestrator.runtime.script import Imports


def wanted(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this task is a server of ours. A chief, an evaluator, or `serve: false` run the script."""
    task = task_of(environment)
    return bool(options.get("serve")) and task is not None and task[0] in options.get("served", ())


def imports(options: Mapping[str, Any]) -> Imports | None:
    """A server needs TensorFlow, whatever its script imports."""
    if not wanted(options):
        return None
    from orchestrator.runtime.script import Imports

    found = Imports()
    found.named.add("tensorflow")
    found.sure.add("tensorflow")
    return found


def begin(options: Mapping[str, Any], link: Link) -> None:
    """Serve where this task is a server of ours."""
    if wanted(options):
        serve(link)


def serve(link: Link) -> NoReturn:
    """Serve the task of TF_CONFIG until an order to stop (Stopped), or the end of the shim.

    Raises: what TensorFlow raises where the port is taken ("Could not start gRPC server").
    """
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster, kind, index = resolver.cluster_spec(), resolver.task_type, int(resolver.task_id)
    server = tf.distribute.Server(
        cluster,
        job_name=kind,
        task_index=index,
        protocol=resolver.rpc_layer or "grpc",
        config=_configuration(tf, cluster),
        start=True,
    )
    message = f"{kind}:{index} is served at {cluster.task_address(kind, index)}; the chief runs the script"
    link.say("serving", message)
    never = threading.Event()
    while server is not None:  # it lives as long as this frame holds it
        never.wait()
    raise AssertionError("the server went away")


def _configuration(tf: Any, cluster: Any) -> Any:
    """At least one more thread than workers: each may block one while it waits for its share of a ps."""
    config = tf.compat.v1.ConfigProto()
    needed = cluster.num_tasks("worker") + 1 if "worker" in cluster.jobs else 1
    if (os.cpu_count() or 1) < needed:
        config.inter_op_parallelism_threads = needed
    return config


PART = Part(imports=imports, begin=begin)

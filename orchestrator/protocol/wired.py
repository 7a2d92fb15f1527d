"""Environment variables by which a run's processes find each other, besides those that begin with ORCH_.

A strategy gives them at the release. What a login leaves of another launcher under these names would be believed by
the task's libraries, so the shim takes it away; and what a strategy gives cannot be set in a spec.
"""

from __future__ import annotations

ALL = frozenset(
    (
        *("TF_CONFIG", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_CONTROLLER"),
        *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    )
)

"""The half of horovod.torch that needs no tensors: it has the library's core in common with horovod.tensorflow."""

from horovod.tensorflow import Sum, allreduce, broadcast, init, local_rank, local_size, rank, size

__all__ = ["Sum", "allreduce", "broadcast_object", "init", "local_rank", "local_size", "rank", "size"]


def broadcast_object(value, root_rank):
    """Return what rank 0 gave."""
    return broadcast(value, root_rank)

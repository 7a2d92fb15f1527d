"""init, rank, size, allreduce, broadcast: over sockets that meet at the rendezvous, as gloo's do.

DistributedGradientTape and broadcast_variables are made of these, for tensors as TensorFlow has them.
"""

import json
import os
import socket
import time
import urllib.error
import urllib.request

Sum = "sum"
_peers = None


class HorovodInternalError(RuntimeError):
    pass


def _number(name):
    return int(os.environ[f"HOROVOD_{name}"])


def rank():
    return _number("RANK")


def size():
    return _number("SIZE")


def local_rank():
    return _number("LOCAL_RANK")


def local_size():
    return _number("LOCAL_SIZE")


def cross_rank():
    return _number("CROSS_RANK")


def cross_size():
    return _number("CROSS_SIZE")


def init():
    """Meets all ranks in each of the three scopes, as Horovod does; connects in the first."""
    global _peers
    assert os.environ["HOROVOD_CONTROLLER"] == os.environ["HOROVOD_CPU_OPERATIONS"] == "gloo"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = json.dumps(server.getsockname()).encode()
        found = _meet("global", rank(), size(), address)
        if rank() == 0:
            _peers = [server.accept()[0].makefile("rw") for _ in range(size() - 1)]
        else:
            _peers = [socket.create_connection(json.loads(found[0])).makefile("rw")]
    hosts = _meet(f"local_{os.environ['HOROVOD_HOSTNAME']}", local_rank(), local_size(), b"%d" % rank())
    assert hosts[local_rank()] == b"%d" % rank()
    _meet(f"cross_{local_rank()}", cross_rank(), cross_size(), b"%d" % rank())
    allreduce(0.0, op=Sum)
    for scope, key in (("global", rank()), (f"cross_{local_rank()}", cross_rank())):
        _request("DELETE", scope, key)


def _meet(scope, mine, count, value):
    _request("PUT", scope, mine, value)
    found = []
    while len(found) < count:
        answer = _request("GET", scope, len(found))
        if answer is None:
            time.sleep(0.01)
        else:
            found.append(answer)
    return found


def _request(method, scope, key, value=None):
    at = f"{os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR']}:{os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
    try:
        request = urllib.request.Request(f"http://{at}/{scope}/{key}", value, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()
    except urllib.error.HTTPError as e:
        if e.code == 404:
            return None
        raise


def allreduce(tensor, op=Sum):
    """Return the sum over all ranks; `op` is Sum."""
    assert op == Sum
    return _together(tensor, sum)


def broadcast(tensor, root_rank):
    """Return the value of rank 0."""
    assert root_rank == 0
    return _together(tensor, lambda values: values[0])


def broadcast_variables(variables, root_rank):
    """Give every variable the value that it has on rank 0."""
    import numpy as np

    for variable in variables:
        found = broadcast(np.asarray(variable).tolist(), root_rank)
        variable.assign(np.asarray(found, variable.dtype.as_numpy_dtype))


class DistributedGradientTape:
    """A tape whose gradients are the means over all ranks."""

    def __init__(self, gradtape):
        self._tape = gradtape

    def gradient(self, target, sources):
        import numpy as np

        return [self._mean(np, gradient) for gradient in self._tape.gradient(target, sources)]

    def _mean(self, np, gradient):
        def combine(values):
            return (sum(np.asarray(value) for value in values) / size()).tolist()

        return np.asarray(_together(np.asarray(gradient).tolist(), combine), np.asarray(gradient).dtype)


def _together(value, combine):
    """Let rank 0 combine all values and send the result. A lost peer raises Horovod's error on every rank."""
    try:
        if rank() == 0:
            value = combine([value, *(_hear(peer) for peer in _peers)])
        for peer in _peers:
            peer.write(json.dumps(value) + "\n")
            peer.flush()
        return value if rank() == 0 else _hear(_peers[0])
    except OSError as e:
        raise HorovodInternalError(f"[Connection closed by peer] {e}") from e


def _hear(peer):
    line = peer.readline()
    if not line:
        raise ConnectionError("end of file")
    return json.loads(line)

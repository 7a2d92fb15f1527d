"""What orch relies on of Horovod, as JSON on stdout; run by each Python that is to be compared."""

import http.client
import inspect
import json
import threading

from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http import http_server


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def conversation():
    """Two ranks that meet: what each request is answered by."""
    server = http_server.RendezvousHTTPServer(("127.0.0.1", 0), http_server.RendezvousHandler, 0)
    server.daemon_threads = True
    server.init([SlotInfo("a", rank, rank, 0, 2, 2, 1) for rank in range(2)])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for method, path, body in (
        ("GET", "/global/0", None),
        ("PUT", "/global/0", b"first"),
        ("GET", "/global/0", None),
        ("DELETE", "/global/0", None),
        ("GET", "/global/0", None),  # until all have deleted theirs
        ("DELETE", "/global/1", None),
        ("GET", "/global/0", None),
        ("PUT", "/local_a/1", b"second"),
        ("GET", "/local_a/1", None),
    ):
        connection = http.client.HTTPConnection(*server.server_address, timeout=10)
        connection.request(method, path, body)
        answer = connection.getresponse()
        yield [method, path, answer.status, answer.read().decode()]
        connection.close()


found = {
    "server": parameters(http_server.RendezvousHTTPServer),
    "init": parameters(http_server.RendezvousHTTPServer.init),
    "slot": parameters(SlotInfo),
    "conversation": list(conversation()),
}
if __name__ == "__main__":
    import horovod.tensorflow as hvd

    found["script"] = {
        name: parameters(getattr(hvd, name))
        for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    }
    found["allreduce"] = [name for name in parameters(hvd.allreduce) if name in ("tensor", "op")]
    found["broadcast"] = [name for name in parameters(hvd.broadcast) if name in ("tensor", "root_rank")]
    wanted = ("variables", "root_rank")
    found["broadcast_variables"] = [name for name in parameters(hvd.broadcast_variables) if name in wanted]
    found["tape"] = parameters(hvd.DistributedGradientTape)[:1]
    print(json.dumps(found))

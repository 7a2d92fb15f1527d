"""PUT, GET and DELETE of /scope/key; a scope of the plan is cleared when all its ranks have deleted their own key."""

import collections
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class RendezvousHandler(BaseHTTPRequestHandler):
    timeout = 3

    def do_PUT(self):
        _, scope, key = self.path.split("/")
        value = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.cache_lock:
            self.server.cache.setdefault(scope, {})[key] = value
        self._answer(200)

    def do_GET(self):
        _, scope, key = self.path.split("/")
        with self.server.cache_lock:
            value = self.server.cache.get(scope, {}).get(key)
        self._answer(404 if value is None else 200, value or b"")

    def do_DELETE(self):
        _, scope, key = self.path.split("/")
        with self.server.cache_lock:
            finished = self.server.finished_list[scope]
            finished.append(key)
            if self.server.scope_size[scope] == len(finished):
                self.server.cache.pop(scope, None)
        self._answer(200)

    def _answer(self, status, value=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)

    def log_message(self, format, *args):
        pass


class RendezvousHTTPServer(socketserver.ThreadingMixIn, HTTPServer):
    def __init__(self, addr, handler, verbose):
        super().__init__(addr, handler)
        self.cache_lock = threading.Lock()
        self.cache = {}
        self.verbose = verbose
        self.finished_list = collections.defaultdict(list)
        self.scope_size = {}

    def init(self, host_alloc_plan):
        for slot in host_alloc_plan:
            self.scope_size["global"] = slot.size
            self.scope_size["local_" + slot.hostname] = slot.local_size
            self.scope_size["cross_" + str(slot.local_rank)] = slot.cross_size

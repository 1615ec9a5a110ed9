"""Metadata servers of AWS (IMDSv2) and Google on one free port of loopback.

`notices` says what is asked for: ``action``, ``rebalance`` (JSON) and ``preempted``; ``delay_s``
holds every answer back. `log` has the paths of all requests.
"""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex

PATHS = {
    "/latest/meta-data/spot/instance-action": "action",
    "/latest/meta-data/events/recommendations/rebalance": "rebalance",
}
MACHINE = {
    "/latest/meta-data/instance-type": "g5.xlarge",
    "/latest/meta-data/placement/availability-zone": "us-east-1b",
    "/computeMetadata/v1/instance/machine-type": "projects/7/machineTypes/g2-standard-4",
    "/computeMetadata/v1/instance/zone": "projects/7/zones/us-central1-a",
}


@dataclass
class Metadata:
    """What the servers say."""

    host: str = ""
    notices: dict = field(default_factory=dict)
    delay_s: float = 0.0
    log: list = field(default_factory=list)
    tokens: set = field(default_factory=set)

    def answer(self, path, headers):
        """Return status and text of the answer to one request, as the clouds give it."""
        self.log.append(path)
        time.sleep(self.delay_s)
        if path == "/latest/api/token":
            if "X-aws-ec2-metadata-token-ttl-seconds" not in headers:
                return 400, ""
            token = token_hex(8)
            self.tokens.add(token)
            return 200, token
        if (machine := MACHINE.get(path)) is not None and path.startswith("/computeMetadata"):
            return (200, machine) if headers.get("Metadata-Flavor") == "Google" else (403, "")
        if name := PATHS.get(path) or (machine and path):
            if headers.get("X-aws-ec2-metadata-token") not in self.tokens:
                return 401, ""
            if machine is not None:
                return 200, machine
            notice = self.notices.get(name)
            return (404, "") if notice is None else (200, json.dumps(notice))
        if path == "/computeMetadata/v1/instance/preempted":
            if headers.get("Metadata-Flavor") != "Google":
                return 403, ""
            return 200, json.dumps(bool(self.notices.get("preempted"))).upper()
        return 404, ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # an answer that is held back is waited for by nobody

    def handle_error(self, *_):
        """Say nothing of clients that have gone away."""


@contextmanager
def metadata_server():
    """Serve until the block ends; yield what it says, whose `host` is its address."""
    metadata = Metadata()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, text = metadata.answer(self.path.partition("?")[0], self.headers)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_PUT = do_GET

        def log_message(self, *_):
            """Say nothing."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        host, port = server.server_address
        metadata.host = f"{host}:{port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield metadata
        finally:
            server.shutdown()
            thread.join()

"""A receiver of OpenTelemetry on loopback, which parses what is sent to it by OTLP over HTTP."""

import gzip
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Received:
    """What was received; *url* is the address to send it to."""

    url: str = ""
    spans: list = field(default_factory=list)
    metrics: dict = field(default_factory=dict)  # the last of each name
    resources: list = field(default_factory=list)

    def take(self, path, body):
        """Parse one request; return the status of the answer."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(values(resource.resource.attributes))
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resources.append(values(resource.resource.attributes))
                for scope in resource.scope_metrics:
                    self.metrics |= {each.name: each for each in scope.metrics}
        else:
            return 404
        return 200


def values(attributes):
    """Return the attributes of a message as a dictionary."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def otlp_receiver():
    """Receive until the block ends; yield what was received."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            status = received.take(self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()

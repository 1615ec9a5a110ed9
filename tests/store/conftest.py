"""A web server on loopback."""

import http.server
import threading
from contextlib import ExitStack

import pytest


@pytest.fixture
def serve(monkeypatch):
    """Start a server for a request handler; returns its address. It ends with the test."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ExitStack() as stack:

        def start(handler):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            stack.enter_context(server)
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start

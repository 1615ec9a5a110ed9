"""The web server of a dashboard: static files, and the data of the pages.

```
GET /                                       the page; it loads page.css, common.js, map.js, page.js
GET /status.json?stage=S                    progress of all steps, with details of step S
GET /layout.json?stage=S                    layout of the map of step S
GET /cells.bin?stage=S                      cell of each task in the map of step S
GET /map.bin?stage=S&since=VERSION          states of all tasks, or only the states that changed
GET /brief.json?stage=S&number=N            facts about task N, from memory only
GET /task.json?stage=S&number=N             all facts about task N, read from the ledger
GET /layers                                 redirects to a viewer with all volumes of the run
GET /health                                 version and resident memory; does not read the run
```

A dashboard of a prefix shows all runs below the prefix, and has these addresses:

```
GET /                                       page with a table of the runs; it loads runs.js
GET /runs.json                              status of all runs
GET /runs/NAME/                             page of the run NAME
GET /runs/NAME/status.json?stage=S          data of the run NAME; likewise the other files above
GET /health                                 version and resident memory; does not read the runs
```

The server answers only GET and HEAD, and does not change the run. If it listens on a loopback
address, it answers only requests to loopback host names, so that a page of another site cannot read
the run through DNS rebinding.
"""

from __future__ import annotations

import errno
import gzip
import json
import logging
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from chunkflow_py.core.host_memory import resident_bytes
from chunkflow_py.errors import ChunkflowError, GeometryError, OptionError, VolumeError
from chunkflow_py.monitor.dashboard.pool_watch import PoolWatch
from chunkflow_py.store.network_reach import asks_loopback, is_loopback
from chunkflow_py.store.store_address import public_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.monitor.dashboard.run_watch import RunWatch
    from chunkflow_py.ops.viewing.server import ViewerServer

logger = logging.getLogger(__name__)

_RUN_PAGE = ("index.html", "page.css", "common.js", "page.js", "map.js")
_POOL_PAGE = ("runs.html", "page.css", "common.js", "runs.js")
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
# The page loads nothing from other hosts and runs no inline code: text of a task cannot run.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_LEAST = 1000  # bytes; longer responses are compressed
_JSON, _BYTES = "application/json", "application/octet-stream"


class DashboardServer:
    """Serves the dashboard of one run, or of the runs of a prefix, from a thread.

    Args:
        watch: data of the run or of the runs to show.
        bind_address: address to listen on; with 127.0.0.1, only this machine can connect.
        port: port to listen on; 0 selects a free port.
    """

    def __init__(
        self, watch: RunWatch | PoolWatch, bind_address: str = "127.0.0.1", port: int = 0
    ) -> None:
        """Start the server.

        Raises:
            VolumeError: the server cannot listen on the address and port.
        """
        self._watch = watch
        kind = _Server6 if ":" in bind_address else _Server
        try:
            self._server = kind((bind_address, port), _Handler)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
            remedy = (
                "another --port, or leave --port out to use the default"
                if is_port
                else "a --bind-address of this machine"
            )
            msg = f"cannot listen on {bind_address}:{port}: {reason}; give {remedy}"
            raise VolumeError(msg) from error
        self._server.watch = watch
        self._server.viewers = _Viewers(bind_address)
        self._server.is_private = is_loopback(bind_address)
        host = f"[{bind_address}]" if ":" in bind_address else bind_address
        self.url = f"http://{host}:{self._server.server_port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="dashboard", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the server, and close the connection to the queue."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server.viewers.stop()
        self._watch.close()


class _Viewers:
    """Neuroglancer viewers of the volumes of a run, started at the first request.

    Args:
        bind_address: address that the viewer's server listens on, at any free port.
    """

    def __init__(self, bind_address: str) -> None:
        self._bind_address = bind_address
        self._server: ViewerServer | None = None
        self._urls: dict[tuple[str, ...], str] = {}
        self._lock = threading.Lock()

    def url(self, addresses: Sequence[str]) -> str:
        """Return the address of a viewer for the volumes at *addresses*.

        Volumes that do not exist yet or cannot be shown are left out.

        Raises:
            OptionError: none of the volumes can be shown.
            MissingExtraError: neuroglancer is not installed.
        """
        from chunkflow_py.ops.viewing.server import ViewerServer, can_show, layer_names

        with self._lock:
            shown = tuple(filter(can_show, addresses))
            if not shown:
                msg = (
                    "Neuroglancer can show none of the volumes of this run "
                    f"({', '.join(addresses) or 'the run has no volumes'}): a volume must exist "
                    "and be OME-Zarr, precomputed or N5"
                )
                raise OptionError(msg)
            if self._server is None:
                self._server = ViewerServer(self._bind_address)
            if shown not in self._urls:
                self._urls[shown] = self._server.show({}, volumes=layer_names(shown))
            return self._urls[shown]

    def stop(self) -> None:
        """Stop the viewer's server, if it was started."""
        if self._server is not None:
            self._server.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    watch: RunWatch | PoolWatch
    viewers: _Viewers
    is_private: bool


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 60
    server_version, sys_version = "chunkflow", ""

    def do_HEAD(self) -> None:
        """Send the response to GET without its body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Send the response to GET; an error is sent as JSON."""
        asked = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        if self.server.is_private and not asks_loopback(self.headers.get("Host", "")):
            self._fail(
                HTTPStatus.FORBIDDEN,
                "this server does not answer to this host name; use 127.0.0.1 or localhost",
            )
            return
        try:
            if asked.path == "/health":
                memory = resident_bytes()
                self._send_json({"version": version("chunkflow_py"), "memory_bytes": memory})
            elif isinstance(self.server.watch, PoolWatch):
                self._answer_pool(self.server.watch, asked.path, query)
            else:
                self._answer(self.server.watch, asked.path, query)
        except (OptionError, GeometryError) as error:
            self._fail(HTTPStatus.NOT_FOUND, str(error))
        except ValueError as error:
            self._fail(HTTPStatus.BAD_REQUEST, str(error))
        except ChunkflowError as error:
            logger.warning("%s", error)
            self._fail(HTTPStatus.BAD_GATEWAY, str(error))

    def _answer_pool(self, pool: PoolWatch, path: str, query: dict[str, str]) -> None:
        if path == "/runs.json":
            self._send_json(pool.runs())
        elif path.startswith("/runs/"):
            name, slash, rest = path.removeprefix("/runs/").partition("/")
            if slash:
                self._answer(pool.watch(unquote(name)), f"/{rest}", query)
            else:  # the links of the page are relative
                place = {"Location": f"/runs/{quote(unquote(name), safe='')}/"}
                self._send(b"", "text/plain", place, HTTPStatus.FOUND)
        elif not self._sent_file(path, _POOL_PAGE):
            self._fail(HTTPStatus.NOT_FOUND, f"there is no page {path}")

    def _answer(self, watch: RunWatch, path: str, query: dict[str, str]) -> None:
        stage = query.get("stage", "")
        if path == "/status.json":
            has_viewer = find_spec("neuroglancer") is not None
            self._send_json(watch.status(stage) | {"has_viewer": has_viewer})
        elif path == "/layout.json":
            self._send_json(watch.layout(stage))
        elif path == "/cells.bin":
            self._send(watch.cells(stage), _BYTES)
        elif path == "/map.bin":
            number, is_all, data = watch.map(stage, int(query.get("since", "0")))
            more = {"X-Version": str(number), "X-Whole": str(int(is_all))}
            self._send(data, _BYTES, more)
        elif path == "/layers":
            place = {"Location": self.server.viewers.url(watch.volumes())}
            self._send(b"", "text/plain", place, HTTPStatus.FOUND)
        elif path == "/brief.json":
            self._send_json(watch.brief(stage, int(query.get("number", "-1"))))
        elif path == "/task.json":
            self._send_json(watch.task(stage, int(query.get("number", "-1"))))
        elif not self._sent_file(path, _RUN_PAGE):
            self._fail(HTTPStatus.NOT_FOUND, f"there is no page {path}")

    def _sent_file(self, path: str, names: Sequence[str]) -> bool:
        # *names* are the files of a page; the path / is the first of these files.
        name = names[0] if path == "/" else path.removeprefix("/")
        if name not in names[1:] and path != "/":
            return False
        kind = f"{_KINDS[name.rpartition('.')[2]]}; charset=utf-8"
        self._send(files(__package__).joinpath("page", name).read_bytes(), kind)
        return True

    def _send_json(self, answer: Any) -> None:
        self._send(json.dumps(public_json(answer)).encode(), _JSON)

    def _fail(self, status: HTTPStatus, why: str) -> None:
        self._send(json.dumps(public_json({"error": why})).encode(), _JSON, status=status)

    def _send(
        self,
        data: bytes,
        kind: str,
        more: dict[str, str] | None = None,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        headers = {
            "Content-Type": kind,
            "Cache-Control": "no-store",
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        } | (more or {})
        if len(data) >= _LEAST and "gzip" in self.headers.get("Accept-Encoding", ""):
            data = gzip.compress(data, 1, mtime=0)
            headers["Content-Encoding"] = "gzip"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *values: Any) -> None:
        """Log a request at debug level."""
        logger.debug(format, *values)

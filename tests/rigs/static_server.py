"""A folder as a web server shows it to Neuroglancer: ranges, any origin, gzipped files as such."""

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "*",
    "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
    "Access-Control-Expose-Headers": "Content-Range, Content-Length, Content-Encoding",
    "Accept-Ranges": "bytes",
}


class FolderHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD with the files of a folder.

    Where ``name`` is missing and ``name.gz`` is there, the latter is sent as ``name`` with
    ``Content-Encoding: gzip``, as cloud-files and igneous lay files out on disks.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path

    def do_GET(self):
        """Send a file, or a range of it."""
        path = self.folder / self.path.partition("?")[0].strip("/")
        encoded = path.with_name(path.name + ".gz")
        inside = path.resolve().is_relative_to(self.folder.resolve())
        if inside and path.is_file():
            self.send(path.read_bytes())
        elif inside and encoded.is_file():
            self.send(encoded.read_bytes(), {"Content-Encoding": "gzip"})
        else:
            self.answer(404, b"")

    do_HEAD = do_GET

    def do_OPTIONS(self):
        """Allow what a page of another origin asks for."""
        self.answer(204, b"")

    def send(self, content, headers=()):
        """Send what of *content* the request asks for."""
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self.answer(200, content, headers)
            return
        first, last = wanted.groups()
        start = int(first) if first else max(0, len(content) - int(last))
        stop = min(len(content), int(last) + 1) if first and last else len(content)
        if start >= stop:
            self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        place = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        self.answer(206, content[start:stop], dict(headers) | place)

    def answer(self, status, content, headers=()):
        """Send a whole answer."""
        self.send_response(status)
        length = {} if status == 204 else {"Content-Length": str(len(content))}
        for name, value in (HEADERS | length | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def static_server(folder):
    """Serve *folder* on a free port of loopback; yield the address."""
    handler = type("Handler", (FolderHandler,), {"folder": Path(folder)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

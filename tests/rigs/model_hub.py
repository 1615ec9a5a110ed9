"""A hub of models on loopback, as huggingface_hub calls it, and a web server of whole files."""

import hashlib
import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from urllib.parse import unquote

from rigs.static_server import FolderHandler

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "lab/membranes"


class Served:
    """What a server sends, what it was asked for, and how it fails.

    Attributes:
        files: content by path; of a hub, below ``owner/name/resolve/commit/``.
        commits: of a hub, commit by branch.
        asked: method and path of each request.
        cut: number of the next answers to GET that end after half of the content.
        status: status of all answers, if not that of the files.
        states: SHA-256 that a hub states, if not that of the content.
        sent_on_to: address of a server to which a hub redirects, with a signature in the query.
        half_sent: set when half of an answer has been sent, if *wait* is not ``None``.
        wait: event for which a server waits before the second half.
        address: of the server, such as ``http://127.0.0.1:4000``.
    """

    def __init__(self, files, commits=()):
        self.files, self.commits = dict(files), dict(commits)
        self.asked, self.cut, self.status, self.states = [], 0, None, None
        self.sent_on_to = ""
        self.half_sent, self.wait = threading.Event(), None
        self.address = ""


class Handler(FolderHandler):
    """Answers GET and HEAD with the files of a `Served`."""

    served: Served

    def do_GET(self):
        """Send a file, or an error as a hub describes it."""
        path = unquote(self.path.partition("?")[0]).strip("/")
        self.served.asked.append((self.command, path))
        if self.served.status is not None:
            self.answer(self.served.status, b"")
            return
        owner, name, *rest = [*path.split("/", 2), "", ""][:3]
        if not self.served.commits:
            content, headers = self.served.files.get(path), {}
            code = ""
        else:
            content, headers, code = self.from_hub(f"{owner}/{name}", rest[0])
        if content is not None and self.served.sent_on_to:
            self.send_on(content, headers, path)
        elif content is None:
            self.answer(404, b"", {"X-Error-Code": code} if code else {})
        else:
            self.send(content, headers)

    do_HEAD = do_GET

    def from_hub(self, repository, rest):
        """Return content, headers and error code for ``resolve/revision/path``."""
        _, revision, path = [*rest.split("/", 2), "", ""][:3]
        served = self.served
        if not any(each.startswith(f"{repository}/") for each in served.files):
            return None, {}, "RepoNotFound"
        commit = served.commits.get(revision, revision)
        if commit not in served.commits.values():
            return None, {}, "RevisionNotFound"
        content = served.files.get(f"{repository}/resolve/{commit}/{path}")
        if content is None:
            return None, {}, "EntryNotFound"
        digest = served.states or hashlib.sha256(content).hexdigest()
        return content, {"X-Repo-Commit": commit, "ETag": f'"{digest}"'}, ""

    def send_on(self, content, headers, path):
        """Redirect to a server of large files, as hubs do."""
        location = f"{self.served.sent_on_to}/{path}?X-Amz-Signature=5ecret"
        linked = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": headers.pop("ETag")}
        self.answer(302, b"", headers | linked | {"Location": location})

    def answer(self, status, content, headers=()):
        """Send an answer, or half of it."""
        half = content[: len(content) // 2]
        is_cut = self.command == "GET" and content and self.served.cut > 0
        if not is_cut and (self.served.wait is None or self.command != "GET"):
            super().answer(status, content, headers)
            return
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(half)
        self.wfile.flush()
        if is_cut:
            self.served.cut -= 1
            self.close_connection = True
            return
        self.served.half_sent.set()
        self.served.wait.wait(30)
        self.wfile.write(content[len(half) :])


@contextmanager
def serving(served):
    """Serve files on a free port of loopback, which `Served.address` then names."""
    handler = type("Handler", (Handler,), {"served": served})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # clients are killed on purpose
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        served.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield served
        finally:
            if served.wait is not None:
                served.wait.set()
            server.shutdown()
            thread.join()


def hub_of(**files):
    """Return a hub with one repository, whose branch main points to `COMMIT`.

    Args:
        files: content by name; two underscores stand for a slash, and the last one for a dot.
    """
    names = {name: name.replace("__", "/").replace("_", ".") for name in files}
    return Served(
        {f"{REPOSITORY}/resolve/{COMMIT}/{names[name]}": files[name] for name in files},
        {"main": COMMIT},
    )

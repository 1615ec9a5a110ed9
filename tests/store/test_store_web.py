"""Tests of chunkflow_py.store.web."""

import functools
import gzip
import http.server

import pytest
from rigs import servers
from rigs.s3 import SECRET

from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.store.retry import Manners

QUICK = Manners(connect_s=1, stall_s=1, budget_s=2, unreachable_s=1)


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files whole, ignoring ranges; keeps what was asked."""

    asked = []

    def send_head(self):
        self.asked.append({name.lower(): value for name, value in self.headers.items()})
        return super().send_head()

    def log_message(self, *arguments):
        """Say nothing."""


class Packed(http.server.BaseHTTPRequestHandler):
    """Packs what it sends where that is allowed, and never tells its length."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        body = b"voxels" * 1000
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            self.send_header("Content-Encoding", "gzip")
            body = gzip.compress(body)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))

    do_HEAD = do_GET

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def web(tmp_path, serve):
    """Address of a plain web server, and the folder that it serves."""
    (tmp_path / "em").mkdir()
    (tmp_path / "em" / "info").write_bytes(b"0123456789")
    Files.asked.clear()
    return serve(functools.partial(Files, directory=tmp_path)).partition("://")[2], tmp_path


def test_web(web):
    """A web server is read: whole objects, and ranges even where it knows none."""
    store = open_store(f"http://{web[0]}/em")
    assert store.get("info") == b"0123456789"
    assert store.get("none") is None
    assert store.size("info") == 10
    assert store.size("none") is None
    assert store.get_range("info", 3, 6) == b"345"
    assert store.get_range("info", -3, 0) == b"789"
    assert store.get_range("none", 3, 6) is None


@pytest.mark.aws
@pytest.mark.parametrize("s3", ["ministack"], indirect=True)  # moto signs in everyone who reads
def test_web_with_ranges(s3):
    """Where the server knows ranges, no more than the range is sent."""
    open_store(s3.url).put("block", bytes(100_000))
    store = open_store(f"{s3.endpoint}/{s3.bucket}/volume")
    with s3.faults() as faults:
        assert store.get_range("block", 10, 20) == bytes(10)
        (request,) = faults.log()
    sent = {name.lower(): value for name, value in request["headers"].items()}
    assert sent["range"] == "bytes=10-19"
    assert "authorization" not in sent


def test_web_is_read_only(web):
    """Writing and listing are refused in one sentence, before anything is sent."""
    store = open_store(f"http://{web[0]}/em/")
    for call in (
        lambda: store.put("info", b"x"),
        lambda: store.put_if_absent("new", b"x"),
        lambda: store.update("info", lambda old: b"x"),
        lambda: store.delete("info"),
        lambda: list(store.list()),
    ):
        with pytest.raises(VolumeError, match=f"cannot (write|list) http://{web[0]}/em: web serv"):
            call()
    assert not Files.asked
    assert (web[1] / "em" / "info").read_bytes() == b"0123456789"


def test_password_in_an_address(web):
    """Name and password in an address are sent to the server, and said nowhere else."""
    store = open_store(f"http://me:{SECRET}@{web[0]}/em", manners=QUICK)
    assert store.get("info") == b"0123456789"
    assert Files.asked[0]["authorization"].startswith("Basic ")
    assert store.url == f"http://{web[0]}/em"
    gone = open_store(f"http://me:{SECRET}@127.0.0.1:9/em", manners=QUICK)
    with pytest.raises(
        VolumeError, match=r"check the network and the address http://127"
    ) as caught:
        gone.get("info")
    assert SECRET not in f"{caught.value} {vars(gone)}"


def test_signed_address(web):
    """A signed address is of one object: as that of a volume it is refused, and not repeated."""
    with pytest.raises(VolumeError, match=r"what follows \? or #") as caught:
        open_store(f"https://{web[0]}/em?X-Amz-Signature={SECRET}")
    assert SECRET not in str(caught.value)


def test_redirects(web):
    """The folder of a web server is found also through a redirect."""
    store = open_store(f"http://{web[0]}")
    assert store.get("em/info") == b"0123456789"


def test_packed_for_the_journey(serve):
    """What a server packs on the way, without telling its length, arrives as it is stored."""
    store = open_store(f"{serve(Packed)}/em")
    assert store.get("block") == b"voxels" * 1000
    assert store.size("block") == 6000
    assert store.get_range("block", 5994, 7000) == b"voxels"


def test_faults(web):
    """What may pass is tried again, half a body is never returned, and a refusal stands."""
    (web[1] / "em" / "block").write_bytes(bytes(range(256)) * 400)
    with servers.proxy(f"http://{web[0]}") as faults:
        store = open_store(f"{faults.address}/em", manners=QUICK)
        faults.set(
            {"type": "status", "count": 1},
            {"type": "reset", "count": 1},
            {"type": "truncate", "count": 2},
        )
        assert store.get("block") == bytes(range(256)) * 400
        assert len(faults.log()) == 5
        with faults({"type": "status", "code": 403}):
            with pytest.raises(VolumeError, match="403 Forbidden; this server wants credentials"):
                store.get("block")
            assert len(faults.log()) == 1
        with faults({"type": "latency", "s": 5}), pytest.raises(VolumeError, match="no answer in"):
            store.get("block")
        with faults({"type": "truncate"}), pytest.raises(VolumeError, match="the connection brok"):
            store.get("block")


def test_odd_names(web):
    """Names with spaces and signs are found."""
    (web[1] / "em" / "a b#c?d%20").write_bytes(b"x")
    assert open_store(f"http://{web[0]}/em").get("a b#c?d%20") == b"x"

"""Tests of chunkflow_py.store.web_store."""

import contextlib
import datetime
import functools
import gzip
import http.server
import ssl
import threading
import time
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from rigs import servers
from rigs.s3 import SECRET

from chunkflow_py.errors import VolumeError, VolumeUnreachableError
from chunkflow_py.store import open_store
from chunkflow_py.store.network_reach import may_send_on, reach_of
from chunkflow_py.store.network_retry import RetryPolicy
from chunkflow_py.store.web_store import WebStore, _unpacked
from chunkflow_py.testing.peak_memory import peak_of

QUICK = RetryPolicy(connect_s=1, stall_s=1, budget_s=2, unreachable_s=1)


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files whole, ignoring ranges; keeps what was asked."""

    asked = []

    def send_head(self):
        self.asked.append({name.lower(): value for name, value in self.headers.items()})
        return super().send_head()

    def log_message(self, *arguments):
        """Say nothing."""


class Packed(http.server.BaseHTTPRequestHandler):
    """Compresses responses if the client allows it, and never sends their length."""

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


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """Path of a certificate, with its key, of a server on loopback; this process trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(
        made.public_bytes(Encoding.PEM)
        + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return path


def test_an_encrypted_server(tmp_path, certificate, monkeypatch):
    """A server of https:// is read; a server whose certificate nobody vouches for is refused."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    (tmp_path / "info").write_bytes(b"0123456789")
    handler = functools.partial(Files, directory=tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # a client that does not trust it goes away
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            url = f"https://localhost:{server.server_port}"
            assert open_store(url, retry_policy=QUICK).get("info") == b"0123456789"
            monkeypatch.delenv("SSL_CERT_FILE")
            with pytest.raises(VolumeError, match="the certificate is not accepted"):
                open_store(url, retry_policy=QUICK).get("info")
        finally:
            server.shutdown()
            thread.join()


def test_an_encrypted_server_that_is_not_there():
    """A host that cannot be reached is one sentence."""
    store = open_store("https://127.0.0.1:9", retry_policy=QUICK)
    with pytest.raises(VolumeUnreachableError, match="no connection could be made"):
        store.get("info")


def test_web(web):
    """Whole objects and ranges are read, even from a server without range support."""
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
        with pytest.raises(VolumeError, match=f"cannot (write|list) http://{web[0]}/em: a web"):
            call()
    assert not Files.asked
    assert (web[1] / "em" / "info").read_bytes() == b"0123456789"


def test_password_in_an_address(web):
    """User name and password are sent to the server, and shown nowhere."""
    store = open_store(f"http://me:{SECRET}@{web[0]}/em", retry_policy=QUICK)
    assert store.get("info") == b"0123456789"
    assert Files.asked[0]["authorization"].startswith("Basic ")
    assert store.url == f"http://{web[0]}/em"
    gone = open_store(f"http://me:{SECRET}@127.0.0.1:9/em", retry_policy=QUICK)
    with pytest.raises(
        VolumeError, match=r"check the network and the address http://127"
    ) as caught:
        gone.get("info")
    assert SECRET not in f"{caught.value} {vars(gone)}"


def test_signed_address(web):
    """A signed address is refused for a volume, and not shown."""
    with pytest.raises(VolumeError, match=r"query .* or a fragment") as caught:
        open_store(f"https://{web[0]}/em?X-Amz-Signature={SECRET}")
    assert SECRET not in str(caught.value)


def test_redirects(web):
    """The folder of a web server is found also through a redirect."""
    store = open_store(f"http://{web[0]}")
    assert store.get("em/info") == b"0123456789"


def test_packed_for_the_journey(serve):
    """A response compressed for the transfer, without a length, is read correctly."""
    store = open_store(f"{serve(Packed)}/em")
    assert store.get("block") == b"voxels" * 1000
    assert store.size("block") == 6000
    assert store.get_range("block", 5994, 7000) == b"voxels"


def test_faults(web):
    """Transient failures are retried, a truncated body is never returned, a refusal is final."""
    (web[1] / "em" / "block").write_bytes(bytes(range(256)) * 400)
    with servers.proxy(f"http://{web[0]}") as faults:
        store = open_store(f"{faults.address}/em", retry_policy=QUICK)
        faults.set(
            {"type": "status", "count": 1},
            {"type": "reset", "count": 1},
            {"type": "truncate", "count": 2},
        )
        assert store.get("block") == bytes(range(256)) * 400
        assert len(faults.log()) == 5
        with faults({"type": "status", "code": 403}):
            with pytest.raises(VolumeError, match="403 Forbidden; this server requires cred"):
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


# --- servers that mean harm ----------------------------------------------------------------------

BOMB = gzip.compress(bytes(64 << 20), 9)


class Hostile(http.server.BaseHTTPRequestHandler):
    """Responds by path: endless, compressed, slowly, or with a redirect."""

    protocol_version = "HTTP/1.1"
    to = ""
    seen = []

    def do_GET(self):
        self.seen.append((self.path, self.headers.get("Authorization")))
        with contextlib.suppress(OSError):
            getattr(self, self.path.strip("/").split("/")[-1])()
        self.close_connection = True

    do_HEAD = do_GET

    def head(self, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def info(self):
        self.head(Content_Length="2")
        self.wfile.write(b"{}")

    def endless(self):
        self.head()
        for _ in range(1000):
            self.wfile.write(b" " * (1 << 20))

    def announced(self):
        self.head(Content_Length=str(1 << 40))
        self.wfile.write(b" " * (1 << 20))

    def bomb(self):
        self.head(Content_Length=str(len(BOMB)), Content_Encoding="gzip")
        self.wfile.write(BOMB)

    def range(self):
        self.head(206)
        for _ in range(1000):
            self.wfile.write(b" " * (1 << 20))

    def drip(self):
        self.head(Content_Length="1000")
        for _ in range(100):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.1)

    def headers_drip(self):
        self.send_response(200)
        self.flush_headers()
        for number in range(100):
            self.wfile.write(b"X-%d: y\r\n" % number)
            self.wfile.flush()
            time.sleep(0.1)

    def moved(self):
        self.head(302, Location=self.to, Content_Length="0")

    def length(self):
        self.head(Content_Length="-7")

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def hostile(serve, monkeypatch):
    """Address of a hostile server."""
    monkeypatch.setattr(Hostile, "seen", [])
    return serve(Hostile)


def quick(address, **changes):
    """Return the store of a server, with short time limits."""
    scheme, _, path = address.partition("://")
    retry_policy = (
        replace(QUICK, longest_s=1, budget_s=1) if not changes else replace(QUICK, **changes)
    )
    return WebStore(scheme, path, retry_policy)


@pytest.mark.parametrize(
    ("name", "said"),
    [("endless", "more than the 1048576 bytes"), ("announced", f"{1 << 40} bytes, more than"),
     ("bomb", "more than the 1048576 bytes")],
)  # fmt: skip
def test_an_answer_ends_at_its_bound(hostile, name, said):
    """No more than the limit is read, compressed or not; nothing is retried."""

    def read():
        with pytest.raises(VolumeError, match=said):
            quick(hostile).get(name, 1 << 20)

    assert peak_of(read).traced < 16 << 20
    assert len(Hostile.seen) == 1


def test_a_range_ends_where_it_was_asked_to(hostile):
    """Without range support, the body is read up to the end of the range, within a limit."""
    assert quick(hostile).get_range("endless", 3, 8) == b" " * 5
    with pytest.raises(VolumeError, match="more than the 5 bytes"):
        quick(hostile).get_range("range", 3, 8)


@pytest.mark.parametrize("name", ["drip", "headers_drip"])
def test_an_answer_ends_in_time(hostile, name):
    """A server that sends single bytes slowly, in the body or the headers, hits the deadline."""
    start = time.monotonic()
    with pytest.raises(VolumeUnreachableError, match="no answer in time"):
        quick(hostile).get(name)
    assert time.monotonic() - start < 6


def test_a_length_that_cannot_be(hostile):
    """A wrong Content-Length is ignored: the body counts."""
    assert quick(hostile).size("length") == 0


@pytest.mark.parametrize(
    ("to", "said"),
    [("file:///etc/passwd", "not the address of a web server"),
     ("ftp://127.0.0.1/x", "not the address of"),
     ("gopher://127.0.0.1/", "not the address of"),
     ("http://a b/", "not the address of"), ("http://[::1", "not the address of"),
     ("http://127.0.0.1:99999/", "not the address of"),
     ("http://169.254.169.254/latest/meta-data/", "redirects to a link-local address"),
     ("http://[fe80::1]/", "redirects to a link-local address"),
     ("http://[::ffff:169.254.169.254]/", "redirects to a link-local address"),
     ("http://10.0.0.1/", "redirects to a private address"),
     ("http://[fd00:ec2::254]/", "redirects to a private address"),
     ("/moved", "redirects more than 5 times")],
)  # fmt: skip
def test_redirects_that_are_refused(hostile, monkeypatch, to, said):
    """Refused at once, without a connection and without a retry."""
    monkeypatch.setattr(Hostile, "to", to)
    start = time.monotonic()
    with pytest.raises(VolumeError, match=said):
        quick(hostile, budget_s=30).get("moved")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0.0.0.0"])
def test_a_redirect_into_this_machine_is_refused(hostile, serve, monkeypatch, host):
    """A redirect to this machine is refused under any name: the IP address counts."""
    inside = serve(type("Inside", (Hostile,), {"seen": (seen := [])}))
    monkeypatch.setattr(Hostile, "to", f"http://{host}:{inside.rpartition(':')[2]}/info")
    store = quick(hostile)
    reach = {0: "public"}
    # The first connection is the one of the server, which is to count as one of the internet.
    monkeypatch.setattr(store, "reach", lambda address: reach.pop(0, None) or reach_of(address))
    with pytest.raises(VolumeError, match="redirects to a loopback address"):
        store.get("moved")
    assert seen == []


def test_a_redirect_within_one_reach_is_followed(hostile, serve, monkeypatch):
    """Redirects between servers of this machine work; the password is not sent to the second."""
    seen = []
    other = serve(type("Other", (Hostile,), {"seen": seen}))
    monkeypatch.setattr(Hostile, "to", f"{other}/info")
    assert quick(hostile.replace("://", "://me:secret@")).get("moved") == b"{}"
    assert Hostile.seen[0][1].startswith("Basic ")
    assert seen == [("/info", None)]


@pytest.mark.long
def test_connections_come_back(hostile, monkeypatch):
    """However a response ends, its connection is free for the next one: there are at most 32."""
    monkeypatch.setattr(Hostile, "to", "file:///etc/passwd")
    store = quick(hostile)
    for _ in range(12):
        for name in ("moved", "announced", "none"):
            with contextlib.suppress(VolumeError):
                store.get(name, 10)
    assert store.get("info") == b"{}"


@given(st.ip_addresses(v=4))
def test_reach_of_addresses(address):
    """All spellings of an address have the same reach; only a global one is public."""
    forms = [str(address), f"::ffff:{address}", f"64:ff9b::{address}"]
    found = {reach_of(each) for each in forms}
    assert len(found) == 1
    assert (found == {"public"}) == (address.is_global and not address.is_multicast)
    assert may_send_on("public", *found) == may_send_on(None, *found) == (found == {"public"})
    assert may_send_on(*found, *found)


def test_pieces_of_gzip():
    """Several members, trailing zeros and small pieces are read as by `gzip.decompress`."""
    whole = gzip.compress(b"ab" * 3_000_000) + gzip.compress(b"cd") + bytes(20)
    for size in (7, 1000, 1 << 20):
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        assert b"".join(_unpacked(pieces)) == gzip.decompress(whole)
    with pytest.raises(EOFError):
        b"".join(_unpacked([whole[:100]]))

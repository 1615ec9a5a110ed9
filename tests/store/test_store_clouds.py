"""Tests of clouds and web servers: addresses, regions and credentials."""

import functools
import http.server
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from rigs.s3 import SECRET

from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.store.amazon import bucket_region
from chunkflow_py.store.protocol import Access
from chunkflow_py.store.retry import Manners

QUICK = Manners(connect_s=1, stall_s=1, budget_s=2, unreachable_s=1)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files whole, ignoring ranges; buckets are elsewhere; keeps what was asked."""

    asked = []

    def do_HEAD(self):
        if not self.path.startswith("/bucket"):
            super().do_HEAD()
            return
        # As S3 answers whoever asks without credentials.
        self.send_response(403)
        if self.path == "/bucket":
            self.send_header("x-amz-bucket-region", "eu-central-1")
        self.end_headers()

    def send_head(self):
        self.asked.append({name.lower(): value for name, value in self.headers.items()})
        return super().send_head()

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def web(tmp_path, monkeypatch):
    """Address of a plain web server, and the folder that it serves."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "em").mkdir()
    (tmp_path / "em" / "info").write_bytes(b"0123456789")
    Quiet.asked.clear()
    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", tmp_path
        server.shutdown()
        thread.join()


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """An account without credentials of any cloud."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))


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
    assert not Quiet.asked
    assert (web[1] / "em" / "info").read_bytes() == b"0123456789"


def test_password_in_an_address(web):
    """Name and password in an address are sent to the server, and said nowhere else."""
    store = open_store(f"http://me:{SECRET}@{web[0]}/em", manners=QUICK)
    assert store.get("info") == b"0123456789"
    assert Quiet.asked[0]["authorization"].startswith("Basic ")
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


def test_no_aws_credentials(nobody):
    """Without credentials there is one sentence within seconds: where they were looked for."""
    start = time.monotonic()
    with pytest.raises(VolumeError, match=r"no AWS credentials .* public data with --use-https"):
        open_store("s3://bucket/em")
    assert time.monotonic() - start < 8


def test_no_google_credentials(nobody, monkeypatch):
    """The same for Google."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    start = time.monotonic()
    with pytest.raises(VolumeError, match=r"no Google credentials .* public data with --use-https"):
        open_store("gs://bucket/em")
    assert time.monotonic() - start < 8


def test_broken_profile(nobody, monkeypatch):
    """A profile that does not exist is named."""
    monkeypatch.setenv("AWS_PROFILE", "no-such-lab")
    with pytest.raises(VolumeError, match="no-such-lab"):
        open_store("s3://bucket/em")


def test_profile(s3, monkeypatch, tmp_path):
    """Credentials and region come from a profile, as for every other tool of AWS."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text(
        f"[lab]\naws_access_key_id = of-the-lab\naws_secret_access_key = {SECRET}\n"
    )
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    # ministack answers that the bucket is in another region.
    with s3.faults() as faults:
        with suppress(VolumeError):
            open_store(s3.url).get("key")
        (request,) = faults.log()
    assert "of-the-lab" in request["headers"]["Authorization"]
    assert "/eu-west-3/s3/" in request["headers"]["Authorization"]


def test_session_token(s3, monkeypatch):
    """Temporary credentials are sent with their token."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-session")
    with s3.faults() as faults:
        open_store(s3.url).get("key")
        (request,) = faults.log()
    assert request["headers"]["x-amz-security-token"] == "of-the-session"


def test_endpoint_of_s3_alone(s3, monkeypatch):
    """The address for S3 comes before that for all services."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint + "/")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert open_store(s3.url, manners=QUICK).get("key") is None


def test_region(web):
    """The region of a bucket is asked for; where nobody says it, it is not known."""
    address = f"http://{web[0]}"
    assert bucket_region(f"{address}/bucket") == "eu-central-1"
    assert bucket_region(f"{address}/bucket-elsewhere") is None
    assert bucket_region(f"{address}/em") is None
    assert bucket_region("http://127.0.0.1:9/bucket") is None


def test_wrong_region(s3):
    """A bucket in another region is an error that says what to set."""
    store = open_store(s3.url, Access(anonymous=True))
    body = "<Error><Code>PermanentRedirect</Code><Message>use another endpoint</Message></Error>"
    with (
        s3.faults({"type": "status", "code": 301, "body": body}),
        pytest.raises(VolumeError, match="301 .* in another region; set AWS_REGION to the region"),
    ):
        store.get("key")


@pytest.mark.parametrize("url", ["/data/em", "mem://name/em"])
def test_light(url):
    """A local store imports neither a library of a cloud nor numpy."""
    code = (
        "import sys; from chunkflow_py.store import open_store\n"
        f"open_store({url!r})\n"
        "print({'obstore', 'boto3', 'numpy', 'google.auth'} & set(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert output.stdout == "set()\n"

"""Tests of clouds: addresses, regions and credentials."""

import http.server
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from rigs.s3 import SECRET

from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.store.amazon import bucket_region
from chunkflow_py.store.network_retry import RetryPolicy
from chunkflow_py.store.store_protocol import Access

QUICK = RetryPolicy(connect_s=1, stall_s=1, budget_s=2, unreachable_s=1)


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """An account without credentials of any cloud."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CLOUD_VOLUME_DIR", "CLOUD_FILES_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))


def test_no_aws_credentials(nobody, monkeypatch):
    """Without credentials there is one sentence within seconds, also where metadata is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
        start = time.monotonic()
        with pytest.raises(
            VolumeError,
            match=r"no AWS credentials .* ~/.cloudvolume/secrets.* data, add --use-https",
        ):
            open_store("s3://bucket/em")
        assert time.monotonic() - start < 15


def test_no_google_credentials(nobody, monkeypatch):
    """The same for Google."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    start = time.monotonic()
    with pytest.raises(
        VolumeError,
        match=r"no Google credentials .* in ~/.cloudvolume/secrets.* public data, add --use-https",
    ):
        open_store("gs://bucket/em")
    assert time.monotonic() - start < 15


def test_broken_profile(nobody, monkeypatch):
    """A profile that does not exist is named."""
    monkeypatch.setenv("AWS_PROFILE", "no-such-lab")
    with pytest.raises(VolumeError, match="no-such-lab"):
        open_store("s3://bucket/em")


def test_profile(s3, monkeypatch, tmp_path):
    """Credentials and region come from a profile, as for other AWS tools."""
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
    assert open_store(s3.url, retry_policy=QUICK).get("key") is None


class Buckets(http.server.BaseHTTPRequestHandler):
    """Responds as S3 does to requests without credentials."""

    def do_HEAD(self):
        self.send_response(403)
        if self.path == "/bucket":
            self.send_header("x-amz-bucket-region", "eu-central-1")
        self.end_headers()

    def log_message(self, *arguments):
        """Say nothing."""


def test_region(serve):
    """The region of a bucket is requested; without a response, it is unknown."""
    address = serve(Buckets)
    assert bucket_region(f"{address}/bucket") == "eu-central-1"
    assert bucket_region(f"{address}/bucket-elsewhere") is None
    assert bucket_region("http://127.0.0.1:9/bucket") is None


def test_wrong_region(s3):
    """A bucket in another region is an error that says what to set."""
    store = open_store(s3.url, Access(anonymous=True))
    body = "<Error><Code>PermanentRedirect</Code><Message>use another endpoint</Message></Error>"
    with (
        s3.faults({"type": "status", "code": 301, "body": body}),
        pytest.raises(VolumeError, match="301.* in another region; set AWS_REGION to the region"),
    ):
        store.get("key")


@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_stores_of_a_bucket_share_connections(s3, monkeypatch):
    """A second store of a bucket connects no more; one with other credentials is another."""
    first, second = open_store(s3.url), open_store(f"{s3.url}/below")
    assert first._client is second._client
    assert (first.url, second.url) == (s3.url, f"{s3.url}/below")
    first.put("below/key", b"x")
    assert second.get("key") == b"x"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    with s3.faults() as faults:
        open_store(s3.url).get("key")
        (request,) = faults.log()
    assert "another" in request["headers"]["Authorization"]


@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_a_bucket_is_looked_for_once(s3):
    """Whether the bucket exists is requested once for all of its stores."""
    with s3.faults() as faults:
        for _ in range(2):
            assert open_store(s3.url).size("key") is None
        assert [each["method"] for each in faults.log()] == ["HEAD", "GET", "HEAD"]


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

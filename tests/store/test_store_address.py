"""Tests of chunkflow_py.store.store_address."""

import time

import pytest

from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.store.store_address import public, without_secrets
from chunkflow_py.store.store_protocol import Access

ANONYMOUS = Access(anonymous=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:geheim@host:8080/em", "https://host:8080/em"),
        ("https://geheim@host", "https://host"),
        ("https://me:ge/heim@host/em", "https://host/em"),
        ("https://me:ge?heim@host/em", "https://host/em"),
        ("graphene://https://me:geheim@host/em", "graphene://https://host/em"),
        ("https://host/em?token=geheim#geheim", "https://host/em"),
        ("https://[::1]:80/a@b", "https://[::1]:80/a@b"),
        ("https://host:80/a@b", "https://host:80/a@b"),
        ("/data/em@2", "/data/em@2"),
        ("file://em@2", "file://em@2"),
        ("zarr://s3://bucket/em?x@2", "zarr://s3://bucket/em?x@2"),
    ],
)
def test_without_secrets(url, shown):
    """User name, password and query are left out; the rest is unchanged."""
    assert without_secrets(url) == shown


@pytest.mark.parametrize(
    "endpoint",
    ["127.0.0.1:9", "nonsense", "http://", "ftp://host", "http://a b", "http://host:99999",
     "http://host:x", "http://[::1", "me:geheim@host", "ftp://me:geheim@host"],
)  # fmt: skip
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_bad_endpoint(monkeypatch, endpoint, variable):
    """What cannot be the address of a server is refused in a sentence that names the variable."""
    monkeypatch.setenv(variable, endpoint)
    with pytest.raises(VolumeError, match=rf"{variable} is .* such as http://host:9000") as caught:
        open_store("s3://bucket/em", ANONYMOUS)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://", "host:99999", "a b"])
def test_bad_google_endpoint(monkeypatch, endpoint):
    """The same for Google, whose address may omit http://."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
    with pytest.raises(VolumeError, match="STORAGE_EMULATOR_HOST is .* such as http://host:9000"):
        open_store("gs://bucket/em", ANONYMOUS)


def test_bad_proxy(monkeypatch):
    """The message names the variable of an invalid proxy."""
    monkeypatch.setenv("http_proxy", "nonsense")
    with pytest.raises(VolumeError, match="http_proxy is 'nonsense', but must be the address"):
        open_store("http://host/em")


@pytest.mark.parametrize("bucket", ["Bad Bucket!", "b%20", "bücket", "-a", "a" * 256])
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_bad_bucket(bucket, scheme):
    """An invalid bucket name is refused at once."""
    with pytest.raises(VolumeError, match="cannot be the name of a bucket"):
        open_store(f"{scheme}://{bucket}/em", ANONYMOUS)


def test_credentials_in_the_name_of_a_bucket():
    """The message says where credentials belong if they precede a bucket."""
    with pytest.raises(
        VolumeError, match="contains a user name or password.* set AWS_PROFILE"
    ) as caught:
        open_store("s3://key:geheim@bucket/em")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["em/../../x", "em//x", "./em/x", "em/\x01x", "em/\nx"])
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_bad_prefix(prefix, scheme):
    """An invalid prefix is refused with the nearest valid one."""
    with pytest.raises(
        VolumeError, match=rf"is not valid, because.* address is {scheme}://bucket/(em/)?x"
    ):
        open_store(f"{scheme}://bucket/{prefix}", ANONYMOUS)


@pytest.mark.parametrize("address", ["a b", "h:port", "h:99999", "me:ge/heim@host", "[::1", ""])
def test_bad_web_address(address):
    """An invalid web address is refused before any request, without showing the password."""
    with pytest.raises(VolumeError, match="is not the address of a web server") as caught:
        open_store(f"http://{address}/em")
    assert "heim" not in str(caught.value)


def test_public():
    """Text keeps its spaces and lines, and loses the secrets in its addresses."""
    text = "see https://me:geheim@host/a?sig=geheim and\n  s3://key:geheim@b/c, not me@host"
    assert public(text) == "see https://host/a and\n  s3://b/c, not me@host"


def test_public_is_quick():
    """A long word takes no longer than as many short ones."""
    start = time.perf_counter()
    assert public("a" * 1_000_000 + " b://c") == "a" * 1_000_000 + " b://c"
    assert time.perf_counter() - start < 5  # minutes, if each letter were a start

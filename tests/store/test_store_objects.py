"""Tests of chunkflow_py.store.object_store on two S3 servers and a server of the Google API."""

import logging
import os
import re
import signal
import threading
import time

import pytest
from rigs.s3 import ERROR, SECRET, SEVERAL_FAULTS
from rigs.variants import gate_runs

from chunkflow_py.errors import (
    VolumeError,
    VolumeNotFoundError,
    VolumeRefusedError,
    VolumeUnreachableError,
)
from chunkflow_py.store import cloud_service, network_retry, open_store
from chunkflow_py.store import object_store as objects_module
from chunkflow_py.store.network_retry import RetryPolicy
from chunkflow_py.store.store_protocol import Access
from chunkflow_py.testing.store_contract import StoreContract, run_together

QUICK = RetryPolicy(connect_s=1, stall_s=0.5, budget_s=2, unreachable_s=1)
DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
EXPIRED = "<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
CONFLICT = "<Error><Code>ConditionalRequestConflict</Code><Message>again</Message></Error>"
# No test may pass because the server was fast enough.
SLOW = {"type": "latency", "s": 5}


def requests(faults, method=None):
    """Return the requests since the rules were set."""
    return [each for each in faults.log() if method in (None, each["method"])]


def every_call(store):
    """Return one call of every method, by name."""
    return {
        "get": lambda: store.get("key"),
        "get_range": lambda: store.get_range("key", 0, 5),
        "size": lambda: store.size("key"),
        "list": lambda: list(store.list()),
        "put": lambda: store.put("key", b"x"),
        "put_if_absent": lambda: store.put_if_absent("key", b"x"),
        "update": lambda: store.update("key", lambda old: b"x"),
        "delete": lambda: store.delete("key"),
    }


METHODS = list(every_call(None))


class TestS3(StoreContract):
    @pytest.fixture
    def url(self, s3):
        return s3.url


class TestS3WithFaults(StoreContract):
    """A fifth of all requests is refused, lost before or after it acts, or answered by halves."""

    @pytest.fixture
    def url(self, s3):
        s3.faults.set(*SEVERAL_FAULTS)
        return s3.url


@pytest.mark.aws
class TestGoogle(StoreContract):
    @pytest.fixture
    def url(self, gs):
        return gs[0]


@pytest.mark.aws
class TestGoogleWithFaults(StoreContract):
    @pytest.fixture
    def url(self, gs):
        gs[1].set(*SEVERAL_FAULTS)
        return gs[0]


@pytest.mark.parametrize("method", METHODS)
def test_denied(s3, method):
    """A refusal is not retried, and its message has a remedy."""
    store = open_store(s3.url)
    with s3.faults({"type": "status", "code": 403, "body": DENIED}) as faults:
        with pytest.raises(VolumeError) as caught:
            every_call(store)[method]()
        assert len(requests(faults)) == 1
    sentence = str(caught.value)
    assert sentence.startswith("cannot ")
    assert f"{s3.url}" in sentence
    assert "403" in sentence
    assert f"check that your credentials may use the bucket '{s3.bucket}'" in sentence
    assert "<" not in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("status", [400, 403])
def test_credentials_that_expire(s3, monkeypatch, status):
    """Requests use new credentials from the environment if the bucket has responded before."""
    store = open_store(s3.url)
    store.put("key", b"1")
    assert store.get("key") == b"1"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    with s3.faults({"type": "status", "code": status, "body": EXPIRED, "count": 3}) as faults:
        assert store.get("key") == b"1"
        store.put("key", b"2")
        signed = [each["headers"]["Authorization"] for each in requests(faults)]
    assert "Credential=rig/" in signed[0]
    assert "Credential=renewed/" in signed[-1]


def test_credentials_that_have_expired_for_good(s3, monkeypatch):
    """Refused credentials become an error after a while, or at once if nothing has worked yet."""
    monkeypatch.setattr(cloud_service, "REFUSED_S", 0.5)
    store = open_store(s3.url)
    said = r"400 ExpiredToken.*check that your credentials may use"
    with s3.faults({"type": "status", "code": 400, "body": EXPIRED}) as faults:
        with pytest.raises(VolumeRefusedError, match=said):
            store.get("key")
        assert len(requests(faults)) == 1
    assert store.get("key") is None
    with s3.faults({"type": "status", "code": 400, "body": EXPIRED}) as faults:
        with pytest.raises(VolumeRefusedError, match=said):
            store.get("key")
        assert len(requests(faults)) > 1


@pytest.mark.parametrize("kind", ["status", "status_late"])
@pytest.mark.parametrize("body", [ERROR, ""])
@pytest.mark.parametrize("method", ["get", "get_range", "put", "put_if_absent", "update"])
def test_an_error_with_status_200(s3, method, body, kind):
    """Invalid responses are retried; a conditional write knows whether it succeeded."""
    store = open_store(s3.url)
    expected = {
        "get": b"12345678", "get_range": b"12345", "put": None, "put_if_absent": True,
        "update": b"x",
    }  # fmt: skip
    if method != "put_if_absent":
        store.put("key", b"12345678")
    rule = {"type": kind, "code": 200, "body": body, "count": 2}
    with s3.faults(rule | {"method": "GET|PUT"}) as faults:
        assert every_call(store)[method]() == expected[method]
        assert len(requests(faults)) >= 3
    if not method.startswith("get"):
        assert store.get("key") == b"x"


def test_a_write_on_condition_that_lost_is_not_taken_for_the_first(s3):
    """After invalid responses, a conditional write reports a conflict."""
    store = open_store(s3.url)
    store.put("key", b"of another")
    with s3.faults({"type": "status", "code": 200, "body": ERROR, "count": 2, "method": "PUT"}):
        assert store.put_if_absent("key", b"mine") is False
    assert store.get("key") == b"of another"


def test_an_error_with_status_200_for_good(s3):
    """It fails with a transient error when the time limit is exceeded."""
    store = open_store(s3.url, retry_policy=QUICK)
    with (
        s3.faults({"type": "status", "code": 200, "body": ERROR}),
        pytest.raises(VolumeUnreachableError, match=r"200 with .* \(\d+ tries in"),
    ):
        store.put("key", b"1")


@pytest.mark.parametrize(
    "step", [{"method": "POST", "path": "uploads"}, {"method": "POST", "path": "uploadId"}]
)
@pytest.mark.parametrize("kind", ["status", "status_late"])
def test_an_upload_in_parts_that_ends_by_an_error(s3, monkeypatch, step, kind):
    """CompleteMultipartUpload may fail with status 200, and CreateMultipartUpload as well."""
    monkeypatch.setattr(objects_module, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(objects_module, "PART_BYTES", 5 << 20)
    store, content = open_store(s3.url), bytes(6 << 20)
    with s3.faults({"type": kind, "code": 200, "body": ERROR, "count": 1} | step):
        store.put("key", content)
    assert store.get("key") == content


@pytest.mark.parametrize("method", METHODS)
def test_missing_bucket(s3, method):
    """A bucket that does not exist is an error for every call; it is not an absent object."""
    store = open_store("s3://no-such-bucket-5f1c/em")
    with pytest.raises(VolumeNotFoundError, match=r"check the name of the bucket 'no-such-bucket"):
        every_call(store)[method]()


@pytest.mark.parametrize("method", gate_runs(METHODS, "get", "put_if_absent"))
def test_every_call_ends(s3, method):
    """A silent server is retried after a deadline, until the time limit."""
    store = open_store(s3.url, retry_policy=QUICK)
    with s3.faults(SLOW):
        start = time.monotonic()
        with pytest.raises(
            VolumeError, match=r"no answer in time \(\d+ tries in \d+ s\); try again"
        ):
            every_call(store)[method]()
        assert 1 < time.monotonic() - start < 60


def test_budget(s3):
    """A permanent 503 fails at the time limit, with its reason and the number of tries."""
    store = open_store(s3.url, retry_policy=QUICK)
    start = time.monotonic()
    with s3.faults({"type": "status", "code": 503}) as faults:
        with pytest.raises(VolumeError, match=r"503 SlowDown \(\d+ tries in \d+ s\)"):
            store.get("key")
        assert len(requests(faults)) > 3
    assert 2 <= time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"type": "status", "code": 503}, r"WARNING .*{root}: 503 SlowDown; retries end in"),
        ({"type": "latency", "s": 9}, r"INFO .*{root}: a call has taken \d s; retries end in"),
    ],
)
@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_long_calls_are_in_the_log(s3, caplog, monkeypatch, rule, words):
    """While a call waits, the log has its host, the reason and the remaining time."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(network_retry._NOTES, "_said_of_waiting", -1e9)
    monkeypatch.setattr(network_retry._NOTES, "LONG_S", 1)
    monkeypatch.setattr(network_retry._NOTES, "LONG_WITHOUT_AN_ANSWER_S", 1)
    store = open_store(s3.url, retry_policy=RetryPolicy(stall_s=3, budget_s=3, longest_wait_s=0.5))
    with s3.faults(rule), pytest.raises(VolumeError):
        store.get("key")
    lines = "\n".join(f"{each.levelname} {each.getMessage()}" for each in caplog.records)
    assert re.search(words.format(root=f"s3://{s3.bucket}"), lines)
    assert re.search(r"retries end in [012] s", lines)


@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_interrupt(s3):
    """Ctrl-C ends a call that waits for its server."""
    store = open_store(s3.url, retry_policy=RetryPolicy(stall_s=20))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(1, os.kill, [os.getpid(), signal.SIGINT])
    try:
        with s3.faults({"type": "latency", "s": 15}):
            start = time.monotonic()
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                store.get("key")
            assert time.monotonic() - start < 10
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_nobody_ever_there(s3, monkeypatch):
    """A host that has never responded fails sooner than one that has."""
    retry_policy = RetryPolicy(connect_s=1, unreachable_s=3, unheard_s=0.5)
    heard = open_store(s3.url, retry_policy=retry_policy)
    heard.get("key")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    seconds = []
    for url in ("s3://never-heard-of/em", s3.url):
        store = open_store(url, retry_policy=retry_policy)
        start = time.monotonic()
        with pytest.raises(VolumeError, match="check the network and the address http://127"):
            store.get("key")
        seconds.append(time.monotonic() - start)
    assert seconds[0] < 3 <= seconds[1]
    assert RetryPolicy().unheard_s <= 5


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_what_passes(s3, code):
    """Transient failures are retried."""
    store = open_store(s3.url)
    with s3.faults({"type": "status", "code": code, "count": 2}) as faults:
        store.put("key", b"x")
        # The HTTP library may leave a connection on which it has seen a 408, and ask once more.
        first = [each["fault"] for each in requests(faults)][:3]
        assert first == ["status", "status", "none"]


@pytest.mark.parametrize("code", [400, 401, 405, 418])
def test_what_does_not_pass(s3, code):
    """Permanent failures are not retried."""
    store = open_store(s3.url)
    with s3.faults({"type": "status", "code": code, "body": "<html>"}) as faults:
        with pytest.raises(VolumeError, match=str(code)):
            store.get("key")
        assert len(requests(faults)) == 1


def test_nobody_there(s3, monkeypatch):
    """The message names an address without a server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = open_store(s3.url, retry_policy=QUICK)
    with pytest.raises(VolumeError, match=r"check the network and the address http://127.0.0.1:9"):
        store.get("key")


@pytest.mark.parametrize("read", ["get", "get_range"])
def test_never_cut_short(s3, read):
    """A truncated body is never returned: the call is retried, and fails in the end."""
    store, data = open_store(s3.url, retry_policy=QUICK), bytes(range(256)) * 4096
    store.put("key", data)
    reads = {"get": store.get, "get_range": lambda key: store.get_range(key, 0, len(data))}
    with s3.faults({"type": "truncate", "count": 2}) as faults:
        assert reads[read]("key") == data
        assert [each["fault"] for each in requests(faults)] == ["truncate", "truncate", "none"]
    with s3.faults({"type": "truncate"}), pytest.raises(VolumeError, match="cannot read"):
        reads[read]("key")


def test_lost_reply_is_no_conflict(s3):
    """A conditional write whose reply was lost is recognised, and not repeated."""
    store = open_store(s3.url)
    with s3.faults({"type": "reset_after", "method": "PUT", "count": 1}) as faults:
        assert store.put_if_absent("claim", b"mine") is True
        assert len(requests(faults, "PUT")) == 2
    with s3.faults({"type": "reset_after", "method": "PUT", "count": 1}) as faults:
        assert store.update("claim", lambda old: old + b"+") == b"mine+"
        assert len(requests(faults, "PUT")) == 2
    assert store.get("claim") == b"mine+"


def test_lost_reply_and_another_after_it(s3, monkeypatch):
    """An update is recognised as successful even if another one followed at once."""
    store, other = open_store(s3.url), open_store(s3.url)
    store.put_if_absent("n", b"1")
    followed = []

    def add(old):
        return b"%d" % (int(old) + 1)

    def meanwhile(wait):
        if not followed:
            followed.append(None)
            followed.append(other.update("n", add))

    with s3.faults({"type": "reset_after", "method": "PUT", "count": 1}):
        monkeypatch.setattr(network_retry.time, "sleep", meanwhile)
        assert store.update("n", add) == b"2"
        monkeypatch.undo()
    assert followed == [None, b"3"]
    assert other.get("n") == b"3"


def test_conflict_with_a_lost_reply(s3):
    """An object of another writer is a conflict, even after a lost reply and with equal bytes."""
    store = open_store(s3.url)
    assert store.put_if_absent("claim", b"same")
    with s3.faults({"type": "reset_after", "method": "PUT", "count": 1}):
        assert store.put_if_absent("claim", b"same") is False


def test_conflict_under_way(s3):
    """S3's ConditionalRequestConflict is retried."""
    store = open_store(s3.url)
    with s3.faults({"type": "status", "code": 409, "body": CONFLICT, "count": 2}):
        assert store.put_if_absent("claim", b"mine") is True


def test_update_against_another(s3):
    """After a concurrent update, the change is repeated on the new content."""
    store, other = open_store(s3.url), open_store(s3.url)
    store.put("list", b"a")
    seen = []

    def change(old):
        if not seen:
            other.put("list", b"ab")
        seen.append(old)
        return old + b"c"

    assert store.update("list", change) == b"abc"
    assert seen == [b"a", b"ab"]


def test_list_goes_on(s3):
    """A listing of several pages whose answers fail names every key once."""
    store = open_store(s3.url)
    keys = sorted(f"{number:04d}" for number in range(1100))
    pool = [keys[start::8] for start in range(8)]
    run_together([lambda part=part: [store.put(key, b"") for key in part] for part in pool])
    faults = {"type": "truncate", "method": "GET", "p": 0.5, "path": "list-type"}
    with s3.faults(faults, seed=1) as faults:
        assert sorted(store.list()) == keys
        assert "truncate" in [each["fault"] for each in requests(faults)]


def test_in_parts(s3, monkeypatch):
    """A large object is uploaded in parts, and a failed part is sent again."""
    monkeypatch.setattr(objects_module, "WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(objects_module, "PART_BYTES", 5 << 20)
    store, data = open_store(s3.url), bytes(11 << 20)
    with s3.faults({"type": "reset", "method": "PUT", "count": 1}) as faults:
        store.put("large", memoryview(data), content_type="application/octet-stream")
        assert len(requests(faults, "PUT")) == 4
    assert store.get("large") == data


def test_headers_are_kept(s3):
    """Content type, encoding and cache control reach whoever downloads the object."""
    import boto3

    store = open_store(s3.url)
    store.put("info", b"x", content_type="application/json", cache_control="no-cache")
    store.put("block", b"\x1f\x8b", content_encoding="gzip")
    assert store.get("block") == b"\x1f\x8b"
    client = boto3.client("s3")
    info = client.head_object(Bucket=s3.bucket, Key="volume/info")
    block = client.head_object(Bucket=s3.bucket, Key="volume/block")
    client.close()
    assert (info["ContentType"], info["CacheControl"]) == ("application/json", "no-cache")
    assert block["ContentEncoding"] == "gzip"


def test_bounded_connections(s3, monkeypatch):
    """The number of concurrent requests is limited, however many threads call."""
    monkeypatch.setattr(objects_module, "CONNECTIONS", 4)
    store = open_store(s3.url)
    with s3.faults({"type": "latency", "s": 0.05}) as faults:
        run_together([lambda: store.get("key")] * 16)
        assert max(each["under_way"] for each in requests(faults)) <= 4
        assert len(requests(faults)) == 16


def test_nothing_secret_is_said(s3, caplog, monkeypatch):
    """Neither an error, nor its cause, nor any log line holds a credential or an answer as sent."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(network_retry._NOTES, "_said", -1e9)
    answer = f"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>rig {SECRET}</Error>"
    with s3.faults(
        {"type": "status", "code": 503, "count": 1, "body": answer},
        {"type": "status", "code": 403, "body": answer},
    ):
        store = open_store(s3.url)
        with pytest.raises(VolumeError) as caught:
            store.get("key")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    said = f"{caught.value} {caplog.text} {store!r} {vars(store)}"
    assert "503 SignatureDoesNotMatch" in caplog.text
    assert SECRET not in said
    assert "AWSAccessKeyId" not in said


def test_anonymous(s3, monkeypatch):
    """Public data needs no credentials: none is looked for, and no request is signed."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    store = open_store(s3.url, Access(anonymous=True))
    with s3.faults() as faults:
        assert store.get("key") is None
        assert "Authorization" not in requests(faults)[0]["headers"]
    with (
        s3.faults({"type": "status", "code": 403, "body": DENIED}),
        pytest.raises(VolumeError, match=r"403 AccessDenied; the bucket .* is not public"),
    ):
        store.get("key")


def test_requester_pays(s3):
    """With requester pays, every request has the header and is signed."""
    store = open_store(s3.url, Access(requester_pays=True))
    with s3.faults() as faults:
        for call in every_call(store).values():
            call()
        for each in requests(faults):
            assert each["headers"]["x-amz-request-payer"] == "requester"
            assert "Authorization" in each["headers"]


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_who_pays_must_be_known(scheme):
    """Requester pays is refused without credentials."""
    with pytest.raises(VolumeError, match="either --requester-pays or --use-https"):
        open_store(f"{scheme}://bucket/em", Access(anonymous=True, requester_pays=True))


@pytest.mark.aws
def test_google_requester_pays(gs, monkeypatch):
    """Requests to Google name the project to bill; without one, an error precedes any request."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "lab")
    url, faults = gs
    open_store(url, Access(requester_pays=True)).get("key")
    (request,) = requests(faults)
    assert request["headers"]["x-goog-user-project"] == "lab"
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    with pytest.raises(VolumeError, match="set GOOGLE_CLOUD_PROJECT"):
        open_store(url, Access(requester_pays=True))


@pytest.mark.aws
def test_google_anonymous(gs, monkeypatch):
    """Public data of Google is read without a token; writing is refused at once."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    store = open_store(gs[0], Access(anonymous=True))
    with pytest.raises(VolumeError, match=r"cannot write to .* without credentials; remove --use"):
        store.put("key", b"x")


def test_bucket_is_needed():
    """An address without a bucket is refused."""
    with pytest.raises(
        VolumeError, match="s3:///em does not name a bucket; write s3://bucket/prefix"
    ):
        open_store("s3:///em")


def test_unknown_scheme():
    """An unknown scheme is refused, with the nearest known one."""
    with pytest.raises(VolumeError, match=r"unknown scheme s4://; did you mean s3://\?"):
        open_store("s4://bucket/em")

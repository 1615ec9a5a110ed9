"""Files at addresses: fetched whole, kept for all processes, and pinned by their content."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigs.model_hub import COMMIT, REPOSITORY, Served, hub_of, serving

from chunkflow_py.errors import (
    MissingExtraError,
    OptionError,
    VolumeError,
    VolumeRefusedError,
    VolumeUnreachableError,
)
from chunkflow_py.store import local_cache, model_hub, open_store
from chunkflow_py.store.fetched_files import fetch, shown_address
from chunkflow_py.store.model_hub import HubFile
from chunkflow_py.store.network_retry import RetryPolicy

QUICK = RetryPolicy(connect_s=1, stall_s=2, budget_s=1, unreachable_s=0.2, unheard_s=0.2)
CONTENT = b"weights" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PINNED = f"hf://{REPOSITORY}@{COMMIT}"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of the cache; no proxy, token or setting of the machine is used."""
    monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "cache" / "models"


@pytest.fixture
def web():
    """A web server with a file."""
    with serving(Served({"nets/my net.pt": CONTENT})) as served:
        yield served


@pytest.fixture
def hub(monkeypatch):
    """A hub with a model."""
    pytest.importorskip("huggingface_hub")
    with serving(hub_of(net_pt=CONTENT, code__net_py=b"code")) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        yield served


def entries(folder):
    """Return the names of the entries of the cache, and of what is left beside them."""
    return [each.name for each in folder.iterdir()] if folder.exists() else []


# --- web servers and buckets ----------------------------------------------------------------------


def test_a_file_of_a_web_server(web, folder, caplog):
    """The whole file arrives under its own name, and the log names address, size and SHA-256."""
    caplog.set_level(logging.INFO)
    found = fetch(f"{web.address}/nets/my%20net.pt")
    assert found.path.read_bytes() == CONTENT
    assert (found.path.name, found.sha256) == ("my net.pt", DIGEST)
    assert found.address == f"{web.address}/nets/my%20net.pt"
    assert len(entries(folder)) == 1
    assert f"fetching {web.address}/nets/my%20net.pt" in caplog.text
    assert DIGEST in caplog.text
    assert "add #sha256= and the SHA-256 above" in caplog.text


def test_a_pinned_file_is_fetched_once(web, folder):
    """The pin is checked, and the copy is then used without a request."""
    address = f"{web.address}/nets/my net.pt"
    first = fetch(f"{address}#sha256={DIGEST}")
    asked = len(web.asked)
    web.files["nets/my net.pt"] = b"other"
    assert fetch(f"{address}#sha256={DIGEST}") == first
    assert len(web.asked) == asked == 1
    assert fetch(address).sha256 == hashlib.sha256(b"other").hexdigest()
    assert len(entries(folder)) == 2


def test_other_content_than_the_pinned_one_is_refused(web):
    """The message has both digests."""
    wrong = "0" * 64
    with pytest.raises(OptionError, match=rf"has the SHA-256 {DIGEST}, but .* pinned to {wrong}"):
        fetch(f"{web.address}/nets/my net.pt#sha256={wrong}")


@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_a_damaged_copy_is_fetched_again(web, folder, damage):
    """A copy that is not whole is never used."""
    address = f"{web.address}/nets/my net.pt#sha256={DIGEST}"
    path = fetch(address).path
    if damage == "changed":
        path.write_bytes(CONTENT[::-1])
    elif damage == "cut":
        os.truncate(path, 7)
    else:
        path.unlink()
    assert fetch(address).path.read_bytes() == CONTENT
    assert len(web.asked) == 2
    assert len(entries(folder)) == 1


def test_a_download_that_breaks_off_is_repeated(web, folder):
    """A connection that ends in the middle leaves nothing behind, and the next try succeeds."""
    web.cut = 2
    assert fetch(f"{web.address}/nets/my net.pt").path.read_bytes() == CONTENT
    web.cut = 1000
    with pytest.raises(VolumeUnreachableError, match=r"my net\.pt: the connection broke"):
        fetch(f"{web.address}/nets/my net.pt", retry_policy=QUICK)
    assert len(entries(folder)) == 1


PROGRAM = "import sys; from chunkflow_py.store.fetched_files import fetch; fetch(sys.argv[1])"


def test_a_killed_process_leaves_no_file(web, folder):
    """A process that is killed in the middle of a download publishes nothing."""
    web.wait = threading.Event()
    address = f"{web.address}/nets/my net.pt"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, address])
    assert web.half_sent.wait(30)
    process.kill()
    process.wait()
    assert [name for name in entries(folder) if not name.startswith(".tmp-")] == []
    web.wait.set()
    assert fetch(address).path.read_bytes() == CONTENT


def test_two_processes_leave_one_file(web, folder):
    """Processes that fetch at the same time share one whole copy."""
    address = f"{web.address}/nets/my net.pt"
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM, address]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    (entry,) = entries(folder)
    assert local_cache.intact_files(folder / entry) == {"my net.pt": DIGEST}


@pytest.mark.parametrize("s3", ["moto"], indirect=True)
def test_a_bucket(s3, folder):
    """An object is fetched; a missing object, a folder and a bucket alone are refused."""
    open_store(f"s3://{s3.bucket}/nets").put("a/net.pt", CONTENT)
    found = fetch(f"s3://{s3.bucket}/nets/a/net.pt")
    assert (found.path.read_bytes(), found.path.name) == (CONTENT, "net.pt")
    with pytest.raises(OptionError, match=r"nets/a/no\.pt does not exist"):
        fetch(f"s3://{s3.bucket}/nets/a/no.pt")
    with pytest.raises(OptionError, match="nets/a is a folder; give the address of a file"):
        fetch(f"s3://{s3.bucket}/nets/a")
    with pytest.raises(OptionError, match="names no file"):
        fetch(f"s3://{s3.bucket}")
    assert len(entries(folder)) == 1


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ftp://host/net.pt", "ftp:// is not one of hf://, https://, http://, s3://, gs://"),
        ("http://host.example/net.pt", "not encrypted, .* use https://"),
        ("http://[bad/net.pt", "not encrypted"),
        ("https://host.example/nets/", "is the address of a folder; give the address of a file"),
        ("https://host.example", "names no file"),
        ("https://host.example/net.pt?token=5ecret", r"net\.pt is given with a query \(\?…\)"),
        ("https://host.example/..%2F..%2Fnet.pt", "'../../net.pt', which cannot be the name"),
        ("https://host.example/%2e%2e", "'..', which cannot be the name"),
        ("https://host.example/a%00b", "cannot be the name"),
        ("https://host.example/.bashrc", "'.bashrc', which cannot be the name"),
        ("https://host.example/contents.json", "cannot be the name of a model file"),
        ("https://host.example/net.pt#sha256=12", "must be sha256= and the 64 hexadecimal digits"),
        ("https://host.example/net.pt#md5=12", "must be sha256="),
        ("s3://bucket/", "is the address of a folder"),
        ("s3://bucket/a/../net.pt", "because a part between slashes is empty"),
        ("hf://net.pt", "write hf://owner/name@commit/file"),
        (f"{PINNED}", "write hf://owner/name@commit/file"),
        (f"{PINNED}/", "write hf://owner/name@commit/file"),
        (f"{PINNED}/folder/", "write hf://owner/name@commit/file"),
        (f"{PINNED}/../../net.pt", "'../../net.pt' cannot be the key"),
        (f"{PINNED}/a/../net.pt", "cannot be the key"),
        (f"{PINNED}/.hidden", "'.hidden', which cannot be the name"),
        (f"hf://datasets/lab/images@{COMMIT}/net.pt", "not in a repository of models"),
    ],
)
def test_what_is_no_address_of_a_file(folder, address, message):
    """It is refused in one sentence, without a request, and nothing secret is shown."""
    with pytest.raises((OptionError, VolumeError), match=message) as caught:
        fetch(address)
    assert "5ecret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert entries(folder) == []


def test_a_missing_file_is_named(web):
    """The server's 404 is one sentence."""
    with pytest.raises(OptionError, match=r"/nets/no\.pt does not exist; correct the address"):
        fetch(f"{web.address}/nets/no.pt")


def test_no_password_is_shown(web, caplog):
    """The password of an address is in no message, log or record."""
    caplog.set_level(logging.DEBUG)
    host = web.address.removeprefix("http://")
    found = fetch(f"http://me:5ecret@{host}/nets/my net.pt")
    assert found.address == f"http://{host}/nets/my net.pt"
    with pytest.raises(OptionError) as caught:
        fetch(f"http://me:5ecret@{host}/nets/no.pt")
    assert "5ecret" not in str(caught.value) + caplog.text


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/net.pt", f"{PINNED}/net.pt"])
def test_no_network(folder, monkeypatch, address):
    """A server that cannot be reached is one sentence, soon."""
    if address.startswith("hf"):
        pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(VolumeUnreachableError, match="no connection could be made.*check the netw"):
        fetch(address, retry_policy=QUICK)
    assert time.monotonic() - start < 10
    assert entries(folder) == []


def test_a_file_that_is_too_large_is_not_kept(web, folder):
    """The size is limited before the file is stored."""
    with pytest.raises(VolumeError, match="7000 bytes, more than the allowed 6999"):
        fetch(f"{web.address}/nets/my net.pt", most=6999)
    assert entries(folder) == []


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, web):
    """The message names the folder."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(VolumeError, match="cannot make folder .*file/models"):
        fetch(f"{web.address}/nets/my net.pt")


# --- hubs -----------------------------------------------------------------------------------------


def test_a_file_of_a_hub(hub, folder):
    """A file of a commit is fetched once, whole, and then found without a request."""
    found = fetch(f"{PINNED}/net.pt")
    assert (found.path.name, found.path.read_bytes()) == ("net.pt", CONTENT)
    assert (found.address, found.sha256) == (f"{PINNED}/net.pt", DIGEST)
    asked = len(hub.asked)
    assert fetch(f"{PINNED}/net.pt") == found
    assert fetch(f"{PINNED}/net.pt#sha256={DIGEST}") == found
    assert len(hub.asked) == asked
    assert fetch(f"{PINNED}/code/net.py").path.read_bytes() == b"code"
    assert len(entries(folder)) == 2
    assert sorted(each.name for each in found.path.parent.iterdir()) == ["contents.json", "net.pt"]


@pytest.mark.parametrize("revision", ["", "@main", "@v1.0"])
def test_a_branch_is_refused(hub, folder, revision):
    """A branch or tag may change, so the message names the address of its commit."""
    hub.commits["v1.0"] = COMMIT
    remedy = rf"can change; pin it to today's commit: {PINNED}/net\.pt"
    with pytest.raises(OptionError, match=remedy):
        fetch(f"hf://{REPOSITORY}{revision}/net.pt")
    assert entries(folder) == []


def test_a_branch_is_refused_without_a_network(monkeypatch):
    """The message then says what is missing, and why the commit is unknown."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OptionError, match="not a commit.* 40 hexadecimal .* no connection could"):
        fetch(f"hf://{REPOSITORY}@main/net.pt", retry_policy=QUICK)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (f"{PINNED}/no.pt", rf"{REPOSITORY} has no file no\.pt at the revision {COMMIT}"),
        (f"{PINNED}/code", "has no file code at .* must name a file, not a folder"),
        (f"hf://{REPOSITORY}@{'f' * 40}/net.pt", f"{REPOSITORY} has no revision f{{40}}"),
        (f"hf://{REPOSITORY}@gone/net.pt", "has no revision gone"),
        (f"hf://lab/gone@{COMMIT}/net.pt", "has no model lab/gone"),
    ],
)
def test_what_a_hub_does_not_have(hub, folder, address, message):
    """Repository, revision or file: the message names what is missing."""
    with pytest.raises(OptionError, match=message):
        fetch(address, retry_policy=QUICK)
    assert entries(folder) == []


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (401, VolumeRefusedError, "refuses to send .*HF_TOKEN"),
        (403, VolumeRefusedError, "refuses to send .*HF_TOKEN"),
        (404, OptionError, "has no model lab/membranes with a file net.pt"),
        (503, VolumeUnreachableError, "cannot fetch .*503"),
    ],
)
def test_a_hub_that_refuses(hub, status, kind, message):
    """The status is named, and what to do."""
    hub.status = status
    with pytest.raises(kind, match=message):
        fetch(f"{PINNED}/net.pt", retry_policy=QUICK)


def test_a_hub_that_sends_something_else(hub, folder):
    """Content whose SHA-256 is not the one that the hub states is not kept."""
    hub.states = "a" * 64
    with pytest.raises(VolumeError, match=f"the SHA-256 {DIGEST}, but the hub announced a{{64}}"):
        fetch(f"{PINNED}/net.pt")
    assert entries(folder) == []


def test_a_hub_whose_connection_breaks(hub, folder):
    """The download continues, and the file is whole."""
    hub.cut = 1
    assert fetch(f"{PINNED}/net.pt").path.read_bytes() == CONTENT
    assert len(entries(folder)) == 1


def test_a_hub_that_redirects(hub, caplog):
    """A large file comes from another server, whose signed address is never logged."""
    caplog.set_level(logging.DEBUG)
    path = f"{REPOSITORY}/resolve/{COMMIT}/net.pt"
    with serving(Served({path: CONTENT})) as other:
        hub.sent_on_to, other.cut = other.address, 1
        assert fetch(f"{PINNED}/net.pt").path.read_bytes() == CONTENT
        assert ("GET", path) in other.asked
        hub.files[f"{REPOSITORY}/resolve/{COMMIT}/more.pt"] = CONTENT
        with pytest.raises(
            OptionError, match=r"has no model lab/membranes with .* more\.pt"
        ) as caught:
            fetch(f"{PINNED}/more.pt", retry_policy=QUICK)
    shown = [each.getMessage() for each in caplog.records if each.levelno >= logging.INFO]
    assert any("fetching" in line for line in shown)
    assert "5ecret" not in str(caught.value) + "".join(shown)


def test_a_hub_that_sends_more_than_it_states(hub, folder):
    """The download ends at the largest accepted size, whatever the hub has stated."""
    path = f"{REPOSITORY}/resolve/{COMMIT}/net.pt"
    with serving(Served({path: CONTENT * 100})) as other:
        hub.sent_on_to = other.address
        with pytest.raises(OptionError, match=r"net\.pt has more than the allowed 7000 bytes"):
            fetch(f"{PINNED}/net.pt", most=7000)
        with pytest.raises(VolumeUnreachableError, match=r"net\.pt: the file did not arrive whole"):
            fetch(f"{PINNED}/net.pt", retry_policy=QUICK)
    assert entries(folder) == []


def test_the_progress_of_a_download_is_logged(hub, caplog, monkeypatch, capfd):
    """Lines of the log, not a bar, show how much has arrived."""
    monkeypatch.setattr(model_hub, "PROGRESS_S", 0)
    caplog.set_level(logging.INFO)
    fetch(f"{PINNED}/net.pt")
    assert f"fetching {PINNED}/net.pt: 7000 of 7000 bytes" in caplog.text
    assert "%" not in capfd.readouterr().err


def test_an_address_that_is_shown_keeps_its_pin():
    """It has no credentials, and can be given again."""
    host = "host.example/net.pt"
    assert shown_address(f"https://me:5ecret@{host}#sha256={DIGEST}") == (
        f"https://{host}#sha256={DIGEST}"
    )
    assert shown_address(f"{PINNED}/net.pt") == f"{PINNED}/net.pt"
    assert shown_address("net.pt") == "net.pt"


def test_a_large_file_of_a_hub_is_not_fetched(hub, folder):
    """The size that the hub states is enough to refuse it."""
    with pytest.raises(OptionError, match="has 7000 bytes, more than the allowed 6999"):
        fetch(f"{PINNED}/net.pt", most=6999)
    assert all(method == "HEAD" for method, _ in hub.asked), hub.asked
    assert entries(folder) == []


def test_a_hub_is_asked_only_for_the_file(hub, folder):
    """A new process requests no list of agents, with which the library would report who calls."""
    environment = {**os.environ, "AI_AGENT": "reader"}
    environment.pop("HF_HUB_DISABLE_TELEMETRY", None)
    program = [sys.executable, "-c", PROGRAM, f"{PINNED}/net.pt"]
    subprocess.run(program, env=environment, check=True, timeout=60)
    assert {path for _, path in hub.asked} == {f"{REPOSITORY}/resolve/{COMMIT}/net.pt"}


def test_a_missing_library_is_named(monkeypatch):
    """Without huggingface_hub, the message names the extra."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"hf:// needs .*'chunkflow_py\[hub\]'"):
        fetch(f"{PINNED}/net.pt")


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,9}", fullmatch=True)


@given(owner=names, name=names, commit=st.from_regex("[0-9a-f]{40}", fullmatch=True), path=names)
def test_addresses_of_a_hub_are_read_as_they_are_written(owner, name, commit, path):
    """Any owner, name, commit and path come out of an address as they went in."""
    with contextlib.suppress(OptionError):
        file = HubFile.parse(f"hf://{owner}/{name}@{commit}/{path}/net.pt")
        assert file == HubFile(f"{owner}/{name}", commit, f"{path}/net.pt")
        assert file.address == f"hf://{owner}/{name}@{commit}/{path}/net.pt"
        return
    assert owner in ("datasets", "spaces", "buckets", "kernels")

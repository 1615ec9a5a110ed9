"""What the server of a dashboard answers, asked over HTTP."""

import gzip
import http.client
import json
import shutil
import struct
import urllib.request
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from click.testing import CliRunner
from rigs.planted import failure, planted_run, record

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.monitor.dashboard.dashboard_server import DashboardServer
from chunkflow_py.monitor.dashboard.run_watch import BY_LEASES, RunWatch
from chunkflow_py.monitor.dashboard.task_states import CODES
from chunkflow_py.monitor.run_status import status_of
from chunkflow_py.queue.message_body import body_text
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.ledger import ledger_segments
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.tasks.task_plan import GridPlan
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), Zyx(8, 8, 8), Zyx(8, 8, 8), Zyx(2, 3, 4)))


@pytest.fixture
def queue_url(tmp_path):
    """Where the queue is."""
    return f"sqlite://{tmp_path}/tasks.sqlite"


@pytest.fixture
def home(tmp_path, queue_url, monkeypatch):
    """A run of two stages: some of the first done, skipped, failed, to be tried again, running."""
    monkeypatch.setattr(ledger_segments, "COMPACT_EVERY", 1 << 40)  # records stay where they are
    made = planted_run(f"{tmp_path}/em.run", {"infer": PLAN, "label": PLAN}, queue_url)
    ledger = made.ledger("infer")
    ledger.record([record(PLAN, number) for number in range(10)])
    ledger.record([record(PLAN, 10, "skipped"), record(PLAN, 11, "dead", "machine-2")])
    ledger.fail(failure(PLAN, 11))
    ledger.fail(failure(PLAN, 12, kind="transient"))
    queue = open_queue(queue_url)
    hash_of = made.spec.step("infer").hash
    bodies = [body_text(PLAN.text(number), hash_of, "infer") for number in (13, 14)]
    queue.send([*bodies, body_text(PLAN.text(15), "another"), "no task"])
    assert len(queue.receive(4, 600)) == 4
    queue.send([PLAN.text(number) for number in range(15, 20)])
    queue.close()
    return made


@pytest.fixture
def server(home):
    """A dashboard of the run on a free port of loopback."""
    made = DashboardServer(RunWatch(RunDirectory(home.url), 0.5))
    yield made
    made.stop()


def get(server, path, **headers):
    """Return status, headers and unpacked body of an answer."""
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        return answer.status, answer.headers, body
    finally:
        connection.close()


def get_json(server, path):
    """Return what an answer says."""
    status, _, body = get(server, path)
    assert status == 200, body
    return json.loads(body)


def test_health_tells_version_and_memory(server, home):
    """/health answers with the resident memory, even when the run can no longer be read."""
    shutil.rmtree(urlsplit(home.url).path)
    health = get_json(server, "/health")
    assert health["version"] == version("chunkflow_py")
    assert 10e6 < health["memory_bytes"] < 100e9
    assert get(server, "/health", Host="example.org")[0] == 403


def test_numbers_agree_with_status(server, home):
    """Counts, what runs by the leases of this stage alone, the queue, errors and cost."""
    said = get_json(server, "/status.json")
    infer, label = said["stages"]
    assert infer["counts"] == {
        "none": 0, "missing": 9, "done": 10, "skipped": 1, "failed": 1, "running": 2, "retry": 1,
    }  # fmt: skip
    assert (infer["tasks"], infer["left"], infer["failed_attempts"]) == (24, 12, 2)
    assert label["counts"]["missing"] == 24
    assert (said["state"], said["stage"], said["running"]) == ("unfinished", "infer", BY_LEASES)
    assert said["queue"] == {"waiting": 5, "leased": 4, "dead": 0}
    assert sorted(group["kind"] for group in said["errors"]["groups"]) == ["permanent", "transient"]
    assert said["cost"]["spent"] == pytest.approx(said["workers"]["hours"] * 0.5)
    assert said["cost"]["foretold"] == pytest.approx(said["cost"]["spent"] * 24 / 12)
    by_status = status_of(home)
    assert said["state"] == by_status.state
    for mine, theirs in zip(said["stages"], by_status.stages, strict=True):
        counts = mine["counts"]
        assert (counts["done"], counts["skipped"], counts["failed"], mine["left"]) == (
            theirs.totals.done, theirs.totals.skipped, theirs.totals.dead, theirs.left,
        )  # fmt: skip
        assert mine["stored_bytes"] == theirs.totals.stored_bytes
        assert mine["failed_attempts"] == theirs.totals.failures


def test_the_map_is_sent_once_and_then_what_has_changed(server, home):
    """One byte a task, by number; later numbers and bytes of those that have changed."""
    get_json(server, "/status.json")
    _, headers, body = get(server, "/map.bin?stage=infer&since=0")
    words = [CODES[code] for code in body]
    assert headers["X-Whole"] == "1"
    assert words[9:16] == ["done", "skipped", "failed", "retry", "running", "running", "missing"]
    home.ledger("infer").record([record(PLAN, 20)])
    server._watch._next = 0  # it is looked at once a second at most
    get_json(server, "/status.json")
    _, after, body = get(server, f"/map.bin?stage=infer&since={headers['X-Version']}")
    assert after["X-Whole"] == "0"
    assert struct.unpack("<IB", body) == (20, CODES.index("done"))
    assert get(server, f"/map.bin?stage=infer&since={after['X-Version']}")[2] == b""


def test_one_task(server):
    """In short without reading; whole with its record, attempts and tracebacks."""
    get_json(server, "/status.json")
    brief = get_json(server, "/brief.json?stage=infer&number=11")
    assert (brief["box"], brief["state"], brief["worker"]) == (PLAN.text(11), "failed", "machine-2")
    assert (brief["attempts"], brief["failed_attempts"]) == (1, 1)
    whole = get_json(server, "/task.json?stage=infer&number=11")
    assert whole["records"][0]["reason"] == "it is broken"
    assert "<script>" in whole["failures"][0]["traceback"]
    waiting = get_json(server, "/task.json?stage=infer&number=15")
    assert (waiting["state"], waiting["worker"], waiting["records"]) == ("missing", None, [])
    first = get_json(server, "/brief.json?stage=infer&number=0")
    assert (first["attempts"], first["seconds"]) == (1, 44.0)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/status.json?stage=nothing", 404, "no step 'nothing'"),
        ("/task.json?stage=infer&number=24", 404, "no task 24"),
        ("/task.json?stage=infer&number=-1", 404, "no task -1"),
        ("/brief.json?stage=infer&number=x", 400, "'x'"),
        ("/map.bin?stage=infer&since=x", 400, "'x'"),
        ("/../../etc/passwd", 404, "there is no"),
        ("/page/index.html", 404, "there is no"),
    ],
)
def test_what_is_not_there(server, path, status, words):
    """Is told as JSON with a reason, not as a page."""
    found, headers, body = get(server, path)
    assert found == status
    assert headers["Content-Type"] == "application/json"
    assert words in json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/", "/status.json", "/nothing"])
def test_head_is_answered_like_get_without_a_body(server, path):
    """A check of health gets the status and the headers, and the connection stays usable."""
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    for method in ("HEAD", "GET"):
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == (404 if path == "/nothing" else 200)
        assert int(answer.headers["Content-Length"]) > 0
        assert bool(body) == (method == "GET")
    connection.close()


def test_a_price_is_shown_without_noise_of_floats(home):
    """A share of a price, such as 0.503 times 0.8, is shown with six digits."""
    watch = RunWatch(home, 0.503 * 0.8, "a share")
    assert 0.503 * 0.8 != 0.4024
    assert watch.status()["price"] == 0.4024
    watch.close()


def test_nothing_is_let_in(server):
    """No name of another site, no method but GET, nothing from elsewhere, nothing inline."""
    for host in ("evil.example", "evil.example:80", "10.0.0.1", ""):
        assert get(server, "/status.json", Host=host)[0] == 403
    for host in ("localhost:9000", "127.0.0.1", "[::1]:80"):
        assert get(server, "/", Host=host)[0] == 200
    for path in ("/", "/page.js", "/map.js", "/page.css"):
        status, headers, body = get(server, path)
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert b"://" not in body, "no address of another server"
        assert b"innerHTML" not in body
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    connection.request("POST", "/status.json")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_run_that_is_gone_is_told(server, home):
    """The page shows the sentence and tries again; the server goes on."""
    get_json(server, "/status.json")
    home.store.delete("spec.json")
    server._watch._next = 0
    status, _, body = get(server, "/status.json")
    assert status == 404
    assert "was deleted" in json.loads(body)["error"]
    assert get(server, "/")[0] == 200


def test_a_queue_that_cannot_be_asked_is_told(server, home, queue_url):
    """The records are shown without it."""
    Path(queue_url.removeprefix("sqlite://")).unlink()
    said = get_json(server, "/status.json")
    assert said["queue"] is None
    assert "cannot be read" in said["running"]
    assert said["stages"][0]["counts"]["done"] == 10


def test_wrong_addresses(home, server):
    """A port that is taken, an address that is none, a run that is not there."""
    port = urlsplit(server.url).port
    with pytest.raises(VolumeError, match=rf"cannot listen on 127.0.0.1:{port}: .*another --port"):
        DashboardServer(RunWatch(home), port=port)
    with pytest.raises(VolumeError, match=r"on 203\.0\.113\.1:0: .*; give a --bind-address of"):
        DashboardServer(RunWatch(home), "203.0.113.1")
    with pytest.raises(OptionError, match="there is no run at"):
        RunWatch(RunDirectory(f"{home.url}/nothing"))


def test_no_secret_is_sent(home, server):
    """Passwords and signatures of addresses that stand in a record stay with it."""
    address = "https://me:geheim@host/em?X-Amz-Signature=geheim"
    said = {"reason": f"no {address} here", "traceback": f"Error:\n  {address}\n"}
    home.ledger("infer").fail(failure(PLAN, 16, **said))
    body = get(server, "/status.json")[2] + get(server, "/task.json?stage=infer&number=16")[2]
    assert b"geheim" not in body
    assert b"no https://host/em here" in body


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_damaged_record_counts_as_none(home, is_folded):
    """The task is shown as not done, whether its record is on a page or not; all else goes on."""
    ledger = home.ledger("infer")
    ledger.record([record(PLAN, 20, seconds={"load": 1.0})])
    done = ledger.counts().done
    if is_folded:
        ledger.compact()
        pages = Path(home.url.removeprefix("file://")) / "ledger/infer/pages"
        (path,) = (each for each in pages.iterdir() if each.is_file())
        head, _, body = path.read_bytes().partition(b"\n")
        lines = gzip.decompress(body).replace(b'"load":1.0', b'"load":"?"')
        path.write_bytes(head + b"\n" + gzip.compress(lines))
    else:
        folder = Path(home.url.removeprefix("file://")) / "ledger/infer/loose"
        (path,) = folder.rglob("0.20.0.record")
        path.write_bytes(path.read_bytes().replace(b'"load":1.0', b'"load":"?"'))
    made = DashboardServer(RunWatch(RunDirectory(home.url)))
    try:
        status, _, body = get(made, "/status.json")
    finally:
        made.stop()
    assert status == 200
    header_is_sound = is_folded  # the map is drawn by headers, which verify does not believe
    counts = json.loads(body)["stages"][0]["counts"]
    assert counts["done"] == (done if header_is_sound else done - 1)


def test_a_viewer_shows_all_volumes_of_a_run(tmp_path, server):
    """/layers leads to a viewer with the inputs and outputs of all steps that exist by now."""
    pytest.importorskip("neuroglancer")
    assert get_json(server, "/status.json")["has_viewer"] is True
    status, _, body = get(server, "/layers")
    assert (status, "can show none of the volumes of this run" in body.decode()) == (404, True)
    box, block = BoundingBox((0, 0, 0), (8, 8, 16)), Zyx(8, 8, 8)
    spec = VolumeSpec(box, (4, 4, 4), np.dtype("uint8"), None, "image", block)
    create_volume(spec, f"zarr://{tmp_path}/em.zarr")
    line = f"""submit --run {tmp_path}/run
        generate-tasks --roi-start 0 0 0 --roi-size 8 8 16 --chunk-size 8 8 8
        load-zarr --store {tmp_path}/em.zarr threshold --threshold 3
        save-zarr --store {tmp_path}/out.zarr --chunk-size 8 8 8"""
    assert CliRunner().invoke(cli, line.split()).exit_code == 0
    other = DashboardServer(RunWatch(RunDirectory(f"{tmp_path}/run")))
    try:
        status, headers, _ = get(other, "/layers")
        assert status == 302
        assert get(other, "/layers")[1]["Location"] == headers["Location"]
        shown = other._server.viewers._server.viewer.state.layers
        assert [layer.name for layer in shown] == ["em.zarr", "out.zarr"]
        with urllib.request.urlopen(headers["Location"], timeout=20) as answer:
            assert b"<html" in answer.read().lower()
    finally:
        other.stop()

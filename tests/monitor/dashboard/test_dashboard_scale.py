"""A run of a million tasks: what a look takes, and how much is sent.

Times are far above what they are, as machines that run the suite are shared: they tell a look that
grows with the run from one that does not. The figures stand in docs/dashboard.md.
"""

import gzip
import http.client
import json
import random
import time
from urllib.parse import urlsplit

import pytest
from rigs.planted import fill_pages, planted_run, record

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.monitor.dashboard.dashboard_server import DashboardServer
from chunkflow_py.monitor.dashboard.run_watch import RunWatch
from chunkflow_py.monitor.dashboard.task_states import DONE
from chunkflow_py.run.ledger.ledger import SEGMENT_SIZE
from chunkflow_py.tasks.task_plan import GridPlan

SIDE = Zyx(64, 512, 512)
PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), SIDE, SIDE, Zyx(100, 100, 100)))
TASKS = 10**6
PAGES = TASKS // SEGMENT_SIZE  # the rest of the tasks is not on a page
RECORDED = 60  # pages that hold the records of their tasks


@pytest.fixture
def server(tmp_path):
    """A dashboard of a run of which all but the last tasks are done."""
    home = planted_run(str(tmp_path / "r"), {"infer": PLAN}, f"sqlite://{tmp_path}/tasks.sqlite")
    fill_pages(home.store, "infer", PLAN, range(PAGES), SEGMENT_SIZE, with_records=range(RECORDED))
    made = DashboardServer(RunWatch(home, 0.5))
    made.home = home
    yield made
    made.stop()


def get(server, path):
    """Return seconds, bytes as they were sent, and the unpacked answer."""
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    began = time.perf_counter()
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    sent = answer.read()
    took = time.perf_counter() - began
    connection.close()
    packed = answer.headers["Content-Encoding"] == "gzip"
    return took, len(sent), gzip.decompress(sent) if packed else sent


@pytest.mark.long
def test_a_million_tasks(server):
    """The first look and a later one are quick; what is sent follows what has changed."""
    took, size, body = get(server, "/status.json")
    said = json.loads(body)
    assert said["stages"][0]["counts"]["done"] == PAGES * SEGMENT_SIZE
    assert took < 15
    assert size < 20_000
    took, size, body = get(server, "/map.bin?stage=infer&since=0")
    assert (len(body), body.count(DONE)) == (TASKS, PAGES * SEGMENT_SIZE)
    assert took < 5
    assert size < 20_000
    while said["history"]["pages"]:  # records are read a bit at each look, until all are known
        took, _, body = get(server, "/status.json")
        said = json.loads(body)
        assert took < 15
    assert said["history"]["known"] == sum(said["throughput"]["done"]) == RECORDED * SEGMENT_SIZE
    assert said["workers"]["count"] == 100
    new = range(PAGES * SEGMENT_SIZE, PAGES * SEGMENT_SIZE + 50)
    server.home.ledger("infer").record([record(PLAN, number) for number in new])
    server._watch._next = 0  # it is looked at once a second at most
    took, size, body = get(server, "/status.json")
    assert json.loads(body)["stages"][0]["counts"]["done"] == PAGES * SEGMENT_SIZE + 50
    assert took < 3
    took, size, body = get(server, f"/map.bin?stage=infer&since={said['version']}")
    assert len(body) == 50 * 5
    assert took < 1
    # The worst map: tasks that end in no order at all.
    states = server._watch.stage("infer").states
    states.codes[:] = bytearray(random.Random(0).choices((1, 2), k=TASKS))
    _, size, body = get(server, "/map.bin?stage=infer&since=0")
    assert len(body) == TASKS
    assert size < 260_000

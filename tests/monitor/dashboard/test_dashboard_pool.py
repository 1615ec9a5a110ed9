"""The dashboard of all runs below a prefix: the table, and the page of each run."""

import http.client
import json
import time
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from rigs.browser import DEADLINE_S, browser
from rigs.planted import failure, planted_run, record

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.monitor.dashboard import pool_watch
from chunkflow_py.monitor.dashboard.dashboard_server import DashboardServer
from chunkflow_py.monitor.dashboard.pool_watch import PoolWatch
from chunkflow_py.monitor.pool_status import pool_status
from chunkflow_py.run.run_prefix import RunPrefix
from chunkflow_py.run.scheduling import change_scheduling
from chunkflow_py.tasks.task_plan import GridPlan

__all__ = ["browser"]  # a fixture

PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), Zyx(8, 8, 8), Zyx(8, 8, 8), Zyx(1, 2, 4)))
ODD = "a b%2F<b>.run"  # a name that must be quoted in addresses, and is no HTML


@pytest.fixture
def prefix(tmp_path):
    """Three runs: one of priority 5, one that is finished, and one that is paused."""
    urgent = planted_run(f"{tmp_path}/runs/urgent.run", {"infer": PLAN}, f"sqlite://{tmp_path}/q")
    urgent.ledger("infer").record([record(PLAN, number) for number in range(3)])
    change_scheduling(urgent.store, priority=5)
    over = planted_run(f"{tmp_path}/runs/over.run", {"infer": PLAN})
    over.ledger("infer").record([record(PLAN, number) for number in range(7)])
    over.ledger("infer").fail(failure(PLAN, 7))
    over.ledger("infer").record([record(PLAN, 7, "dead")])
    paused = planted_run(f"{tmp_path}/runs/{ODD}", {"infer": PLAN, "label": PLAN})
    change_scheduling(paused.store, paused=True)
    (tmp_path / "runs" / "no run").mkdir()
    return RunPrefix(f"{tmp_path}/runs/")


@pytest.fixture
def server(prefix):
    """A dashboard of the runs on a free port of loopback."""
    made = DashboardServer(PoolWatch(prefix, 0.5))
    yield made
    made.stop()


def get(server, path, **headers):
    """Return status, headers and body of an answer."""
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_the_table_has_the_status_of_all_runs(server, prefix):
    """In the order of the workers, with the figures of `status PREFIX --json`."""
    status, _, body = get(server, "/runs.json")
    assert status == 200
    found = json.loads(body)
    assert [each["name"] for each in found["runs"]] == ["urgent.run", ODD, "over.run"]
    wanted = json.loads(json.dumps(pool_status(prefix).to_json()))
    assert {key: found[key] for key in wanted} == wanted


def test_the_state_of_all_runs_is_the_one_furthest_from_complete(prefix):
    """Given-up tasks of one run are not hidden by runs that are complete."""
    status = pool_status(prefix)
    assert status.state == "unfinished"
    over = replace(status, runs=status.runs[2:])
    assert over.runs[0].name == "over.run"
    assert over.state == "complete but for failures"
    assert list(over.lines())[-1].endswith(": complete but for failures")
    assert replace(status, runs=()).state == "complete"


def test_each_run_has_its_page_and_data(server):
    """Below /runs/NAME/, by relative links; names are quoted."""
    for path in ("/", "/runs/over.run/", "/runs/a%20b%252F%3Cb%3E.run/"):
        status, headers, body = get(server, path)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        for name in ("common.js", "page.css", "runs.js" if path == "/" else "map.js"):
            assert name.encode() in body
            status, _, text = get(server, f"{path}{name}")
            assert status == 200
            assert b"innerHTML" not in text
            assert b"://" not in text
    counts = json.loads(get(server, "/runs/over.run/status.json")[2])["stages"][0]["counts"]
    assert (counts["done"], counts["failed"]) == (7, 1)
    assert json.loads(get(server, "/runs/over.run/task.json?number=7")[2])["state"] == "failed"
    status, headers, _ = get(server, "/runs/a%20b%252F%3Cb%3E.run")
    assert (status, headers["Location"]) == (302, "/runs/a%20b%252F%3Cb%3E.run/")


@pytest.mark.parametrize(
    "path",
    [
        "/runs/nothing/status.json", "/runs/no%20run/status.json", "/runs//status.json",
        "/runs/../status.json", "/runs/%2E%2E/status.json", "/runs/..%2Fruns/status.json",
        "/runs/over.run%2Fledger/status.json", "/runs/over.run/runs.js", "/page.js", "/status.json",
    ],
)  # fmt: skip
def test_what_is_not_there(server, path):
    """No run, no folder outside the prefix, no file of the other page."""
    status, _, body = get(server, path)
    assert status == 404
    assert "there is no " in json.loads(body)["error"]


def test_only_loopback_names(server):
    """As for the dashboard of one run."""
    assert get(server, "/runs.json", Host="example.org")[0] == 403
    assert get(server, "/health")[0] == 200


def test_only_the_runs_that_were_asked_last_stay_in_memory(prefix, monkeypatch):
    """The data of a run are dropped when more runs are looked at than stay in memory."""
    monkeypatch.setattr(pool_watch, "WATCHED", 2)
    pool = PoolWatch(prefix)
    first = pool.watch("over.run")
    pool.watch("urgent.run")
    assert pool.watch("over.run") is first
    pool.watch(ODD)
    assert list(pool._watches) == ["over.run", ODD]
    assert first.status()["stages"][0]["counts"]["done"] == 7  # one that is in use goes on
    pool.close()


def test_the_table_is_not_read_at_every_request(prefix, monkeypatch):
    """It is read again after some seconds, and a new run appears."""
    pool, read = PoolWatch(prefix), []
    monkeypatch.setattr(pool_watch, "pool_status", lambda p: read.append(1) or pool_status(p))
    pool.runs()
    planted_run(f"{prefix.url}/new.run", {"infer": PLAN})
    assert len(pool.runs()["runs"]) == 3
    assert len(read) == 1
    pool._next = 0
    assert len(pool.runs()["runs"]) == 4
    assert len(read) == 2


def seen(look):
    """Return what *look* finds as soon as it is not empty, or in the end."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@pytest.mark.browser
def test_the_table_in_a_browser(server, browser):
    """Figures and states of each run; a link leads to its page and back."""
    browser.set_window_size(1300, 700)
    browser.get(server.url)
    rows = "return [...document.querySelectorAll('#runs tbody tr')].map(r => r.innerText.trim());"
    found = seen(lambda: browser.execute_script(rows))
    assert [row.split("\t")[0] for row in found] == ["urgent.run", ODD, "over.run"]
    assert "3 of 8" in found[0]
    assert "paused" in found[1]
    assert "0 of 16" in found[1]
    assert "complete but for failures" in found[2]
    tiles = "return document.getElementById('tiles').innerText"
    assert "2 of 3\nruns unfinished" in browser.execute_script(tiles)
    assert "21\ntasks left" in browser.execute_script(tiles)
    browser.execute_script("document.querySelectorAll('#runs a')[1].click()")
    address = "return document.getElementById('address')?.innerText"
    assert seen(lambda: ODD in (browser.execute_script(address) or ""))
    browser.execute_script("document.getElementById('all').click()")
    assert len(seen(lambda: browser.execute_script(rows))) == 3
    trouble = "return document.getElementById('trouble').hidden"
    assert browser.execute_script(trouble)

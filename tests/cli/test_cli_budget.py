"""The budget of a run by the command line: submit, work, status and budget."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest
from rigs.command_line import IMAGE, LINE, SAVE, say

from chunkflow_py.monitor.dashboard.run_watch import RunWatch
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.spending import spending_of

RICH = "--cost-per-hour 3600"  # one a second


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image; runs and caches stay in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")


def submit(*options):
    """Submit a run of eight tasks."""
    return say(f"submit --run r {' '.join(options)} {LINE} threshold -t 100 {SAVE} mask.zarr")


def status():
    """Return the status of the run."""
    return json.loads(say("status r --json"))


def test_a_budget_stops_a_run_and_a_higher_one_lets_it_go_on():
    """Exit 75 and what to do; status says it too; the same for a worker that begins after that."""
    told = submit("--budget 0.001")
    assert "workers stop when they have spent 0.001 together" in told
    assert told.rstrip().endswith("--cost-per-hour PRICE")
    told = say(f"work r {RICH}", 75)
    assert "spent" in told
    assert "chunkflow budget file://" in told
    first = status()
    assert (first["state"], first["budget"]) == ("unfinished", 0.001)
    assert 0.001 < first["spent"] < 90
    told = say("status r")
    assert "spent of a budget of 0.001, so workers take no more tasks; raise the budget" in told
    assert "stopped: the workers of the run have spent" in say(f"work r {RICH}", 75)
    assert status()["spent"] == first["spent"], "who finds nothing left to spend costs nothing"
    assert "of a budget of 5,000.00" in say("budget r 5000")
    assert "is complete" in say(f"work r {RICH}")
    last = status()
    assert (last["state"], last["budget"]) == ("complete", 5000)
    assert first["spent"] < last["spent"] < first["spent"] + 90
    assert "spent of a budget of 5,000.00" in say("status r")
    assert "is complete" in say(f"work r {RICH}"), "a finished run is finished, whatever it cost"


def test_a_run_that_is_over_is_complete_although_its_budget_is_spent():
    """The cost of a finished run is no reason to say that work is left."""
    submit("--budget 5000")
    assert "is complete" in say(f"work r {RICH}")
    say("budget r 0.001")
    assert "is complete" in say(f"work r {RICH}")
    assert "raise the budget" not in say("status r")


def test_a_budget_needs_prices():
    """A worker that does not know its price is refused before its first task."""
    submit("--budget 10")
    assert "add --cost-per-hour PRICE" in say("work r", 2)
    assert status()["spent"] is None
    assert "0.00 spent of a budget of 10.00" in say("budget r")
    assert "no budget, and no costs" in say("budget r none")
    assert "is complete" in say("work r")
    assert (status()["budget"], status()["spent"]) == (None, None)


def test_costs_are_recorded_without_a_budget():
    """A worker with a price reports its cost; the sum of a finished run stays as it is."""
    submit()
    assert status()["spent"] is None
    assert "no budget, and no costs" in say("budget r")
    assert "is complete" in say(f"work r {RICH}")
    spent = status()["spent"]
    assert 0 < spent < 90
    assert "spent, without a budget" in say("status r")
    assert spending_of(RunDirectory("r").store).per_hour == 0
    assert status()["spent"] == spent
    with closing(RunWatch(RunDirectory("r"), 0.5)) as watch:
        watched = watch.status()
        assert watched["spending"].endswith("spent, without a budget")
        time.sleep(1.5)
        again = watch.status()
    assert (again["cost"], again["spending"]) == (watched["cost"], watched["spending"])
    say("report r --output report.html")
    text = f"Reported by the workers of the run: {watched['spending']}."
    assert text in Path("report.html").read_text()


def test_the_same_pipeline_with_another_budget():
    """Submitting again sets it, as for the exchange; without the option, it stays."""
    submit("--budget 10")
    assert "workers stop when they have spent 10.00 together" in submit()
    submit("--budget 20")
    assert status()["budget"] == 20


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("budget r 0", "greater than 0"),
        ("budget r nan", "a budget of nan is not possible"),
        ("budget r much", "not a valid"),
        ("budget elsewhere 3", "there is no run at"),
        ("--dry-run budget r 3", "--dry-run cannot be combined with budget"),
        ("work r --max-cost 3", "--cost-per-hour"),
        ("work r --cost-per-hour 0", "x>0"),
    ],
)
def test_what_is_refused(line, reason):
    """With the exit code 2, and the budget stays."""
    submit("--budget 10")
    assert reason in say(line, 2)
    assert status()["budget"] == 10


def test_a_wrong_budget_creates_nothing():
    """It is found before the output is created."""
    said = say(f"submit --run r --budget inf {LINE} threshold -t 100 {SAVE} mask.zarr", 2)
    assert "a budget of inf is not possible" in said
    assert not Path("mask.zarr").exists()
    assert not Path("r").exists()


def test_costs_of_a_deleted_run_are_not_those_of_a_new_one():
    """A run directory without its spec, but with costs, is refused."""
    submit()
    say(f"work r {RICH}")
    Path("r/spec.json").unlink()
    shutil.rmtree("r/ledger")
    told = say(f"submit --run r {LINE} threshold -t 100 {SAVE} other.zarr", 2)
    assert "count towards the budget of a new run; delete" in told


def test_a_damaged_budget_stops_no_status_but_workers():
    """Workers refuse to begin; status warns."""
    submit("--budget 10")
    Path("r/budget.json").write_text("much")
    assert "is not a budget such as" in say(f"work r {RICH}", 2)
    assert "is not a budget such as" in say("status r")

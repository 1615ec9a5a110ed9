"""A worker of a pool: priorities, pauses, signatures, and runs that it leaves out."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.command_line import IMAGE, LINE, SAVE, say

from chunkflow_py.cli.run_pipelines import pipeline_of_step
from chunkflow_py.errors import OptionError
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.run_prefix import MOST_RUNS, RunPrefix, is_run_prefix
from chunkflow_py.run.scheduling import Scheduling, change_scheduling, scheduling_of
from chunkflow_py.run.signatures import TrustedKeys
from chunkflow_py.run.worker import files_ahead
from chunkflow_py.run.worker.files_ahead import FilesAhead
from chunkflow_py.run.worker.run_pool import RunPool, work_on_pool
from chunkflow_py.run.worker.supervisor import WorkerListener
from chunkflow_py.run.worker.worker import WorkOptions
from chunkflow_py.run.worker.worker_limits import WorkerLimits, WorkerSettings
from chunkflow_py.store import open_store
from chunkflow_py.store.folder_store import FolderStore

PLUGIN = "def execute(chunk):\n    return chunk\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image; runs and caches stay in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    return tmp_path


def submit(name, *options, operators="threshold -t 100"):
    """Submit a run of eight tasks to the pool."""
    return say(
        f"submit --run runs/{name} --no-rehearse {' '.join(options)} {LINE} {operators} "
        f"{SAVE} {name}.zarr"
    )


def submit_slow(name, seconds):
    """Submit a run with slow tasks; return the paths of the keys that have signed it."""
    Path("slow.py").write_text(
        f"import time\n\ndef execute(chunk):\n    time.sleep({seconds})\n    return chunk\n"
    )
    private, public = make_keys("key")
    operators = "plugin --file slow.py --input-names chunk threshold -t 100"
    submit(name, f"--sign-key {private}", operators=operators)
    return private, public


def make_keys(name):
    """Write a pair of keys; return their paths."""
    private, public = f"{name}.pem", f"{name}.pub.pem"
    for line in (
        ("openssl", "genpkey", "-algorithm", "ed25519", "-out", private),
        ("openssl", "pkey", "-in", private, "-pubout", "-out", public),
    ):
        subprocess.run(line, check=True, capture_output=True)
    return private, public


class Order(WorkerListener):
    """Keeps the name of the run of each recorded task, and may act after a number of tasks."""

    def __init__(self, then=None, after=1):
        self.runs, self.messages = [], []
        self._then, self._after, self._now = then, after, ""

    def run_started(self, run_directory):
        self._now = Path(run_directory.url).name

    def task_ended(self, record):
        self.runs.append(self._now)
        if self._then is not None and len(self.runs) == self._after:
            self._then()

    def changed(self, message):
        self.messages.append(message)


def work(listener=None, keys=None, **limits):
    """Work on the pool in this process, with looks twice a second."""
    until_complete = limits.pop("until_complete", True)
    settings = WorkerSettings(
        limits=WorkerLimits(**limits), watches_notices=False, receive_wait_s=0.2
    )
    options = WorkOptions(settings, "tester", threads=1, until_complete=until_complete)
    pool = RunPool(RunPrefix("runs/"), keys, interval_s=0.5)
    return work_on_pool(pool, options, pipeline_of_step, listener or WorkerListener())


def state(name):
    """Return the state of a run."""
    return json.loads(say(f"status runs/{name} --json"))["state"]


def test_runs_are_taken_by_priority_then_by_name():
    """All tasks of one run before the first of the next."""
    submit("b")
    submit("c", "--priority 7")
    submit("a")
    order = Order()
    code, message = work(order)
    assert code == 0
    assert "all 3 runs of file://" in message
    assert order.runs == ["c"] * 8 + ["a"] * 8 + ["b"] * 8
    for name in "abc":
        assert state(name) == "complete"


def test_a_run_of_higher_priority_comes_first_as_soon_as_it_is_submitted():
    """A worker leaves the run that it works on, and goes back to it."""
    private, public = submit_slow("low", 2)

    def urgent():
        submit("urgent", "--priority 5", f"--sign-key {private}")

    order = Order(then=urgent, after=2)
    assert work(order, TrustedKeys(public))[0] == 0
    first = order.runs.index("urgent")
    assert order.runs[first : first + 8] == ["urgent"] * 8
    assert 2 <= first < 8
    assert order.runs.count("low") == 8
    assert any("urgent has a higher priority" in message for message in order.messages)


def test_a_paused_run_waits_until_it_is_resumed():
    """Other runs go on; with nothing else left, the worker says what it leaves out."""
    submit("a")
    submit("b")
    assert "is paused" in say("pause runs/a")
    order = Order()
    code, message = work(order)
    assert (code, order.runs) == (75, ["b"] * 8)
    assert message.endswith("refused them for the reasons in its log: a")
    told = say("work runs/a", 75)
    assert "is paused; go on with chunkflow resume file://" in told
    assert "no longer paused" in say("resume runs/a")
    assert work(order)[0] == 0
    assert order.runs == ["b"] * 8 + ["a"] * 8


def test_a_run_can_be_paused_while_a_worker_runs():
    """The pause stops the worker between two tasks; it waits, and goes on when told to."""
    _, public = submit_slow("a", 0.4)
    keys = TrustedKeys(public)
    order = Order(then=lambda: say("pause runs/a"))
    code, message = work(order, keys, idle_exit_s=2.0, until_complete=False)
    assert (code, message) == (75, message)
    assert "no task arrived for" in message
    assert 1 <= len(order.runs) < 8
    assert any("is paused" in each for each in order.messages)
    say("resume runs/a")
    assert work(order, keys)[0] == 0
    assert len(order.runs) == 8


class Times(Order):
    """Keeps when each task has ended."""

    def __init__(self):
        super().__init__()
        self.when = []

    def task_ended(self, record):
        super().task_ended(record)
        self.when.append(time.monotonic())

    def gap_s(self):
        """Return the seconds between the last task of the first run and the first of the next."""
        first = self.runs.index(self.runs[-1])
        return self.when[first] - self.when[first - 1]


@pytest.fixture
def fetches(monkeypatch):
    """A store that needs three seconds for each file of a run; the files that were fetched."""
    asked = []
    get = FolderStore.get

    def slow(self, key, *args):
        if key.startswith("files/"):
            asked.append(f"{Path(self.url).name}/{key}")
            time.sleep(3)
        return get(self, key, *args)

    monkeypatch.setattr(FolderStore, "get", slow)
    return asked


@pytest.mark.parametrize("ahead", [True, False])
def test_files_of_the_next_run_are_fetched_ahead(ahead, fetches, monkeypatch):
    """The first task of the next run does not wait for them; each is fetched once."""
    private, public = submit_slow("a", 0.7)
    Path("slow.py").write_text(f"# another file\n{PLUGIN}")
    operators = "plugin --file slow.py --input-names chunk threshold -t 100"
    submit("b", f"--sign-key {private}", operators=operators)
    fetches.clear()
    if not ahead:
        monkeypatch.setattr(FilesAhead, "_keep_fetching", lambda *_: None)
    times = Times()
    assert work(times, TrustedKeys(public))[0] == 0
    assert times.runs == ["a"] * 8 + ["b"] * 8
    assert [each.partition("/")[0] for each in fetches] == ["a", "b"]
    print(f"files ahead: {ahead}, gap between runs: {times.gap_s():.2f} s")  # noqa: T201
    is_fetched_between = times.gap_s() > 3
    assert is_fetched_between is not ahead


def test_a_file_that_is_being_fetched_is_waited_for(fetches):
    """A worker that changes runs meanwhile does not fetch it a second time."""
    private, public = submit_slow("a", 0.1)
    Path("slow.py").write_text(f"# another file\n{PLUGIN}")
    operators = "plugin --file slow.py --input-names chunk threshold -t 100"
    submit("b", f"--sign-key {private}", operators=operators)
    fetches.clear()
    order = Order()
    assert work(order, TrustedKeys(public))[0] == 0
    assert order.runs == ["a"] * 8 + ["b"] * 8
    assert [each.partition("/")[0] for each in fetches] == ["a", "b"]


def test_files_of_a_run_that_may_not_run_are_not_fetched(fetches):
    """A run that no trusted key has signed is left out, with its files."""
    _, public = submit_slow("a", 0.5)
    Path("slow.py").write_text(f"# another file\n{PLUGIN}")
    submit("b", operators="plugin --file slow.py --input-names chunk threshold -t 100")
    fetches.clear()
    assert work(None, TrustedKeys(public))[0] == 75
    assert [each.partition("/")[0] for each in fetches] == ["a"]


def test_a_step_with_large_files_is_not_fetched_ahead(fetches, monkeypatch):
    """Its files would fill memory and disk of a worker that is still at work."""
    monkeypatch.setattr(files_ahead, "_MOST_BYTES", 10)
    submit_slow("b", 0.5)
    fetches.clear()
    ahead = FilesAhead()
    ahead._fetch(RunDirectory("runs/b"), threading.Event())
    assert fetches == []
    monkeypatch.setattr(files_ahead, "_MOST_BYTES", 1000)
    ahead._fetch(RunDirectory("runs/b"), threading.Event())
    ahead._fetch(RunDirectory("runs/b"), threading.Event())
    assert len(fetches) == 1


def test_limits_hold_for_all_runs_together():
    """The worker stops after --max-tasks of two runs."""
    submit("a")
    submit("b")
    order = Order()
    code, message = work(order, max_tasks=11)
    assert code == 75
    assert "--max-tasks" in message
    assert 11 <= len(order.runs) <= 12
    assert order.runs[:8] == ["a"] * 8


def test_a_worker_waits_for_new_runs(folder):
    """With --no-until-complete an empty pool is no error, and the worker leaves when it is idle."""
    (folder / "runs").mkdir()
    code, message = work(idle_exit_s=1.5, until_complete=False)
    assert (code, message) == (0, message)
    assert "no task arrived for" in message
    with pytest.raises(OptionError, match="there is no run at file://.*runs/"):
        work()


def test_code_runs_only_if_it_is_signed_by_a_trusted_key(folder, caplog):
    """Unsigned, signed by somebody else, changed after signing: left out, with a warning."""
    (folder / "plug.py").write_text(PLUGIN)
    ours, our_public = make_keys("ours")
    theirs, _ = make_keys("theirs")
    code = "plugin --file plug.py --input-names chunk threshold -t 100"
    submit("data")
    submit("unsigned", operators=code)
    submit("signed", f"--sign-key {ours}", operators=code)
    submit("foreign", f"--sign-key {theirs}", operators=code)
    order = Order()
    assert work(order)[0] == 75
    assert order.runs == ["data"] * 8, "without a key, no code"
    assert "signed: this run is left out: it runs the plugin plug.py" in caplog.text
    caplog.clear()
    assert work(order, TrustedKeys(our_public))[0] == 75
    assert order.runs[8:] == ["signed"] * 8, "unsigned runs are refused, with or without code"
    for name in ("unsigned", "foreign"):
        assert f"{name}: this run is left out: none of the keys" in caplog.text
    assert say(f"work runs/foreign --trust-key {our_public}", 2).count("has signed the spec") == 1
    # Whoever can write to the run could place a spec before it is signed.
    spec = RunDirectory("runs/unsigned").spec
    arguments = tuple(each.replace("100", "101") for each in spec.steps[0].arguments)
    assert arguments != spec.steps[0].arguments
    placed = replace(spec, steps=(replace(spec.steps[0], arguments=arguments),))
    Path("runs/unsigned/spec.json").write_bytes(placed.content)
    Path("runs/unsigned/spec.sha256").unlink()
    told = say(
        f"submit --run runs/unsigned --no-rehearse --sign-key {ours} {LINE} {code} "
        f"{SAVE} unsigned.zarr", 2
    )  # fmt: skip
    assert "cannot sign" in told
    assert not Path("runs/unsigned/spec.sig").exists()
    # A spec that was replaced is another spec, and has no signature.
    spec = Path("runs/unsigned/spec.json").read_bytes()
    Path("runs/signed/spec.json").write_bytes(spec)
    Path("runs/signed/spec.sha256").unlink()
    assert not TrustedKeys(our_public).has_signed(RunDirectory("runs/signed"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]" * 400, b'{"priority": "5", "paused": false}'])
def test_a_broken_run_does_not_end_the_pool(folder, caplog, content):
    """It is left out with one warning; so is a spec that is none."""
    submit("a")
    submit("b")
    Path("runs/a/scheduling.json").write_bytes(content)
    (folder / "runs" / "c").mkdir()
    (folder / "runs" / "c" / "spec.json").write_bytes(content)
    order = Order()
    code, _ = work(order, until_complete=False, idle_exit_s=1.5)
    assert code == 75
    assert order.runs == ["b"] * 8
    assert caplog.text.count("runs/a: this run is left out") == 1
    assert caplog.text.count("runs/c: this run is left out") == 1
    say("priority runs/a 3")
    assert scheduling_of(open_store("runs/a")) == Scheduling(3, paused=False)


def test_priorities_are_bounded_and_can_be_changed():
    """A number that no priority can have is refused before anything is stored."""
    assert "between -1000 and 1000, but is 1001" in submit_refused("--priority 1001")
    submit("a", "--priority -4")
    assert say("priority runs/a").rstrip().endswith(": priority -4")
    say("pause runs/a")
    assert say("priority runs/a 12").rstrip().endswith(": priority 12, paused")
    assert "there is no run at" in say("pause runs/none", 2) + say("priority runs/none 1", 2)
    assert "but is 9999" in say("priority runs/a 9999", 2)


def submit_refused(*options):
    """Submit a run, which is refused."""
    return say(f"submit --run runs/a {' '.join(options)} {LINE} threshold -t 1 {SAVE} a.zarr", 2)


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"no key", "--sign-key"), (b"no key", "--trust-key"), (b"", "--trust-key")],
)
def test_keys_that_are_none_say_how_to_make_them(content, kind):
    """One sentence with the two commands of openssl."""
    Path("bad.pem").write_bytes(content)
    if kind == "--sign-key":
        told = submit_refused("--sign-key bad.pem")
    else:
        told = say("work runs/ --trust-key bad.pem", 2)
    assert "contains no Ed25519" in told
    assert "openssl genpkey -algorithm ed25519" in told
    assert "cannot read the key none.pem" in say("work runs/ --trust-key none.pem", 2)


def test_a_prefix_is_no_run_and_a_run_is_no_prefix():
    """The slash at the end decides, unless there is a spec."""
    submit("a")
    assert is_run_prefix("runs/")
    assert not is_run_prefix("runs")
    assert not is_run_prefix("runs/a/")
    assert "is complete" in say("work runs/a/")


def test_a_prefix_with_too_many_folders_says_so(caplog):
    """The first thousand by name are searched."""
    store = open_store("mem://crowd")
    for number in range(MOST_RUNS + 5):
        store.put(f"{number:06}/x", b"")
    prefix = RunPrefix("mem://crowd")
    assert prefix.runs() == {}
    assert f"only the first {MOST_RUNS}" in caplog.text


def test_changes_of_priority_and_pause_keep_each_other():
    """Both are in one file."""
    store = open_store("mem://scheduling")
    change_scheduling(store, priority=3)
    change_scheduling(store, paused=True)
    assert scheduling_of(store) == Scheduling(3, paused=True)
    change_scheduling(store, paused=False)
    assert scheduling_of(store) == Scheduling(3, paused=False)


def test_time_and_cost_are_limited_over_all_runs():
    """What a worker has used for one run is missing for the next."""
    limits = WorkerLimits(walltime_s=100.0, max_cost=1.0, cost_per_hour=3600.0, max_tasks=10)
    first = limits.after(0.25, 4)
    assert first.after(0.5, 3).spent_s == 0.75
    assert first.after(0.5, 3).max_tasks == 3
    assert first.after(0.5, 3).deadline_s == pytest.approx(0.25)
    assert first.after(0.8, 0).reached is not None


def test_the_status_of_a_prefix_lists_its_runs():
    """In the order in which they are taken; as a table and as JSON."""
    submit("b", "--priority 2")
    submit("a")
    say("work runs/a")
    say("pause runs/b")
    lines = say("status runs/").splitlines()
    assert [line.split()[:3] for line in lines[:3]] == [
        ["run", "priority", "state"], ["b", "2", "paused"], ["a", "0", "complete"],
    ]  # fmt: skip
    assert "0 of 8" in lines[1]
    assert "8 of 8" in lines[2]
    assert lines[3].startswith("2 runs of file://")
    assert lines[3].endswith("/runs/: unfinished")
    told = json.loads(say("status runs/ --json"))
    assert [(run["name"], run["paused"]) for run in told["runs"]] == [("b", True), ("a", False)]
    assert told["runs"][1]["state"] == "complete"
    assert "--watch shows one run" in say("status runs/ --watch 1", 2)
    assert "no run in a folder below it" in say("status nothing/", 2)


def test_a_run_whose_budget_is_spent_is_left_out(caplog):
    """The worker goes on with the next run, and does not wait for more money."""
    submit("a", "--priority 2", "--budget 0.0001")
    submit("b")
    order = Order()
    code, message = work(order, cost_per_hour=3600.0, max_cost=1000.0)
    assert code == 75
    assert "the reasons in its log: a" in message
    assert order.runs.count("b") == 8
    assert order.runs.count("a") < 8
    assert "a: this run is left out: the workers of the run have spent" in caplog.text
    say("budget runs/a none")
    assert work(order, cost_per_hour=3600.0, max_cost=1000.0)[0] == 0
    assert order.runs.count("a") == 8

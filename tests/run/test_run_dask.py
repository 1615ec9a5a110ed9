"""A run on a cluster of Dask: two worker processes that are killed, hang, refuse and go on."""

import json
import logging
import os
import shlex
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.command_parts import operators_of
from chunkflow_py.cli.main import main
from chunkflow_py.cli.run_pipelines import pipeline_of_step
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import OptionError
from chunkflow_py.run.dask import dask_run
from chunkflow_py.run.dask.dask_run import run_on_dask
from chunkflow_py.run.dask.dask_worker import (
    NotEndedError,
    WorkOrder,
    perform,
    release,
    versions_here,
)
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.step_pipeline import StepPipeline
from chunkflow_py.run.submit import submit
from chunkflow_py.run.worker.failure_policy import AttemptLimits
from chunkflow_py.run.worker.worker import WorkOptions
from chunkflow_py.run.worker.worker_limits import TaskLimit, WorkerLimits, WorkerSettings
from chunkflow_py.volume.files.hdf5 import write_hdf5

distributed = pytest.importorskip("distributed")

SIZE = (8, 16, 32)
BOXES = [f"{z}-{z + 4}_{y}-{y + 8}_{x}-{x + 16}" for z in (0, 4) for y in (0, 8) for x in (0, 16)]

# Notes in which process it is loaded and called, and does with some boxes what it is told.
PLUGIN = """
import os, signal, time
from pathlib import Path

FOLDER = Path({folder!r})
ACTS = {acts!r}

def note(what):
    with (FOLDER / what).open("a") as file:
        file.write(f"{{os.getpid()}}\\n")
    return len((FOLDER / what).read_text().splitlines())

note("loaded")

def execute(chunk):
    start = chunk.bbox.start
    times = note(f"begun-{{start.z}}-{{start.y}}-{{start.x}}")
    act, _, most = ACTS.get(tuple(start), "").partition("@")
    if act and times <= int(most or 1000):
        if act == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif act == "hangs":
            time.sleep(3600)
        elif act == "fills":
            raise OSError(28, "No space left on device")
        elif act == "starves":
            raise MemoryError
        elif act == "disconnects":
            raise ConnectionResetError(104, "Connection reset by peer")
        raise ValueError("this box is poison")
    time.sleep({seconds})
"""

# Counts how often the network is made in a process.
NETWORK = """
import os, torch

class Same(torch.nn.Module):
    def __init__(self):
        super().__init__()
        with open({path!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")

    def forward(self, x):
        return x

InstantiatedModel = Same()
"""


NETWORK_OF = shlex.split("inference -s 4 8 16 -v 1 2 4 -c 1 --device cpu --framework")


@pytest.fixture(scope="module")
def cluster():
    """Two workers of one thread each; who is killed once with a task in hand is given up."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(**options, silence_logs=logging.CRITICAL) as made:
        made.scheduler.allowed_failures = 0
        yield made


@pytest.fixture
def raw(tmp_path):
    """Write a volume of 8 tasks."""
    array = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
    write_hdf5(tmp_path / "raw.h5", Chunk(array, (0, 0, 0), (1.0, 1.0, 1.0), "image"))
    return tmp_path / "raw.h5"


def words(raw, *middle, out):
    """Return the commands of a line, each with its words."""
    return [
        ["generate-tasks", "-v", f"h5://{raw}", "-c", "4", "8", "16"],
        ["load-h5", "-f", str(raw), "--expand-margin-size", "auto"],
        *middle,
        ["save-zarr", "-s", str(out)],
    ]


def plugin(tmp_path, acts=None, seconds=0.0):
    """Return the command of a plugin that acts on some boxes."""
    starts = {tuple(int(p.split("-")[0]) for p in box.split("_")): a for box, a in acts.items()} \
        if acts else {}  # fmt: skip
    notes = tmp_path / "notes"
    notes.mkdir(exist_ok=True)
    text = PLUGIN.format(folder=str(notes), acts=starts, seconds=seconds)
    (tmp_path / "acts.py").write_text(text)
    return ["plugin", "-f", str(tmp_path / "acts.py"), "-i", "chunk"]


def submitted(tmp_path, commands):
    """Make a run of one stage, and return its home."""
    (source,) = read_line(commands[0])
    operators = tuple(operators_of(read_line([w for each in commands[1:] for w in each])))
    rest = tuple(map(tuple, commands[1:]))
    line = StepPipeline("work", source, operators, rest, tuple(commands[0]))
    home = RunDirectory.parse(f"file://{tmp_path}/work.run")
    submit(home, [line], "", rehearse=False)
    return home


def carried_out(home, cluster, **settings):
    """Carry a run out; what has failed is tried again at once."""
    working = WorkOptions(WorkerSettings(retry_s=0.05, **settings), "client")
    return run_on_dask(home, cluster.scheduler_address, pipeline_of_step, working)


def records(home):
    """Return all records by box."""
    return {record.box: record for record in home.ledger("work").records()}


def begun(tmp_path, box):
    """Return how often a task has begun."""
    z, y, x = (part.split("-")[0] for part in box.split("_"))
    path = tmp_path / "notes" / f"begun-{z}-{y}-{x}"
    return len(path.read_text().splitlines()) if path.exists() else 0


def files(folder):
    """Return what is stored of the voxels of a volume."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("c/**/*")
            if path.is_file()}  # fmt: skip


NETWORK_WORDS = shlex.split("inference -s 4 8 16 -v 1 2 4 -c 1 --device cpu")


def test_same_bytes_and_one_network_a_worker(tmp_path, raw, cluster):
    """The line gives the bytes of a plain one; a worker loads the network once for its tasks."""
    (tmp_path / "same.py").write_text(NETWORK.format(path=str(tmp_path / "made")))
    network = [*NETWORK_WORDS, "--framework", "pytorch", "-m", str(tmp_path / "same.py")]
    line = [network, plugin(tmp_path)]
    plain = [w for each in words(raw, *line, out=tmp_path / "plain.zarr") for w in each]
    with pytest.raises(SystemExit) as stop:
        main(["--quiet", *plain])
    assert stop.value.code == 0
    (tmp_path / "made").unlink()
    (tmp_path / "notes" / "loaded").unlink()
    on = ["run", "--on", f"dask:{cluster.scheduler_address.removeprefix('tcp:')}"]
    dask = [w for each in words(raw, *line, out=tmp_path / "dask.zarr") for w in each]
    with pytest.raises(SystemExit) as stop:
        main(["--quiet", *on, *dask])
    assert stop.value.code == 0
    assert files(tmp_path / "plain.zarr") == files(tmp_path / "dask.zarr") != {}
    home = RunDirectory.parse(f"{tmp_path}/dask.zarr.run")
    stage = home.spec.steps[0].name
    found = list(home.ledger(stage).records())
    assert sorted(record.box for record in found) == sorted(BOXES)
    assert all(record.stored_bytes and "torch" in record.profile for record in found)
    workers = {record.worker.rpartition("-")[2] for record in found}
    # The model is looked at once more where the line is checked, in every process that makes it.
    loaded = (tmp_path / "notes" / "loaded").read_text().split()
    made = (tmp_path / "made").read_text().split()
    assert sorted(loaded) == sorted(set(loaded)) >= sorted(workers)
    assert {pid: made.count(pid) for pid in workers} == dict.fromkeys(workers, 1)
    assert home.is_closed(stage)


def test_stopped_and_resumed(tmp_path, raw, cluster):
    """A signal stops the run with work left; the same again does what is missing, and only that."""
    home = submitted(tmp_path, words(raw, plugin(tmp_path, seconds=0.5), out=tmp_path / "a.zarr"))
    ended = threading.Event()

    def interrupt():
        while not records(home) and not ended.is_set():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    late = []  # signals that have come when the run had ended
    before_us = signal.signal(signal.SIGTERM, lambda number, _: late.append(number))
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        code, said = carried_out(home, cluster)
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGTERM, before_us)
    assert (code, "got SIGTERM" in said, late) == (75, True, []), said
    end = time.monotonic() + 30
    while sum(begun(tmp_path, box) for box in BOXES) > len(records(home)):
        assert time.monotonic() < end, "what has begun is finished by the workers"
        time.sleep(0.05)
    before = records(home)
    assert 1 <= len(before) < 7
    code, said = carried_out(home, cluster, limits=WorkerLimits(max_tasks=1))
    assert (code, "1 tasks have ended" in said) == (75, True), said
    # workers finish what they have begun when the limit is reached
    assert len(before) < len(records(home)) < 8
    assert carried_out(RunDirectory.parse(home.url), cluster)[0] == 0
    after = records(home)
    assert sorted(after) == sorted(BOXES)
    assert {box: after[box].attempt for box in before} == {b: r.attempt for b, r in before.items()}
    assert [begun(tmp_path, box) for box in BOXES] == [1] * 8


def test_killed_worker(tmp_path, raw, cluster):
    """A worker that is killed costs its task in hand, which is done again; nothing is lost."""
    acts = plugin(tmp_path, {BOXES[2]: "dies@1"}, 0.05)
    home = submitted(tmp_path, words(raw, acts, out=tmp_path / "a.zarr"))
    cluster.scheduler.allowed_failures = 3
    try:
        assert carried_out(home, cluster)[0] == 0
    finally:
        cluster.scheduler.allowed_failures = 0
    assert sorted(records(home)) == sorted(BOXES)
    assert begun(tmp_path, BOXES[2]) == 2
    assert not list(home.ledger("work").failures())


def test_task_that_kills_its_worker(tmp_path, raw, cluster):
    """It is given up with the reason, after it ran alone; who was beside it is not blamed."""
    acts = plugin(tmp_path, {BOXES[0]: "dies"}, 0.05)
    home = submitted(tmp_path, words(raw, acts, out=tmp_path / "a.zarr"))
    code, said = carried_out(home, cluster, max_failures=2)
    assert code == 1, said
    assert "1 of them as failed" in said
    states = {box: record.state for box, record in records(home).items()}
    assert states == dict.fromkeys(BOXES, "done") | {BOXES[0]: "dead"}
    assert "a worker died once while running only this task" in records(home)[BOXES[0]].reason
    kinds = [f.kind for f in home.ledger("work").failures() if f.box == BOXES[0]]
    # On a busy machine it may die beside others more than once before it is alone.
    assert kinds.count("permanent") == 2
    assert set(kinds) == {"permanent", "transient"}


def test_task_that_raises(tmp_path, raw, cluster):
    """It is given up after three attempts, each with its traceback; the stage stays open."""
    acts = plugin(tmp_path, {BOXES[3]: "raises", BOXES[5]: "raises@2"})
    home = submitted(tmp_path, words(raw, acts, out=tmp_path / "a.zarr"))
    code, said = carried_out(home, cluster)
    assert code == 1, said
    dead = [record for record in records(home).values() if record.state == "dead"]
    assert [record.box for record in dead] == [BOXES[3]]
    assert dead[0].reason.startswith("failed 3 times, the last time: plugin failed on task")
    failures = [f for f in home.ledger("work").failures() if f.box == BOXES[3]]
    assert len(failures) == 3
    assert all('raise ValueError("this box is poison")' in f.traceback for f in failures)
    assert all(f.seconds > 0 for f in failures)
    assert not home.is_closed("work")
    assert carried_out(home, cluster)[0] == 1  # nothing is left to do
    assert begun(tmp_path, BOXES[3]) == 3


@pytest.mark.long
def test_task_that_hangs(tmp_path, raw, cluster):
    """It is cut off after its limit, with where it was; its process ends itself and is replaced."""
    acts = plugin(tmp_path, {BOXES[1]: "hangs@1"})
    home = submitted(tmp_path, words(raw, acts, out=tmp_path / "a.zarr"))
    assert carried_out(home, cluster, task_limit=TaskLimit(2.0))[0] == 0
    assert {record.state for record in records(home).values()} == {"done"}
    failures = [f for f in home.ledger("work").failures() if f.kind == "permanent"]
    assert [f.box for f in failures] == [BOXES[1]]
    assert "s in operator plugin: --task-limit allows 2 s" in failures[0].reason
    assert "time.sleep(3600)" in failures[0].traceback
    assert failures[0].seconds > 2


def test_shortage_is_no_fault_of_a_task(tmp_path, raw, cluster):
    """A full disk, little memory and a lost connection pass; none is counted as a task's own."""
    acts = {BOXES[0]: "disconnects@2", BOXES[4]: "fills@2", BOXES[6]: "starves@1"}
    home = submitted(tmp_path, words(raw, plugin(tmp_path, acts), out=tmp_path / "a.zarr"))
    code, said = carried_out(home, cluster, disk_wait_s=0.1, max_failures=2)
    assert code == 0, said
    assert {record.state for record in records(home).values()} == {"done"}
    failures = [(f.box, f.kind) for f in home.ledger("work").failures() if f.box != BOXES[6]]
    assert failures == [(BOXES[0], "transient")] * 2
    assert [begun(tmp_path, BOXES[k]) for k in (0, 4, 6)] == [3, 3, 2]


def test_two_at_once(tmp_path, raw, cluster):
    """Two clients of one run share the work or do it twice: each task has one record."""
    home = submitted(tmp_path, words(raw, plugin(tmp_path, seconds=0.1), out=tmp_path / "a.zarr"))
    codes = []

    def carry_out():
        codes.append(carried_out(RunDirectory.parse(home.url), cluster)[0])

    threads = [threading.Thread(target=carry_out) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0, 0]
    assert sorted(record.box for record in home.ledger("work").records()) == sorted(BOXES)


@pytest.mark.long
def test_other_profile_is_refused(tmp_path, raw, cluster):
    """A worker that would compute other bytes gets no task, and the run ends with the reason."""
    network = [*NETWORK_WORDS, "--framework", "identity"]
    home = submitted(tmp_path, words(raw, network, out=tmp_path / "a.zarr"))
    home.store.put("stages/work/profile.json", json.dumps({"device": "abacus"}).encode())
    with pytest.raises(OptionError, match="worker .* cannot run tasks of this run: .*abacus"):
        carried_out(home, cluster)
    assert not records(home)


def test_other_versions_are_refused(tmp_path, raw, cluster, monkeypatch):
    """Another version of Dask on a worker is named, with where it is, before anything is sent."""
    home = submitted(tmp_path, words(raw, plugin(tmp_path), out=tmp_path / "a.zarr"))
    cluster.wait_for_workers(1, timeout=60)  # earlier tests may have killed them
    really = distributed.versions.get_package_info

    def older(packages):
        return really(packages) | {"distributed": "2020.1.0"}

    monkeypatch.setattr(distributed.versions, "get_package_info", older)  # not of other processes
    with pytest.raises(OptionError, match=r"worker tcp://.* this machine has version 2020\.1\.0"):
        carried_out(home, cluster)
    assert not records(home)


def test_other_versions_of_a_worker_that_joins_later(tmp_path, raw):
    """It was not there to be asked, so it looks for itself: it refuses its first task."""
    home = submitted(tmp_path, words(raw, plugin(tmp_path), out=tmp_path / "a.zarr"))
    same, *others = versions_here()
    order = WorkOrder(
        home.address,
        "work",
        pipeline_of_step,
        AttemptLimits(),
        versions=(same, ("dask", "2020.1.0")),
    )
    with pytest.raises(
        NotEndedError, match="this worker has dask .*, but the client has version 2020.1.0"
    ) as said:
        perform(order, 0)
    assert said.value.task.state == "refused", "which ends the run"
    perform(replace(order, versions=(same, *others)), 0)
    release(order.run)
    assert len(records(home)) == 1


def test_no_scheduler(tmp_path, raw, monkeypatch):
    """Where no scheduler answers, work is left, and the address is named."""
    home = submitted(tmp_path, words(raw, plugin(tmp_path), out=tmp_path / "a.zarr"))
    monkeypatch.setattr(dask_run, "CONNECT_S", 0.5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        working = WorkOptions(WorkerSettings(), "client")
        code, said = run_on_dask(home, address, pipeline_of_step, working)
    assert (code, address in said) == (75, True)


def test_what_the_cluster_decides_is_refused(tmp_path):
    """Options of workers of one machine are named, and not left out in silence."""
    home = RunDirectory.parse(f"{tmp_path}/none.run")
    working = WorkOptions(
        WorkerSettings(processes=3, devices=("0",)), "client", until_complete=False
    )
    with pytest.raises(OptionError, match="--processes, --gpus, --no-until-complete"):
        run_on_dask(home, "tcp://127.0.0.1:1", pipeline_of_step, working)


def test_pipelines_are_released(tmp_path, raw, cluster):
    """When the run has ended workers hold nothing of it; a path names it in the run alone."""
    home = submitted(tmp_path, words(raw, plugin(tmp_path), out=tmp_path / "a.zarr"))
    Path(tmp_path / "acts.py").unlink()  # workers take it from the run
    assert carried_out(home, cluster)[0] == 0
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        end = time.monotonic() + 30
        while any(client.run(pipelines_held).values()):
            assert time.monotonic() < end
            time.sleep(0.05)


def pipelines_held():
    """Return how many pipelines this process holds."""
    from chunkflow_py.run.dask import dask_worker

    names = [thread.name for thread in threading.enumerate()]
    return len(dask_worker._pipelines) + sum(name.startswith("pipeline-") for name in names)

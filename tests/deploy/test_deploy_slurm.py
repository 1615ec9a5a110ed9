"""deploy/slurm/: the scripts, on a cluster of Slurm where it is installed."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_rig

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "slurm"
BIN = Path(sys.executable).parent
SCRIPTS = sorted(FOLDER.rglob("*.sh"))
SLOW = """
import time
def execute(chunk):
    time.sleep(0.5)
    return chunk
"""
SHAPE = ["64", "32", "32"]  # in tasks of 16: 16 of them
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script):
    """Bash reads the scripts, shellcheck finds nothing in them, and they can be started."""
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    if program := shutil.which("shellcheck", path=f"{BIN}:{os.environ['PATH']}"):
        done = subprocess.run([program, script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")


def directives(script):
    """Return what a script tells sbatch."""
    return re.findall(r"^#SBATCH (.*)$", script.read_text(), re.MULTILINE)


def test_workers_are_warned_and_queued_again():
    """Slurm warns the script alone, long enough before the end for the grace it gives."""
    script = FOLDER / "workers.sh"
    assert {"--requeue", "--open-mode=append"} <= set(directives(script))
    (warned,) = (d for d in directives(script) if d.startswith("--signal"))
    notice = int(re.fullmatch(r"--signal=B:USR1@(\d+)", warned)[1])
    grace = int(re.search(r"--walltime auto --grace (\d+)", script.read_text())[1])
    assert grace + 30 <= notice


@pytest.mark.parametrize("name", ["workers.sh", "array.sh", "airgapped/install.sh"])
def test_scripts_say_how_to_use_them(name):
    """Without arguments a script prints its usage and ends with 2."""
    done = subprocess.run([FOLDER / name], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ")


@pytest.mark.parametrize(
    ("code", "restarts", "is_queued"),
    [
        (0, 0, False), (1, 0, False), (2, 0, False), (75, 0, True), (75, 99, True),
        (70, 0, True), (70, 2, True), (70, 3, False), (137, 0, False),
    ],
)  # fmt: skip
def test_jobs_are_queued_again_by_exit_code(tmp_path, code, restarts, is_queued):
    """Work that is left goes on; an unexpected error is tried again on other nodes, three times."""
    fakes = {"chunkflow": f'echo "$@" > {tmp_path}/told; exit {code}', "scontrol": 'echo "$@"'}
    for name, body in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [FOLDER / "workers.sh", "file:///r.run", "--gpus", "all"],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_RESTART_COUNT": str(restarts),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert ("requeue 7" in done.stdout) is is_queued
    told = (tmp_path / "told").read_text()
    assert told.startswith("work --task-limit auto file:///r.run --gpus all ")


def test_workers_are_told_their_price(tmp_path):
    """The variable of the submitter becomes an option, so that a run may have a budget."""
    (tmp_path / "chunkflow").write_text(f'#!/bin/bash\nprintf "%s\n" "$@" > {tmp_path}/told\n')
    (tmp_path / "chunkflow").chmod(0o755)
    subprocess.run(
        [FOLDER / "workers.sh", "file:///r.run"], capture_output=True, check=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "COST_PER_HOUR": "2.5"},
    )  # fmt: skip
    told = (tmp_path / "told").read_text().split()
    assert told[:6] == ["work", "--task-limit", "auto", "--cost-per-hour", "2.5", "file:///r.run"]


@pytest.fixture
def cluster(tmp_path):
    """A cluster of Slurm."""
    reason = slurm_rig.missing()
    if reason:
        pytest.skip(reason)
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_rig.cluster(folder) as made:
        yield made


@pytest.fixture
def chunkflow(tmp_path, monkeypatch):
    """Return a function that runs a line in the test's folder, where an image and a plugin are."""
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words, code=0):
        done = subprocess.run(
            ["chunkflow", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    (tmp_path / "slow.py").write_text(SLOW)
    run("create-chunk", "--size", *SHAPE, "save-zarr", "--store", "em.zarr")
    like = ["--like", "zarr://em.zarr", "--block-size", "16", "16", "16"]
    run("create-volume", "--volume-path", "zarr://copy.zarr", *like)
    return run


LINE = [
    "load-zarr", "--store", "em.zarr", "plugin", "-f", "slow.py", "-i", "chunk", "-o", "chunk",
    "save-zarr", "--store", "copy.zarr",
]  # fmt: skip
GRID = ["generate-tasks", "--volume-path", "em.zarr", "--chunk-size", "16", "16", "16"]


def same(folder, first, second):
    """Return whether two arrays hold the same."""
    import numpy as np
    import zarr

    return np.array_equal(zarr.open(folder / first)["0"], zarr.open(folder / second)["0"])


@pytest.mark.slurm
def test_array_does_every_task(cluster, chunkflow, tmp_path):
    """A job array over a file of boxes does all of them, several a job."""
    chunkflow(*GRID, "--file-path", "tasks.npy")
    number = cluster(
        "sbatch", "--parsable", f"--chdir={tmp_path}", "--array=0-3", "--time=10",
        FOLDER / "array.sh", "tasks.npy", *LINE, environment={"GRANULARITY": "4"},
    )  # fmt: skip
    jobs = cluster.wait(number, lambda job: job["JobState"] in ENDED)
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert {job["JobState"] for job in jobs} == {"COMPLETED"}, logs
    assert same(tmp_path, "em.zarr", "copy.zarr")


@pytest.mark.slurm
@pytest.mark.drill
def test_workers_go_on_where_they_stopped(cluster, chunkflow, tmp_path):
    """A job that is warned of its end queues itself again, until all tasks are done."""
    run = f"file://{tmp_path}/copy.run"
    said = chunkflow("submit", "--run", run, "--queue", f"file://{tmp_path}/queue", *GRID, *LINE)
    (address,) = re.findall(rf"{re.escape(run)}#sha256=[0-9a-f]+", said)
    number = cluster(
        "sbatch", "--parsable", f"--chdir={tmp_path}", "--time=10", FOLDER / "workers.sh", address
    )

    def log():
        return (tmp_path / f"chunkflow-{number}.log").read_text()

    def some_done(job):
        assert job["JobState"] not in ENDED, log()
        return job["JobState"] == "RUNNING" and done(chunkflow, run) > 0

    cluster.wait(number, some_done)
    cluster("scancel", "--batch", "--signal=USR1", number)  # what --signal=B: does
    (job,) = cluster.wait(number, lambda job: job["JobState"] in {"PENDING", *ENDED})
    assert (job["JobState"], job["Restarts"]) == ("PENDING", "1"), log()
    before = done(chunkflow, run)
    assert 0 < before < 16
    # Slurm would wait for two minutes, as what is left of the first start kills one at once.
    cluster("scontrol", "update", f"JobId={number}", "StartTime=now+3")
    (job,) = cluster.wait(number, lambda job: job["JobState"] in ENDED)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), log()
    assert done(chunkflow, run) == 16
    assert same(tmp_path, "em.zarr", "copy.zarr")


@pytest.mark.slurm
@pytest.mark.drill
def test_cancelled_workers_stay_away(cluster, chunkflow, tmp_path):
    """A job that is cancelled drains and is not queued again; its tasks wait for others."""
    run = f"file://{tmp_path}/copy.run"
    chunkflow("submit", "--run", run, "--queue", f"file://{tmp_path}/queue", *GRID, *LINE)
    number = cluster(
        "sbatch", "--parsable", f"--chdir={tmp_path}", "--time=10", FOLDER / "workers.sh", run
    )
    cluster.wait(
        number, lambda job: job["JobState"] in {"RUNNING", *ENDED} and done(chunkflow, run) > 0
    )
    cluster("scancel", number)
    (job,) = cluster.wait(number, lambda job: job["JobState"] in ENDED | {"PENDING"})
    assert (job["JobState"], job["Restarts"]) == ("CANCELLED", "0")
    status = json.loads(chunkflow("status", "--json", run))
    assert 0 < done(chunkflow, run) < 16, status


def done(chunkflow, run):
    """Return how many tasks of a run are done."""
    (stage,) = json.loads(chunkflow("status", "--json", run))["stages"]
    return stage["done"]

"""Remove a run: what goes, what stays, what is refused, and removals that are interrupted."""

from __future__ import annotations

import shlex
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from rigs.command_line import IMAGE, LINE, SAVE, say

from chunkflow_py import open_volume
from chunkflow_py.cli.main import cli
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.run_removal import Removal
from chunkflow_py.store import open_store

NETWORK = (
    "inference --framework identity --num-output-channels 3 --output-kind affinity "
    "--output-dtype uint8 --input-patch-size 8 16 16 --output-patch-overlap 0 0 0"
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image; runs and caches stay in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    return tmp_path


def submit(name="r", *options):
    """Submit a run of eight tasks."""
    return say(
        f"submit --run {name} --no-rehearse {' '.join(options)} {LINE} threshold -t 100 "
        f"{SAVE} mask.zarr"
    )


def files(folder):
    """Return the files below a folder with their content."""
    found = Path(folder).rglob("*")
    return {str(path): path.read_bytes() for path in found if path.is_file()}


@pytest.mark.parametrize("queue", ["", "--queue file://{}/tasks", "--queue sqlite://{}/q.sqlite"])
def test_a_finished_run_is_removed_and_its_output_stays(folder, queue):
    """The list comes first; after it the run directory and the queue are gone."""
    submit("r", queue.format(folder))
    say("work r")
    before = files("mask.zarr")
    told = say("remove r --yes")
    assert "ledger" in told or "other files" in told
    assert "\nqueue: " in told
    assert told.rstrip().endswith(f"removed file://{folder}/r")
    assert files("mask.zarr") == before
    assert not Path("r").exists()
    assert not Path("tasks").exists()
    assert not Path("q.sqlite").exists()
    assert "there is no run at" in say("remove r --yes", 2)
    assert "sent 8 tasks" in submit("r", queue.format(folder), "--clear-output")


def test_nothing_is_removed_without_a_yes():
    """An answer, --yes, or nothing."""
    submit()
    say("work r")
    before = files("r")
    for answer in ("n\n", ""):
        result = CliRunner().invoke(cli, shlex.split("remove r"), input=answer)
        assert result.exit_code != 0
        assert "remove this?" in result.output
        assert files("r") == before
    assert CliRunner().invoke(cli, shlex.split("remove r"), input="y\n").exit_code == 0
    assert not Path("r").exists()


def test_an_unfinished_run_needs_another_word():
    """Also --expire; nothing is touched."""
    submit()
    say("work r --max-tasks 3", 75)
    before = files("r")
    for options in ("--yes", "--yes --expire"):
        told = say(f"remove r {options}", 2)
        assert "is not finished: step threshold has tasks without a record" in told
    assert files("r") == before
    say("remove r --yes --unfinished")
    assert not Path("r").exists()


def test_a_queue_with_messages_of_others_is_kept(folder):
    """It may be shared; --keep-queue removes the rest."""
    url = f"sqlite://{folder}/shared.sqlite"
    submit("r", f"--queue {url}")
    say("work r")
    with closing(open_queue(url)) as queue:
        queue.send(["a message of another run"])
    message = say("remove r --yes", 2)
    assert "1 waiting and 0 leased messages, so another run may use the queue" in message
    assert "queue:" not in say("remove r --yes --keep-queue")
    with closing(open_queue(url)) as queue:
        assert queue.counts().waiting == 1


def test_a_run_whose_records_another_run_uses_is_kept():
    """The other run is named; without it, the run can be removed."""
    submit("first")
    say("work first")
    say(
        f"submit --run second --fork first --no-rehearse {LINE} threshold -t 100 {SAVE} mask.zarr "
        f"then --stage more {LINE} threshold -t 50 {SAVE} more.zarr"
    )
    told = say("remove first --yes", 2)
    assert "second was submitted with --fork, and uses records of" in told
    say("work second")
    say("verify second")
    say("remove second --yes")
    say("remove first --yes")


def test_an_interrupted_removal_is_completed(monkeypatch):
    """Killed before any object: the next removal asks for no reason, and leaves nothing."""
    submit()
    say("work r")
    shutil.copytree("r", "finished")
    for keep in range(9):
        shutil.copytree("finished", "r", dirs_exist_ok=True)
        removal = Removal(RunDirectory("r"))
        store, left = removal.run.store, keep
        delete = store.delete

        def dying(key, delete=delete):
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            delete(key)

        monkeypatch.setattr(store, "delete", dying)
        monkeypatch.setattr(type(store), "connections", 1)
        with pytest.raises(KeyboardInterrupt):
            removal.carry_out()
        assert Path("r").exists()
        say("remove r --yes")
        assert not Path("r").exists()


def test_exchange_and_hierarchy_may_go_earlier(folder):
    """--expire keeps records, queue and outputs; the rest goes with the run."""
    say(f"--quiet generate-tasks --roi-size 16 32 32 --chunk-size 16 32 32 load-zarr --store "
        f"image.zarr {NETWORK} save-zarr --store affinity.zarr")  # fmt: skip
    steps = say(
        "segment-affinity affinity.zarr zarr://exact.zarr --task-size 8 16 16 --block-size 8 16 16 "
        "--threshold 0.5 --show-steps"
    )
    say(f"submit --run r --no-rehearse {steps}".replace("\\\n", " "))
    say("work r")
    work = folder / "exact.zarr.segment"
    before, fragments = files("exact.zarr"), files(work / "fragments.zarr")
    assert files(work / "graph")
    told = say("remove r --yes --expire")
    assert f"file://{work}/graph" in told
    assert told.count("hierarchy: ") == len(told.splitlines()) - 1
    for name in ("graph", "hierarchy", "links", "edges"):
        assert not files(work / name)
    assert "all 8 tasks are recorded" not in say("verify r", 1)
    assert "nothing to remove" in say("remove r --yes --expire")
    say("remove r --yes")
    assert not Path("r").exists()
    assert files("exact.zarr") == before
    assert files(work / "fragments.zarr") == fragments, "an output like any other"
    assert open_volume("exact.zarr").bounds.size == (16, 32, 32)


def test_a_run_in_a_bucket(folder, s3):
    """All its objects are gone; objects beside the run stay."""
    beside = open_store(f"s3://{s3.bucket}/runs")
    beside.put("other", b"1")
    submit(f"s3://{s3.bucket}/runs/r", f"--queue sqlite://{folder}/q.sqlite")
    address = RunDirectory(f"s3://{s3.bucket}/runs/r").address
    say(f"work {address}")
    say(f"remove {address} --yes")
    assert list(beside.list()) == ["other"]

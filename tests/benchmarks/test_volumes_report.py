"""What the table of the benchmark of volumes says of recorded runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page import written_between
from peers.build import python_of
from processes import ROOT
from table import Line
from volumes import BENCHMARK
from volumes_cases import (
    CONVERT_PEER,
    HALF,
    LANES,
    NO_LANES,
    PROGRAM,
    SYNCED,
    TWO_PROCESSES,
    cases,
    line_of,
)
from volumes_report import lines

WRITE, READ, GZIP = "write zarr v3, zstd", "read zarr v3, zstd", "write precomputed, gzip"
BUCKET = "line on a bucket, identity, equal lanes"
PAGES = "convert TIFF pages"
DISK, RSUNET = "line on local disk, identity, 1 channel", "line on local disk, RSUNet"


def _stored(case: str, contestant: str, wall: float) -> dict[str, Any]:
    times = {"wall_s": wall, "first_s": wall * 2, "seconds": [wall] * 3}
    return {"case": case, "contestant": contestant, "round": 0, "stored_bytes": 1e8, **times}


def _ran(case: str, contestant: str, wall: float, **more: Any) -> dict[str, Any]:
    record = {"wall_s": wall, "process_s": wall + 2, "peak_bytes": 1e9, "round": 0}
    if contestant.startswith("ours"):
        lanes = {"read": 1.0, "compute": 1.0, "write": 1.0}
        record |= {"forecast_bytes": 1.1e9, "forward_s": wall * 0.96, "lanes": lanes}
    return {"case": case, "contestant": contestant, **record, **more}


def _lines(*runs: dict[str, Any]) -> list[Line]:
    ran = {run["case"] for run in runs}
    chosen = {name: case for name, case in cases().items() if name in ran}
    return lines({"cases": chosen, "runs": list(runs)})


def _line(what: str, *runs: dict[str, Any]) -> Line:
    found = [line for line in _lines(*runs) if what in line.what]
    assert len(found) == 1, [line.what for line in _lines(*runs)]
    return found[0]


def _writes(**seconds: float) -> list[dict[str, Any]]:
    names = {"ours": PROGRAM, "synced": SYNCED, "tensorstore_synced": "tensorstore, on the disk"}
    given = {names.get(name, name): wall for name, wall in seconds.items()}
    peers = dict.fromkeys(cases()[WRITE]["order"], 9.0)
    return [_stored(WRITE, name, wall) for name, wall in (peers | given).items()]


def test_who_waits_for_the_disk_is_compared_with_who_waits() -> None:
    """A library that does not wait is no measure for one that does."""
    runs = _writes(ours=2, synced=3, tensorstore_synced=2.7, tensorstore=2, zarrs=1.8)
    waiting = _line("fastest other library, on the disk", *runs)
    assert (waiting.measured, waiting.verdict) == ("0.90 x (tensorstore, on the disk)", "not met")
    (other,) = [x for x in _lines(*runs) if x.what == "speed relative to the fastest other library"]
    assert (other.measured, other.verdict) == ("0.90 x (zarrs)", "not met")
    met = _line("fastest other library, on the disk", *_writes(synced=3, tensorstore_synced=2.86))
    assert met.verdict == "met"


def test_a_library_that_failed_gives_no_verdict() -> None:
    """The fastest of the others may not be the fastest, and the reason stands in the table."""
    runs = [run for run in _writes() if run["contestant"] != "zarrs"]
    runs.append({"case": WRITE, "contestant": "zarrs", "round": 0, "error": "no such module"})
    (line,) = [x for x in _lines(*runs) if x.what == "speed relative to the fastest other library"]
    assert line.verdict == "not measured: no such module"


def test_speeds_are_of_every_repeat_and_the_first_stands_apart() -> None:
    """537 million voxels in a second are 0.537 GB/s; the first took twice as long."""
    line = _line("tensorstore", _stored(READ, "tensorstore", 1.0))
    speeds = "0.537 GB/s (0.537 to 0.537, 3 runs), first 0.268"
    assert line.measured == f"{speeds}, stored 0.19 of the raw size"


def test_gzip_is_asked_to_be_five_times_cloud_volume() -> None:
    """Ours waits for the disk even there, where cloud-volume does not."""
    order = dict.fromkeys(cases()[GZIP]["order"], 5.0) | {SYNCED: 1.01}
    line = _line("relative to cloud-volume", *(_stored(GZIP, n, s) for n, s in order.items()))
    assert (line.measured, line.verdict) == ("4.95 x", "not met")


@pytest.mark.parametrize(("wall", "verdict"), [(2.19, "met"), (2.21, "not met")])
def test_a_pipeline_is_compared_with_its_slowest_stage(wall: float, verdict: str) -> None:
    """All the time beyond it is time in which nothing overlapped."""
    lanes = {"read": 2.0, "compute": 1.5, "write": 1.0}
    runs = [_ran(BUCKET, LANES, wall, lanes=lanes), _ran(BUCKET, NO_LANES, 9)]
    assert _line("relative to the time of the slowest", *runs).verdict == verdict


def test_overlapping_stages_are_compared_with_none() -> None:
    """Two and a half times, where the stages are equal; the table shows how equal they were."""
    lanes = {"read": 2.0, "compute": 1.0, "write": 0.0}
    runs = [_ran(BUCKET, LANES, 2), _ran(BUCKET, NO_LANES, 4.9, lanes=lanes)]
    assert _line("speed relative to --ahead 0", *runs).verdict == "not met"
    assert _line("relative to the mean of the stages", *runs).measured == "2.00 x"


def test_chunkflow_is_compared_with_and_without_its_start() -> None:
    """Both are told, so that nobody has to guess which one is meant."""
    runs = [_ran(DISK, LANES, 1), _ran(DISK, "chunkflow", 5), _ran(DISK, NO_LANES, 2)]
    assert _line("chunkflow 1.2.0, tasks", *runs).measured == "5.00 x"
    assert _line("whole process", *runs).measured == "2.33 x"


@pytest.mark.parametrize(("forward", "verdict"), [(9.6, "met"), (9.4, "not met")])
def test_time_outside_the_network_is_judged(forward: float, verdict: str) -> None:
    """At most 5 % of the line's time."""
    line = _line("outside the network", _ran(RSUNET, LANES, 10, forward_s=forward))
    assert line.verdict == verdict


def test_more_memory_than_foretold_is_not_met() -> None:
    """The worst round counts."""
    runs = [_ran(RSUNET, LANES, 10), _ran(RSUNET, LANES, 10, peak_bytes=1.2e9)]
    assert _line("peak memory", *runs).verdict == "not met"


def test_chunkflow_is_given_the_same_line() -> None:
    """But for what only one of the two understands."""
    case, folder = cases()[DISK], Path()
    ours = line_of(case, LANES, "file://in", "file://out", folder)
    theirs = line_of(case, "chunkflow", "file://in", "file://out", folder)
    own = [word for word in ours if word not in theirs]
    assert own == ["--grid", "chunk", "--output-dtype", "uint8"]
    assert not [word for word in theirs if word not in ours]


def _converted(contestant: str, seconds: float, **more: Any) -> dict[str, Any]:
    record = {"process_s": seconds, "wall_s": seconds, "peak_bytes": 1e9, "stored_bytes": 1e8}
    about = {"case": PAGES, "contestant": contestant, "round": 0, "checksum": 7}
    return {**about, **record, **more}


@pytest.mark.parametrize(("seconds", "verdict"), [(9.9, "met"), (10.1, "not met")])
def test_a_conversion_is_compared_with_libraries(seconds: float, verdict: str) -> None:
    """Whole processes are compared; there is no verdict if the copies differ."""
    runs = [_converted(SYNCED, seconds), _converted(CONVERT_PEER, 10)]
    assert _line(f"speed of `{SYNCED}`", *runs).verdict == verdict
    runs[1]["checksum"] = 8
    assert _line(f"speed of `{SYNCED}`", *runs).verdict == "not measured: the copies differ"


@pytest.mark.parametrize(("peak", "verdict"), [(1.09e9, "met"), (1.11e9, "not met")])
def test_memory_must_not_grow_with_the_number_of_pages(peak: float, verdict: str) -> None:
    """Twice the pages take the memory of half of them."""
    runs = [_converted(SYNCED, 1, peak_bytes=peak), _converted(HALF, 1)]
    assert _line("peak memory", *runs).verdict == verdict


@pytest.mark.long
def test_all_contestants_make_the_same_copy(tmp_path: Path) -> None:
    """This package and the libraries copy pages and an OME-TIFF to the same levels."""
    np.save(tmp_path / "image.npy", np.random.default_rng(0).integers(0, 9, (16, 32, 48), "u1"))
    made = {"image": str(tmp_path / "image.npy"), "folder": str(tmp_path), "names": {"pages": 16}}
    _report("make_images.py", made)
    job = {"block": [8, 16, 16], "factor": [1, 2, 2], "levels": 2, "threads": 2, "sync": True}
    found = []
    for number, name in enumerate(("pages", "image.ome.tif")):
        for contestant, processes in ((SYNCED, 1), (TWO_PROCESSES, 2), (CONVERT_PEER, 1)):
            target = str(tmp_path / f"{number}-{contestant}")
            about = {**job, "source": str(tmp_path / name), "target": target}
            asked = {**about, "contestant": contestant, "processes": processes}
            assert _report("run_convert.py", asked)["peak_bytes"] > 1e7
            found.append(_report("run_convert.py", {**about, "contestant": "check"}))
    assert found == [found[0]] * 6
    assert found[0]["shapes"] == [[16, 32, 48], [16, 16, 24], [16, 8, 12]]


def test_documentation_shows_what_was_recorded() -> None:
    """The tables of docs/benchmarks-volumes.md are those of the results, to the letter."""
    written = written_between(BENCHMARK.page)
    assert written == BENCHMARK.documented(), "run: python benchmarks/volumes.py --write-docs"


def _report(script: str, job: dict[str, Any], python: Path | str = sys.executable) -> Any:
    done = subprocess.run(
        [str(python), str(ROOT / "benchmarks/peers" / script), json.dumps(job)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["sharded", "gzip"])
def test_a_contestant_writes_and_reads_what_it_was_given(tmp_path: Path, kind: str) -> None:
    """One real run of each; the first read is compared with what was written."""
    np.save(tmp_path / "image.npy", np.random.default_rng(0).integers(0, 9, (16, 32, 32), "u1"))
    job = {
        "size": [16, 32, 32], "block": [8, 16, 16], "shard": [16, 16, 16], "level": 3, "threads": 2,
        "sync": True, "format": kind, "image": str(tmp_path / "image.npy"),
        "folder": str(tmp_path / "volume"),
    }  # fmt: skip
    for operation in ("write", "read"):
        found = _report("run_volumes_ours.py", {**job, "operation": operation})
        assert len(found["seconds"]) == 3
        assert found["stored_bytes"] > 0
    np.save(tmp_path / "image.npy", np.zeros((16, 32, 32), np.uint8))
    with pytest.raises(subprocess.CalledProcessError) as caught:
        _report("run_volumes_ours.py", {**job, "operation": "read"})
    assert "is not what was written" in caught.value.stderr


@pytest.mark.skipif(not python_of("volumes").exists(), reason="make peers makes it")
@pytest.mark.parametrize(
    ("contestant", "kind"),
    [
        ("tensorstore", "zarr"),
        ("tensorstore", "raw"),
        ("zarrs", "sharded"),
        ("cloud-volume", "gzip"),
    ],
)
def test_a_peer_writes_and_reads_what_it_was_given(
    tmp_path: Path, contestant: str, kind: str
) -> None:
    """The libraries of the field do the same job."""
    np.save(tmp_path / "image.npy", np.random.default_rng(0).integers(0, 9, (16, 32, 32), "u1"))
    job = {
        "size": [16, 32, 32], "block": [8, 16, 16], "shard": [16, 16, 16], "level": 3, "threads": 2,
        "sync": False, "format": kind, "image": str(tmp_path / "image.npy"),
        "folder": str(tmp_path / "volume"), "contestant": contestant,
    }  # fmt: skip
    for operation in ("write", "read"):
        asked = {**job, "operation": operation}
        assert _report("run_volumes.py", asked, python_of("volumes"))["stored_bytes"] > 0


def test_a_line_tells_its_lanes(tmp_path: Path) -> None:
    """A line of the command line, watched: time of each lane, tasks, memory."""
    target = f"file://{tmp_path}/out"
    line = [
        *("--ahead", "0", "generate-tasks", "-z", "8", "32", "32", "-c", "8", "32", "32"),
        *("create-chunk", "--size", "8", "32", "32", "save-precomputed", "-v", target),
    ]
    found = _report("run_line_ours.py", {"line": line})
    assert found["tasks"] == 1
    assert 0 < found["lanes"]["write"] <= found["wall_s"]
    assert found["lanes"]["compute"] == 0
    assert found["peak_bytes"] > 0

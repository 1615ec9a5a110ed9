"""Volumes beside their limits and beside the libraries of the field, which run in turn with ours.

    python benchmarks/volumes.py [--rounds 3] [--quick] [--only NAME] [--write-docs]

Every measurement is a process of its own: on two processors, with servers on the others; on all of
them for conversions and for lines of commands on a local disk. The environments of the peers have
to be there (`benchmarks/peers/build.py`), and those of the servers (`tests/rigs/build.py`).
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers.build import python_of
from processes import HERE, ROOT, run_json, say
from recorded import Benchmark, add_run, read_json
from volumes_cases import (
    BLOCK,
    CHECKERS,
    CONVERT_PEER,
    HALF,
    LATENCY_S,
    PROGRAM,
    THREADS,
    TWO_PROCESSES,
    WRITERS_OF_WHAT_IS_READ,
    cases,
    line_of,
    lines_before,
)
from volumes_report import lines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from records import Report


@dataclass(frozen=True)
class Rig:
    """Where things are.

    Attributes:
        folder: for volumes.
        endpoint: of the S3 emulator, behind its proxy; empty if it is not there.
        faults: remote control of the proxy.
        variables: that send S3 clients there.
        processors: that this process may use.
    """

    folder: Path
    endpoint: str = ""
    faults: Any = None
    variables: dict[str, str] | None = None
    processors: tuple[int, ...] = ()


# --- processes -----------------------------------------------------------------------------------


def run_ours(script: str, job: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Run this package."""
    return run_json(sys.executable, script, job, **options)


def run_peer(contestant: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run one of the libraries."""
    return run_json(python_of("volumes"), "run_volumes.py", {**job, "contestant": contestant})


def _named(what: str, size: tuple[int, ...]) -> str:
    return f"{what}-{'x'.join(map(str, size))}"


def make_image(rig: Rig, size: tuple[int, ...]) -> Path:
    """Return the .npy file of an image like the shipped one, of any size."""
    path = rig.folder / f"{_named('image', size)}.npy"
    if not path.exists():
        job = {"size": size, "path": str(path), "image": str(ROOT / "examples/fib25/raw.h5")}
        found = run_ours("make_image.py", job)
        if "error" in found:
            msg = f"Error: no image: {found['error']}"
            raise SystemExit(msg)
    return path


def run_storage(rig: Rig, case: dict[str, Any], contestant: str) -> dict[str, Any]:
    """Let a contestant write or read; what this package has written is read by a library."""
    image = make_image(rig, case["size"])
    name, _, sync = contestant.partition(", ")
    job = {**case, "image": str(image), "sync": bool(sync)}
    reading = case["operation"] == "read"
    folder = rig.folder / (
        f"{case['format']}-{'x'.join(map(str, case['size']))}" if reading else "w"
    )
    job["folder"] = str(folder)
    if reading and not folder.exists():
        made = run_peer(
            WRITERS_OF_WHAT_IS_READ[case["format"]], {**job, "operation": "write", "sync": False}
        )
        if "error" in made:
            shutil.rmtree(folder, ignore_errors=True)
            return made
    if name != PROGRAM:
        return run_peer(name, job)
    found = run_ours("run_volumes_ours.py", job)
    if not reading and "error" not in found:
        checker = CHECKERS[case["format"]]
        seen = run_peer(checker, {**job, "operation": "read"})
        if "error" in seen:
            return {"error": f"written, but not read by {checker}: {seen['error']}"}
    return found


def run_line(rig: Rig, case: dict[str, Any], contestant: str) -> dict[str, Any]:
    """Let a contestant run a line of commands, on a new output."""
    with ExitStack() as stack:
        source = rig.folder / _named("source", case["size"])
        image = make_image(rig, case["size"])
        about = {**case, "format": "gzip", "block": BLOCK, "image": str(image)}
        if not source.exists():
            how = {"operation": "write", "sync": False, "channels": 1}
            job = {**about, **how, "folder": str(source)}
            run_peer("cloud-volume", job)
        target = rig.folder / "target"
        shutil.rmtree(target, ignore_errors=True)
        urls = (f"file://{source}", f"file://{target}")
        options: dict[str, Any] = {}
        if case["place"] == "bucket":
            if rig.faults is None:
                return {"error": "the S3 emulator is not there; make rigs"}
            urls = stack.enter_context(bucket_behind_latency(rig, urls[0], case))
            options = {"environment": rig.variables}
        line = line_of(case, contestant, *urls, HERE / "peers")
        if case["place"] == "disk":
            made = run_peer("cloud-volume", {**about, "operation": "create", "folder": str(target)})
            if "error" in made:
                return made
        if contestant == "chunkflow":
            return run_json(python_of("chunkflow"), "run_line_chunkflow.py", {"line": line})
        job = {"line": line, "network": "network" in case}
        return run_ours("run_line_ours.py", job, **options)


def run_convert(rig: Rig, case: dict[str, Any], contestant: str) -> dict[str, Any]:
    """Let a contestant copy image files to OME-Zarr; its voxels are those of the peer's copy."""
    folder = rig.folder / _named("images", case["size"])
    if not folder.exists():
        pages = case["size"][0]
        names = {"pages": pages, "half": pages // 2}
        job = {"image": str(make_image(rig, case["size"])), "folder": str(folder), "names": names}
        made = run_ours("make_images.py", job)
        if "error" in made:
            shutil.rmtree(folder, ignore_errors=True)
            return made
    source = folder / ("half" if contestant == HALF else case["file"])
    target = rig.folder / "target"
    shutil.rmtree(target, ignore_errors=True)
    processes = 2 if contestant == TWO_PROCESSES else 1
    job = {**case, "contestant": contestant, "source": str(source), "target": str(target)}
    python = python_of("volumes") if contestant == CONVERT_PEER else sys.executable
    os.sync()
    options = {"processes": processes, "sync": contestant != PROGRAM}
    found = run_json(python, "run_convert.py", {**job, **options})
    if "error" in found:
        return found
    checker = run_json(python_of("volumes"), "run_convert.py", {**job, "contestant": "check"})
    return checker if "error" in checker else {**found, "checksum": checker["checksum"]}


@contextmanager
def bucket_behind_latency(rig: Rig, source: str, case: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield URLs of a copy of *source* in a new bucket and of a new volume beside it."""
    from rigs.s3 import make_bucket  # type: ignore[import-not-found]

    rig.faults.set()
    bucket = make_bucket(rig.endpoint)
    copy, target = f"s3://{bucket}/source", f"s3://{bucket}/target"
    for line in lines_before(case, source, copy, target):
        found = run_ours("run_line_ours.py", {"line": line}, environment=rig.variables)
        if "error" in found:
            msg = f"Error: nothing in the bucket: {found['error']}"
            raise SystemExit(msg)
    with rig.faults({"type": "latency", "s": LATENCY_S}):
        yield copy, target


@contextmanager
def rigged(folder: Path) -> Iterator[Rig]:
    """Start the S3 emulator and its proxy on the processors that contestants do not use."""
    sys.path.insert(0, str(ROOT / "tests"))
    from rigs import servers  # type: ignore[import-not-found]
    from rigs.s3 import environment

    folder.mkdir(parents=True, exist_ok=True)
    allowed = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        os.sched_setaffinity(0, allowed[THREADS:] or allowed)
        try:
            address = stack.enter_context(servers.ministack(folder / "ministack.log"))
            faults = stack.enter_context(servers.proxy(address))
        except servers.ServerMissingError as error:
            say(str(error))
            rig = Rig(folder, processors=tuple(allowed))
        else:
            variables = environment(faults.address, folder)
            rig = Rig(folder, faults.address, faults, variables, tuple(allowed))
        try:
            yield rig
        finally:
            os.sched_setaffinity(0, allowed)


# --- the whole -----------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace, report: Report) -> None:
    """Run the cases of the report, and add their runs."""
    with rigged(arguments.folder) as rig:
        for name, case in report["cases"].items():
            run = {"storage": run_storage, "line": run_line, "convert": run_convert}[case["kind"]]
            everything = case["kind"] == "convert" or case.get("place") == "disk"
            os.sched_setaffinity(0, rig.processors if everything else rig.processors[:THREADS])
            for number in range(1 if "network" in case else arguments.rounds):
                for contestant in case["order"]:
                    add_run(report, name, contestant, number, run(rig, case, contestant))
    shutil.rmtree(arguments.folder)


class Volumes(Benchmark):
    """The cases of this benchmark; conversions have a file of results of their own.

    They were added later, and were recorded on another machine, by
    ``--only convert --output benchmarks/results/volumes-convert.json``.
    """

    @property
    def conversions(self) -> Path:
        """Return the file in which conversions are recorded."""
        return self.result.with_name("volumes-convert.json")

    def documented(self) -> str:
        """Return machine, versions and table of both files, for the page."""
        text = super().documented()
        if self.conversions.exists():
            text += self.described(read_json(self.conversions), self.conversions)
        return text


BENCHMARK = Volumes(
    name="volumes",
    script="volumes.py",
    purpose=__doc__,
    libraries=("numpy", "zarr", "numcodecs", "imagecodecs", "cloud-volume", "obstore", "torch"),
    cases=cases,
    lines=lines,
    fills="for volumes; 8 GB, removed",
    quick="one round, small volumes",
)

if __name__ == "__main__":
    BENCHMARK.run(measure)

"""The ledger: records a second, how long ten million tasks take to count, and what is left.

Each line has its ratio to what is asked for. The ten million tasks are pages of 2048 that share one
content, so that they need no room; to count reads their headers. In a folder of this machine, with
the sync policy of `chunkflow_py.store.folder_store`: what is recorded is on the disk.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from table import Line, as_text, at_least, at_most

from chunkflow_py.run.ledger.ledger import SEGMENT_SIZE, Ledger
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import Stored

RESULTS = Path(__file__).parent / "results"
TASKS = 10_000_000
LARGEST_RUN = 15_000_000


def record_of(number: int) -> Record:
    """Return a record as a task of one block has it."""
    block = Stored(f"s3://bucket/affinity.zarr/0/c/0/{number}/0", 8_388_608, secrets.token_hex(16))
    return Record(
        number,
        "0-64_0-512_0-512",
        "done",
        secrets.token_hex(32),
        f"{secrets.token_hex(8)}-{number}",
        "machine-4711",
        profile="torch 2.11 cuda, NVIDIA L4, float32, batch 4",
        seconds={"load-zarr": 0.1234, "inference": 1.3, "save-zarr": 0.02},
        written=(block,),
    )


def records_per_second(folder: Path, batch: int, tasks: int) -> tuple[float, float]:
    """Return how many are recorded per second in batches, and the median of a batch in ms."""
    ledger = Ledger(open_store(str(folder / f"batches-{batch}")), "infer", tasks)
    batches = [
        [record_of(n) for n in range(first, first + batch)] for first in range(0, tasks, batch)
    ]
    seconds = []
    for each in batches:
        start = perf_counter()
        ledger.record(each)
        seconds.append(perf_counter() - start)
    return tasks / sum(seconds), 1000 * median(seconds)


def fill(folder: Path) -> Ledger:
    """Return a ledger of `TASKS` tasks that are done."""
    store = open_store(str(folder / "many"))
    ledger = Ledger(store, "infer", TASKS, in_background=False)
    for first in range(0, SEGMENT_SIZE, 64):
        ledger.record([record_of(number) for number in range(first, first + 64)])
    ledger.compact()
    pages = folder / "many/ledger/infer/pages"
    for page in range(1, TASKS // SEGMENT_SIZE):
        os.link(pages / "0", pages / str(page))
    return ledger


def timed(call: object, rounds: int = 5) -> float:
    """Return the median of the seconds that *call* takes."""
    seconds = []
    for _ in range(rounds):
        start = perf_counter()
        call()  # type: ignore[operator]
        seconds.append(perf_counter() - start)
    return median(seconds)


def measure(folder: Path) -> list[Line]:
    """Return the lines of the table."""
    lines = []
    for batch, tasks, least in ((1, 1000, 500), (20, 10_000, 2000), (100, 20_000, 2000)):
        rate, batch_ms = records_per_second(folder, batch, tasks)
        note = f", {batch_ms:.2f} ms a batch"
        lines.append(at_least("record", f"in batches of {batch}", rate, least, "/s", note))
    ledger = fill(folder)
    page = folder / "many/ledger/infer/pages/0"
    done = ledger.counts().done
    lines += [
        at_most("look", f"counts of {done} tasks", timed(ledger.counts), 10, "s"),
        at_most("look", "find a task", 1000 * timed(lambda: ledger.find([5000]), 100), 1, "ms"),
        at_most(
            "look", "find 20 tasks", 1000 * timed(lambda: ledger.find(range(0, 81920, 4096)), 100),
            20, "ms",
        ),
        at_most(
            "left", f"objects of {LARGEST_RUN} tasks", -(-LARGEST_RUN // SEGMENT_SIZE), 15_000, ""
        ),
        Line("left", "bytes a task in a segment", f"{page.stat().st_size / SEGMENT_SIZE:.0f}"),
    ]  # fmt: skip
    return lines


def main() -> None:
    """Measure, print the table, and write the results."""
    folder = Path(tempfile.mkdtemp(prefix="ledger-", dir=sys.argv[1] if sys.argv[1:] else None))
    try:
        lines = measure(folder)
    finally:
        shutil.rmtree(folder)
    print(as_text(lines))
    machine = {"cpu": platform.processor() or platform.machine(), "python": sys.version.split()[0]}
    report = {"lines": [vars(line) for line in lines], "machine": machine}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "ledger.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A run whose tasks are in states that a test has planted, without a worker."""

import gzip
import zlib
from dataclasses import replace

from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record, Sums, sealed
from chunkflow_py.run.ledger.ledger_segments import SegmentHeader
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.run_spec import RunStep, Spec, sha256_of
from chunkflow_py.store.store_protocol import Stored

BEGAN = 1_760_000_000.0  # when the first task ended
TRACEBACK = """Traceback (most recent call last):
  File "ops/inference.py", line 42, in <module>
    raise ValueError("<script>document.title = 'run'</script>")
ValueError: <script>document.title = 'run'</script>"""


def planted_run(url, plans, queue=""):
    """Make a run of stages with such plans, by their names."""
    stages = []
    for name, plan in plans.items():
        said, content = plan.to_json()
        options = (("load-zarr", {}), ("inference", {}), ("save-zarr", {}))
        words = ("save-zarr",), ("generate-tasks",)
        stages.append(RunStep(name, *words, 0, options, said, sha256_of(content), len(plan)))
    if queue:
        open_queue(queue, create=True).close()
    home = RunDirectory(url)
    contents = {name: plan.to_json()[1] for name, plan in plans.items()}
    home.create(Spec(tuple(stages), queue, "/", "0", {}), contents, {})
    return RunDirectory(url)


def record(plan, number, state="done", worker="machine-1", **said):
    """Return a record; of consecutive numbers one ends every 30 seconds."""
    reason = {"skipped": "nothing is there", "dead": "it is broken"}.get(state)
    stored = Stored(f"s3://bucket/map/{number}", 8_000_000, "ab" * 16)
    settings = {
        "seconds": {"load-zarr": 2.5, "inference": 40.0, "save-zarr": 1.5},
        "written": (stored,) if state == "done" else (),
        "finished": BEGAN + 30 * number,
        "reason": reason,
    } | said
    attempt = f"{worker}-{number}"
    return Record(number, plan.text(number), state, "5bec", attempt, worker, **settings)


def failure(plan, number, attempt=1, kind="permanent", worker="machine-2", **said):
    """Return an attempt that failed, with a traceback that a page must not run."""
    settings = {
        "reason": f"<b>task {number}</b> is broken <script>document.title = 'run'</script>",
        "traceback": TRACEBACK,
        "when": BEGAN + 30 * number,
    } | said
    name = f"{worker}-{number}-{attempt}"
    return FailedAttempt(number, plan.text(number), name, worker, kind, **settings)


def fill_pages(store, stage, plan, pages, page, with_records=None):
    """Write full segments of a ledger quickly, with all tasks done, as compaction leaves them.

    Records take their time: only pages *with_records* have them (default: all).
    """
    workers = [f"machine-{k}" for k in range(100)]
    sums = Sums(
        done=page, stored_bytes=page * 10, seconds={"inference": 2.0 * page},
        first=BEGAN, last=BEGAN + page, minutes={},
    )  # fmt: skip
    header = SegmentHeader(bytes([0b01010101]) * (page // 4), {}, sums)
    text = record(plan, 0, worker="WORKER", finished=4711.0).to_json()
    head, _, rest = text.partition('"number":0')
    before, _, after = rest.partition("4711.0")
    parts = [before.replace("WORKER", worker) for worker in workers]
    tails = [after.replace("WORKER", worker) for worker in workers]
    for index in pages:
        lines = []
        if with_records is not None and index not in with_records:
            store.put(f"ledger/{stage}/pages/{index}", header.to_line(page))
            continue
        for number in range(index * page, (index + 1) * page):
            k = number % 100
            when = BEGAN + number / 10
            line = sealed(f'record 0 {head}"number":{number}{parts[k]}{when}{tails[k]}')
            lines.append(f"{line}\n")
        body = gzip.compress("".join(lines).encode(), 1)
        whole = replace(header, body=(len(body), zlib.crc32(body)))
        store.put(f"ledger/{stage}/pages/{index}", whole.to_line(page) + body)

"""What must hold after every drill: I1 to I7 of the list, over ledger, queue and decoded volume.

| I1 | the decoded volume is that of the plain line, run once without faults                       |
| I2 | every task is in one terminal state; it does not change; the sum is the plan                |
| I3 | what has left the queue is recorded, and what is recorded is stored, just so                |
| I4 | no object is torn, and nothing is there but objects of the volume                           |
| I5 | exit codes of workers that ended by themselves                                              |
| I6 | attempts, and work that was done in vain, are bounded                                       |
| I7 | nothing grows                                                                               |
"""

import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import psutil

from chunkflow_py.errors import ChunkflowError
from chunkflow_py.run.verify import verify
from chunkflow_py.store import open_store
from chunkflow_py.store.local_files import TEMPORARY_PREFIX
from drills.rig import STAGE, corner_of, slices

CAP = 3  # failures of a task, by default
# Tasks of one child that are computed but not recorded: on their way, written, being recorded.
WINDOW = 4
SHORT_WINDOW = 16  # where many are computed in the time in which the disk takes one record


def check(drill, expected, **what):
    """Raise an error that lists all that does not hold; see `findings`."""
    found = findings(drill, expected, **what)
    assert not found, f"seed {drill.seed}:\n" + "\n".join(found)


def findings(drill, expected, *, dead=(), complete=True, faults=0, cap=CAP, copies=0, earlier=None):
    """Yield what does not hold, each with the number of the invariant first.

    Args:
        drill: what was done.
        expected: voxels of the plain line, (z, y, x).
        dead: numbers of tasks that must have been given up.
        complete: whether all other tasks must be done.
        faults: how often something was killed or stopped.
        cap: failures after which a task is given up.
        copies: of a message, beside itself: so many workers may try a task at the same time, of
            which none knows yet that it is the last attempt of the others.
        earlier: records that were there before, which must not have changed.
    """
    records = drill.records()
    return [
        *_volume(drill, expected, records),
        *_states(drill, records, set(dead), complete, earlier or {}),
        *_stored(drill, records, complete),
        *_objects(drill, faults),
        *_exits(drill, records, complete),
        *_bounds(drill, set(dead), faults, cap + copies),
    ]


def _volume(drill, expected, records):
    """I1."""
    try:
        voxels = drill.voxels()
    except ChunkflowError as error:
        yield f"I1 the volume cannot be read: {error}"
        return
    if voxels.shape != expected.shape or voxels.dtype != expected.dtype:
        yield f"I1 the volume is {voxels.dtype} {voxels.shape}, not {expected.shape}"
        return
    for number in range(drill.tasks):
        box = slices(corner_of(number, drill.grid))
        record = records.get(number)
        is_done = record is not None and record.state == "done"
        same = voxels[box] == expected[box]
        # Of what is not done there may be a part, but nothing else.
        if not (same if is_done else same | (voxels[box] == 0)).all():
            wrong = np.count_nonzero(~same)
            yield f"I1 {wrong} voxels of task {number} differ, which is {record and record.state}"


def _states(drill, records, dead, complete, earlier):
    """I2."""
    home = drill.home
    plan, ledger = home.plan(STAGE), home.ledger(STAGE)
    for number, record in records.items():
        if number not in plan or str(plan.region(number)) != record.box:
            yield f"I2 the record of task {number}, {record.box}, is of no task of the plan"
        if record.spec != home.spec.step(STAGE).hash:
            yield f"I2 the record of task {number} is of another spec"
    for number, record in earlier.items():
        now = records.get(number)
        if now != record:
            was = f"{record.state} by {record.worker} ({record.attempt})"
            is_now = "gone" if now is None else f"{now.state} by {now.worker} ({now.attempt})"
            yield f"I2 task {number} was {was} and is {is_now}"
    given_up = {number for number, record in records.items() if record.state == "dead"}
    if given_up - dead or (complete and dead - given_up):
        yield f"I2 {sorted(given_up)} were given up, which should be {sorted(dead)}"
    missing = set(ledger.missing(plan))
    if missing != set(plan) - set(records):
        yield f"I2 the ledger misses {sorted(missing)}, but has records of {sorted(records)}"
    if complete and missing:
        yield f"I2 {len(missing)} of {len(plan)} tasks have no record: {sorted(missing)[:9]}"
    counts = ledger.counts()
    counted = counts.done + counts.skipped + counts.dead
    if counted != len(records) or counts.dead != len(given_up):
        yield f"I2 the ledger counts {counted}, {counts.dead} dead, and has {len(records)} records"
    for number in given_up & dead:
        if not records[number].reason:
            yield f"I2 nobody says why task {number} was given up"


def _stored(drill, records, complete):
    """I3."""
    if not complete:
        counts = drill.counts()
        known = counts.waiting + counts.leased + (counts.dead or 0) + len(records)
        if known < drill.tasks:
            yield f"I3 {drill.tasks - known} tasks are neither in the queue nor recorded"
    home = drill.home
    for damage in verify(home.ledger(STAGE), home.plan(STAGE)):
        if damage.kind not in ("failed", "not recorded"):
            yield f"I3 {damage}"
    for number, record in records.items():
        if record.state != "done":
            continue
        if (recorded := len({stored.url for stored in record.written})) != drill.blocks:
            yield f"I3 task {number} has {drill.blocks} blocks, of which {recorded} are recorded"
        if any(stored.size is not None and not stored.checksum for stored in record.written):
            yield f"I3 nobody could tell whether task {number} is damaged: it has no checksums"


def _objects(drill, faults):
    """I4."""
    import zarr

    kind, _, place = drill.output.partition("://")
    store = open_store(place)
    strange = [
        key
        for key in store.list()
        if not key.endswith((".json", ".zattrs", ".zgroup", ".zarray", "/info"))
        and not all(part.isdecimal() for part in key.split("/c/")[-1].split("/"))
    ]
    if kind == "zarr" and strange:
        yield f"I4 there is more than blocks and metadata: {strange[:9]}"
    if kind != "zarr" or not Path(place).is_dir():
        return  # what is torn cannot be decoded: I1
    files = [path for path in Path(place).rglob("*") if path.is_file()]
    left = [path for path in files if path.name.startswith(TEMPORARY_PREFIX)]
    if len(left) > faults * WINDOW * drill.blocks:  # of the blocks that were being written
        yield f"I4 {len(left)} temporary files were left behind"
    try:
        zarr.open_array(f"{place}/0", mode="r")[:]  # another reader than ours
    except Exception as error:  # noqa: BLE001 whatever it says of a torn block
        yield f"I4 zarr cannot read the volume: {type(error).__name__}: {error}"


def _exits(drill, records, complete):
    """I5."""
    states = {record.state for record in records.values()}
    good = {1 if "dead" in states else 0} if complete else {75}
    for worker in drill.workers:
        code = worker.process.poll()
        if code is None or worker.is_killed:
            continue
        # On a slow machine this drill may kill three children of one worker before they have begun.
        if (
            code == 70
            and "has failed to start 3 times in a row: killed by SIGKILL" in worker.said()
        ):
            continue
        allowed = good | ({75} if worker.was_asked else set())
        if code not in allowed:
            said = worker.said()[-900:]
            yield f"I5 {worker.name} ended with {code}, not {sorted(allowed)}: {said}"


def _bounds(drill, dead, faults, cap):
    """I6."""
    failures = {}
    for failure in drill.home.ledger(STAGE).failures():
        failures.setdefault(failure.number, []).append(failure)
    for number, those in failures.items():
        if sum(failure.kind == "permanent" for failure in those) > cap:
            yield f"I6 task {number} failed {len(those)} times; the cap is {cap}"
    again = {
        number: times - 1 - len(failures.get(number, ()))
        for number, times in drill.computed().items()
        if number not in dead and times > 1 + len(failures.get(number, ()))
    }
    if sum(again.values()) > faults * (WINDOW if None in drill.acts else SHORT_WINDOW):
        yield f"I6 {faults} faults, after which tasks were done again, so often: {again}"


class Sample(NamedTuple):
    """What a worker holds: its supervisor and its children together.

    Attributes:
        when: seconds of the monotonic clock.
        megabytes: of resident memory.
        files: open descriptors.
        sockets: of the network.
    """

    when: float
    megabytes: float
    files: int
    sockets: int


def sample(worker):
    """Return what a worker holds now."""
    processes = [psutil.Process(worker.process.pid), *worker.children()]
    megabytes = files = sockets = 0
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            megabytes += process.memory_info().rss / 1e6
            files += process.num_fds()
            sockets += len(process.net_connections())
    return Sample(time.monotonic(), megabytes, files, sockets)


def growth(samples):
    """Return what grows between the first third of the samples, without start-up, and the last."""
    third = len(samples) // 3
    before, after = samples[third // 3 : third], samples[-third:]
    found = []
    for name, most in {"megabytes": 15, "files": 3, "sockets": 2}.items():
        was, now = (median(getattr(each, name) for each in part) for part in (before, after))
        if now > was * 1.1 + most:
            found.append(f"I7 {name} of a worker have grown from {was:.0f} to {now:.0f}")
    return found

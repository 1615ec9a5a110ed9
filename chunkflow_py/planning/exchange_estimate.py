"""Estimate the exchange of patches between tasks: its amounts, its gain, and whether it pays.

```
without   | read | network: all patches of a task, also the shared ones      | write |
with      | read | network: each patch once    | write and read parts | write |
                                                 <---- gain -------->
```

A part is the piece of a patch's output that a task stores for another task. The exchange pays if
the network time that it saves exceeds the time to write and read the parts. The estimate is
cautious, because writing and reading may overlap with the network in a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from chunkflow_py.inference.shared_patches import (
    MOST_WAITING_BYTES,
    part_memory,
    slabs_of_layers,
    too_small,
)
from chunkflow_py.planning.duration_estimate import Duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chunkflow_py.core.geometry import BoundingBox, BoxGrid
    from chunkflow_py.planning.duration_estimate import Fleet
    from chunkflow_py.planning.pilot import Observation
    from chunkflow_py.planning.prices import Cost
    from chunkflow_py.planning.task_amounts import Patches, Transfer

MEASURED = "measured by the pilot"
_ENOUGH_BYTES = 10_000_000  # a store's speed is not measured with less


@dataclass(frozen=True)
class Exchange:
    """Amounts that the tasks of a step exchange for one network.

    A part is the piece of a patch's output that a task stores for another task. The amounts assume
    that every task finds all parts that it can use.

    Attributes:
        operator: label of the inference operator.
        computed: number of patches that all tasks together compute; no patch is computed twice.
        ideal: number of patches that a single task for the whole volume would compute.
        written_bytes: bytes of the parts that all tasks write. All tasks read as many bytes.
        task_bytes: bytes of the parts that a task writes on average. A task reads as many bytes.
        voxel_bytes: bytes of parts that are written for each output voxel.
        objects: number of objects (files) that all tasks write to the store. Each object is read
            once.
        task_objects: number of objects that a task writes on average.
        lists: number of list requests to the store, of all tasks together.
        peak_bytes: largest number of bytes of parts that are stored at the same time. This includes
            the parts that finished tasks have stored for tasks that have not begun (see
            `chunkflow_py.inference.shared_patches.SharedPatches.peak_voxels`), and the parts that
            running tasks have read. A worker removes the parts that were stored for a task only
            after the ledger has recorded the task.
        memory_bytes: additional memory that a process needs for the parts.
    """

    operator: str
    computed: int
    ideal: int
    written_bytes: int
    task_bytes: int
    voxel_bytes: float
    objects: int
    task_objects: float
    lists: int
    peak_bytes: int
    memory_bytes: int

    @property
    def recomputation(self) -> float:
        """The number *computed*, divided by the number *ideal*."""
        return self.computed / max(1, self.ideal)


@dataclass(frozen=True)
class NetworkTime:
    """Time of the networks of a step without an exchange.

    Attributes:
        task_s: seconds that the networks run for each task, on average.
        other_s: seconds per task of the slowest stage that overlaps with the networks.
        how: text that says where *task_s* comes from.
    """

    task_s: float
    other_s: float
    how: str


@dataclass(frozen=True)
class Gain:
    """Time and cost of a step whose tasks exchange patches.

    Attributes:
        saved_s: seconds of network time that the exchange saves per task, on average.
        transfer_s: seconds to write and read the parts of a task; ``None`` if the speed of the
            store is not known.
        transfer_bytes: bytes of the parts that a task writes, plus bytes of the parts that it
            reads.
        bytes_per_s: speed at which a process writes and reads, bytes per second; ``None`` if
            unknown.
        how: text that says where *saved_s* comes from.
        duration: duration of the step. It does not include the transfers if *transfer_s* is not
            known.
        hours: working hours of all machines together.
        cost: cost in dollars at the on-demand price, or at the price that the user gives.
        spot: cost in dollars at the spot price.
    """

    saved_s: float
    transfer_s: float | None
    transfer_bytes: int
    bytes_per_s: float | None
    how: str
    duration: Duration
    hours: float
    cost: Cost | None = None
    spot: Cost | None = None

    @property
    def pays(self) -> bool | None:
        """Whether the exchange saves time; ``None`` if the speed of the store is not known."""
        return None if self.transfer_s is None else self.saved_s > self.transfer_s

    @property
    def least_bytes_per_s(self) -> float:
        """Lowest speed of the store at which the exchange pays, bytes per second."""
        return self.transfer_bytes / max(1e-9, self.saved_s)


def exchange_of(
    patches: Patches, boxes: BoxGrid, tasks: int, workers: int, share: float
) -> Exchange | None:
    """Return the amounts that tasks exchange for one network; ``None`` without an exchange.

    Args:
        patches: numbers of patches that the network computes for *boxes*.
        boxes: boxes of the tasks.
        tasks: number of tasks.
        workers: number of worker processes of the run. A single worker is assumed to run the tasks
            in the order of their numbers. Several workers are assumed to use the checkerboard
            order, in which neighbouring tasks do not run at the same time.
        share: number of tasks divided by number of boxes. The share is not 1 if several tasks have
            the same box (time points), or if some boxes have no task (a mask).
    """
    if patches.sharing is None:
        return None
    shared, voxel = patches.sharing(boxes), patches.part_voxel_bytes
    slab_of = None if workers == 1 else slabs_of_layers(boxes.count, workers)
    written = round(shared.written_voxels(slab_of) * voxel * share)
    of_task = written / max(1, tasks)
    peak = shared.peak_voxels(slab_of) * voxel * share + of_task * workers
    objects = round(shared.objects * share)
    return Exchange(
        operator=patches.operator,
        computed=round(shared.distinct * share),
        ideal=round(patches.ideal * share),
        written_bytes=written,
        task_bytes=round(of_task),
        voxel_bytes=written / max(1.0, patches.output_voxels * share),
        objects=objects,
        task_objects=objects / max(1, tasks),
        # A task looks for objects at each layer, and once more to remove those that it has used.
        lists=round(shared.layers * share) + tasks,
        peak_bytes=min(written, round(peak)),
        memory_bytes=part_memory(patches.part_bytes, tasks, MOST_WAITING_BYTES),
    )


def network_time(
    observations: Sequence[Observation],
    patches: Sequence[Patches],
    mean_work: float,
    stage_of: Mapping[str, str],
) -> NetworkTime | None:
    """Return the time of the networks, measured by the pilots; ``None`` if nothing was measured.

    Args:
        observations: measurements of the pilot processes.
        patches: numbers of patches of the networks.
        mean_work: number of input voxels of all patches of a task, as the mean over the tasks.
        stage_of: stage of each operator (``read``, ``compute`` or ``write``), by operator name.
    """

    def work_of(box: BoundingBox) -> float:
        return sum(prod(each.box(box)) * each.input_voxels for each in patches)

    seconds = work = 0.0
    others = {"read": 0.0, "write": 0.0}
    tasks = 0
    for seen in observations:
        # Between the ends of two tasks; a pilot with one task has only the time from its start.
        first = seen.tasks[0].network_s if len(seen.tasks) > 1 else 0.0
        measured = seen.tasks[1:] or seen.tasks
        if not measured:
            continue
        seconds += measured[-1].network_s - first
        work += sum(work_of(task.bbox) for task in measured if task.bbox is not None)
        tasks += len(seen.tasks) * bool(seen.ahead)
        for task in seen.tasks:
            for name, took in task.seconds.items():
                if (stage := stage_of.get(name)) in others and seen.ahead:
                    others[stage] += took
    if not seconds or not work:
        return None
    other = max(others.values()) / max(1, tasks)
    return NetworkTime(seconds / work * mean_work, other, MEASURED)


def store_speed(
    observations: Sequence[Observation],
    reads: Sequence[Transfer],
    writes: Sequence[Transfer],
) -> float | None:
    """Return the bytes per second that a pilot process reads and writes; ``None`` if unknown.

    The parts (pieces of patches that tasks exchange) are assumed to be in the same kind of store as
    the output. A pilot writes to a local folder. Therefore, the speed of a cloud store is known
    only if the pilot reads from the same kind of store. The measured time includes compression, so
    the store itself may be faster.

    Args:
        observations: measurements of the pilot processes.
        reads: amounts that the loaders read.
        writes: amounts that the savers write.
    """
    protocol = exchange_protocol(reads, writes)
    loaders = [each for each in reads if each.protocol == protocol]
    names = {each.operator for each in loaders}
    amount = sum(_read_bytes(seen, loaders) for seen in observations)
    if protocol == "file":
        names |= {each.operator for each in writes}
        amount += sum(task.written for seen in observations for task in seen.tasks)
    seconds = sum(
        took
        for seen in observations
        for task in seen.tasks
        for name, took in task.seconds.items()
        if name in names
    )
    return amount / seconds if amount >= _ENOUGH_BYTES and seconds else None


def exchange_protocol(reads: Sequence[Transfer], writes: Sequence[Transfer]) -> str | None:
    """Return the protocol of the store of the output, such as ``s3``.

    The parts (pieces of patches that tasks exchange) are assumed to be in the same kind of store.
    """
    return next((each.protocol for each in (*writes, *reads)), None)


def _read_bytes(seen: Observation, reads: Sequence[Transfer]) -> float:
    found = 0.0
    for each in reads:
        stored, _, needed = seen.traffic.get(each.operator, (0, 0, 0))
        # Blocks for tasks that have not ended are counted in the traffic, but not in the seconds.
        found += stored * min(1.0, each.task_bytes * len(seen.tasks) / max(1, needed))
    return found


def gain_of(
    exchanges: Sequence[Exchange],
    patches: Sequence[Patches],
    network: NetworkTime,
    duration: Duration,
    fleet: Fleet,
    bytes_per_s: float | None,
) -> Gain:
    """Return the duration of a step with the exchange of patches, and the time saved.

    Args:
        exchanges: amounts that tasks exchange, for each network with patches that several tasks
            share.
        patches: numbers of patches that each network computes without an exchange.
        network: time of the networks without an exchange.
        duration: duration of the step without an exchange.
        fleet: numbers of machines and worker processes.
        bytes_per_s: speed at which a process writes and reads; ``None`` if unknown.
    """
    every = sum(each.computed * each.input_voxels for each in patches)
    once = {each.operator: each.computed for each in exchanges}
    fewer = sum((each.computed - once.get(each.operator, each.computed)) * each.input_voxels
                for each in patches)  # fmt: skip
    saved = network.task_s * fewer / max(1, every)
    moved = 2 * sum(each.task_bytes for each in exchanges)
    transfer = None if bytes_per_s is None else moved / bytes_per_s
    task_s = max(duration.task_s - saved, min(network.other_s, duration.task_s)) + (transfer or 0.0)
    share = task_s / max(1e-9, duration.task_s)
    seconds = duration.start_s + (duration.seconds - duration.start_s) * share
    took = Duration(seconds, duration.start_s, task_s, duration.how)
    hours = seconds * fleet.machines / 3600
    return Gain(saved, transfer, moved, bytes_per_s, network.how, took, hours)


def exchange_if_it_pays(
    gain: Gain, patches: Patches, boxes: int, workers: int
) -> Callable[[BoxGrid], Exchange | None]:
    """Return a function that estimates the exchange of patches for another task size.

    The function returns ``None`` if the exchange does not pay at that size. To decide this, the
    function compares two times, each summed over all tasks: the time to write and read the parts
    at the other size, and the network time that the exchange saves at the present size.

    Args:
        gain: gain at the present task size.
        patches: numbers of patches of the network, for all tasks of the present size.
        boxes: number of tasks of the present size.
        workers: number of worker processes of the run.
    """

    def exchange(others: BoxGrid) -> Exchange | None:
        if gain.bytes_per_s is None or too_small(others, patches.patch_size):
            return None
        found = exchange_of(patches, others, len(others), workers, 1.0)
        if found is None or 2 * found.written_bytes / gain.bytes_per_s > gain.saved_s * boxes:
            return None
        return found

    return exchange

"""Raise an error when a step reads lost output of an earlier step.

A write unit (block or shard) that is not stored may have been left out on purpose, or may be lost.
The plan of the earlier step shows which task writes the unit. The record of this task decides:

| task that writes the unit              | what reading the unit does                           |
|----------------------------------------|------------------------------------------------------|
| no task of the earlier step            | yields the fill value                                |
| skipped, or has omitted the empty unit | yields the fill value                                |
| any other record, or no record         | raises an error, even with ``--fill-missing``        |
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.run.coverage import open_output
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.task_boxes import TaskBoxes
from chunkflow_py.store import open_store
from chunkflow_py.volume.array_identity import ArrayAddress, RecordedBlocks, expect
from chunkflow_py.volume.location import Location, level_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.task import Output
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.run.ledger.ledger_record import Record
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep, StepOutput
    from chunkflow_py.tasks.task_plan import Plan

_CACHED_SEGMENTS = 8  # segments of the ledger, per output


@dataclass(frozen=True)
class EarlierStep:
    """A step whose output a later step may read; can be pickled for worker processes.

    Attributes:
        name: name of the step.
        run: URL of the run that holds the records of the step.
        plan: plan of the tasks of the step.
        outputs: outputs of the operators of the step.
    """

    name: str
    run: str
    plan: Plan
    outputs: tuple[StepOutput, ...]


def earlier_steps(run: RunDirectory, step: RunStep) -> tuple[EarlierStep, ...]:
    """Return the steps that precede *step* in the run."""
    names = [each.name for each in run.spec.steps]
    return tuple(
        EarlierStep(
            each.name,
            run.spec.reused.get(each.name, run.url),
            run.plan(each.name),
            each.outputs,
        )
        for each in run.spec.steps[: names.index(step.name)]
    )


def expect_outputs(steps: Iterable[EarlierStep]) -> None:
    """Make later reads in this process raise an error if output of *steps* is lost."""
    expect(
        [
            (place_of(output.output), _OutputRecords(step, output))
            for step in steps
            for output in step.outputs
            if output.output.kind == "volume"
        ]
    )


def place_of(output: Output) -> str:
    """Return the canonical address of an output; equal addresses name the same output."""
    if output.kind != "volume":
        return output.url
    return level_name(Location.parse(output.url), output.mip)


def check_readers(operators: Sequence[Operator], steps: Iterable[RunStep]) -> None:
    """Check that all operators that read output of *steps* can detect lost blocks.

    Raises:
        OptionError: an operator cannot detect lost blocks. The message names the operator and the
            operators to use instead.
    """
    places = [ArrayAddress.parse(place_of(o.output)) for step in steps for o in step.outputs]
    for operator in operators:
        if operator.hooks.tells_missing:
            continue
        for place in map(ArrayAddress.parse, operator.hooks.origins):
            if any(place.is_same(other) for other in places):
                msg = (
                    f"{operator.name} reads {place.text}, which an earlier step of the run writes, "
                    "but this operator cannot distinguish a lost block from an empty block; use "
                    "load-zarr or load-precomputed instead"
                )
                raise OptionError(msg)


class _OutputRecords(RecordedBlocks):
    """The records of the write units (blocks or shards) of one array of an earlier step."""

    def __init__(self, step: EarlierStep, output: StepOutput) -> None:
        self._step, self._output = step, output
        self._lock = threading.Lock()
        self._segments: OrderedDict[int, dict[int, Record]] = OrderedDict()

    @cached_property
    def _ledger(self) -> Ledger:
        step = self._step
        return Ledger(open_store(step.run), step.name, step.plan.span, in_background=False)

    @cached_property
    def _tasks(self) -> TaskBoxes:
        return TaskBoxes.of_output(self._step.plan, self._output)

    @cached_property
    def _array(self) -> str:
        return str(getattr(open_output(self._output.output), "array_url", ""))

    def check(self, key: str, box: BoundingBox, time: int | None) -> None:
        """Raise an error if an absent write unit is lost; see the table at the top of the module.

        Args:
            key: key of the absent block or shard in the store of the array.
            box: box of the write unit, in voxels of the array.
            time: time index of the write unit; ``None`` if the array has no time axis.
        """
        if not self._output.is_known:
            return
        with self._lock:
            number = self._tasks.number(box.start, time)
            if number is None:
                return
            url = f"{self._array}/{key}"
            reason = self._why_lost(self._record(number), url)
            if reason:  # read again: the cached records may be older than a repair
                self._segments.clear()
                reason = self._why_lost(self._record(number), url)
        if reason:
            msg = (
                f"{url}, output of step {self._step.name} of {self._step.run}, is lost: {reason}; "
                f"run chunkflow verify {self._step.run} to list all missing objects, and chunkflow "
                f"repair {self._step.run} to compute these objects and all dependent output again"
            )
            raise VolumeError(msg)

    def _record(self, number: int) -> Record | None:
        segment = self._ledger.segment_of(number)
        if segment not in self._segments:
            self._segments[segment] = self._ledger.records_of(segment)
            if len(self._segments) > _CACHED_SEGMENTS:
                self._segments.popitem(last=False)
        self._segments.move_to_end(segment)
        return self._segments[segment].get(number)

    @staticmethod
    def _why_lost(record: Record | None, url: str) -> str:
        if record is None or record.state == "dead":
            return "the task that writes this object is not done"
        if record.state == "skipped":
            return ""
        for stored in reversed(record.written):
            if stored.url == url:
                return "" if stored.size is None else f"{stored.size} bytes were recorded"
        return "the record of the task that writes this object does not name the object"

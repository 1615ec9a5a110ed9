"""What earlier steps of a run have stored, as a later step has to find it.

```
absent unit -> its task, by the plan of the earlier step -> the task's record:
    no task of that step, skipped, or left out as empty     the fill value
    anything else                                           lost: an error, whatever options say
```
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.pipeline.hooks import places_read
from chunkflow_py.run.coverage import opened
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.task_boxes import TaskBoxes
from chunkflow_py.store import open_store
from chunkflow_py.volume.array_identity import ArrayAddress, RecordedBlocks, expect
from chunkflow_py.volume.location import Location, level_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.outputs import Output
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.run.ledger.ledger_record import Record
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep, StepOutput
    from chunkflow_py.tasks.task_plan import Plan

_PAGES = 8  # of a ledger that are kept


@dataclass(frozen=True)
class EarlierStep:
    """A step of a run whose output a later one may read; goes to other processes as it is.

    Attributes:
        name: of the step.
        run: URL of the run that has its records.
        plan: its tasks.
        outputs: what it stores.
    """

    name: str
    run: str
    plan: Plan
    outputs: tuple[StepOutput, ...]


def earlier_steps(run: RunDirectory, step: RunStep) -> tuple[EarlierStep, ...]:
    """Return the steps of a run before one of its steps."""
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
    """Have every volume that this process opens refuse what is lost of the outputs of *steps*."""
    expect(
        [
            (place_of(output.output), _Recorded(step, output))
            for step in steps
            for output in step.outputs
            if output.output.kind == "volume"
        ]
    )


def place_of(output: Output) -> str:
    """Return the place of an output, as `WritesTo.destination` writes it."""
    if output.kind != "volume":
        return output.url
    return level_name(Location.parse(output.url), output.mip)


def check_readers(operators: Sequence[Operator], steps: Iterable[RunStep]) -> None:
    """Refuse operators that read outputs of earlier steps and cannot tell what of them is lost.

    Raises:
        OptionError: names the operator and what to use instead.
    """
    places = [ArrayAddress.parse(place_of(o.output)) for step in steps for o in step.outputs]
    for operator in operators:
        if getattr(operator.body, "tells_missing", True):
            continue
        for place in map(ArrayAddress.parse, places_read(operator.body)):
            if any(place.is_same(other) for other in places):
                msg = (
                    f"{operator.name} reads {place.text}, which an earlier step of the run writes, "
                    "and cannot tell a lost block from an empty one; read it by load-zarr or "
                    "load-precomputed"
                )
                raise OptionError(msg)


class _Recorded(RecordedBlocks):
    """What the records of a step say of one of its volumes."""

    def __init__(self, step: EarlierStep, output: StepOutput) -> None:
        self._step, self._output = step, output
        self._lock = threading.Lock()
        self._pages: OrderedDict[int, dict[int, Record]] = OrderedDict()

    @cached_property
    def _ledger(self) -> Ledger:
        step = self._step
        return Ledger(open_store(step.run), step.name, step.plan.span, in_background=False)

    @cached_property
    def _tasks(self) -> TaskBoxes:
        return TaskBoxes.of_output(self._step.plan, self._output)

    @cached_property
    def _array(self) -> str:
        """The address of the array, as records spell it."""
        return str(getattr(opened(self._output.output), "array_url", ""))

    def check(self, key: str, box: BoundingBox, time: int | None) -> None:
        """Refuse that a write unit is absent, if it should be there."""
        if not self._output.is_known:
            return
        with self._lock:
            number = self._tasks.number(box.start, time)
            if number is None:
                return
            url = f"{self._array}/{key}"
            why = self._wrong(self._record(number), url)
            if why:  # once more: what is kept may be older than a repair
                self._pages.clear()
                why = self._wrong(self._record(number), url)
        if why:
            msg = (
                f"{url} is lost: {why} by stage {self._step.name} of {self._step.run}; chunkflow "
                f"verify {self._step.run} lists what is missing, and chunkflow repair "
                f"{self._step.run} does it again, with all that was made of it"
            )
            raise VolumeError(msg)

    def _record(self, number: int) -> Record | None:
        page = self._ledger.segment_of(number)
        if page not in self._pages:
            self._pages[page] = self._ledger.records_of(page)
            if len(self._pages) > _PAGES:
                self._pages.popitem(last=False)
        self._pages.move_to_end(page)
        return self._pages[page].get(number)

    @staticmethod
    def _wrong(record: Record | None, url: str) -> str:
        """Return why an object should be there; nothing if it need not."""
        if record is None or record.state == "dead":
            return "its task is not done"
        if record.state == "skipped":
            return ""
        for stored in reversed(record.written):
            if stored.url == url:
                return "" if stored.size is None else f"{stored.size} bytes were stored"
        return "its task is recorded as done, and does not name it"

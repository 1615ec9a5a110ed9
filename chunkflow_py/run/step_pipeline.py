"""The pipeline of one step: checked and estimated before anything is sent."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.hooks import (
    CreatesOutput,
    HasBounds,
    HasSingleWriter,
    WritesTo,
    WritesToSeveral,
)
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.run.coverage import outputs_of
from chunkflow_py.volume.saver import VolumeSaver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.pipeline.forecast import LineForecast
    from chunkflow_py.pipeline.operator import Operator, Source
    from chunkflow_py.run.run_spec import StepOutput
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepPipeline:
    """The pipeline of one step of a run.

    Attributes:
        name: of the step.
        source: that makes the tasks; has a ``plan``.
        operators: the rest of the line.
        words: of the operators, one tuple each.
        source_words: of the source.
        mip: the global option.
        device_class: ``same`` or ``any``.
    """

    name: str
    source: Source
    operators: tuple[Operator, ...]
    words: tuple[tuple[str, ...], ...]
    source_words: tuple[str, ...]
    mip: int = 0
    device_class: str = "same"

    @property
    def plan(self) -> Plan:
        """The tasks.

        Raises:
            OptionError: the source does not know them beforehand.
        """
        plan: Plan | None = getattr(self.source.body, "plan", None)
        if plan is None:
            msg = (
                f"{self.source.name} does not know all tasks beforehand, so that nobody could tell "
                "when they are done; begin the line with generate-tasks"
            )
            raise OptionError(msg)
        return plan

    def pipeline(self, ahead: int | None = None) -> Pipeline:
        """Return the line as workers run it, checked."""
        pipeline = worker_pipeline(self.operators, self.source, ahead)
        pipeline.check()
        return pipeline


@dataclass(frozen=True)
class StepEstimate:
    """What a step will take.

    Attributes:
        step: its name.
        tasks: how many.
        output_bytes: of all voxels that are stored, before compression, as far as it is known.
        memory: of one process that works on it, if it was tried.
        created: volumes that were made for it, see `create_outputs`.
        outputs: what its operators store.
    """

    step: str
    tasks: int
    output_bytes: int
    memory: LineForecast | None
    created: tuple[str, ...] = ()
    outputs: tuple[StepOutput, ...] = ()


def worker_pipeline(
    operators: Sequence[Operator], source: Source, ahead: int | None = None
) -> Pipeline:
    """Return the line of a run: patches are placed by the volume unless the line says otherwise."""
    for operator in operators:
        placement: Any = getattr(operator.body, "placement", None)
        if getattr(placement, "grid", None) == "auto":
            placement.grid = "anchored"
    return Pipeline(operators, source, ahead=ahead)


def check_outputs_there(operators: Sequence[Operator]) -> None:
    """Refuse to make an output anew that is gone, or is not seen from this machine.

    Who submits a run makes its outputs. A worker that made one where no file system is mounted
    would write to its own disk, and record it.

    Args:
        operators: of a line that was checked.

    Raises:
        OptionError: names the output.
    """
    for operator in operators:
        saver = getattr(operator.body, "saver", None)
        if isinstance(saver, VolumeSaver) and saver.volume is None:
            msg = (
                f"{operator.name} writes to {saver.url}, which was made with the run and is not "
                "on this machine: mount what holds it, use a file system that machines share or a "
                "bucket, or, if it was deleted, submit the same line again, which makes it"
            )
            raise OptionError(msg)


def prepared(line: StepPipeline, *, rehearse: bool) -> tuple[StepPipeline, StepEstimate]:
    """Check a pipeline, and estimate what it takes; nothing is created.

    Args:
        line: to check.
        rehearse: load the network and estimate the memory of a worker process.

    Returns:
        The line, with what was left open decided, and what it takes.

    Raises:
        ChunkflowError: whatever is wrong with the line.
    """
    plan = line.plan
    line = _with_backend(line, rehearse=rehearse)
    pipeline = line.pipeline()
    for operator in line.operators:
        body: Any = operator.body
        if isinstance(body, HasSingleWriter) and body.single_writer:
            msg = (
                f"{operator.name} writes to a file that one process may write at a time, and "
                "workers are several; write to zarr:// or precomputed://, or one file a task"
            )
            raise OptionError(msg)
        if operator.options.get("lower_batch") and line.device_class == "same":
            msg = (
                f"{operator.name} --lower-batch may change the batch while it works, and with it "
                "the bytes; leave it out, or submit with --device-class any"
            )
            raise OptionError(msg)
    check_margins(pipeline)
    saves = CreatesOutput | WritesTo | WritesToSeveral
    if not any(isinstance(each.body, saves) for each in line.operators):
        logger.warning("stage %s saves nothing, unless a plugin does: add save-zarr", line.name)
    memory = pipeline.rehearse() if rehearse else None
    size = pipeline.output_bytes(len(plan))
    outputs = outputs_of(pipeline)
    return line, StepEstimate(line.name, len(plan), size, memory, outputs=outputs)


def create_outputs(line: StepPipeline) -> tuple[str, ...]:
    """Create what a line writes to, unless it is there; return the addresses of what was made.

    Args:
        line: that was prepared.

    Raises:
        ChunkflowError: one of them cannot be created.
    """
    bodies = (line.source.body, *(operator.body for operator in line.operators))
    return tuple(
        address
        for body in bodies
        if isinstance(body, CreatesOutput) and (address := body.create_output())
    )


def _with_backend(line: StepPipeline, *, rehearse: bool) -> StepPipeline:
    """Return the line with the backend that ``--backend auto`` chooses here.

    Each worker would choose for itself, and some perhaps another.
    """
    words = list(line.words)
    for index, operator in enumerate(line.operators):
        body: Any = operator.body
        network = getattr(body, "network", None)
        if not isinstance(network, dict) or network.get("backend") != "auto":
            continue
        if not rehearse:
            msg = (
                f"{operator.name} --backend auto is decided by trying, which --no-rehearse "
                "forbids; name a backend, as chunkflow tune tells it"
            )
            raise OptionError(msg)
        chosen = body.choose_backend()
        logger.info("%s --backend auto: the run uses %s", operator.name, chosen)
        words[index] = tuple(_chosen(words[index], chosen))
        network["backend"] = operator.options["backend"] = chosen
    return replace(line, words=tuple(words))


def _chosen(words: Sequence[str], backend: str) -> list[str]:
    told = list(words)
    for index, word in enumerate(told):
        if word == "--backend=auto":
            told[index] = f"--backend={backend}"
        elif word == "auto" and index and told[index - 1] == "--backend":
            told[index] = backend
    return told


def check_margins(pipeline: Pipeline) -> None:
    """Refuse a line whose loaders read less around a task than its network needs.

    On a laptop the first task would say it; here it would be said by every one.

    Args:
        pipeline: checked, with a source that knows its boxes.

    Raises:
        OptionError: names loader, task and what is missing.
    """
    boxes = getattr(pipeline.source and pipeline.source.body, "boxes", None)
    if not boxes:
        return
    box = boxes[len(boxes) // 2]
    for index, step in enumerate(pipeline.operators):
        body: Any = step.body
        domain = body.bounds() if isinstance(body, HasBounds) else None
        cutout = getattr(body, "cutout", None)
        placed = any(_is_anchored(later.body) for later in pipeline.operators[index + 1 :])
        if domain is None or cutout is None or not placed:
            continue
        inside = box.intersection(domain)
        if inside.is_empty:
            continue
        need = pipeline.required_input(index, inside, domain)
        read, _ = cutout.box(domain, inside, step.name)
        if not read.contains(need):
            msg = (
                f"{step.name} reads {read} for task {inside}, but the network needs {need} "
                "(zyx, voxels); give it --expand-margin-size auto, or --grid chunk to inference"
            )
            raise OptionError(msg)


def _is_anchored(body: object) -> bool:
    """Tell whether a body places patches by the volume."""
    return getattr(getattr(body, "placement", None), "grid", "chunk") != "chunk"

"""The pipeline of one step of a run: checks, estimates, and creation of the outputs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.run.coverage import outputs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.pipeline.forecast import PipelineMemory
    from chunkflow_py.pipeline.operator import Operator, Source
    from chunkflow_py.run.run_spec import StepOutput
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepPipeline:
    """The pipeline of one step of a run.

    Attributes:
        name: name of the step.
        source: source of the tasks, which must know all tasks in advance (see `plan`).
        operators: operators that follow the source.
        arguments: command-line arguments of the operators, one tuple for each operator.
        source_arguments: command-line arguments of the source.
        mip: value of the global option ``--mip``.
        device_class: ``same`` if all workers must have the same compute profile (backend, device,
            threads and precision); ``any`` if their profiles may differ.
    """

    name: str
    source: Source
    operators: tuple[Operator, ...]
    arguments: tuple[tuple[str, ...], ...]
    source_arguments: tuple[str, ...]
    mip: int = 0
    device_class: str = "same"

    @property
    def plan(self) -> Plan:
        """The plan of the tasks.

        Raises:
            OptionError: the source does not know its tasks in advance.
        """
        if (plan := self.source.hooks.plan) is None:
            msg = (
                f"{self.source.name} does not know all its tasks in advance, so a run could not "
                "detect when all of them are done; begin the pipeline with generate-tasks instead"
            )
            raise OptionError(msg)
        return plan

    def pipeline(self, ahead: int | None = None) -> Pipeline:
        """Check the pipeline, and return it in the form in which workers run it.

        Args:
            ahead: number of tasks to read in advance; ``None`` for the default of `Pipeline`.
        """
        pipeline = worker_pipeline(self.operators, self.source, ahead)
        pipeline.check()
        return pipeline


@dataclass(frozen=True)
class StepEstimate:
    """Estimates for a step, and the outputs of the step.

    Attributes:
        step: name of the step.
        tasks: number of tasks.
        output_bytes: size of all output voxels in bytes, before compression; outputs of unknown
            size count as 0.
        memory: estimated memory of one worker process; ``None`` if it was not estimated.
        created: addresses of the volumes that `create_outputs` created.
        outputs: outputs of the operators.
    """

    step: str
    tasks: int
    output_bytes: int
    memory: PipelineMemory | None
    created: tuple[str, ...] = ()
    outputs: tuple[StepOutput, ...] = ()


def worker_pipeline(
    operators: Sequence[Operator], source: Source, ahead: int | None = None
) -> Pipeline:
    """Return the pipeline that the workers of a run execute.

    ``--grid auto`` becomes ``--grid anchored``: the patch grid starts at the corner of the whole
    volume. To let tasks exchange patches, set `make_part_store` of the returned pipeline.

    Args:
        operators: operators that follow the source.
        source: source of the tasks.
        ahead: number of tasks to read in advance; ``None`` for the default of `Pipeline`.
    """
    for operator in operators:
        placement = operator.hooks.placement
        if placement is not None and placement.grid == "auto":
            placement.grid = "anchored"
    pipeline = Pipeline(operators, source, ahead=ahead)
    pipeline.make_part_store = None
    return pipeline


def check_outputs_exist(operators: Sequence[Operator]) -> None:
    """Check that all output volumes exist and are visible from this machine.

    Only the submitter creates outputs. If workers created outputs, a worker without the shared file
    system would write to its own disk and record its tasks as done.

    Args:
        operators: operators of a checked pipeline.

    Raises:
        OptionError: an output volume is not visible. The message names the volume.
    """
    for operator in operators:
        if (missing := operator.hooks.missing_output) is not None:
            msg = (
                f"{operator.name} writes to {missing}, which does not exist on this machine, "
                "although submit created it; mount the file system of the volume, or write to a "
                "shared file system or a bucket. If the volume was deleted, submit the same "
                "pipeline again to create it"
            )
            raise OptionError(msg)


def prepared(step: StepPipeline, *, load_networks: bool) -> tuple[StepPipeline, StepEstimate]:
    """Check the pipeline of a step, and estimate output and memory, but create no outputs.

    Args:
        step: pipeline to check.
        load_networks: whether to load the networks, which is necessary to choose their backends
            and to estimate the memory of a worker process.

    Returns:
        The pipeline, with ``--backend auto`` replaced by a backend, and the estimates.

    Raises:
        ChunkflowError: a check of the pipeline failed.
    """
    plan = step.plan
    step = _with_backend(step, load_networks=load_networks)
    pipeline = step.pipeline()
    for operator in step.operators:
        if operator.hooks.single_writer:
            msg = (
                f"{operator.name} writes to a file to which only one process can write at a time, "
                "but a run has several workers; write to zarr:// or precomputed://, or to one file "
                "per task"
            )
            raise OptionError(msg)
        if operator.options.get("lower_batch") and step.device_class == "same":
            msg = (
                f"{operator.name} --lower-batch may reduce the batch size during the run, which "
                "changes the bytes of the output; omit --lower-batch, or submit with "
                "--device-class any"
            )
            raise OptionError(msg)
    check_margins(pipeline)
    if not any(
        each.hooks.destinations or each.hooks.declares("create_output") for each in step.operators
    ):
        logger.warning(
            "step %s saves no output, unless a plugin saves it; add an operator such as save-zarr",
            step.name,
        )
    memory = pipeline.entered_memory() if load_networks else None
    size = pipeline.output_bytes(len(plan))
    outputs = outputs_of(pipeline)
    return step, StepEstimate(step.name, len(plan), size, memory, outputs=outputs)


def create_outputs(step: StepPipeline) -> tuple[str, ...]:
    """Create the outputs that do not exist yet, and return their addresses.

    Args:
        step: pipeline that `prepared` returned.

    Raises:
        ChunkflowError: an output cannot be created.
    """
    created = [step.source.hooks.create_output()]
    created += [operator.hooks.create_output() for operator in step.operators]
    return tuple(filter(None, created))


def _with_backend(step: StepPipeline, *, load_networks: bool) -> StepPipeline:
    """Replace ``--backend auto`` with the backend that is selected on this machine.

    If each worker selected its own backend, the results of the workers could differ.
    """
    arguments = list(step.arguments)
    for index, operator in enumerate(step.operators):
        if not operator.hooks.backend_is_open:
            continue
        if not load_networks:
            msg = (
                f"{operator.name} --backend auto must run the network to choose a backend, but "
                "--no-rehearse forbids running it; name a backend instead of auto, for example the "
                "backend that chunkflow tune recommends"
            )
            raise OptionError(msg)
        chosen = operator.hooks.choose_backend()
        logger.info("%s --backend auto: the run uses %s", operator.name, chosen)
        arguments[index] = tuple(_backend_replaced(arguments[index], chosen))
        operator.options["backend"] = chosen
    return replace(step, arguments=tuple(arguments))


def _backend_replaced(arguments: Sequence[str], backend: str) -> list[str]:
    argv = list(arguments)
    for index, argument in enumerate(argv):
        if argument == "--backend=auto":
            argv[index] = f"--backend={backend}"
        elif argument == "auto" and index and argv[index - 1] == "--backend":
            argv[index] = backend
    return argv


def check_margins(pipeline: Pipeline) -> None:
    """Check that loaders read all voxels that the network needs around a task.

    If a loader reads fewer voxels, every task of the run fails.

    Args:
        pipeline: checked pipeline; if its source has no boxes, nothing is checked.

    Raises:
        OptionError: a loader reads too few voxels. The message names the loader, a task, the box
            that the loader reads and the box that the network needs.
    """
    boxes = pipeline.source.hooks.boxes if pipeline.source else None
    if not boxes:
        return
    box = boxes[len(boxes) // 2]
    for index, operator in enumerate(pipeline.operators):
        domain, cutout = operator.hooks.bounds(), operator.hooks.cutout
        placed = any(_is_anchored(later) for later in pipeline.operators[index + 1 :])
        if domain is None or cutout is None or not placed:
            continue
        inside = box.intersection(domain)
        if inside.is_empty:
            continue
        required = pipeline.required_input(index, inside, domain)
        read, _ = cutout.box(domain, inside, operator.name)
        if not read.contains(required):
            msg = (
                f"{operator.name} reads the box {read} for task {inside}, but the network needs "
                f"the box {required} (zyx, voxels); add --expand-margin-size auto to "
                f"{operator.name}, or --grid chunk to inference"
            )
            raise OptionError(msg)


def _is_anchored(operator: Operator) -> bool:
    """Return whether the patch grid of an operator starts at the corner of the whole volume."""
    placement = operator.hooks.placement
    return placement is not None and placement.grid != "chunk"

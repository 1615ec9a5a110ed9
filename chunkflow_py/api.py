"""Pipelines, predictions and volumes in Python, without a command line.

>>> from chunkflow_py import Pipeline, ops
>>> pipeline = Pipeline([
...     ops.generate_tasks(volume_path="em.zarr", chunk_size=(64, 512, 512)),
...     ops.load_zarr(store="em.zarr", expand_margin_size="auto"),
...     ops.threshold(threshold=100),
...     ops.save_zarr(store="mask.zarr"),
... ])
>>> pipeline.check()  # or .plan(), or .submit()
>>> for task in pipeline.run(): ...
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.pipeline import pipeline as base
from chunkflow_py.pipeline.operator import Operator, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from numpy.typing import NDArray

    from chunkflow_py.cli.command_parts import CommandPart
    from chunkflow_py.core.chunk import Chunk, Kind
    from chunkflow_py.pipeline.pipeline import Listener
    from chunkflow_py.planning.run_plan import RunPlan
    from chunkflow_py.run.submit import Submission
    from chunkflow_py.volume.protocol import Volume

__all__ = ["Pipeline", "predict", "write_volume"]


class Pipeline(base.Pipeline):
    """Operators that run one after the other on each task.

    Args:
        operators: operators in the order in which they run. The first can be a source, such as
            ``ops.generate_tasks(…)``.
        source: source of the tasks, if the first operator is not a source. Without a source, the
            pipeline runs once.
        ahead: number of tasks to prefetch for each stage (read, compute, write). With 0, all stages
            run in one thread. With ``None``, one task is prefetched if enough memory is available,
            else no task.
        dry_run: whether to omit the operators that save.
        in_place: whether to allow saving to the volume that is loaded.
        listener: receiver of progress events.

    Raises:
        OptionError: a source comes after another operator.
    """

    def __init__(
        self,
        operators: Sequence[Operator | Source],
        source: Source | None = None,
        *,
        ahead: int | None = 0,
        dry_run: bool = False,
        in_place: bool = False,
        listener: Listener | None = None,
    ) -> None:
        from chunkflow_py.cli.command_parts import check_source_first, operators_of

        parts = ([] if source is None else [source]) + list(operators)
        check_source_first(parts)
        first = parts[0] if parts and isinstance(parts[0], Source) else None
        super().__init__(
            list(operators_of(parts)),
            first,
            ahead=ahead,
            dry_run=dry_run,
            in_place=in_place,
            listener=listener,
        )
        self._typed = tuple(parts)

    def plan(self, **settings: Any) -> RunPlan:
        """Estimate tasks, bytes, memory, time and cost, without creating a run or an output.

        Args:
            settings: fields of `chunkflow_py.planning.run_plan.PlanSettings`. If the field
                ``module`` is ``None`` (the default), no pilot run measures memory and time. Values
                that need such a measurement are then unknown.

        Raises:
            OptionError: an operator was not made with ``ops.NAME(…)``, so its options are unknown.
        """
        from chunkflow_py.planning.planner import plan_run
        from chunkflow_py.planning.run_plan import PlannedStep, PlanSettings

        argv = tuple(argument for part in self._parts() for argument in part.argv)
        step = PlannedStep("pipeline", tuple(self.operators), self.source, argv, 0, self.ahead)
        return plan_run([step], PlanSettings(**settings))

    def submit(
        self, run: str | None = None, queue: str | None = None, *, step: str | None = None,
        device_class: str = "same", **options: Any,
    ) -> Submission:  # fmt: skip
        """Create a run of the pipeline and send its tasks, like ``chunkflow submit``.

        The equivalent command line would store the same spec (description of the run).

        Args:
            run: address of the run directory (default: the address of the output plus ``.run``).
            queue: URL of the queue (default: an SQLite file in the run directory; if the run
                directory is not a local folder, a URL is required).
            step: name of this pipeline in the run (default: the last operator that runs a network;
                if there is none, the last operator that computes).
            device_class: ``same`` refuses workers whose output bytes would differ from those of
                the first worker. ``any`` accepts all workers, so that results agree only within a
                tolerance.
            options: further arguments of `chunkflow_py.run.submit.submit`.

        Returns:
            The submitted run; pass its ``address`` to ``chunkflow work``.

        Raises:
            OptionError: an operator was not made with ``ops.NAME(…)``, so workers cannot create it.
            ChunkflowError: the pipeline, the store or the queue is not usable.
        """
        from chunkflow_py.cli.run_pipelines import step_pipelines
        from chunkflow_py.run.run_directory import RunDirectory
        from chunkflow_py.run.submit import default_queue, default_run, submit

        steps = step_pipelines(self._parts(), step, mip=0, device_class=device_class)
        directory = RunDirectory.parse(run or default_run(steps[-1].operators))
        return submit(directory, steps, queue or default_queue(directory.url), **options)

    def _parts(self) -> list[CommandPart]:
        from chunkflow_py.cli.command_parts import CommandPart

        for each in self._typed:
            if not each.argv:
                msg = (
                    f"operator {each.name} was not created by chunkflow_py.ops, so workers cannot "
                    "create it; define it in a plugin or an installed package (docs/extending.md) "
                    f"and use ops.{each.name.replace('-', '_')}(…), or call run() to run the "
                    "pipeline in this process"
                )
                raise OptionError(msg)
        return [CommandPart(each, each.argv) for each in self._typed]


def predict(
    image: NDArray[Any] | Chunk | Volume | str | Path,
    network: torch.nn.Module | str | Path,
    *,
    patch_size: Iterable[int],
    overlap: Iterable[int] | None = None,
    weights: str | Path | None = None,
    num_output_channels: int | None = None,
    **options: Any,
) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Run a network over overlapping patches of an image in memory, and blend the results.

    For volumes larger than memory, use `Pipeline` with ``ops.inference``.

    Args:
        image: array (z, y, x) or (c, z, y, x), a chunk, a volume, or the address of a volume. The
            whole volume is read. Integers are divided by the maximum of their dtype, unless
            ``normalize`` is given.
        network: PyTorch module, which is copied and not changed, or path of a network (see
            docs/own-model.md).
        patch_size: size of the input patch, voxels, zyx.
        overlap: overlap of output patches, voxels, zyx (default: as in ``ops.inference``).
        weights: path of a weight file.
        num_output_channels: number of output channels of the network. The default for a path is 3.
            The default for a module is the number of channels of its output for a patch of zeros.
        options: further options of the command ``inference``, such as ``output_kind="affinity"``.

    Returns:
        An array (c, z, y, x), float32 unless ``output_dtype`` is given; for a network with several
        outputs, a dict of such arrays.

    Raises:
        ChunkError: the image is neither 3D nor 4D.
        OptionError: an option is wrong.
        ModelError: the network cannot be read, or does not match the options.
    """
    from chunkflow_py.ops import inference

    chunk = _chunk_of(image)
    in_memory = None if isinstance(network, str | Path) else network
    patch = tuple(patch_size)
    if in_memory is not None and num_output_channels is None:
        num_output_channels = _channels_of(in_memory, chunk, patch)
    operator = inference(  # type: ignore[operator]  # a module that can be called
        framework=options.pop("framework", "universal" if in_memory is None else "pytorch"),
        # A built-in name stands for a module in memory while the options are checked.
        convnet_model=str(network) if in_memory is None else "rsunet",
        convnet_weight_path=weights,
        input_patch_size=patch,
        output_patch_overlap=None if overlap is None else tuple(overlap),
        num_output_channels=num_output_channels,
        num_input_channels=1 if chunk.array.ndim == 3 else len(chunk.array),
        **options,
    )
    inferencer = operator.body
    if in_memory is not None:
        inferencer.network |= {"model": type(in_memory).__name__, "in_memory": in_memory}
    with inferencer:
        result = inferencer(chunk)
    if isinstance(result, dict):
        return {name: each.array for name, each in result.items()}
    array: NDArray[Any] = result.array
    return array


def write_volume(
    array: NDArray[Any] | Chunk,
    url: str | Path,
    *,
    voxel_size: Iterable[float] | None = None,
    voxel_offset: Iterable[int] = (0, 0, 0),
    kind: Kind | None = None,
    block_size: Iterable[int] | None = None,
) -> Volume:
    """Write an array in memory as a new volume.

    Args:
        array: array (z, y, x) or (c, z, y, x), or a chunk. A chunk also gives the position, the
            voxel size and the kind of the volume.
        url: address, such as ``out.zarr``, ``zarr://…``, ``precomputed://…`` or ``h5://…``; see
            docs/volumes.md.
        voxel_size: voxel size, nanometres, zyx; required for an array.
        voxel_offset: position of an array's first voxel, zyx.
        kind: meaning of an array's voxels, such as ``image`` or ``segmentation``.
        block_size: block size, voxels, zyx (default: 64, 64, 64, or less where the array is
            smaller).

    Returns:
        The open volume.

    Raises:
        OptionError: the voxel size of an array is missing.
        VolumeError: the volume already exists, or cannot be written.
    """
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.volume import create_volume
    from chunkflow_py.volume.protocol import VolumeSpec

    if isinstance(array, Chunk):
        chunk = array
    elif voxel_size is None:
        msg = "write_volume needs the voxel size of an array; give voxel_size=(z, y, x) in nm"
        raise OptionError(msg)
    else:
        z, y, x = voxel_size
        chunk = Chunk(array, Zyx.of(voxel_offset), (float(z), float(y), float(x)), kind)
    size = chunk.bbox.size
    block = size.low(Zyx(64, 64, 64)) if block_size is None else Zyx.of(block_size)
    channels = None if chunk.array.ndim == 3 else len(chunk.array)
    spec = VolumeSpec(chunk.bbox, chunk.voxel_size_nm, chunk.dtype, channels, chunk.kind, block)
    target = str(url)
    volume = create_volume(spec, target if "://" in target else f"zarr://{target}")
    volume.write(chunk)
    return volume


def _chunk_of(image: Any) -> Chunk:
    import numpy as np

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.volume import open_volume

    if isinstance(image, Chunk):
        return image
    if isinstance(image, str | Path):
        image = open_volume(str(image))
    if hasattr(image, "bounds"):
        return image.read(image.bounds)  # type: ignore[no-any-return]
    array = np.asarray(image)
    if array.ndim not in (3, 4):
        msg = f"predict needs (z, y, x) or (c, z, y, x); got an array of shape {array.shape}"
        raise ChunkError(msg)
    return Chunk(array, kind="image")


def _channels_of(network: torch.nn.Module, chunk: Chunk, patch: tuple[int, ...]) -> int:
    """Return the number of channels that a network returns for a patch of zeros."""
    import copy

    import torch

    channels = 1 if chunk.array.ndim == 3 else len(chunk.array)
    probe = copy.deepcopy(network).cpu().eval()
    with torch.no_grad():
        made = probe(torch.zeros(1, channels, *patch))
    return int(made.shape[1]) if isinstance(made, torch.Tensor) and made.ndim == 5 else 3

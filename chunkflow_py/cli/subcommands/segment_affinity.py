r"""Segment a whole volume of affinities.

SRC is a volume of affinities, and DST the volume of segments to create. Every byte of DST is the
same as if mean-affinity agglomeration had processed the whole volume at once. The result does not
depend on --task-size, the order of the tasks, the number of processes or interruptions.

All intermediate results are stored in a folder beside DST. To continue after an interruption, run
the same command again. This folder also contains the hierarchy of all merges. To make segments with
another --threshold, give this folder as --from-hierarchy; the affinities are not processed again.
--supervoxels also creates a volume of the fragments that were merged.

To use workers on many machines, print the steps with --show-steps, and put chunkflow submit in
front of them.

Example: chunkflow segment-affinity affinity.zarr zarr://segments.zarr --task-size 64 256 256 \
  --threshold 0.7 --processes 4
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.failed import worker_fails_in_order
from chunkflow_py.cli.subcommands import Subcommand, refuse_dry_run, subcommand
from chunkflow_py.cli.working import working_from, working_options
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError, check_extra
from chunkflow_py.ops.options.agglomeration_options import (
    FRACTION,
    THRESHOLD_HELP,
    fragment_options,
    fragments_from,
    layout_options,
    max_threshold_option,
)
from chunkflow_py.ops.options.label_options import place_of
from chunkflow_py.ops.options.saving_options import block_size_option, encoding_option
from chunkflow_py.pipeline.params import mip_option, zyx_option
from chunkflow_py.pipeline.terminal import echo, option_headings

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.cli.command_parts import CommandPart
    from chunkflow_py.core.geometry import BoundingBox

Steps = dict[str, list[tuple[str, ...]]]  # commands of each step, by name

_ONE_TASK = ("generate-tasks", "--roi-size", "1", "1", "1", "--chunk-size", "1", "1", "1")


@dataclass(frozen=True)
class AffinitySegmentation:
    """The steps that segment an affinity volume, as command lines.

    Attributes:
        source: URL of the affinities.
        target: URL of the volume of segments.
        work: URL of the folder for intermediate results.
        bounds: bounds of the affinities, voxels, zyx.
        task_size: size of the tasks, voxels, zyx.
        mip: resolution level of the volume of affinities.
        layout: command-line arguments that describe the affinities: the order of the channels, and
            which of two neighbouring voxels stores their affinity.
        fragments: command-line arguments for the method and the thresholds of fragment-affinity.
        threshold: two regions are merged if 1 - mean affinity between them is at most *threshold*.
        max_threshold: highest threshold that the hierarchy allows.
        min_size: segments with fewer than *min_size* voxels are united with a neighbour; 0 unites
            no segments.
        min_affinity: a small segment is united with a neighbour only if the mean affinity between
            them is at least *min_affinity*.
        saving: command-line arguments of save-volume for a new volume of segments.
        supervoxels: URL of the volume of supervoxels (fragments) to make; ``None`` makes no such
            volume.
    """

    source: str
    target: str
    work: str
    bounds: BoundingBox
    task_size: Zyx
    mip: int = 0
    layout: tuple[str, ...] = ()
    fragments: tuple[str, ...] = ()
    threshold: float = 0.7
    max_threshold: float = 0.95
    min_size: int = 0
    min_affinity: float = 0.0
    saving: tuple[str, ...] = ()
    supervoxels: str | None = None

    @property
    def levels(self) -> int:
        """Number of steps with merge-regions; in the last, one box covers the whole volume."""
        from chunkflow_py.segmentation.agglomeration.graph_store import GraphSettings

        z, y, x = self.task_size
        return GraphSettings(str(self.bounds), (z, y, x), "uint8", self.max_threshold).last_level

    def hierarchy_steps(self) -> Steps:
        """Return the commands of the steps that make the hierarchy, as a dict by step name."""
        work, size = self.work, _zyx(self.task_size)
        graph = ("--graph-path", f"{work}/graph")
        margin = ("--expand-margin-size", "auto")
        load = ("load-volume", "--volume-path", self.source, "--mip", str(self.mip), *margin)
        steps = {
            "fragments": [
                self._tasks(),
                load,
                (
                    "fragment-affinity", "--edges-path", f"{work}/edges", *self.layout,
                    *self.fragments,
                ),
                ("save-volume", "--volume-path", f"zarr://{work}/fragments.zarr"),
            ],
            "link": [
                self._tasks(),
                (
                    "link-labels", "--volume-path", f"{work}/fragments.zarr", "--edges-path",
                    f"{work}/edges", "--links-path", f"{work}/links", "--mip", "0",
                ),
            ],
            "solve": [
                _ONE_TASK,
                (
                    "solve-labels", "--links-path", f"{work}/links", "--table-path",
                    f"{work}/fragment-ids",
                ),
            ],
            "contacts": [
                self._tasks(),
                (*load, "--output-name", "affinity"),
                (
                    "load-volume", "--volume-path", f"{work}/fragments.zarr", "--mip", "0",
                    *margin,
                ),
                ("relabel", "--table-path", f"{work}/fragment-ids"),
                (
                    "measure-contacts", *graph, "--task-size", *size, "--max-threshold",
                    str(self.max_threshold), *self.layout,
                ),
            ],
        }  # fmt: skip
        for level in range(1, self.levels + 1):
            merging = ("merge-regions", *graph, "--level", str(level), "--task-size", *size)
            if level == self.levels:
                merging = (*merging, "--hierarchy-path", f"{work}/hierarchy")
            steps[f"level-{level}"] = [self._tasks(2**level), merging]
        return steps

    def segment_steps(self) -> Steps:
        """Return the commands of the steps that make segments from a hierarchy, by step name."""
        work, name = self.work, self.name
        return {
            "cut": [
                _ONE_TASK,
                (
                    "cut-hierarchy", "--hierarchy-path", f"{work}/hierarchy", "--graph-path",
                    f"{work}/graph", "--fragment-table-path", f"{work}/fragment-ids",
                    "--table-path", f"{work}/{name}", "--threshold", str(self.threshold),
                    "--min-size", str(self.min_size), "--min-affinity", str(self.min_affinity),
                ),
            ],
            "relabel": [
                self._tasks(),
                ("load-volume", "--volume-path", f"{work}/fragments.zarr", "--mip", "0"),
                ("relabel", "--table-path", f"{work}/{name}"),
                ("save-volume", "--volume-path", self.target, *self.saving),
            ],
        }  # fmt: skip

    def supervoxel_steps(self) -> Steps:
        """Return the commands that make the supervoxels, by step name; empty if not requested."""
        if self.supervoxels is None:
            return {}
        return {
            "supervoxels": [
                self._tasks(),
                ("load-volume", "--volume-path", f"{self.work}/fragments.zarr", "--mip", "0"),
                ("relabel", "--table-path", f"{self.work}/fragment-ids"),
                ("save-volume", "--volume-path", self.supervoxels, *self.saving),
            ]
        }

    @property
    def name(self) -> str:
        """Name of the run that makes the segments, and of its table of segment ids.

        The name depends on the target, so that several volumes can be made from one hierarchy.
        """
        small = f"-{self.min_size}-{self.min_affinity:g}" if self.min_size else ""
        return f"segments-{self.threshold:g}{small}-{self._digest(self.target)}"

    @property
    def supervoxel_name(self) -> str:
        """Name of the run that makes the supervoxels, which are the same for all thresholds."""
        return f"supervoxels-{self._digest(str(self.supervoxels))}"

    def _digest(self, url: str) -> str:
        return hashlib.sha256("\n".join((url, *self.saving)).encode()).hexdigest()[:6]

    def _tasks(self, factor: int = 1) -> tuple[str, ...]:
        size = _zyx(self.task_size * factor)
        return (
            "generate-tasks", "--roi-start", *_zyx(self.bounds.start), "--roi-stop",
            *_zyx(self.bounds.stop), "--chunk-size", *size, "--respect-stop",
        )  # fmt: skip


def _zyx(values: Zyx) -> tuple[str, ...]:
    return tuple(map(str, values))


def _parts(steps: Steps) -> list[CommandPart]:
    from chunkflow_py.cli.command_line import read_line
    from chunkflow_py.cli.command_parts import CommandPart

    parts: list[CommandPart] = []
    for number, (name, commands) in enumerate(steps.items()):
        if number:
            parts.append(
                CommandPart(Subcommand("then", lambda name=name: name), ("then", "--stage", name))
            )
        argv = [argument for command in commands for argument in command]
        parts += map(CommandPart, read_line(argv), commands)
    return parts


def command_line(steps: Steps) -> str:
    """Return the arguments that submit the steps with ``submit``, with one command per line."""
    lines: list[str] = []
    for name, commands in steps.items():
        lines.append(f"then --stage {name}" if lines else f"--stage {name}")
        lines += (f"  {shlex.join(command)}" for command in commands)
    return " \\\n".join(lines)


# fmt: off
@subcommand
@option_headings(
    {
        "Segments": ("threshold", "min_size", "min_affinity", "from_hierarchy", "supervoxels"),
        "Fragments": ("fragments", "aff_threshold_low", "aff_threshold_high"),
        "Affinities": ("mip", "affinity_order", "affinity_at"),
        "New volume": ("block_size", "encoding"),
    }
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@zyx_option("--task-size", "-s", minimum=1,
            help="Size of the tasks, voxels, zyx. Required unless --from-hierarchy is given.  "
                 "[default: task size of --from-hierarchy]")
@click.option("--threshold", type=FRACTION, default=0.7, show_default=True, help=THRESHOLD_HELP)
@click.option("--min-size", type=click.IntRange(min=0), default=0, show_default=True,
              help="Unite each segment with fewer voxels than this with the neighbour to which "
                   "its mean affinity is highest.")
@click.option("--min-affinity", type=FRACTION, default=0.0, show_default=True,
              help="Smallest mean affinity at which --min-size unites a segment with a "
                   "neighbour.")
@max_threshold_option()
@click.option("--from-hierarchy", metavar="URL",
              help="Folder of intermediate results of an earlier segment-affinity of SRC; use its "
                   "hierarchy.")
@click.option("--supervoxels", metavar="URL",
              help="Also create this volume of the fragments. The ids are those of "
                   "export-hierarchy; block size and encoding are those of DST.")
@fragment_options()
@mip_option(help="Level of SRC.  [default: the global --mip]")
@layout_options()
@block_size_option("DST", "--block-size", "-b", default="chosen from the tasks")
@encoding_option("DST")
@click.option("--work-path", "-w", metavar="URL",
              help="Folder or prefix for intermediate results.  [default: DST.segment]")
@click.option("--show-steps", is_flag=True,
              help="Print the steps as arguments of chunkflow submit, without executing them.")
@working_options()
def command(source: str, target: str, show_steps: bool, **options: Any) -> Callable[[], None]:
    """Check the options, and return the function that segments the volume."""
    # fmt: on
    refuse_dry_run()
    for module in ("cc3d", "fastremap"):
        check_extra("segmentation", "segment-affinity", module)
    if options["threshold"] > options["max_threshold"]:
        msg = (
            f"--threshold {options['threshold']:g} is above --max-threshold "
            f"{options['max_threshold']:g}; raise --max-threshold"
        )
        raise OptionError(msg)
    _check_places(source, target, options["supervoxels"])
    working = working_from(options)

    def act() -> None:
        job = _segmentation(source, target, options)
        first = {} if options["from_hierarchy"] else job.hierarchy_steps()
        if show_steps:
            echo(command_line(first | job.segment_steps() | job.supervoxel_steps()))
            return
        runs = {
            "hierarchy": first,
            job.name: job.segment_steps(),
            job.supervoxel_name: job.supervoxel_steps(),
        }
        for name, steps in runs.items():
            if steps:
                _run(f"{job.work}/{name}.run", steps, working(), options)

    return act


def _run(url: str, steps: Steps, working: Any, options: dict[str, Any]) -> None:
    """Carry out a run on this machine; end the process if the run is not complete afterwards."""
    from chunkflow_py.cli.run_pipelines import run_here, step_pipelines
    from chunkflow_py.cli.worker_report import report_exit
    from chunkflow_py.run.run_directory import RunDirectory

    context = click.get_current_context()
    with worker_fails_in_order():
        first = next(iter(steps))
        pipelines = step_pipelines(_parts(steps), first, mip=0, device_class="same")
        code, message = run_here(
            RunDirectory.parse(url), pipelines, working, context.find_root().params | options
        )
    if code:
        report_exit(code, message)
        context.exit(code)


def _segmentation(source: str, target: str, options: dict[str, Any]) -> AffinitySegmentation:
    """Return the segmentation that the options of the command line describe.

    Raises:
        OptionError: the size of the tasks is missing, tasks would cut blocks of DST, SRC has
            several time points, or the hierarchy does not fit SRC or the threshold.
    """
    from chunkflow_py.segmentation.agglomeration.hierarchy_store import read_settings
    from chunkflow_py.store import open_store
    from chunkflow_py.volume import open_volume
    from chunkflow_py.volume.location import Location

    mip = options["mip"]
    volume = open_volume(source, mip)
    if (volume.times or 1) > 1:
        msg = (
            f"{source} has {volume.times} time points, but segment-affinity segments one volume; "
            "copy a time point with convert --time, and segment the copy"
        )
        raise OptionError(msg)
    earlier, size = options["from_hierarchy"], options["task_size"]
    if earlier is not None:
        settings = read_settings(open_store(f"{Location.parse(earlier).store_url}/hierarchy"))
        settings.check_volume(volume.bounds, source)
        settings.check_threshold(options["threshold"], earlier)
        size = size or settings.size
        options["max_threshold"] = settings.max_threshold
    if size is None:
        msg = "segment-affinity needs the size of the tasks; add --task-size Z Y X (voxels)"
        raise OptionError(msg)
    _check_blocks(volume.bounds, size, options["block_size"])
    work = earlier or options["work_path"] or f"{Location.parse(target).store_url}.segment"
    made = fragments_from(dict(options))
    fragments = (
        "--fragments", made.method, "--aff-threshold-low", str(made.low), "--aff-threshold-high",
        str(made.high),
    )  # fmt: skip
    layout = (
        "--affinity-order", options["affinity_order"], "--affinity-at", options["affinity_at"],
    )  # fmt: skip
    saving: tuple[str, ...] = ()
    if options["block_size"] is not None:
        saving += ("--block-size", *_zyx(options["block_size"]))
    if options["encoding"] is not None:
        saving += ("--encoding", options["encoding"])
    return AffinitySegmentation(
        source, target, Location.parse(work).store_url, volume.bounds, size, mip,
        layout, fragments, options["threshold"], options["max_threshold"],
        options["min_size"], options["min_affinity"], saving,
        supervoxels=options["supervoxels"],
    )  # fmt: skip


def _check_places(source: str, target: str, supervoxels: str | None) -> None:
    """Check that *supervoxels* names neither the volume *source* nor the volume *target*.

    Raises:
        OptionError: *supervoxels* is the same volume as *source* or *target*.
    """
    if supervoxels is None:
        return
    for name, url in (("SRC", source), ("DST", target)):
        if place_of(url) == place_of(supervoxels):
            msg = f"--supervoxels {supervoxels} is the same volume as {name}; give another address"
            raise OptionError(msg)


def _check_blocks(bounds: BoundingBox, size: Zyx, block: Zyx | None) -> None:
    """Check that the boundaries of tasks do not cut blocks of DST.

    These blocks are written by the last step. Without this check, the last step would fail after
    all other steps have been computed.

    Raises:
        OptionError: the boundary of a task would cut a block.
    """
    if block is None:
        return
    cut = [a for a in range(3) if size[a] < bounds.size[a] and size[a] % block[a]]
    if cut:
        whole = size.high(block) // block * block
        fits = Zyx(*(whole[a] if a in cut else size[a] for a in range(3)))
        msg = (
            f"tasks of {size} voxels would cut blocks of DST, which have {block} voxels (zyx); "
            f"give --task-size {fits.as_option}, or another --block-size"
        )
        raise OptionError(msg)

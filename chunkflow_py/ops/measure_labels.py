"""Measure objects: size, box, centroid, intensities.

Example: chunkflow load-zarr --store labels.zarr measure-labels --statistics-path objects.parts

On one machine, use the subcommand label-statistics instead: it measures a whole volume and writes
one table. To measure on many machines, run measure-labels in a pipeline with submit. Each task
stores the measures of its objects as one file below --statistics-path URL. Then `label-statistics
--parts URL` combines the files of all tasks into a table. If a task is killed and runs again, its
objects are counted once. The margin around a task's box is not measured.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemName, input_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Outline
    from chunkflow_py.store.task_counts import CountStore

SECTION = "segment"

logger = logging.getLogger(__name__)


@dataclass
class LabelMeasurer(OperatorBase):
    """Stores the measures of the objects of every task.

    Attributes:
        store: store to which the measures are written.
        input_name: name of the labels.
        image_name: name of the chunk with intensities, or ``None``.
    """

    store: CountStore
    input_name: str = "chunk"
    image_name: str | None = None

    @property
    @hook
    def destination(self) -> str:
        """URL of the folder or prefix of the measures."""
        return self.store.place

    @hook
    def prepare(self, outline: Outline) -> None:
        """Check that no two tasks have overlapping boxes.

        Raises:
            AlignmentError: the boxes of two tasks overlap.
        """
        from chunkflow_py.store.task_counts import check_tasks

        check_tasks(outline.boxes)

    def __call__(self, task: Task) -> Task:
        """Store the measures of the objects in the task's box.

        Raises:
            ChunkError: the voxels are not labels, or the intensities are integers of 64 bits.
        """
        from chunkflow_py.segmentation.labels.object_measures import measure
        from chunkflow_py.store.task_counts import counted_region

        labels = task.chunk(self.input_name)
        image = None if self.image_name is None else task.chunk(self.image_name)
        region = counted_region(task, labels, *([] if image is None else [image]))
        counts = measure(labels, region, image)
        task.written.append(self.store.put(counts))
        logger.info("stored the measures of %d objects in %s", len(counts.arrays["labels"]), region)
        return task


# fmt: off
@operator("write")
@input_option(help="Name of the labels.")
@click.option("--statistics-path", "-s", metavar="URL", required=True,
              help="Folder or prefix for the measures of all tasks; nothing else may be in it.")
@click.option("--image-name", type=ItemName("in"),
              help="Name of a chunk whose intensities are measured.")
def command(statistics_path: str, input_name: str, image_name: str | None) -> LabelMeasurer:
    """Return the operator."""
    # fmt: on
    from chunkflow_py.segmentation.labels.object_measures import KIND
    from chunkflow_py.store.task_counts import CountStore

    return LabelMeasurer(CountStore(statistics_path, KIND), input_name, image_name)

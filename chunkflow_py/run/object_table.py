"""Measure all objects of a volume on one machine, and write the measures to a table.

```
PLACE/objects.json   what is measured; a later call with other volumes or tasks is refused
PLACE/parts/BOX.npz  measures of the objects of one task; existing files are not computed again
```
"""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.csv_table import csv_of
from chunkflow_py.core.geometry import BoxGrid
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import ChunkError, OptionError, needs_extra
from chunkflow_py.ops.measure_labels import LabelMeasurer
from chunkflow_py.pipeline.operator import Operator, Source
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.run.whole_volume import VolumeTasks, task_size
from chunkflow_py.run.work_folder import begin_in
from chunkflow_py.segmentation.labels.object_measures import (
    KIND,
    ObjectMeasures,
    check_intensities,
    columns_of,
    summed,
)
from chunkflow_py.store.task_counts import SUFFIX, CountStore
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.loader import VolumeLoader
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeOptions, names_of
from chunkflow_py.volume.volume_source import StoredVolume

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import Region, Zyx
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)

_RECORD = "objects.json"
FORMATS = (".csv", ".parquet")


@dataclass
class ObjectTable:
    """Measures all objects of one volume of labels, and makes a table of the measures.

    Attributes:
        labels: URL of the volume of labels.
        place: URL of the folder or prefix for the measures of tasks.
        image: URL of a volume of intensities with the bounds and voxel size of the labels;
            ``None`` to measure without intensities.
        channels: channels of the image to measure, in the order of the columns; ``None`` for all.
        mip: resolution level of both volumes.
        task_size: box size of the tasks, voxels, zyx. With ``None``, a box consists of whole
            blocks, about 64 MiB per box.
        overwrite: whether to delete existing measures.
        opening: options with which the volumes are opened.
    """

    labels: str
    place: str
    image: str | None = None
    channels: tuple[int, ...] | None = None
    mip: int = 0
    task_size: Zyx | None = None
    overwrite: bool = False
    opening: VolumeOptions = field(default_factory=VolumeOptions)

    @cached_property
    def volume(self) -> Volume:
        """The volume of labels.

        Raises:
            ChunkError: the voxels are not integers in one channel.
        """
        volume = open_volume(self.labels, self.mip, opening=self.opening)
        if volume.dtype.kind not in "bui" or (volume.channels or 1) > 1:
            msg = (
                f"{self.labels} has {volume.channels or 1} channels of {volume.dtype}, but "
                "labels are integers in one channel; make labels with threshold, "
                "connected-components or agglomerate"
            )
            raise ChunkError(msg)
        return volume

    @cached_property
    def image_volume(self) -> Volume | None:
        """The volume of intensities; ``None`` if the objects are measured without intensities.

        Raises:
            OptionError: bounds, time points or voxel size of the image differ from those of the
                labels.
            ChunkError: the intensities cannot be summed exactly.
        """
        if self.image is None:
            return None
        image, labels = open_volume(self.image, self.mip, opening=self.opening), self.volume
        for name, of_image, of_labels in (
            ("bounds", image.bounds, labels.bounds),
            ("time points", image.times, labels.times),
            ("voxel size", image.voxel_size_nm, labels.voxel_size_nm),
        ):
            if of_image != of_labels:
                msg = (
                    f"--image {self.image} has {name} {of_image}, but {self.labels} has "
                    f"{name} {of_labels}; use the image from which the labels were made"
                )
                raise OptionError(msg)
        check_intensities(image.dtype)
        return image

    @property
    def parts(self) -> CountStore:
        """The measures of all tasks."""
        return CountStore(f"{self.place}/parts", KIND)

    def begin(self) -> None:
        """Store a description of what is measured, or compare it with the stored description.

        Raises:
            OptionError: the folder contains measures of other volumes or tasks; or the bounds, time
                points or voxel size of the image differ from those of the labels.
        """
        image = self.image_volume
        description = {
            "labels": Location.parse(self.labels).url,
            "mip": self.mip,
            "bounds": str(self.volume.bounds),
            "image": None if image is None else Location.parse(self.image or "").url,
            "channels": self.channels and list(self.channels),
            "task size": list(self._size),
        }
        begin_in(
            self.place,
            description,
            record=_RECORD,
            results="parts",
            what="measures",
            overwrite=self.overwrite,
            access=self.opening.access,
        )

    @cached_property
    def _size(self) -> Zyx:
        return self.task_size or task_size(self.volume.block_size, self.volume)

    def measuring(self, **running: Any) -> Pipeline:
        """Return the pipeline that measures the objects in all tasks.

        Args:
            running: further keyword arguments for `Pipeline`.
        """
        stored = frozenset(self.parts.store.list())

        def skip(task: Task) -> Task:
            if f"{task.region}{SUFFIX}" in stored:
                reason = "the measures of the task are already stored"
                raise Skip(reason)
            return task

        def loader(url: str, name: str, channels: tuple[int, ...] | None) -> Operator:
            source = StoredVolume(url, self.mip, options=self.opening)
            body = VolumeLoader(source, channels=channels, output_name=name)
            return Operator(f"load-{name}", "read", body, body, (), (name,))

        operators = [
            Operator("resume", "read", skip, skip),
            loader(self.labels, "labels", None),
        ]
        if self.image is not None:
            operators.append(loader(self.image, "image", self.channels))
        measurer = LabelMeasurer(self.parts, "labels", "image" if self.image else None)
        inputs = ("labels", "image") if self.image else ("labels",)
        operators.append(Operator("measure", "write", measurer, measurer, inputs))
        boxes = BoxGrid.covering(self.volume.bounds, self._size, respect_stop=True)
        return Pipeline(
            operators, Source("tasks", VolumeTasks(boxes, self.volume.times)), **running
        )

    def objects(self, parts: str | None = None) -> dict[int | None, ObjectMeasures]:
        """Return the measures of all objects at each time index, with the time index as key.

        If the volume has no time axis, ``None`` is the only key.

        Args:
            parts: URL of the measures that measure-labels has stored (default: the measures of this
                table).

        Raises:
            VolumeError: there are no measures, or the measures are damaged.
            OptionError: the measures are of another volume, or differ from the image in the number
                of channels.
        """
        store = self.parts if parts is None else CountStore(parts, KIND)
        regions = store.regions()
        self._check_regions(regions, store.place)
        found = {}
        for time in sorted(
            {region.time for region in regions}, key=lambda t: -1 if t is None else t
        ):
            counts = store.read([region for region in regions if region.time == time])
            whole = summed(ObjectMeasures(**each.arrays) for each in counts)
            if whole is not None:
                self._check_channels(whole, store.place)
                found[time] = whole
        return found

    def _check_regions(self, regions: list[Region], place: str) -> None:
        """Raise an error if a measured box is outside of the labels; warn if boxes are missing."""
        bounds, times = self.volume.bounds, self.volume.times
        for region in regions:
            is_time = region.time is None if times is None else region.time in range(times)
            if not (is_time and bounds.contains(region.bbox)):
                msg = (
                    f"{place} has measures of {region}, but {self.labels} has bounds {bounds} and "
                    f"time points {times}; use measures of this volume"
                )
                raise OptionError(msg)
        measured = sum(region.bbox.voxels for region in regions)
        total = bounds.voxels * (times or 1)
        if measured < total:
            logger.warning(
                "the objects are incomplete: the measures below %s cover only a fraction of "
                "%.4g of %s; run the other tasks of measure-labels",
                place, measured / total, self.labels,
            )  # fmt: skip

    def _check_channels(self, measures: ObjectMeasures, place: str) -> None:
        image, measured = self.image_volume, measures.counted.shape[1]
        if image is None:
            return
        expected = (image.channels or 1) if self.channels is None else len(self.channels)
        if measured != expected:
            msg = (
                f"{place} has intensities of {measured} channels, but {expected} channels of "
                f"--image {self.image} are selected; repeat measure-labels with --image-name and "
                "the same --channels, or omit --image"
            )
            raise OptionError(msg)

    def columns(self, objects: dict[int | None, ObjectMeasures]) -> dict[str, NDArray[Any]]:
        """Return the columns of a table with one row per object; the keys are the column names.

        The columns are those of `chunkflow_py.segmentation.labels.object_measures.columns_of`. The
        table of a time series has a further column ``time``, the time index.

        Args:
            objects: measures, as the method `objects` returns them.
        """
        import numpy as np

        image = self.image_volume
        names = () if image is None else names_of(image, self.channels)
        tables = [
            columns_of(each, self.volume.bounds, self.volume.voxel_size_nm, names)
            for each in objects.values()
        ]
        found = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        if self.volume.times is None:
            return found
        counts = [len(each) for each in objects.values()]
        times = np.repeat(np.array([time or 0 for time in objects], np.int64), counts)
        return {"time": times, **found}


def encoded_table(columns: dict[str, NDArray[Any]], suffix: str) -> bytes:
    """Return a table as CSV (if *suffix* is ``.csv``) or as Parquet (``.parquet``).

    Raises:
        MissingExtraError: the library for Parquet is not installed.
    """
    if suffix == ".parquet":
        with needs_extra("parquet", "a Parquet file"):
            from pyarrow import parquet, table
        buffer = io.BytesIO()
        parquet.write_table(table(columns), buffer)
        return buffer.getvalue()
    return csv_of(columns)


def check_table_path(path: Path) -> None:
    """Check the name of a table.

    Raises:
        OptionError: the name ends in neither .csv nor .parquet.
    """
    if path.suffix not in FORMATS:
        msg = f"{path} does not end in {' or '.join(FORMATS)}; use {path.with_suffix('.csv')}"
        raise OptionError(msg)
